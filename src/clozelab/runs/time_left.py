"""The time left: of one job, and the wall time of several jobs that share a machine.

The verb `status`, the screen of a sweep and the verb `plan` all use it. They differ in what they
know about a job.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class JobForecast:
    """What is known about the duration of a job that has not ended.

    Attributes:
        expected_seconds: of the whole job, from a plan or from similar jobs; None without either.
        done_seconds: how long the job has worked.
        measured_seconds_left: from the job's own step and speed; None before its first log line.
    """

    expected_seconds: float | None
    done_seconds: float = 0.0
    measured_seconds_left: float | None = None

    @property
    def seconds_left(self) -> float | None:
        """By the job's own measure, else by what is expected: 0 once it is overdue.

        None where neither is known.
        """
        if self.measured_seconds_left is not None:
            return self.measured_seconds_left
        if self.expected_seconds is None:
            return None
        return max(0.0, self.expected_seconds - self.done_seconds)


def wall_seconds_left(jobs: Iterable[JobForecast], at_once: int) -> float | None:
    """Return the wall time of jobs that start in order, `at_once` at a time.

    None where the time left of one of them is unknown.
    """
    seconds_left = []
    for job in jobs:
        if job.seconds_left is None:
            return None
        seconds_left.append(job.seconds_left)
    return makespan(seconds_left, at_once)


def makespan(durations: Sequence[float], at_once: int) -> float:
    """Return the seconds until jobs of these durations, started in order, have all ended.

    So many jobs run `at_once`.
    """
    # When each slot is free again: the next job takes the slot that is free first.
    # Three jobs of 2 s, two at once: [0, 0], [0, 2], [2, 2], [2, 4], so 4 s in all.
    free = [0.0] * max(1, at_once)
    for seconds in durations:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)
