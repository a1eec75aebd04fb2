"""What a table is made of: a data set as a column, one row on it as a cell.

Columns without fine-tuning runs of their own: facts of the pre-training (a perplexity), means of other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from clozelab.metrics.statistics import Estimate, estimate
from clozelab.runs.find import Collected, FinetuneRun, PretrainRun
from clozelab.verdicts.experiment import OUR_SPLIT, PERCENT, Column, Experiment, Part

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


def pretraining_columns(
    experiment: Experiment, collected: Collected, cells: dict[tuple[str, str], Cell]
) -> list[DataColumn]:
    """Facts of the rows' pre-training, beside the paper's column; puts their cells into `cells`.

    Held-out text is ours and never the paper's, so the paper's number does not stand beside ours.
    """
    made = []
    for column in experiment.columns:
        if not column.is_pretraining:
            continue
        key, world = f"pretrain:{column.name}", collected.synthetic
        heading = f"{world} {column.name}" if world else column.name
        role = f"synthetic, for {column.name}" if world else "our held-out text"
        ours = DataColumn(heading, key, column.metric, column, is_paper=False, role=role)
        for row in experiment.rows:
            runs = [run for run in collected.pretrain if row.arm is not None and run.arm == row.arm]
            cells[row.name, key] = _pretraining_cell(runs, column.metric)
            cells.setdefault((row.name, f"paper:{column.name}"), EMPTY)
        paper = DataColumn(column.name, f"paper:{column.name}", column.metric, column, is_paper=True)
        made += [paper, ours] if any(cells[row.name, key].scores for row in experiment.rows) else [paper]
    return made


def _pretraining_cell(runs: list[PretrainRun], metric: str) -> Cell:
    complete = [run for run in runs if run.is_complete]
    encoders = {(run.seed, 0): run for run in complete if metric in run.facts}
    scores = {seeds: float(run.facts[metric]) for seeds, run in encoders.items()}
    missing = tuple((run.seed, 0) for run in runs if (run.seed, 0) not in scores)
    found = estimate(scores) if scores else None
    num_unscored = len(complete) - len(scores)
    note = f"{num_unscored} run(s) lack {metric}" if num_unscored else ""
    return Cell(scores, found, None, 0, missing, note, scores, num_unscored=num_unscored, encoders=encoders)


def mean_columns(
    experiment: Experiment,
    columns: Iterable[DataColumn],
    cells: dict[tuple[str, str], Cell],
    cell_of: Callable[[str, DataColumn], Cell],
) -> list[DataColumn]:
    """Means of columns, only where all parts are there; puts their cells into `cells`."""
    made = []
    filled = [one for one in columns if any(cells[row.name, one.key].scores for row in experiment.rows)]
    for column in experiment.columns:
        if not column.parts:
            continue
        found = [[_part_column(part, filled) for part in group] for group in column.parts]
        groups = [[one for one in group if one is not None] for group in found]
        ours = _mean_column(column, [one for group in groups for one in group]) if groups == found else None
        for row in experiment.rows:
            cells.setdefault((row.name, f"paper:{column.name}"), EMPTY)
            if ours is not None:
                parts = tuple(tuple((part, cell_of(row.name, part)) for part in group) for group in groups)
                whole = _mean_cell([_mean_cell([cell for _, cell in group]) for group in parts])
                cells[row.name, ours.key] = replace(whole, groups=parts)
        if ours is None or not ours.is_paper:
            made.append(DataColumn(column.name, f"paper:{column.name}", "", column, is_paper=True))
        made += [ours] if ours is not None else []
    return made


def _part_column(part: Part, filled: Iterable[DataColumn]) -> DataColumn | None:
    """The data set that speaks for a part of a mean."""
    mine = (one for one in filled if one.column and one.column.name == part.column)
    best = min(mine, key=distance_from_paper, default=None)
    return replace(best, metric=part.metric) if best and part.metric else best


def _mean_column(column: Column, parts: list[DataColumn]) -> DataColumn:
    synthetic = any(part.role.startswith("synthetic") for part in parts)
    others = [part.heading for part in parts if not part.is_paper and not part.is_other_split]
    is_other_split = column.split != OUR_SPLIT or any(part.is_other_split for part in parts)
    heading, role = column.name, ""
    if synthetic:
        heading, role = f"synthetic {column.name}", f"synthetic, for {column.name}"
    elif others:
        heading, role = f"{column.name} with stand-ins", f"stand-in for {column.name}: {', '.join(others)}"
    elif is_other_split:
        heading, role = f"{column.name} ({OUR_SPLIT})", f"{OUR_SPLIT}; the paper's numbers are on {column.split}"
    return DataColumn(
        heading,
        f"mean:{column.name}",
        "",
        column,
        is_paper=not role,
        role=role,
        is_other_split=is_other_split and not synthetic and not others,
        tasks=tuple(dict.fromkeys(part.task for part in parts)),
    )


def _mean_cell(parts: list[Cell]) -> Cell:
    """A mean for every pair of seeds that all parts have."""
    common = reduce(lambda keys, part: keys & part.scores.keys(), parts[1:], set(parts[0].scores))
    healthy = reduce(lambda keys, part: keys & part.healthy.keys(), parts[1:], set(parts[0].healthy))
    scores = {seeds: sum(part.scores[seeds] for part in parts) / len(parts) for seeds in sorted(common)}
    without = {seeds: scores[seeds] for seeds in sorted(healthy)}
    missing = sorted({seeds for part in parts for seeds in (*part.scores, *part.missing)} - common)
    num_collapsed = len(scores) - len(without)
    return Cell(
        scores=scores,
        estimate=estimate(scores) if scores else None,
        without_collapsed=estimate(without) if num_collapsed and without else None,
        num_collapsed=num_collapsed,
        missing=tuple(missing),
        healthy=without,
    )
