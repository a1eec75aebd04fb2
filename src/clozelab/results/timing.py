"""How long work takes, as finished runs did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from statistics import fmean

from clozelab.runs.record import Record


def seconds_of_work(work: Sequence[tuple[Sequence[Record], int]]) -> float | None:
    """What parts of some work take together: (finished runs of a part, how often it is done).

    None where a part has no finished run to go by, and without any part.
    """
    total = 0.0
    for runs, count in work:
        seconds = [run.seconds for run in runs if run.seconds]
        if not seconds:
            return None
        total += fmean(seconds) * count
    all_runs = chain.from_iterable(runs for runs, _ in work)
    return total / _parallelism(all_runs) if work else None


def _parallelism(runs: Iterable[Record]) -> float:
    """How many of some runs went on at once, on average while any did."""
    stretches = []
    for run in runs:
        if run.finished:
            begin, end = map(datetime.fromisoformat, (run.started, run.finished))
            # A night may lie between two sessions; `seconds` counts the sessions alone.
            if run.sessions > 1:
                begin = end - timedelta(seconds=run.seconds)
            stretches.append((begin, end))
    busy = 0.0
    wall = 0.0
    latest = datetime.min.replace(tzinfo=UTC)
    for start, end in sorted(stretches):
        busy += (end - start).total_seconds()
        # Only what lies behind the end of all earlier ones is new on the clock.
        wall += max(0.0, (end - max(start, latest)).total_seconds())
        latest = max(latest, end)
    return busy / wall if wall else 1.0
