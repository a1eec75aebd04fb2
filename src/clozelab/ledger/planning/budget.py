"""From speeds to time: how long jobs take, and what a budget buys when arms are matched by one quantity."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clozelab.objectives.plateau import plateau_tokens

if TYPE_CHECKING:  # which imports torch: not for `clozelab plan --help` and mistakes
    from clozelab.ledger.planning.jobs import Arm, TaskJob

START_SECONDS = {"pretrain": 2.5, "finetune": 0.9}
"""Between the launcher's decision and the first step, and after the last one: imports, reading the corpus, writing."""
FORWARD_SHARE = 1 / 3
"""Of a training step's work: what a validation pass costs per token."""
MATCHINGS = ("steps", "tokens", "flops", "time")
UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True)
class Share:
    """What an arm gets of a budget when arms are matched by one quantity; `factor` times its planned steps."""

    arm: str
    tokens: float
    steps: int
    flops: float
    seconds: float
    factor: float
    steps_factor: float
    """What the arm's configuration has to say for it: of the scale's steps."""


def pretraining_seconds(arm: Arm) -> float | None:
    """Of one run: every phase at its speed, its validations, and the start; without speeds what finished runs took."""
    training = _training_seconds(arm)
    if training is None:
        return arm.history.seconds
    validation = arm.config["validation"]
    rounds = -(-arm.steps // validation["interval_steps"])
    tokens = rounds * validation["instances"] * validation["seq_length"]
    return START_SECONDS["pretrain"] + training + FORWARD_SHARE * tokens * training / arm.tokens


def _training_seconds(arm: Arm) -> float | None:
    if not arm.speeds or not all(arm.speeds):
        return None
    slots = [phase["steps"] * phase["global_batch_size"] * phase["seq_length"] for phase in arm.phases]
    return sum(number / speed for number, speed in zip(slots, arm.speeds, strict=True) if speed)


def finetuning_seconds(job: TaskJob) -> float | None:
    """Of one run; without a speed or a number of examples what finished runs took."""
    if not job.speed or job.train_tokens is None:
        return job.history.seconds
    if job.features is None:
        forward = job.forward_speed or job.speed / FORWARD_SHARE
        return START_SECONDS["finetune"] + job.train_tokens / job.speed + job.evaluation_tokens / forward
    # Where nothing was timed, the encoder's products are taken to be as fast as the BiLSTM's.
    forward = job.forward_speed or job.speed * job.features.flops_per_word / job.encoder_flops_per_token
    words = job.features.words_per_example
    training = (job.train_examples or 0) * job.epochs * words / job.speed
    evaluation = job.passes * (job.validation_examples or 0) * words * FORWARD_SHARE / job.speed
    return START_SECONDS["finetune"] + job.pass_tokens / forward + training + evaluation


def makespan(durations: Sequence[float], at_once: int) -> float:
    """Wall time of jobs that are started in order, so many at a time."""
    free = [0.0] * max(1, at_once)
    for seconds in durations:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def parse_budget(text: str) -> float:
    """Seconds of "2h", "90min", "1.5 h", "1h30min".

    Raises:
        ValueError: it is not a time above zero.
    """
    parts = re.findall(r"([\d.]+)\s*(min|[smhd])", text)
    if not parts or re.sub(r"([\d.]+)\s*(min|[smhd])", "", text).strip() or any(p.count(".") > 1 for p, _ in parts):
        raise ValueError(f"budget={text}: give a time such as 2h, 90min or 1h30min")
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts if number != ".")
    if seconds <= 0.0:
        raise ValueError(f"budget={text}: give a time above zero")
    return seconds


def check_matching(matched_by: str) -> None:
    """ValueError for a quantity that arms cannot be matched by."""
    if matched_by not in MATCHINGS:
        raise ValueError(f"matched_by={matched_by}: arms can be matched by {', '.join(MATCHINGS)}")


def divide(arms: Sequence[Arm], wall_seconds: float, at_once: int, matched_by: str) -> list[Share]:
    """What each run of each arm gets of some wall time with so many jobs at a time, one quantity being equal.

    Raises:
        ValueError: an arm has no speed or takes no time, the quantity does not exist, or the time is gone before a
            first step.
    """
    check_matching(matched_by)
    planned = [pretraining_seconds(arm) for arm in arms]
    if any(one is None for one in planned):
        raise ValueError("no speed is known yet: leave --no-measure out")
    start = START_SECONDS["pretrain"]
    growing = [max((one or 0.0) - start, 0.0) for one in planned]
    if instant := [arm.name for arm, seconds in zip(arms, growing, strict=True) if not seconds]:
        raise ValueError(f"a run of {', '.join(instant)} takes no longer than its start: there is nothing to divide")
    amounts = {
        "steps": [float(arm.steps) for arm in arms],
        "tokens": [float(arm.tokens) for arm in arms],
        "flops": [arm.flops for arm in arms],
        "time": growing,
    }[matched_by]

    def durations(amount: float) -> list[float]:
        """Of one run of each arm that gets so much of the quantity: that share of its planned run, and the start."""
        return [start + one * amount / whole for one, whole in zip(growing, amounts, strict=True)]

    def wall(amount: float) -> float:
        return makespan(
            [one for arm, one in zip(arms, durations(amount), strict=True) for _ in range(arm.count)], at_once
        )

    if wall(0.0) >= wall_seconds:
        raise ValueError("starting the runs alone takes longer: fewer arms or seeds, or a larger budget")
    work = sum(arm.count * one / whole for arm, one, whole in zip(arms, growing, amounts, strict=True))
    # With this much the processes would be busy all the time without starting: never less than what there is time for.
    amount = largest(lambda amount: wall(amount) <= wall_seconds, wall_seconds * at_once / work)
    return [
        Share(
            arm.name, arm.tokens * factor, int(arm.steps * factor), arm.flops * factor, seconds, factor,
            factor * arm.config["steps_factor"],
        )
        for arm, seconds, factor in zip(arms, durations(amount), [amount / whole for whole in amounts], strict=True)
    ]  # fmt: skip


def largest(fits: Callable[[float], bool], most: float) -> float:
    """The largest number from 0 to `most` that fits, where all smaller ones do; to a billionth of `most`."""
    low, high = 0.0, most
    while high - low > 1e-9 * most:
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def tokens_to_plateau(arm: Arm) -> float:
    """After how many tokens an arm knows more than frequencies, by rule of thumb."""
    first = int(arm.config["phases"][0]["seq_length"])
    return plateau_tokens(vocab_size=arm.encoder.vocab_size, first_seq_length=first, is_causal=arm.encoder.is_causal)
