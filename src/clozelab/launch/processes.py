"""One operating-system process of a job: how it is started, asked, stopped, and why it failed.

Three kinds have the interface of a Popen: a new process, one that is forked from a server with
torch loaded, and one in somebody else's hands (Slurm's, Ray's). pool.py runs many.

A job that is one CPU process may be forked from the standard library's fork server: milliseconds
instead of seconds. That server runs no tensor operation, so no thread pool exists when it forks.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from clozelab.runs.progress import NO_PROGRESS, Progress, progress_in
from clozelab.training.stopping import SIGNALS, bound_to_parent, stop_with, taken_signals

POLL_SECONDS = 0.02
SHOWN_LINES = 8  # of one job's error
TAIL_BYTES = 8192  # of a log, which hold its last lines


class ForkedProcess(ForkServerProcess):
    """A forked job with the interface of a Popen."""

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int:
        self.join()
        return self.exitcode or 0


class RemoteProcess(ABC):
    """A job that runs in somebody else's hands (Slurm's, Ray's), with the interface of a Popen."""

    survives = False  # it goes on when we stop (a job of a batch system)
    reason = ""  # why it failed, where its log cannot say
    ask_seconds = 1.0  # between two questions: they cost whoever has the job
    _asked_at = float("-inf")
    _status: int | None = None

    def poll(self) -> int | None:
        """Exit status as of the last question; None while it waits or runs."""
        if self._status is None and time.monotonic() - self._asked_at >= self.ask_seconds:
            self._asked_at = time.monotonic()
            self._status = self.query_status()
        return self._status

    @property
    def is_queued(self) -> bool:
        """It has been handed over, and waits for a machine."""
        return False

    @abstractmethod
    def query_status(self) -> int | None:
        """The present exit status; None while it runs."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """Ask it to save and stop (SIGTERM), or end it (SIGKILL)."""

    def wait(self) -> int:
        status = self.poll()
        while status is None:
            time.sleep(POLL_SECONDS)
            status = self.poll()
        return status


AnyProcess = subprocess.Popen[bytes] | ForkedProcess | RemoteProcess


class JobState(StrEnum):
    """How a job of a sweep stands, in the order in which a summary counts them."""

    COMPLETE = "complete"
    SKIPPED = "skipped"  # complete before
    FAILED = "failed"
    STOPPED = "stopped"
    HELD = "held"  # another launch works in its folder
    LEFT = "left"  # with the batch system, when we stopped
    WAITING = "waiting"
    RUNNING = "running"  # or handed over to a batch system

    @property
    def is_left(self) -> bool:
        """Whether there is something to do yet."""
        return self in (JobState.WAITING, JobState.RUNNING, JobState.HELD)


@dataclass
class Job:
    """One process to run: how it is started, where its output goes and how it stands."""

    name: str
    command: Sequence[str]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    # the same job's arguments for the pool's fork server, if it may be forked
    argv: Sequence[str] | None = None
    overrides: Sequence[str] = ()  # as the sweeper gives them
    planned: float | None = None  # seconds that it was planned to take, before anything ran
    folder: str = ""  # the run folder, where the job has one
    waits_for: Sequence[Job] = ()  # jobs whose results it reads
    # hands the job over, where it is not a process of this machine
    start: Callable[[], RemoteProcess] | None = None
    state: JobState = JobState.WAITING
    seconds: float = 0.0
    look_again: float = 0.0  # when a held job's folder may be free, on the monotonic clock
    message: str = ""
    process: AnyProcess | None = None
    started: float = 0.0
    is_resumed: bool = False  # it goes on with what an earlier launch has begun
    is_queued: bool = False  # at a batch system, which has no machine for it yet
    seconds_in_line: float = 0.0  # of its seconds
    progress: Progress = NO_PROGRESS  # as its folder says since it was started

    def may_begin(self) -> bool:
        """Whether no job is left whose results it reads."""
        return not any(job.state.is_left for job in self.waits_for)

    @property
    def shown_state(self) -> JobState:
        """How it stands for its reader: a job that a batch system has no machine for waits."""
        if self.state == JobState.RUNNING and self.is_queued:
            return JobState.WAITING
        return self.state

    @property
    def is_working(self) -> bool:
        return self.shown_state == JobState.RUNNING

    @property
    def work_seconds(self) -> float:
        return max(0.0, self.seconds - self.seconds_in_line)

    def look_at_folder(self, now: float) -> None:
        """Note whether it works, and how far its run folder says it is, as `clozelab status`."""
        if isinstance(self.process, RemoteProcess):
            was_in_line = self.is_queued
            self.is_queued = self.process.is_queued or not self.log.exists()
            if self.is_queued:
                self.seconds_in_line = now - self.started
                self.progress = NO_PROGRESS
                # in line again, as its time was over or its machine went
                if not was_in_line:
                    self.is_resumed = True
                return
        progress = progress_in(Path(self.folder))
        seconds = now - self.started - self.seconds_in_line
        # What lies there from an earlier launch says nothing of this one.
        if progress.seconds_since_sign is not None and progress.seconds_since_sign < seconds:
            self.progress = progress


class ForkServer:
    """Starts `module.main(arguments) -> exit status` in processes forked from a server.

    The server imports `preload` once, in `environment`: thread counts are read when torch is
    imported.
    """

    def __init__(self, module: str, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self.module = module
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(preload))
        os.environ.update(environment)
        # its imports take seconds; the launcher still has things to check meanwhile
        forkserver.ensure_running()

    def start(self, arguments: Sequence[str], log: Path) -> ForkedProcess:
        process = ForkedProcess(target=_run_forked, args=(self.module, list(arguments), str(log)))
        process.start()
        return process


def _run_forked(module: str, arguments: list[str], log: str) -> None:
    """In the forked process: a session of its own, output to the log, then the job."""
    os.setsid()
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    # Give back this job's handle on the server, which otherwise outlives a killed launcher as long
    # as its jobs do.
    server: Any = getattr(forkserver, "_forkserver", None)
    handle = getattr(server, "_forkserver_alive_fd", None)
    if handle is not None:
        os.close(handle)
        server._forkserver_alive_fd = None
        server._forkserver_address = None
    # the launcher's end of a pipe
    stop_with(multiprocessing.parent_process().sentinel)  # type: ignore[union-attr]
    Path(log).write_bytes(b"")
    with Path(log).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = ["clozelab", *arguments]
    sys.exit(importlib.import_module(module).main(arguments))


def start_process(job: Job) -> subprocess.Popen[bytes]:
    """Start a job's command in a session of its own, with its output in its log."""
    job.log.write_bytes(b"")
    # appended: two launches that start one job share its log for a moment
    with job.log.open("ab") as output:
        return subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **bound_to_parent(job.environment),
        )


def send_to_groups(processes: Sequence[AnyProcess], number: int) -> None:
    """Send a signal to each process that still runs, and to all that it has started."""
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


def run_verb(
    arguments: Sequence[str],
    environment: Mapping[str, str] | None,
) -> int:
    """Run `clozelab ARGUMENTS` and return its exit status; it stops when we end.

    The status is 128 + n where signal n has ended it or come to us.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "clozelab", *arguments],
        **bound_to_parent(environment or {}),
    )
    with taken_signals(process.send_signal) as signals:
        status = process.wait()
    if signals:
        return 128 + signals[0]
    if status >= 0:
        return status
    return 128 - status


def failure_message(log: Path, status: int) -> str:
    """Say why a process failed, in its own last words."""
    end = f"exit status {status}"
    if status < 0:
        end = f"killed by signal {-status}"
    lines = [line for line in last_lines(log) if not line.startswith("(CLOZELAB_DEBUG")]
    # An error of several lines keeps them: the first one of a refused run folder does not say what
    # differs.
    message = lines[-1:]
    for index, line in enumerate(lines):
        if line.lower().startswith("error:") or "Error: " in line:
            message = lines[index : index + SHOWN_LINES]
    if not message:
        return end
    return f"{end}: " + "\n    ".join(message)


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log that are not blank."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]
