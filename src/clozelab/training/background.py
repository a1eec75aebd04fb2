"""Trackers that are spoken to from a thread of their own, so that none stops or slows a training.

For example, the machine with the MLflow server is switched off in the middle of a run. The training
goes on, a warning says so once, and what waits is tried again every half minute. If the server is
back before the end, nothing is lost; otherwise a last line says how much is missing, and the
command that sends it from metrics.csv.

Unusual: the thread is a daemon, and nobody waits for it longer than `close` says. A call that never
comes back costs a run ten seconds at its end, and the process nothing."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from clozelab.text.formatting import shortened
from clozelab.text.plain import Json, PlainMapping
from clozelab.training.catching_up import (
    CALLS_AT_ONCE,
    MetricCall,
    give,
    note_unsent,
    recorded_calls,
    send_again,
    unsent,
)
from clozelab.training.measuring import SECONDS_KEY

log = logging.getLogger(__name__)

# How many calls, and how long, a tracker is waited for.
WAITING_CALLS = 50_000  # kept for a tracker that is away or slow; later ones are only counted
SILENT_SECONDS = 10.0  # of one call, after which the tracker is said not to answer
RETRY_SECONDS = 30.0
FIRST_RETRY_SECONDS = 1.0  # of a connection that broke, where nothing is said yet
SEND_AGAIN = "send_again"  # the one call that is not a method of the target
REFUSALS = 3  # calls in a row that fail for another reason than an outage; then the tracker is off
CLOSE_SECONDS = 10.0  # at the end of a run, without anything being taken
LONGEST_CLOSE_SECONDS = 60.0  # at the end of a run, for a tracker that takes things, but slowly
LONGEST_REASON = 160  # characters


@dataclass(frozen=True)
class Call:
    """A call of any other method; `size` is the number of values that it carries."""

    method: str
    arguments: tuple[object, ...]
    size: int = 0

    @property
    def is_end(self) -> bool:
        """Whether it ends a tracker's run."""
        return self.method in ("close", "finalize")


def final_numbers(scores: PlainMapping) -> dict[str, float]:
    """Final scores as figures, for a tracker that has no place of its own for them."""
    numbers = {}
    for key, value in scores.items():
        if isinstance(value, int | float):
            numbers[f"final/{key}"] = float(value)
    return numbers


class BackgroundLogger(Logger):
    """A logger of Lightning's, spoken to from one thread; calls return at once.

    Args:
        target: the logger. It may have `log_many(list of MetricCall)`, which takes several calls at
            once, `begin_anew()`, which drops what it has of the run, `summarise(scores)`,
            `close(exit_code)`, and `is_outage(error)`, which tells an outage (tried again) from a
            refusal (left out). Without that method an OSError is an outage.
        label: its name in messages, for example "mlflow".
        folder: the run folder, whose metrics.csv the tracker is sent after a kill, and which the
            command for missing values names; None: there is neither.
        began: when the run began, in seconds since 1970; None: now.

    Only the first rank has a thread. Anything else than the methods below goes to the target, in
    the caller's thread.
    """

    def __init__(
        self, target: Logger, label: str, folder: Path | None = None, began: float | None = None
    ) -> None:
        super().__init__()
        self.target = target
        self.label = label
        self.folder = folder
        self.began = time.time() if began is None else began
        self._seconds = 0.0  # of training, as the last call says
        # What earlier starts of this run have left unsent.
        self._unsent_before: int | None = 0
        self._is_behind = False
        if folder is not None:
            self._unsent_before = unsent(folder).get(label, 0)
            has_numbers = (folder / "metrics.csv").exists()
            begins_anew = isinstance(target, CSVLogger) and has_numbers
            self._is_behind = self._unsent_before != 0 or begins_anew
        # Values given to the tracker, and values that it took.
        self.given = 0
        self.taken = 0
        # What is wrong with it now: failures in a row, and what was said of them.
        self._outages = 0
        self._refusals = 0
        self._is_off = False
        self._is_trouble_said = False
        self._last_error = ""
        # Moments on the monotonic clock: of the call that is being made, and of the last success.
        self._call_began: float | None = None
        self._last_success = 0.0
        # Calls that wait, the news of one, and the thread that makes them.
        self._calls: deque[MetricCall | Call] = deque()
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

    def __getattr__(self, name: str) -> object:
        # Lightning asks every logger for its experiment before it trains; only of files is that no
        # wait.
        is_local = isinstance(self.__dict__.get("target"), TensorBoardLogger | CSVLogger)
        if name.startswith("__") or name == "target" or (name == "experiment" and not is_local):
            raise AttributeError(f"{name}; what may wait for a server is logger.target.{name}")
        return getattr(self.target, name)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        numbers = {key: float(value) for key, value in metrics.items()}
        if SECONDS_KEY in numbers:
            # rounded as in metrics.csv, so that a call that is sent again is the same
            self._seconds = numbers[SECONDS_KEY] = round(numbers[SECONDS_KEY], 3)
        self._put(MetricCall(numbers, step, self.began + self._seconds))

    def log_hyperparams(self, params: Json, *_: object, **__: object) -> None:
        self._put(Call("log_hyperparams", (params,), len(params)))

    def go_on_after(self, step: int) -> None:
        """Training goes on after this step (-1: all is measured again), also in mid-run.

        A tracker that an earlier start has left behind is sent all of metrics.csv until there.
        """
        if self._is_behind:
            self._is_behind = False
            self._put(Call(SEND_AGAIN, (step,)))
        elif hasattr(self.target, "drop_from"):
            self._put(Call("drop_from", (step + 1,)))

    def save(self) -> None:
        """The thread saves after each of its bundles."""

    def finalize(self, status: str) -> None:
        """Not yet: a run's scores follow, and `close` ends it."""

    def summarise(self, scores: PlainMapping) -> None:
        """The final scores of a run."""
        if hasattr(self.target, "summarise"):
            self._put(Call("summarise", (dict(scores),), len(scores)))
        else:
            self._put(MetricCall(final_numbers(scores), 0, self.began + self._seconds))

    def call(self, method: str, *arguments: object) -> None:
        """Another method of the target, from the thread and in its turn."""
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
        self._warn_of_missing()

    # In the caller's thread

    @rank_zero_only
    def _put(self, call: MetricCall | Call) -> None:
        if self._thread is None:
            self._start()
        with self._news:
            self.given += call.size
            # A tracker that is far behind is not given more; but it is closed.
            is_end = isinstance(call, Call) and call.is_end
            if is_end or len(self._calls) < WAITING_CALLS:
                self._calls.append(call)
            self._news.notify()
        began = self._call_began
        if began is not None and time.monotonic() - began > SILENT_SECONDS:
            self._warn_of_failure(f"no answer for {SILENT_SECONDS:.0f} s")

    def _start(self) -> None:
        # Packages are imported here and not in the thread: a data worker that is forked in the
        # middle of another thread's import would wait for that import for ever.
        if hasattr(self.target, "load_package"):
            self.target.load_package()
        # A kill leaves this note, and `close` takes it away.
        if self.folder is not None:
            note_unsent(self.folder, self.label, None)
        self._thread = threading.Thread(
            target=self._work, name=f"tracker {self.label}", daemon=True
        )
        self._thread.start()

    def _wait_for_the_end(self, patience: float) -> None:
        """Waits for the thread, as long as the tracker takes something every `patience` seconds."""
        assert self._thread is not None, "close looks at that"
        began = time.monotonic()
        self._last_success = began
        while self._thread.is_alive():
            self._thread.join(0.02)
            now = time.monotonic()
            is_silent = now - self._last_success > patience
            if is_silent or now - began > LONGEST_CLOSE_SECONDS + patience:
                self._last_error = self._last_error or f"no answer for {patience:.0f} s"
                return

    def _warn_of_missing(self) -> None:
        missing: int | None = self.given - self.taken
        # What an earlier start has lost stays lost where the tracker did not take it since.
        if self._unsent_before is None:
            missing = None
        elif missing is not None:
            missing += self._unsent_before
        command = ""
        if self.folder is not None:
            note_unsent(self.folder, self.label, missing)
            line = shlex.join(["clozelab", "track", str(self.folder), f"logger={self.label}"])
            command = f"; metrics.csv has the numbers, and this sends them: {line}"
        if missing is None:
            log.warning(
                "%s may be missing values of a start that was killed%s", self.label, command
            )
        elif missing:
            log.warning(
                "%s is missing %d of %d values (%s)%s",
                self.label,
                missing,
                self.given,
                self._last_error,
                command,
            )

    def _warn_of_failure(self, why: str) -> None:
        self._last_error = why
        if self._is_trouble_said:
            return
        self._is_trouble_said = True
        log.warning(
            "%s: %s. The run goes on without it, and it is tried again until the end",
            self.label,
            why,
        )

    # In the thread

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._calls or self._is_closing)
                bundle = self._next_bundle()
            if not bundle:
                return
            # At the end of a run, an outage is tried once more and then left.
            is_last_try = self._is_closing and self._outages > 0
            if self._make(bundle):
                for _ in bundle:
                    self._calls.popleft()
            elif is_last_try:
                return
            elif self._outages == 1:
                time.sleep(FIRST_RETRY_SECONDS)
            else:
                with self._news:
                    self._news.wait_for(lambda: self._is_closing, RETRY_SECONDS)

    def _next_bundle(self) -> list[MetricCall | Call]:
        """The first call; with it the numbers after it, where the target takes many at once.

        Nothing where nothing waits.
        """
        bundle = list(islice(self._calls, CALLS_AT_ONCE))
        numbers = list(takewhile(lambda call: isinstance(call, MetricCall), bundle))
        if numbers and hasattr(self.target, "log_many"):
            return numbers
        return bundle[:1]

    def _make(self, bundle: Sequence[MetricCall | Call]) -> bool:
        """Makes these calls; returns whether they are over with.

        That is when they are taken, or refused, which another try would not change.
        """
        first = bundle[0]
        if self._is_off and not (isinstance(first, Call) and first.is_end):
            return True
        self._call_began = time.monotonic()
        try:
            self._send(bundle)
        except Exception as error:
            return self._note_failure(error)
        finally:
            self._call_began = None
        self._last_success = time.monotonic()
        self.taken += sum(call.size for call in bundle)
        self._refusals = 0
        self._outages = 0
        return True

    def _send(self, bundle: Sequence[MetricCall | Call]) -> None:
        first = bundle[0]
        if not isinstance(first, Call):
            give(self.target, [call for call in bundle if isinstance(call, MetricCall)])
        elif first.method == SEND_AGAIN:
            self._send_again(*first.arguments)
        else:
            getattr(self.target, first.method)(*first.arguments)

    def _send_again(self, step: object) -> None:
        assert isinstance(step, int) and self.folder is not None, "go_on_after sees to that"
        calls = recorded_calls(self.folder / "metrics.csv", self.began, step)
        num_values = send_again(self.target, calls)
        self._unsent_before = 0
        if num_values:
            log.info("%s lacked some values, and was sent all %d again", self.label, num_values)

    def _note_failure(self, error: Exception) -> bool:
        """Whether calls are refused, and so left out; after several in a row the tracker is off."""
        why = f"{type(error).__name__}: {reason(error)}"
        self._last_error = why
        is_outage = isinstance(error, OSError)
        if hasattr(self.target, "is_outage"):
            is_outage = self.target.is_outage(error)
        if is_outage:
            self._outages += 1
            # The first one may be a connection that broke: it is tried again at once.
            if self._outages > 1:
                self._warn_of_failure(why)
            return False
        self._refusals += 1
        if self._refusals == 1:
            log.warning("%s did not take something: %s", self.label, why)
        if self._refusals == REFUSALS:
            self._is_off = True
            log.warning(
                "%s failed %d times in a row and is off for the rest of this run",
                self.label,
                REFUSALS,
            )
        return True


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
    return shortened(" ".join(str(cause).split()), LONGEST_REASON)
