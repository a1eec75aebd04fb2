"""An experiment's folder: where it is found and what its paper.yaml says (cells, columns, claims)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab.config import EXPERIMENTS_DIR

ALL_COLUMNS = "all"
DIRECTIONS = ("lower", "higher")
OUR_SPLIT = "dev"


@dataclass(frozen=True)
class Column:
    """A column of the paper's table: the data set it used and the ones that may stand in for it."""

    name: str
    metric: str
    """Key of scores.json."""
    task: str
    stand_ins: tuple[str, ...]
    benchmarks: tuple[str, ...]
    """What a task may call this column in its `stand_in_for`."""
    split: str = OUR_SPLIT
    """Which split the paper's numbers of this column are on; ours are always on the development set."""

    def accepts(self, task: str, stand_in_for: str | None) -> bool:
        """Whether a run of this task belongs to this column, itself or as a stand-in."""
        return task == self.task or task in self.stand_ins or stand_in_for in (self.name, self.task, *self.benchmarks)


@dataclass(frozen=True)
class Row:
    name: str
    label: str
    arm: str | None
    """The pre-training arm whose cost the row has; None for a floor without pre-training."""
    cells: tuple[float | None, ...]


@dataclass(frozen=True)
class Claim:
    id: str
    text: str
    first: str
    second: str
    column: str
    """A column's name, or "all"."""
    direction: str
    """Of first against second."""
    paper_delta: float | None


@dataclass(frozen=True)
class Experiment:
    folder: Path
    name: str
    title: str
    source: str
    split: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    def label(self, row: str) -> str:
        return next((one.label for one in self.rows if one.name == row), row)


def find_experiment(name: str) -> Path:
    """The folder of an experiment, from its name or its path.

    Raises:
        ValueError: there is none; names the nearest.
    """
    for folder in (Path(name), EXPERIMENTS_DIR / name):
        if (folder / "paper.yaml").is_file():
            return folder.resolve()
    known = list_experiments()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    raise ValueError(f"no experiment {name!r} (a folder with a paper.yaml); {hint}")


def list_experiments() -> list[str]:
    """Names of the experiments that come with the project."""
    return sorted(path.parent.name for path in EXPERIMENTS_DIR.glob("*/paper.yaml"))


def load_experiment(folder: Path) -> Experiment:
    """Read and check paper.yaml.

    Raises:
        ValueError: names the file, the entry and what is wrong with it.
    """
    path = folder / "paper.yaml"
    try:
        plain = OmegaConf.to_container(OmegaConf.load(path))
    except YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{path}: not a mapping")
    top = _checked(plain, {"title", "source", "split", "columns", "rows", "claims"}, str(path))
    split = str(top["split"])
    columns = tuple(_column(entry, split, f"{path}: columns.{i}") for i, entry in enumerate(top["columns"]))
    rows = tuple(_row(entry, len(columns), f"{path}: rows.{i}") for i, entry in enumerate(top["rows"]))
    for folder_name, used in (("row", {row.name for row in rows}), ("arm", {row.arm for row in rows} - {None})):
        _check_files(path, folder_name, {str(name) for name in used})
    names = ({row.name for row in rows}, {column.name for column in columns} | {ALL_COLUMNS})
    claims = tuple(_claim(entry, *names, f"{path}: claims.{i}") for i, entry in enumerate(top["claims"]))
    return Experiment(folder, folder.name, str(top["title"]), str(top["source"]), split, columns, rows, claims)


def _check_files(path: Path, group: str, used: set[str]) -> None:
    """A row or arm that the sweeps do not know would stay empty, and its runs would be left out of the table."""
    known = {file.stem for file in (path.parent / group).glob("*.yaml")}
    if known and used - known:
        wrong = sorted(used - known)[0]
        near = difflib.get_close_matches(wrong, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known))}"
        raise ValueError(f"{path}: {group} {wrong!r} has no file {group}/{wrong}.yaml; {hint}")


def _checked(entry: Any, keys: set[str], where: str, optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(entry, Mapping) or set(entry) - optional != keys:
        found = sorted(map(str, entry)) if isinstance(entry, Mapping) else repr(entry)
        raise ValueError(f"{where}: needs exactly the keys {sorted(keys)}, has {found}")
    return {str(key): value for key, value in entry.items()}


def _column(entry: Any, split: str, where: str) -> Column:
    """`split` is the table's, for a column that names none of its own."""
    keys = {"name", "metric", "task", "stand_ins", "benchmarks"}
    one = {"split": split} | _checked(entry, keys, where, frozenset({"split"}))
    names = tuple(one["stand_ins"]), tuple(one["benchmarks"])
    return Column(one["name"], one["metric"], one["task"], *names, split=str(one["split"]))


def _row(entry: Any, num_columns: int, where: str) -> Row:
    one = _checked(entry, {"row", "label", "arm", "cells"}, where)
    if len(one["cells"]) != num_columns:
        raise ValueError(f"{where}: {len(one['cells'])} cells for {num_columns} columns")
    return Row(one["row"], one["label"], one["arm"], tuple(one["cells"]))


def _claim(entry: Any, rows: set[str], columns: set[str], where: str) -> Claim:
    one = _checked(entry, {"id", "text", "paper_delta", "compare", "direction"}, where)
    compare = one["compare"] if isinstance(one["compare"], list) and len(one["compare"]) == 3 else ["?"] * 3
    first, second, column = map(str, compare)
    if {first, second} - rows or column not in columns:
        raise ValueError(f"{where}: compare is [row, row, column]; rows are {sorted(rows)}, columns {sorted(columns)}")
    if one["direction"] not in DIRECTIONS:
        raise ValueError(f"{where}: direction is {one['direction']!r}; it is one of {', '.join(DIRECTIONS)}")
    return Claim(one["id"], one["text"], first, second, column, one["direction"], one["paper_delta"])
