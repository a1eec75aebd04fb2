"""The table of an experiment, made from records of runs.

A data set that only stands in for the paper's, that is generated, or that is another split than the
paper's, is a column of its own under its own name; the paper's number is never beside it. Of
several learning rates of a row, the one with the best mean on the development set stands in the
table, as the paper selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING

from clozelab.analysis.comparability import Pair, RunEvidence, group_by
from clozelab.analysis.reasons import (
    CellNote,
    LearningRateChosen,
    LearningRateWithoutChoice,
    OlderRunsLeftOut,
    RunsLackMetric,
)
from clozelab.analysis.schema import OUR_SPLIT, Column, Part, Row
from clozelab.analysis.scores import (
    Cell,
    CheckpointSeries,
    DataColumn,
    Origin,
    ScoredRun,
    ScoreTable,
    datasets_for_column,
)
from clozelab.analysis.statistics import Seeds
from clozelab.results.evidence import compare_rows, encoder_of, evidence_of, seeds_of
from clozelab.results.experiment import Experiment
from clozelab.results.series import POINT, find_series
from clozelab.results.versions import OutdatedFolders, find_outdated, num_outdated
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


def is_scored(run: Record) -> bool:
    return run.is_complete and bool(run.values)


def stand_in_for(run: Record) -> str | None:
    """The column or benchmark that the run's task stands in for, by its own configuration."""
    recorded = run.facts.get("stand_in_for")
    if recorded:
        return str(recorded)
    task = run.config.get("task") or {}
    return task.get("stand_in_for")


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
        self.columns += _task_columns(self.experiment, self.own_runs, self.generators)
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
        self.columns.append(_paper_column(column))
        if self._has_scores(ours):
            self.columns.append(ours)

    def _add_mean(self, column: Column, filled: Sequence[DataColumn]) -> None:
        """A mean of columns; a mean over fewer is another number, so it takes all of them."""
        parts = list(chain.from_iterable(column.parts))
        datasets = _datasets_of_parts(parts, filled)
        if len(datasets) < len(set(parts)):
            self.columns.append(_paper_column(column))
            return
        ours = _mean_column(column, list(datasets.values()))
        if not ours.is_paper:
            self.columns.append(_paper_column(column))
        self.columns.append(ours)
        for row in self.rows:
            groups: list[tuple[tuple[DataColumn, Cell], ...]] = []
            for group in column.parts:
                members = [datasets[part] for part in group]
                groups.append(tuple((member, self._task_cell(row, member)) for member in members))
            self.cells[row, ours.key] = _mean_of_groups(tuple(groups))


def _datasets_of_parts(
    parts: Sequence[Part], filled: Sequence[DataColumn]
) -> dict[Part, DataColumn]:
    """The data set with scores of each part of a mean, where there is one."""
    datasets: dict[Part, DataColumn] = {}
    for part in parts:
        candidates = datasets_for_column(part.column, filled)
        if candidates:
            metric = part.metric or candidates[0].metric
            datasets[part] = replace(candidates[0], metric=metric)
    return datasets


# -- which runs are of one data set ----------------------------------------------------------------

Generators = Mapping[str, str | None]  # task -> the generator of its data; None: real data


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


# -- columns ---------------------------------------------------------------------------------------


def _paper_column(column: Column) -> DataColumn:
    """The paper's own column, which no run of ours is on."""
    return DataColumn(column.name, f"paper:{column.name}", column.metric, column, Origin.PAPER)


def _task_columns(
    experiment: Experiment, runs: Sequence[Record], generators: Generators
) -> Iterator[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks
    by name.
    """

    def knows_most(run: Record) -> tuple[bool, bool]:
        return is_scored(run), any(score.baselines for score in run.scores.values())

    # The run that a task's columns are described by: a complete one knows its scores.
    ordered = sorted(runs, key=knows_most)
    by_task = {run.task: run for run in ordered}
    # task -> its scores that have a column: it may fill several, each with another
    used_metrics: dict[str, set[str]] = {}
    for column in experiment.columns:
        if not column.task:
            continue
        # the column's own task first
        tasks = sorted(by_task, key=lambda name: (name != column.task, name))
        described = [_describing_run(ordered, task, column.metric, by_task[task]) for task in tasks]
        datasets = _datasets_on(column, described, generators, used_metrics)
        if not experiment.has_paper:
            datasets = [_without_paper(dataset) for dataset in datasets]
        is_ours = column.is_measured or any(dataset.is_paper for dataset in datasets)
        if not is_ours:
            yield _paper_column(column)
        yield from datasets
    for task in sorted(by_task.keys() - used_metrics):
        yield _data_column(by_task[task], None, generators[task], is_first=True)


def _datasets_on(
    column: Column,
    runs: Sequence[Record],
    generators: Generators,
    used_metrics: dict[str, set[str]],
) -> list[DataColumn]:
    """The tasks that fill a column, by one run of each; their scores are noted as used."""
    datasets: list[DataColumn] = []
    for run in runs:
        if _belongs(run, column, used_metrics.get(run.task)):
            used = used_metrics.setdefault(run.task, set())
            dataset = _data_column(run, column, generators[run.task], is_first=not used)
            used.add(dataset.metric)
            datasets.append(dataset)
    return datasets


def _without_paper(dataset: DataColumn) -> DataColumn:
    """Where there is no paper, nothing is "not in the paper"."""
    if dataset.origin is Origin.OWN_MEASURE:
        return replace(dataset, origin=Origin.OTHER)
    return dataset


def _describing_run(runs: Sequence[Record], task: str, metric: str, otherwise: Record) -> Record:
    """The run that knows most and has a metric: of a measure some runs lack a score.

    No causal encoder reads from the right, for example.
    """
    for run in reversed(runs):
        if run.task == task and metric in run.values:
            return run
    return otherwise


def _belongs(run: Record, column: Column, used: set[str] | None) -> bool:
    """Whether a task's runs fill a column: they are of its stage, and the score is still free."""
    is_of_stage = (run.stage == "evaluate") == column.is_measured
    is_free = used is None or (column.metric in run.values and column.metric not in used)
    return is_of_stage and is_free and column.accepts(run.task, stand_in_for(run))


def _data_column(
    run: Record, column: Column | None, generator: str | None, *, is_first: bool
) -> DataColumn:
    """A task's runs as a data set. Generated data is never the paper's, whatever its name."""
    origin = _origin(run, column, generator)
    headline = _headline(run)
    metric = _shown_metric(run, column, origin)
    baseline = None
    majority = None
    score = run.scores.get(metric)
    if score:
        baseline = max(score.baselines.items(), key=lambda item: item[1], default=None)
    if score and metric == headline:
        majority = score.majority
    # The task's title is about its headline score; another one goes by its column's name.
    name = ""
    if column is not None and headline and (metric != headline or column.is_measured):
        name = column.name
    heading = _heading(run, column, origin, generator, name)
    key = run.task if is_first else f"{run.task}:{metric}"
    num_examples = None
    if not _is_of_another_file(run, metric):
        num_examples = run.facts.get("num_examples")
    return DataColumn(
        heading=heading,
        key=key,
        metric=metric,
        column=column,
        origin=origin,
        task=run.task,
        tasks=(run.task,),
        majority=majority,
        baseline=baseline,
        num_examples=num_examples,
        trained_on=_training_share(run),
    )


def _headline(run: Record) -> str:
    """The task's own metric; empty where the run has no score yet."""
    return run.metric if run.values else ""


def _shown_metric(run: Record, column: Column | None, origin: Origin) -> str:
    """The column's metric, but for other data sets that do not have it: those show their own."""
    headline = _headline(run)
    if column is None or not column.metric:
        return headline
    is_same_data = origin in (Origin.PAPER, Origin.OTHER_SPLIT)
    may_have = column.metric in run.values or not headline
    if is_same_data or column.is_measured or may_have:
        return column.metric
    return headline


def _training_share(run: Record) -> tuple[int, int] | None:
    """(examples that it was trained on, all that there are); None where it was all of them."""
    data = run.facts.get("data") or {}
    used = data.get("train_examples")
    available = data.get("train_examples_available")
    if used and available and used < available:
        return used, available
    return None


def _origin(run: Record, column: Column | None, generator: str | None) -> Origin:
    if generator:
        return Origin.SYNTHETIC
    if column is None:
        return Origin.OTHER
    if column.is_measured:
        return Origin.OWN_MEASURE if run.task == column.task else Origin.STAND_IN
    if stand_in_for(run) or run.task != column.task:
        return Origin.STAND_IN
    return Origin.PAPER if column.split == OUR_SPLIT else Origin.OTHER_SPLIT


def _heading(
    run: Record, column: Column | None, origin: Origin, generator: str | None, name: str
) -> str:
    """`name` is that of the column where the score is not the task's own."""
    if origin is Origin.SYNTHETIC:
        return f"{generator} {name or run.title}"
    if column is not None:
        if origin is Origin.OTHER_SPLIT:
            return f"{column.name} ({OUR_SPLIT})"
        if origin in (Origin.PAPER, Origin.OWN_MEASURE):
            return column.name
    return f"{run.task} {name}" if name else run.title


def _is_of_another_file(run: Record, metric: str) -> bool:
    """Whether a score is over one of the task's further validation files.

    MNLI's mismatched one is such a file: its scores are of other examples.
    """
    task = run.config.get("task") or {}
    data = task.get("data") or {}
    files = data.get("extra_validation_files") or {}
    name = metric.rpartition("/")[2]
    return any(name.startswith(f"{file}_") for file in files)


def _mean_column(column: Column, parts: Sequence[DataColumn]) -> DataColumn:
    stand_ins = tuple(
        part.heading for part in parts if not part.is_paper and not part.is_other_split
    )
    is_other_split = column.split != OUR_SPLIT or any(part.is_other_split for part in parts)
    heading = column.name
    origin = Origin.PAPER
    if any(part.is_synthetic for part in parts):
        heading = f"synthetic {column.name}"
        origin = Origin.SYNTHETIC
    elif stand_ins:
        heading = f"{column.name} with stand-ins"
        origin = Origin.STAND_IN
    elif is_other_split:
        heading = f"{column.name} ({OUR_SPLIT})"
        origin = Origin.OTHER_SPLIT
    return DataColumn(
        heading,
        f"mean:{column.name}",
        metric="",
        column=column,
        origin=origin,
        stand_in_parts=stand_ins,
        tasks=tuple(dict.fromkeys(part.task for part in parts)),
    )


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
