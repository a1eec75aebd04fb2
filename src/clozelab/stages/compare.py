"""Runs looked at closely: `clozelab compare A B` says what differs, `clozelab explain-cell` what is
behind a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

from clozelab.runs.find import find, open_folder
from clozelab.runs.identity import flatten
from clozelab.runs.outcome import score_in_context
from clozelab.runs.record import DAMAGED, PERCENT, Record, Score
from clozelab.terminal import Heading, Words, make_console, make_table, say, verb
from clozelab.text.did_you_mean import hint
from clozelab.text.formatting import listed, percent, rough, signed

if TYPE_CHECKING:
    from clozelab.analysis.scores import DataColumn
    from clozelab.results.table import ResultTable

HELP = """clozelab compare RUN RUN [RUN ...] [data_dir=FOLDER]

Two run folders: the configuration and inputs that differ, held-out figures at the last evaluation and at equal tokens,
scores (of the best evaluation), and, for two fine-tuning runs on one task, a paired test on their common
examples: McNemar's exact test of right and wrong answers, a paired bootstrap for other scores. It is about these two
runs: another seed may differ more than they do. Of three and more: what differs, and the scores that all have.

  data_dir=FOLDER   where the task's files lie, should they have moved (SQuAD's right answers)

`clozelab report FOLDER` draws the curves of all runs below a folder."""
EXPLAIN_HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, scores, commit, fingerprints, why one does not count, and
the command that makes each run again. docs/runs.md says how mean and interval come about.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task (qnli_derived) or its title"""
NONE = "(none)"
PARTS: dict[str, Any] = {
    "configuration": {"config": True, "inputs": True, "results_version": True},
    "made with": {"versions": True, "git": True, "host": True, "facts": {"precision"}},
}
"""Of a record: what its fingerprint is made of, and what was the same by intention, and may not
be.
"""
Curve = list[tuple[int, float]]  # [(tokens, value)]


@verb("compare", HELP, names=(2, len(ascii_uppercase)), keys=("data_dir",))
def main(said: Words) -> int:
    """Print the comparison; returns the exit status."""
    records, console = [open_run(name) for name in said.names], make_console()
    letters = ascii_uppercase[: len(records)]
    for letter, record in zip(letters, records, strict=True):
        say(
            console,
            f"{letter}  {title(record)}, {record.status}, {record.fingerprint[:12]}:"
            f" {record.folder}",
        )
        say(console, f"   {score_in_context(record)}") if score_in_context(record) else None
    for name in PARTS:
        rows = differences(records, name)
        headings = [Heading(name), *(Heading(letter, folds=True) for letter in letters)]
        (
            console.print(make_table(headings, rows, console.width))
            if rows
            else say(console, f"{name}: the same")
        )
    one, two, *more = records
    if more:
        caution(records, console)
        scores = [key for key in one.values if all(key in record.values for record in records)]
        lines = [
            [with_unit(one, key), *(f"{record.values[key]:.3f}" for record in records)]
            for key in scores
        ]
        headings = [Heading("score"), *(Heading(letter, True) for letter in letters)]
        console.print(make_table(headings, lines, console.width))
        return 0
    show_figures(one, two, console)
    if one.stage == two.stage == "finetune":
        from clozelab.results.answers import describe, paired_test  # scipy takes half a second

        try:
            for line in describe(paired_test(one, two, said.values.get("data_dir"))):
                say(console, line)
        except ValueError as error:
            say(console, f"no paired test: {error}", style="yellow")
    return 0


def open_run(path: str) -> Record:
    """The record of one run folder. ValueError: there is none, or it is damaged."""
    folder = Path(path)
    if not (folder / "run.json").is_file():
        raise ValueError(f"{path} is no run folder (no run.json); `clozelab runs --csv` lists them")
    record = open_folder(folder, folder)
    if record.status == DAMAGED:
        raise ValueError(f"{path} is damaged: {record.problem}")
    return record


def title(record: Record) -> str:
    """What a run is, in a few words."""
    return " ".join(filter(None, (record.stage, record.name, record.task, f"seed {record.seeds}")))


def differences(records: Sequence[Record], part: str) -> list[tuple[str, ...]]:
    """(dotted key, of A, of B, ...) of everything in PARTS[part] that is not the same."""
    dumps = [flatten(record.model_dump(include=PARTS[part])) for record in records]
    found = [
        (key, *(str(one.get(key, NONE)) for one in dumps))
        for key in dict.fromkeys(chain.from_iterable(dumps))
    ]
    # Checksums are long, and their beginnings tell them apart.
    return [
        (
            key.removeprefix("config."),
            *(text[:12] if key.startswith("inputs.") else text for text in texts),
        )
        for key, *texts in found
        if len(set(texts)) > 1
    ]


class Point(NamedTuple):
    """A held-out figure of both runs: at their ends, and at the last tokens that both have seen
    (None: there are none), where the longer run's lies on the line between its evaluations around
    them."""

    key: str
    ends: tuple[float, ...]
    tokens: int | None
    common: tuple[float, ...] | None


def points(one: Record, two: Record) -> list[Point]:
    """Every held-out figure that two trainings of one stage have; those of two stages only share
    names.
    """
    curves, found = list[dict[str, Curve]](), []
    for run in (one, two):
        factors = {key: score_of(run, key).factor for key in run.curves}
        curves.append(
            {
                key: [(at, factors[key] * value) for at, value in curve]
                for key, curve in run.curves.items()
            }
        )
    for key in curves[0] if one.stage == two.stage != "evaluate" else ():
        if key in curves[1]:
            pair = [np.array(curve[key], dtype=np.float64).T for curve in curves]
            limit = min(int(tokens[-1]) for tokens, _ in pair)
            has_common = all(tokens[0] <= limit for tokens, _ in pair)
            common = (
                tuple(float(np.interp(limit, *curve)) for curve in pair) if has_common else None
            )
            ends = tuple(float(values[-1]) for _, values in pair)
            found.append(Point(key, ends, limit if has_common else None, common))
    return found


def score_of(record: Record, key: str) -> Score:
    """What a figure is, also one that was not declared (of one source of a corpus)."""
    are_shares = record.stage == "pretrain" or any(
        one.factor != 1.0 for one in record.scores.values()
    )
    return record.scores.get(key) or Score.of(key, are_shares=are_shares)


def with_unit(record: Record, key: str) -> str:
    """`f1, percent`; a perplexity has its name alone."""
    return ", ".join(filter(None, (key.removeprefix("validation/"), score_of(record, key).unit)))


def final_scores(one: Record, two: Record) -> list[tuple[str, float, float]]:
    """(key, first, second) of two complete fine-tunings or evaluations, each in its unit; none of
    others.
    """
    if any(record.stage == "pretrain" or not record.is_complete for record in (one, two)):
        return []
    return [(key, value, two.values[key]) for key, value in one.values.items() if key in two.values]


def show_figures(one: Record, two: Record, console: Console) -> None:
    """Held-out figures at the end and at equal tokens, and the scores."""
    rows = []
    for point in points(one, two):
        decimals = 2 if score_of(one, point.key).unit == PERCENT else 4
        ends, common = (
            [f"{value:.{decimals}f}" for value in values or ()]
            for values in (point.ends, point.common)
        )
        rows.append(
            [
                with_unit(one, point.key),
                *ends,
                *([rough(point.tokens or 0), *common] if common else [""] * 3),
            ]
        )
    if rows:
        names = ("A, last", "B, last", "tokens", "A, there", "B, there")
        headings = [
            Heading("held out, last evaluation", folds=True),
            *(Heading(name, True) for name in names),
        ]
        console.print(make_table(headings, rows, console.width))
    if one.stage == two.stage:
        caution((one, two), console)
    if scores := final_scores(one, two):
        title = "score, best evaluation" if one.stage == "finetune" else "score"
        headings = [Heading(title), *(Heading(name, True) for name in ("A", "B", "B - A"))]
        rows = [
            [with_unit(one, key), f"{a:.2f}", f"{b:.2f}", signed(b - a)] for key, a, b in scores
        ]
        console.print(make_table(headings, rows, console.width))
    if scores and one.stage == "finetune":
        steps = " and ".join(str(run.facts.get("best_step", NONE)) for run in (one, two))
        said = (
            "Scores are those of each run's best evaluation by"
            f" {one.metric.removeprefix('validation/')}"
        )
        say(
            console,
            f"{said} (steps {steps}), as in reports; held-out figures are of the last one.",
            style="dim",
        )


def caution(records: Sequence[Record], console: Console) -> None:
    """Why figures of some runs cannot be compared, if so."""
    data = "task_files" if all("task_files" in record.inputs for record in records) else "task_data"
    if (
        len(
            {
                (record.stage, record.inputs.get("corpus"), record.inputs.get(data))
                for record in records
            }
        )
        > 1
    ):
        say(
            console,
            "They were not evaluated on the same data: their figures cannot be compared.",
            style="yellow",
        )
    versions = sorted({record.results_version for record in records})
    if len(versions) > 1:
        shown = listed(map(str, versions))
        say(
            console,
            f"They are of results versions {shown}: their figures cannot be compared.",
            style="yellow",
        )
    if records[0].stage == "pretrain" and len({record.predicts for record in records}) > 1:
        say(
            console,
            "The objectives predict other tokens: their losses cannot be compared.",
            style="yellow",
        )


@verb("explain-cell", EXPLAIN_HELP, names=(3, 3), keys=("scale", "runs_dir"))
def explain_cell(said: Words) -> int:
    """Print the runs behind a number, and what makes them again; returns the exit status."""
    from clozelab.planning.steps import runs_root  # Hydra and scipy: not for --help
    from clozelab.report import wording
    from clozelab.results.experiment import find_experiment, load_experiment
    from clozelab.results.table import build_table

    folder, (_, name, heading) = find_experiment(said.names[0]), said.names
    root, scale = runs_root(folder, [f"{key}={value}" for key, value in said.values.items()])
    experiment, runs, console = load_experiment(folder), find(root), make_console()
    if not runs.runs:
        raise ValueError(
            f"no run below {root}; `clozelab reproduce {said.names[0]} scale={scale}` makes them"
        )
    rows = {key: row.name for row in experiment.rows for key in (row.label, row.name)}
    if name not in rows:
        raise ValueError(f"no row {name!r}; {hint(name, rows.values())}")
    table, row = build_table(experiment, runs), rows[name]
    for column in find_columns(table, heading):
        cell, paper = table.cells[row, column.key], table.paper_value(row, column)
        beside = "" if paper is None else f", the paper {paper:.{column.decimals}f}"
        value = f"{percent(cell.estimate, column.decimals)}{beside} ({column.unit})"
        say(console, f"{experiment.label(row)} on {column.heading}: {value}", style="bold")
        for line in filter(None, (wording.role_of(column), wording.cell_note(cell))):
            say(console, line, style="yellow")
        found = [*behind(table, row, column)]
        headings = [
            Heading("run"),
            Heading("score", True),
            Heading("commit", drop=2),
            Heading("fingerprint", drop=3),
            Heading("note", drop=1, folds=True),
        ]
        lines = [
            [run.place, score, run.git.commit[:12] if run.git else "", run.fingerprint[:12], note]
            for run, score, note in found
        ]
        console.print(make_table(headings, lines, console.width))
        for first, second in cell.missing:
            say(console, f"missing: seeds {first}/{second}", style="yellow")
        for run, _, _ in found:
            say(console, run.command or f"{run.place}: the record does not say its command")
    return 0


def find_columns(table: ResultTable, name: str) -> list[DataColumn]:
    """The data sets with results that a name means: a task, a heading, or a column of the paper
    with its stand-ins.
    """
    exact = [one for one in table.with_results if name in (one.key, one.task, one.heading)]
    if found := exact or [
        one for one in table.with_results if one.column and one.column.name == name
    ]:
        return found
    papers = [one.column.name for one in table.with_results if one.column]
    known = {
        *papers,
        *(key for one in table.with_results for key in (one.task, one.heading) if key),
    }
    raise ValueError(f"no column {name!r} with a run; {hint(name, known)}")


def behind(table: ResultTable, row: str, column: DataColumn) -> Iterator[tuple[Record, str, str]]:
    """(run, its scores there, why it does not count) of all that a cell could be made of; encoders
    last.
    """
    from clozelab.report import wording

    cell, arm = (
        table.cells[row, column.key],
        next(one.arm for one in table.experiment.rows if one.name == row),
    )
    counting = {
        run.folder
        for part in cell.parts
        for seeds, run in part.runs.items()
        if seeds in cell.scores
    }
    metrics = {(part.task, part.metric) for group in cell.groups for part, _ in group} or {
        (column.task, column.metric)
    }
    tuned = [
        run
        for run in (*table.runs.finetune, *table.runs.evaluate)
        if run.name == row and run.task in column.tasks
    ]
    mine = (
        [run for run in table.runs.pretrain if run.name == arm] if column.is_pretraining else tuned
    )
    for run in sorted(mine, key=lambda one: (one.pretrain_seed, one.seed, one.place)):
        shown = [
            metric for task, metric in sorted(metrics) if task == run.task and metric in run.figures
        ]
        scores = [f"{run.figures[metric]:.2f}" for metric in shown]
        why = (
            f"not complete ({run.status})"
            if not run.is_complete
            else ""
            if scores
            else "has no such score"
        )
        if not why and run.folder in table.outdated:
            why = wording.outdated(table.outdated[run.folder])
        why = (
            why
            or f"of learning rate {run.learning_rate}, or other parts of the mean lack its seeds"
        )
        yield run, ", ".join(scores), "" if run.folder in counting else f"does not count: {why}"
    began = {(run.config.get("encoder_arm"), run.pretrain_seed) for run in tuned}
    yield from (
        (run, "", "encoder")
        for run in table.runs.pretrain
        if mine is tuned and (run.name, run.seed) in began
    )
