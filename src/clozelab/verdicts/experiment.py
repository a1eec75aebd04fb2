"""An experiment's folder: where it is found and what its paper.yaml says (cells, columns, claims).

A column is a score of a task, or `from: pretrain`, a fact of the row's pre-training runs, or `mean_of` other columns
(a list inside that list is averaged first; {COLUMN: METRIC} is another score of a column's runs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab.config import EXPERIMENTS_DIR
from clozelab.suggestions import hint
from clozelab.verdicts.consistency import RATE_KEYS, STEP_KEYS
from clozelab.verdicts.paper import Claim, Tasks, check_fact, check_files, check_setting, checked, load_claim

OUR_SPLIT = "dev"
SPLITS = (OUR_SPLIT, "test")
PERCENT = "percent"
MATCHES: dict[str, tuple[str, ...]] = {
    "steps": ("steps",),
    "tokens": ("tokens",),
    "flops": ("flops",),
    "time": ("training_seconds",),
    "none": (),
}
"""What `matched_by` may say -> what of two arms' pre-training has to agree."""
STEPS_AND_TOKENS = ("steps", "tokens")
AVERAGES = {"mean": "means", "median": "medians", "best": "the best"}
"""What `averaging` may say of the paper's cells -> in words. Ours are means."""
ROUNDING = 0.1 + 1e-9
"""Largest difference between a mean of printed numbers and a printed mean, each rounded to one decimal."""


@dataclass(frozen=True)
class Part:
    """A column that goes into a mean, by its own metric or by another one of the same runs."""

    column: str
    metric: str = ""


@dataclass(frozen=True)
class Column:
    """A column of the paper's table: the data set it used and the ones that may stand in for it."""

    name: str
    metric: str
    """Key of scores.json, or of a pre-training run's facts."""
    task: str
    stand_ins: tuple[str, ...]
    benchmarks: tuple[str, ...]
    """What a task may call this column in its `stand_in_for`."""
    split: str = OUR_SPLIT
    """Which split the paper's numbers of this column are on; ours are always on the development set."""
    is_pretraining: bool = False
    """Its cells are facts of the pre-training runs, one a pre-training seed, and not in percent."""
    parts: tuple[tuple[Part, ...], ...] = ()
    """What it is the plain mean of; parts in one group are averaged first and count once."""

    @property
    def unit(self) -> str:
        return self.metric.rpartition("/")[2].replace("_", " ") if self.is_pretraining else PERCENT

    @property
    def is_task(self) -> bool:
        """Whether its numbers are a task's own scores."""
        return not self.is_pretraining and not self.parts

    def accepts(self, task: str, stand_in_for: str | None) -> bool:
        """Whether a run of this task belongs to this column, itself or as a stand-in."""
        if not self.is_task:
            return False
        return task == self.task or task in self.stand_ins or stand_in_for in (self.name, self.task, *self.benchmarks)


@dataclass(frozen=True)
class Row:
    name: str
    label: str
    arm: str | None
    """The pre-training arm whose cost the row has; None for a floor without pre-training."""
    cells: tuple[float | None, ...]
    floor: str | None = None
    """The row of the same head without pre-training: what the task gives away for nothing."""


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
    matched_by: tuple[str, ...] = STEPS_AND_TOKENS
    """What of two arms' pre-training has to agree before their rows are compared."""
    matched_reason: str = ""
    """Why nothing has to, where nothing has to."""
    differ_in: tuple[str, ...] = ()
    """Settings that the rows are about, beyond what their files set."""
    seeds: int | None = None
    """Runs behind each of the paper's cells; None where it does not say."""
    averaging: str = ""
    """What of them a cell is, one of AVERAGES; empty where the paper does not say."""

    @property
    def statistic(self) -> str:
        """What the paper's cells are, in words; empty where it does not say."""
        if not self.seeds and not self.averaging:
            return ""
        of = f"{AVERAGES[self.averaging]} of " if self.averaging else "over "
        return f"{of}{self.seeds or 'several'} run{'' if self.seeds == 1 else 's'} a cell"

    @property
    def is_mean(self) -> bool:
        """Whether the paper's cells may be held against means, as far as it says."""
        return self.averaging in ("", "mean")

    @property
    def free_keys(self) -> frozenset[str]:
        """Settings in which any two rows or arms may differ, whatever their files say."""
        rates = RATE_KEYS if "learning_rate" in self.differ_in else ()
        steps = () if "steps" in self.matched_by else STEP_KEYS
        return frozenset((*self.differ_in, *rates, *steps))

    def label(self, row: str) -> str:
        return next((one.label for one in self.rows if one.name == row), row)


def find_experiment(name: str) -> Path:
    """The folder of an experiment, from its name or its path; every verb opens one so, before anything slow.

    Raises:
        ValueError: there is none, with the nearest; or something in its files is wrong (`load_experiment`).
    """
    for folder in (Path(name), EXPERIMENTS_DIR / name):
        if (folder / "paper.yaml").is_file():
            return load_experiment(folder.resolve()).folder
    raise ValueError(f"no experiment {name!r} (a folder with a paper.yaml); {hint(name, list_experiments())}")


def list_experiments() -> list[str]:
    """Names of the experiments that come with the project."""
    return sorted(path.parent.name for path in EXPERIMENTS_DIR.glob("*/paper.yaml"))


def load_experiment(folder: Path) -> Experiment:
    """Read and check paper.yaml, and the files beside it that it is about.

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
    optional = ("matched_by", "matched_by_reason", "differ_in", "seeds", "averaging")
    needed = {"title", "source", "split", "columns", "rows", "claims"}
    top = checked(plain, needed, str(path), optional=optional)
    for key in ("columns", "rows", "claims"):
        if not isinstance(top[key], list):
            raise ValueError(f"{path}: {key} is {top[key]!r}; it is a list ([] for none)")
    optional_values = _matching(top, str(path)) | _averaging(top, str(path))
    split = _split(top["split"], str(path))
    columns = tuple(_column(entry, split, f"{path}: columns.{i}") for i, entry in enumerate(top["columns"]))
    _check_columns(columns, path)
    rows = tuple(_row(entry, columns, f"{path}: rows.{i}") for i, entry in enumerate(top["rows"]))
    for folder_name, used in (("row", {row.name for row in rows}), ("arm", {row.arm for row in rows} - {None})):
        _check_named(path, folder_name, {str(name) for name in used})
    check_files(folder, {row.name: row.arm for row in rows})
    for i, row in enumerate(rows):
        if row.floor is not None and row.floor not in {one.name for one in rows}:
            raise ValueError(f"{path}: rows.{i}: floor {row.floor!r} is no row; rows are {[one.name for one in rows]}")
    names, units = [row.name for row in rows], {column.name: column.unit for column in columns}
    claims = tuple(load_claim(entry, names, units, f"{path}: claims.{i}") for i, entry in enumerate(top["claims"]))
    _check_unique([claim.id for claim in claims], f"{path}: claims", "id")
    _check_sizes(claims, rows, columns, path)
    heading = str(top["title"]), str(top["source"]), split
    return Experiment(folder, folder.name, *heading, columns, rows, claims, **optional_values)


def _check_sizes(claims: Sequence[Claim], rows: Sequence[Row], columns: Sequence[Column], path: Path) -> None:
    """A claim's size is what the printed cells that it is about say."""
    cells = {(row.name, column.name): cell for row in rows for column, cell in zip(columns, row.cells, strict=True)}
    for i, claim in enumerate(claims):
        if claim.paper_delta is None or len(claim.pairs) > 1:
            continue
        terms = [(row, claim.column) for row in claim.rows]
        terms += [(row, claim.against[2]) for row in reversed(claim.against[:2])] if claim.against else []
        numbers = [cells.get(term) for term in terms]
        if any(number is None for number in numbers):
            continue
        size = sum(sign * (number or 0.0) for sign, number in zip((1, -1) * 2, numbers, strict=False))
        if abs(size - claim.paper_delta) > ROUNDING:
            raise ValueError(f"{path}: claims.{i}: paper_delta is {claim.paper_delta:g}, and its cells say {size:.4g}")


def _averaging(top: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What the paper's cells are of how many runs."""
    seeds, averaging = top.get("seeds"), top.get("averaging") or ""
    if seeds is not None and (not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1):
        raise ValueError(f"{where}: seeds is {seeds!r}; it is the number of runs behind each of the paper's cells")
    if averaging and averaging not in AVERAGES:
        raise ValueError(f"{where}: averaging is {averaging!r}; it is one of {', '.join(AVERAGES)}")
    return {"seeds": seeds, "averaging": averaging}


def _matching(top: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What may differ between arms and rows by intention."""
    matched, reason = top.get("matched_by"), str(top.get("matched_by_reason") or "")
    if matched is not None and matched not in MATCHES:
        raise ValueError(
            f"{where}: matched_by is {matched!r}; it is one of {', '.join(MATCHES)}. Without it, arms must agree in "
            "steps and tokens"
        )
    differ_in = top.get("differ_in") or []
    if not isinstance(differ_in, list):
        raise ValueError(f"{where}: differ_in is {differ_in!r}; it is a list of settings such as [epochs]")
    for key in differ_in:
        check_setting(str(key), f"{where}: differ_in:")
    return {
        "matched_by": STEPS_AND_TOKENS if matched is None else MATCHES[matched],
        "matched_reason": reason,
        "differ_in": tuple(map(str, differ_in)),
    }


def _check_columns(columns: tuple[Column, ...], path: Path) -> None:
    _check_unique([column.name for column in columns], f"{path}: columns", "name")
    tasks = Tasks(path.parent)
    by_name = {column.name: column for column in columns if column.is_task}
    for i, column in enumerate(columns):
        where = f"{path}: columns.{i}"
        if column.is_pretraining:
            check_fact(column.metric, path.parent, f"{where}: metric")
        if column.is_task:
            tasks.check(column.task, f"{where}: task")
            tasks.check_metric(column.task, column.metric, f"{where}: metric")
        for stand_in in column.stand_ins:
            tasks.check(stand_in, f"{where}: stand_ins:")
        for part in (part for group in column.parts for part in group):
            if part.column not in by_name:
                meant = hint(part.column, by_name)
                raise ValueError(f"{where}: mean_of: {part.column!r} is none of the tasks' columns; {meant}")
            if part.metric:
                tasks.check_metric(by_name[part.column].task, part.metric, f"{where}: mean_of: {part.column}:")


def _check_unique(names: list[str], where: str, what: str) -> None:
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise ValueError(f"{where}: {what} {twice[0]!r} is there twice; give each its own")


def _check_named(path: Path, group: str, used: set[str]) -> None:
    """A row or arm that the sweeps do not know would stay empty, and its runs would be left out of the table."""
    known = {file.stem for file in (path.parent / group).glob("*.yaml")}
    if known and used - known:
        wrong = sorted(used - known)[0]
        raise ValueError(f"{path}: {group} {wrong!r} has no file {group}/{wrong}.yaml; {hint(wrong, known)}")


def _split(value: Any, where: str) -> str:
    if value not in SPLITS:
        raise ValueError(f"{where}: split is {value!r}; it is one of {', '.join(SPLITS)}")
    return str(value)


def _column(entry: Any, split: str, where: str) -> Column:
    """`split` is the table's, for a column that names none of its own."""
    if isinstance(entry, Mapping) and "mean_of" in entry:
        one = {"split": split} | checked(entry, ("name", "mean_of"), where, optional=("split",))
        parts = _parts(one["mean_of"], where)
        return Column(str(one["name"]), "", "", (), (), split=_split(one["split"], where), parts=parts)
    if isinstance(entry, Mapping) and "from" in entry:
        one = {"split": split} | checked(entry, ("name", "from", "metric"), where, optional=("split",))
        if one["from"] != "pretrain":
            raise ValueError(f"{where}: from is {one['from']!r}; it is pretrain, or left out for a task's score")
        metric = str(one["metric"])
        return Column(str(one["name"]), metric, "", (), (), split=_split(one["split"], where), is_pretraining=True)
    keys = {"name", "metric", "task", "stand_ins", "benchmarks"}
    one = {"split": split} | checked(entry, keys, where, optional=("split",))
    for key in ("stand_ins", "benchmarks"):
        if not isinstance(one[key], list):
            raise ValueError(f"{where}: {key} is {one[key]!r}; it is a list of names ([] for none)")
    names = tuple(map(str, one["stand_ins"])), tuple(map(str, one["benchmarks"]))
    words = str(one["name"]), str(one["metric"]), str(one["task"])
    return Column(*words, *names, split=_split(one["split"], where))


def _parts(entries: Any, where: str) -> tuple[tuple[Part, ...], ...]:
    """[A, [B, {B: validation/accuracy}]]: the mean of A and of the mean of B's own and another of its scores."""
    groups = [entry if isinstance(entry, list) else [entry] for entry in entries] if isinstance(entries, list) else []
    parts = tuple(tuple(map(_part, group)) for group in groups)
    flat = [part for group in parts for part in group]
    if len(groups) < 2 or not all(parts) or len(set(flat)) < len(flat):
        raise ValueError(f"{where}: mean_of is {entries!r}; it is a list of two or more different columns")
    return parts


def _part(entry: Any) -> Part:
    return Part(*map(str, next(iter(entry.items())))) if isinstance(entry, Mapping) and entry else Part(str(entry))


def _row(entry: Any, columns: tuple[Column, ...], where: str) -> Row:
    one = checked(entry, {"row", "label", "arm", "cells"}, where, optional=("floor",))
    cells = dict(zip((column.name for column in columns), one["cells"], strict=False))
    if len(one["cells"]) != len(columns):
        raise ValueError(f"{where}: {len(one['cells'])} cells for {len(columns)} columns")
    for column in columns:
        # Where a column is a mean of printed ones, each counted once.
        parts = [cells[group[0].column] for group in column.parts if group == (Part(group[0].column),)]
        is_printed = parts and len(parts) == len(column.parts)
        if not is_printed or cells[column.name] is None or any(part is None for part in parts):
            continue
        mean = sum(parts) / len(parts)
        if abs(mean - cells[column.name]) > ROUNDING:
            raise ValueError(
                f"{where}: {column.name} is {cells[column.name]}, and the mean of its {len(parts)} columns is "
                f"{mean:.2f}; one of the cells is wrong"
            )
    return Row(one["row"], one["label"], one["arm"], tuple(one["cells"]), one.get("floor"))
