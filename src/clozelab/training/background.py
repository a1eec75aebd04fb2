"""Trackers that are spoken to from a thread of their own, so that none stops or slows a training.

For example, the machine with the MLflow server is switched off in the middle of a run. The training
goes on, a warning says so once, and what waits is tried again every half minute. If the server is
back before the end, nothing is lost; otherwise a last line says how much is missing, and the
command that sends it from metrics.csv.

Unusual: the thread is a daemon, and nobody waits for it longer than `close` says. A call that never
comes back costs a run ten seconds at its end, and the process nothing."""

from __future__ import annotations

import json
import logging
import shlex
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from clozelab.text.formatting import shortened

log = logging.getLogger(__name__)

# How many calls, and how long, a tracker is waited for.
WAITING_CALLS = 50_000  # kept for a tracker that is away or slow; later ones are only counted
BUNDLED_CALLS = 200  # given at once to a tracker that takes several
SILENT_SECONDS = 10.0  # of one call, after which the tracker is said not to answer
RETRY_SECONDS = 30.0
FIRST_RETRY_SECONDS = 1.0  # of a connection that broke, where nothing is said yet
REFUSALS = 3  # calls in a row that fail for another reason than an outage; then the tracker is off
CLOSE_SECONDS = 10.0  # at the end of a run, without anything being taken
LONGEST_CLOSE_SECONDS = 60.0  # at the end of a run, for a tracker that takes things, but slowly
LONGEST_REASON = 160  # characters
ENDS = ("close", "finalize")  # methods that end a tracker's run
UNSENT_FILE = "unsent.json"  # in a run folder: tracker -> number of values that it is missing


@dataclass(frozen=True)
class Numbers:
    """One call of log_metrics, with the time at which it was made (seconds since 1970)."""

    metrics: dict[str, float]
    step: int | None
    time: float


@dataclass(frozen=True)
class Call:
    """A call of any other method; `size` is the number of values that it carries."""

    method: str
    arguments: tuple[Any, ...] = ()
    size: int = 0


@dataclass
class Counts:
    """Values given to a tracker and values that it took."""

    given: int = 0
    taken: int = 0

    @property
    def missing(self) -> int:
        return self.given - self.taken


@dataclass
class _Trouble:
    """What is wrong with a tracker now."""

    is_said: bool = False
    outages: int = 0  # in a row
    refusals: int = 0  # in a row
    is_off: bool = False
    last_error: str = ""


@dataclass
class _Clock:
    """Moments on the monotonic clock."""

    call_began: float | None = None  # of the call that is being made
    last_success: float = field(default_factory=time.monotonic)


class BackgroundLogger(Logger):
    """Any logger of Lightning's, spoken to from one thread; calls return at once.

    Args:
        target: the logger. It may have `log_many(list of Numbers)`, which takes several calls at
            once, `summarise(scores)`, `close(exit_code)`, and `is_outage(error)`, which tells an
            outage (tried again) from a refusal (left out). Without that method an OSError is an
            outage.
        label: its name in messages, for example "mlflow".
        folder: the run folder, which the command for missing values names; None: there is no such
            command.

    Only the first rank has a thread. Anything else than the methods below goes to the target, in
    the caller's thread.
    """

    def __init__(self, target: Logger, label: str, folder: Path | None = None) -> None:
        super().__init__()
        self.target = target
        self.label = label
        self.folder = folder
        self.counts = Counts()
        self._trouble = _Trouble()
        self._clock = _Clock()
        # Calls that wait, the news of one, and the thread that makes them.
        self._calls: deque[Numbers | Call] = deque()
        self._news = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    # What Lightning and the stages call

    @property
    def name(self) -> str:
        """The label: the target's own name may be a question to a server."""
        return self.label

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str | None:
        return self.target.save_dir

    def __getattr__(self, name: str) -> Any:
        # Lightning asks every logger for its experiment before it trains; only of files is that no
        # wait.
        is_local = isinstance(self.__dict__.get("target"), TensorBoardLogger | CSVLogger)
        if name.startswith("__") or name == "target" or (name == "experiment" and not is_local):
            raise AttributeError(f"{name}; what may wait for a server is logger.target.{name}")
        return getattr(self.target, name)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        numbers = {key: float(value) for key, value in metrics.items()}
        self._put(Numbers(numbers, step, time.time()))

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        size = 1
        if isinstance(params, Mapping):
            size = len(params)
        self._put(Call("log_hyperparams", (params,), size))

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self._put(Call("after_save_checkpoint", (checkpoint_callback,)))

    def save(self) -> None:
        """The thread saves after each of its bundles."""

    def finalize(self, status: str) -> None:
        """Not yet: a run's scores follow, and `close` ends it."""

    @rank_zero_only
    def summarise(self, scores: Mapping[str, Any]) -> None:
        """The final scores of a run."""
        if hasattr(self.target, "summarise"):
            self._put(Call("summarise", (dict(scores),), len(scores)))
            return
        numbers = {
            f"final/{key}": float(value)
            for key, value in scores.items()
            if isinstance(value, int | float)
        }
        self._put(Numbers(numbers, 0, time.time()))

    @rank_zero_only
    def call(self, method: str, *arguments: Any) -> None:
        """Any other method of the target, from the thread and in its turn."""
        self._put(Call(method, arguments, 1))

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        """End the tracker's run; wait as long as it takes things, and say what it is missing."""
        if self._thread is None or self._is_closing:
            return
        if hasattr(self.target, "close"):
            self._put(Call("close", (exit_code,)))
        else:
            status = "failed" if exit_code else "success"
            self._put(Call("finalize", (status,)))
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._wait_for_the_end(getattr(self.target, "close_seconds", CLOSE_SECONDS))
        self._say_what_is_missing()

    # In the caller's thread

    def _put(self, call: Numbers | Call) -> None:
        if self._thread is None:
            self._start()
        with self._news:
            self.counts.given += _size(call)
            # A tracker that is off, or far behind, is not given more; but it is closed.
            is_end = isinstance(call, Call) and call.method in ENDS
            if is_end or (not self._trouble.is_off and len(self._calls) < WAITING_CALLS):
                self._calls.append(call)
            self._news.notify()
        began = self._clock.call_began
        if began is not None and time.monotonic() - began > SILENT_SECONDS:
            self._say_trouble(f"no answer for {SILENT_SECONDS:.0f} s")

    def _start(self) -> None:
        # Packages are imported here and not in the thread: a data worker that is forked in the
        # middle of another thread's import would wait for that import for ever.
        if hasattr(self.target, "load_package"):
            self.target.load_package()
        self._thread = threading.Thread(
            target=self._work,
            name=f"tracker {self.label}",
            daemon=True,
        )
        self._thread.start()

    def _wait_for_the_end(self, patience: float) -> None:
        """Waits for the thread, as long as the tracker takes something every `patience` seconds."""
        assert self._thread is not None, "close looks at that"
        began = time.monotonic()
        self._clock.last_success = max(self._clock.last_success, began)
        while self._thread.is_alive():
            self._thread.join(0.02)
            now = time.monotonic()
            is_silent = now - self._clock.last_success > patience
            if is_silent or now - began > LONGEST_CLOSE_SECONDS + patience:
                if not self._trouble.last_error:
                    self._trouble.last_error = f"no answer for {patience:.0f} s"
                return

    def _say_what_is_missing(self) -> None:
        if not self.counts.missing:
            return
        amount = f"{self.counts.missing} of {self.counts.given} values"
        if self.folder is None:
            log.warning("%s is missing %s (%s)", self.label, amount, self._trouble.last_error)
            return
        note_unsent(self.folder, self.label, self.counts.missing)
        command = shlex.join(["clozelab", "track", str(self.folder), f"logger={self.label}"])
        log.warning(
            "%s is missing %s (%s); metrics.csv has the numbers, and this sends them: %s",
            self.label,
            amount,
            self._trouble.last_error,
            command,
        )

    def _say_trouble(self, why: str) -> None:
        self._trouble.last_error = why
        if self._trouble.is_said:
            return
        self._trouble.is_said = True
        log.warning(
            "%s: %s. The run goes on without it, and it is tried again until the end",
            self.label,
            why,
        )

    # In the thread

    def _work(self) -> None:
        while True:
            bundle = self._wait_for_calls()
            if not bundle:
                return
            # At the end of a run, an outage is tried once more and then left.
            is_last_try = self._is_closing and self._trouble.outages > 0
            if self._make(bundle):
                self._forget(len(bundle))
            elif is_last_try:
                return
            else:
                self._wait_for_the_next_try()

    def _wait_for_calls(self) -> list[Numbers | Call]:
        """The calls to make next; empty once the logger is closed and nothing waits."""
        with self._news:
            self._news.wait_for(lambda: self._calls or self._is_closing)
            return self._next_bundle()

    def _forget(self, count: int) -> None:
        """Take the first calls out, which are over with."""
        with self._news:
            for _ in range(count):
                self._calls.popleft()
            if self._trouble.is_off:
                self._keep_only_the_end()

    def _keep_only_the_end(self) -> None:
        """Of a tracker that is off; to close it may still do something."""
        ends = [call for call in self._calls if isinstance(call, Call) and call.method in ENDS]
        self._calls.clear()
        self._calls.extend(ends)

    def _next_bundle(self) -> list[Numbers | Call]:
        """The first call; with it the numbers after it, where the target takes many at once."""
        bundle: list[Numbers | Call] = []
        limit = 1
        if hasattr(self.target, "log_many"):
            limit = BUNDLED_CALLS
        for call in self._calls:
            if len(bundle) == limit or (bundle and not isinstance(call, Numbers)):
                break
            bundle.append(call)
            if not isinstance(call, Numbers):
                break
        return bundle

    def _make(self, bundle: Sequence[Numbers | Call]) -> bool:
        """Makes these calls; returns whether they are over with.

        That is when they are taken, or refused, which another try would not change.
        """
        self._clock.call_began = time.monotonic()
        try:
            self._give(bundle)
        except Exception as error:
            why = f"{type(error).__name__}: {reason(error)}"
            if self._is_outage(error):
                self._be_away(why)
                return False
            self._be_refused(why)
            return True
        finally:
            self._clock.call_began = None
        self._clock.last_success = time.monotonic()
        self.counts.taken += sum(map(_size, bundle))
        self._trouble.refusals = 0
        self._trouble.outages = 0
        return True

    def _give(self, bundle: Sequence[Numbers | Call]) -> None:
        first = bundle[0]
        if isinstance(first, Call):
            getattr(self.target, first.method)(*first.arguments)
            return
        numbers = [call for call in bundle if isinstance(call, Numbers)]
        if hasattr(self.target, "log_many"):
            self.target.log_many(numbers)
            return
        for call in numbers:
            self.target.log_metrics(call.metrics, call.step)
        self.target.save()

    def _is_outage(self, error: Exception) -> bool:
        if hasattr(self.target, "is_outage"):
            return bool(self.target.is_outage(error))
        return isinstance(error, OSError)

    def _be_away(self, why: str) -> None:
        self._trouble.outages += 1
        self._trouble.last_error = why
        # The first one may be a connection that broke: it is tried again at once.
        if self._trouble.outages > 1:
            self._say_trouble(why)

    def _be_refused(self, why: str) -> None:
        """Leave these calls out; after several in a row the tracker is off."""
        self._trouble.last_error = why
        self._trouble.refusals += 1
        if self._trouble.refusals == 1:
            log.warning("%s did not take something: %s", self.label, why)
        if self._trouble.refusals == REFUSALS:
            log.warning(
                "%s failed %d times in a row and is off for the rest of this run",
                self.label,
                REFUSALS,
            )
            self._trouble.is_off = True

    def _wait_for_the_next_try(self) -> None:
        if self._trouble.outages == 1:
            time.sleep(FIRST_RETRY_SECONDS)
            return
        with self._news:
            self._news.wait_for(lambda: self._is_closing, RETRY_SECONDS)


def reason(error: BaseException) -> str:
    """What went wrong, in one short line.

    Of a connection that failed it is the operating system's own word.
    """
    # A library wraps what the system said: the innermost error is the first.
    cause = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if not isinstance(cause, OSError):
        cause = error
    text = " ".join(str(cause).split())
    return shortened(text, LONGEST_REASON)


def _size(call: Numbers | Call) -> int:
    if isinstance(call, Numbers):
        return len(call.metrics)
    return call.size


def note_unsent(folder: Path, label: str, count: int) -> None:
    """Notes in a run folder that a tracker is missing so many values more.

    A count of 0 means that it has all of them now.
    """
    path = folder / UNSENT_FILE
    notes = unsent(folder)
    if count:
        notes[label] = notes.get(label, 0) + count
    else:
        notes[label] = 0
    notes = {name: number for name, number in notes.items() if number}
    with suppress(OSError):  # a full disk has its own message
        if notes:
            path.write_text(json.dumps(notes) + "\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def unsent(folder: Path) -> dict[str, int]:
    """Tracker -> number of values that it is missing, of a run folder."""
    try:
        notes = json.loads((folder / UNSENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if isinstance(notes, dict):
        return {str(label): int(number) for label, number in notes.items()}
    return {}
