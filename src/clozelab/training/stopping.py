"""How a process of ours ends: by a signal, with its parent, or because nothing moves any more.

A signal is an exception (Interrupted): what was half written is removed, the record says so, and
the exit status is 128 + the signal's number. A training takes it for a request instead, and saves
first (callbacks.GracefulStop).
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TypedDict

from clozelab.training.host import process_rank

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
SAME_SIGNAL_SECONDS = 1.0
# Exit statuses.
OUT_OF_TIME = 85  # of a run that has saved, since trainer.max_time is over
HUNG = 124  # of one in which nothing moved, as timeout(1) has it
TERMINATED = 128 + signal.SIGTERM
STOPPED = (OUT_OF_TIME, *(128 + number for number in SIGNALS))  # the same command goes on
PR_SET_PDEATHSIG = 1
# Environment variables.
FIRST_RANK = "CLOZELAB_FIRST_RANK"  # process id of a job's first rank, for those that it starts
LIFELINE = "CLOZELAB_LIFELINE"  # a pipe whose other end only the process has that started us
TICK_SECONDS = 0.25
NOTICE_SECONDS = 45.0  # after so long without a beat of a training it is said that nothing moves
# The time that a further rank leaves the first one to end by itself, and to take it along.
FOLLOWER_SECONDS = 20.0
_began = time.monotonic()


class Interrupted(SystemExit):
    """A signal has reached us; `code` is 128 + its number."""

    code: int


def interrupt(number: int) -> None:
    raise Interrupted(128 + number)


@contextmanager
def taken_signals(act: Callable[[int], object] = lambda _: None) -> Iterator[list[int]]:
    """Inside, SIGNALS go to `act`, and into the list that is yielded.

    Afterwards everything is as it was. A signal that comes twice within a second, to our group and
    passed on by `clozelab reproduce`, counts once. What is ignored stays so (nohup; a Slurm job's
    child), but for Ctrl-C and SIGTERM.
    """
    received = []
    last = -math.inf

    def note(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SAME_SIGNAL_SECONDS:
            last = time.monotonic()
            received.append(number)
            act(number)

    handlers = []
    try:
        for number in SIGNALS:
            is_ignored = signal.getsignal(number) is signal.SIG_IGN
            if not is_ignored or number in (signal.SIGINT, signal.SIGTERM):
                handlers.append((number, signal.signal(number, note)))
    except ValueError:  # not in the main thread: whoever is there handles signals
        pass
    try:
        yield received
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Asks Linux for a signal when the process that started this one ends.

    One that has ended already sends none.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def die_with_first_rank() -> None:
    """In a rank that Lightning (or torchrun) has started: end with the first one.

    The first would be waited for, half an hour. Killed, not asked: only the first one has anything
    to save.
    """
    if os.environ.get("LOCAL_RANK", "0") in ("", "0"):
        os.environ[FIRST_RANK] = str(os.getpid())
        return
    die_with_parent(signal.SIGKILL)
    first = os.environ.get(FIRST_RANK)
    if first is not None and sys.platform.startswith("linux") and os.getppid() != int(first):
        sys.exit(1)  # it ended before we could ask


@cache
def _lifeline() -> int:
    """The reading end of a pipe.

    The other end is never closed: it ends with us, whatever ends us.
    """
    reader, _ = os.pipe()
    return reader


class _Binding(TypedDict):
    env: dict[str, str]
    pass_fds: list[int]


def bound_to_parent(environment: Mapping[str, str]) -> _Binding:
    """Options of a Popen that starts one of our verbs.

    Its process stops when this one ends, on any system.
    """
    pipe = _lifeline()
    return {"env": os.environ | environment | {LIFELINE: str(pipe)}, "pass_fds": [pipe]}


def begin_process() -> None:
    """Starts the clock of max_time, and holds on to the process that started this verb."""
    global _began
    _began = time.monotonic()
    pipe = os.environ.pop(LIFELINE, "")
    if pipe:
        stop_with(int(pipe))


def stop_with(pipe: int) -> None:
    """SIGTERM for this process once nobody can write to a pipe any more.

    Where that is so already, it exits at once.
    """

    def wait() -> None:
        os.read(pipe, 1)
        signal.pthread_kill(main, signal.SIGTERM)

    # Readable at once: our parent had ended before we began to listen.
    if select.select([pipe], [], [], 0)[0]:
        sys.exit(TERMINATED)
    main = threading.main_thread().ident or 0
    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def leave_signals_to_parent() -> None:
    """Ignore SIGNALS, and be killed with the parent."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)


def begin_data_worker(_number: int) -> None:
    """In a worker of a DataLoader: leave signals to the parent, and be killed with it.

    The parent answers them, and needs its worker until it has saved.
    """
    signal.set_wakeup_fd(-1)  # forked, it would wake its parent's Watch
    leave_signals_to_parent()


def _read_signals(read_end: int) -> bytes:
    """The numbers of the signals that come through a pipe within TICK_SECONDS; 0 is its end."""
    if select.select([read_end], [], [], TICK_SECONDS)[0]:
        return os.read(read_end, 512)
    return b""


@dataclass
class Watch:
    """Ends this process where it cannot end itself.

    That is a training without a beat, or a signal that nothing follows. Unusual: its thread counts
    ticks and reads no clock, so that time in which everything was suspended (Ctrl-Z) does not
    count. It hears of signals through a pipe: Python's handlers wait for the main thread, which may
    be what hangs.
    """

    # Longest time between two beats of a training (GracefulStop says of what); None: any.
    hang_seconds: float | None = None
    grace_seconds: float | None = None  # without a beat after a signal
    max_seconds: float = math.inf  # of the process, after which a training saves and stops
    is_training: bool = False
    beats: int = 0

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() - _began >= self.max_seconds

    @contextmanager
    def on(self, log: Path | None, leave: Callable[[str, str], None]) -> Iterator[None]:
        """Watches inside.

        At an end stacks go to `log` (None: stderr), and leave(status, sentence) writes the record.
        """
        # Python sets a wakeup pipe in the main thread alone.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        read_end, write_end = os.pipe()
        # A signal handler must never wait for room in the pipe.
        os.set_blocking(write_end, False)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        thread = threading.Thread(
            target=self._watch_signals, args=(read_end, log, leave), name="watch", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.write(write_end, b"\0")  # no signal's number: the end
            thread.join()
            os.close(write_end)
            os.close(read_end)

    def _watch_signals(
        self, read_end: int, log: Path | None, leave: Callable[[str, str], None]
    ) -> None:
        """The thread: counts the seconds without a beat, and ends the process after too many."""
        idle = 0.0
        seen_beats = -1
        stop_signal = 0  # the signal that asked for an end; 0: none
        while True:
            signals = _read_signals(read_end)
            if 0 in signals:
                return
            first_signal = next((number for number in signals if number in SIGNALS), 0)
            if first_signal and not stop_signal:
                stop_signal = first_signal
                seen_beats = -1  # seconds count from now on
            idle += TICK_SECONDS
            if self.beats != seen_beats:
                seen_beats = self.beats
                idle = 0.0
            # in one tick alone, so that it is said once
            if NOTICE_SECONDS <= idle < NOTICE_SECONDS + TICK_SECONDS:
                self._notice(log)
            if idle >= self._patience(stop_signal):
                self._end(stop_signal, idle, log, leave)

    def _patience(self, stop_signal: int) -> float:
        """Seconds without a beat after which the process ends."""
        patience = math.inf
        if self.is_training and self.hang_seconds:
            patience = self.hang_seconds
        if stop_signal and self.grace_seconds:
            patience = min(patience, self.grace_seconds)
        return patience

    def _notice(self, log: Path | None) -> None:
        """Says that nothing moves: a data worker, another rank or a disk does not answer.

        Or a step is slow. Outside of a training it is silent.
        """
        if not self.is_training:
            return
        text = f"warning: nothing has moved for {NOTICE_SECONDS:.0f} s in this training"
        if self.hang_seconds is not None:
            text += f"; it ends after {self.hang_seconds:.0f} s (trainer.hang_seconds)"
        print(text, file=sys.stderr, flush=True)
        if log is not None:
            with suppress(OSError), log.open("a", encoding="utf-8") as output:
                print(text, file=output)

    def _end(
        self, stop_signal: int, idle: float, log: Path | None, leave: Callable[[str, str], None]
    ) -> None:
        """Ends the process, with the stacks of its threads.

        `stop_signal`: the number of the signal that asked for it, or 0.
        """
        # Should what follows hang as well.
        faulthandler.dump_traceback_later(2 * FOLLOWER_SECONDS, exit=True, file=2)
        cause = ""
        key = "hang_seconds"
        record_status = "failed"
        exit_status = HUNG
        if stop_signal:
            cause = f"{signal.Signals(stop_signal).name} came, and "
            key = "grace_seconds"
            record_status = "interrupted"
            exit_status = 128 + stop_signal
        text = (
            f"{cause}nothing has moved for {idle:.0f} s (trainer.{key}): ended without a"
            f" save, with the stacks of all threads in {log or 'this log'}; the same command goes"
            " on from the last checkpoint"
        )
        try:
            with log.open("a", encoding="utf-8") if log else nullcontext(sys.stderr) as output:
                print(text, file=output, flush=True)
                faulthandler.dump_traceback(output)
            print(f"error: {text}", file=sys.stderr, flush=True)
            # The first rank ends by itself and takes us along, unless it is what hangs.
            if process_rank():
                time.sleep(FOLLOWER_SECONDS)
                if os.environ.get(FIRST_RANK) == str(os.getppid()):
                    os.kill(os.getppid(), signal.SIGKILL)
            leave(record_status, text)
        finally:
            os._exit(exit_status)
