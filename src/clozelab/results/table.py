"""The table of an experiment, made from records of runs.

A data set that only stands in for the paper's, that is generated, or that is another split than the
paper's, is a column of its own under its own name; the paper's number is never beside it. Of
several learning rates of a row, the one with the best mean on the development set stands in the
table, as the paper selects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, product
from operator import attrgetter
from pathlib import Path

import numpy as np

from claims.analysis.comparability import Pair, RowEvidence, RunEvidence
from claims.analysis.grouping import group_by
from claims.analysis.schema import OUR_SPLIT, PERCENT, Column
from claims.analysis.scores import (
    Cell,
    CheckpointSeries,
    DataColumn,
    Origin,
    ScoredRun,
    ScoreTable,
    datasets_for_column,
)
from claims.analysis.statistics import Seeds
from claims.text.did_you_mean import hint, nearest
from claims.text.phrases import truncate_list
from clozelab.metrics.metric import PREFIX
from clozelab.results.columns import (
    class_of,
    datasets_of_parts,
    is_scored,
    mean_column,
    paper_column,
    task_columns,
)
from clozelab.results.evidence import (
    EditedLine,
    edited_lines,
    encoder_of,
    evidence_of,
    find_outdated,
    seeds_of,
    treatment_factors,
)
from clozelab.results.experiment import Experiment
from clozelab.results.timing import seconds_of_work
from clozelab.results.units import scale_of
from clozelab.runs.find import Runs
from clozelab.runs.record import Record, Score
from clozelab.training.measuring import read_rows

# how much alike two keys have to be that both begin with "validation/", to be taken for one
SAME_KEY = 0.85
# the setting of a row that says how far its encoder was trained
POINT = "encoder_fraction"
Settings = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class ResultTable(ScoreTable):
    """A score table with the runs behind it."""

    has_evidence = True

    spec: Experiment
    runs: Runs
    # runs in no cell, since they saw another data set under their task's name, in words
    excluded: tuple[str, ...] = ()
    # folders of runs in no cell, since newer ones are beside them -> why
    outdated: Mapping[Path, str] = field(default_factory=dict)
    # its rows are what differs between runs: no paper.yaml has lines of them
    is_inferred: bool = False
    foreign: Collection[Path] = ()  # folders of the runs that `excluded` is about

    @property
    def experiment(self) -> Experiment:
        return self.spec

    @property
    def generator(self) -> str | None:
        """Of the text or of the files that a run of its rows and columns is on."""
        names = {*self.rows, *map(attrgetter("arm"), self.spec.rows)}
        tasks = set(map(attrgetter("task"), self.columns))
        for run in self.current.runs:
            is_shown = run.name in names and (run.stage == "pretrain" or run.task in tasks)
            if is_shown and run.synthetic:
                return run.synthetic
        return None

    @property
    def is_finetuned(self) -> bool:
        return bool(self.runs.finetune)

    @cached_property
    def current(self) -> Runs:
        """The runs that may be compared: neither outdated nor on another data set."""
        return _without(self.runs, {*self.outdated, *self.foreign})

    @cached_property
    def _complete(self) -> dict[tuple[str, str], list[Record]]:
        complete = [run for run in self.current.runs if run.is_complete]
        return group_by(complete, lambda run: (run.stage, run.name))

    def complete(self, stage: str, name: str | None) -> list[Record]:
        """The complete runs of an arm or a row that may be compared."""
        return self._complete.get((stage, str(name)), [])

    def runs_on(self, row: str, task: str) -> list[Record]:
        """A row's complete runs on a task, or by a measure."""
        runs = self.complete("finetune", row) + self.complete("evaluate", row)
        return [run for run in runs if run.task == task]

    def retained(self, row: str, column: DataColumn) -> str:
        """What a row keeps of the row that `retained_of` names: "97 % of Teacher".

        Of scores in percent. Beside it what is kept of the part above the floor, since a score that
        costs nothing is easily kept. Empty where a part is missing.
        """
        reference = self.spec.retained_of
        if reference in (None, row) or self.row(row).arm is None or column.unit != PERCENT:
            return ""
        about = self.row(str(reference))
        cell = self.cells[row, column.key]
        whole_cell = self.cells[about.name, column.key]
        kept = cell.estimate
        whole = whole_cell.estimate
        if cell.classes != whole_cell.classes or kept is None or whole is None or whole.mean <= 0.0:
            return ""
        text = f"{100 * kept.mean / whole.mean:.0f} % of {about.label}"
        floor = self.cells[about.floor, column.key].estimate if about.floor else None
        if floor is None or whole.mean <= floor.mean:
            return text
        # Teacher 80, student 75, floor 50: 94 % of the teacher, 83 % above the floor.
        share = (kept.mean - floor.mean) / (whole.mean - floor.mean)
        return f"{text}, {100 * share:.0f} % above the floor"

    @property
    def pretrain_seeds(self) -> tuple[int, ...]:
        tuned = set()
        for run in self.current.finetune:
            if run.name in self.rows:
                tuned.add(run.pretrain_seed)
        return tuple(sorted({run.seed for run in self.current.pretrain} | tuned))

    def evidence(self, first: str, second: str, tasks: Sequence[str]) -> Pair | None:
        return self._compare(first, second, tuple(tasks))

    @cached_property
    def _compare(self) -> Callable[[str, str, Sequence[str]], Pair]:
        return cache(partial(compare_rows, self))

    def evidence_of(self, run: Record) -> RunEvidence:
        """How a run was made; read once, since every pair of rows asks."""
        key = id(run)  # the table keeps its runs, so no other run gets this number
        if key not in self._evidence:
            self._evidence[key] = evidence_of(run)
        return self._evidence[key]

    @cached_property
    def _evidence(self) -> dict[int, RunEvidence]:
        return {}

    @cached_property
    def edited(self) -> dict[Path, tuple[EditedLine, ...]]:
        """Folder of a complete run -> what paper.yaml says otherwise than the run has it."""
        edited: dict[Path, tuple[EditedLine, ...]] = {}
        if self.is_inferred:
            return edited
        for run in chain(*self._complete.values()):
            lines = edited_lines(run, self.spec)
            if lines:
                edited[run.folder] = lines
        return edited

    def prediction_targets(self, row: str) -> set[str]:
        return {run.predicts for run in self.complete("pretrain", self.row(row).arm)}

    @cached_property
    def checkpoint_series(self) -> list[CheckpointSeries]:
        return find_series(self.experiment, self.current)

    def seconds_a_seed(self, rows: Iterable[str], tasks: Iterable[str]) -> float | None:
        """What one more seed of some rows takes, as finished runs did.

        None where a part of it has no finished run to go by.
        """
        row_names = list(rows)
        # Between given encoders a seed more is one fine-tuning of each.
        are_given = all(self.row(name).fixed_encoder for name in row_names)
        arms = [row.arm for row in self.spec.rows if row.name in row_names and row.arm]
        # A pre-training once a seed, a task's runs as often as they have learning rates and, with
        # an arm's encoder, fine-tuning seeds.
        work = [(self.complete("pretrain", arm), 1) for arm in dict.fromkeys(arms)]
        for row, task in product(row_names, tasks):
            runs = self.runs_on(row, task)
            rates = {run.learning_rate for run in runs}
            with_seeds = {(run.learning_rate, run.seed) for run in runs}
            work.append((runs, len(rates) if are_given else len(with_seeds)))
        return seconds_of_work(work)

    def find_row(self, name: str) -> str:
        """The row that has a name or label; ValueError where there is none."""
        # Label or name -> name; a name counts before another row's label.
        rows = {row.label: row.name for row in self.spec.rows}
        rows |= {row.name: row.name for row in self.spec.rows}
        if name not in rows:
            raise ValueError(f"no row {name!r}; {hint(name, rows.values())}")
        return rows[name]

    def find_column(self, name: str) -> DataColumn:
        """The first data set with results that a name means; ValueError where there is none.

        It may be that of a task, a heading, or a column of the paper, which has its stand-ins, too.
        """
        columns = self.with_results
        # A task's or a heading's own name comes first: a column of the paper may share it.
        exact = [column for column in columns if name in (column.key, column.task, column.heading)]
        for column in [*exact, *datasets_for_column(name, columns)]:
            return column
        names = set()
        for column in columns:
            names |= {column.task, column.heading}
            if column.column:
                names.add(column.column.name)
        raise ValueError(f"no column {name!r} with a run; {hint(name, names - {''})}")


# -- two rows side by side ------------------------------------------------------------------------


def compare_rows(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> Pair:
    """All that is known of how two rows' runs were made."""
    rows = (first, second)
    arms = [str(table.row(name).arm) for name in rows]

    def factors(stage: str, names: Iterable[str]) -> frozenset[str]:
        return treatment_factors(*(table.complete(stage, name) for name in names))

    first_row = _row_evidence(table, first, tasks)
    second_row = _row_evidence(table, second, tasks)
    row_factors = factors("finetune", rows) | factors("evaluate", rows)
    pair = Pair(
        first=first_row,
        second=second_row,
        matched=table.experiment.matched,
        free_keys=table.experiment.free_keys,
        arm_factors=factors("pretrain", arms),
        row_factors=row_factors,
    )
    outdated = _outdated(table, rows, arms, tasks)
    return replace(pair, outdated=outdated, edited=_edited(table, rows, arms, tasks))


def _row_evidence(table: ResultTable, row: str, tasks: Sequence[str]) -> RowEvidence:
    def evidence(runs: Sequence[Record]) -> list[RunEvidence]:
        return [table.evidence_of(run) for run in runs]

    arm = table.row(row).arm
    pretraining = evidence(table.complete("pretrain", arm))
    finetuning = evidence(table.complete("finetune", row))
    return RowEvidence(
        name=row,
        arm=arm,
        pretraining=pretraining,
        finetuning=finetuning,
        evaluation=evidence(table.complete("evaluate", row)),
        by_task={task: evidence(table.runs_on(row, task)) for task in tasks},
    )


def _outdated(
    table: ResultTable, rows: Collection[str], arms: Collection[str], tasks: Collection[str]
) -> str:
    """Why an arm or a row has no run that may be compared, though it has some."""
    if not table.outdated:
        return ""
    runs = [run for run in table.runs.pretrain if run.name in arms]
    for run in (*table.runs.finetune, *table.runs.evaluate):
        if run.name in rows and run.task in tasks:
            runs.append(run)
    # An arm's encoders, and a row's runs on each task.
    complete = [run for run in runs if run.is_complete]
    for group in group_by(complete, lambda run: (run.stage, run.task, run.name)).values():
        reasons = [table.outdated.get(run.folder, "") for run in group]
        if all(reasons):
            return (
                f"all {len(group)} run(s) of {group[0].name} are {min(reasons)}, and no comparison"
                " mixes them"
            )
    return ""


def _edited(
    table: ResultTable, rows: Iterable[str], arms: Iterable[str], tasks: Collection[str]
) -> str:
    """Which runs of an arm or a row are surely other ones than its lines in paper.yaml ask for."""
    runs = list(chain(*(table.complete("pretrain", arm) for arm in arms)))
    for row, task in product(rows, tasks):
        runs += table.runs_on(row, task)
    for run in runs:
        lines = [line for line in table.edited.get(run.folder, ()) if line.is_another_run]
        if lines:
            named = truncate_list(list(map(str, lines)), "; ")
            return f"runs of {run.name} are not of its lines in paper.yaml: {named}"
    return ""


# -- arranging runs ------------------------------------------------------------------------------


def _without(runs: Runs, folders: Collection[Path]) -> Runs:
    return replace(runs, records=[run for run in runs.records if run.folder not in folders])


def build_table(experiment: Experiment, runs: Runs) -> ResultTable:
    """Arrange the runs of the experiment's rows; each column is of one results version."""
    # A run of an older results version is counted and noted in its cell, and left out.
    outdated = find_outdated(runs.runs, experiment.free_keys)
    table = _TableBuilder(experiment, _without(runs, outdated)).table()
    left_out = []
    for run in runs.runs:
        if run.folder in outdated:
            left_out.append((run.name, run.task))
    cells = dict(table.cells)
    for row, column in product(table.rows, table.columns):
        count = left_out.count((row, column.task))
        if count:
            cell = cells[row, column.key]
            note = f"{count} run(s) of an older results version left out"
            cells[row, column.key] = replace(cell, notes=(*cell.notes, note))
    return replace(table, runs=runs, cells=cells, outdated=outdated)


class _TableBuilder:
    """The columns and cells that an experiment's runs fill."""

    def __init__(self, experiment: Experiment, runs: Runs) -> None:
        self.experiment = experiment
        self.runs = runs
        self.rows = [row.name for row in experiment.rows]
        # An evaluation counts only where some column is of its measure.
        measured = [column.tasks for column in experiment.columns if column.is_measured]
        measures = set(chain.from_iterable(measured))
        evaluated = [run for run in runs.evaluate if run.task in measures]
        self.task_runs = [*runs.finetune, *evaluated]
        row_runs = [run for run in self.task_runs if run.name in self.rows]
        # of the encoders' text; None: real text
        self.generator = _most_common([run.synthetic for run in runs.pretrain])
        # task -> the generator of its data; None: real data
        self.generators = _generators(row_runs, self.generator)
        # A scored run on other data than those that count for its task is left out.
        by_world = group_by(
            row_runs, lambda run: is_scored(run) and run.synthetic != self.generators[run.task]
        )
        foreign = by_world.get(True, [])
        self.foreign = {run.folder for run in foreign}
        self.excluded = tuple(_excluded(foreign, self.generators))
        self.own_runs = by_world.get(False, [])
        # Every row should have these seeds.
        pretrain_seeds = {run.pretrain_seed for run in self.own_runs}
        self.pretrain_seeds = sorted(pretrain_seeds | {run.seed for run in runs.pretrain})
        self.finetune_seeds = {run.seed for run in self.own_runs if run.stage == "finetune"}
        self.scored = group_by(
            filter(is_scored, self.own_runs),
            lambda run: (run.name, run.task, run.stage == "evaluate"),
        )
        self.columns: list[DataColumn] = []
        self.cells: dict[tuple[str, str], Cell] = {}

    def table(self) -> ResultTable:
        self.columns += task_columns(self.experiment, self.own_runs, self.generators)
        for row, dataset in product(self.rows, list(self.columns)):
            self.cells[row, dataset.key] = self._task_cell(row, dataset)
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
        keys = product(self.rows, (column.key for column in columns))
        empty = {key: Cell() for key in keys}
        return ResultTable(
            spec=self.experiment,
            columns=columns,
            cells=empty | self.cells,
            runs=self.runs,
            excluded=self.excluded,
            foreign=self.foreign,
        )

    def _has_scores(self, column: DataColumn) -> bool:
        cells = (self.cells.get((row, column.key)) for row in self.rows)
        return any(cell.scores for cell in cells if cell)

    def _task_cell(self, row: str, column: DataColumn) -> Cell:
        if "combine" in self.experiment.row(row).delta and not column.is_measured:
            return Cell()  # models of other rows, which are evaluated alone
        runs = self.scored.get((row, column.task, column.is_measured), [])
        best_runs, note = _best_learning_rate(runs)
        sizes = sorted({run.facts.get("num_models", 1) for run in best_runs})
        if sizes[-1:] > [1]:
            note = f"each score is of {' or '.join(map(str, sizes))} models together"
        # A measure is run with its own seeds, a fine-tuning with those of all tasks.
        seeds = self.finetune_seeds
        if column.is_measured:
            seeds = {run.seed for run in self.task_runs if run.task == column.task}
        expected = product(self.pretrain_seeds, sorted(seeds))
        cell = _cell(best_runs, column.metric, expected, note)
        return replace(cell, is_of_one_encoder=self.experiment.row(row).fixed_encoder)

    def _add_facts(self, column: Column) -> None:
        """A fact of the rows' pre-training; held-out text is ours, so it stands beside the
        paper's column.
        """
        heading = column.name
        origin = Origin.HELD_OUT_TEXT
        if self.generator:
            heading = f"{self.generator} {column.name}"
            origin = Origin.SYNTHETIC
        ours = DataColumn(
            heading,
            f"pretrain:{column.name}",
            column.metric,
            column,
            origin,
            scale=scale_of(column, column.metric, self._figure_of_pretraining(column.metric)),
        )
        by_arm = group_by(self.runs.pretrain, lambda run: run.name)
        for row in self.experiment.rows:
            # Of an encoder on the way no such figure is known.
            is_at_end = float(row.delta.get(POINT, 1.0)) == 1.0
            runs = by_arm.get(str(row.arm), []) if is_at_end else []
            complete = [run for run in runs if run.is_complete]
            expected = [seeds_of(run) for run in runs]
            self.cells[row.name, ours.key] = _cell(complete, column.metric, expected)
        self.columns.append(paper_column(column))
        if self._has_scores(ours):
            self.columns.append(ours)

    def _figure_of_pretraining(self, metric: str) -> Score | None:
        """What the runs say that a held-out figure is; None where it is another fact."""
        for run in self.runs.pretrain:
            if metric.startswith(PREFIX) and metric in run.facts:
                return run.score_of(metric)
        return None

    def _with_scale(self, dataset: DataColumn) -> DataColumn:
        """A data set in the unit of its metric, which may be another than its column's."""
        for run in self.own_runs:
            if run.task == dataset.task and dataset.metric in run.values:
                scale = scale_of(None, dataset.metric, run.scores[dataset.metric])
                return replace(dataset, scale=scale)
        return dataset

    def _add_mean(self, column: Column, filled: Sequence[DataColumn]) -> None:
        """A mean of columns; a mean over fewer is another number, so it takes all of them."""
        # `parts` are groups of columns: a benchmark's mean may be one over means.
        names = list(chain.from_iterable(column.parts))
        datasets = datasets_of_parts(names, filled)
        for name, data in datasets.items():
            datasets[name] = self._with_scale(data)
        # Without one of them the paper's number stands alone.
        if len(datasets) < len(set(names)):
            self.columns.append(paper_column(column))
            return
        ours = mean_column(column, list(datasets.values()))
        if not ours.is_paper and not ours.is_measured:
            self.columns.append(paper_column(column))
        self.columns.append(ours)
        for row in self.rows:
            cells = {}
            for name, data in datasets.items():
                cells[name] = (data, self._task_cell(row, data))
            # The mean of groups, each of which is the mean of its cells.
            groups: list[tuple[tuple[DataColumn, Cell], ...]] = []
            means = []
            for group in column.parts:
                groups.append(tuple(cells[name] for name in group))
                means.append(_mean_cell([cells[name][1] for name in group]))
            self.cells[row, ours.key] = replace(_mean_cell(means), groups=tuple(groups))


# -- which runs are of one data set ----------------------------------------------------------------


def _generators(runs: Iterable[Record], of_text: str | None) -> dict[str, str | None]:
    """Task -> the generator whose data count: that of most scored runs; None for real data.

    Until a run is scored no record says what it reads: that of the encoders' text is assumed.
    """
    generators = {}
    for task, task_runs in group_by(runs, lambda run: run.task).items():
        of_scored = [run.synthetic for run in task_runs if is_scored(run)]
        generators[task] = _most_common(of_scored) if of_scored else of_text
    return generators


def _most_common(generators: Sequence[str | None]) -> str | None:
    """The first of those that most runs have."""
    counts = Counter(generators)
    return max(counts, key=counts.__getitem__, default=None)


def _excluded(
    foreign_runs: Iterable[Record], generators: Mapping[str, str | None]
) -> Iterable[str]:
    by_files = group_by(foreign_runs, lambda run: (run.task, run.synthetic))
    order = list(generators)
    for task, generator in sorted(by_files, key=lambda files: order.index(files[0])):
        group = by_files[task, generator]
        files = f"files of {generator}" if generator else "files that no generator wrote"
        rows = ", ".join(dict.fromkeys(run.name for run in group))
        yield (
            f"{task}: {len(group)} run(s) of {rows} are on {files}, the others on"
            f" {generators[task] or 'real ones'}: another data set, in no cell; give it a runs_dir"
            " or scale of its own"
        )


# -- cells -----------------------------------------------------------------------------------------


def _cell(runs: Sequence[Record], metric: str, expected: Iterable[Seeds], note: str = "") -> Cell:
    """Of complete runs of one stage; `expected` are the seeds that there should be."""
    # A complete run may lack this score: it ran before its task computed it.
    scored = [run for run in runs if metric in run.figures]
    having = {seeds_of(run): scored_run(run, metric) for run in scored}
    scores = {seeds_of(run): float(run.figures[metric]) for run in scored}
    num_unscored = len(runs) - len(having)
    lacking = ""
    if num_unscored:
        lacking = f"{num_unscored} run(s) lack {metric}"
        suggestion = nearest(metric, runs[0].figures, cutoff=SAME_KEY)
        if suggestion and not having:
            lacking += f" (did you mean {suggestion!r}?)"
    healthy = {seeds: scores[seeds] for seeds, run in having.items() if not run.is_collapsed}
    missing = tuple(seeds for seeds in expected if seeds not in scores)
    return Cell(
        scores=scores,
        healthy=healthy,
        missing=missing,
        notes=tuple(filter(None, (lacking, note))),
        runs=having,
        num_unscored=num_unscored,
    )


def scored_run(run: Record, metric: str = "") -> ScoredRun:
    data = run.facts.get("data") or {}
    encoder = None if run.stage == "pretrain" else encoder_of(run)
    is_collapsed = bool(run.facts.get("collapsed"))
    tokenizer = data.get("tokenizer", run.facts.get("tokenizer"))
    return ScoredRun(
        folder=run.folder,
        seeds=seeds_of(run),
        encoder=encoder,
        is_collapsed=is_collapsed,
        max_seq_length=data.get("max_seq_length"),
        is_causal=data.get("is_causal"),
        positive_label=class_of(run, metric),
        tokenizer=tokenizer,
        corpus=run.inputs.get("corpus"),
        text=run.facts.get("text"),
    )


def _best_learning_rate(runs: list[Record]) -> tuple[list[Record], str]:
    """(the runs at the best learning rate, which it is); all runs where there is but one.

    The best is by the mean over the seeds that all rates with most seeds have, so that none wins
    by its seeds.
    """
    by_rate: dict[float | None, dict[Seeds, Record]] = {}
    for run in runs:
        by_rate.setdefault(run.learning_rate, {})[seeds_of(run)] = run
    if len(by_rate) < 2:
        return runs, ""

    # A rate with fewer runs than another is out.
    num_seeds = max(map(len, by_rate.values()))
    complete = {rate: group for rate, group in by_rate.items() if len(group) == num_seeds}
    common = set.intersection(*map(set, complete.values()))
    if not common:
        rate = min(complete, key=lambda rate: sorted(complete[rate]))
        note = f"learning rate {rate}, of {len(by_rate)} without a seed in common"
        return list(complete[rate].values()), note

    score = runs[0].scores[runs[0].metric]
    if score.higher_is_better is None:
        raise ValueError(
            f"{runs[0].name} on {runs[0].task} has several learning rates, and it is not declared"
            f" whether a higher {runs[0].metric} is better: report each rate as a row of its own"
        )

    def sum_over_common(rate: float | None) -> float:
        return score.sign * sum(complete[rate][seeds].score or 0.0 for seeds in common)

    rate = max(complete, key=sum_over_common)
    note = f"learning rate {rate}, best of {len(complete)} on {OUR_SPLIT}"
    if len(common) < num_seeds:
        note += f" over {len(common)} of {num_seeds} seeds"
    num_left_out = len(by_rate) - len(complete)
    if num_left_out:
        note += f" ({num_left_out} more with fewer seeds left out)"
    return list(complete[rate].values()), note


def _mean_cell(parts: Sequence[Cell]) -> Cell:
    """A mean for every pair of seeds that all parts have."""
    common = sorted(set.intersection(*(set(cell.scores) for cell in parts)))
    # A mean is healthy where every part of it is.
    healthy = sorted(set.intersection(*(set(cell.healthy) for cell in parts)))
    scores = {}
    for seeds in common:
        scores[seeds] = sum(cell.scores[seeds] for cell in parts) / len(parts)
    seen = set(chain.from_iterable((*cell.scores, *cell.missing) for cell in parts))
    return Cell(
        scores=scores,
        healthy={seeds: scores[seeds] for seeds in healthy},
        missing=tuple(sorted(seen - set(common))),
        is_of_one_encoder=all(cell.is_of_one_encoder for cell in parts),
    )


# -- rows along an arm's pre-training --------------------------------------------------------------


def find_series(experiment: Experiment, runs: Runs) -> list[CheckpointSeries]:
    """Every arm with rows at two or more fractions of its steps that differ in nothing else."""
    series = []
    candidates = _rows_by_line(experiment, runs)
    lines = {key: rows for key, rows in candidates.items() if len(rows) > 1}
    for (arm, settings), rows in lines.items():
        # Of several lines of one arm, each is called by what sets it apart, too.
        of_arm = [others for other_arm, others in lines if other_arm == arm]
        shared = frozenset.intersection(*of_arm)
        apart = [f"{key} {value}" for key, value in sorted(settings - shared)]
        # One floor for the series only where its rows agree on it.
        floors = {row.floor for row in experiment.rows if row.name in rows.values()}
        series.append(
            CheckpointSeries(
                name=", ".join([arm, *apart]),
                arm=arm,
                rows=rows,
                amounts=_amounts(experiment, runs, arm, rows),
                floor=floors.pop() if len(floors) == 1 else None,
            )
        )
    return series


def _rows_by_line(
    experiment: Experiment, runs: Runs
) -> dict[tuple[str, Settings], dict[float, str]]:
    """(arm, what else its rows set) -> fraction of the steps -> row, in the order of the steps."""
    lines: dict[tuple[str, Settings], dict[float, str]] = {}
    # Of a row's runs a complete one, else any, says what the row is.
    complete_first = sorted([*runs.finetune, *runs.evaluate], key=lambda run: not run.is_complete)
    by_row = group_by(complete_first, lambda run: run.name)
    for row in experiment.rows:
        if row.arm is None or row.name not in by_row:
            continue
        run = by_row[row.name][0]
        settings = frozenset(
            (key, str(value)) for key, value in run.row_delta.items() if key not in ("row", POINT)
        )
        fraction = float(run.config.get(POINT, 1.0))
        lines.setdefault((row.arm, settings), {})[fraction] = row.name
    return {key: dict(sorted(rows.items())) for key, rows in lines.items()}


def _amounts(
    experiment: Experiment, runs: Runs, arm: str, fractions: Collection[float]
) -> dict[str, dict[float, float]]:
    """Unit -> fraction -> amount: tokens, and what the claims are measured in."""
    units = {"tokens"} | {claim.measured_in for claim in experiment.claims if claim.measured_in}
    pretrained = [run for run in runs.pretrain if run.name == arm and run.is_complete]
    return {unit: _mean_amounts(pretrained, fractions, unit) for unit in sorted(units)}


def _mean_amounts(
    runs: Iterable[Record], fractions: Iterable[float], unit: str
) -> dict[float, float]:
    """Tokens, FLOPs or seconds after each fraction of an arm's steps, a mean over its runs.

    A fraction that no run knows of is left out.
    """
    values: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    for run in runs:
        for fraction, amount in _amounts_of_run(run, list(values), unit).items():
            values[fraction].append(amount)
    return {fraction: float(np.mean(known)) for fraction, known in values.items() if known}


def _amounts_of_run(run: Record, fractions: Iterable[float], unit: str) -> Mapping[float, float]:
    """FLOPs grow as tokens do: they are read at the tokens of a step."""
    clock = "training_seconds" if unit == "seconds" else "tokens"
    steps = run.facts.get("steps")
    total = run.facts.get(clock)
    amount = run.facts.get("flops") if unit == "flops" else total
    if not steps or not total or not amount:
        return {}
    logged = {}
    for row in read_rows(run.folder / "metrics.csv"):
        logged[row.step] = float(row.seconds if unit == "seconds" else row.tokens)
    # Both ends are known without a log: nothing at step 0, all at the last step.
    amount_of_step = dict(sorted((logged | {0: 0.0, int(steps): float(total)}).items()))

    amounts: dict[float, float] = {}
    for fraction in fractions:
        step = round(fraction * steps)
        # Without a log nothing is known between the ends.
        if len(amount_of_step) > 2 or step in amount_of_step:
            reached = float(np.interp(step, list(amount_of_step), list(amount_of_step.values())))
            amounts[fraction] = amount / total * reached
    return amounts
