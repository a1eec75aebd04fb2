"""`clozelab explain-cell EXPERIMENT ROW COLUMN`: where a number of the table comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clozelab.ledger.collect import AnyRun, Collected, collect
from clozelab.ledger.commands import remake
from clozelab.ledger.lists import Heading, make_console, make_table, say
from clozelab.ledger.plan import runs_root, sweep_names
from clozelab.ledger.reporting.cell import Explanation, explain, find_columns, find_row, run_rows
from clozelab.ledger.reporting.experiment import PERCENT, find_experiment, load_experiment
from clozelab.ledger.reporting.table import build_table
from clozelab.ledger.reporting.wording import distinct, percent
from clozelab.ledger.words import parse, path_of, wants_help

HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, seeds, scores, commit, versions, fingerprints; how the
mean and its interval come about; what sets the row apart from the others; the command that makes each run again.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task (qnli_derived) or its title"""


def main(words: Sequence[str]) -> int:
    """Print the explanation; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("explain-cell", words, names=(3, 3), keys=("scale", "runs_dir"))
    folder = find_experiment(said.names[0])
    overrides = [f"{key}={value}" for key, value in said.values.items()]
    root, scale = runs_root(folder, overrides, sweep_names(folder)[0])
    experiment, collected = load_experiment(folder), collect(root)
    if not collected.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table, row = build_table(experiment, collected), find_row(experiment, said.names[1])
    console = make_console()
    for column in find_columns(table, said.names[2]):
        found = explain(table, collected, row, column)
        say(console, f"{experiment.label(row)} on {column.heading}: {value_words(found)}", style="bold")
        for line in filter(None, (column.role, found.cell.note)):
            say(console, line, style="yellow")
        show(found, collected, console)
        show_commands(found, folder, path_of("runs_dir", said.values), scale, console)
    return 0


def value_words(found: Explanation) -> str:
    """The cell's value, the paper's beside it, and what they are in: `67.4 ± 1.7, the paper 88.9 (f1, percent)`."""
    column = found.column
    score = column.metric.removeprefix("validation/")
    unit = ", ".join(filter(None, (score, column.unit))) if column.unit == PERCENT else column.unit
    paper = "" if found.paper is None else f", the paper {found.paper:.{column.decimals}f}"
    return f"{percent(found.cell.estimate, column.decimals)}{paper} ({unit})"


def show(found: Explanation, collected: Collected, console: Console) -> None:
    """The runs, the arithmetic and what sets the row apart."""
    headings = [Heading("run"), Heading("part"), Heading("score", True), Heading("commit", drop=2),
                Heading("fingerprint", drop=3), Heading("note", drop=1, folds=True)]  # fmt: skip
    rows = run_rows(found, collected)
    if not found.cell.groups:
        headings, rows = [headings[0], *headings[2:]], [[row[0], *row[2:]] for row in rows]
    console.print(make_table(headings, rows, console.width))
    for first, second in found.cell.missing:
        also = "" if found.column.is_pretraining else f", fine-tuning seed {second}"
        say(console, f"missing: pre-training seed {first}{also}", style="yellow")
    for line in found.arithmetic:
        say(console, line)
    states = [one.run.state for one in found.runs]
    say(
        console, "made with " + distinct(", ".join(map(" ".join, s.get("versions", {}).items())) for s in states), "dim"
    )
    if found.apart:
        headings = [Heading("setting"), Heading("this row", folds=True), Heading("other rows", folds=True)]
        console.print(make_table(headings, [list(one) for one in found.apart], console.width))


def show_commands(found: Explanation, folder: Path, runs_dir: str, scale: str, console: Console) -> None:
    """The command of every run, encoders first; a run in several parts of a mean has one."""
    runs: list[AnyRun] = [*found.encoders, *(one.run for one in found.runs)]
    for run in {run.dir: run for run in runs}.values():
        line, lacking = remake(folder, run.state, run.dir, runs_dir, scale)
        say(console, line if not lacking else f"{line}\n  {lacking}", style="yellow" if lacking else "")
    say(console, "")
