"""`clozelab explain-cell EXPERIMENT ROW COLUMN`: the runs behind a number of the table, and what makes them again."""

from __future__ import annotations

from collections.abc import Iterator

from clozelab.planning.steps import runs_root
from clozelab.runs.find import find
from clozelab.runs.record import Record
from clozelab.suggestions import hint, percent
from clozelab.terminal import Heading, Words, make_console, make_table, say, verb
from clozelab.verdicts.experiment import find_experiment, load_experiment
from clozelab.verdicts.table import DataColumn, Table, build_table, seeds_of

HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, scores, commit, fingerprints, why one does not count, and
the command that makes each run again. docs/runs.md says how mean and interval come about.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task (qnli_derived) or its title"""


@verb("explain-cell", HELP, names=(3, 3), keys=("scale", "runs_dir"))
def main(said: Words) -> int:
    """Print the explanation; returns the exit status."""
    folder, (_, name, heading) = find_experiment(said.names[0]), said.names
    root, scale = runs_root(folder, [f"{key}={value}" for key, value in said.values.items()])
    experiment, runs, console = load_experiment(folder), find(root), make_console()
    if not runs.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    rows = {key: row.name for row in experiment.rows for key in (row.label, row.name)}
    if name not in rows:
        raise ValueError(f"no row {name!r}; {hint(name, rows.values())}")
    table, row = build_table(experiment, runs), rows[name]
    for column in find_columns(table, heading):
        cell, paper = table.cells[row, column.key], table.paper_value(row, column)
        beside = "" if paper is None else f", the paper {paper:.{column.decimals}f}"
        value = f"{percent(cell.estimate, column.decimals)}{beside} ({column.unit})"
        say(console, f"{experiment.label(row)} on {column.heading}: {value}", style="bold")
        for line in filter(None, (column.role, cell.note)):
            say(console, line, style="yellow")
        found = [*behind(table, row, column)]
        headings = [Heading("run"), Heading("score", True), Heading("commit", drop=2), Heading("fingerprint", drop=3),
                    Heading("note", drop=1, folds=True)]  # fmt: skip
        lines = [[run.place, score, run.git.commit[:12] if run.git else "", run.fingerprint[:12], note]
                 for run, score, note in found]  # fmt: skip
        console.print(make_table(headings, lines, console.width))
        for first, second in cell.missing:
            say(console, f"missing: seeds {first}/{second}", style="yellow")
        for run, _, _ in found:
            say(console, run.command or f"{run.place}: the record does not say its command")
    return 0


def find_columns(table: Table, name: str) -> list[DataColumn]:
    """The data sets with results that a name means: a task, a heading, or a column of the paper with its stand-ins.

    ValueError: there is none with a run.
    """
    exact = [one for one in table.with_results if name in (one.key, one.task, one.heading)]
    if found := exact or [one for one in table.with_results if one.column and one.column.name == name]:
        return found
    papers = [one.column.name for one in table.with_results if one.column]
    known = {*papers, *(key for one in table.with_results for key in (one.task, one.heading) if key)}
    raise ValueError(f"no column {name!r} with a run; {hint(name, known)}")


def behind(table: Table, row: str, column: DataColumn) -> Iterator[tuple[Record, str, str]]:
    """(run, its scores there, why it does not count) of all that a cell could be made of; encoders last."""
    cell, arm = table.cells[row, column.key], next(one.arm for one in table.experiment.rows if one.name == row)
    counting = {run.folder for part in cell.parts for seeds, run in part.runs.items() if seeds in cell.scores}
    metrics = {(part.task, part.metric) for group in cell.groups for part, _ in group} or {(column.task, column.metric)}
    tuned = [
        run for run in (*table.runs.finetune, *table.runs.evaluate) if run.name == row and run.task in column.tasks
    ]
    mine = [run for run in table.runs.pretrain if run.name == arm] if column.is_pretraining else tuned
    for run in sorted(mine, key=lambda one: (*seeds_of(one), one.place)):
        known = run.facts if column.is_pretraining else run.values
        scores = [f"{known[metric]:.2f}" for task, metric in sorted(metrics) if task == run.task and metric in known]
        why = f"not complete ({run.status})" if not run.is_complete else "" if scores else "has no such score"
        why = why or f"of learning rate {run.learning_rate}, or other parts of the mean lack its seeds"
        yield run, ", ".join(scores), "" if run.folder in counting else f"does not count: {why}"
    began = {(run.config.get("encoder_arm"), run.pretrain_seed) for run in tuned}
    yield from ((run, "", "encoder") for run in table.runs.pretrain if mine is tuned and (run.name, run.seed) in began)
