"""What paper.yaml may say: columns, rows, claims, arms and sweeps, each a model that refuses what
it cannot mean.

Reading it takes pydantic and yaml alone, so every verb opens an experiment first. docs/claims.md
shows every key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml  # type: ignore[import-untyped]
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)

from clozelab.text.did_you_mean import hint
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.text.safe_yaml import UniqueKeys, own_text

OUR_SPLIT: Literal["dev"] = "dev"
PERCENT = "percent"
ALL_COLUMNS = "all"
ORDER, MONOTONE, SPREAD, CONTRAST = "order", "monotone", "spread", "difference of differences"
FALLING, RISING, WITHIN, CROSSES = (
    ("lower", "decreasing"),
    ("higher", "increasing"),
    "within",
    "crosses",
)
MATCHES = {None: ("steps", "tokens"), "none": (), "time": ("training_seconds",)}
"""What `matched_by` may say -> the amounts of two arms' pre-training that have to agree; any other
is an amount.
"""
# of the paper's cells, in words; ours are means
AVERAGES = {"mean": "means", "median": "medians", "best": "the best"}
RATE_KEYS = ("learning_rate", "optimizer.learning_rate")
# how long pre-training is, and what is counted in steps
STEP_KEYS = ("phases.*.steps", "validation.interval_steps")
# largest difference between a claim's size and that of its cells, each rounded to one decimal
ROUNDING = 0.1 + 1e-9

Number = Annotated[float, Strict()]


class Part(NamedTuple):
    """A column that goes into a mean, by its own metric or by another score of the same runs."""

    column: str
    metric: str = ""


def _parts(entries: Any) -> Any:
    """[A, [B, {B: validation/accuracy}]]: the mean of A and of the mean of two scores of B."""
    groups = (
        [one if isinstance(one, list) else [one] for one in entries]
        if isinstance(entries, list)
        else []
    )
    said = [
        [next(iter(one.items())) if isinstance(one, dict) and one else (one,) for one in group]
        for group in groups
    ]
    parts = tuple(tuple(Part(*map(str, one)) for one in group) for group in said)
    flat = [part for group in parts for part in group]
    if len(groups) < 2 or not all(parts) or len(set(flat)) < len(flat):
        raise ValueError(f"it is a list of two or more different columns, not {entries!r}")
    return parts


Parts = Annotated[tuple[tuple[Part, ...], ...], BeforeValidator(_parts)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Column(_Entry):
    """A column of the table: a task's score, a fact of the pre-training (`from: pretrain`), or a
    mean of columns.

    With `from: evaluate`, `task` is a measure (a choice of conf/measure), which no paper has a
    number of."""

    name: str = Field(description="what stands over the column")
    task: str = Field(
        default="", description="the task, or the measure with from: evaluate, whose score it is"
    )
    metric: str = Field(
        default="", description="a key of scores.json; without it, the task's own main score"
    )
    stand_ins: tuple[str, ...] = Field(
        default=(), description="a list of tasks that may stand in for it ([] for none)"
    )
    benchmarks: tuple[str, ...] = Field(
        default=(), description="a list of names that stand_in_for of a task may have"
    )
    split: Literal["dev", "test"] = Field(
        default=OUR_SPLIT, description="dev or test: of the paper's numbers"
    )
    source: Literal["pretrain", "evaluate", ""] = Field(
        default="", alias="from", description="pretrain, evaluate, or left out for a task"
    )
    parts: Parts = Field(
        default=(), alias="mean_of", description="a list of two or more different columns"
    )

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if sum(map(bool, (self.task, self.is_pretraining, self.parts))) != 1 or (
            self.source and self.parts
        ):
            said = "a column has one of task, from: pretrain and mean_of"
            raise ValueError(f"{said}; with from: evaluate, task is a measure")
        if not self.task and (self.stand_ins or self.benchmarks or (self.parts and self.metric)):
            raise ValueError(
                "stand_ins, benchmarks and a metric belong to a task's column, not to a mean"
            )
        if self.source and not self.metric:
            raise ValueError(f"a column from {self.source} has a metric, such as validation/loss")
        return self

    @property
    def is_pretraining(self) -> bool:
        """Its cells are facts of the pre-training runs, one a pre-training seed."""
        return self.source == "pretrain"

    @property
    def is_measured(self) -> bool:
        """Its cells are scores of evaluations, ours alone: the paper has no such column."""
        return self.source == "evaluate"

    @property
    def unit(self) -> str:
        # else a fact as it is: tokens
        is_figure = not self.is_pretraining or self.metric.startswith("validation/")
        is_percent = not self.source or (is_figure and not self.falls)
        return PERCENT if is_percent else self.metric.rpartition("/")[2].replace("_", " ")

    @property
    def falls(self) -> bool:
        """Whether a smaller score is the better one, in a unit of its own: nats, bits."""
        name = self.metric.removeprefix("validation/").partition("/")[0]
        return name.endswith(("loss", "perplexity")) or name.startswith("bits_")

    def accepts(self, task: str, stand_in_for: str | None) -> bool:
        """Whether a run of this task belongs to this column, itself or as a stand-in."""
        names = (self.name, self.task, *self.benchmarks)
        return bool(self.task) and (task in (self.task, *self.stand_ins) or stand_in_for in names)


class Row(_Entry):
    """A row of the table: the paper's cells, the arm whose encoder it takes, and what else sets its
    runs apart.
    """

    name: str = Field(alias="row", description="the row's name, as its run folders have it")
    label: str = Field(default="", description="what stands before the row; without it, its name")
    arm: str | None = Field(
        default=None, description="the pre-training arm whose encoder it takes; null for a floor"
    )
    cells: tuple[Number | None, ...] = Field(
        default=(), description="a list with a number, or null, for each column"
    )
    floor: str | None = Field(
        default=None, description="the row of the same head without pre-training"
    )
    delta: dict[str, Any] = Field(
        default={}, alias="set", description="a mapping of settings, such as {epochs: 3}"
    )


class Claim(_Entry):
    """One sentence that runs support or contradict; `direction` is of the number: a perplexity
    decreases.
    """

    text: str = Field(description="the claim as a sentence")
    direction: Literal["lower", "higher", "increasing", "decreasing", "within", "crosses"] = Field(
        description=(
            "lower, higher or crosses with compare; increasing, decreasing or within with rows"
        )
    )
    rows: tuple[str, ...] = Field(
        description="a list of two or more different rows, in the claimed order"
    )
    column: str = Field(description="a column's name, or all")
    id: str = Field(default="", description="a name of its own")
    paper_delta: Number | None = Field(
        default=None, description="a number in the column's unit, or null"
    )
    against: tuple[str, str, str] | None = Field(default=None, description="[row, row, column]")
    points: Number = Field(
        default=0.0, ge=0.0, description="a number above 0, in the column's unit"
    )
    measured_in: Literal["tokens", "flops", "seconds"] | None = Field(
        default=None,
        description="tokens, flops or seconds of pre-training, with direction: crosses",
    )
    primary: Annotated[bool, Strict()] = Field(
        default=False, description="true where it is tested before the others"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_compare(cls, entry: Any) -> Any:
        """`compare: [row, row, column]` and `compare: [row, [row, row], column]` are rows and a
        column, too.
        """
        said = entry.get("direction") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or "compare" not in entry:
            if said in ("lower", "higher", CROSSES):
                raise ValueError(
                    f"direction is {said!r}; with rows it is increasing, decreasing or within"
                )
            return entry
        if said in ("increasing", "decreasing", WITHIN):
            raise ValueError(f"direction is {said!r}; with compare it is lower, higher or crosses")
        value, rest = entry["compare"], {key: one for key, one in entry.items() if key != "compare"}
        if not isinstance(value, list) or len(value) != 3:
            raise ValueError(
                f"compare is [row, row, column] or [row, [row, row], column], not {value!r}"
            )
        others = value[1] if isinstance(value[1], list) else [value[1]]
        return rest | {"rows": [value[0], *others], "column": value[2]}

    @model_validator(mode="after")
    def _means_something(self) -> Self:
        if len(self.rows) < 2 or len(set(self.rows)) < len(self.rows):
            raise ValueError(
                f"a claim needs two or more different rows, not {', '.join(self.rows) or 'none'}"
            )
        if (self.kind == SPREAD) != (self.points > 0):
            raise ValueError(
                "points, a number above 0, belongs to direction: within and to no other"
            )
        is_plain = (
            len(self.rows) == 2
            and self.column != ALL_COLUMNS
            and not self.against
            and self.paper_delta is None
        )
        if self.direction == CROSSES and not is_plain:
            raise ValueError(
                "crosses takes a compare of two rows on one column, and neither against nor"
                " paper_delta"
            )
        if self.measured_in and self.direction != CROSSES:
            raise ValueError("measured_in belongs to direction: crosses and to no other")
        is_two = (
            len(self.rows) == 2
            and self.column != ALL_COLUMNS
            and self.direction in (FALLING[0], RISING[0])
        )
        if self.against and not is_two:
            raise ValueError("against takes a compare of two rows on one column, higher or lower")
        if self.against == (*self.rows, self.column):
            raise ValueError("against is the same difference as compare")
        delta = self.paper_delta
        if delta is not None and (len(self.rows) > 2 or self.column == ALL_COLUMNS):
            raise ValueError(f"paper_delta is {delta:g}; of several differences it is null")
        if delta and self.direction in (FALLING if delta > 0 else RISING):
            raise ValueError(
                f"paper_delta is {delta:g} and direction is {self.direction}: one of the two is"
                " wrong"
            )
        return self

    @property
    def kind(self) -> str:
        if self.direction == WITHIN:
            return SPREAD
        if self.direction == CROSSES:
            return CROSSES
        return (
            CONTRAST if self.against else MONOTONE if self.direction.endswith("creasing") else ORDER
        )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(row, row) of the differences that the claim is about, first - second."""
        if self.kind == MONOTONE:
            return [(later, earlier) for earlier, later in pairwise(self.rows)]
        first, *others = self.rows
        return (
            list(combinations(self.rows, 2))
            if self.kind == SPREAD
            else [(first, one) for one in others]
        )

    def differences(self, column: str) -> list[tuple[object, ...]]:
        """A key for each difference that it rests on there: two claims with one key test the same
        thing.
        """
        pairs = [
            *self.pairs,
            *([("at the first common point", *self.rows)] if self.kind == CROSSES else []),
        ]
        return [(frozenset(pair), column, self.points, self.against) for pair in pairs]

    @property
    def terms(self) -> list[tuple[float, str, str]]:
        """(factor, row, column) that the first difference is the sum of, less what it stands
        against.
        """
        first, second = self.pairs[0]
        terms = [(1.0, first, self.column), (-1.0, second, self.column)]
        if self.against:
            first, second, column = self.against
            terms += [(-1.0, first, column), (1.0, second, column)]
        return terms


class Sweeps(_Entry):
    """What the sweeps of an experiment without sweep_*.yaml run over: key -> its values, as in
    hydra.sweeper.params.
    """

    pretrain: dict[str, Any] = Field(default={}, description="a mapping such as {seed: '1,2,3'}")
    finetune: dict[str, Any] = Field(
        default={}, description="a mapping such as {task: 'mnli,qnli', seed: '1,2'}"
    )
    evaluate: dict[str, Any] = Field(
        default={}, description="a mapping such as {pretrain_seed: '1,2'}"
    )


class Stopping(_Entry):
    """When seeds are enough, fixed before the first look: a look after each of the seeds from first
    to most. Tests allow for all these looks: whoever stops at one of them has no more false
    verdicts."""

    first: Annotated[int, Strict()] = Field(
        ge=2, description="pre-training seeds of the first look, 2 or more"
    )
    most: Annotated[int, Strict()] = Field(le=50, description="seeds of the last look, at most 50")

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.most < self.first:
            raise ValueError(
                f"the last look is at {self.most} seeds, before the first one at {self.first}"
            )
        return self


class Experiment(_Entry):
    """paper.yaml as a whole. Without a key in the file: `folder`, and `name`, which is the
    folder's.
    """

    folder: Path
    name: str
    title: str = Field(default="", description="the table's heading; without it, the folder's name")
    source: str = Field(
        default="",
        description="where the paper's numbers are from; nothing where there is no paper",
    )
    split: Literal["dev", "test"] = Field(
        default=OUR_SPLIT, description="dev or test: of the paper's numbers"
    )
    columns: tuple[Column, ...] = Field(description="a list of columns")
    rows: tuple[Row, ...] = Field(
        default=(), description="a list of rows; without it, one for each arm and a floor"
    )
    claims: tuple[Claim, ...] = Field(default=(), description="a list of claims ([] for none)")
    arms: dict[str, dict[str, Any]] = Field(
        default={}, description="a mapping of arms, each a mapping of settings"
    )
    stopping: Stopping | None = Field(
        default=None, description="a mapping such as {first: 3, most: 8}"
    )
    sweeps: Sweeps = Field(default=Sweeps(), description="a mapping with pretrain and finetune")
    matched_by: Literal["steps", "tokens", "flops", "time", "none"] | None = Field(
        default=None,
        description="one of steps, tokens, flops, time, none; without it, steps and tokens",
    )
    matched_by_reason: str = Field(default="", description="why arms need not agree in anything")
    differ_in: tuple[str, ...] = Field(
        default=(), description="a list of settings such as [epochs]"
    )
    seeds: Annotated[int, Strict()] | None = Field(
        default=None, ge=1, description="the number of runs behind a cell"
    )
    averaging: Literal["mean", "median", "best", ""] = Field(
        default="", description="one of mean, median, best"
    )

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, said: dict[str, Any]) -> dict[str, Any]:
        """Rows for the arms where there are none; name, split and empty cells where an entry says
        nothing of them.
        """
        said = {"title": said.get("name", "")} | said
        columns, rows, arms = said.get("columns"), said.get("rows"), said.get("arms")
        if rows is None and isinstance(arms, dict) and arms:
            floor = {"row": "random", "label": "No pre-training", "arm": None}
            said["rows"] = rows = [
                *({"row": arm, "arm": arm, "floor": "random"} for arm in arms),
                floor,
            ]
        if isinstance(columns, list):
            split = {"split": said["split"]} if "split" in said else {}
            named = [{"name": one, "task": one} if isinstance(one, str) else one for one in columns]
            said["columns"] = [split | one if isinstance(one, dict) else one for one in named]
            if isinstance(rows, list):
                cells = [None] * len(columns)
                said["rows"] = [
                    (
                        {"cells": cells, "label": str(one.get("row"))} | one
                        if isinstance(one, dict)
                        else one
                    )
                    for one in rows
                ]
        return said

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        columns, rows = [one.name for one in self.columns], [row.name for row in self.rows]
        ids, texts = [one.id for one in self.claims if one.id], [one.text for one in self.claims]
        unique = {
            "columns: name": columns,
            "rows: row": rows,
            "claims: id": ids,
            "claims: text": texts,
        }
        for what, names in unique.items():
            if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
                raise ValueError(f"{what} {twice!r} is there twice; give each its own")
        tasks = [one.name for one in self.columns if one.task]
        for i, column in enumerate(self.columns):
            parts = [part for group in column.parts for part in group]
            if (
                len(
                    {
                        one.is_measured
                        for part in parts
                        for one in self.columns
                        if one.name == part.column
                    }
                )
                > 1
            ):
                raise ValueError(
                    f"columns.{i}: mean_of: tasks and measures have seeds of their own; take one"
                    " kind"
                )
            for part in parts:
                _known(part.column, tasks, f"columns.{i}: mean_of", "tasks' columns")
                own = next(one for one in self.columns if one.name == part.column)
                if own.model_copy(update={"metric": part.metric or own.metric}).falls:
                    raise ValueError(
                        f"columns.{i}: mean_of: {part.column} is not in percent, as a mean is"
                    )
        for i, row in enumerate(self.rows):
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"rows.{i}: {len(row.cells)} cells for {len(self.columns)} columns"
                )
            if row.floor is not None:
                _known(row.floor, rows, f"rows.{i}: floor", "rows")
        for i, claim in enumerate(self.claims):
            self._check_claim(claim, f"claims.{i}", rows)
        return self

    def _check_claim(self, claim: Claim, where: str, rows: list[str]) -> None:
        """Its rows and columns are the table's, its size is what the printed cells say."""
        units = {column.name: column.unit for column in self.columns}
        for name in (*claim.rows, *(claim.against[:2] if claim.against else ())):
            _known(name, rows, where, "rows")
        _known(claim.column, [*units, ALL_COLUMNS], where, "columns")
        if claim.kind == CROSSES and any(
            one.is_pretraining for one in self.columns if one.name == claim.column
        ):
            raise ValueError(
                f"{where}: crosses is about kept encoders; {claim.column!r} is a fact of whole runs"
            )
        if claim.against:
            first, second, column = claim.against
            _known(column, units, f"{where}: against", "columns")
            if first == second:
                raise ValueError(f"{where}: against compares {first!r} with itself")
            if (unit := units[claim.column]) != (other := units[column]):
                raise ValueError(
                    f"{where}: compare is in {unit} and against in {other}; they cannot be"
                    " subtracted"
                )
        if claim.paper_delta is None:
            return
        cells = [(factor, self.printed(row, column)) for factor, row, column in claim.terms]
        known = [factor * cell for factor, cell in cells if cell is not None]
        if len(known) == len(cells) and abs(sum(known) - claim.paper_delta) > ROUNDING:
            raise ValueError(
                f"{where}: paper_delta is {claim.paper_delta:g}, and its cells say {sum(known):.4g}"
            )

    def printed(self, row: str, column: str) -> float | None:
        cells = next(one.cells for one in self.rows if one.name == row)
        return dict(zip((one.name for one in self.columns), cells, strict=True))[column]

    @property
    def all_columns(self) -> list[Column]:
        """What a claim on all columns is about: the paper's tasks, whatever we have measured beside
        them.
        """
        return [column for column in self.columns if column.task and not column.is_measured]

    @property
    def has_numbers(self) -> bool:
        return any(cell is not None for row in self.rows for cell in row.cells)

    @property
    def has_paper(self) -> bool:
        return bool(self.source) or self.has_numbers

    @property
    def matched(self) -> tuple[str, ...]:
        return MATCHES.get(self.matched_by, (str(self.matched_by),))

    @property
    def statistic(self) -> str:
        """What the paper's cells are, in words; empty where it does not say."""
        if not self.seeds and not self.averaging:
            return ""
        of = f"{AVERAGES[self.averaging]} of " if self.averaging else "over "
        return f"{of}{self.seeds or 'several'} run{'' if self.seeds == 1 else 's'} a cell"

    @property
    def free_keys(self) -> frozenset[str]:
        """Settings in which any two rows or arms may differ, whatever their files say."""
        rates = RATE_KEYS if "learning_rate" in self.differ_in else ()
        steps = () if "steps" in self.matched else STEP_KEYS
        return frozenset((*self.differ_in, *rates, *steps))

    def label(self, row: str) -> str:
        return next((one.label for one in self.rows if one.name == row), row)


def _known(name: str, known: Iterable[str], where: str, what: str) -> None:
    names = list(known)
    if name not in names:
        raise ValueError(f"{where}: {name!r} is none of the {what}; {hint(name, names)}")


def find_experiment(name: str) -> Path:
    """The folder of an experiment, or its one file, from its name or path. ValueError: none such,
    or a slip in it.
    """
    for place in (Path(name), EXPERIMENTS_DIR / name):
        if (place.is_file() and place.suffix == ".yaml") or (place / "paper.yaml").is_file():
            return load_experiment(place.resolve()).folder
    raise ValueError(
        f"no experiment {name!r} (a folder with a paper.yaml); {hint(name, list_experiments())}"
    )


def list_experiments() -> list[str]:
    """Names of the experiments that come with the project."""
    return sorted(path.parent.name for path in EXPERIMENTS_DIR.glob("*/paper.yaml"))


def own_experiments() -> list[Path]:
    """What is one's own of what `find_experiment` takes, where one stands and in `experiments`
    there: folders with a paper.yaml, and files that have a table's columns."""
    patterns = "*.yaml", "*/paper.yaml", "experiments/*.yaml", "experiments/*/paper.yaml"
    paths = (path for pattern in patterns for path in Path().glob(pattern))
    files = {path for path in paths if path.is_file() and os.access(path, os.R_OK)}
    found = {path.parent for path in files if path.name == "paper.yaml"}
    found |= {
        path
        for path in files
        if path.name != "paper.yaml" and b"\ncolumns:" in b"\n" + path.read_bytes()
    }
    return sorted(path for path in found if path.resolve().parent != EXPERIMENTS_DIR.resolve())


def load_experiment(folder: Path) -> Experiment:
    """Read and check paper.yaml, or the one file, and those beside it. ValueError: the file, the
    key, what is wrong.
    """
    path = folder if folder.is_file() else folder / "paper.yaml"
    said = read_yaml(path)
    for key in said.keys() & {"folder", "name"}:
        raise ValueError(f"{path}: has no key {key!r}; an experiment is called as its folder")
    name = folder.stem if folder.is_file() else folder.name
    try:
        found = Experiment.model_validate(said | {"folder": folder, "name": name})
    except ValidationError as error:
        raise ValueError(f"{path}: {_in_words(error)}") from None
    _check_files(found, path)
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file as it is written. ValueError where it is no YAML or no mapping."""
    try:
        plain = yaml.load(own_text(path, path.parent), UniqueKeys) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{path}: not a mapping of keys and values")
    return {str(key): value for key, value in plain.items()}


def _in_words(error: ValidationError) -> str:
    """The first refusal in one sentence: the place in the file, what is wrong, what to write."""
    # a slip also leaves its key out
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    place = [str(one) for one in first["loc"] if one != ""]
    if first["type"] == "value_error":
        return ": ".join(filter(None, (".".join(place), str(first["ctx"]["error"]))))
    # The model whose key is named, and how many parts of the place come before that key.
    models: dict[str, type[BaseModel]] = {"columns": Column, "rows": Row, "claims": Claim}
    models |= {"sweeps": Sweeps, "stopping": Stopping}
    depth = 1 if place[0] in ("sweeps", "stopping") else 2
    model = models.get(place[0], Experiment) if len(place) > depth else Experiment
    depth = 0 if model is Experiment else depth
    key, where = place[depth], f"{'.'.join(place[:depth])}: " if depth else ""
    meanings = {
        one.alias or name: one.description
        for name, one in model.model_fields.items()
        if one.description
    }
    if first["type"] == "extra_forbidden":
        return (
            f"{where}has no key {key!r};"
            f" {hint(key, [*meanings, *(['compare'] if model is Claim else [])])}"
        )
    if first["type"] == "missing" and len(place) == depth + 1:
        return f"{where}lacks {key}, {meanings[key]}"
    return (
        f"{'.'.join(place)} is {first['input']!r}; it is"
        f" {meanings.get(key, 'a mapping of keys and values')}"
    )


def _check_files(experiment: Experiment, path: Path) -> None:
    """Files of arms and rows are called as they say, and a row takes its arm: a slip would show
    after the last run.
    """
    rows, arms = {row.name: row.arm for row in experiment.rows}, {*experiment.arms}
    for file in sorted(
        [*experiment.folder.glob("arm/*.yaml"), *experiment.folder.glob("row/*.yaml")]
    ):
        said, kind, name = read_yaml(file), file.parent.name, file.stem
        arms |= {name} if kind == "arm" else set()
        if "@package _global_" not in file.read_text(encoding="utf-8"):
            continue
        own = str(said.get(kind, name))
        if "${" not in own and own != name:
            raise ValueError(
                f"{file}: it says {kind}: {own!r}; {kind}s are called as their files, so {name!r}"
            )
        # The report gives a row its arm's cost; a floor takes only the arm's shape.
        taken, arm = said.get("encoder_arm", "${"), rows.get(name)
        has_weights = arm is not None or said.get("initialisation") == "pretrained"
        if (
            kind == "row"
            and name in rows
            and has_weights
            and "${" not in str(taken)
            and taken != arm
        ):
            here, there = ("null" if one is None else repr(one) for one in (taken, arm))
            raise ValueError(
                f"{file}: encoder_arm is {here}, and paper.yaml says arm: {there} of this row"
            )
    for i, row in enumerate(experiment.rows):
        for name in filter(None, (row.arm, row.delta.get("encoder_arm"))):
            if arms and "${" not in str(name):
                _known(name, arms, f"{path}: rows.{i}: encoder_arm", "arms")
