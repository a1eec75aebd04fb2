"""`clozelab explain-cell`: the runs behind one number of an experiment's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from claims.analysis.scores import DataColumn
from claims.report.estimates import percent
from claims.text.terminal import Heading
from clozelab.planning.steps import open_results
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.record import Record
from clozelab.terminal import ParsedArgs, print_table, say, verb

HELP = """clozelab explain-cell EXPERIMENT ROW COLUMN [scale=NAME] [runs_dir=FOLDER]

The runs behind one number of an experiment's table: folders, scores, commit,
fingerprints, why one does not count, and the command that makes each run again.
docs/runs.md says how mean and interval come about.

  ROW       a row's name or label (mlm, "No NSP")
  COLUMN    a column of the paper (QNLI, Average, "LM perplexity"), a task
            (qnli_derived) or its title"""


@verb("explain-cell", HELP, names=(3, 3), keys=("scale", "runs_dir"))
def main(args: ParsedArgs) -> int:
    """Print the runs behind a number, and what makes them again; returns the exit status."""
    experiment_name, row_name, column_name = args.names
    overrides = [f"{key}={value}" for key, value in args.values.items()]
    table = build_table(*open_results(experiment_name, overrides))
    row = table.find_row(row_name)
    for column in table.find_columns(column_name):
        print_cell(table, row, column)
    return 0


@dataclass(frozen=True)
class CellRun:
    """A run that a cell could be made of, or an encoder of one."""

    record: Record
    scores: str  # those that the cell is about, in words
    note: str  # why it does not count; empty where it does


def runs_of_cell(table: ResultTable, row: str, column: DataColumn) -> list[CellRun]:
    """List the runs that a cell could be made of, then the encoders that they began with."""
    if column.is_pretraining:
        arm = next(entry.arm for entry in table.experiment.rows if entry.name == row)
        runs = [run for run in table.runs.pretrain if run.name == arm]
        return _cell_runs(table, row, column, runs)
    runs = []
    for run in [*table.runs.finetune, *table.runs.evaluate]:
        if run.name == row and run.task in column.tasks:
            runs.append(run)
    # Which (arm, seed) a fine-tuning or a measure began with.
    encoders = {(run.encoder_arm, run.pretrain_seed) for run in runs}
    cell_runs = _cell_runs(table, row, column, runs)
    for run in table.runs.pretrain:
        if (run.name, run.seed) in encoders:
            cell_runs.append(CellRun(run, "", "encoder"))
    return cell_runs


def _cell_runs(
    table: ResultTable, row: str, column: DataColumn, runs: Sequence[Record]
) -> list[CellRun]:
    """Find each run's scores, and why it does not count."""
    cell = table.cells[row, column.key]
    # The folders of the runs that count: those whose seeds every part of a mean has.
    counting = set()
    for source in cell.parts:
        counting |= {run.folder for seeds, run in source.runs.items() if seeds in cell.scores}
    # A mean is over several scores of several tasks.
    metrics = set()
    for group in cell.groups:
        metrics |= {(source.task, source.metric) for source, _ in group}
    if not metrics:
        metrics = {(column.task, column.metric)}
    cell_runs = []
    for run in sorted(runs, key=lambda run: (run.pretrain_seed, run.seed, run.place)):
        scores = [
            f"{run.figures[metric]:.2f}"
            for task, metric in sorted(metrics)
            if task == run.task and metric in run.figures
        ]
        note = ""
        if run.folder not in counting:
            note = f"does not count: {_why_not_counted(table, run, has_score=bool(scores))}"
        cell_runs.append(CellRun(run, ", ".join(scores), note))
    return cell_runs


def _why_not_counted(table: ResultTable, run: Record, *, has_score: bool) -> str:
    if not run.is_complete:
        return f"not complete ({run.status})"
    if not has_score:
        return "has no such score"
    if run.folder in table.outdated:
        return table.outdated[run.folder]
    return f"of learning rate {run.learning_rate}, or other parts of the mean lack its seeds"


def print_cell(table: ResultTable, row: str, column: DataColumn) -> None:
    """Print a cell's value, its runs and the commands that make them."""
    cell = table.cells[row, column.key]
    value = percent(cell.estimate, column.decimals)
    paper_value = table.paper_value(row, column)
    if paper_value is not None:
        value += f", the paper {paper_value:.{column.decimals}f}"
    label = table.experiment.label(row)
    say(f"{label} on {column.heading}: {value} ({column.unit})", style="bold")
    for line in filter(None, (column.role, "; ".join(cell.notes))):
        say(line, style="yellow")
    headings = [
        Heading("run"),
        Heading("score", is_number=True),
        Heading("commit", drop=2),
        Heading("fingerprint", drop=3),
        Heading("note", drop=1, folds=True),
    ]
    cell_runs = runs_of_cell(table, row, column)
    lines = []
    for cell_run in cell_runs:
        run = cell_run.record
        commit = ""
        if run.git:
            commit = run.git.commit[:12]
        lines.append([run.place, cell_run.scores, commit, run.fingerprint[:12], cell_run.note])
    print_table(headings, lines)
    for pretrain_seed, finetune_seed in cell.missing:
        say(f"missing: seeds {pretrain_seed}/{finetune_seed}", style="yellow")
    # Below the table, and whole: to be copied.
    for cell_run in cell_runs:
        run = cell_run.record
        say(run.command or f"{run.place}: the record does not say its command")
