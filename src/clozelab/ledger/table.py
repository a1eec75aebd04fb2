"""The table of an experiment: the paper's cells and, apart from them, ours.

A data set that only stands in for the paper's, that is generated, or that is another split than the paper's, is a
column of its own under its own name; the paper's number is never beside it. Where a row was fine-tuned at several
learning rates, the one with the best mean on the development set stands in the table, as the paper selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clozelab.ledger.collect import Collected, FinetuneRun
from clozelab.ledger.experiment import OUR_SPLIT, Column, Experiment
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
    task: str = ""
    """Name of the task whose runs it holds; several columns may show different scores of one task."""
    baseline: tuple[str, float] | None = None
    """The best of the simple methods that are known for these examples: its name and score, percent."""
    is_other_split: bool = False
    """The paper's data set, but not the split that the paper's numbers are on."""


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
        (row, column.key): _cell([run for run in runs if (run.row, run.task) == (row, column.task)], column, expected)
        for row in rows
        for column in columns
    }
    return Table(experiment, columns, cells, pretrain_seeds, finetune_seeds)


def _data_columns(experiment: Experiment, runs: list[FinetuneRun], synthetic: str | None) -> Iterable[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks by name."""
    by_task: dict[str, FinetuneRun] = {}
    for run in sorted(runs, key=lambda run: (run.is_complete, bool(run.baselines))):
        by_task[run.task] = run  # a complete one wins: it knows its metric
    shown: set[tuple[str, str]] = set()
    for column in experiment.columns:
        mine = [task for task, run in by_task.items() if _belongs(run, column, shown)]
        made = [_data_column(by_task[task], column, synthetic, shown) for task in sorted(mine)]
        if not any(one.is_paper for one in made):
            yield DataColumn(column.name, f"paper:{column.name}", column.metric, column, is_paper=True)
        yield from sorted(made, key=lambda one: one.task != column.task)
    for task in sorted(set(by_task) - {task for task, _ in shown}):
        yield _data_column(by_task[task], None, synthetic, shown)


def _belongs(run: FinetuneRun, column: Column, shown: set[tuple[str, str]]) -> bool:
    """Whether a task's runs are a column's; a task may fill several columns, each with another of its scores."""
    if not column.accepts(run.task, run.stand_in_for):
        return False
    is_first = all(task != run.task for task, _ in shown)
    return is_first or (column.metric in run.scores and (run.task, column.metric) not in shown)


def _data_column(
    run: FinetuneRun, column: Column | None, synthetic: str | None, shown: set[tuple[str, str]]
) -> DataColumn:
    """Generated data has the official files' format and the official task's name, and is never the paper's data set.

    Notes in `shown` which score of which task now has a column.
    """
    is_same_data = column is not None and run.task == column.task and not run.stand_in_for and not synthetic
    is_other_split = is_same_data and column is not None and column.split != OUR_SPLIT
    metric = run.metric
    if column is not None and (is_same_data or column.metric in run.scores or not metric):
        metric = column.metric
    heading = column.name if is_same_data and column else run.title
    role = ""
    if synthetic:
        heading, role = f"{synthetic} {run.title}", f"synthetic, for {column.name}" if column else "synthetic"
    elif is_other_split and column is not None:
        heading, role = f"{column.name} ({OUR_SPLIT})", f"{OUR_SPLIT}; the paper's numbers are on {column.split}"
    elif column is not None and not is_same_data:
        role = f"stand-in for {column.name}"
    is_first = all(task != run.task for task, _ in shown)
    shown.add((run.task, metric))
    return DataColumn(
        heading=heading,
        key=run.task if is_first else f"{run.task}:{metric}",
        metric=metric,
        column=column,
        is_paper=is_same_data and not is_other_split,
        majority=run.majority if metric == run.metric else None,
        num_examples=run.num_examples,
        role=role,
        task=run.task,
        baseline=_best_baseline(run, metric),
        is_other_split=is_other_split,
    )


def _best_baseline(run: FinetuneRun, metric: str) -> tuple[str, float] | None:
    known = [(name, scores[metric]) for name, scores in run.baselines.items() if metric in scores]
    return max(known, key=lambda one: one[1], default=None)


def _cell(runs: list[FinetuneRun], column: DataColumn, expected: list[Seeds]) -> Cell:
    complete, chosen = _best_learning_rate([run for run in runs if run.is_complete])
    scored = [run for run in complete if column.metric in run.scores]
    scores = {(run.pretrain_seed, run.seed): run.scores[column.metric] for run in scored}
    healthy = {(run.pretrain_seed, run.seed): run.scores[column.metric] for run in scored if not run.collapsed}
    num_collapsed = len(scores) - len(healthy)
    lacking = f"{len(complete) - len(scored)} run(s) lack {column.metric}" if len(scored) < len(complete) else ""
    note = "; ".join(text for text in (lacking, chosen) if text)
    return Cell(
        scores=scores,
        estimate=estimate(scores) if scores else None,
        without_collapsed=estimate(healthy) if num_collapsed and healthy else None,
        num_collapsed=num_collapsed,
        missing=tuple(seeds for seeds in expected if seeds not in scores),
        note=note,
    )


def _best_learning_rate(runs: list[FinetuneRun]) -> tuple[list[FinetuneRun], str]:
    """(the runs at one learning rate, which one it is), all runs where there is but one.

    Chosen by the mean of each task's own selecting score, among the rates with most runs: a mean over fewer seeds would
    win by luck.
    """
    by_rate: dict[float | None, list[FinetuneRun]] = {}
    for run in runs:
        by_rate.setdefault(run.learning_rate, []).append(run)
    if len(by_rate) < 2:
        return runs, ""
    most = max(map(len, by_rate.values()))
    means = {
        rate: sum(run.scores[run.metric] for run in mine) / most for rate, mine in by_rate.items() if len(mine) == most
    }
    rate = max(means, key=lambda rate: means[rate])
    return by_rate[rate], f"learning rate {rate:g}, best of {len(by_rate)} on {OUR_SPLIT}"
