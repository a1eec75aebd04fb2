"""The table of an experiment, made from records of runs.

A data set that only stands in for the paper's, that is generated, or that is another split than the
paper's, is a column of its own under its own name; the paper's number is never beside it. Of
several learning rates of a row, the one with the best mean on the development set stands in the
table, as the paper selects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING

from clozelab.analysis.comparability import Pair, RowEvidence, RunEvidence, group_by
from clozelab.analysis.reasons import (
    CellNote,
    LearningRateChosen,
    LearningRateWithoutChoice,
    OlderRunsLeftOut,
    OutdatedRuns,
    RunsLackMetric,
)
from clozelab.analysis.schema import Column, Row
from clozelab.analysis.scores import (
    Cell,
    CheckpointSeries,
    DataColumn,
    Origin,
    ScoredRun,
    ScoreTable,
)
from clozelab.analysis.statistics import Seeds
from clozelab.results.columns import (
    Generators,
    datasets_of_parts,
    is_scored,
    mean_column,
    paper_column,
    task_columns,
)
from clozelab.results.evidence import encoder_of, evidence_of, seeds_of, treatment_factors
from clozelab.results.experiment import Experiment
from clozelab.results.series import POINT, find_series
from clozelab.results.versions import OutdatedFolders, all_are_outdated, find_outdated, num_outdated
from clozelab.text.did_you_mean import nearest

if TYPE_CHECKING:
    from pathlib import Path

    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

# how much alike two keys have to be that both begin with "validation/", to be taken for one
SAME_KEY = 0.85


@dataclass(frozen=True)
class ExcludedRuns:
    """Runs that are in no cell: they saw another data set under their task's name."""

    task: str
    count: int
    rows: tuple[str, ...]
    # what wrote their data, and that of the runs that count; None: no generator
    generator: str | None
    usual_generator: str | None


@dataclass(frozen=True)
class ResultTable(ScoreTable):
    """A score table with the runs behind it."""

    experiment: Experiment
    runs: Runs
    excluded: tuple[ExcludedRuns, ...] = ()
    # runs in no cell, since runs of a newer results version are beside them
    outdated: OutdatedFolders = field(default_factory=dict)

    @cached_property
    def current(self) -> Runs:
        """The runs that may be compared: all but those that are outdated."""
        return without_outdated(self.runs, self.outdated)

    @cached_property
    def pretrain_runs(self) -> dict[str, list[Record]]:
        """Arm -> its complete runs that may be compared."""
        return _complete_by_name(self.current.pretrain)

    @cached_property
    def finetune_runs(self) -> dict[str, list[Record]]:
        """Row -> the same."""
        return _complete_by_name(self.current.finetune)

    @cached_property
    def evaluation_runs(self) -> dict[str, list[Record]]:
        return _complete_by_name(self.current.evaluate)

    def runs_on(self, row: str, task: str) -> list[Record]:
        """A row's complete runs on a task, or by a measure."""
        runs = (*self.finetune_runs.get(row, ()), *self.evaluation_runs.get(row, ()))
        return [run for run in runs if run.task == task]

    @property
    def pretrain_seeds(self) -> tuple[int, ...]:
        seeds = {run.seed for run in self.current.pretrain}
        for run in self.current.finetune:
            if run.name in self.rows:
                seeds.add(run.pretrain_seed)
        return tuple(sorted(seeds))

    def evidence(self, first: str, second: str, tasks: Sequence[str]) -> Pair | None:
        key = (first, second, tuple(tasks))
        if key not in self._pairs:
            self._pairs[key] = compare_rows(self, first, second, tasks)
        return self._pairs[key]

    @cached_property
    def _pairs(self) -> dict[tuple[str, str, tuple[str, ...]], Pair]:
        return {}

    def evidence_of(self, run: Record) -> RunEvidence:
        """How a run was made; read once, since every pair of rows asks."""
        key = id(run)  # the table keeps its runs, so no other run gets this number
        if key not in self._evidence:
            self._evidence[key] = evidence_of(run)
        return self._evidence[key]

    @cached_property
    def _evidence(self) -> dict[int, RunEvidence]:
        return {}

    def prediction_targets(self, row: str) -> set[str]:
        runs = self.pretrain_runs.get(str(self.spec.row(row).arm), [])
        return {run.predicts for run in runs}

    @cached_property
    def checkpoint_series(self) -> list[CheckpointSeries]:
        return find_series(self.experiment, self.runs)

    def with_rows(self, rows: Sequence[Row]) -> ResultTable:
        """The table with other labels of its rows."""
        experiment = self.experiment.model_copy(update={"rows": tuple(rows)})
        return replace(self, spec=experiment, experiment=experiment)


def _complete_by_name(runs: Iterable[Record]) -> dict[str, list[Record]]:
    complete = [run for run in runs if run.is_complete]
    return group_by(complete, lambda run: run.name)


# -- two rows side by side ------------------------------------------------------------------------


def compare_rows(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> Pair:
    """All that is known of how two rows' runs were made."""
    rows = (first, second)
    arms = [table.experiment.row(name).arm for name in rows]
    pretrained = [table.pretrain_runs.get(str(arm), []) for arm in arms]
    finetuned = [table.finetune_runs.get(name, []) for name in rows]
    evaluated = [table.evaluation_runs.get(name, []) for name in rows]
    arm_factors = treatment_factors(*pretrained)
    row_factors = treatment_factors(*finetuned) | treatment_factors(*evaluated)
    outdated = _outdated(table, rows, arms, tasks)
    return Pair(
        first=_row_evidence(table, first, tasks),
        second=_row_evidence(table, second, tasks),
        matched=table.experiment.matched,
        free_keys=table.experiment.free_keys,
        arm_factors=arm_factors,
        row_factors=row_factors,
        outdated=outdated,
    )


def _row_evidence(table: ResultTable, row: str, tasks: Sequence[str]) -> RowEvidence:
    def evidence(runs: Sequence[Record]) -> list[RunEvidence]:
        return [table.evidence_of(run) for run in runs]

    arm = table.experiment.row(row).arm
    pretrain_runs = table.pretrain_runs.get(str(arm), [])
    finetune_runs = table.finetune_runs.get(row, [])
    evaluation_runs = table.evaluation_runs.get(row, [])
    return RowEvidence(
        name=row,
        arm=arm,
        pretraining=evidence(pretrain_runs),
        finetuning=evidence(finetune_runs),
        evaluation=evidence(evaluation_runs),
        by_task={task: evidence(table.runs_on(row, task)) for task in tasks},
    )


def _outdated(
    table: ResultTable,
    rows: Collection[str],
    arms: Collection[str | None],
    tasks: Collection[str],
) -> OutdatedRuns | None:
    """Why an arm or a row has no run that may be compared, though it has some."""
    if not table.outdated:
        return None
    runs = [run for run in table.runs.pretrain if run.name in arms]
    for run in (*table.runs.finetune, *table.runs.evaluate):
        if run.name in rows and run.task in tasks:
            runs.append(run)
    # An arm's encoders, and a row's runs on each task.
    for group in group_by(runs, lambda run: (run.stage, run.task, run.name)).values():
        reason = all_are_outdated(table.outdated, group)
        if reason is not None:
            return reason
    return None


# -- arranging runs ------------------------------------------------------------------------------


def without_outdated(runs: Runs, outdated: OutdatedFolders) -> Runs:
    if not outdated:
        return runs
    return replace(runs, records=[run for run in runs.records if run.folder not in outdated])


def build_table(experiment: Experiment, runs: Runs) -> ResultTable:
    """Arrange the runs of the experiment's rows; each column is of one results version."""
    outdated = find_outdated(runs.runs, experiment.free_keys)
    table = _Arrangement(experiment, without_outdated(runs, outdated)).table()
    if not outdated:
        return table

    cells = dict(table.cells)
    for column in table.columns:
        for row in table.rows:
            count = num_outdated(outdated, runs.runs, row, column.task)
            if count:
                cell = cells[row, column.key]
                notes = (*cell.notes, OlderRunsLeftOut(count))
                cells[row, column.key] = replace(cell, notes=notes)
    return replace(table, runs=runs, cells=cells, outdated=outdated)


class _Arrangement:
    """The columns and cells that an experiment's runs fill."""

    def __init__(self, experiment: Experiment, runs: Runs) -> None:
        self.experiment = experiment
        self.runs = runs
        self.rows = [row.name for row in experiment.rows]
        measures: set[str] = set()
        for column in experiment.columns:
            if column.is_measured:
                measures |= set(column.tasks)
        self.task_runs = [
            *runs.finetune,
            *(run for run in runs.evaluate if run.task in measures),
        ]
        own = [run for run in self.task_runs if run.name in self.rows]
        self.own_runs, self.generators, self.excluded = _one_dataset_a_task(own, runs.synthetic)
        # Every row should have these seeds.
        pretrain_seeds = {run.pretrain_seed for run in self.own_runs}
        pretrain_seeds |= {run.seed for run in runs.pretrain}
        self.pretrain_seeds = sorted(pretrain_seeds)
        self.finetune_seeds = {run.seed for run in self.own_runs if run.stage == "finetune"}
        scored = [run for run in self.own_runs if is_scored(run)]
        self.scored = group_by(scored, lambda run: (run.name, run.task, run.stage == "evaluate"))
        self.columns: list[DataColumn] = []
        self.cells: dict[tuple[str, str], Cell] = {}

    def table(self) -> ResultTable:
        self._add_tasks()
        for column in self.experiment.columns:
            if column.is_pretraining:
                self._add_facts(column)
        # A mean is of data sets that some row has scores on.
        filled = [column for column in self.columns if self._has_scores(column)]
        for column in self.experiment.columns:
            if column.parts:
                self._add_mean(column, filled)

        # In the order of the paper's columns, other tasks last; the sort keeps the order within.
        order = [column.name for column in self.experiment.columns]

        def place(column: DataColumn) -> int:
            return order.index(column.column.name) if column.column else len(order)

        columns = tuple(sorted(self.columns, key=place))
        empty = {(row, column.key): Cell() for row in self.rows for column in columns}
        return ResultTable(
            spec=self.experiment,
            columns=columns,
            cells=empty | self.cells,
            experiment=self.experiment,
            runs=self.runs,
            excluded=self.excluded,
        )

    def _has_scores(self, column: DataColumn) -> bool:
        cells = (self.cells.get((row, column.key)) for row in self.rows)
        return any(cell.scores for cell in cells if cell)

    def _add_tasks(self) -> None:
        self.columns += task_columns(self.experiment, self.own_runs, self.generators)
        for row, column in product(self.rows, list(self.columns)):
            self.cells[row, column.key] = self._task_cell(row, column)

    def _task_cell(self, row: str, column: DataColumn) -> Cell:
        runs = self.scored.get((row, column.task, column.is_measured), [])
        chosen, note = _best_learning_rate(runs)
        seeds = self.finetune_seeds
        if column.is_measured:
            seeds = {run.seed for run in self.task_runs if run.task == column.task}
        expected = product(self.pretrain_seeds, sorted(seeds))
        return _cell(chosen, column.metric, expected, note)

    def _add_facts(self, column: Column) -> None:
        """A fact of the rows' pre-training; held-out text is ours, so it stands beside the
        paper's column.
        """
        heading = column.name
        origin = Origin.HELD_OUT_TEXT
        if self.runs.synthetic:
            heading = f"{self.runs.synthetic} {column.name}"
            origin = Origin.SYNTHETIC
        ours = DataColumn(heading, f"pretrain:{column.name}", column.metric, column, origin)
        for row in self.experiment.rows:
            # Of an encoder on the way no such figure is known.
            is_at_end = float(row.delta.get(POINT, 1.0)) == 1.0
            runs = [run for run in self.runs.pretrain if run.name == row.arm and is_at_end]
            complete = [run for run in runs if run.is_complete]
            expected = [seeds_of(run) for run in runs]
            self.cells[row.name, ours.key] = _cell(complete, column.metric, expected)
        self.columns.append(paper_column(column))
        if self._has_scores(ours):
            self.columns.append(ours)

    def _add_mean(self, column: Column, filled: Sequence[DataColumn]) -> None:
        """A mean of columns; a mean over fewer is another number, so it takes all of them."""
        parts = list(chain.from_iterable(column.parts))
        datasets = datasets_of_parts(parts, filled)
        if len(datasets) < len(set(parts)):
            self.columns.append(paper_column(column))
            return
        ours = mean_column(column, list(datasets.values()))
        if not ours.is_paper:
            self.columns.append(paper_column(column))
        self.columns.append(ours)
        for row in self.rows:
            groups: list[tuple[tuple[DataColumn, Cell], ...]] = []
            for group in column.parts:
                members = [datasets[part] for part in group]
                groups.append(tuple((member, self._task_cell(row, member)) for member in members))
            self.cells[row, ours.key] = _mean_of_groups(tuple(groups))


# -- which runs are of one data set ----------------------------------------------------------------


def _one_dataset_a_task(
    runs: Sequence[Record], synthetic: str | None
) -> tuple[list[Record], Generators, tuple[ExcludedRuns, ...]]:
    """(runs for one table, generators, the others): the generator of the encoders' text counts."""
    generators: dict[str, str | None] = {}
    excluded: list[ExcludedRuns] = []
    excluded_folders: set[Path] = set()
    for task, task_runs in group_by(runs, lambda run: run.task).items():
        # Until it is scored no record says what it reads.
        scored = [run for run in task_runs if is_scored(run)]
        by_generator = group_by(scored, lambda run: run.synthetic)
        kept_generator = synthetic
        if by_generator and synthetic not in by_generator:
            kept_generator = next(iter(by_generator))
        generators[task] = kept_generator
        by_generator.pop(kept_generator, None)
        for generator, group in by_generator.items():
            excluded_folders.update(run.folder for run in group)
            names = tuple(dict.fromkeys(run.name for run in group))
            excluded.append(ExcludedRuns(task, len(group), names, generator, kept_generator))
    kept = [run for run in runs if run.folder not in excluded_folders]
    return kept, generators, tuple(excluded)


# -- cells -----------------------------------------------------------------------------------------


def _cell(
    runs: Sequence[Record],
    metric: str,
    expected: Iterable[Seeds],
    note: CellNote | None = None,
) -> Cell:
    """Of complete runs of one stage; `expected` are the seeds that there should be."""
    having = {seeds_of(run): run for run in runs if metric in run.figures}
    scores = {seeds: float(run.figures[metric]) for seeds, run in having.items()}
    healthy = {
        seeds: scores[seeds] for seeds, run in having.items() if not run.facts.get("collapsed")
    }
    notes: list[CellNote] = []
    num_unscored = len(runs) - len(having)
    if num_unscored:
        suggestion = None
        if not having:
            suggestion = nearest(metric, runs[0].figures, cutoff=SAME_KEY)
        notes.append(RunsLackMetric(num_unscored, metric, suggestion))
    if note is not None:
        notes.append(note)
    return Cell(
        scores=scores,
        healthy=healthy,
        missing=tuple(seeds for seeds in expected if seeds not in scores),
        notes=tuple(notes),
        runs={seeds: scored_run(run) for seeds, run in having.items()},
        num_unscored=num_unscored,
    )


def scored_run(run: Record) -> ScoredRun:
    data = run.facts.get("data") or {}
    encoder = None
    if run.stage != "pretrain":
        encoder = encoder_of(run)
    return ScoredRun(
        folder=run.folder,
        seeds=seeds_of(run),
        encoder=encoder,
        is_collapsed=bool(run.facts.get("collapsed")),
        max_seq_length=data.get("max_seq_length"),
        is_causal=data.get("is_causal"),
    )


def _best_learning_rate(runs: list[Record]) -> tuple[list[Record], CellNote | None]:
    """(the runs at the best learning rate, which it is); all runs where there is but one.

    The best is by the mean over the seeds that all rates with most seeds have, so that none wins
    by its seeds.
    """
    by_rate: dict[float | None, dict[Seeds, Record]] = {}
    for rate, group in group_by(runs, lambda run: run.learning_rate).items():
        by_rate[rate] = {seeds_of(run): run for run in group}
    if len(by_rate) < 2:
        return runs, None

    num_seeds = max(map(len, by_rate.values()))
    complete = {rate: group for rate, group in by_rate.items() if len(group) == num_seeds}
    common = set.intersection(*(set(group) for group in complete.values()))
    if not common:
        rate = min(complete, key=lambda rate: sorted(complete[rate]))
        return list(complete[rate].values()), LearningRateWithoutChoice(rate, len(by_rate))

    def sum_over_common(rate: float | None) -> float:
        return sum(complete[rate][seeds].score or 0.0 for seeds in common)

    rate = max(complete, key=sum_over_common)
    note = LearningRateChosen(
        learning_rate=rate,
        num_rates=len(complete),
        num_common=len(common),
        num_seeds=num_seeds,
        num_left_out=len(by_rate) - len(complete),
    )
    return list(complete[rate].values()), note


def _mean_of_groups(groups: tuple[tuple[tuple[DataColumn, Cell], ...], ...]) -> Cell:
    """The mean of groups, each of which is the mean of its cells."""
    means = [_mean_cell([cell for _, cell in group]) for group in groups]
    return replace(_mean_cell(means), groups=groups)


def _mean_cell(parts: Sequence[Cell]) -> Cell:
    """A mean for every pair of seeds that all parts have."""
    common = sorted(set.intersection(*(set(part.scores) for part in parts)))
    healthy = sorted(set.intersection(*(set(part.healthy) for part in parts)))
    scores = {seeds: sum(part.scores[seeds] for part in parts) / len(parts) for seeds in common}
    seen: set[Seeds] = set()
    for part in parts:
        seen |= {*part.scores, *part.missing}
    return Cell(
        scores=scores,
        healthy={seeds: scores[seeds] for seeds in healthy},
        missing=tuple(sorted(seen - set(common))),
    )
