"""How far a sweep or a whole reproduction is: jobs done of all, what runs, and the time left.

Jobs count by their planned seconds, not by their number: a plan beside the logs has them, and says
what comes before and after each sweep. Finished jobs correct the plan. Where nothing was planned
all jobs count alike.

Where nobody watches a terminal, a Pulse prints such a line at least every 30 seconds.
"""

from __future__ import annotations

import heapq
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from clozelab.runs.record import write_json
from clozelab.text.formatting import duration

PULSE_SECONDS = 25.0  # between two lines; with what a line waits for, never more than 30
SHOWN_RUNNING = 2  # jobs that a line names
STEP = re.compile(r"\bstep (\d+)/(\d+)")  # as training logs it
# of the steps that a job has before it: after so many its own speed says how long it takes
TRUSTED_SHARE = 0.1


@dataclass(frozen=True)
class JobProgress:
    """What is known of one job: whether it ended, waits or runs, and its seconds so far."""

    name: str
    state: str
    """done | failed | running | waiting (also in line at a batch system); a job that was skipped
    is done with no seconds."""
    seconds: float = 0.0  # of its work
    planned: float | None = None  # seconds, before anything ran
    steps: tuple[int, int] | None = None  # (taken, of all), where its log says so
    # the first step that this launch has seen, and the seconds from there to the last one
    first_step: int = 0
    stepping_seconds: float = 0.0
    # it went on with what an earlier launch had begun, so its seconds are not those of a whole job
    is_resumed: bool = False

    @property
    def is_left(self) -> bool:
        return self.state in ("running", "waiting")


@dataclass(frozen=True)
class Outlook:
    """The place of one sweep in all that runs.

    There are jobs before and after it, and seconds planned for what comes after.
    """

    planned: Mapping[str, float] = field(default_factory=dict)  # job_key -> seconds
    jobs_before: int = 0
    jobs_after: int = 0
    seconds_after: float = 0.0
    # what is planned says how large jobs are beside each other, and not how long
    is_relative: bool = False

    @classmethod
    def read(cls, folder: Path, stage: str, *, is_part: bool) -> Outlook:
        """From the plan in a folder; where there is none, or a damaged one, nothing is planned.

        Args:
            stage: whose jobs these are.
            is_part: of a reproduction, whose other stages count, too; else of a sweep on its own.
        """
        file = folder / plan_file(None if is_part else stage)
        try:
            plan = json.loads(file.read_text(encoding="utf-8"))
            parts = [Part(**part) for part in plan["parts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        return outlook_of(stage, parts, is_part=is_part)


@dataclass(frozen=True)
class Part:
    """One part of a plan: a stage, `doctor` or `report`.

    It has wall seconds in all, and seconds of each job. `is_relative`: no speed is known, and those
    of the jobs only say how large they are beside each other.
    """

    name: str
    seconds: float
    jobs: Mapping[str, float] = field(default_factory=dict)
    is_relative: bool = False


def outlook_of(stage: str, parts: Sequence[Part], *, is_part: bool) -> Outlook:
    """Return the outlook of a stage among planned parts; `is_part`: the others run, too."""
    names = [part.name for part in parts]
    if stage not in names:
        return Outlook()
    index = names.index(stage)
    part = parts[index]
    if not is_part:
        return Outlook(part.jobs, is_relative=part.is_relative)
    before = parts[:index]
    after = parts[index + 1 :]
    return Outlook(
        part.jobs,
        jobs_before=sum(len(earlier.jobs) for earlier in before),
        jobs_after=sum(len(later.jobs) for later in after),
        seconds_after=sum(later.seconds for later in after),
    )


def plan_file(stage: str | None) -> str:
    """Name of the plan of a sweep that runs on its own, or (None) of a whole reproduction."""
    if stage is None:
        return "plan.json"
    return f"plan-{stage}.json"


def write_plan(folder: Path, parts: Sequence[Part], stage: str | None = None) -> None:
    """Keep a plan for the sweeps that will run with this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / plan_file(stage), {"parts": [vars(part) for part in parts]})


def job_key(overrides: Iterable[str]) -> str:
    """What a plan knows a job by: its overrides, as the sweeper gives them."""
    return " ".join(overrides)


def makespan(durations: Sequence[float], at_once: int) -> float:
    """Return the wall time of jobs that are started in order, so many at a time."""
    # When each of the places is free again: the next job takes the one that is free first.
    free = [0.0] * max(1, at_once)
    for seconds in durations:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def seconds_left(
    jobs: Sequence[JobProgress],
    at_once: int,
    seconds_after: float = 0.0,
    *,
    is_relative: bool = False,
) -> float | None:
    """Return how long the jobs that are left take, and what comes after them.

    None where nothing says so. Jobs without a plan are taken to be as long as the planned ones are
    on average, or all alike. What finished jobs took, beside what was planned for them, scales the
    others; so does a job that takes longer than that already.

    Args:
        seconds_after: planned for what comes after these jobs.
        is_relative: planned seconds only say how large jobs are beside each other.
    """
    left = [job for job in jobs if job.is_left]
    if not left:
        return _positive(seconds_after)
    expected = _expected_seconds(jobs)
    if not expected:
        return None
    is_planned = not is_relative and any(job.planned is not None for job in jobs)
    pace = _pace(jobs, expected, is_planned=is_planned)
    # those that run have begun before those that wait
    in_order = sorted(left, key=lambda job: job.state)
    remaining = [_remaining(job, pace * expected[id(job)]) for job in in_order]
    if not is_planned and 0.0 in remaining:
        return None  # without a plan, a job that does not say how far it is may take any time
    if is_planned:
        seconds_after = pace * seconds_after
    return _positive(makespan(remaining, min(at_once, len(left))) + seconds_after)


def _positive(seconds: float) -> float | None:
    """None where there is no time to speak of."""
    if seconds > 0.0:
        return seconds
    return None


def _expected_seconds(jobs: Sequence[JobProgress]) -> dict[int, float]:
    """Return planned seconds by the id of each job, the mean where a job has none.

    Empty where all are planned to take no time.
    """
    planned = [job.planned for job in jobs if job.planned is not None]
    mean = 1.0
    if planned:
        mean = sum(planned) / len(planned)
    if mean <= 0.0:
        return {}
    expected = {}
    for job in jobs:
        expected[id(job)] = mean
        if job.planned is not None:
            expected[id(job)] = job.planned
    return expected


def _pace(jobs: Sequence[JobProgress], expected: Mapping[int, float], *, is_planned: bool) -> float:
    """Return how much slower than expected the jobs are.

    Without a plan there is no unit, and it is the seconds a job takes (0: unknown).
    """
    # Skipped jobs are done with no seconds; they say nothing about the pace. Nor do resumed ones.
    fresh = [job for job in jobs if not job.is_resumed]
    finished = [job for job in fresh if job.state == "done" and job.seconds > 0.0]
    seconds_expected = sum(expected[id(job)] for job in finished)
    pace = 0.0
    if is_planned:
        pace = 1.0
    if seconds_expected > 0.0:
        pace = sum(job.seconds for job in finished) / seconds_expected
    if not is_planned:
        return pace
    # A job that runs, without saying how far it is, for longer than all that was expected of it.
    for job in fresh:
        if job.state == "running" and job.steps is None and expected[id(job)] > 0.0:
            pace = max(pace, job.seconds / expected[id(job)])
    return pace


def _remaining(job: JobProgress, expected: float) -> float:
    """Return the seconds that one job still takes.

    0 where it has taken longer than expected and does not say how far it is.
    """
    if job.steps is None:
        return max(0.0, expected - job.seconds)

    # By its own speed, once it has taken some steps: its start-up is no part of that.
    step, last_step = job.steps
    steps_left = last_step - step
    steps_seen = step - job.first_step
    is_seen = job.stepping_seconds > 0.0 and steps_seen > 0
    if is_seen and steps_seen >= TRUSTED_SHARE * (last_step - job.first_step):
        return job.stepping_seconds * steps_left / steps_seen
    # Steps of an earlier launch took none of its time.
    if job.is_resumed:
        return expected * steps_left / last_step
    if step >= TRUSTED_SHARE * last_step:
        return job.seconds * steps_left / step
    return max(0.0, expected - job.seconds)


def progress_line(jobs: Sequence[JobProgress], at_once: int, outlook: Outlook) -> str:
    """`12 of 48 done, 2 run (pretrain/mlm/seed-2 step 400 of 1,000, ...), about 6.0 min left`."""
    running = [job for job in jobs if job.state == "running"]
    line = counted(jobs, outlook)
    if running:
        names = [_named(job) for job in running[:SHOWN_RUNNING]]
        if len(running) > SHOWN_RUNNING:
            names.append("...")
        line += f", {len(running)} run ({', '.join(names)})"
    return line + time_words(left_at(outlook, jobs, at_once))


def left_at(outlook: Outlook, jobs: Sequence[JobProgress], at_once: int) -> float | None:
    """`seconds_left` of a sweep in its place."""
    return seconds_left(jobs, at_once, outlook.seconds_after, is_relative=outlook.is_relative)


def counted(jobs: Sequence[JobProgress], outlook: Outlook) -> str:
    """`12 of 48 done`, of all sweeps that belong together."""
    ended = outlook.jobs_before + sum(not job.is_left for job in jobs)
    total = outlook.jobs_before + len(jobs) + outlook.jobs_after
    return f"{ended} of {total} done"


def time_words(seconds: float | None) -> str:
    """`, about 6.0 min left`; empty where nobody knows."""
    if seconds is None:
        return ""
    return f", about {duration(seconds)} left"


def _named(job: JobProgress) -> str:
    if job.steps is None:
        return f"{job.name} for {duration(job.seconds)}"
    return f"{job.name} step {job.steps[0]:,} of {job.steps[1]:,}"


def steps_in(lines: Sequence[str]) -> tuple[int, int] | None:
    """Return (steps taken, of all) by the last line of a log that says it."""
    for line in reversed(lines):
        match = STEP.search(line)
        if match:
            return int(match[1]), int(match[2])
    return None


class Pulse:
    """Prints a line wherever PULSE_SECONDS have passed since the last one.

    It does not where a terminal shows more anyway. Whoever prints for other reasons says so by
    `spoken`. `beat` is called from a loop; `in_background` beats by itself.
    """

    def __init__(
        self,
        console: Console,
        line: Callable[[], str],
        seconds: float | None = None,
    ) -> None:
        self.console, self.line = console, line
        if seconds is None:
            self.seconds = PULSE_SECONDS
        else:
            self.seconds = seconds
        self._spoken = time.monotonic()

    def spoken(self) -> None:
        """Something was printed now."""
        self._spoken = time.monotonic()

    def beat(self) -> None:
        """Print the line if it is due."""
        if self.console.is_terminal or time.monotonic() - self._spoken < self.seconds:
            return
        self.console.print(self.line(), markup=False, highlight=False, soft_wrap=True)
        self.spoken()

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Beat in a thread while something else works; not for code that forks."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(min(1.0, self.seconds)):
                self.beat()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
