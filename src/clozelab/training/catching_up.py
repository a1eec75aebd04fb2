"""What a tracker lacks of a run's numbers after a kill, found by comparing it with metrics.csv.

For example, a run is killed in step 57 and goes on after step 40. TensorBoard had not written steps
31 to 57 yet, and W&B's service took its last 32 KiB along. metrics.csv has every step up to 40, so
what a tracker does not hold of these is sent again, and what it holds behind them is not repeated.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger

from clozelab.text.plain import read_json
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, read_rows

UNSENT_FILE = "unsent.json"  # in a run folder, see `note_unsent`
CALLS_AT_ONCE = 200  # given to a tracker that takes several
# Of a value that went through a tracker: TensorBoard keeps float32, metrics.csv milliseconds.
RELATIVE_TOLERANCE = 1e-6
SECONDS_TOLERANCE = 1e-3

# (key, step) -> the values that a tracker holds of it
Recorded = dict[tuple[str, int], list[float]]


@dataclass(frozen=True)
class MetricCall:
    """One call of log_metrics, with the time at which it was made (seconds since 1970)."""

    metrics: dict[str, float]
    step: int | None
    time: float

    @property
    def size(self) -> int:
        return len(self.metrics)


def recorded_calls(
    metrics_csv: Path, began: float, last_step: float = math.inf
) -> list[MetricCall]:
    """The metrics that the trackers of a run got until `last_step`: one call a step.

    `began`: the run's start in seconds since 1970; metrics.csv counts from there.
    """
    calls = []
    # A line holds one figure; the lines of a step stand together, as groupby wants them.
    for step, rows in itertools.groupby(read_rows(metrics_csv), attrgetter("step")):
        metrics: dict[str, float] = {}
        seconds = 0.0
        for row in rows:
            metrics |= {TOKENS_KEY: float(row.tokens), SECONDS_KEY: row.seconds, row.key: row.value}
            seconds = row.seconds
        if step <= last_step:
            calls.append(MetricCall(metrics, step, began + seconds))
    return calls


def recorded_by(tracker: Logger) -> Recorded | None:
    """What a tracker holds of its run; None for one that cannot say it."""
    if isinstance(tracker, CSVLogger):
        return {}  # it begins its table anew at each start
    if not hasattr(tracker, "recorded_values"):
        return None
    recorded: Recorded = tracker.recorded_values()
    return recorded


def unrecorded(calls: Iterable[MetricCall], recorded: Recorded) -> list[MetricCall]:
    """The calls without those values that are recorded under the same key and step."""
    missing = []
    for call in calls:
        metrics = _unrecorded_metrics(call, recorded)
        if metrics:
            missing.append(replace(call, metrics=metrics))
    return missing


def _unrecorded_metrics(call: MetricCall, recorded: Recorded) -> dict[str, float]:
    step = call.step or 0
    metrics = {}
    for key, value in call.metrics.items():
        values = recorded.get((key, step), ())
        if not _is_among(values, key, value):
            metrics[key] = value
    return metrics


def _is_among(values: Sequence[float], key: str, value: float) -> bool:
    if math.isnan(value):
        return any(map(math.isnan, values))
    is_close = partial(math.isclose, value, rel_tol=RELATIVE_TOLERANCE)
    if key == SECONDS_KEY:
        is_close = partial(is_close, abs_tol=SECONDS_TOLERANCE)
    return any(map(is_close, values))


def catch_up(
    tracker: Logger, calls: Sequence[MetricCall], recorded: Recorded, last_step: float = math.inf
) -> tuple[int, Recorded]:
    """Send a tracker what it lacks of `calls`, which are all until `last_step`.

    Returns the number of values sent, and what it holds beside them: of later steps, which a run
    that goes on measures again, and final scores.
    """
    missing = unrecorded(calls, recorded)
    if hasattr(tracker, "drop_from"):
        # Files that only grow are written anew from the first gap on: their steps stay in order.
        first_step = min([call.step or 0 for call in missing], default=last_step + 1)
        if first_step < math.inf:
            tracker.drop_from(int(first_step))
        recorded = _recorded_where(recorded, lambda step: step < first_step)
        missing = unrecorded(calls, recorded)
    give(tracker, missing)
    steps = {call.step for call in calls}
    num_values = sum(call.size for call in missing)
    return num_values, _recorded_where(recorded, lambda step: step not in steps)


def _recorded_where(recorded: Recorded, is_kept: Callable[[int], bool]) -> Recorded:
    return {place: values for place, values in recorded.items() if is_kept(place[1])}


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


def read_wandb_history(path: Path) -> Iterator[dict[str, float]]:
    """The numbers of each call in one of W&B's own files, whose last call may be cut."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    for record_bytes in _records_of(path.read_bytes()):
        record = Record.FromString(record_bytes)
        if record.HasField("history"):
            yield _numbers_of(record.history.item)


def _records_of(data: bytes) -> Iterator[bytes]:
    """The whole records of a LevelDB log behind 7 bytes.

    It has blocks of 32 KiB with chunks, whose header of 7 bytes is checksum, length and kind (1
    whole, 2 to 4 first, middle, last).
    """
    position = 7
    record_bytes = b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        chunk_kind = data[position + 6]
        record_bytes += data[position + 7 : position + 7 + length]
        position += 7 + length
        if chunk_kind == 0 or position > len(data):
            return
        if chunk_kind in (1, 4):
            yield record_bytes
            record_bytes = b""


def _numbers_of(items: Iterable[object]) -> dict[str, float]:
    """Key -> value of a call's items; pictures and tables are left out."""
    numbers = {}
    for item in items:
        name = item.key or ".".join(item.nested_key)  # type: ignore[attr-defined]
        # W&B writes numbers that are none as strings: "NaN", "Infinity".
        with suppress(ValueError, TypeError):
            numbers[name] = float(json.loads(item.value_json))  # type: ignore[attr-defined]
    return numbers
