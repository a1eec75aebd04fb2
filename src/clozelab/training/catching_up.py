"""After a kill a tracker is sent the whole of metrics.csv again.

For example, a run is killed in step 57 and goes on after step 40. TensorBoard had not written steps
31 to 57 yet, and W&B's service took its last 32 KiB along. metrics.csv has every step up to 40: a
tracker gets all of them. One that can begin anew drops what it had before; MLflow keeps a point
that it gets twice once.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from lightning.pytorch.loggers import Logger

from clozelab.text.plain import read_json
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, read_rows

UNSENT_FILE = "unsent.json"  # in a run folder, see `note_unsent`
CALLS_AT_ONCE = 200  # given to a tracker that takes several


@dataclass(frozen=True)
class MetricCall:
    """One call of log_metrics. `time` is the run's start and its training time since, in seconds
    since 1970: the same when it is sent again."""

    metrics: dict[str, float]
    step: int | None
    time: float

    @property
    def size(self) -> int:
        return len(self.metrics)


def recorded_calls(
    metrics_csv: Path, began: float, last_step: float = math.inf
) -> list[MetricCall]:
    """The calls that the trackers of a run got until `last_step`.

    `began`: the run's start in seconds since 1970; metrics.csv counts from there.
    """
    calls = []
    # A line holds one figure; the lines of a call stand together, as groupby wants them.
    by_call = itertools.groupby(read_rows(metrics_csv), attrgetter("step", "seconds"))
    for (step, seconds), rows in by_call:
        metrics: dict[str, float] = {}
        for row in rows:
            metrics |= {TOKENS_KEY: float(row.tokens), SECONDS_KEY: seconds, row.key: row.value}
        if step <= last_step:
            calls.append(MetricCall(metrics, step, began + seconds))
    return calls


def send_again(tracker: Logger, calls: Sequence[MetricCall]) -> int:
    """Send a tracker these calls, which are all, in place of what it had; returns their values."""
    if hasattr(tracker, "begin_anew"):
        tracker.begin_anew()
    give(tracker, calls)
    return sum(call.size for call in calls)


def give(tracker: Logger, calls: Sequence[MetricCall]) -> None:
    """Log several calls, many at once where the tracker takes them so."""
    if hasattr(tracker, "log_many"):
        for begin in range(0, len(calls), CALLS_AT_ONCE):
            tracker.log_many(calls[begin : begin + CALLS_AT_ONCE])
        return
    for call in calls:
        tracker.log_metrics(call.metrics, call.step)
        tracker.save()


def note_unsent(folder: Path, label: str, count: int | None) -> None:
    """Note in a run folder how many values a tracker is missing.

    None: nobody knows, for its run is open or was killed. 0: it has all of them.
    """
    path = folder / UNSENT_FILE
    notes = unsent(folder) | {label: count}
    if count == 0:
        del notes[label]
    with suppress(OSError):  # a full disk has its own message
        if notes:
            path.write_text(json.dumps(notes) + "\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def unsent(folder: Path) -> dict[str, int | None]:
    """Tracker -> number of values that it is missing (None: unknown), of a run folder."""
    try:
        notes = read_json(folder / UNSENT_FILE)
    except (OSError, ValueError):
        return {}
    return dict(notes) if isinstance(notes, dict) else {}
