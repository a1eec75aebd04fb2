"""`clozelab record`: the best that is reached from one text within one budget."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from claims.report.estimates import probability
from claims.text.terminal import Heading
from clozelab.files.locks import exclusive_lock
from clozelab.planning.budget import parse_budget
from clozelab.planning.steps import open_results
from clozelab.results.contests import (
    SIGNIFICANCE,
    Attempt,
    Budget,
    best_of_contest,
    make_attempt,
    p_above,
    read_attempts,
    write_attempts,
)
from clozelab.results.table import build_table
from clozelab.terminal import ParsedArgs, print_table, say, verb

HELP = """clozelab record EXPERIMENT ROW COLUMN budget=DEVICESxTIME
                [table=records.csv] [scale=NAME] [name=value ...] [--add]

Says whether a row of an experiment is a record, and prints the record table. An
attempt has five pre-training seeds or more of one recipe, on one kind of
machine, each of them within the budget: 2x15min is a quarter of an hour of two
threads, 1x30min half an hour of one GPU. It is a record where its scores are
higher than those of the record before with p < .01 (Welch's t test), with the
same text, budget, score and kind of machine. The first attempt is one.

  table=FILE   the table's file, records.csv unless said otherwise
  --add        writes a record into it

The exit status is 0 for a record, and 1 otherwise.

  clozelab record table5_pretraining_tasks mlm MRPC budget=2x15min scale=laptop"""


@verb(
    "record",
    HELP,
    names=(3, 3),
    keys=("budget", "table"),
    flags=("add",),
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Judge an attempt; returns the exit status, which is 1 where it is no record."""
    name, row, column = args.names
    path = Path(args.values.get("table", "records.csv"))
    budget = read_budget(args.values.get("budget", ""))
    table = build_table(*open_results(name, args.overrides))
    attempt = make_attempt(table, table.find_row(row), column, budget)

    adds = "add" in args.flags
    lock: AbstractContextManager[None] = nullcontext()
    if adds:
        # Somebody else's record counts, and stays.
        lock = exclusive_lock(path, remedy="name another file with table=")
    with lock:
        attempts = read_attempts(path)
        best = best_of_contest(attempts, attempt)
        is_record = best is None or p_above(attempt, best) < SIGNIFICANCE
        if is_record:
            attempts.append(attempt)
        if is_record and adds:
            write_attempts(path, attempts)
    print_attempts(attempts)
    say(outcome(attempt, best))
    if not is_record:
        return 1
    if adds:
        say(f"added to {path.resolve()}")
    return 0


def read_budget(text: str) -> Budget:
    """Read `2x15min`. ValueError: it is not DEVICESxTIME."""
    devices, times, duration = text.partition("x")
    if not times or not devices.isdigit() or int(devices) < 1:
        raise ValueError(
            f"record needs budget=DEVICESxTIME, such as 2x15min (two cores), not {text!r}"
        )
    return Budget(text, int(devices), parse_budget(duration))


def outcome(attempt: Attempt, best: Attempt | None) -> str:
    """Return what an attempt is, in a sentence."""
    has = f"{attempt.name} has {attempt.mean:.1f} on {attempt.score}"
    if best is None:
        return f"{has}: a record, the first with this text, budget and kind of machine"
    p = p_above(attempt, best)
    extra = f"{best.name} has {best.mean:.1f}; {probability(p)}"
    if p < SIGNIFICANCE:
        return f"{has}: a record. {extra}"
    return f"{has}: no record, which takes p < {SIGNIFICANCE}. {extra}"


def print_attempts(attempts: Iterable[Attempt]) -> None:
    """Print the table: what contests with each other stands together, the best last."""
    headings = [
        Heading("budget"),
        Heading("score"),
        Heading("mean", is_number=True),
        Heading("row"),
        Heading("tokens", is_number=True, drop=2),
        Heading("date", drop=1),
        Heading("machine", folds=True),
    ]
    rows = []
    for attempt in sorted(attempts, key=lambda attempt: (attempt.contest, attempt.mean)):
        mean = f"{attempt.mean:.1f}"
        tokens = f"{attempt.tokens / 1e6:.1f} M"
        rows.append(
            [
                f"{attempt.budget:g} min",
                attempt.score,
                mean,
                attempt.name,
                tokens,
                attempt.date,
                attempt.machine,
            ]
        )
    print_table(headings, rows)
