"""`clozelab explain-cell EXPERIMENT ROW COLUMN`: the runs behind a number of the table, and its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from scipy import stats

from clozelab.metrics.statistics import ONE_RUN, PRETRAINING_SEEDS
from clozelab.planning.steps import runs_root, sweep_names
from clozelab.runs.find import find
from clozelab.runs.fingerprint import SEED_KEYS, flatten
from clozelab.runs.record import Record
from clozelab.suggestions import distinct, hint, percent
from clozelab.terminal import Heading, make_console, make_table, parse, say, wants_help
from clozelab.verdicts.comparability import MAY_DIFFER
from clozelab.verdicts.experiment import PERCENT, Experiment, find_experiment, load_experiment
from clozelab.verdicts.table import Cell, DataColumn, Seeds, Table, build_table, is_scored

HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, seeds, scores, commit, versions, fingerprints; how the
mean and its interval come about; what sets the row apart from the others; the command that makes each run again.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task (qnli_derived) or its title"""
NONE = "(none)"


def main(words: Sequence[str]) -> int:
    """Print the explanation; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("explain-cell", words, names=(3, 3), keys=("scale", "runs_dir"))
    folder = find_experiment(said.names[0])
    overrides = [f"{key}={value}" for key, value in said.values.items()]
    root, scale = runs_root(folder, overrides, sweep_names(folder)[0])
    experiment, runs = load_experiment(folder), find(root)
    if not runs.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table, row = build_table(experiment, runs), find_row(experiment, said.names[1])
    console = make_console()
    for column in find_columns(table, said.names[2]):
        found = explain(table, row, column)
        say(console, f"{experiment.label(row)} on {column.heading}: {value_words(found)}", style="bold")
        for line in filter(None, (column.role, found.cell.note)):
            say(console, line, style="yellow")
        show(found, console)
        show_commands(found, console)
    return 0


@dataclass(frozen=True)
class Listed:
    """A run of a cell and how it counts there.

    Attributes:
        score: in the column's unit; None where the run has none.
        why_not: empty where it is in the mean.
        part: the column of a mean that it is in; empty for any other cell. A run may be in several.
    """

    run: Record
    score: float | None
    why_not: str
    part: str = ""


@dataclass(frozen=True)
class Explanation:
    """One row on one data set.

    Attributes:
        runs: of the row: on the task, on the tasks of a mean, or the pre-training runs where the column is their fact.
        encoders: the pre-training runs behind fine-tuning runs.
        arithmetic: how the mean and its interval come about, line by line.
        apart: (key, this row's value, other rows' values) of what differs between the rows of this column.
    """

    column: DataColumn
    cell: Cell
    paper: float | None
    runs: list[Listed]
    encoders: list[Record]
    arithmetic: list[str]
    apart: list[tuple[str, str, str]]


def find_row(experiment: Experiment, name: str) -> str:
    """The name of a row, from its name or its label.

    Raises:
        ValueError: there is none; names the nearest.
    """
    for row in experiment.rows:
        if name in (row.name, row.label):
            return row.name
    raise ValueError(f"no row {name!r}; {hint(name, [row.name for row in experiment.rows])}")


def find_columns(table: Table, name: str) -> list[DataColumn]:
    """The data sets with results that a name means: a task, a heading, or a column of the paper with its stand-ins.

    Raises:
        ValueError: there is none, or it has no run.
    """
    exact = [one for one in table.columns if name in (one.key, one.task, one.heading)]
    by_paper = [one for one in table.columns if one.column is not None and one.column.name == name]
    for found in (exact, by_paper):
        if with_results := [one for one in found if table.has_results(one)]:
            return with_results
    papers = [one.column.name for one in table.with_results if one.column is not None]
    names = [key for one in table.with_results for key in (one.task, one.heading) if key]
    known = list(dict.fromkeys([*papers, *names]))
    if exact or by_paper:
        raise ValueError(f"column {name!r} has no run; with runs there are: {', '.join(known) or 'none'}")
    raise ValueError(f"no column {name!r}; {hint(name, known)}")


def explain(table: Table, row: str, column: DataColumn) -> Explanation:
    """Take a cell apart."""
    cell = table.cells[row, column.key]
    if column.is_pretraining:
        runs = _pretraining(table, row, column)
    else:
        runs = [one for part, its_cell in _parts(cell, column) for one in _of_task(table, row, part, its_cell, cell)]
    tuned = [one.run for one in runs if one.run.stage == "finetune"]
    arms = {str(run.config.get("encoder_arm")) for run in tuned}
    seeds = {run.pretrain_seed for run in tuned}
    encoders = [run for run in table.runs.pretrain if run.name in arms and run.seed in seeds]
    paper = table.paper_value(row, column)
    return Explanation(column, cell, paper, runs, encoders, arithmetic(cell), _apart(table, row, column))


def _parts(cell: Cell, column: DataColumn) -> list[tuple[DataColumn, Cell]]:
    """The columns of single scores that a cell is made of: its own, or a mean's parts."""
    return [part for group in cell.groups for part in group] or [(column, cell)]


def _pretraining(table: Table, row: str, column: DataColumn) -> list[Listed]:
    """The row's pre-training runs, with the fact that the column shows."""
    arm = next(one.arm for one in table.experiment.rows if one.name == row)
    runs = sorted((run for run in table.runs.pretrain if run.name == arm), key=lambda run: run.seed)
    listed = []
    for run in runs:
        value = run.facts.get(column.metric)
        why = _unfinished(run) or ("" if value is not None else f"has no {column.metric}")
        listed.append(Listed(run, None if value is None else float(value), why))
    return listed


def _of_task(table: Table, row: str, column: DataColumn, cell: Cell, whole: Cell) -> list[Listed]:
    """The row's runs on a column's task; `whole` is the mean that they go into, or the cell itself."""
    mine = [run for run in table.runs.finetune if (run.name, run.task) == (row, column.task)]
    part = _part_name(column) if whole.groups else ""
    listed = []
    for run in sorted(mine, key=lambda run: (run.pretrain_seed, run.seed, run.learning_rate or 0.0)):
        why = _why_not(run, cell, column)
        if not why and (run.pretrain_seed, run.seed) not in whole.scores:
            why = "another part of the mean has no run with its seeds"
        listed.append(Listed(run, run.values.get(column.metric), why, part))
    return listed


def _why_not(run: Record, cell: Cell, column: DataColumn) -> str:
    """Why a run is not in the cell's mean; empty where it is."""
    counts = cell.runs.get((run.pretrain_seed, run.seed))
    if counts is run:
        return ""
    if is_scored(run) and column.metric in run.values:
        chosen = next((one.learning_rate for one in cell.runs.values()), None)
        return f"learning rate {run.learning_rate}, and the cell is of {chosen}"
    return _unfinished(run) or f"has no {column.metric}"


def _unfinished(run: Record) -> str:
    return "" if run.is_complete else f"not complete ({run.status})"


def _part_name(column: DataColumn) -> str:
    return f"{column.heading} {column.metric.removeprefix('validation/')}"


def run_rows(found: Explanation) -> list[list[str]]:
    """Folder, part of a mean, score, commit, fingerprint and note of every run; those of the encoders last."""
    rows = []
    for one in found.runs:
        score = "" if one.score is None else f"{one.score:.2f}"
        collapsed = bool(one.run.facts.get("collapsed"))
        note = "; ".join(filter(None, (one.why_not and f"does not count: {one.why_not}", "collapsed" * collapsed)))
        rows.append([one.run.place, one.part, score, *_origin(one.run), note])
    fresh = all(one.run.config.get("initialisation") == "random" for one in found.runs)
    for run in found.encoders:
        note = f"{run.status}{', gave only shape and vocabulary' if fresh else ''}"
        rows.append([run.place, "", "", *_origin(run), note])
    return rows


def _origin(run: Record) -> tuple[str, str]:
    commit = f"{run.git.commit[:12]}{'+' if run.git.dirty else ''}" if run.git else ""
    return commit, run.fingerprint[:12]


def arithmetic(cell: Cell) -> list[str]:
    """How mean and interval come about."""
    found = cell.estimate
    if found is None:
        return ["no complete run: no mean"]
    by_seed: dict[int, list[float]] = {}
    for (first, _), score in sorted(cell.scores.items()):
        by_seed.setdefault(first, []).append(score)
    of_parts = [_mean_of_parts(cell, seeds) for seeds in sorted(cell.scores)] if cell.groups else []
    lines = of_parts + [f"pre-training seed {seed}: {_averaged(scores)}" for seed, scores in by_seed.items()]
    if found.basis == ONE_RUN:
        return [*lines, f"one run: {found.mean:.2f}, no interval"]
    is_over_seeds = found.basis == PRETRAINING_SEEDS
    values = [float(np.mean(scores)) for scores in by_seed.values()] if is_over_seeds else list(cell.scores.values())
    lines = lines if is_over_seeds else [*of_parts, f"one pre-training seed; fine-tuning seeds: {_listed(values)}"]
    count, deviation = len(values), float(np.std(values, ddof=1))
    quantile = float(stats.t.ppf(0.975, count - 1))
    half = quantile * deviation / math.sqrt(count)
    freedom = f"{count - 1} degree{'s' if count > 2 else ''} of freedom"
    return [
        *lines,
        f"mean over the {count} {found.basis.removesuffix(' only')}: {np.mean(values):.2f}",
        f"interval (95 %, Student's t, {freedom}): {quantile:.2f} x {deviation:.2f} / sqrt({count}) = {half:.2f}",
    ]


def _mean_of_parts(cell: Cell, seeds: Seeds) -> str:
    """How one pair of seeds gets its mean of columns; in brackets what is averaged first."""
    groups = [
        " and ".join(f"{_part_name(column)} {part.scores[seeds]:.2f}" for column, part in group)
        for group in cell.groups
    ]
    shown = [f"[{text}]" if len(group) > 1 else text for group, text in zip(cell.groups, groups, strict=True)]
    return f"seeds {seeds[0]}/{seeds[1]}: mean of {', '.join(shown)} = {cell.scores[seeds]:.2f}"


def _averaged(scores: Sequence[float]) -> str:
    return f"{scores[0]:.2f}" if len(scores) == 1 else f"mean of {_listed(scores)} = {np.mean(scores):.2f}"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _apart(table: Table, row: str, column: DataColumn) -> list[tuple[str, str, str]]:
    """Settings of this row that some other row of the column has otherwise, seeds aside, by the runs that count.

    Where the parts of a mean do not agree, each line names the part's task.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    tasks = dict.fromkeys(part.task for part, _ in _parts(table.cells[row, column.key], column))
    for task in tasks:
        runs = {one.name: _counting(table, one.name, column, task) for one in table.experiment.rows}
        own = runs.pop(row)
        for line in _differing(own, [run for others in runs.values() for run in others]) if own else []:
            found.setdefault(line, []).append(task)
    intended = {*MAY_DIFFER, "head", "initialisation"}
    lines = sorted((line for line in found if line[0] != "row"), key=lambda line: line[0] not in intended)
    where = {line: "" if len(found[line]) == len(tasks) else f" ({', '.join(found[line])})" for line in lines}
    return [(f"{line[0]}{where[line]}", *line[1:]) for line in lines]


def _counting(table: Table, row: str, column: DataColumn, task: str) -> Sequence[Record]:
    """The runs on a task, or of pre-training, behind a row's cell of the column; where none counts, those there are."""
    cell = table.cells[row, column.key]
    for part, its_cell in _parts(cell, column):
        if part.task == task and its_cell.runs:
            return list(its_cell.runs.values())
    return [run for run in table.runs.finetune if (run.name, run.task) == (row, task)]


def _differing(own: Sequence[Record], others: Sequence[Record]) -> list[tuple[str, str, str]]:
    """(key, own values, other values) of every setting with more than one value."""
    mine, theirs = ([_without_seeds(run.config) for run in runs] for runs in (own, others))
    found = []
    for key in dict.fromkeys(key for config in (*mine, *theirs) for key in config):
        here, there = (dict.fromkeys(str(one.get(key, NONE)) for one in configs) for configs in (mine, theirs))
        if len(here | there) > 1:
            found.append((key, ", ".join(here), ", ".join(there)))
    return found


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({key: value for key, value in config.items() if key not in SEED_KEYS})


def value_words(found: Explanation) -> str:
    """The cell's value, the paper's beside it, and what they are in: `67.4 ± 1.7, the paper 88.9 (f1, percent)`."""
    column = found.column
    score = column.metric.removeprefix("validation/")
    unit = ", ".join(filter(None, (score, column.unit))) if column.unit == PERCENT else column.unit
    paper = "" if found.paper is None else f", the paper {found.paper:.{column.decimals}f}"
    return f"{percent(found.cell.estimate, column.decimals)}{paper} ({unit})"


def show(found: Explanation, console: Console) -> None:
    """The runs, the arithmetic and what sets the row apart."""
    headings = [Heading("run"), Heading("part"), Heading("score", True), Heading("commit", drop=2),
                Heading("fingerprint", drop=3), Heading("note", drop=1, folds=True)]  # fmt: skip
    rows = run_rows(found)
    if not found.cell.groups:
        headings, rows = [headings[0], *headings[2:]], [[row[0], *row[2:]] for row in rows]
    console.print(make_table(headings, rows, console.width))
    for first, second in found.cell.missing:
        also = "" if found.column.is_pretraining else f", fine-tuning seed {second}"
        say(console, f"missing: pre-training seed {first}{also}", style="yellow")
    for line in found.arithmetic:
        say(console, line)
    versions = distinct(", ".join(map(" ".join, one.run.versions.items())) for one in found.runs)
    say(console, f"made with {versions}", "dim")
    if found.apart:
        headings = [Heading("setting"), Heading("this row", folds=True), Heading("other rows", folds=True)]
        console.print(make_table(headings, [list(one) for one in found.apart], console.width))


def show_commands(found: Explanation, console: Console) -> None:
    """The command of every run, encoders first; a run in several parts of a mean has one."""
    runs = [*found.encoders, *(one.run for one in found.runs)]
    for run in {run.folder: run for run in runs}.values():
        say(console, run.command or f"{run.place}: the record does not say its command")
    say(console, "")
