"""The time that is left: of one job, and by the clock of several that share a machine.

`status`, the screen of a sweep and `plan` all ask here. They differ in what they know of a job.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JobForecast:
    """What is known of the time of a job that has not ended.

    Attributes:
        expected_seconds: of the whole job, by a plan or by jobs like it; None where neither is.
        done_seconds: that it has worked.
        measured_seconds_left: by its own step and speed; None before it has any.
    """

    expected_seconds: float | None
    done_seconds: float = 0.0
    measured_seconds_left: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """None where nothing says so; 0 for one that has taken longer than expected."""
        if self.measured_seconds_left is not None:
            return self.measured_seconds_left
        if self.expected_seconds is None:
            return None
        return max(0.0, self.expected_seconds - self.done_seconds)


def wall_seconds_left(jobs: Iterable[JobForecast], at_once: int) -> float | None:
    """Return the wall time of jobs that are started in order; None where that of one is unknown."""
    seconds_left = []
    for job in jobs:
        if job.seconds_left is None:
            return None
        seconds_left.append(job.seconds_left)
    return makespan(seconds_left, at_once)


def makespan(durations: Sequence[float], at_once: int) -> float:
    """Return the wall time of jobs that are started in order, so many at a time."""
    # When each of the places is free again: the next job takes the one that is free first.
    # Three jobs of 2 s, two at once: [0, 0], [0, 2], [2, 2], [2, 4], so 4 s in all.
    free = [0.0] * max(1, at_once)
    for seconds in durations:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)
