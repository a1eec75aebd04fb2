"""What paper.yaml may say: a table, and the arms and sweeps that fill it.

Reading it takes pydantic and yaml alone, so every verb opens an experiment first. docs/claims.md
shows every key; columns, rows and claims are in analysis/.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, Strict, ValidationError, model_validator

from claims.analysis.comparability import PROTOCOL, RATE_KEYS
from claims.analysis.schema import (
    ALL_COLUMNS,
    IN_PERCENT,
    BaseClaim,
    Column,
    CrossingClaim,
    Entry,
    TableSpec,
)
from claims.tables.claim_file import SECTIONS, load_yaml, validation_message, without_needs
from claims.text.did_you_mean import hint
from clozelab.metrics.metric import UNKNOWN_UNIT
from clozelab.results.units import UNKNOWN, scale_without_runs
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.text.plain import JsonObject, PlainDict

MATCHES = {None: ("steps", "tokens"), "none": (), "time": ("training_seconds",)}
"""What `matched_by` may say -> the amounts of two arms' pre-training that have to agree.

Every other word is an amount itself."""
# what of an experiment with inputs may have entries with `needs: INPUT`
NEEDING = ("columns", "rows", "claims")
# how long pre-training is, and what is counted in steps
STEP_KEYS = ("phases.*.steps", "validation.interval_steps")
# the prepared text of a pre-training, and the settings that decide it: a text cut into tokens
INPUT_CORPUS = "input corpus"
OF_INPUT_CORPUS = ("corpus", "tokenizer")
# largest difference between a claim's size and that of its cells, each rounded to one decimal
ROUNDING = 0.1 + 1e-9


class Sweeps(Entry):
    """What the sweeps of an experiment without sweep_*.yaml run over.

    Each maps a key to its values, as in hydra.sweeper.params.
    """

    pretrain: PlainDict = Field(default={})
    """a mapping such as {seed: '1,2,3'}"""
    finetune: PlainDict = Field(default={})
    """a mapping such as {task: 'mnli,qnli', seed: '1,2'}"""
    evaluate: PlainDict = Field(default={})
    """a mapping such as {pretrain_seed: '1,2'}"""


class InputSpec(Entry):
    """Something that the command line gives an experiment by name, as `inputs.NAME=`."""

    kind: Literal["model", "corpus", "tasks", "number", "file"]
    """model, corpus, tasks, number or file"""
    about: str
    """what it is, in a few words"""
    default: str | int | None = ""
    """what it is unless somebody says; null where the experiment can do without"""

    @property
    def is_needed(self) -> bool:
        return self.default == ""


class LongerVocabulary(Entry):
    """An encoder with more words of a text, made before the first run."""

    of: str
    """the input that is the encoder"""
    text: str
    """the input that is the text"""
    add: str
    """the input that says how many words"""


class Experiment(TableSpec):
    """paper.yaml as a whole.

    Two fields are no keys of the file: `folder`, and `name`, which is the folder's.
    """

    folder: Path
    name: str
    title: str = ""
    """the table's heading; without it, the folder's name"""
    asks: str = ""
    """a question that its primary claims answer with yes or no"""
    scale: str | None = None
    """the scale of an experiment with inputs, unless somebody says another"""
    inputs: dict[str, InputSpec] = Field(default={})
    """a mapping of what inputs.NAME= gives (planning/inputs.py)"""
    given: dict[str, str] = Field(default={})
    """the checksums of what was given, in an experiment that was filled in"""
    longer_vocabularies: dict[str, LongerVocabulary] = Field(default={})
    """a mapping of {of: encoder, text: text, add: words}, each the name of an input"""
    arms: dict[str, PlainDict] = Field(default={})
    """a mapping of arms, each a mapping of settings"""
    sweeps: Sweeps = Sweeps()
    """a mapping with pretrain and finetune"""
    matched_by: Literal["steps", "tokens", "flops", "time", "none"] | None = None
    """one of steps, tokens, flops, time, none; without it, steps and tokens"""
    matched_by_reason: str = ""
    """why arms need not agree in anything else"""
    retained_of: str | None = None
    """the row whose scores the others are told in percent of, such as a teacher"""
    differ_in: tuple[str, ...] = ()
    """a list of settings such as [epochs]"""
    seeds: Annotated[int, Strict()] | None = Field(default=None, ge=1)
    """the number of runs behind a cell"""

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, file: PlainDict) -> PlainDict:
        """Fill in what a file need not say.

        Rows for the arms where there are none; name, split and empty cells where an entry says
        nothing of them.
        """
        file = {"title": file.get("name", "")} | file
        if "inputs" in file:
            file |= {key: without_needs(file.get(key)) for key in NEEDING if key in file}
        arms = file.get("arms")
        # Arms without rows: a row for each, and the floor that was never trained.
        if file.get("rows") is None and isinstance(arms, dict) and arms:
            floor = {"row": "random", "label": "No pre-training", "arm": None}
            file["rows"] = [*({"row": arm, "arm": arm, "floor": "random"} for arm in arms), floor]
        columns = file.get("columns")
        if not isinstance(columns, list):
            return file
        split = {"split": file["split"]} if "split" in file else {}
        file["columns"] = [_column_with_defaults(entry, split) for entry in columns]
        rows = file.get("rows")
        if isinstance(rows, list):
            file["rows"] = [_row_with_defaults(entry, len(columns)) for entry in rows]
        return file

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        for index, column in enumerate(self.columns):
            self._check_mean(column, f"columns.{index}: mean_of")
        row_names = [row.name for row in self.rows]
        for index, row in enumerate(self.rows):
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"rows.{index}: {len(row.cells)} cells for {len(self.columns)} columns"
                )
            if row.floor is not None:
                _check_known(row.floor, row_names, f"rows.{index}: floor", "rows")
        if self.retained_of is not None:
            _check_known(self.retained_of, row_names, "retained_of", "rows")
        for index, claim in enumerate(self.claims):
            self._check_claim(claim, f"claims.{index}", row_names)
        return self

    def _check_mean(self, column: Column, where: str) -> None:
        """A mean is of tasks or of measures, in percent."""
        tasks = [known.name for known in self.columns if known.task]
        members = list(chain.from_iterable(column.parts))
        names = {member.column for member in members}
        kinds = {known.is_measured for known in self.columns if known.name in names}
        if len(kinds) > 1:
            raise ValueError(f"{where}: tasks and measures have seeds of their own; take one kind")
        for member in members:
            _check_known(member.column, tasks, where, "tasks' columns")
            member_column = self.column(member.column)
            metric = member.metric or member_column.metric
            scale = scale_without_runs(member_column, metric)
            if scale not in (UNKNOWN, IN_PERCENT):
                raise ValueError(f"{where}: {member.column} is not in percent, as a mean is")

    def _check_claim(self, claim: BaseClaim, where: str, row_names: list[str]) -> None:
        """Its rows and columns are the table's, its size is what the printed cells say."""
        units = {column.name: scale_without_runs(column).unit for column in self.columns}
        for name in claim.all_rows:
            _check_known(name, row_names, where, "rows")
        _check_known(claim.column, [*units, ALL_COLUMNS], where, "columns")
        if isinstance(claim, CrossingClaim) and self.column(claim.column).is_pretraining:
            raise ValueError(
                f"{where}: crosses is about kept encoders; {claim.column!r} is a fact of whole runs"
            )
        if claim.against:
            column = claim.against[2]
            _check_known(column, units, f"{where}: against", "columns")
            # What is not known yet is looked at in the runs.
            of_both = {units[claim.column], units[column]} - {UNKNOWN_UNIT}
            if len(of_both) > 1:
                raise ValueError(
                    f"{where}: compare is in {units[claim.column]} and against in {units[column]};"
                    " they cannot be subtracted"
                )
        self._check_size(claim, where)
        # A measure trains nothing, and a fact is of pre-training.
        is_tuned = claim.column == ALL_COLUMNS
        if not is_tuned:
            compared = self.column(claim.column)
            is_tuned = bool(compared.task) and not compared.is_measured
        if is_tuned:
            self._check_protocol(claim, where)

    def _check_protocol(self, claim: BaseClaim, where: str) -> None:
        """Rows that a claim compares are fine-tuned alike, as far as the file says in numbers.

        What it does not say is the scale's, and is looked at in the runs.
        """
        rows = [self.row(name) for name in claim.all_rows]
        for key in sorted(set(PROTOCOL) - self.free_keys):
            row_of: dict[float, str] = {}
            for compared in rows:
                value = compared.delta.get(key, self.sweeps.finetune.get(key))
                if isinstance(value, int | float):
                    row_of.setdefault(float(value), compared.name)
            if len(row_of) > 1:
                (first, row), (second, other), *_ = row_of.items()
                raise ValueError(
                    f"{where}: {row} is fine-tuned with {key} {first:g} and {other} with"
                    f" {second:g}, so their runs would not be compared: give both the same, or say"
                    f" differ_in: [{key}]"
                )

    def _check_size(self, claim: BaseClaim, where: str) -> None:
        """The claim's size is the difference of the printed cells, where all are printed."""
        if claim.paper_delta is None:
            return
        # a - b, or (a - b) - (c - d): weights of +1 and -1.
        total = 0.0
        for weight, row, column in claim.weighted_cells:
            cell = self.printed(row, column)
            if cell is None:
                return
            total += weight * cell
        if abs(total - claim.paper_delta) > ROUNDING:
            raise ValueError(
                f"{where}: paper_delta is {claim.paper_delta:g}, and its cells say {total:.4g}"
            )

    @property
    def matched(self) -> tuple[str, ...]:
        """The amounts of two arms' pre-training that have to agree."""
        return MATCHES.get(self.matched_by, (str(self.matched_by),))

    @property
    def free_keys(self) -> frozenset[str]:
        """Settings in which any two rows or arms may differ, whatever their files say."""
        keys = set(self.differ_in)
        # The optimizer repeats the learning rate of a fine-tuning.
        if "learning_rate" in self.differ_in:
            keys |= set(RATE_KEYS)
        # Arms of equal tokens or time may take other numbers of steps.
        if "steps" not in self.matched:
            keys |= set(STEP_KEYS)
        return with_input_corpus(frozenset(keys))


def with_input_corpus(keys: frozenset[str]) -> frozenset[str]:
    """The settings, with the prepared text where one of them decides it."""
    if any(key.split(".")[0] in OF_INPUT_CORPUS for key in keys):
        return keys | {INPUT_CORPUS}
    return keys


def _column_with_defaults(entry: object, split: PlainDict) -> object:
    """`MNLI` is a column of that name and task; a column has the table's split."""
    if isinstance(entry, str):
        entry = {"name": entry, "task": entry}
    return split | entry if isinstance(entry, dict) else entry


def _row_with_defaults(entry: object, num_columns: int) -> object:
    """A row without cells has empty ones, and one without a label its name."""
    if not isinstance(entry, dict):
        return entry
    return {"cells": [None] * num_columns, "label": str(entry.get("row"))} | entry


def _check_known(name: str, known: Iterable[str], where: str, kind: str) -> None:
    """ValueError with the nearest name where `name` is none of those."""
    names = list(known)
    if name not in names:
        raise ValueError(f"{where}: {name!r} is none of the {kind}; {hint(name, names)}")


def find_experiment(name: str) -> Path:
    """The folder of an experiment, or its one file; raises as `open_experiment`."""
    return open_experiment(name).folder


def is_filled_form(folder: Path | None) -> bool:
    """Whether a folder is an experiment with inputs, filled in (planning/inputs.py)."""
    if folder is None or not (folder / "paper.yaml").is_file():
        return False
    return "given" in read_yaml(folder / "paper.yaml")


def open_experiment(name: str) -> Experiment:
    """Read and check an experiment, from its name or path.

    ValueError: there is none such, or it has a slip.
    """
    for path in (Path(name), EXPERIMENTS_DIR / name):
        is_one_file = path.is_file() and path.suffix == ".yaml"
        if is_one_file or (path / "paper.yaml").is_file():
            return load_experiment(path.resolve())
    if "/" in name and not Path(name).exists():
        raise ValueError(f"{name}: there is no such folder; `clozelab list` has the experiments")
    raise ValueError(
        f"no experiment {name!r} (a folder with a paper.yaml); {hint(name, list_experiments())}"
    )


def list_experiments() -> list[str]:
    """Names of the experiments that come with the project."""
    return sorted(path.parent.name for path in EXPERIMENTS_DIR.glob("*/paper.yaml"))


def own_experiments() -> list[Path]:
    """What is one's own of what `find_experiment` takes: where one stands, and in `experiments`.

    These are folders with a paper.yaml, and files that have a table's columns.
    """
    experiments = set()
    for pattern in ("*.yaml", "*/paper.yaml", "experiments/*.yaml", "experiments/*/paper.yaml"):
        for path in Path().glob(pattern):
            if not path.is_file() or not os.access(path, os.R_OK):
                continue
            # Any YAML may lie here. An experiment has the key `columns` at the beginning of a line.
            if path.name == "paper.yaml":
                experiments.add(path.parent)
            elif b"\ncolumns:" in b"\n" + path.read_bytes():
                experiments.add(path)
    installed = EXPERIMENTS_DIR.resolve()
    return sorted(path for path in experiments if path.resolve().parent != installed)


def load_experiment(folder: Path) -> Experiment:
    """Read and check paper.yaml, or the one file, and those beside it.

    ValueError: the file, the key, what is wrong.
    """
    path = folder if folder.is_file() else folder / "paper.yaml"
    file = read_yaml(path)
    for key in ("folder", "name"):
        if key in file:
            raise ValueError(f"{path}: has no key {key!r}; an experiment is called as its folder")
    name = folder.stem if folder.is_file() else folder.name
    try:
        experiment = Experiment.model_validate(file | {"folder": folder, "name": name})
    except ValidationError as error:
        raise ValueError(
            f"{path}: {validation_message(error, Experiment, SECTIONS | {'sweeps': Sweeps})}"
        ) from None
    _check_arms(experiment, path)
    return experiment


def read_yaml(path: Path) -> JsonObject:
    """A YAML file as it is written. ValueError where it is no YAML or no mapping."""
    plain = load_yaml(path)
    if not isinstance(plain, dict):
        raise ValueError(f"{path}: not a mapping of keys and values")
    return {str(key): value for key, value in plain.items()}


def _check_arms(experiment: Experiment, path: Path) -> None:
    """Arms and rows stand in the file, and a row takes one of its arms.

    A slip would show after the last run.
    """
    folder = experiment.folder
    files = sorted([*folder.glob("arm/*.yaml"), *folder.glob("row/*.yaml")])
    if files:
        raise ValueError(
            f"{files[0]}: arms and rows are no files of their own; write a line of `arms`, or `set`"
            f" in a line of `rows`, into {path}"
        )
    arms = set(experiment.arms)
    if not arms:
        return
    for index, row in enumerate(experiment.rows):
        for name in filter(None, (row.arm, row.delta.get("encoder_arm"))):
            # What an interpolation stands for is known only in a composed sweep.
            if "${" not in str(name):
                _check_known(name, arms, f"{path}: rows.{index}: encoder_arm", "arms")
