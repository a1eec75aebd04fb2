"""A table of scores: data sets as columns, rows of the experiment, one cell of scores for each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from claims.analysis.comparability import Pair
from claims.analysis.schema import OUR_SPLIT, PERCENT, Column, Row, Scale, TableSpec
from claims.analysis.statistics import (
    FINETUNING_SEEDS,
    ONE_RUN,
    PRETRAINING_SEEDS,
    ROUNDING,
    Estimate,
    Scores,
    Seeds,
    estimate,
)


class Origin(Enum):
    """What a data set is to the paper's column."""

    PAPER = auto()  # the paper's own data set, on the paper's split
    OTHER_SPLIT = auto()  # the paper's data set, on another split than its numbers
    STAND_IN = auto()
    SYNTHETIC = auto()
    HELD_OUT_TEXT = auto()  # of our own corpus: a fact of pre-training
    OWN_MEASURE = auto()  # an evaluation of ours, which the paper does not have
    OTHER = auto()  # in no column of the paper


ROLES = {
    Origin.HELD_OUT_TEXT: "our held-out text",
    Origin.OWN_MEASURE: "ours, not in the paper",
}


@dataclass(frozen=True)
class DataColumn:
    """A data set in the table, with the unit and the direction of its scores."""

    heading: str
    # what its cells are filed under
    key: str
    # a key of scores.json, or of a pre-training run's facts
    metric: str
    # the paper's column that it is, or stands in for
    column: Column | None
    origin: Origin
    # of its scores as they are shown; a number without a unit has its own name, "perplexity"
    scale: Scale = field(kw_only=True)
    # of a mean: the headings of those of its parts that stand in for others
    stand_in_parts: tuple[str, ...] = ()
    # of a mean: whether it is one of measures
    averages_measures: bool = False
    # whose runs it holds; several columns may show different scores of one task
    task: str = ""
    # of all its runs: one, several for a mean, none for a fact of pre-training
    tasks: tuple[str, ...] = ()
    # the score of always answering the most frequent label
    majority: float | None = None
    # the best simple method on these examples, and its score
    baseline: tuple[str, float] | None = None
    # the class that an F1 of one class is of
    positive_label: str | None = None
    # the share of the training file that was held out to be scored on; None: another file
    held_out: float | None = None
    # the parts of the training file of which each run is scored on another one
    folds: int | None = None
    # the column of the file whose equal values are in one part of it
    group_column: str | None = None
    # that a score is over, where known
    num_examples: int | None = None
    # that an F1 of entities is over; None for other scores
    num_entities: int | None = None
    # (used, available) where runs saw only a part of the training examples
    trained_on: tuple[int, int] | None = None

    @property
    def is_paper(self) -> bool:
        return self.origin is Origin.PAPER

    @property
    def is_other_split(self) -> bool:
        return self.origin is Origin.OTHER_SPLIT

    @property
    def is_synthetic(self) -> bool:
        return self.origin is Origin.SYNTHETIC

    @property
    def role(self) -> str:
        """What a data set is to the paper's column, in words; empty for the paper's own."""
        name = self.column.name if self.column else ""
        if self.is_synthetic:
            return f"synthetic, for {name}" if name else "synthetic"
        if self.origin is Origin.STAND_IN:
            stand_ins = f": {', '.join(self.stand_in_parts)}" if self.stand_in_parts else ""
            return f"substitute for {name}{stand_ins}"
        if self.is_other_split and self.column:
            return f"{OUR_SPLIT}; the paper's numbers are on {self.column.split}"
        return ROLES.get(self.origin, "")

    @property
    def unit(self) -> str:
        return self.scale.unit

    @property
    def unit_of_difference(self) -> str:
        """Points of percent, or the column's own unit."""
        return "points" if self.unit == PERCENT else self.unit

    @property
    def falls(self) -> bool:
        """Whether a smaller score is the better one."""
        return self.scale.higher_is_better is False

    @property
    def sign(self) -> float:
        """What turns a score into one of which the larger is better."""
        return -1.0 if self.falls else 1.0

    @property
    def trivial(self) -> float | None:
        """The best score without any model: of the most frequent label or of a simple method."""
        scores = [self.majority]
        if self.baseline:
            scores.append(self.baseline[1])
        known = [score for score in scores if score is not None]
        return max(known, key=lambda score: self.sign * score, default=None)

    @property
    def is_pretraining(self) -> bool:
        """Whether its cells are facts of the rows' pre-training."""
        return self.column is not None and self.column.is_pretraining

    @property
    def is_measured(self) -> bool:
        """Whether its cells are scores of evaluations."""
        if self.averages_measures:
            return True
        return self.column is not None and self.column.is_measured

    @property
    def decimals(self) -> int:
        """How many are shown: papers argue with a perplexity of 3.99 against 3.54."""
        if self.unit == PERCENT:
            return 1
        return 3 if self.unit.startswith("bits") else 2


@dataclass(frozen=True)
class ScoredRun:
    """What a comparison asks of the run behind a score."""

    folder: Path
    seeds: Seeds
    # checksum of the weights that it began with; None where they were fresh, or of a pre-training
    encoder: str | None
    # it gives one answer to (nearly) every example
    is_collapsed: bool
    # tokens that its texts were cut to; None where it does not say
    max_seq_length: int | None
    # whether held-out text was read from the left alone; None where it does not say
    is_causal: bool | None
    # the class that the score is of; None where it is of all of them
    positive_label: str | None
    # the tokenizer whose tokens are predicted, by its fingerprint; None where it does not say
    tokenizer: str | None
    # of a pre-training: fingerprint of its prepared text, and digest of that text whatever cuts it
    # into tokens; None where it does not say
    corpus: str | None
    text: str | None


@dataclass(frozen=True)
class Cell:
    """The scores of one row on one data set, by seeds."""

    scores: Scores = field(default_factory=dict)
    # without those of collapsed runs
    healthy: Scores = field(default_factory=dict)
    # that other cells have and this one has not
    missing: tuple[Seeds, ...] = ()
    # what sets it apart from other cells, in words
    notes: tuple[str, ...] = ()
    # of single examples, where known: the same examples in the same order for all of a column
    examples: Mapping[Seeds, NDArray[np.float64]] = field(default_factory=dict)
    # behind the scores; empty for a mean of columns
    runs: Mapping[Seeds, ScoredRun] = field(default_factory=dict)
    # a mean's parts, averaged first within a group
    groups: tuple[tuple[tuple[DataColumn, Cell], ...], ...] = ()
    # complete runs that have no such score
    num_unscored: int = 0
    # all its runs fine-tune one given encoder, whatever their pre-training seeds are called
    is_of_one_encoder: bool = False

    @cached_property
    def estimate(self) -> Estimate | None:
        if not self.scores:
            return None
        return estimate(self.scores, of_one_encoder=self.is_of_one_encoder)

    def example_scores(self, seeds: Seeds) -> NDArray[np.float64]:
        """[examples] of a run; its one score where single examples are not known."""
        return self.examples.get(seeds, np.array([self.scores[seeds]]))

    @property
    def pretraining_seeds(self) -> set[int]:
        return {seed for seed, _ in self.scores}

    @property
    def num_collapsed(self) -> int:
        return len(self.scores) - len(self.healthy)

    @property
    def without_collapsed(self) -> Estimate | None:
        """Only where some runs, and not all, have collapsed."""
        if self.num_collapsed and self.healthy:
            return estimate(self.healthy, of_one_encoder=self.is_of_one_encoder)
        return None

    @property
    def parts(self) -> list[Cell]:
        """The cells that a mean is of; of any other the cell itself."""
        if not self.groups:
            return [self]
        return [cell for _, cell in chain.from_iterable(self.groups)]

    @property
    def classes(self) -> frozenset[str]:
        """Of which classes its runs' scores are; "" is a score of all, or of one without a name."""
        return frozenset(run.positive_label or "" for run in self.runs.values())

    @property
    def is_collapsed(self) -> bool:
        """Whether no run of it read its input.

        A mean over tasks never is: only some of its parts may be.
        """
        return bool(self.runs) and self.num_collapsed == len(self.scores)


@dataclass(frozen=True)
class CheckpointSeries:
    """The rows along one arm's pre-training."""

    name: str
    arm: str
    # fraction of the steps -> row, in the order of the steps; two or more
    rows: Mapping[float, str]
    # unit -> fraction -> what the arm had seen there, a mean over seeds; unknown fractions lack
    amounts: Mapping[str, Mapping[float, float]]
    # the row without pre-training that all of them name, where the line begins
    floor: str | None

    def reached(self, fractions: Collection[float], unit: str = "tokens") -> dict[float, float]:
        """Tokens, FLOPs or seconds at each fraction; empty unless all of them are known."""
        known = self.amounts.get(unit, {})
        reached = {fraction: known[fraction] for fraction in fractions if fraction in known}
        return reached if len(reached) == len(set(fractions)) else {}


@dataclass(frozen=True)
class ScoreTable:
    """Every cell of a table: (row, key of a data set) -> cell.

    A table of run folders knows more than scores (results/table.py); one that is read from a CSV
    has no evidence on how its runs were made.
    """

    has_evidence: ClassVar[bool] = False
    """whether anything is known of how its runs were made"""

    spec: TableSpec
    columns: tuple[DataColumn, ...]
    cells: Mapping[tuple[str, str], Cell]

    @cached_property
    def rows(self) -> list[str]:
        return [row.name for row in self.spec.rows]

    @cached_property
    def _row_by_name(self) -> dict[str, Row]:
        return {row.name: row for row in self.spec.rows}

    def row(self, name: str) -> Row:
        return self._row_by_name[name]

    def label(self, name: str) -> str:
        """What stands before a row; its name where it is none of the rows."""
        return self.row(name).label if name in self._row_by_name else name

    @cached_property
    def has_paper(self) -> bool:
        return self.spec.has_paper

    @cached_property
    def with_results(self) -> list[DataColumn]:
        return [column for column in self.columns if self.has_results(column)]

    def has_results(self, column: DataColumn) -> bool:
        return any(self.cells[row, column.key].scores for row in self.rows)

    @cached_property
    def most_common_basis(self) -> str:
        """What most intervals can be over; cells of another basis say so themselves."""
        bases = set()
        for cell in self.cells.values():
            if cell.estimate:
                bases.add(cell.estimate.basis)
        return next(
            (basis for basis in (PRETRAINING_SEEDS, FINETUNING_SEEDS) if basis in bases), ONE_RUN
        )

    def evidence(
        self,
        first: str,  # noqa: ARG002
        second: str,  # noqa: ARG002
        tasks: Sequence[str],  # noqa: ARG002
    ) -> Pair | None:
        """How two rows' runs were made; None where nothing is known of that."""
        return None

    def prediction_targets(self, row: str) -> set[str]:  # noqa: ARG002
        """What the objectives of a row's pre-training predict; empty where nothing is known."""
        return set()

    @property
    def generator(self) -> str | None:
        """The generated world that the data are of; None for real text, or where it is unknown."""
        return None

    @property
    def is_finetuned(self) -> bool:
        """Whether scores are of fine-tunings, with a seed of their own."""
        for cell in self.cells.values():
            if any(finetune_seed for _, finetune_seed in cell.scores):
                return True
        return False

    @property
    def has_plain_seeds(self) -> bool:
        """Whether nobody knows what its seeds decide: they are called seeds, and no more."""
        return not self.has_evidence and not self.is_finetuned

    def retained(self, row: str, column: DataColumn) -> str:  # noqa: ARG002
        """What a row keeps of another one's score, in words; empty where nobody asks."""
        return ""

    @property
    def checkpoint_series(self) -> Sequence[CheckpointSeries]:
        return ()

    def seconds_a_seed(
        self,
        rows: Iterable[str],  # noqa: ARG002
        tasks: Iterable[str],  # noqa: ARG002
    ) -> float | None:
        """What one more pre-training seed of some rows takes; None where nothing is known."""
        return None

    def below_baseline(self, row: str, column: DataColumn) -> str:
        """That a row with pre-training lies below its floor on a data set; empty where not.

        It is the row of the same head on random weights; where that has no score, always the most
        frequent label.
        """
        about = self.row(row)
        cell = self.cells[row, column.key]
        estimate = cell.estimate
        if not about.has_encoder or estimate is None or not column.tasks:
            return ""
        if column.scale.higher_is_better is None:
            return ""
        least = column.majority
        name = "one fixed answer"
        floor = self.cells[about.floor, column.key] if about.floor else None
        if floor and floor.estimate and floor.classes == cell.classes:
            least = floor.estimate.mean
            name = "the same head on random weights"
        if least is None or column.sign * (estimate.mean - least) >= -ROUNDING:
            return ""
        return (
            f"{about.label} has {estimate.mean:.{column.decimals}f} on {column.heading},"
            f" where {name} has {least:.{column.decimals}f}"
        )

    def paper_value(self, row: str, column: DataColumn) -> float | None:
        """The paper's number; None where it has none, and for any data set but its own."""
        if not column.is_paper or column.column is None:
            return None
        return self.spec.printed(row, column.column.name)


def datasets_for_column(name: str, columns: Iterable[DataColumn]) -> list[DataColumn]:
    """Those that speak for a column of the paper.

    Its own data set comes first, its other split next, stand-ins last.
    """
    own = [column for column in columns if column.column and column.column.name == name]
    return sorted(own, key=lambda column: (not column.is_paper, not column.is_other_split))
