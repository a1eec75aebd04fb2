"""The table of an experiment: the paper's cells and, apart from them, ours.

A data set that only stands in for the paper's, or that is generated, is a column of its own under its own name; the
paper's number is never beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clozelab.ledger.collect import Collected, FinetuneRun
from clozelab.ledger.experiment import Column, Experiment
from clozelab.metrics.statistics import Estimate, estimate

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


@dataclass(frozen=True)
class Table:
    experiment: Experiment
    columns: tuple[DataColumn, ...]
    cells: Mapping[tuple[str, str], Cell]
    """(row, key of a data set) -> cell, for every row and every data set."""
    pretrain_seeds: tuple[int, ...]
    finetune_seeds: tuple[int, ...]

    def of_column(self, column: Column) -> list[DataColumn]:
        """The data sets with results that speak for a column of the paper: its own first."""
        mine = [one for one in self.columns if one.column == column and self.has_results(one)]
        return sorted(mine, key=lambda one: not one.is_paper)

    @property
    def with_results(self) -> list[DataColumn]:
        """The data sets that any row has a score on."""
        return [column for column in self.columns if self.has_results(column)]

    def paper_value(self, row: str, column: DataColumn) -> float | None:
        """The paper's number, in percent; None where it has none, and for any data set but its own."""
        if not column.is_paper or column.column is None:
            return None
        cells = next(one.cells for one in self.experiment.rows if one.name == row)
        return cells[self.experiment.columns.index(column.column)]

    def has_results(self, column: DataColumn) -> bool:
        """Whether any row has a score on this data set."""
        return any(cell.scores for (_, task), cell in self.cells.items() if task == column.key)


def build_table(experiment: Experiment, collected: Collected) -> Table:
    """Arrange the fine-tuning runs of the experiment's rows."""
    rows = [row.name for row in experiment.rows]
    runs = [run for run in collected.finetune if run.row in rows]
    columns = tuple(_data_columns(experiment, runs, collected.synthetic))
    pretrain_seeds = tuple(sorted({run.pretrain_seed for run in runs} | {run.seed for run in collected.pretrain}))
    finetune_seeds = tuple(sorted({run.seed for run in runs}))
    expected = [(first, second) for first in pretrain_seeds for second in finetune_seeds]
    cells = {
        (row, column.key): _cell([run for run in runs if (run.row, run.task) == (row, column.key)], column, expected)
        for row in rows
        for column in columns
    }
    return Table(experiment, columns, cells, pretrain_seeds, finetune_seeds)


def _data_columns(experiment: Experiment, runs: list[FinetuneRun], synthetic: str | None) -> Iterable[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks by name."""
    by_task: dict[str, FinetuneRun] = {}
    for run in sorted(runs, key=lambda run: run.is_complete):
        by_task[run.task] = run  # a complete one wins: it knows its metric
    for column in experiment.columns:
        mine = [task for task, run in by_task.items() if column.accepts(task, run.stand_in_for)]
        if column.task not in mine or synthetic:
            yield DataColumn(column.name, f"paper:{column.task}", column.metric, column, is_paper=True)
        for task in sorted(mine, key=lambda name: (name != column.task, name)):
            yield _data_column(by_task.pop(task), column, synthetic)
    for task in sorted(by_task):
        yield _data_column(by_task[task], None, synthetic)


def _data_column(run: FinetuneRun, column: Column | None, synthetic: str | None) -> DataColumn:
    """Generated data has the official files' format and the official task's name, and is never the paper's data set."""
    is_paper = column is not None and run.task == column.task and not run.stand_in_for and not synthetic
    metric = run.metric
    if column is not None and (is_paper or column.metric in run.scores or not metric):
        metric = column.metric
    heading = column.name if is_paper and column else run.title
    role = ""
    if synthetic:
        heading, role = f"{synthetic} {run.title}", f"synthetic, for {column.name}" if column else "synthetic"
    elif column is not None and not is_paper:
        role = f"stand-in for {column.name}"
    return DataColumn(heading, run.task, metric, column, is_paper, run.majority, run.num_examples, role)


def _cell(runs: list[FinetuneRun], column: DataColumn, expected: list[Seeds]) -> Cell:
    complete = [run for run in runs if run.is_complete]
    scored = [run for run in complete if column.metric in run.scores]
    scores = {(run.pretrain_seed, run.seed): run.scores[column.metric] for run in scored}
    healthy = {(run.pretrain_seed, run.seed): run.scores[column.metric] for run in scored if not run.collapsed}
    num_collapsed = len(scores) - len(healthy)
    note = f"{len(complete) - len(scored)} run(s) lack {column.metric}" if len(scored) < len(complete) else ""
    return Cell(
        scores=scores,
        estimate=estimate(scores) if scores else None,
        without_collapsed=estimate(healthy) if num_collapsed and healthy else None,
        num_collapsed=num_collapsed,
        missing=tuple(seeds for seeds in expected if seeds not in scores),
        note=note,
    )
