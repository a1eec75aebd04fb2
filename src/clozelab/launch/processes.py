"""A pool of operating-system processes: some at a time, a live table, and a clean stop.

Each job has a session of its own, so Ctrl-C reaches only us and we stop the jobs: SIGTERM to the
whole group, time to save, then SIGKILL. A job stops when we are killed outright, too. It waits
while another launch works in its folder.

A job that is one CPU process may be forked from the standard library's fork server with torch
loaded: milliseconds instead of seconds. That server runs no tensor operation, so no thread pool
exists when it forks.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from clozelab.launch.progress import (
    JobState,
    Outlook,
    Pulse,
    counted,
    left_at,
    progress_line,
    steps_in,
    time_words,
)
from clozelab.runs.record import BUSY_STATUS, LOCK_FILE
from clozelab.text.formatting import duration
from clozelab.training.host import holder
from clozelab.training.stopping import (
    OUT_OF_TIME,
    SIGNALS,
    bound_to_us,
    interrupt,
    stop_with,
    taken_signals,
)

POLL_SECONDS = 0.02
REDRAW_SECONDS = 0.5
LOOK_AGAIN_SECONDS = 2.0
# where this machine does not list who holds the folder, and only a new process can find out
TRY_AGAIN_SECONDS = 30.0
UNFINISHED, WRONG = ("waiting", "running", "held"), ("failed", "stopped", "held", "left")
KINDS = {
    "waiting": "waiting",
    "held": "waiting",
    "running": "running",
    "complete": "done",
    "skipped": "done",
}
"""How a job's state counts in progress; any other has ended without a result."""
SHOWN_ROWS = 24
BAR_WIDTH = 30
LOG_HEAD = re.compile(r"^[\d:-]+ [A-Z] ")  # time and level of a line of log
SHOWN_LINES = 8  # of one job's error
STYLES = {"running": "cyan", "complete": "green", "skipped": "green dim", "failed": "bold red"}
STYLES |= dict.fromkeys(("stopped", "held", "left"), "yellow")


def run_verb(
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
    pulse: Pulse | None = None,
) -> int:
    """Exit status of `clozelab WORDS`, 128 + n where signal n has ended it or come to us; it stops
    when we end.

    `pulse` beats while it runs, for a verb that may be silent for long.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "clozelab", *words],
        **bound_to_us(environment or {}),
    )
    with taken_signals(lambda number: process.send_signal(number)) as came:
        if pulse is None:
            status = process.wait()
        else:
            status = _wait_with(process, pulse)
    if came:
        return 128 + came[0]
    if status >= 0:
        return status
    return 128 - status


def _wait_with(process: subprocess.Popen[bytes], pulse: Pulse) -> int:
    """The exit status of a process, with a beat every second."""
    while True:
        try:
            return process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            pulse.beat()


class ForkedProcess(ForkServerProcess):
    """A forked job with the interface of a Popen."""

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int:
        self.join()
        return self.exitcode or 0


class ForkServer:
    """Starts `module.main(words) -> exit status` in forked processes of a server that imports
    `preload` once, in
    `environment`: thread counts are read when torch is imported."""

    def __init__(self, module: str, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self.module = module
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(preload))
        os.environ.update(environment)
        # its imports take seconds; the launcher still has things to check meanwhile
        forkserver.ensure_running()

    def start(self, words: Sequence[str], log: Path) -> ForkedProcess:
        process = ForkedProcess(target=_run_forked, args=(self.module, list(words), str(log)))
        process.start()
        return process


def _run_forked(module: str, words: list[str], log: str) -> None:
    """In the forked process: a session of its own, output to the log, then the job."""
    os.setsid()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # Give back this job's handle on the server, which otherwise outlives a killed launcher as long
    # as its jobs do.
    server: Any = getattr(forkserver, "_forkserver", None)
    if (handle := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(handle)
        server._forkserver_alive_fd = server._forkserver_address = None
    # the launcher's end of a pipe
    stop_with(multiprocessing.parent_process().sentinel)  # type: ignore[union-attr]
    Path(log).write_bytes(b"")
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = ["clozelab", *words]
    sys.exit(importlib.import_module(module).main(words))


class RemoteProcess(ABC):
    """A job that runs in somebody else's hands (Slurm's, Ray's), with the interface of a Popen."""

    pid = 0
    survives = False  # it goes on when we stop (a job of a batch system)
    reason = ""  # why it failed, where its log cannot say
    ask_seconds = 1.0  # between two questions: they cost whoever has the job
    _asked = float("-inf")
    _status: int | None = None

    def poll(self) -> int | None:
        """Exit status as of the last question; None while it waits or runs."""
        if self._status is None and time.monotonic() - self._asked >= self.ask_seconds:
            self._asked = time.monotonic()
            self._status = self.ask()
        return self._status

    @abstractmethod
    def ask(self) -> int | None:
        """Exit status now."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """Ask it to save and stop (SIGTERM), or end it (SIGKILL)."""

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(POLL_SECONDS)
        return status


AnyProcess = subprocess.Popen[bytes] | ForkedProcess | RemoteProcess


@dataclass
class Job:
    """One process to run: what it is called, how it is started, where its output goes and how it
    stands.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    # the same job as words for the pool's fork server, if it may be forked
    words: Sequence[str] | None = None
    planned: float | None = None  # seconds that it was planned to take, before anything ran
    folder: str = ""  # the run folder, where the job has one
    # hands the job over, where it is not a process of this machine
    start: Callable[[], RemoteProcess] | None = None
    state: str = "waiting"
    """waiting | running | complete | skipped | failed | stopped | held (another launch works in its
    folder) | left (with the batch system, when we stopped)."""
    seconds: float = 0.0
    look_again: float = 0.0  # when a held job's folder may be free, on the monotonic clock
    message: str = ""
    process: AnyProcess | None = None
    started: float = 0.0


class ProcessPool:
    """Runs jobs, at most `at_once` at a time; a job that fails does not stop the others."""

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        at_once: int,
        grace_seconds: float,
        console: Console,
        server: ForkServer | None = None,
        place: Outlook | None = None,
    ) -> None:
        self.jobs, self.server, self.console = list(jobs), server, console
        self.at_once, self.grace_seconds = at_once, grace_seconds
        if place is None:
            self.place = Outlook()
        else:
            self.place = place
        self.pulse = Pulse(console, lambda: progress_line(self._states(), self.at_once, self.place))

    def run(self) -> None:
        """Run every waiting job to its end. Raises Interrupted after a signal, once every job has
        been stopped.
        """
        drawn = float("-inf")
        # The table is refreshed by hand and seldom: no second thread while we fork, and the cores
        # are the jobs'.
        shows = Live(self._table(), console=self.console, auto_refresh=False, transient=True)
        with (
            taken_signals() as signals,
            shows if self.console.is_terminal else nullcontext() as live,
        ):
            try:
                while not signals:
                    self._collect()
                    if not any(job.state in ("waiting", "running", "held") for job in self.jobs):
                        break
                    self._start_some()
                    if live is not None and time.monotonic() - drawn >= REDRAW_SECONDS:
                        live.update(self._table(), refresh=True)
                        drawn = time.monotonic()
                    self.pulse.beat()
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop_all(signals)
        if signals:
            interrupt(signals[0])

    def _start_some(self) -> None:
        for job in self.jobs:
            if job.state == "held" and time.monotonic() >= job.look_again:
                job.state = "waiting"
            if job.state != "waiting":
                continue
            if sum(job.state == "running" for job in self.jobs) >= self.at_once:
                break
            if (
                job.start is None
                and job.folder
                and (pid := holder(Path(job.folder, LOCK_FILE))) is not None
            ):
                # As far as this machine can tell, another launch works in its folder now.
                self._hold(job, LOOK_AGAIN_SECONDS, f"process {pid} works in its folder")
                continue
            job.log.parent.mkdir(parents=True, exist_ok=True)
            job.state, job.started = "running", time.monotonic()
            try:
                if job.start is not None:
                    job.process = job.start()
                elif self.server is not None and job.words is not None:
                    job.process = self.server.start(job.words, job.log)
                else:
                    job.process = _fresh(job)
            except Exception as error:
                if job.start is None:
                    raise
                # One job that a batch system refuses; the others may suit it.
                job.state, job.message = "failed", f"it could not be handed over: {error}"
            self._say(job)

    def _hold(self, job: Job, seconds: float, reason: str) -> None:
        job.state, job.look_again = "held", time.monotonic() + seconds
        if job.message != reason:
            job.message = reason
            self._say(job)

    def _collect(self) -> None:
        for job in self.jobs:
            if job.state != "running" or job.process is None:
                continue
            job.seconds = time.monotonic() - job.started
            status = job.process.poll()
            if status == BUSY_STATUS and job.start is None:
                self._hold(job, TRY_AGAIN_SECONDS, "another process works in its folder")
            elif status is not None:
                job.state = {0: "complete", OUT_OF_TIME: "stopped"}.get(status, "failed")
                reason = getattr(job.process, "reason", "")
                job.message = "" if status == 0 else reason or failure_message(job.log, status)
                self._say(job)

    def _stop_all(self, signals: Sequence[int]) -> None:
        """Stop what runs, if anything does; a second signal ends the wait."""
        self._collect()
        running = [
            (job, job.process)
            for job in self.jobs
            if job.state == "running" and job.process is not None
        ]
        for job, process in running:
            job.state = "left" if getattr(process, "survives", False) else "stopped"
        ours = [process for job, process in running if job.state == "stopped"]
        if ours:
            self.console.print(
                f"stopping {len(ours)} job(s); up to {self.grace_seconds:.0f} s to save"
            )
        _signal(ours, signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while (
            any(process.poll() is None for process in ours)
            and time.monotonic() <= deadline
            and len(signals) < 2
        ):
            time.sleep(POLL_SECONDS)
        _signal(ours, signal.SIGKILL)
        for process in ours:
            process.wait()
        for job, _ in running:
            job.seconds = time.monotonic() - job.started

    def _say(self, job: Job) -> None:
        """Where there is no terminal to draw on: one line a job that has ended, is held or was
        handed over.
        """
        if self.console.is_terminal or (job.state == "running" and job.start is None):
            return
        ended = f" after {duration(job.seconds)}  ({self._progress()})"
        after = {"running": "", "held": f": {job.message}"}.get(job.state, ended)
        self.console.print(
            f"{job.state:>8}  {job.name}{after}", markup=False, highlight=False, soft_wrap=True
        )
        self.pulse.spoken()

    def _progress(self) -> str:
        """Jobs that have ended, of all that belong together, and the time that the rest takes."""
        states = self._states()
        return counted(states, self.place) + time_words(left_at(self.place, states, self.at_once))

    def _states(self) -> list[JobState]:
        """The jobs as their progress is counted."""
        return [
            JobState(
                job.name,
                KINDS.get(job.state, "failed"),
                job.seconds,
                job.planned,
                self._steps(job),
            )
            for job in self.jobs
        ]

    def _steps(self, job: Job) -> tuple[int, int] | None:
        """(steps taken, of all) of a job that runs, by its log."""
        if job.state == "running":
            return steps_in(_tail(job.log))
        return None

    def _table(self) -> Group:
        """A bar for all jobs, and a line for each that runs or went wrong, none wider than the
        terminal.
        """
        states = Counter(job.state for job in self.jobs)
        done = self.place.jobs_before + sum(
            count for state, count in states.items() if state not in UNFINISHED
        )
        of_all = self.place.jobs_before + len(self.jobs) + self.place.jobs_after
        wrong = "".join(f", {states[state]} {state}" for state in WRONG if states[state])
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(of_all, done, width=BAR_WIDTH), f"{self._progress()}{wrong}")
        jobs = Table.grid(padding=(0, 1))
        for justify in ("left", "left", "right"):
            jobs.add_column(justify=justify, no_wrap=True)
        jobs.add_column()  # what a narrow terminal cuts
        shown = [job for job in self.jobs if job.state in ("running", *WRONG)]
        for job in shown[:SHOWN_ROWS]:
            used, said = duration(job.seconds), "".join(_tail(job.log)[-1:])
            used, said = ("", job.message) if job.state == "held" else (used, said)
            words = Text(LOG_HEAD.sub("", said), no_wrap=True, overflow="ellipsis")
            jobs.add_row(f"[{STYLES[job.state]}]{job.state}[/]", job.name, used, words)
        return Group(head, jobs)


def failure_message(log: Path, status: int) -> str:
    """Why a process failed, in its own last words."""
    how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    lines = [line for line in _tail(log) if not line.startswith("(CLOZELAB_DEBUG")]
    errors = [
        at
        for at, line in enumerate(lines)
        if line.lower().startswith("error:") or "Error: " in line
    ]
    # An error of several lines keeps them: the first one of a refused run folder does not say what
    # differs.
    said = lines[errors[-1] :][:SHOWN_LINES] if errors else lines[-1:]
    words = "\n    ".join(said)
    return f"{how}: {words}" if words else how


def _tail(log: Path, size: int = 8192) -> list[str]:
    """The last lines of a log that are not blank."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _signal(processes: Sequence[AnyProcess], number: int) -> None:
    for process in processes:
        if process.poll() is not None:
            continue
        if isinstance(process, RemoteProcess):
            process.send_signal(number)
            continue
        assert process.pid is not None, "it has been started"
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:  # forked a moment ago, and not yet a group of its own
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)


def _fresh(job: Job) -> subprocess.Popen[bytes]:
    job.log.write_bytes(b"")
    # appended: two launches that start one job share its log for a moment
    with job.log.open("ab") as output:
        return subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **bound_to_us(job.environment),
        )
