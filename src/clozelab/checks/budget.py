"""Disk, time, and whether the training that was asked for can teach anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Subject
from clozelab.runs.gc import describe_size

if TYPE_CHECKING:
    from clozelab.planning.jobs import Arm

DISK_MARGIN = 1.2
LONG_SECONDS = 86_400.0
"""Nobody starts a day by mistake without being told."""
MAX_WARMUP_FRACTION = 0.3


def check_disk(subject: Subject) -> Iterator[Finding]:
    """Free space against what all runs leave, and one checkpoint more while it is written."""
    budget = subject.budget
    largest = max((arm.checkpoint_bytes for arm in subject.arms), default=0)
    wanted = DISK_MARGIN * (max(0, budget.run_bytes - budget.used_bytes) + largest)
    figure = f"{describe_size(wanted)} wanted, {describe_size(budget.free_bytes)} free in {budget.folder}"
    if budget.free_bytes < wanted:
        remedy = "free space, or set runs_dir to a larger disk"
        yield Finding("disk", ERROR, "the disk cannot hold the checkpoints of all runs", figure, remedy)
    else:
        yield Finding("disk", OK, "the disk holds all runs", figure)


def check_time(subject: Subject) -> Iterator[Finding]:
    """Hours of what is left, by measured speeds; where there is none, what the FLOPs alone say."""
    stages, by_flops = subject.budget.stages, subject.budget.by_flops
    if not subject.arms and not stages:
        return
    said = [f"{name} {_hours(seconds)}" for name, seconds in stages.items() if seconds is not None]
    seconds = sum(seconds or 0.0 for seconds in stages.values()) + (by_flops or 0.0)
    unknown = [name for name, seconds in stages.items() if seconds is None]
    if unknown or not stages:
        guess = "" if by_flops is None else f", roughly {_hours(by_flops)} by FLOPs"
        said.append(f"{' and '.join(unknown) or 'all'}: no speed is known here yet (clozelab plan measures it){guess}")
    tokens = sum(arm.count * arm.tokens for arm in subject.arms)
    figure = f"{tokens / 1e6:,.1f} M tokens in {sum(arm.count for arm in subject.arms)} pre-training runs"
    if seconds > LONG_SECONDS:
        name = subject.experiment
        remedy = f"clozelab plan {name} budget=TIME says what a budget affords" if name else "fewer seeds or tokens"
        yield Finding("time", WARNING, f"what is left takes days: {'; '.join(said)}", figure, remedy)
    else:
        yield Finding("time", OK, f"what is left takes: {'; '.join(said)}", figure)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds < LONG_SECONDS else f"{seconds / 86_400:,.1f} days"


def check_schedule(arm: Arm) -> Iterator[Finding]:
    """Warm-up, lengths against positions, and the plateau of masked models."""
    figure = f"{arm.steps:,} steps, {arm.tokens / 1e6:,.1f} M tokens"
    longest, positions = arm.longest, arm.config.max_position_embeddings
    if longest > positions:
        remedy = "shorten the phase or raise model.max_position_embeddings"
        what = f"{arm.name}: a phase has instances of {longest} tokens, the model {positions} positions"
        yield Finding("lengths", ERROR, what, figure, remedy)
    if arm.warmup_fraction >= 1:
        what = f"{arm.name}: the warm-up is as long as the training: its learning rate never reaches the peak"
        yield Finding("schedule", ERROR, what, f"warmup_fraction {arm.warmup_fraction:g}", "lower it below 0.1")
    elif arm.warmup_fraction > MAX_WARMUP_FRACTION:
        what = f"{arm.name}: the warm-up takes {100 * arm.warmup_fraction:.0f} % of the training"
        yield Finding("schedule", WARNING, what, figure, "0.01 to 0.1 is usual")
    elif (needed := arm.tokens_to_plateau) > arm.tokens:
        what = f"{arm.name}: the budget may end before the masked model leaves its plateau"
        remedy = "a rule of thumb: more steps, or short instances first (a phase of 32 or 64 tokens)"
        yield Finding("schedule", WARNING, what, f"{figure}, about {needed / 1e6:,.1f} M to leave it", remedy)
    else:
        yield Finding("schedule", OK, f"{arm.name}: warm-up and budget are usual", figure)
