"""How far a run is, and how long what is left of a sweep will take, from what its folders say."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.runs.record import DAMAGED, KILLED, STATUSES, JobName, Record
from clozelab.training.metrics_rows import read_rows

TAIL_BYTES = 16_384
RECENT_VALUES = 5
"""Logged speeds whose median counts as the speed now."""
SPEED_KEY = "train/tokens_per_second"


@dataclass(frozen=True)
class Progress:
    """Where a run stands; None where its folder does not say.

    `tokens_per_second` is the recent speed, `seconds_left` of training alone, `silent_seconds` since the last line.
    """

    step: int = 0
    total_steps: int | None = None
    tokens: int = 0
    training_seconds: float = 0.0
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    silent_seconds: float | None = None


def read_progress(record: Record) -> Progress:
    """The progress of a run from the end of its metrics.csv."""
    path = record.folder / "metrics.csv"
    total = total_steps(record)
    rows = list(read_rows(path, TAIL_BYTES))
    if not rows:
        return Progress(total_steps=total)
    step, tokens, seconds, *_ = rows[-1]
    speeds = [row.value for row in rows if row.key == SPEED_KEY][-RECENT_VALUES:]
    speed = statistics.median(speeds) if speeds else None
    left = None
    if speed and total and step:
        left = tokens * _slots_left(record, step) / speed
    return Progress(step, total, tokens, seconds, speed, left, max(0.0, time.time() - path.stat().st_mtime))


def elapsed(record: Record) -> float:
    """Seconds that a run took; of one that has not ended its training's alone, for its record is older."""
    if record.status in ("running", KILLED):
        return max(record.seconds, read_progress(record).training_seconds)
    return record.seconds


def total_steps(record: Record) -> int | None:
    """Optimizer steps of the whole run."""
    found, phases = record.facts.get("total_steps"), record.config.get("phases")
    if found is None and phases:
        found = sum(phase["steps"] for phase in phases)
    return None if found is None else int(found)


def _slots_left(record: Record, step: int) -> float:
    """What is left to read in units of what has been read, after `step` steps; phases differ in slots a step."""
    phases = record.config.get("phases") or []
    if not phases:
        total = total_steps(record) or step
        return max(0, total - step) / step
    done = left = first = 0
    for phase in phases:
        slots = phase["global_batch_size"] * phase["seq_length"]
        inside = min(max(step - first, 0), phase["steps"])
        done += inside * slots
        left += (phase["steps"] - inside) * slots
        first += phase["steps"]
    return left / done if done else 0.0


@dataclass(frozen=True)
class SweepState:
    """A stage of an experiment at one scale: its jobs counted, and how long the rest takes.

    `planned` is None where the sweep cannot be composed, and then `counts` are of all runs; else they are of runs that
    are a job of the sweep, and `others` are not. `seconds_left` (one job after the other) is None where no finished run
    says how long one takes.
    """

    stage: str
    planned: int | None
    counts: Counter[str]
    others: int
    not_begun: int
    seconds_left: float | None

    @property
    def is_done(self) -> bool:
        return self.planned == self.counts["complete"]


def sweep_state(stage: str, records: Sequence[Record], jobs: Sequence[JobName] | None) -> SweepState:
    """Count the runs that are a stage's jobs, and add up what is left.

    A job that has no folder takes as long as the median of finished runs of its arm or row on the same task (else of
    the task, else of the stage), one that has begun what its own speed says.
    """
    every = [one for one in records if one.stage == stage]
    runs, missing = (every, []) if jobs is None else _matched(every, jobs)
    finished = [one for one in every if one.status == "complete" and one.seconds]
    begun = [one for one in runs if one.status not in ("complete", DAMAGED)]
    left = [read_progress(one).seconds_left for one in begun]
    left = [
        typical_seconds(finished, one.job_name) if rest is None else rest for one, rest in zip(begun, left, strict=True)
    ]
    left += [typical_seconds(finished, job) for job in missing]
    known = [rest for rest in left if rest is not None]
    return SweepState(
        stage=stage,
        planned=None if jobs is None else len(jobs),
        counts=Counter(one.status for one in runs),
        others=len(every) - len(runs),
        not_begun=len(missing),
        seconds_left=sum(known) if len(known) == len(left) else None,
    )


def typical_seconds(finished: Sequence[Record], job: JobName) -> float | None:
    """Median duration of the finished runs that are most like a job; None where there is none."""
    same_task = [one for one in finished if one.task == job.task]
    same_name = [one for one in same_task if one.name == job.name]
    like = same_name or same_task or finished
    return statistics.median(one.seconds for one in like) if like else None


def _matched(runs: Sequence[Record], jobs: Sequence[JobName]) -> tuple[list[Record], list[JobName]]:
    """(runs that are one of the jobs, jobs without a run); of two runs with one name the better one counts."""
    left, found = Counter(jobs), []
    for one in sorted(runs, key=lambda run: STATUSES.index(run.status)):
        if left[one.job_name]:
            left[one.job_name] -= 1
            found.append(one)
    return found, list(left.elements())
