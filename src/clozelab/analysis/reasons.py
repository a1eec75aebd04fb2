"""Why scores may not be compared, and what a reader must know beside a verdict.

These are types with numbers and names, and no sentences: report/wording.py has the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

# -- what a cell's scores lack -------------------------------------------------------------------


@dataclass(frozen=True)
class RunsLackMetric:
    count: int
    metric: str
    # a metric of nearly that name which the runs have
    suggestion: str | None = None


@dataclass(frozen=True)
class LearningRateChosen:
    """The row stands at the best of several learning rates."""

    learning_rate: float | None
    num_rates: int
    # seeds that all of these rates have, and seeds of each
    num_common: int
    num_seeds: int
    # rates with fewer seeds, which were not looked at
    num_left_out: int


@dataclass(frozen=True)
class LearningRateWithoutChoice:
    """Its learning rates have no seed in common: the first one stands."""

    learning_rate: float | None
    num_rates: int


@dataclass(frozen=True)
class OlderRunsLeftOut:
    count: int


CellNote = RunsLackMetric | LearningRateChosen | LearningRateWithoutChoice | OlderRunsLeftOut


@dataclass(frozen=True)
class BelowFloor:
    """A row with pre-training scores less than one without."""

    row: str
    mean: float
    dataset: str
    floor: float
    # the floor is the same head on random weights, else one fixed answer
    is_random_weights: bool


@dataclass(frozen=True)
class CellCaution:
    """A cell of a contrast that lacks runs, or has collapsed ones."""

    row: str
    num_missing: int
    num_collapsed: int
    every_run_collapsed: bool


# -- why cells may not be compared ---------------------------------------------------------------


class Stage(Enum):
    """How the runs came about in which two rows differ."""

    PRETRAINED = auto()
    FINETUNED = auto()


@dataclass(frozen=True)
class SettingDifference:
    """A key, and what each side has of it over the seeds that differ."""

    key: str
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True)
class DifferentSplits:
    splits: tuple[str, ...]


@dataclass(frozen=True)
class DifferentMetric:
    metric: str
    claimed: str


@dataclass(frozen=True)
class DifferentTargets:
    """Their objectives predict other tokens, so their losses do not compare."""


@dataclass(frozen=True)
class DifferentContext:
    """One is asked from the left alone, the other one from both sides."""


class Age(Enum):
    """Why a run of an older results version stands in no cell."""

    OLDER_VERSION = auto()
    OLDER_ENCODER = auto()


@dataclass(frozen=True)
class Outdated:
    """A run that no comparison mixes with newer ones."""

    age: Age
    version: int | None = None
    newest: int | None = None


@dataclass(frozen=True)
class OutdatedRuns:
    """All runs of an arm or a row in a column are of an older results version."""

    name: str
    count: int
    # the reasons of its runs
    outdated: tuple[Outdated, ...]


@dataclass(frozen=True)
class NoPretraining:
    arms: tuple[str, ...]


@dataclass(frozen=True)
class UnknownAmount:
    amount: str
    arms: tuple[str, ...]


@dataclass(frozen=True)
class UnmatchedAmount:
    amount: str
    first: float
    second: float


@dataclass(frozen=True)
class SeveralVersions:
    """Runs of one arm or row were made from several versions of its own lines."""

    is_arm: bool
    name: str
    count: int


@dataclass(frozen=True)
class DifferentProtocol:
    stage: Stage
    differences: tuple[SettingDifference, ...]


@dataclass(frozen=True)
class DifferentCode:
    stage: Stage
    modules: tuple[str, ...]


@dataclass(frozen=True)
class WrongEncoder:
    """Runs of a row began from the encoder of another arm than paper.yaml says."""

    row: str
    arm: str
    count: int
    num_runs: int
    actual_arm: str
    example: str


@dataclass(frozen=True)
class SharedEncoder:
    """Two rows of two arms began from one encoder, or two of one arm from different ones."""

    should_share: bool
    pretrain_seed: int


Incomparability = (
    DifferentSplits
    | DifferentMetric
    | DifferentTargets
    | DifferentContext
    | OutdatedRuns
    | NoPretraining
    | UnknownAmount
    | UnmatchedAmount
    | SeveralVersions
    | DifferentProtocol
    | DifferentCode
    | WrongEncoder
    | SharedEncoder
)


@dataclass(frozen=True)
class ProvenanceDifference:
    """What two rows' runs were made with unequally, where that bars nothing."""

    stage: Stage
    differences: tuple[SettingDifference, ...]


@dataclass(frozen=True)
class DuplicateSeeds:
    """Pre-training seeds of one row that are one and the same encoder."""

    row: str
    seeds: tuple[int, ...]


# -- what is missing -----------------------------------------------------------------------------


@dataclass(frozen=True)
class NoScoresOfMetric:
    count: int
    metric: str
    # the row that lacks them; None where no row has any
    row: str | None = None


@dataclass(frozen=True)
class NoCompleteRun:
    rows: tuple[str, ...]


@dataclass(frozen=True)
class NoCommonSeed:
    pass


@dataclass(frozen=True)
class NoRunInColumn:
    column: str


@dataclass(frozen=True)
class NoCounterpart:
    """A data set of one column that the other column has nothing for."""

    dataset: str
    column: str
    # the task that stands at its place in the other column's list, if there is one
    task: str | None


@dataclass(frozen=True)
class NoCheckpoints:
    """No runs at two or more fractions of both arms' steps."""


@dataclass(frozen=True)
class TooFewPoints:
    first: str
    second: str


@dataclass(frozen=True)
class NoCommonStretch:
    # "tokens", "flops", "seconds"; empty for shares of the steps
    unit: str


Missing = (
    NoScoresOfMetric
    | NoCompleteRun
    | NoCommonSeed
    | NoRunInColumn
    | NoCounterpart
    | NoCheckpoints
    | TooFewPoints
    | NoCommonStretch
)
