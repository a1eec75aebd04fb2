"""The table of an experiment: the paper's cells and, apart from them, ours.

A data set that only stands in for the paper's, that is generated, or that is another split than the paper's, is a
column of its own under its own name; the paper's number is never beside it. Where a row was fine-tuned at several
learning rates, the one with the best mean on the development set stands in the table, as the paper selects.
A column may also be a fact of the rows' pre-training (a perplexity) or the mean of other columns (an average).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from clozelab.ledger.collect import Collected, FinetuneRun, PretrainRun
from clozelab.ledger.reporting.comparability import Comparability, build_comparability
from clozelab.ledger.reporting.experiment import OUR_SPLIT, PERCENT, Column, Experiment, Part
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
    def is_collapsed(self) -> bool:
        """Whether no run of it read its input. A mean over tasks is not: only some of its parts may be."""
        return bool(self.runs) and self.num_collapsed == len(self.scores)


EMPTY = Cell({}, None, None, 0, ())


@dataclass(frozen=True)
class Table:
    experiment: Experiment
    columns: tuple[DataColumn, ...]
    cells: Mapping[tuple[str, str], Cell]
    """(row, key of a data set) -> cell, for every row and every data set."""
    pretrain_seeds: tuple[int, ...]
    finetune_seeds: tuple[int, ...]
    comparability: Comparability = field(default_factory=Comparability)

    def of_column(self, column: Column) -> list[DataColumn]:
        """The data sets with results that speak for a column of the paper: its own first, of whatever split."""
        mine = [one for one in self.columns if one.column == column and self.has_results(one)]
        return sorted(mine, key=_rank)

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

    def cell_of(row: str, column: DataColumn) -> Cell:
        return _cell([run for run in runs if (run.row, run.task) == (row, column.task)], column, expected)

    cells = {(row, column.key): cell_of(row, column) for row in rows for column in columns}
    own = _pretraining_columns(experiment, collected, cells)
    derived = _mean_columns(experiment, columns, cells, cell_of)
    ordered = _in_order(experiment, [*columns, *own, *derived])
    rules = build_comparability(experiment, collected)
    return Table(experiment, ordered, cells, pretrain_seeds, finetune_seeds, rules)


def _in_order(experiment: Experiment, columns: Iterable[DataColumn]) -> tuple[DataColumn, ...]:
    """In the order of the paper's columns, other tasks last; the sort keeps the order within a column."""
    places = {column.name: place for place, column in enumerate(experiment.columns)}
    return tuple(sorted(columns, key=lambda one: places[one.column.name] if one.column else len(places)))


def _pretraining_columns(
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


def _mean_columns(
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
    best = min(mine, key=_rank, default=None)
    return replace(best, metric=part.metric) if best and part.metric else best


def _rank(column: DataColumn) -> tuple[bool, bool]:
    """The paper's own data set first, its other split next, a stand-in last."""
    return not column.is_paper, not column.is_other_split


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


def _data_columns(experiment: Experiment, runs: list[FinetuneRun], synthetic: str | None) -> Iterable[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks by name."""
    by_task: dict[str, FinetuneRun] = {}
    for run in sorted(runs, key=lambda run: (run.is_complete, bool(run.baselines))):
        by_task[run.task] = run  # a complete one wins: it knows its metric
    shown: set[tuple[str, str]] = set()
    for column in experiment.columns:
        if not column.is_task:
            continue
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
    # The task's title is about its own score; another one goes by its column's name.
    name = column.name if column is not None and run.metric and metric != run.metric else ""
    heading = f"{run.task} {name}" if name else run.title
    role = ""
    if synthetic:
        heading, role = f"{synthetic} {name or run.title}", f"synthetic, for {column.name}" if column else "synthetic"
    elif is_other_split and column is not None:
        heading, role = f"{column.name} ({OUR_SPLIT})", f"{OUR_SPLIT}; the paper's numbers are on {column.split}"
    elif is_same_data and column is not None:
        heading = column.name
    elif column is not None:
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
        num_examples=None if _is_of_another_file(run, metric) else run.num_examples,
        role=role,
        task=run.task,
        baseline=_best_baseline(run, metric),
        trained_on=_part_of_training(run),
        is_other_split=is_other_split,
        tasks=(run.task,),
    )


def _part_of_training(run: FinetuneRun) -> str:
    data = run.state.get("facts", {}).get("data", {})
    used, available = data.get("train_examples"), data.get("train_examples_available")
    return f"{used:,} of {available:,}" if used and available and used < available else ""


def _is_of_another_file(run: FinetuneRun, metric: str) -> bool:
    """Whether a score is over one of the task's further validation files, such as MNLI's mismatched one."""
    data = run.state.get("config_resolved", {}).get("task", {}).get("data", {})
    names = data.get("extra_validation_files") or {}
    return metric.rpartition("/")[2].startswith(tuple(f"{name}_" for name in names))


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
        healthy=healthy,
        runs={(run.pretrain_seed, run.seed): run for run in scored},
        num_unscored=len(complete) - len(scored),
    )


def _best_learning_rate(runs: list[FinetuneRun]) -> tuple[list[FinetuneRun], str]:
    """(the runs at one learning rate, which one it is), all runs where there is but one.

    Chosen by the mean of each task's own selecting score, among the rates with most seeds and over the seeds that all
    of these have: a rate must not win by the seeds that it happens to have.
    """
    by_rate: dict[float | None, dict[Seeds, FinetuneRun]] = {}
    for run in runs:
        by_rate.setdefault(run.learning_rate, {})[run.pretrain_seed, run.seed] = run
    if len(by_rate) < 2:
        return runs, ""
    most = max(map(len, by_rate.values()))
    whole = {rate: mine for rate, mine in by_rate.items() if len(mine) == most}
    common = reduce(lambda seeds, mine: seeds & mine.keys(), whole.values(), set(next(iter(whole.values()))))
    if not common:
        rate = min(whole, key=lambda rate: sorted(whole[rate]))
        return list(whole[rate].values()), f"learning rate {rate}, of {len(by_rate)} without a seed in common"
    rate = max(whole, key=lambda rate: sum(whole[rate][seeds].scores[whole[rate][seeds].metric] for seeds in common))
    note = f"learning rate {rate}, best of {len(whole)} on {OUR_SPLIT}"
    note += f" over {len(common)} of {most} seeds" if len(common) < most else ""
    left = len(by_rate) - len(whole)
    return list(whole[rate].values()), note + (f" ({left} more with fewer seeds left out)" if left else "")
