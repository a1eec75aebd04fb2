"""`clozelab status`: what runs now and how far it is, what failed and why, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from claims.text.phrases import DASH, count_noun, duration, truncate_list
from claims.text.terminal import Heading
from clozelab.launch.handed_over import print_jobs_of_slurm, print_unbegun
from clozelab.report.curves import print_outside
from clozelab.runs.find import find_below, no_match, select
from clozelab.runs.outcome import ignores_context, score_in_context
from clozelab.runs.progress import REFUSED, Progress, SweepState
from clozelab.runs.record import DAMAGED, KILLED, LOG_FILE, STAGE_NAMES, STATUSES, Record
from clozelab.runs.status import (
    LAUNCHER_FOLDER,
    ExperimentStatus,
    experiment_statuses,
    failed_before_begun,
    running_cells,
)
from clozelab.terminal import ParsedArgs, path_of, print_table, say, verb

HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]
        [--watch [out=FILE.html] [--verdicts]]

For every experiment and scale: jobs by stage and state, what runs now, what
failed and why, about how long the rest takes, and the jobs that Slurm has.

The jobs are those of the last launch there; runs that are none of them are
"others". Processes on other machines are not seen.

  --watch        shows what runs until it ends, or Ctrl-C: jobs, steps, losses,
                 time left, and how many claims can be tested
  out=FILE.html  the same as a page that refreshes itself, also without a terminal
  --verdicts     shows verdicts as soon as there are any. That is an interim
                 analysis, and is noted as one (docs/claims.md)"""


@verb("status", HELP, names=(0, 1), keys=("runs_dir", "scale", "out"), flags=("watch", "verdicts"))
def main(args: ParsedArgs) -> int:
    """Print how each experiment stands; returns the exit status."""
    runs_dir = path_of("runs_dir", args.values)
    filters = {key: args.values[key] for key in ("scale",) if key in args.values}
    experiment = next(iter(args.names), None)
    if "watch" in args.flags:
        from clozelab.report.watching import watch  # scipy takes a second

        return watch(args, print_status, lambda: select(find_below(runs_dir), experiment, filters))
    if "out" in args.values or args.flags:
        raise ValueError("status takes out= and --verdicts with --watch alone")
    every_record = find_below(runs_dir)
    records = select(every_record, experiment, filters)
    # A folder without runs is no mistake, filters that leave none may be one.
    if not every_record:
        say(f"no runs in {Path(runs_dir).resolve()}")
        for launcher in sorted(Path(runs_dir).glob(f"*/*/{LAUNCHER_FOLDER}")):
            print_unbegun(list(failed_before_begun(launcher.parent)))
    elif not records:
        say(no_match(select(every_record, experiment, {}), filters))
    for status in experiment_statuses(records):
        print_status(status)
    print_jobs_of_slurm(Path(runs_dir), experiment, args.values.get("scale"))
    print_outside(records)
    for record in records:
        if record.is_complete and ignores_context(record):
            say(f"{record.place}: {score_in_context(record)}", "yellow", wraps=True)
    return 0


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
        reason = record.problem or "stopped"
        if record.status == KILLED:
            reason = "its process has gone without a word (killed, or the machine stopped)"
        elif record.status == DAMAGED:
            reason = f"{record.problem}; remove the folder to run it again"
        say(f"{record.status}: {record.place}: {reason}", "yellow", wraps=True)
        log = record.folder / LOG_FILE
        if record.status == "failed" and log.is_file():
            say(f"  log: {log}", style="dim")


def print_refused(records: Sequence[Record]) -> None:
    """Print which runs lie in the folders of other jobs, which the last launch refused."""
    if records:
        jobs = count_noun(len(records), "job")
        places = truncate_list([record.place for record in records])
        say(
            f"{jobs} refused: runs of other settings or files lie in {places}. Remove these"
            " folders, or give the arm or row another name",
            "yellow",
            wraps=True,
        )
