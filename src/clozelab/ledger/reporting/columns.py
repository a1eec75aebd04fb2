"""What a table is made of: a data set as a column, one row on it as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clozelab.ledger.collect import FinetuneRun, PretrainRun
from clozelab.ledger.reporting.experiment import PERCENT, Column
from clozelab.metrics.statistics import Estimate

Seeds = tuple[int, int]
"""(pre-training seed, fine-tuning seed)."""


@dataclass(frozen=True)
class DataColumn:
    """A data set in the table.

    Attributes:
        heading: what stands over it.
        key: what its cells are filed under: the task's name, or another for a data set of the paper without runs.
        metric: key of scores.json.
        column: the paper's column it is, or stands in for; None for neither.
        is_paper: it is the paper's own data set.
        majority: score of always answering the most frequent label, percent, where known.
        num_examples: examples that a score is over, where known.
    """

    heading: str
    key: str
    metric: str
    column: Column | None
    is_paper: bool
    majority: float | None = None
    num_examples: int | None = None
    role: str = ""
    """What it is where it is not the paper's data set: "stand-in for ...", "synthetic, for ..."."""
    task: str = ""
    """Name of the task whose runs it holds; several columns may show different scores of one task."""
    baseline: tuple[str, float] | None = None
    """The best of the simple methods that are known for these examples: its name and score, percent."""
    is_other_split: bool = False
    """The paper's data set, but not the split that the paper's numbers are on."""
    trained_on: str = ""
    """Where runs saw only a part of the training examples: "10,000 of 67,349"."""
    tasks: tuple[str, ...] = ()
    """Tasks whose runs its cells are made of: one, several for a mean, none for a fact of pre-training."""

    @property
    def unit(self) -> str:
        return self.column.unit if self.column else PERCENT

    @property
    def is_pretraining(self) -> bool:
        """Whether its cells are facts of the rows' pre-training."""
        return self.column is not None and self.column.is_pretraining

    @property
    def decimals(self) -> int:
        """How many are shown: a perplexity of 3.99 against 3.54 is what the paper argues with."""
        return 1 if self.unit == PERCENT else 2


@dataclass(frozen=True)
class Cell:
    """One row on one data set."""

    scores: Mapping[Seeds, float]
    estimate: Estimate | None
    without_collapsed: Estimate | None
    """Only where some runs, and not all, have collapsed."""
    num_collapsed: int
    missing: tuple[Seeds, ...]
    note: str = ""
    healthy: Mapping[Seeds, float] = field(default_factory=dict)
    """The scores without those of collapsed runs."""
    runs: Mapping[Seeds, FinetuneRun] = field(default_factory=dict)
    """The run behind each score; empty for a fact of pre-training and for a mean of columns."""
    num_unscored: int = 0
    """Complete runs that have no such score."""
    encoders: Mapping[Seeds, PretrainRun] = field(default_factory=dict)
    """The run behind each fact of pre-training."""
    groups: tuple[tuple[tuple[DataColumn, Cell], ...], ...] = ()
    """Of a mean of columns: its parts, those that are averaged first together."""

    @property
    def parts(self) -> list[Cell]:
        """The cells that a mean is of; of any other the cell itself."""
        return [part for group in self.groups for _, part in group] or [self]

    @property
    def is_collapsed(self) -> bool:
        """Whether no run of it read its input. A mean over tasks is not: only some of its parts may be."""
        return bool(self.runs) and self.num_collapsed == len(self.scores)


EMPTY = Cell({}, None, None, 0, ())


def distance_from_paper(column: DataColumn) -> tuple[bool, bool]:
    """The paper's own data set first, its other split next, a stand-in last."""
    return not column.is_paper, not column.is_other_split
