"""A plan in tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from clozelab.planning.costing import (
    Costing,
    Share,
    finetuning_seconds,
    pretraining_seconds,
    tokens_to_plateau,
)
from clozelab.planning.jobs import Arm, TaskJob, vocabulary_size
from clozelab.planning.timing import BUSY_SHARE, MAX_STEP_SECONDS
from clozelab.runs.find import AnyRun, Collected
from clozelab.runs.gc import describe_size
from clozelab.terminal import Heading
from clozelab.verdicts.wording import DASH, duration, rough


def size_tables(costing: Costing) -> Iterator[tuple[list[Heading], list[list[str]]]]:
    """Headings and rows of what needs no speed: parameters, tokens, FLOPs; ELECTRA's convention beside ours."""
    if costing.arms:
        columns = {"runs": 0, "parameters": 0, "with heads": 4, "tokens": 0, "FLOPs/token": 3, "FLOPs a run": 0,
                   "ELECTRA's": 5}  # fmt: skip
        yield [Heading("pre-training"), *_headings(columns)], [
            [
                arm.name, str(arm.count), f"{arm.parameters:,}", f"{arm.trained_parameters:,}", rough(arm.tokens),
                f"{arm.flops / arm.tokens:.3g}", f"{arm.flops:.3g}", f"{arm.electra_flops:.3g}",
            ]
            for arm in costing.arms
        ]  # fmt: skip
    if costing.tasks:
        columns = {"runs": 0, "examples": 0, "tokens each": 3, "FLOPs a run": 0}
        yield [Heading("fine-tuning"), Heading("head"), *_headings(columns)], [
            [
                job.task, _head(job), str(job.count),
                "unknown" if job.train_examples is None else f"{job.train_examples:,}",
                f"{job.tokens_per_example:.0f}{'' if job.is_counted else ' ?'}",
                DASH if job.flops is None else f"{job.flops:.3g}",
            ]
            for job in costing.tasks
        ]  # fmt: skip


def _head(job: TaskJob) -> str:
    return f"{job.head} on {job.features.input_size} features" if job.features else job.head


def _headings(columns: Mapping[str, int]) -> list[Heading]:
    """Name -> how soon a narrow terminal loses it."""
    return [Heading(name, True, drop) for name, drop in columns.items()]


def time_tables(costing: Costing, collected: Collected) -> Iterator[tuple[list[Heading], list[list[str]]]]:
    """Headings and rows of speeds and times; the last column is what finished runs took."""
    columns = _headings({"runs": 0, "tokens/s": 2, "time": 0, "took": 1})
    if costing.arms:
        rows = []
        for arm in costing.arms:
            known = [speed for speed in arm.speeds if speed]
            speed = "" if len(known) < len(arm.phases) else " ".join(map(rough, dict.fromkeys(known)))
            phases = [dict(phase) for phase in arm.phases]
            same = [run for run in collected.pretrain if run.state["config_resolved"].get("phases") == phases]
            took = _took(run for run in same if run.arm == arm.name)
            rows.append([arm.name, str(arm.count), *_times(speed, pretraining_seconds(arm), arm.is_estimated), took])
        yield [Heading("pre-training"), *columns], rows
    if costing.tasks:
        rows = []
        for job in costing.tasks:
            done = [run for run in collected.finetune if run.task == job.task]
            took = _took(run for run in done if run.state["config_resolved"].get("head") == job.head)
            unit = " words" if job.features else ""
            speed = f"{rough(job.speed)}{unit}" if job.speed else ""
            times = _times(speed, finetuning_seconds(job), job.is_estimated)
            rows.append([job.task, _head(job), str(job.count), *times, took])
        yield [Heading("fine-tuning"), Heading("head"), *columns], rows


def _times(speed: str, seconds: float | None, is_estimated: bool) -> list[str]:
    mark = " ?" if is_estimated else ""
    time = DASH if seconds is None else duration(seconds) + (mark if speed else " *")
    return [f"{speed}{mark}" if speed else DASH, time]


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


def warnings(costing: Costing, shares: Mapping[str, Sequence[Share]]) -> list[str]:
    """What a plan's reader has to know."""
    lines = []
    if costing.arms and not vocabulary_size(costing.arms[0].config, _cache_dir(costing))[1]:
        lines.append(
            "the corpus is not prepared yet: parameters are those of a full vocabulary, which may turn out smaller"
        )
    if costing.lowest_share < BUSY_SHARE:
        lines.append(
            f"while speeds were measured a job got {costing.lowest_share:.0%} of a core: times are for a machine that "
            "does nothing else"
        )
    for arm in costing.arms:
        tokens = min([one.tokens for part in shares.values() for one in part if one.arm == arm.name] or [arm.tokens])
        if (needed := tokens_to_plateau(arm)) > tokens:
            lines.append(
                f"{arm.name}: {rough(tokens)} tokens, and a masked model takes about {rough(needed)} to leave its "
                "first plateau (rule of thumb at the tiny size; larger models later)"
            )
    lines += [f"not timed: {problem}" for problem in costing.problems]
    shapes: list[Arm | TaskJob] = [*costing.arms, *costing.tasks]
    if any(shape.is_estimated for shape in shapes):
        lines.append(
            f"? beside a speed: not timed, because a step would take more than {MAX_STEP_SECONDS:.0f} s here; reckoned "
            "from FLOPs and this machine's matrix products, and perhaps wrong by a factor of two"
        )
    times = [(arm.speeds, pretraining_seconds(arm)) for arm in costing.arms]
    times += [([job.speed], finetuning_seconds(job)) for job in costing.tasks]
    if any(seconds is not None and not all(speeds or [None]) for speeds, seconds in times):
        lines.append("* beside a time: no speed was measured; it is what finished runs took here")
    guessed = [job.task for job in costing.tasks if not job.is_counted]
    if guessed:
        lines.append(f"files not found for {', '.join(dict.fromkeys(guessed))}: their lengths (?) are guesses")
    return lines


def _cache_dir(costing: Costing) -> Path:
    return Path(str(costing.arms[0].config["cache_dir"]))


def share_table(name: str, shares: Sequence[Share]) -> tuple[list[Heading], list[list[str]]]:
    """Headings and rows of what a budget buys."""
    columns = [Heading(column, True) for column in ("steps", "tokens", "FLOPs", "time a run", "steps_factor")]
    return [Heading(f"equal {name}"), *columns], share_rows(shares)


def totals(costing: Costing) -> list[str]:
    """FLOPs and disk of all runs in words."""
    flops = sum(arm.count * arm.flops for arm in costing.arms)
    flops += sum(job.count * (job.flops or 0.0) for job in costing.tasks)
    cache = "not prepared yet" if costing.cache_bytes is None else describe_size(costing.cache_bytes)
    return [
        f"all runs: {flops:.3g} FLOPs",
        f"disk: run folders {describe_size(costing.run_bytes)}, prepared corpus {cache}",
    ]


def sums(costing: Costing) -> list[str]:
    """Jobs and time in words, of all runs and of those that are left."""
    lines = []
    whole, left, num_left = 0.0, 0.0, 0
    plans = (("pre-training", costing.pretrain), ("fine-tuning", costing.finetune))
    for name, plan in plans:
        if plan is not None:
            seconds, rest = costing.wall(plan.verb), costing.wall(plan.verb, only_left=True)
            number = costing.left(plan.verb)
            beside = "" if number == plan.num_jobs else f"; left: {_left(number, rest)}"
            shared_out = f"{plan.at_once} at a time with {plan.threads} thread(s)"
            lines.append(f"{name}: {plan.num_jobs} jobs, {shared_out}: {_about(seconds)}{beside}")
            whole, left = whole + _number(seconds), left + _number(rest)
            num_left += number
    beside = "" if num_left == sum(plan.num_jobs for _, plan in plans if plan) else f"; left: {_left(num_left, left)}"
    if whole == whole and lines:
        lines.append(f"together {_about(whole)}, without preparing the corpus{beside}")
    return lines


def _about(seconds: float | None) -> str:
    return "time unknown" if seconds is None or seconds != seconds else f"about {duration(seconds)}"


def _left(number: int, seconds: float | None) -> str:
    return f"{number} jobs, {_about(seconds)}" if number else "nothing, all are complete or shared"


def _number(seconds: float | None) -> float:
    return float("nan") if seconds is None else seconds
