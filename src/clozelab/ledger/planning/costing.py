"""The planner's answer: an experiment's sweeps with their speeds, times and disk, and what it says of them in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import Collected
from clozelab.ledger.garbage import describe_size, size
from clozelab.ledger.lists import Heading
from clozelab.ledger.plan import Step
from clozelab.ledger.planning.budget import (
    MATCHINGS,
    PLATEAU_TOKENS,
    Share,
    divide,
    finetuning_seconds,
    leaves_plateau_late,
    makespan,
    pretraining_seconds,
)
from clozelab.ledger.planning.jobs import (
    Arm,
    SweepPlan,
    TaskJob,
    arms,
    prepared_manifest,
    sweep_plan,
    task_jobs,
    task_request,
    timing_requests,
    vocabulary_size,
)
from clozelab.ledger.planning.timing import BUSY_SHARE, Speed, measured_speeds
from clozelab.ledger.reporting.accounts import AnyRun
from clozelab.ledger.reporting.wording import DASH, duration, rough


@dataclass(frozen=True)
class Costing:
    """What an experiment at one scale costs."""

    pretrain: SweepPlan | None
    finetune: SweepPlan | None
    arms: list[Arm]
    tasks: list[TaskJob]
    lowest_share: float
    """Of a core that the slowest measurement got; 1 where nothing was measured."""
    cache_bytes: int | None
    """Of the prepared corpus; None where it has not been made."""

    @property
    def pretrain_seconds(self) -> float | None:
        """Wall time of the pre-training sweep."""
        runs = [(pretraining_seconds(arm), arm.count) for arm in self.arms]
        return _wall(runs, self.pretrain.at_once if self.pretrain else 1)

    @property
    def finetune_seconds(self) -> float | None:
        runs = [(finetuning_seconds(job), job.count) for job in self.tasks]
        return _wall(runs, self.finetune.at_once if self.finetune else 1)

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


def _wall(runs: Sequence[tuple[float | None, int]], at_once: int) -> float | None:
    durations: list[float] = []
    for seconds, count in runs:
        if seconds is None:
            return None
        durations += [seconds] * count
    return makespan(durations, at_once)


def cost(steps: Sequence[Step], cache_dir: Path, *, measure: bool) -> Costing:
    """Work out what the steps of a reproduction cost.

    Args:
        steps: of `make_steps`.
        cache_dir: holds prepared corpora and measured speeds.
        measure: time shapes whose speed the cache does not have.
    """
    plans = {step.verb: sweep_plan(step) for step in steps if step.folder is not None}
    pretrain, finetune = plans.get("pretrain"), plans.get("finetune")
    shapes = arms(pretrain, cache_dir) if pretrain else []
    jobs = task_jobs(finetune, shapes) if finetune else []
    speeds: list[Speed | None] = []
    if pretrain:
        requests = [request for arm in shapes for request in timing_requests(arm)]
        settings: dict[str, Any] = {"at_once": pretrain.at_once, "threads": pretrain.threads, "measure": measure}
        speeds = measured_speeds(requests, cache_dir, **settings)
        shapes = list(_with_speeds(shapes, speeds))
    if finetune:
        settings = {"at_once": finetune.at_once, "threads": finetune.threads, "measure": measure}
        found = measured_speeds([task_request(job) for job in jobs], cache_dir, **settings)
        jobs = [_with_speed(job, one) for job, one in zip(jobs, found, strict=True)]
        speeds += found
    manifest = prepared_manifest(shapes[0].config["corpus"], cache_dir) if shapes else None
    shares = [one.share for one in speeds if one is not None]
    cache_bytes = size(Path(manifest["folder"])) if manifest else None
    return Costing(pretrain, finetune, shapes, jobs, min(shares, default=1.0), cache_bytes)


def _with_speed(job: TaskJob, speed: Speed | None) -> TaskJob:
    return job if speed is None else replace(job, speed=speed.tokens_per_second, forward_speed=speed.forward)


def _with_speeds(shapes: Sequence[Arm], speeds: Sequence[Speed | None]) -> list[Arm]:
    left = list(speeds)
    found = []
    for arm in shapes:
        own, left = left[: len(arm.phases)], left[len(arm.phases) :]
        found.append(replace(arm, speeds=[one.tokens_per_second if one else None for one in own]))
    return found


def arm_rows(costing: Costing, collected: Collected) -> list[list[str]]:
    """arm, runs, parameters, with heads, tokens, FLOPs a token, FLOPs a run, ELECTRA's, tokens/s, time a run."""
    rows = []
    for arm in costing.arms:
        known = [speed for speed in arm.speeds if speed]
        speed = "" if len(known) < len(arm.phases) else " ".join(rough(one) for one in known)
        seconds = pretraining_seconds(arm)
        phases = [dict(phase) for phase in arm.phases]
        same = [run for run in collected.pretrain if run.state["config_resolved"].get("phases") == phases]
        took = _took(run for run in same if run.arm == arm.name)
        rows.append([
            arm.name, str(arm.count), f"{arm.parameters:,}", f"{arm.trained_parameters:,}", rough(arm.tokens),
            f"{arm.flops / arm.tokens:.3g}", f"{arm.flops:.3g}", f"{arm.electra_flops:.3g}", speed or DASH,
            DASH if seconds is None else duration(seconds), took,
        ])  # fmt: skip
    return rows


def task_rows(costing: Costing, collected: Collected) -> list[list[str]]:
    """task, head, runs, examples, tokens an example, FLOPs a run, tokens/s, time a run."""
    rows = []
    for job in costing.tasks:
        seconds = finetuning_seconds(job)
        examples = "unknown" if job.train_examples is None else f"{job.train_examples:,}"
        done = [run for run in collected.finetune if run.task == job.task]
        took = _took(run for run in done if run.state["config_resolved"].get("head") == job.head)
        each = f"{job.tokens_per_example:.0f}{'' if job.is_counted else ' ?'}"
        rows.append([
            job.task, job.head, str(job.count), examples, each,
            DASH if job.flops is None else f"{job.flops:.3g}", DASH if not job.speed else rough(job.speed),
            DASH if seconds is None else duration(seconds), took,
        ])  # fmt: skip
    return rows


def _took(runs: Iterable[AnyRun]) -> str:
    """Mean duration of finished runs; empty where there is none."""
    seconds = [float(run.state.get("seconds") or 0.0) for run in runs if run.is_complete]
    return f"{duration(sum(seconds) / len(seconds))} (of {len(seconds)})" if seconds else ""


def share_rows(shares: Sequence[Share]) -> list[list[str]]:
    """arm, steps, tokens, FLOPs, time of one run under a budget, and the arm's steps_factor that makes it so."""
    return [
        [
            one.arm, f"{one.steps:,} ({one.factor:.2f} x)", rough(one.tokens), f"{one.flops:.3g}",
            duration(one.seconds), f"{one.steps_factor:.3g}",
        ]
        for one in shares
    ]  # fmt: skip


def affordable(costing: Costing, budget_seconds: float, matched_by: str | None) -> dict[str, list[Share]]:
    """What every arm gets of a budget for the whole experiment, by each way to match arms (or the one asked for).

    Raises:
        ValueError: fine-tuning alone takes longer, or there is no speed.
    """
    finetune = costing.finetune_seconds if costing.tasks else 0.0
    if finetune is None or costing.pretrain is None:
        raise ValueError("no speed is known yet: leave --no-measure out (and the tasks' files must be in data_dir)")
    left = budget_seconds - finetune
    if left <= 0.0:
        raise ValueError(
            f"fine-tuning alone takes about {duration(finetune)}: fewer tasks or seeds, or a larger budget"
        )
    core_seconds = left * costing.pretrain.at_once
    return {name: divide(costing.arms, core_seconds, name) for name in ([matched_by] if matched_by else MATCHINGS)}


def warnings(costing: Costing, shares: Mapping[str, Sequence[Share]]) -> list[str]:
    """What a plan's reader has to know."""
    lines = []
    if costing.arms and not vocabulary_size(costing.arms[0].config["corpus"], _cache_dir(costing))[1]:
        lines.append(
            "the corpus is not prepared yet: parameters are those of a full vocabulary, which may turn out smaller"
        )
    if costing.lowest_share < BUSY_SHARE:
        lines.append(
            f"while speeds were measured a job got {costing.lowest_share:.0%} of a core: times are for a machine that "
            "does nothing else"
        )
    early = {one.arm for part in shares.values() for one in part if one.ends_early}
    early |= {arm.name for arm in costing.arms if not shares and arm.tokens < PLATEAU_TOKENS}
    late = [arm.name for arm in costing.arms if arm.name in early and leaves_plateau_late(arm)]
    if late:
        lines.append(
            f"{', '.join(late)}: below {rough(PLATEAU_TOKENS)} tokens a masked model may end on its first plateau "
            "(rule of thumb: 3 to 6 M tokens at the tiny size on real text; simple text sooner, larger models later)"
        )
    guessed = [job.task for job in costing.tasks if not job.is_counted]
    if guessed:
        lines.append(f"files not found for {', '.join(dict.fromkeys(guessed))}: their lengths (?) are guesses")
    return lines


def _cache_dir(costing: Costing) -> Path:
    return Path(str(costing.arms[0].config["cache_dir"]))


PRETRAIN_COLUMNS = {
    "runs": 0, "parameters": 0, "with heads": 4, "tokens": 0, "FLOPs/token": 3, "FLOPs a run": 0, "ELECTRA's": 5,
    "tokens/s": 2, "time": 0, "took": 1,
}  # fmt: skip
FINETUNE_COLUMNS = {
    "runs": 0, "examples": 0, "tokens each": 3, "FLOPs a run": 4, "tokens/s": 2, "time": 0, "took": 1,
}  # fmt: skip
"""Name -> how soon a narrow terminal loses it."""


def tables(costing: Costing, collected: Collected) -> Iterator[tuple[list[Heading], list[list[str]]]]:
    """Headings and rows of the sweeps; the last column is what finished runs took."""
    if costing.arms:
        headings = [Heading(name, True, drop) for name, drop in PRETRAIN_COLUMNS.items()]
        yield [Heading("pre-training"), *headings], arm_rows(costing, collected)
    if costing.tasks:
        headings = [Heading(name, True, drop) for name, drop in FINETUNE_COLUMNS.items()]
        yield [Heading("fine-tuning"), Heading("head"), *headings], task_rows(costing, collected)


def share_table(name: str, shares: Sequence[Share]) -> tuple[list[Heading], list[list[str]]]:
    """Headings and rows of what a budget buys."""
    columns = [Heading(column, True) for column in ("steps", "tokens", "FLOPs", "time a run", "steps_factor")]
    return [Heading(f"equal {name}"), *columns], share_rows(shares)


def sums(costing: Costing) -> list[str]:
    """Jobs, time and disk in words."""
    lines = []
    parts = (
        ("pre-training", costing.pretrain, costing.pretrain_seconds),
        ("fine-tuning", costing.finetune, costing.finetune_seconds),
    )
    total = 0.0
    for name, plan, seconds in parts:
        if plan is not None:
            time = "time unknown" if seconds is None else f"about {duration(seconds)}"
            lines.append(
                f"{name}: {plan.num_jobs} jobs, {plan.at_once} at a time with {plan.threads} thread(s): {time}"
            )
            total = total + seconds if seconds is not None else float("nan")
    if total == total and lines:
        lines.append(f"together about {duration(total)}, without preparing the corpus")
    flops = sum(arm.count * arm.flops for arm in costing.arms) + sum(
        job.count * (job.flops or 0.0) for job in costing.tasks
    )
    lines.append(f"all runs: {flops:.3g} FLOPs")
    cache = "not prepared yet" if costing.cache_bytes is None else describe_size(costing.cache_bytes)
    lines.append(f"disk: run folders {describe_size(costing.run_bytes)}, prepared corpus {cache}")
    return lines
