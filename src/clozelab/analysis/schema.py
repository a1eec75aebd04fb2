"""What a table is about: its columns, its rows and its sequential design, as paper.yaml has them.

Each is a model that refuses what it cannot mean. docs/claims.md shows every key.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from clozelab.analysis.claims import Claim

OUR_SPLIT: Literal["dev"] = "dev"
PERCENT = "percent"
# the learning rate of a fine-tuning, and the optimizer's, which repeats it
RATE_KEYS = ("learning_rate", "optimizer.learning_rate")

Number = Annotated[float, Strict()]


class Part(NamedTuple):
    """A column that goes into a mean, by its own metric or by another score of the same runs."""

    column: str
    metric: str = ""


def _read_part(entry: Any) -> Part:
    """`A` is column A; `{A: validation/accuracy}` is another score of it."""
    if isinstance(entry, dict) and entry:
        column, metric = next(iter(entry.items()))
        return Part(str(column), str(metric))
    return Part(str(entry))


def _read_parts(entries: Any) -> tuple[tuple[Part, ...], ...]:
    """[A, [B, {B: validation/accuracy}]]: the mean of A and of the mean of two scores of B."""
    groups: list[tuple[Part, ...]] = []
    for entry in entries if isinstance(entries, list) else []:
        group = entry if isinstance(entry, list) else [entry]
        groups.append(tuple(_read_part(part) for part in group))

    parts = list(chain.from_iterable(groups))
    is_repeated = len(set(parts)) < len(parts)
    if len(groups) < 2 or not all(groups) or is_repeated:
        raise ValueError(f"it is a list of two or more different columns, not {entries!r}")
    return tuple(groups)


Parts = Annotated[tuple[tuple[Part, ...], ...], BeforeValidator(_read_parts)]


class Entry(BaseModel):
    """A mapping of paper.yaml: it has the keys of its model and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Column(Entry):
    """A column of the table.

    It holds a task's score, a fact of the pre-training (`from: pretrain`) or a mean of columns.
    With `from: evaluate`, `task` is a measure (a choice of conf/measure), which no paper has a
    number of.
    """

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
        sources = [bool(self.task), self.is_pretraining, bool(self.parts)]
        if sources.count(True) != 1 or (self.source and self.parts):
            raise ValueError(
                "a column has one of task, from: pretrain and mean_of; with from: evaluate, task is"
                " a measure"
            )
        belongs_to_task = self.stand_ins or self.benchmarks or (self.parts and self.metric)
        if not self.task and belongs_to_task:
            raise ValueError(
                "stand_ins, benchmarks and a metric belong to a task's column, not to a mean"
            )
        if self.source and not self.metric:
            raise ValueError(f"a column from {self.source} has a metric, such as validation/loss")
        return self

    @property
    def is_pretraining(self) -> bool:
        """Whether its cells are facts of the pre-training runs, one a pre-training seed."""
        return self.source == "pretrain"

    @property
    def is_measured(self) -> bool:
        """Whether its cells are scores of evaluations: ours alone, no paper has such a column."""
        return self.source == "evaluate"

    @property
    def unit(self) -> str:
        """PERCENT, or the metric's own unit: "loss", "perplexity", "tokens"."""
        is_figure = self.metric.startswith("validation/") or not self.is_pretraining
        is_percent = not self.source or (is_figure and not self.falls)
        if is_percent:
            return PERCENT
        return self.metric.rpartition("/")[2].replace("_", " ")

    @property
    def falls(self) -> bool:
        """Whether a smaller score is the better one, in a unit of its own: nats, bits."""
        name = self.metric.removeprefix("validation/").partition("/")[0]
        return name.endswith(("loss", "perplexity")) or name.startswith("bits_")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that paper.yaml lists: the paper's own, then its stand-ins in their order."""
        return (self.task, *self.stand_ins)

    def accepts(self, task: str, stand_in_for: str | None) -> bool:
        """Whether a run of this task belongs to this column, itself or as a stand-in."""
        if not self.task:
            return False
        return task in self.tasks or stand_in_for in (self.name, self.task, *self.benchmarks)


class Row(Entry):
    """A row: the paper's cells, the arm whose encoder it takes, what else sets its runs apart."""

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


class SequentialDesign(Entry):
    """When seeds are enough, fixed before the first analysis (`stopping:` in paper.yaml).

    There is an interim analysis after each of the seeds from `first` to `most`. Tests allow for
    all of them: whoever stops at one has no more false verdicts.
    """

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


class TableSpec(Entry):
    """Columns, rows and claims of a table: what a judgement needs to know of an experiment."""

    split: Literal["dev", "test"] = Field(
        default=OUR_SPLIT, description="dev or test: of the paper's numbers"
    )
    columns: tuple[Column, ...] = Field(description="a list of columns")
    rows: tuple[Row, ...] = Field(
        default=(), description="a list of rows; without it, one for each arm and a floor"
    )
    claims: tuple[Claim, ...] = Field(default=(), description="a list of claims ([] for none)")
    source: str = Field(
        default="",
        description="where the paper's numbers are from; nothing where there is no paper",
    )
    stopping: SequentialDesign | None = Field(
        default=None, description="a mapping such as {first: 3, most: 8}"
    )
    averaging: Literal["mean", "median", "best", ""] = Field(
        default="", description="one of mean, median, best"
    )

    @property
    def all_columns(self) -> list[Column]:
        """What a claim on all columns is about: the paper's tasks, without our own measures."""
        return [column for column in self.columns if column.task and not column.is_measured]

    @property
    def has_numbers(self) -> bool:
        cells = chain.from_iterable(row.cells for row in self.rows)
        return any(cell is not None for cell in cells)

    @property
    def has_paper(self) -> bool:
        return bool(self.source) or self.has_numbers

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def label(self, name: str) -> str:
        """What stands before a row; its name where it is none of the rows."""
        return next((row.label for row in self.rows if row.name == name), name)

    def printed(self, row: str, column: str) -> float | None:
        """The paper's number of a cell; None where it has none."""
        names = [known.name for known in self.columns]
        return self.row(row).cells[names.index(column)]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def floors(self) -> Mapping[str, str | None]:
        """Row -> the row of the same head without pre-training."""
        return {row.name: row.floor for row in self.rows}
