"""The table of an experiment: the paper's cells and, apart from them, ours.

A data set that only stands in for the paper's, that is generated, or that is another split than the paper's, is a
column of its own under its own name; the paper's number is never beside it. Where a row was fine-tuned at several
learning rates, the one with the best mean on the development set stands in the table, as the paper selects.
A column may also be a fact of the rows' pre-training (a perplexity) or the mean of other columns (an average).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce

from clozelab.metrics.statistics import estimate
from clozelab.runs.find import Collected, FinetuneRun
from clozelab.verdicts.columns import Cell, DataColumn, Seeds, distance_from_paper, mean_columns, pretraining_columns
from clozelab.verdicts.comparability import Comparability, build_comparability
from clozelab.verdicts.experiment import OUR_SPLIT, Column, Experiment


@dataclass(frozen=True)
class Table:
    experiment: Experiment
    columns: tuple[DataColumn, ...]
    cells: Mapping[tuple[str, str], Cell]
    """(row, key of a data set) -> cell, for every row and every data set."""
    pretrain_seeds: tuple[int, ...]
    finetune_seeds: tuple[int, ...]
    comparability: Comparability = field(default_factory=Comparability)
    strays: tuple[str, ...] = ()
    """Runs that are in no cell because they saw another data set under their task's name."""

    def of_column(self, column: Column) -> list[DataColumn]:
        """The data sets with results that speak for a column of the paper: its own first, of whatever split."""
        mine = [one for one in self.columns if one.column == column and self.has_results(one)]
        return sorted(mine, key=distance_from_paper)

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
    runs, worlds, strays = _of_one_data_set([run for run in collected.finetune if run.row in rows], collected)
    columns = tuple(_data_columns(experiment, runs, worlds))
    pretrain_seeds = tuple(sorted({run.pretrain_seed for run in runs} | {run.seed for run in collected.pretrain}))
    finetune_seeds = tuple(sorted({run.seed for run in runs}))
    expected = [(first, second) for first in pretrain_seeds for second in finetune_seeds]

    def cell_of(row: str, column: DataColumn) -> Cell:
        return _cell([run for run in runs if (run.row, run.task) == (row, column.task)], column, expected)

    cells = {(row, column.key): cell_of(row, column) for row in rows for column in columns}
    own = pretraining_columns(experiment, collected, cells)
    derived = mean_columns(experiment, columns, cells, cell_of)
    ordered = _in_order(experiment, [*columns, *own, *derived])
    rules = build_comparability(experiment, collected)
    return Table(experiment, ordered, cells, pretrain_seeds, finetune_seeds, rules, strays)


def _of_one_data_set(
    runs: list[FinetuneRun], collected: Collected
) -> tuple[list[FinetuneRun], dict[str, str | None], tuple[str, ...]]:
    """(runs that a table may hold side by side, task -> the generated world it is of, what is said of the others).

    Generated files have the official ones' names: a task may have runs on both, and the encoders' world has the cells.
    """
    found: dict[str, dict[str | None, list[FinetuneRun]]] = {}
    for run in runs:
        by_world = found.setdefault(run.task, {})
        if run.is_complete:  # until then no record says what it reads
            by_world.setdefault(collected.world_of(run), []).append(run)
    worlds: dict[str, str | None] = {}
    strays, apart = [], set()
    for task, by_world in found.items():
        worlds[task] = next((one for one in (collected.synthetic, *by_world) if one in by_world), collected.synthetic)
        for world, others in by_world.items():
            if world == worlds[task]:
                continue
            apart |= {run.dir for run in others}
            origin = f"files of {world}" if world else "files that no generator wrote"
            rows = ", ".join(dict.fromkeys(run.row for run in others))
            strays.append(
                f"{task}: {len(others)} run(s) of {rows} are on {origin}, the others on {worlds[task] or 'real ones'}:"
                " another data set, in no cell; give it a runs_dir or scale of its own"
            )
    return [run for run in runs if run.dir not in apart], worlds, tuple(strays)


def _in_order(experiment: Experiment, columns: Iterable[DataColumn]) -> tuple[DataColumn, ...]:
    """In the order of the paper's columns, other tasks last; the sort keeps the order within a column."""
    places = {column.name: place for place, column in enumerate(experiment.columns)}
    return tuple(sorted(columns, key=lambda one: places[one.column.name] if one.column else len(places)))


def _data_columns(
    experiment: Experiment, runs: list[FinetuneRun], worlds: Mapping[str, str | None]
) -> Iterable[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks by name."""
    by_task: dict[str, FinetuneRun] = {}
    for run in sorted(runs, key=lambda run: (run.is_complete, bool(run.baselines))):
        by_task[run.task] = run  # a complete one wins: it knows its metric
    shown: set[tuple[str, str]] = set()
    for column in experiment.columns:
        if not column.is_task:
            continue
        mine = [task for task, run in by_task.items() if _belongs(run, column, shown)]
        made = [_data_column(by_task[task], column, worlds[task], shown) for task in sorted(mine)]
        if not any(one.is_paper for one in made):
            yield DataColumn(column.name, f"paper:{column.name}", column.metric, column, is_paper=True)
        yield from sorted(made, key=lambda one: one.task != column.task)
    for task in sorted(set(by_task) - {task for task, _ in shown}):
        yield _data_column(by_task[task], None, worlds[task], shown)


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
