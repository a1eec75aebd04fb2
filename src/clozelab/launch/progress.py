"""How far a sweep or a whole reproduction is: jobs done of all, what runs, and the time left.

Jobs count by their planned seconds, not by their number: a plan beside the logs has them, and says
what comes before and after each sweep. Finished jobs correct the plan. Where nothing was planned
all jobs count alike.

Where nobody watches a terminal, a Heartbeat prints such a line at least every 30 seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from claims.text.phrases import duration
from clozelab.launch.processes import Job, JobState
from clozelab.runs.record import write_json
from clozelab.runs.time_left import JobForecast, wall_seconds_left
from clozelab.terminal import say
from clozelab.text.plain import read_json

HEARTBEAT_SECONDS = 25.0  # between two lines; with what a line waits for, never more than 30
SHOWN_RUNNING = 2  # jobs that a line names


@dataclass(frozen=True)
class PlanPart:
    """One part of a plan: a stage, `doctor` or `report`.

    It has wall seconds in all, and seconds of each job. `is_relative`: no speed is known, and those
    of the jobs only say how large they are beside each other.
    """

    name: str
    seconds: float
    jobs: Mapping[str, float] = field(default_factory=dict)
    is_relative: bool = False


@dataclass(frozen=True)
class SweepEstimate:
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
    def read(cls, folder: Path, stage: str, *, is_part: bool) -> SweepEstimate:
        """From the plan in a folder; where there is none, or a damaged one, nothing is planned.

        Args:
            stage: whose jobs these are.
            is_part: of a reproduction, whose other stages count, too; else of a sweep on its own.
        """
        file = plan_file(stage)
        if is_part:
            file = plan_file(None)
        try:
            plan = read_json(folder / file)
            stage_plans = [PlanPart(**stage_plan) for stage_plan in plan["parts"]]
            index = [stage_plan.name for stage_plan in stage_plans].index(stage)
        except (OSError, ValueError, KeyError, TypeError):
            return NO_ESTIMATE
        # A plan of a sweep on its own has that part alone.
        current = stage_plans[index]
        after = stage_plans[index + 1 :]
        jobs_before = sum(len(stage_plan.jobs) for stage_plan in stage_plans[:index])
        jobs_after = sum(len(stage_plan.jobs) for stage_plan in after)
        seconds_after = sum(stage_plan.seconds for stage_plan in after)
        return cls(current.jobs, jobs_before, jobs_after, seconds_after, current.is_relative)


NO_ESTIMATE = SweepEstimate()


def plan_file(stage: str | None) -> str:
    """Name of the plan of a sweep that runs on its own, or (None) of a whole reproduction."""
    if stage is None:
        return "plan.json"
    return f"plan-{stage}.json"


def write_plan(folder: Path, parts: Sequence[PlanPart], stage: str | None = None) -> None:
    """Keep a plan for the sweeps that will run with this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / plan_file(stage), {"parts": [vars(part) for part in parts]})


def job_key(overrides: Iterable[str]) -> str:
    """What a plan knows a job by: its overrides, as the sweeper gives them."""
    return " ".join(overrides)


def seconds_left(jobs: Sequence[Job], at_once: int, estimate: SweepEstimate) -> float | None:
    """Return how long the jobs that are left take, and what comes after them.

    None where nothing says so. Jobs without a plan are taken to be as long as the planned ones are
    on average, or all alike. What finished jobs took, beside what was planned for them, scales the
    others; so does a job that takes longer than that already.
    """
    left = [job for job in jobs if job.state.is_left]
    if not left:
        return estimate.seconds_after or None
    sizes = _sizes(jobs)
    if sizes is None:
        return None
    has_plan = any(job.planned is not None for job in jobs)
    is_planned = has_plan and not estimate.is_relative
    pace = _pace(jobs, sizes, is_planned=is_planned)
    # those that run have begun before those that wait
    in_order = sorted(left, key=lambda job: not job.is_working)
    forecasts = [_forecast(job, pace * sizes[job.name], is_planned=is_planned) for job in in_order]
    seconds = wall_seconds_left(forecasts, at_once)
    if seconds is None:
        return None
    if is_planned:
        seconds += pace * estimate.seconds_after
    return seconds or None


def _forecast(job: Job, seconds: float, *, is_planned: bool) -> JobForecast:
    """Return what is known of one job that is left, of which so many seconds are expected.

    Without a plan, one that has taken longer and does not say how far it is may take any time.
    """
    expected: float | None = seconds
    if not is_planned and seconds <= job.work_seconds:
        expected = None
    measured = job.progress.seconds_left if job.is_working else None
    return JobForecast(expected, job.work_seconds, measured)


def _sizes(jobs: Sequence[Job]) -> dict[str, float] | None:
    """Return job -> its planned seconds, or those of the mean job; 1 for all without any plan.

    None where all plans are 0, which says nothing of jobs without one.
    """
    planned = [job.planned for job in jobs if job.planned is not None]
    mean = 1.0
    if planned:
        mean = sum(planned) / len(planned)
    if mean <= 0.0:
        return None
    sizes = dict.fromkeys((job.name for job in jobs), mean)
    return sizes | {job.name: job.planned for job in jobs if job.planned is not None}


def _pace(jobs: Sequence[Job], sizes: Mapping[str, float], *, is_planned: bool) -> float:
    """Return how much slower than planned the jobs are.

    Without a plan there is no unit, and it is the seconds of a job of size 1 (0: unknown).
    """
    # Skipped jobs are no news of the pace, and what resumed ones took is not the whole of it.
    fresh = [job for job in jobs if not job.is_resumed]
    finished = [job for job in fresh if job.state == JobState.COMPLETE and job.work_seconds]
    size = sum(sizes[job.name] for job in finished)
    pace = float(is_planned)
    if size > 0.0:
        pace = sum(job.work_seconds for job in finished) / size
    if not is_planned:
        return pace
    # A job that runs, without saying how far it is, for longer than all that was expected of it.
    for job in fresh:
        if job.is_working and job.progress.seconds_left is None and sizes[job.name] > 0.0:
            pace = max(pace, job.work_seconds / sizes[job.name])
    return pace


def progress_line(jobs: Sequence[Job], at_once: int, estimate: SweepEstimate) -> str:
    """`12 of 48 done, 2 run (pretrain/mlm/seed-2 step 400 of 1,000, ...), about 6.0 min left`."""
    running = [job for job in jobs if job.is_working]
    line = counted(jobs, estimate)
    if running:
        names = [_named(job) for job in running[:SHOWN_RUNNING]]
        if len(running) > SHOWN_RUNNING:
            names.append("...")
        line += f", {len(running)} run ({', '.join(names)})"
    return line + format_time_left(seconds_left(jobs, at_once, estimate))


def counted(jobs: Sequence[Job], estimate: SweepEstimate) -> str:
    """`12 of 48 done`, of all sweeps that belong together."""
    ended = estimate.jobs_before + sum(not job.state.is_left for job in jobs)
    total = estimate.jobs_before + len(jobs) + estimate.jobs_after
    return f"{ended} of {total} done"


def format_time_left(seconds: float | None) -> str:
    """`, about 6.0 min left`; empty where nobody knows."""
    if seconds is None:
        return ""
    return f", about {duration(seconds)} left"


def position(job: Job) -> str:
    """`step 412 of 1,000`, with a long silence; empty where its folder does not say."""
    progress = job.progress
    if progress.total_steps is None:
        return ""
    step = f"step {progress.step:,} of {progress.total_steps:,}"
    return ", ".join(filter(None, [step, progress.silence]))


def _named(job: Job) -> str:
    return f"{job.name} {position(job) or f'for {duration(job.work_seconds)}'}"


@dataclass
class Heartbeat:
    """Prints a line wherever HEARTBEAT_SECONDS have passed since the last one.

    It does not where a terminal shows more anyway. Whoever prints for other reasons says so by
    `note_output`. `beat` is called from a loop; `in_background` beats in a thread.
    """

    console: Console
    line: Callable[[], str]
    _last_output_at: float = field(default_factory=time.monotonic)

    def note_output(self) -> None:
        """Note that a line was printed now."""
        self._last_output_at = time.monotonic()

    def beat(self) -> None:
        """Print the line if it is due."""
        if self.console.is_terminal or time.monotonic() - self._last_output_at < HEARTBEAT_SECONDS:
            return
        say(self.line(), console=self.console)
        self.note_output()

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Beat while something else works; it may start processes, and must not fork itself."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(min(1.0, HEARTBEAT_SECONDS)):
                self.beat()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
