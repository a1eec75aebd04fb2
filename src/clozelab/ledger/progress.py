"""How far a run is, and how long what is left of a sweep will take, from what its folders say."""

from __future__ import annotations

import csv
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.ledger.inventory import KILLED, Record

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
    total = total_steps(record.state)
    rows = _last_rows(path)
    if not rows:
        return Progress(total_steps=total)
    step, tokens, seconds = int(rows[-1][0]), int(rows[-1][1]), float(rows[-1][2])
    speeds = [float(row[4]) for row in rows if row[3] == SPEED_KEY][-RECENT_VALUES:]
    speed = statistics.median(speeds) if speeds else None
    left = None
    if speed and total and step:
        left = tokens * _slots_left(record.state, step) / speed
    return Progress(step, total, tokens, seconds, speed, left, max(0.0, time.time() - path.stat().st_mtime))


def elapsed(record: Record) -> float:
    """Seconds that a run took; of one that has not ended its training's alone, for its record is older."""
    if record.status in ("running", KILLED):
        return max(record.seconds, read_progress(record).training_seconds)
    return record.seconds


def total_steps(state: Mapping[str, Any]) -> int | None:
    """Optimizer steps of the whole run."""
    found = state.get("facts", {}).get("total_steps")
    phases = state.get("config_resolved", {}).get("phases")
    if found is None and phases:
        found = sum(phase["steps"] for phase in phases)
    return None if found is None else int(found)


def _slots_left(state: Mapping[str, Any], step: int) -> float:
    """What is left to read in units of what has been read, after `step` steps; phases differ in slots a step."""
    phases = state.get("config_resolved", {}).get("phases") or []
    if not phases:
        total = total_steps(state) or step
        return max(0, total - step) / step
    done = left = first = 0
    for phase in phases:
        slots = phase["global_batch_size"] * phase["seq_length"]
        inside = min(max(step - first, 0), phase["steps"])
        done += inside * slots
        left += (phase["steps"] - inside) * slots
        first += phase["steps"]
    return left / done if done else 0.0


def _last_rows(path: Path) -> list[list[str]]:
    """Whole rows at the end of a metrics.csv that somebody may be writing."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = text.split("\n")[:-1]  # the last one is empty or not finished
    rows = list(csv.reader(lines if size <= TAIL_BYTES else lines[1:]))
    return [row for row in rows if len(row) == 5 and row[0].isdigit()]


@dataclass(frozen=True)
class SweepState:
    """A stage of an experiment at one scale: its jobs counted, and how long the rest takes.

    `planned` is None where the sweep cannot be composed; `seconds_left` (one job after the other) where no finished
    run says how long one takes.
    """

    stage: str
    planned: int | None
    counts: Counter[str]
    not_begun: int
    seconds_left: float | None
    basis: int
    """Finished runs that the estimate is from."""


def sweep_state(stage: str, records: Sequence[Record], jobs: Sequence[Mapping[str, str]] | None) -> SweepState:
    """Count a stage's runs against its jobs and add up what is left.

    A job that has no folder takes as long as the median of finished runs on the same task (else of the stage), one that
    has begun what its own speed says.
    """
    runs = [one for one in records if one.stage == stage]
    counts = Counter(one.status for one in runs)
    finished = [one for one in runs if one.status == "complete" and one.seconds]
    missing = _missing(stage, runs, jobs or [])
    left, known = 0.0, True
    for one in runs:
        if one.status not in ("complete", "damaged"):
            rest = read_progress(one).seconds_left
            typical = typical_seconds(finished, one.task)
            rest = typical if rest is None else rest
            known = known and rest is not None
            left += rest or 0.0
    for task, count in missing.items():
        typical = typical_seconds(finished, task)
        known = known and typical is not None
        left += count * (typical or 0.0)
    seconds_left = left if known else None
    return SweepState(stage, None if jobs is None else len(jobs), counts, missing.total(), seconds_left, len(finished))


def typical_seconds(finished: Iterable[Record], task: str) -> float | None:
    """Median duration of finished runs on a task, else of all; None where there is none."""
    every = list(finished)
    same = [one.seconds for one in every if one.task == task] or [one.seconds for one in every]
    return statistics.median(same) if same else None


def _missing(stage: str, runs: Sequence[Record], jobs: Sequence[Mapping[str, str]]) -> Counter[str]:
    """Task -> jobs without a folder ("" for pre-training)."""
    planned = Counter(job.get("task", "") if stage == "finetune" else "" for job in jobs)
    return planned - Counter(one.task for one in runs)
