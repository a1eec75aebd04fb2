"""A pool of operating-system processes: some at a time, how they stand, and a clean stop.

Each job has a session of its own, so Ctrl-C reaches only us and we stop the jobs: SIGTERM to the
whole group, time to save, then SIGKILL. A job stops when we are killed outright, too. It waits
while another launch works in its folder.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from claims.text.phrases import duration
from clozelab.launch.processes import (
    POLL_SECONDS,
    AnyProcess,
    ForkServer,
    Job,
    JobState,
    RemoteProcess,
    failure_message,
    last_lines,
    send_to_groups,
    start_process,
)
from clozelab.launch.progress import (
    NO_ESTIMATE,
    Heartbeat,
    SweepEstimate,
    counted,
    format_time_left,
    position,
    progress_line,
    seconds_left,
)
from clozelab.runs.progress import NO_PROGRESS
from clozelab.runs.record import BUSY_STATUS, LOCK_FILE
from clozelab.terminal import say
from clozelab.training.host import holder
from clozelab.training.stopping import OUT_OF_TIME, interrupt, taken_signals

REDRAW_SECONDS = 0.5
LOOK_SECONDS = 2.0  # between two looks at the folders of the jobs that run
LOOK_AGAIN_SECONDS = 2.0
# where this machine does not list who holds the folder, and only a new process can find out
TRY_AGAIN_SECONDS = 30.0
NOT_BEGUN = (JobState.WAITING, JobState.HELD)
SHOWN = (JobState.RUNNING, JobState.HELD)
SHOWN_ROWS = 24
# time and level of a line of log, and the step, which stands before it
LOG_HEAD = re.compile(r"^[\d:-]+ [A-Z] (step \d+/\d+ +)?")


@dataclass
class ProcessPool:
    """Runs jobs, at most `at_once` at a time; a job that fails does not stop the others.

    Attributes:
        grace_seconds: that jobs get to save when they are stopped.
        console: gets a line of each job that has ended, and as a terminal how all stand.
        server: forks the jobs that may be forked; without one each is a new process.
        estimate: the place of these jobs in all that runs.
    """

    jobs: Sequence[Job]
    at_once: int
    grace_seconds: float
    console: Console
    server: ForkServer | None = None
    estimate: SweepEstimate = NO_ESTIMATE

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(self.console, self._line)

    def run(self) -> None:
        """Run every waiting job to its end.

        Raises Interrupted after a signal, once every job has been stopped.
        """
        drawn_at = float("-inf")
        looked_at = float("-inf")
        # The screen is refreshed by hand and seldom: the cores are the jobs'.
        screen: AbstractContextManager[Live | None] = nullcontext()
        if self.console.is_terminal:
            screen = Live(self._screen(), console=self.console, auto_refresh=False, transient=True)
        with taken_signals() as signals, screen as live, self.heartbeat.in_background():
            try:
                # 50 times a second: notice what ended, start what may, show how it stands.
                while not signals:
                    self._collect()
                    if not any(job.state.is_left for job in self.jobs):
                        break
                    self._start_waiting()
                    if time.monotonic() - looked_at >= LOOK_SECONDS:
                        self._look_at_folders()
                        looked_at = time.monotonic()
                    if live is not None and time.monotonic() - drawn_at >= REDRAW_SECONDS:
                        live.update(self._screen(), refresh=True)
                        drawn_at = time.monotonic()
                    time.sleep(POLL_SECONDS)
            finally:
                self._stop_all(signals)
        if signals:
            interrupt(signals[0])

    def _line(self) -> str:
        """Say how far all is, for whoever watches no terminal: in a thread of the heartbeat."""
        self._look_at_folders()
        return progress_line(self.jobs, self.at_once, self.estimate)

    def _start_waiting(self) -> None:
        """Start jobs in their order, as far as there is room and their folders are free."""
        for job in filter(Job.may_begin, self.jobs):
            is_due = job.state in NOT_BEGUN and time.monotonic() >= job.look_again
            if not is_due:
                continue
            if sum(job.state == JobState.RUNNING for job in self.jobs) >= self.at_once:
                break
            pid = None
            if job.start is None and job.folder:
                pid = holder(Path(job.folder, LOCK_FILE))
            if pid is None:
                self._start(job)
            else:
                # As far as this machine can tell, another launch works in its folder now.
                self._hold(job, LOOK_AGAIN_SECONDS, f"process {pid} works in its folder")

    def _start(self, job: Job) -> None:
        """Start a job in the way that it is made for."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            # the first one waits for the server's imports, which are no time of its own
            if job.start is not None:
                job.process = job.start()
            elif self.server is not None and job.argv is not None:
                job.process = self.server.start(job.argv, job.log)
            else:
                job.process = start_process(job)
            job.state = JobState.RUNNING
        except Exception as error:
            if job.start is None:
                raise
            # One job that a batch system refuses; the others may suit it.
            job.state = JobState.FAILED
            job.message = f"it could not be handed over: {error}"
        job.started = time.monotonic()
        job.seconds = 0.0
        job.is_queued = job.start is not None
        job.seconds_in_line = 0.0
        job.progress = NO_PROGRESS
        self._print_status(job)

    def _look_at_folders(self) -> None:
        for job in self.jobs:
            if job.state == JobState.RUNNING:
                job.look_at_folder(time.monotonic())

    def _hold(self, job: Job, seconds: float, reason: str) -> None:
        """Let a job wait until it may be tried again."""
        job.state = JobState.HELD
        job.look_again = time.monotonic() + seconds
        if job.message != reason:
            job.message = reason
            self._print_status(job)

    def _collect(self) -> None:
        """Take notice of the jobs that have ended."""
        for job in self.jobs:
            if job.state != JobState.RUNNING or job.process is None:
                continue
            job.seconds = time.monotonic() - job.started
            status = job.process.poll()
            if status == BUSY_STATUS and job.start is None:
                self._hold(job, TRY_AGAIN_SECONDS, "another process works in its folder")
            elif status is not None:
                self._end(job, status)

    def _end(self, job: Job, status: int) -> None:
        """Note how a job has ended, by its exit status."""
        job.message = ""
        job.state = JobState.COMPLETE
        if status:
            job.state = JobState.FAILED
            reason = getattr(job.process, "reason", "")
            job.message = reason or failure_message(job.log, status)
        if status == OUT_OF_TIME:
            job.state = JobState.STOPPED
        self._print_status(job)

    def _stop_all(self, signals: Sequence[int]) -> None:
        """Stop what runs, if anything does; a second signal ends the wait."""
        # What has ended by now is not stopped.
        self._collect()
        processes = []
        begun = [job for job in self.jobs if job.state == JobState.RUNNING]
        for job in begun:
            if isinstance(job.process, RemoteProcess) and job.process.survives:
                job.state = JobState.LEFT
            elif job.process is not None:
                job.state = JobState.STOPPED
                processes.append(job.process)
        if processes:
            self.console.print(
                f"stopping {len(processes)} job(s); up to {self.grace_seconds:.0f} s to save"
            )
        self._end_processes(processes, signals)
        for job in begun:
            job.seconds = time.monotonic() - job.started

    def _end_processes(self, processes: Sequence[AnyProcess], signals: Sequence[int]) -> None:
        """Let all save in the same grace period, then kill what still runs."""
        send_to_groups(processes, signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while any(process.poll() is None for process in processes):
            # Whoever presses Ctrl-C again does not want to wait.
            if time.monotonic() > deadline or len(signals) >= 2:
                break
            time.sleep(POLL_SECONDS)
        send_to_groups(processes, signal.SIGKILL)
        for process in processes:
            process.wait()

    def _print_status(self, job: Job) -> None:
        """Print a line of a job that has ended, is held or was handed over."""
        if job.state == JobState.RUNNING and job.start is None:
            return
        remark = ""
        if job.state == JobState.HELD:
            remark = f": {job.message}"
        elif job.state != JobState.RUNNING:
            remark = f" after {duration(job.seconds)}  ({self._progress()})"
        say(f"{job.shown_state:>8}  {job.name}{remark}", console=self.console)
        self.heartbeat.note_output()

    def _progress(self) -> str:
        """Say how many jobs have ended, of all that belong together, and the time left."""
        self._look_at_folders()
        seconds = seconds_left(self.jobs, self.at_once, self.estimate)
        return counted(self.jobs, self.estimate) + format_time_left(seconds)

    def _screen(self) -> Text:
        """How far all is, and a line of each job that runs or is held, with its log's last words.

        None is wider than the terminal.
        """
        lines = [self._progress()]
        for job in [job for job in self.jobs if job.state in SHOWN][:SHOWN_ROWS]:
            message = job.message
            if job.state == JobState.RUNNING:
                log_line = "".join(last_lines(job.log)[-1:])
                words = [duration(job.seconds), position(job), LOG_HEAD.sub("", log_line)]
                message = "  ".join(filter(None, words))
            lines.append(f"{job.shown_state:>8}  {job.name}  {message}")
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
