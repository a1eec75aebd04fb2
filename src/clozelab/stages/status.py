"""`clozelab status [EXPERIMENT]`: what runs now and how far it is, what failed and why, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from clozelab.ledger.inventory import STATUSES, find_records, no_match, select
from clozelab.ledger.lists import Heading, make_console, make_table, say
from clozelab.ledger.planning.standing import Standing, log_of, reason, running_cells, standings
from clozelab.ledger.words import parse, path_of, wants_help
from clozelab.stages.runs import STAGES

HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]

For every experiment and scale with runs: jobs by stage and state, the runs that go on now (steps, speed, time left,
process), what failed and why, and about how long the rest takes.

The jobs are those of the last `clozelab reproduce` there, with its overrides; where it has left no record, those of the
experiment's own sweeps. Runs that are none of them are "others". The time left is from finished runs and from the speed
of those that run. Processes on other machines are not seen."""


def main(words: Sequence[str]) -> int:
    """Print how things stand; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    said = parse("status", words, names=(0, 1), keys=("runs_dir", "scale"))
    runs_dir = path_of("runs_dir", said.values)
    filters = {key: value for key, value in said.values.items() if key == "scale"}
    found, name = find_records(Path(runs_dir)), said.names[0] if said.names else None
    records = select(found, name, filters)
    console = make_console()
    if not records:
        say(console, no_match(found, name, filters) if found else f"no runs in {Path(runs_dir).resolve()}")
    for standing in standings(records, runs_dir):
        show(standing, console)
    return 0


def show(standing: Standing, console: Console) -> None:
    """One experiment at one scale."""
    say(console, f"{standing.experiment or 'unknown'} {standing.scale}".rstrip(), style="bold")
    states = [state for state in STATUSES if any(one.counts.get(state) for one in standing.sweeps)]
    others = ["others"] if any(one.others for one in standing.sweeps) else []
    numbers = (*states, "not begun", "jobs", *others, "time left")
    rows = []
    for sweep in standing.sweeps:
        counts = [sweep.counts.get(state, 0) for state in states]
        planned = sweep.counts.total() if sweep.planned is None else sweep.planned
        totals = (*counts, sweep.not_begun, planned, *([sweep.others] if others else []))
        rows.append([STAGES[sweep.stage], *map(str, totals), standing.time_left(sweep)])
    headings = [Heading("stage"), *(Heading(name, is_number=True) for name in numbers)]
    console.print(make_table(headings, rows, console.width))
    headings = [Heading("running"), Heading("steps", True), Heading("tokens/s", True, 2), Heading("time left", True),
                Heading("process", True, 3), Heading("", drop=1)]  # fmt: skip
    if standing.running:
        rows = [running_cells(one, at) for one, at in standing.running]
        console.print(make_table(headings, rows, console.width))
    for one in standing.trouble:
        say(console, f"{one.status}: {one.place}: {reason(one)}", style="yellow")
        if one.status == "failed" and (log := log_of(one)) is not None:
            say(console, f"  log: {log}", style="dim")
    if standing.is_done:
        say(console, "all done\n", style="green")
        return
    if standing.is_all_there_is:
        say(console, "every run is complete; whether there were to be more no record tells\n", style="green")
        return
    at_once = standing.jobs_at_once
    say(console, f"time left: with {at_once} job{'s' if at_once > 1 else ''} at a time, from finished and running runs")
    if not standing.running:
        say(console, f"to go on: {standing.command or 'the command that began it'}")
        if standing.command and standing.is_guessed:
            say(console, "  (as the runs tell: no launch has left a record here)", style="dim")
    say(console, "")
