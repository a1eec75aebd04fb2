"""The planner's answer: an experiment's sweeps with their speeds, times and disk, and what it says of them in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import Collected
from clozelab.ledger.garbage import size
from clozelab.ledger.plan import Step
from clozelab.ledger.planning.budget import (
    MATCHINGS,
    Share,
    divide,
    finetuning_seconds,
    makespan,
    pretraining_seconds,
)
from clozelab.ledger.planning.finished import Past
from clozelab.ledger.planning.jobs import Arm, TaskJob, arms, prepared_manifest, task_jobs
from clozelab.ledger.planning.requests import task_request, timing_requests
from clozelab.ledger.planning.sweeps import SweepPlan, sweep_plan
from clozelab.ledger.planning.timing import Request, Speed, measured_speeds
from clozelab.ledger.reporting.wording import duration


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
    manifest = prepared_manifest(shapes[0].config["corpus"], cache_dir) if shapes else None
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
