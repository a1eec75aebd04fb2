"""The table of an experiment: the paper's cells and, apart from them, ours, made from records of
runs.

A data set that only stands in for the paper's, that is generated, or that is another split than the
paper's, is a column of its own under its own name; the paper's number is never beside it. Of
several learning rates of a row, the one with the best mean on the development set stands in the
table, as the paper selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from clozelab.metrics.statistics import Estimate, estimate
from clozelab.runs.record import grouped
from clozelab.text.did_you_mean import nearest
from clozelab.training.measuring import read_rows
from clozelab.verdicts.experiment import OUR_SPLIT, PERCENT, Column, Experiment
from clozelab.verdicts.versions import Outdated, find_outdated, older_runs

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

POINT = "encoder_fraction"
# the role of what `clozelab evaluate` measures, where there is a paper
OURS = "ours, not in the paper"
# how much alike two keys have to be that both begin with "validation/", to be taken for one
SAME_KEY = 0.85
Worlds = dict[str, str | None]  # task -> the generator of its data; None: real data
# (pre-training seed, fine-tuning seed); of a pre-training run (its seed, 0)
Seeds = tuple[int, int]


@dataclass(frozen=True)
class DataColumn:
    """A data set in the table; scores are in percent."""

    heading: str
    key: str  # what its cells are filed under
    metric: str  # a key of scores.json, or of a pre-training run's facts
    column: Column | None  # the paper's column that it is, or stands in for
    is_paper: bool  # the paper's own data set, on the paper's split
    role: str = ""  # what it is where it is not: "stand-in for ...", "synthetic, for ..."
    task: str = ""  # whose runs it holds; several columns may show different scores of one task
    # of all its runs: one, several for a mean, none for a fact of pre-training
    tasks: tuple[str, ...] = ()
    majority: float | None = None  # the score of always answering the most frequent label
    # the best simple method on these examples, and its score
    baseline: tuple[str, float] | None = None
    num_examples: int | None = None  # that a score is over, where known
    trained_on: str = ""  # where runs saw only a part of the training examples: "10,000 of 67,349"
    # the paper's data set, but not the split that the paper's numbers are on
    is_other_split: bool = False

    @property
    def unit(self) -> str:
        return self.column.unit if self.column else PERCENT

    @property
    def trivial(self) -> float | None:
        """The best score without any model: of the most frequent label, or of a simple method."""
        return max(
            (one for one in (self.majority, *(self.baseline or ())[1:]) if one is not None),
            default=None,
        )

    @property
    def is_pretraining(self) -> bool:
        """Whether its cells are facts of the rows' pre-training."""
        return self.column is not None and self.column.is_pretraining

    @property
    def is_measured(self) -> bool:  # its cells are scores of evaluations
        return self.column is not None and self.column.is_measured

    @property
    def decimals(self) -> int:
        """How many are shown: a perplexity of 3.99 against 3.54 is what the paper argues with; bits
        differ by less.
        """
        return 1 if self.unit == PERCENT else 2 + self.unit.startswith("bits")


@dataclass(frozen=True)
class Cell:
    scores: Mapping[Seeds, float] = field(default_factory=dict)
    healthy: Mapping[Seeds, float] = field(default_factory=dict)  # without those of collapsed runs
    missing: tuple[Seeds, ...] = ()  # that other cells have and this one has not
    note: str = ""  # what sets it apart from other cells
    # behind the scores; empty for a mean of columns
    runs: Mapping[Seeds, Record] = field(default_factory=dict)
    # a mean's parts, averaged first within a group
    groups: tuple[tuple[tuple[DataColumn, Cell], ...], ...] = ()
    num_unscored: int = 0  # complete runs that have no such score

    @property
    def estimate(self) -> Estimate | None:
        return estimate(self.scores) if self.scores else None

    @property
    def num_collapsed(self) -> int:
        return len(self.scores) - len(self.healthy)

    @property
    def without_collapsed(self) -> Estimate | None:
        """Only where some runs, and not all, have collapsed."""
        return estimate(self.healthy) if self.num_collapsed and self.healthy else None

    @property
    def parts(self) -> list[Cell]:
        """The cells that a mean is of; of any other the cell itself."""
        return [part for group in self.groups for _, part in group] or [self]

    @property
    def is_collapsed(self) -> bool:
        """Whether no run of it read its input. A mean over tasks is not: only some of its parts may
        be.
        """
        return bool(self.runs) and self.num_collapsed == len(self.scores)


@dataclass(frozen=True)
class Table:
    """Every cell of an experiment: (row, key of a data set) -> cell; complete runs by arm and by
    row.
    """

    experiment: Experiment
    runs: Runs
    columns: tuple[DataColumn, ...]
    cells: Mapping[tuple[str, str], Cell]
    # which runs are in no cell: they saw another data set under their task's name
    strays: tuple[str, ...] = ()
    # in no cell: newer results versions are beside
    outdated: Outdated = field(default_factory=dict)

    @cached_property
    def trained(self) -> dict[str, list[Record]]:
        return grouped(run for run in self.current.pretrain if run.is_complete)

    @cached_property
    def tuned(self) -> dict[str, list[Record]]:
        return grouped(run for run in self.current.finetune if run.is_complete)

    @cached_property
    def measured(self) -> dict[str, list[Record]]:
        return grouped(run for run in self.current.evaluate if run.is_complete)

    @cached_property
    def current(self) -> Runs:
        """The runs that may be compared: all but those that are outdated."""
        return without(self.runs, self.outdated)

    def runs_on(self, row: str, task: str) -> list[Record]:
        """A row's complete runs on a task, or by a measure."""
        return [
            run
            for run in (*self.tuned.get(row, ()), *self.measured.get(row, ()))
            if run.task == task
        ]

    @property
    def pretrain_seeds(self) -> tuple[int, ...]:
        tuned = {run.pretrain_seed for run in self.current.finetune if run.name in self.rows}
        return tuple(sorted(tuned | {run.seed for run in self.current.pretrain}))

    @property
    def rows(self) -> list[str]:
        return [row.name for row in self.experiment.rows]

    @property
    def with_results(self) -> list[DataColumn]:
        return [column for column in self.columns if self.has_results(column)]

    def has_results(self, column: DataColumn) -> bool:
        return any(self.cells[row, column.key].scores for row in self.rows)

    def below_floor(self, row: str, column: DataColumn) -> str:
        """The floor that a row with pre-training lies below on a data set, in words; empty where it
        does not.

        It is the row of the same head on random weights; where that has no score, always the most
        frequent label."""
        about = next(one for one in self.experiment.rows if one.name == row)
        own = self.cells[row, column.key].estimate
        if about.arm is None or own is None or not column.tasks:
            return ""
        floor = self.cells[about.floor, column.key].estimate if about.floor else None
        least = floor.mean if floor else column.majority
        what = "the same head on random weights" if floor else "one fixed answer"
        gain = 0.0 if least is None else own.mean - least
        if (-gain if column.column and column.column.falls else gain) >= 0.0:
            return ""
        return f"{about.label} has {own.mean:.1f} on {column.heading}, where {what} has {least:.1f}"

    def paper_value(self, row: str, column: DataColumn) -> float | None:
        """The paper's number; None where it has none, and for any data set but its own."""
        return (
            self.experiment.printed(row, column.column.name)
            if column.is_paper and column.column
            else None
        )


def is_scored(run: Record) -> bool:
    return run.is_complete and bool(run.values)


def stand_in_for(run: Record) -> str | None:
    """The column or benchmark that the run's task stands in for, by its own configuration."""
    return run.facts.get("stand_in_for") or (run.config.get("task") or {}).get("stand_in_for")


def without(runs: Runs, outdated: Outdated) -> Runs:
    if not outdated:
        return runs
    return replace(runs, records=[run for run in runs.records if run.folder not in outdated])


def build_table(experiment: Experiment, runs: Runs) -> Table:
    """Arrange the runs of the experiment's rows; each column is of one results version."""
    outdated = find_outdated(runs.runs, experiment.free_keys)
    table = _arrange(experiment, without(runs, outdated))
    if not outdated:
        return table

    cells = dict(table.cells)
    for column in table.columns:
        for row in table.rows:
            cell = cells[row, column.key]
            left_out = older_runs(outdated, runs.runs, row, column.task)
            note = "; ".join(filter(None, (cell.note, left_out)))
            cells[row, column.key] = replace(cell, note=note)
    return replace(table, runs=runs, cells=cells, outdated=outdated)


def _arrange(experiment: Experiment, runs: Runs) -> Table:
    rows = [row.name for row in experiment.rows]
    measures = {
        task for one in experiment.columns if one.is_measured for task in (one.task, *one.stand_ins)
    }
    of_tasks = [*runs.finetune, *(run for run in runs.evaluate if run.task in measures)]
    mine, worlds, strays = _of_one_data_set(
        [run for run in of_tasks if run.name in rows], runs.synthetic
    )
    firsts = sorted({run.pretrain_seed for run in mine} | {run.seed for run in runs.pretrain})
    tuning_seeds = {run.seed for run in mine if run.stage == "finetune"}

    scored = grouped(
        filter(is_scored, mine), lambda run: (run.name, run.task, run.stage == "evaluate")
    )

    def cell_of(row: str, column: DataColumn) -> Cell:
        chosen, note = _best_learning_rate(scored.get((row, column.task, column.is_measured), []))
        seeds = (
            {run.seed for run in of_tasks if run.task == column.task}
            if column.is_measured
            else tuning_seeds
        )
        return _cell(chosen, column.metric, product(firsts, sorted(seeds)), note)

    columns = list(_data_columns(experiment, mine, worlds))
    cells = {(row, one.key): cell_of(row, one) for row in rows for one in columns}
    for column in (one for one in experiment.columns if one.is_pretraining):
        # Held-out text is ours, so the paper's number does not stand beside it.
        heading, role = column.name, "our held-out text"
        if runs.synthetic:
            heading, role = f"{runs.synthetic} {column.name}", f"synthetic, for {column.name}"
        ours = DataColumn(
            heading, f"pretrain:{column.name}", column.metric, column, is_paper=False, role=role
        )
        for one in experiment.rows:
            # of an encoder on the way no such figure is known
            at_end = float(one.delta.get(POINT, 1.0)) == 1.0
            trained = [run for run in runs.pretrain if run.name == one.arm and at_end]
            complete = [run for run in trained if run.is_complete]
            cells[one.name, ours.key] = _cell(complete, column.metric, map(seeds_of, trained))
        has_results = any(cells[row, ours.key].scores for row in rows)
        columns += [_of_paper(column), *([ours] if has_results else [])]
    filled = [
        one
        for one in columns
        if any((row, one.key) in cells and cells[row, one.key].scores for row in rows)
    ]
    for column in (one for one in experiment.columns if one.parts):
        found = {
            part: speakers(part.column, filled)[:1] for group in column.parts for part in group
        }
        if not all(found.values()):  # a mean over fewer is another number
            columns.append(_of_paper(column))
            continue
        known = {
            part: replace(one, metric=part.metric or one.metric) for part, (one,) in found.items()
        }
        ours = _mean_column(column, list(known.values()))
        columns += [ours] if ours.is_paper else [_of_paper(column), ours]
        for row in rows:
            groups = tuple(
                tuple((known[part], cell_of(row, known[part])) for part in group)
                for group in column.parts
            )
            whole = _mean_cell([_mean_cell([cell for _, cell in group]) for group in groups])
            cells[row, ours.key] = replace(whole, groups=groups)
    # In the order of the paper's columns, other tasks last; the sort keeps the order within a
    # column.
    order = [column.name for column in experiment.columns]
    columns.sort(key=lambda one: order.index(one.column.name) if one.column else len(order))
    none = {(row, one.key): Cell() for row in rows for one in columns}
    return Table(experiment, runs, tuple(columns), none | cells, strays)


def _of_one_data_set(
    runs: Sequence[Record], synthetic: str | None
) -> tuple[list[Record], Worlds, tuple[str, ...]]:
    """(runs for one table, task -> its generated world, what is said of the others); the encoders'
    world counts.
    """
    worlds, strays, apart = Worlds(), [], set()
    for task in dict.fromkeys(run.task for run in runs):
        # until then no record says what it reads
        scored = [run for run in runs if run.task == task and is_scored(run)]
        found = dict.fromkeys(run.synthetic for run in scored)
        worlds[task] = next((one for one in (synthetic, *found) if one in found), synthetic)
        for world in (one for one in found if one != worlds[task]):
            others = [run for run in scored if run.synthetic == world]
            apart |= {run.folder for run in others}
            strays.append(
                f"{task}: {len(others)} run(s) of {', '.join(grouped(others))} are on"
                f" {f'files of {world}' if world else 'files that no generator wrote'}, the others"
                f" on {worlds[task] or 'real ones'}: another data set, in no cell; give it a"
                " runs_dir or scale of its own"
            )
    return [run for run in runs if run.folder not in apart], worlds, tuple(strays)


def _of_paper(column: Column) -> DataColumn:
    return DataColumn(column.name, f"paper:{column.name}", column.metric, column, is_paper=True)


def _data_columns(
    experiment: Experiment, runs: Sequence[Record], worlds: Worlds
) -> Iterable[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks
    by name.
    """
    # The run that a task's columns are described by: a complete one knows its scores.
    ordered = sorted(
        runs, key=lambda run: (is_scored(run), any(one.baselines for one in run.scores.values()))
    )
    by_task = {run.task: run for run in ordered}
    # task -> its scores that have a column: it may fill several, each with another
    shown: dict[str, set[str]] = {}
    for column in (one for one in experiment.columns if one.task):
        made = []
        for task in sorted(by_task, key=lambda task: (task != column.task, task)):
            # Of a measure some runs lack a score: no causal encoder reads from the right.
            having = (
                one for one in ordered[::-1] if one.task == task and column.metric in one.values
            )
            run = next(having, by_task[task])
            is_free = (used := shown.get(task)) is None or (
                column.metric in run.values and column.metric not in used
            )
            is_of_stage = (run.stage == "evaluate") == column.is_measured
            if is_of_stage and is_free and column.accepts(task, stand_in_for(run)):
                made.append(_data_column(run, column, worlds[task], shown.setdefault(task, set())))
        if not experiment.has_paper:
            made = [replace(one, role=one.role.removeprefix(OURS)) for one in made]
        is_ours = column.is_measured or any(one.is_paper for one in made)
        yield from made if is_ours else [_of_paper(column), *made]
    for task in sorted(by_task.keys() - shown):
        yield _data_column(by_task[task], None, worlds[task], set())


def _data_column(
    run: Record, column: Column | None, synthetic: str | None, shown: set[str]
) -> DataColumn:
    """Generated data is never the paper's data set, whatever its name. Adds its score to the task's
    `shown` ones.
    """
    is_measured = column is not None and column.is_measured
    is_real = not is_measured and not synthetic and not stand_in_for(run)
    is_same_data = is_real and column is not None and run.task == column.task
    is_other_split = is_same_data and column is not None and column.split != OUR_SPLIT
    metric = own = run.metric if run.values else ""
    if (
        column is not None
        and column.metric
        and (is_same_data or is_measured or column.metric in run.values or not own)
    ):
        metric = column.metric
    # The task's title is about its own score; another one goes by its column's name.
    name = column.name if column is not None and own and (metric != own or is_measured) else ""
    heading, role = (f"{run.task} {name}" if name else run.title), ""
    if synthetic:
        heading, role = (
            f"{synthetic} {name or run.title}",
            f"synthetic, for {column.name}" if column else "synthetic",
        )
    elif is_measured and column is not None and run.task == column.task:
        heading, role = column.name, OURS
    elif is_other_split and column is not None:
        heading, role = _on_other_split(column)
    elif column is not None:
        heading, role = (
            (column.name, "") if is_same_data else (heading, f"stand-in for {column.name}")
        )
    key = f"{run.task}:{metric}" if shown else run.task
    shown.add(metric)
    score, data = run.scores.get(metric), run.facts.get("data") or {}
    used, available = data.get("train_examples"), data.get("train_examples_available")
    # A score over one of the task's further validation files, such as MNLI's mismatched one, is of
    # other examples.
    files = ((run.config.get("task") or {}).get("data") or {}).get("extra_validation_files") or {}
    is_of_another_file = metric.rpartition("/")[2].startswith(tuple(f"{one}_" for one in files))
    return DataColumn(
        heading=heading,
        key=key,
        metric=metric,
        column=column,
        role=role,
        task=run.task,
        tasks=(run.task,),
        is_paper=is_same_data and not is_other_split,
        is_other_split=is_other_split,
        majority=score.majority if score and metric == own else None,
        baseline=(
            max(score.baselines.items(), key=lambda one: one[1], default=None) if score else None
        ),
        num_examples=None if is_of_another_file else run.facts.get("num_examples"),
        trained_on=f"{used:,} of {available:,}" if used and available and used < available else "",
    )


def _on_other_split(column: Column) -> tuple[str, str]:
    return f"{column.name} ({OUR_SPLIT})", f"{OUR_SPLIT}; the paper's numbers are on {column.split}"


def _cell(runs: Sequence[Record], metric: str, expected: Iterable[Seeds], note: str = "") -> Cell:
    """Of complete runs of one stage; `expected` are the seeds that there should be."""
    found = {seeds_of(run): run for run in runs if metric in run.figures}
    scores = {seeds: float(run.figures[metric]) for seeds, run in found.items()}
    num_unscored = len(runs) - len(found)
    lacking = f"{num_unscored} run(s) lack {metric}" if num_unscored else ""
    if runs and not found and (meant := nearest(metric, runs[0].figures, cutoff=SAME_KEY)):
        lacking += f" (did you mean {meant!r}?)"
    return Cell(
        scores=scores,
        healthy={
            seeds: scores[seeds] for seeds, run in found.items() if not run.facts.get("collapsed")
        },
        missing=tuple(seeds for seeds in expected if seeds not in scores),
        note="; ".join(filter(None, (lacking, note))),
        runs=found,
        num_unscored=num_unscored,
    )


def seeds_of(run: Record) -> Seeds:
    return (run.seed, 0) if run.stage == "pretrain" else (run.pretrain_seed, run.seed)


def _best_learning_rate(runs: list[Record]) -> tuple[list[Record], str]:
    """(the runs at the best learning rate, which it is), all where there is but one: by the mean
    over the seeds that all rates with most seeds have, so that none wins by its seeds."""
    rates = grouped(runs, attrgetter("learning_rate"))
    by_rate = {rate: {seeds_of(run): run for run in mine} for rate, mine in rates.items()}
    if len(by_rate) < 2:
        return runs, ""
    most = max(map(len, by_rate.values()))
    whole = {rate: mine for rate, mine in by_rate.items() if len(mine) == most}
    common = set.intersection(*(set(mine) for mine in whole.values()))
    if not common:
        rate = min(whole, key=lambda rate: sorted(whole[rate]))
        return (
            list(whole[rate].values()),
            f"learning rate {rate}, of {len(by_rate)} without a seed in common",
        )
    rate = max(whole, key=lambda rate: sum(whole[rate][seeds].score or 0.0 for seeds in common))
    note = f"learning rate {rate}, best of {len(whole)} on {OUR_SPLIT}"
    note += f" over {len(common)} of {most} seeds" if len(common) < most else ""
    left = len(by_rate) - len(whole)
    return list(whole[rate].values()), note + (
        f" ({left} more with fewer seeds left out)" if left else ""
    )


def speakers(name: str, columns: Iterable[DataColumn]) -> list[DataColumn]:
    """Those that speak for a column of the paper: its own data set first, its other split next,
    stand-ins last.
    """
    mine = [one for one in columns if one.column and one.column.name == name]
    return sorted(mine, key=lambda one: (not one.is_paper, not one.is_other_split))


def _mean_column(column: Column, parts: Sequence[DataColumn]) -> DataColumn:
    others = [part.heading for part in parts if not part.is_paper and not part.is_other_split]
    is_other_split = column.split != OUR_SPLIT or any(part.is_other_split for part in parts)
    heading, role = _on_other_split(column) if is_other_split else (column.name, "")
    if any(part.role.startswith("synthetic") for part in parts):
        heading, role = f"synthetic {column.name}", f"synthetic, for {column.name}"
    elif others:
        heading, role = (
            f"{column.name} with stand-ins",
            f"stand-in for {column.name}: {', '.join(others)}",
        )
    tasks = tuple(dict.fromkeys(part.task for part in parts))
    split = is_other_split and not others
    return DataColumn(
        heading,
        f"mean:{column.name}",
        "",
        column,
        not role,
        role,
        tasks=tasks,
        is_other_split=split,
    )


def _mean_cell(parts: Sequence[Cell]) -> Cell:
    """A mean for every pair of seeds that all parts have."""
    common = sorted(set.intersection(*(set(part.scores) for part in parts)))
    healthy = sorted(set.intersection(*(set(part.healthy) for part in parts)))
    scores = {seeds: sum(part.scores[seeds] for part in parts) / len(parts) for seeds in common}
    missing = {seeds for part in parts for seeds in (*part.scores, *part.missing)} - set(common)
    return Cell(scores, {seeds: scores[seeds] for seeds in healthy}, tuple(sorted(missing)))


@dataclass(frozen=True)
class Line:
    """The rows along one arm's pre-training."""

    name: str
    arm: str
    # fraction of the steps -> row, in the order of the steps; two or more
    rows: Mapping[float, str]
    # fraction -> seen, a mean over seeds; empty where not known of every fraction
    tokens: Mapping[float, float]
    floor: str | None  # the row without pre-training that all of them name, where the line begins


def find_lines(experiment: Experiment, runs: Runs) -> list[Line]:
    """Every arm with rows at two or more fractions of its steps, and nothing else that they set
    differently.
    """
    found: dict[tuple[str, frozenset[tuple[str, str]]], dict[float, str]] = {}
    tuned = grouped([*runs.finetune, *runs.evaluate])
    for row in experiment.rows:
        if row.arm is not None and row.name in tuned:
            run = tuned[row.name][0]
            others = frozenset(
                (key, str(value))
                for key, value in run.row_delta.items()
                if key not in ("row", POINT)
            )
            found.setdefault((row.arm, others), {})[float(run.config.get(POINT, 1.0))] = row.name
    long = {key: dict(sorted(rows.items())) for key, rows in found.items() if len(rows) > 1}
    lines = []
    for (arm, others), rows in long.items():
        # Of several lines of one arm, each is called by what sets it apart, too.
        shared = frozenset.intersection(*(one for other, one in long if other == arm))
        name = ", ".join([arm, *(f"{key} {value}" for key, value in sorted(others - shared))])
        floors = {row.floor for row in experiment.rows if row.name in rows.values()}
        tokens = reached(runs, arm, list(rows))
        lines.append(Line(name, arm, rows, tokens, floors.pop() if len(floors) == 1 else None))
    return lines


def reached(
    runs: Runs, arm: str, fractions: Sequence[float], unit: str = "tokens"
) -> dict[float, float]:
    """Tokens, FLOPs (as tokens are) or seconds after each fraction of an arm's steps, a mean; empty
    where not known.
    """
    found: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    clock = "training_seconds" if unit == "seconds" else "tokens"
    for run in (one for one in runs.pretrain if one.name == arm and one.is_complete):
        steps, total = run.facts.get("steps"), run.facts.get(clock)
        if (
            not steps
            or not total
            or not (amount := run.facts.get("flops") if unit == "flops" else total)
        ):
            continue
        rows = read_rows(run.folder / "metrics.csv")
        logged = {row.step: float(row.seconds if unit == "seconds" else row.tokens) for row in rows}
        known = dict(sorted((logged | {0: 0.0, int(steps): float(total)}).items()))
        for fraction, values in found.items():
            step = round(fraction * steps)
            if len(known) > 2 or step in known:
                values.append(
                    amount / total * float(np.interp(step, list(known), list(known.values())))
                )
    return (
        {key: float(np.mean(values)) for key, values in found.items()}
        if all(found.values())
        else {}
    )
