"""From speeds to time: how long jobs take, and what a budget buys when arms are matched by one quantity.

The planner's answer: an experiment's sweeps with their speeds, times and disk, and what it says of them in words.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.launch.plan import Step
from clozelab.objectives.plateau import plateau_tokens
from clozelab.planning.jobs import Arm, TaskJob, arms, prepared_manifest, task_jobs, task_request, timing_requests
from clozelab.planning.sweeps import Past, SweepPlan, sweep_plan
from clozelab.planning.timing import Request, Speed, measured_speeds
from clozelab.runs.find import Collected
from clozelab.runs.gc import size
from clozelab.verdicts.wording import duration

if TYPE_CHECKING:  # which imports torch: not for `clozelab plan --help` and mistakes
    from clozelab.planning.jobs import Arm, TaskJob

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


@dataclass(frozen=True)
class Costing:
    """What an experiment at one scale costs."""

    pretrain: SweepPlan | None
    finetune: SweepPlan | None
    arms: list[Arm]
    tasks: list[TaskJob]
    cache_bytes: int | None
    """Of the prepared corpus; None where it has not been made."""
    lowest_share: float = 1.0
    """Of a core that the slowest measurement got; 1 where nothing was measured."""
    problems: tuple[str, ...] = ()
    """Shapes that could not be timed, and why."""

    def wall(self, verb: str, *, only_left: bool = False) -> float | None:
        """Wall time of a stage's jobs, or of those that runs so far leave; None where a speed is not known."""
        shapes: list[tuple[float | None, Arm | TaskJob]]
        if verb == "pretrain":
            shapes, plan = [(pretraining_seconds(arm), arm) for arm in self.arms], self.pretrain
        else:
            shapes, plan = [(finetuning_seconds(job), job) for job in self.tasks], self.finetune
        durations: list[float] = []
        for seconds, shape in shapes:
            count = shape.count - (shape.history.done if only_left else 0)
            if seconds is None and count:
                return None
            durations += [seconds or 0.0] * count
        return makespan(durations, plan.at_once if plan else 1)

    def left(self, verb: str) -> int:
        """Jobs that are neither complete nor will be taken from another experiment."""
        shapes: Sequence[Arm | TaskJob] = self.arms if verb == "pretrain" else self.tasks
        return sum(shape.count - shape.history.done for shape in shapes)

    def flops_left(self, verb: str) -> float:
        """Of the same jobs; a task without its files counts as nothing."""
        shapes: Sequence[Arm | TaskJob] = self.arms if verb == "pretrain" else self.tasks
        return sum((shape.count - shape.history.done) * (shape.flops or 0.0) for shape in shapes)

    @property
    def num_seeds(self) -> int:
        """Of pre-training."""
        plan = self.pretrain or self.finetune
        return plan.num_seeds if plan else 1

    @property
    def run_bytes(self) -> int:
        """Of all run folders: checkpoints, encoders, predictions."""
        training = sum(arm.count * (arm.checkpoint_bytes + arm.encoder_bytes) for arm in self.arms)
        return training + sum(job.count * job.result_bytes for job in self.tasks)


def analyse(steps: Sequence[Step], cache_dir: Path, collected: Collected | None = None) -> Costing:
    """What is known of a reproduction without timing anything.

    Args:
        steps: of `make_steps`.
        cache_dir: holds prepared corpora.
        collected: the experiment's runs at this scale, where there may be some.
    """
    sweeps = {step.verb: step for step in steps if step.is_sweep}
    plans = {verb: sweep_plan(step) for verb, step in sweeps.items()}
    past = {verb: Past(step, collected) if collected else None for verb, step in sweeps.items()}
    pretrain, finetune = plans.get("pretrain"), plans.get("finetune")
    shapes = arms(pretrain, cache_dir, past["pretrain"]) if pretrain else []
    jobs = task_jobs(finetune, shapes, past["finetune"]) if finetune else []
    manifest = prepared_manifest(shapes[0].config, cache_dir) if shapes else None
    return Costing(pretrain, finetune, shapes, jobs, size(Path(manifest["folder"])) if manifest else None)


def with_speeds(
    costing: Costing, cache_dir: Path, *, measure: bool, say: Callable[[str], None] = lambda _: None
) -> Costing:
    """The same with the speeds that the cache has, or (`measure`) that it will then have.

    `say` gets a line before each measurement.
    """

    def ask(plan: SweepPlan, requests: Sequence[Request]) -> list[Speed | None]:
        settings: dict[str, Any] = {"at_once": plan.timed_at_once, "threads": plan.threads}
        return measured_speeds(requests, cache_dir, **settings, measure=measure, say=say)

    shapes, jobs = costing.arms, costing.tasks
    asked: list[Request] = []
    speeds: list[Speed | None] = []
    if costing.pretrain:
        requests = [list(timing_requests(arm)) for arm in shapes]
        asked = [one for own in requests for one in own]
        speeds = ask(costing.pretrain, asked)
        answers = iter(speeds)
        shapes = [_with_speeds(arm, [next(answers) for _ in own]) for arm, own in zip(shapes, requests, strict=True)]
    if costing.finetune:
        more = [task_request(job) for job in jobs]
        found = ask(costing.finetune, more)
        jobs = [_with_speed(job, one) for job, one in zip(jobs, found, strict=True)]
        asked, speeds = [*asked, *more], [*speeds, *found]
    problems = dict.fromkeys(f"{one.title}: {speed.problem}" for one, speed in zip(asked, speeds, strict=True)
                             if speed and speed.problem)  # fmt: skip
    lowest = min((one.share for one in speeds if one is not None), default=1.0)
    return replace(costing, arms=shapes, tasks=jobs, lowest_share=lowest, problems=tuple(problems))


def cost(steps: Sequence[Step], cache_dir: Path, *, measure: bool, collected: Collected | None = None) -> Costing:
    """Work out what the steps of a reproduction cost; see `analyse` and `with_speeds`."""
    return with_speeds(analyse(steps, cache_dir, collected), cache_dir, measure=measure)


def _with_speed(job: TaskJob, speed: Speed | None) -> TaskJob:
    if speed is None:
        return job
    return replace(job, speed=speed.tokens_per_second, forward_speed=speed.forward, is_estimated=speed.is_estimated)


def _with_speeds(arm: Arm, speeds: Sequence[Speed | None]) -> Arm:
    rates = [one.tokens_per_second if one else None for one in speeds]
    return replace(arm, speeds=rates, is_estimated=any(one.is_estimated for one in speeds if one))


def affordable(costing: Costing, budget_seconds: float, matched_by: str | None) -> dict[str, list[Share]]:
    """What every arm gets of a budget for the whole experiment, by each way to match arms (or the one asked for).

    Raises:
        ValueError: fine-tuning alone takes longer, or there is no speed.
    """
    finetune = costing.wall("finetune") if costing.tasks else 0.0
    if finetune is None or costing.pretrain is None:
        raise ValueError("no speed is known yet: leave --no-measure out (and the tasks' files must be in data_dir)")
    left = budget_seconds - finetune
    if left <= 0.0:
        raise ValueError(
            f"fine-tuning alone takes about {duration(finetune)}: fewer tasks or seeds, or a larger budget"
        )
    names = [matched_by] if matched_by else MATCHINGS
    return {name: divide(costing.arms, left, costing.pretrain.at_once, name) for name in names}
