"""`clozelab explain-cell EXPERIMENT ROW COLUMN`: the runs behind a number of the table, and its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np
from rich.console import Console
from scipy import stats

from clozelab.metrics.statistics import FINETUNING_SEEDS
from clozelab.planning.steps import runs_root
from clozelab.runs.find import find
from clozelab.runs.record import Record
from clozelab.suggestions import distinct, hint, percent
from clozelab.terminal import Heading, Words, make_console, make_table, say, verb
from clozelab.verdicts.experiment import PERCENT, Experiment, find_experiment, load_experiment
from clozelab.verdicts.table import Cell, DataColumn, Table, build_table, is_scored

HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, seeds, scores, commit, versions, fingerprints; how the
mean and its interval come about; the command that makes each run again. `clozelab compare` says of two of them what
their settings differ in.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task (qnli_derived) or its title"""


@verb("explain-cell", HELP, names=(3, 3), keys=("scale", "runs_dir"))
def main(said: Words) -> int:
    """Print the explanation; returns the exit status."""
    folder = find_experiment(said.names[0])
    root, scale = runs_root(folder, [f"{key}={value}" for key, value in said.values.items()])
    experiment, runs = load_experiment(folder), find(root)
    if not runs.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table, row = build_table(experiment, runs), find_row(experiment, said.names[1])
    console = make_console()
    for column in find_columns(table, said.names[2]):
        found = explain(table, row, column)
        score, paper = column.metric.removeprefix("validation/"), found.paper
        unit = ", ".join(filter(None, (score, column.unit))) if column.unit == PERCENT else column.unit
        beside = "" if paper is None else f", the paper {paper:.{column.decimals}f}"
        value = f"{percent(found.cell.estimate, column.decimals)}{beside} ({unit})"
        say(console, f"{experiment.label(row)} on {column.heading}: {value}", style="bold")
        for line in filter(None, (column.role, found.cell.note)):
            say(console, line, style="yellow")
        show(found, console)
        # Encoders first; a run in several parts of a mean has one command.
        for run in {run.folder: run for run in [*found.encoders, *(one.run for one in found.runs)]}.values():
            say(console, run.command or f"{run.place}: the record does not say its command")
        say(console, "")
    return 0


class Listed(NamedTuple):
    """A run of a cell and how it counts there."""

    run: Record
    score: float | None  # in the column's unit
    why_not: str  # empty where the run is in the mean
    part: str = ""  # of a mean: the column of it that the run is in (it may be in several)


class Explanation(NamedTuple):
    """One row on one data set: its runs, and the `encoders` behind them."""

    column: DataColumn
    cell: Cell
    paper: float | None
    runs: list[Listed]
    encoders: list[Record]


def find_row(experiment: Experiment, name: str) -> str:
    """The name of a row, from its name or its label. ValueError: there is none; names the nearest."""
    for row in experiment.rows:
        if name in (row.name, row.label):
            return row.name
    raise ValueError(f"no row {name!r}; {hint(name, [row.name for row in experiment.rows])}")


def find_columns(table: Table, name: str) -> list[DataColumn]:
    """The data sets with results that a name means: a task, a heading, or a column of the paper with its stand-ins.

    ValueError: there is none, or it has no run.
    """
    exact = [one for one in table.columns if name in (one.key, one.task, one.heading)]
    by_paper = [one for one in table.columns if one.column is not None and one.column.name == name]
    for found in (exact, by_paper):
        if with_results := [one for one in found if table.has_results(one)]:
            return with_results
    papers = [one.column.name for one in table.with_results if one.column is not None]
    known = [*dict.fromkeys([*papers, *(key for one in table.with_results for key in (one.task, one.heading) if key)])]
    if exact or by_paper:
        raise ValueError(f"column {name!r} has no run; with runs there are: {', '.join(known) or 'none'}")
    raise ValueError(f"no column {name!r}; {hint(name, known)}")


def explain(table: Table, row: str, column: DataColumn) -> Explanation:
    """Take a cell apart."""
    cell = table.cells[row, column.key]
    runs = [*(_of_pretraining if column.is_pretraining else _of_tasks)(table, row, column)]
    tuned = [one.run for one in runs if one.run.stage != "pretrain"]
    arms, seeds = {str(run.config.get("encoder_arm")) for run in tuned}, {run.pretrain_seed for run in tuned}
    encoders = [run for run in table.runs.pretrain if run.name in arms and run.seed in seeds]
    return Explanation(column, cell, table.paper_value(row, column), runs, encoders)


def _of_pretraining(table: Table, row: str, column: DataColumn) -> Iterator[Listed]:
    """The row's pre-training runs, with the fact that the column shows."""
    arm = next(one.arm for one in table.experiment.rows if one.name == row)
    for run in sorted((run for run in table.runs.pretrain if run.name == arm), key=lambda run: run.seed):
        value = run.facts.get(column.metric)
        why = "" if run.is_complete else f"not complete ({run.status})"
        why = why or ("" if value is not None else f"has no {column.metric}")
        yield Listed(run, None if value is None else float(value), why)


def _of_tasks(table: Table, row: str, column: DataColumn) -> Iterator[Listed]:
    """The row's runs on the column's task, or on the tasks of a mean."""
    whole = table.cells[row, column.key]
    for part, cell in _parts(whole, column):
        of_tasks = (*table.runs.finetune, *table.runs.evaluate)
        mine = [run for run in of_tasks if (run.name, run.task) == (row, part.task)]
        rate = next((one.learning_rate for one in cell.runs.values()), None)
        for run in sorted(mine, key=lambda run: (run.pretrain_seed, run.seed, run.learning_rate or 0.0)):
            seeds, why = (run.pretrain_seed, run.seed), ""
            if cell.runs.get(seeds) is not run:
                why = f"has no {part.metric}" if run.is_complete else f"not complete ({run.status})"
                if is_scored(run) and part.metric in run.values:
                    why = f"learning rate {run.learning_rate}, and the cell is of {rate}"
            elif seeds not in whole.scores:
                why = "another part of the mean has no run with its seeds"
            yield Listed(run, run.values.get(part.metric), why, _part_name(part) if whole.groups else "")


def _parts(cell: Cell, column: DataColumn) -> list[tuple[DataColumn, Cell]]:
    """The columns of single scores that a cell is made of: its own, or a mean's parts."""
    return [part for group in cell.groups for part in group] or [(column, cell)]


def _part_name(column: DataColumn) -> str:
    return f"{column.heading} {column.metric.removeprefix('validation/')}"


def arithmetic(cell: Cell) -> list[str]:
    """How mean and interval come about, line by line; in brackets what a mean of columns averages first."""
    found, lines = cell.estimate, []
    if found is None:
        return ["no complete run: no mean"]
    for seeds in sorted(cell.scores) if cell.groups else ():
        shown = []
        for group in cell.groups:
            text = " and ".join(f"{_part_name(column)} {part.scores[seeds]:.2f}" for column, part in group)
            shown.append(f"[{text}]" if len(group) > 1 else text)
        lines.append(f"seeds {seeds[0]}/{seeds[1]}: mean of {', '.join(shown)} = {cell.scores[seeds]:.2f}")
    for seed, pairs in groupby(sorted(cell.scores.items()), key=lambda one: one[0][0]):
        scores = [score for _, score in pairs]
        listed = ", ".join(f"{score:.2f}" for score in scores)
        if found.basis == FINETUNING_SEEDS:
            lines.append(f"one pre-training seed; fine-tuning seeds: {listed}")
        else:
            mean = f"mean of {listed} = {np.mean(scores):.2f}" if len(scores) > 1 else listed
            lines.append(f"pre-training seed {seed}: {mean}")
    if found.sd is None:
        return [*lines, f"one run: {found.mean:.2f}, no interval"]
    quantile, freedom = stats.t.ppf(0.975, found.count - 1), found.count - 1
    how = f"95 %, Student's t, {freedom} degree{'s' if freedom > 1 else ''} of freedom"
    half = f"{quantile:.2f} x {found.sd:.2f} / sqrt({found.count}) = {found.half_width:.2f}"
    basis = f"{found.count} {found.basis.removesuffix(' only')}"
    return [*lines, f"mean over the {basis}: {found.mean:.2f}", f"interval ({how}): {half}"]


def show(found: Explanation, console: Console) -> None:
    """The runs (encoders last) and the arithmetic."""
    rows = []
    for one in found.runs:
        why = one.why_not and f"does not count: {one.why_not}"
        notes = "; ".join(filter(None, (why, "collapsed" if one.run.facts.get("collapsed") else "")))
        rows.append((one.run, one.part, "" if one.score is None else f"{one.score:.2f}", notes))
    gave_shape = all(one.run.config.get("initialisation") == "random" for one in found.runs)
    note = ", gave only shape and vocabulary" if gave_shape else ""
    rows += [(run, "", "", f"{run.status}{note}") for run in found.encoders]
    parts = [Heading("part")] if found.cell.groups else []
    headings = [Heading("run"), *parts, Heading("score", True), Heading("commit", drop=2),
                Heading("fingerprint", drop=3), Heading("note", drop=1, folds=True)]  # fmt: skip
    lines = [
        [run.place, *([part] if parts else []), score,
         f"{run.git.commit[:12]}{'+' if run.git.dirty else ''}" if run.git else "", run.fingerprint[:12], notes]
        for run, part, score, notes in rows
    ]  # fmt: skip
    console.print(make_table(headings, lines, console.width))
    for first, second in found.cell.missing:
        also = "" if found.column.is_pretraining else f", fine-tuning seed {second}"
        say(console, f"missing: pre-training seed {first}{also}", style="yellow")
    for line in arithmetic(found.cell):
        say(console, line)
    versions = distinct(", ".join(map(" ".join, one.run.versions.items())) for one in found.runs)
    say(console, f"made with {versions}", "dim")
