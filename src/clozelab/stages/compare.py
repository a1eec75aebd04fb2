"""`clozelab compare A B`: what differs between two runs, and what they score."""

from __future__ import annotations

from collections.abc import Sequence

from claims.text.phrases import format_count, signed
from claims.text.terminal import Heading
from clozelab.metrics.metric import PERCENT
from clozelab.results.comparison import (
    COMPARED_FIELDS,
    NONE,
    SHOWN_DIGITS,
    cautions_of,
    differences,
    final_scores,
    held_out_figures,
    name_with_unit,
)
from clozelab.runs.find import open_run
from clozelab.runs.outcome import score_in_context
from clozelab.runs.record import Record
from clozelab.terminal import ParsedArgs, print_table, say, verb

HELP = """clozelab compare RUN RUN

Two run folders: the configuration and inputs that differ, held-out figures at
the last evaluation and at equal tokens, and scores (of the best evaluation).
It is about these two runs: another seed may differ more than they do.

`clozelab report FOLDER` draws the curves of all runs below a folder."""


@verb("compare", HELP, names=(2, 2))
def main(args: ParsedArgs) -> int:
    """Print the comparison; returns the exit status."""
    records = [open_run(name) for name in args.names]
    print_runs(records)
    for aspect in COMPARED_FIELDS:
        print_differences(records, aspect)
    first, second = records
    print_held_out(first, second)
    if first.stage == second.stage:
        for caution in cautions_of(records):
            say(caution, style="yellow")
    print_final_scores(first, second)
    return 0


def print_runs(records: Sequence[Record]) -> None:
    """Give each run a letter, and say what it is."""
    for letter, record in zip("AB", records, strict=True):
        description = [record.stage, record.name, record.task, f"seed {record.seeds}"]
        title = " ".join(filter(None, description))
        fingerprint = record.fingerprint[:SHOWN_DIGITS]
        say(f"{letter}  {title}, {record.status}, {fingerprint}: {record.folder}")
        score = score_in_context(record)
        if score:
            say(f"   {score}")


def print_differences(records: Sequence[Record], aspect: str) -> None:
    """Print what is not the same of one of COMPARED_FIELDS, a column a run."""
    rows = differences(records, aspect)
    if not rows:
        say(f"{aspect}: the same")
        return
    headings = [Heading(aspect), Heading("A", folds=True), Heading("B", folds=True)]
    print_table(headings, rows)


def print_held_out(first: Record, second: Record) -> None:
    """Print held-out figures at the end and at equal tokens."""
    rows = []
    for figure in held_out_figures(first, second):
        decimals = _decimals(first, figure.key)
        row = [name_with_unit(first, figure.key)]
        row += (f"{value:.{decimals}f}" for value in figure.last)
        if figure.common is None:
            row += ["", "", ""]
        else:
            row.append(format_count(figure.common_tokens or 0))
            row += (f"{value:.{decimals}f}" for value in figure.common)
        rows.append(row)
    if rows:
        columns = ("A, last", "B, last", "tokens", "A, there", "B, there")
        heading = Heading("held out, last evaluation", folds=True)
        _print_numbers(heading, columns, rows)


def print_final_scores(first: Record, second: Record) -> None:
    """Print the scores of two runs, and of which evaluation they are."""
    scores = final_scores(first, second)
    if not scores:
        return
    rows = []
    for key, a, b in scores:
        decimals = _decimals(first, key)
        numbers = [f"{a:.{decimals}f}", f"{b:.{decimals}f}", signed(b - a, decimals)]
        rows.append([name_with_unit(first, key), *numbers])
    heading = Heading("score")
    if first.stage == "finetune":
        heading = Heading("score, best evaluation")
    _print_numbers(heading, ("A", "B", "B - A"), rows)
    if first.stage == "finetune":
        steps = " and ".join(str(run.facts.get("best_step", NONE)) for run in (first, second))
        say(
            "Scores are those of each run's best evaluation by"
            f" {first.score_name(first.metric)} (steps {steps}), as in reports; held-out"
            " figures are of the last one.",
            style="dim",
        )


def _decimals(record: Record, key: str) -> int:
    """How many a figure is shown with: losses that matter differ by thousandths."""
    return 2 if record.score_of(key).unit == PERCENT else 4


def _print_numbers(heading: Heading, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column has names, all others numbers."""
    headings = [heading, *(Heading(column, is_number=True) for column in columns)]
    print_table(headings, rows)
