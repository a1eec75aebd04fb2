"""How an experiment stands, on the screen: its jobs, what runs, what went wrong, how to go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from claims.text.phrases import DASH, count_noun, duration, truncate_list
from claims.text.terminal import Heading
from clozelab.launch.handed_over import print_unbegun
from clozelab.runs.progress import REFUSED, Progress, SweepState
from clozelab.runs.record import KILLED, LOG_FILE, STAGE_NAMES, STATUSES, Record
from clozelab.runs.status import ExperimentStatus, running_cells
from clozelab.terminal import print_table, say


def print_status(status: ExperimentStatus) -> None:
    """Print the jobs of an experiment, what runs, what went wrong, and how to go on."""
    say(f"{status.experiment or 'unknown'} {status.scale}".rstrip(), style="bold")
    print_jobs(status.sweeps, status.jobs_at_once)
    if status.running:
        print_running(status.running)
    print_trouble(status.trouble)
    print_refused(status.refused)
    print_unbegun(status.unbegun)
    if status.is_done:
        sentence = "all done"
        if any(sweep.planned is None for sweep in status.sweeps):
            sentence = "every run is complete; no record lists how many were planned"
        say(f"{sentence}\n", style="green")
        return
    jobs = count_noun(status.jobs_at_once, "job")
    say(f"time left: with {jobs} at a time, from finished and running runs")
    if not status.running:
        for command in status.commands or ["the command that began it"]:
            say(f"to go on: {command}")
    say("")


def print_jobs(sweeps: Sequence[SweepState], num_at_once: int) -> None:
    """Print how many jobs of each stage are in which state, and how long the rest takes."""
    total = sum((sweep.counts for sweep in sweeps), Counter[str]())
    states = [state for state in (*STATUSES, REFUSED) if total[state]]
    has_others = any(sweep.others for sweep in sweeps)
    rows = []
    for sweep in sweeps:
        # Where no launch says how many jobs there were to be, there are as many as runs.
        planned = sweep.planned
        if planned is None:
            planned = sweep.counts.total()
        counts = [*(sweep.counts[state] for state in states), sweep.not_begun, planned]
        if has_others:
            counts.append(sweep.others)
        time_left = _time_left(sweep.seconds_left(num_at_once))
        rows.append([STAGE_NAMES[sweep.stage], *map(str, counts), time_left])
    columns = [*states, "not begun", "jobs"]
    if has_others:
        columns.append("others")
    columns.append("time left")
    headings = [Heading("stage"), *(Heading(name, is_number=True) for name in columns)]
    print_table(headings, rows)


def _time_left(seconds: float | None) -> str:
    """How long the rest of a stage takes."""
    if seconds is None:
        return "unknown yet"
    if not seconds:
        return DASH
    return duration(seconds)


def print_running(running: Sequence[tuple[Record, Progress]]) -> None:
    """Print the runs that go on: steps, loss, speed, time left, process, and a long silence."""
    headings = [Heading("running"), Heading("steps", is_number=True)]
    headings += [Heading("loss", is_number=True), Heading("tokens/s", is_number=True, drop=2)]
    headings += [Heading("time left", is_number=True)]
    headings += [Heading("process", is_number=True, drop=3), Heading("", drop=1)]
    rows = [running_cells(record, progress) for record, progress in running]
    print_table(headings, rows)


def print_trouble(records: Sequence[Record]) -> None:
    """Print why runs did not end well, and where more is written."""
    for record in records:
        say(f"{record.status}: {record.place}: {reason_of(record)}", "yellow", wraps=True)
        log = record.folder / LOG_FILE
        if record.status == "failed" and log.is_file():
            say(f"  log: {log}", style="dim")


def reason_of(record: Record) -> str:
    """Why a run did not end well."""
    if record.status == KILLED:
        return "its process has gone without a word (killed, or the machine stopped)"
    return record.problem if record.problem else "stopped"


def print_refused(records: Sequence[Record]) -> None:
    """Print which runs lie in the folders of other jobs, which the last launch refused."""
    if records:
        say(refusal(records), "yellow", wraps=True)


def refusal(records: Sequence[Record]) -> str:
    """How many jobs were refused, for the runs that lie in their folders."""
    jobs = count_noun(len(records), "job")
    places = truncate_list([record.place for record in records])
    return (
        f"{jobs} refused: runs of other settings or files lie in {places}. Remove these"
        " folders, or give the arm or row another name"
    )
