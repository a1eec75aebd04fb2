"""A plan in tables and sentences: what is asked of a Costing, as a terminal shows it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import filesize

from claims.analysis.grouping import group_by
from claims.text.phrases import DASH, count_noun, duration, format_count, join_list, truncate_list
from claims.text.terminal import Heading
from clozelab.assembly.passes import MOST_PASSES, passes, passes_over_text, source_passes, too_short
from clozelab.runs.record import STAGE_NAMES

if TYPE_CHECKING:  # they import torch: not for --help and mistakes
    import pandas

    from clozelab.launch.progress import PlanPart
    from clozelab.planning.arms import Arm
    from clozelab.planning.choice import Allocation
    from clozelab.planning.cost import Costing, DiskUsage
    from clozelab.planning.shapes import Shape
    from clozelab.planning.tasks import TaskJob
    from clozelab.runs.find import Runs

Table = tuple[list[Heading], list[list[str]]]

# of a reproduction, beside its jobs
SHORT_PARTS = {"prepare": "preparing", "doctor": "pre-flight", "report": "report"}
# Columns of numbers: name -> how soon a narrow terminal loses it.
TIME_COLUMNS = {"tokens/s": 1, "time": 0}
ARM_COLUMNS = {
    "runs": 0,
    "parameters": 3,
    "with heads": 6,
    "steps": 2,
    "tokens": 0,
    "FLOPs/token": 5,
    "FLOPs a run": 0,
    **TIME_COLUMNS,
}
TASK_COLUMNS = {
    "runs": 0,
    "examples": 3,
    "steps": 2,
    "tokens each": 5,
    "FLOPs a run": 4,
    **TIME_COLUMNS,
}
SHARE_COLUMNS = dict.fromkeys(("steps", "tokens", "FLOPs", "time a run", "steps_factor"), 0)
POWER_COLUMNS = dict.fromkeys(("seeds", "fine-tuning\nseeds", "tokens\na run", "time", "power"), 0)
POWER_BAR = 12  # characters of a power of 1

BUSY = (
    "the machine was busy with something else while speeds were measured: times may be wrong, and"
    " those speeds are kept for an hour alone; --measure-again times them anew"
)


def _headings(columns: Mapping[str, int]) -> list[Heading]:
    return [Heading(name, True, drop) for name, drop in columns.items()]


# Jobs and time


def sums(costing: Costing, parts: Sequence[PlanPart] | None = None) -> list[str]:
    """Jobs and time in words, of all runs and of those that are left.

    `parts` has what a reproduction does beside its jobs.
    """
    lines = []
    seconds_of_all = []
    seconds_left = []
    for stage, pool in costing.pools.items():
        seconds_of_all.append(costing.wall(stage))
        seconds_left.append(costing.wall(stage, only_left=True))
        jobs = f"{STAGE_NAMES[stage]}: {count_noun(pool.num_jobs, 'job')}"
        share = f"{pool.at_once} at a time with {count_noun(pool.threads, 'thread')}"
        left = _remaining(costing.left(stage), pool.num_jobs, seconds_left[-1])
        lines.append(f"{jobs}, {share}: {_approximate(seconds_of_all[-1])}{left}")
    if not lines or None in seconds_of_all:
        return lines

    total = sum(seconds or 0.0 for seconds in seconds_of_all)
    total_left = sum(seconds or 0.0 for seconds in seconds_left)
    # The parts hold the seconds of the jobs that are left: what remains of them is beside the jobs.
    beside_jobs = 0.0
    if parts:
        beside_jobs = sum(part.seconds for part in parts) - total_left
    num_left = sum(map(costing.left, costing.pools))
    num_jobs = sum(pool.num_jobs for pool in costing.pools.values())
    left = _remaining(num_left, num_jobs, total_left + beside_jobs)
    lines.append(f"together {_approximate(total + beside_jobs)}{_preparation_rows(parts)}{left}")
    return lines


def _preparation_rows(parts: Sequence[PlanPart] | None) -> str:
    """What a reproduction's time includes beside its jobs."""
    names = []
    for part in parts or ():
        if part.name in SHORT_PARTS:
            names.append(f"{SHORT_PARTS[part.name]} {duration(part.seconds)}")
    if not names:
        return ""
    return f", with {join_list(names)}"


def _approximate(seconds: float | None) -> str:
    if seconds is None:
        return "time unknown"
    return f"about {duration(seconds)}"


def _remaining(num_left: int, num_jobs: int, seconds: float | None) -> str:
    """What is left of some jobs; nothing where none of them is done."""
    if num_left == num_jobs:
        return ""
    if not num_left:
        return "; left: nothing, all are complete or shared"
    return f"; left: {count_noun(num_left, 'job')}, {_approximate(seconds)}"


def busy_lines(costing: Costing) -> list[str]:
    """What to say of speeds that the machine may reach only when it is idle."""
    if any(shape.is_busy for shape in costing.shapes):
        return [BUSY]
    return []


def arms_without_line(arms: Collection[str], runs: Runs) -> Iterator[str]:
    """A sentence for each arm that has runs, and is none of the `arms` of paper.yaml."""
    groups = group_by(runs.pretrain, lambda run: run.name)
    if not arms:  # its sweeps are files
        return
    for name in sorted(groups.keys() - arms):
        yield (
            f"{count_noun(len(groups[name]), 'pre-training run')} of the arm {name}, which"
            " paper.yaml does not have: under another name it is trained anew. A row's label"
            " changes what tables show"
        )


# A table a stage


def stage_tables(costing: Costing) -> Iterator[Table]:
    """One a stage: what its runs are, their FLOPs, speed and time."""
    if costing.arms:
        headings = [Heading("pre-training"), *_headings(ARM_COLUMNS)]
        yield headings, [_arm_cells(arm) for arm in costing.arms]
    if costing.tasks:
        headings = [Heading("fine-tuning"), Heading("head"), *_headings(TASK_COLUMNS)]
        rows = [_task_cells(job) for job in costing.tasks]
        if len({tuple(cells[:2]) for cells in rows}) < len(rows):  # what tells them apart
            headings.insert(2, Heading("rows"))
            for cells, job in zip(rows, costing.tasks, strict=True):
                cells.insert(2, truncate_list(job.rows))
        yield headings, rows


def _arm_cells(arm: Arm) -> list[str]:
    return [
        arm.name,
        str(arm.count),
        f"{arm.parameters:,}",
        f"{arm.trained_parameters:,}",
        f"{arm.steps:,}",
        format_count(arm.tokens),
        f"{arm.flops / arm.tokens:.3g}",
        f"{arm.flops:.3g}",
        *_time_cells(arm),
    ]


def _task_cells(job: TaskJob) -> list[str]:
    head = job.head
    unit = ""
    if job.features:
        head = f"{job.head} on {job.features.input_size} features"
        unit = " words"
    examples = "unknown"
    if job.train_examples is not None:
        examples = f"{job.train_examples:,}"
    steps = DASH
    if job.steps is not None:
        steps = f"{job.steps:,}"
    tokens_each = f"{job.lengths.tokens:.0f}"
    if not job.samples.train:
        tokens_each += " ?"
    flops = DASH
    if job.flops is not None:
        flops = f"{job.flops:.3g}"
    amounts = [str(job.count), examples, steps, tokens_each, flops]
    return [job.task, head, *amounts, *_time_cells(job, unit)]


def _time_cells(shape: Shape, unit: str = "") -> list[str]:
    """Speed, and time of a run."""
    speed = DASH
    time = DASH
    mark = ""
    if shape.is_estimated:
        mark = " ?"
    if shape.is_timed:
        # of an arm, one a phase
        speeds = [format_count(answer.tokens_per_second) for answer in shape.speeds if answer]
        speed = " ".join(dict.fromkeys(speeds)) + unit + mark
    if shape.seconds is not None:
        time = duration(shape.seconds) + mark
    return [speed, time]


def disk_lines(costing: Costing, usage: DiskUsage) -> str:
    """What the runs leave, what of it is there, and the room; two lines."""
    from clozelab.runs.cleanup import size

    runs = f"run folders {filesize.decimal(usage.run_bytes)}"
    if usage.used_bytes:
        runs += f" ({filesize.decimal(usage.used_bytes)} there already)"
    folders = {arm.corpus.folder for arm in costing.arms if arm.corpus.folder}
    if folders:
        runs += f", prepared corpus {filesize.decimal(sum(map(size, folders)))}"
    elif costing.arms:
        runs += "; the corpus is not prepared yet"
    return f"disk: {runs}\nfree: {filesize.decimal(usage.free_bytes)} for {usage.folder}"


# What a budget buys


def share_table(matched_by: str, shares: pandas.DataFrame) -> Table:
    """Steps, tokens, FLOPs and time of one run of each arm.

    The last column is the arm's steps_factor that makes it so.
    """
    rows = []
    for arm in shares.itertuples():
        rows.append(
            [
                arm.arm,
                f"{int(arm.steps):,} ({arm.factor:.2f} x)",
                format_count(arm.tokens),
                f"{arm.flops:.3g}",
                duration(arm.seconds),
                f"{arm.steps_factor:.3g}",
            ]
        )
    return [Heading(f"equal {matched_by}"), *_headings(SHARE_COLUMNS)], rows


def power_table(
    allocations: Sequence[Allocation], best: Allocation, *, most_tokens: int, is_tuned: bool
) -> Table:
    """The power of every number of seeds, as a bar too.

    Args:
        allocations: of a budget.
        best: the one of them that is chosen.
        most_tokens: of a run of the longest arm, at the scale's own steps.
        is_tuned: there are fine-tuning seeds.
    """
    rows = []
    for allocation in allocations:
        bar = "#" * round(POWER_BAR * allocation.power)
        if allocation == best:
            bar += "  <- chosen"
        finetune_seeds = DASH
        if is_tuned:
            finetune_seeds = str(allocation.finetune_seeds)
        rows.append(
            [
                str(allocation.seeds),
                finetune_seeds,
                format_count(most_tokens * allocation.factor),
                duration(allocation.seconds),
                f"{allocation.power:.0%}",
                bar,
            ]
        )
    return [*_headings(POWER_COLUMNS), Heading("")], rows


# Warnings


def warnings(
    costing: Costing, shares: Mapping[str, pandas.DataFrame], factors: Sequence[float] = ()
) -> list[str]:
    """What a plan's reader has to know, besides what `busy_lines` says.

    A budget buys each arm its `shares` of time, or so many times its steps (`factors`).
    """
    lines = []
    if any(arm.corpus.folder is None for arm in costing.arms):
        lines.append(
            "the corpus is not prepared yet: parameters are those of a full vocabulary, which may"
            " turn out smaller"
        )
    lines += _training_warnings(costing, shares, factors)
    lines += [f"not timed: {problem}" for problem in costing.problems]
    lines += _mark_warnings(costing)
    unknown = [job.measure for job in costing.measures if job.reading is None]
    if unknown:
        lines.append(
            "a minute each is a guess, since the plan cannot count what they read:"
            f" {', '.join(dict.fromkeys(unknown))}"
        )
    guessed = {job.task: job.samples.fault for job in costing.tasks if not job.samples.train}
    missing = [task for task, fault in guessed.items() if not fault]
    if missing:
        lines.append(f"files not found for {', '.join(missing)}: their lengths are guesses")
    for task, fault in guessed.items():
        if fault:
            lines.append(f"the lengths of {task} are guesses: {fault}")
    return lines


def _training_warnings(
    costing: Costing, shares: Mapping[str, pandas.DataFrame], factors: Sequence[float]
) -> list[str]:
    """Arms that learn too little, and how often the arms read their text."""
    lines = []
    names_of: dict[str, list[str]] = {}  # how often -> arms
    for number, arm in enumerate(costing.arms):
        # What the budget buys counts, where several shares are shown the smallest.
        planned = float(arm.tokens)
        if factors:
            planned *= factors[number]
        tokens = min([share.tokens[number] for share in shares.values()], default=planned)
        if arm.tokens_to_plateau > tokens:
            lines.append(f"{arm.name}: {too_short(tokens, arm.tokens_to_plateau)}")
        # Within a token of the most: the division of the time has stopped there.
        if shares and tokens >= arm.useful_factor * arm.tokens - 1:
            lines.append(
                f"{arm.name}: its text is too small for this budget: more than is shown would be"
                f" over {MOST_PASSES} passes, with which an encoder learns it by heart"
            )
        for amount in _amounts_read(arm, tokens):
            names_of.setdefault(amount, []).append(arm.name)
    for amount, names in names_of.items():
        readers = join_list(names)
        if len(names) == len(costing.arms) > 1:
            readers = "every arm"
        lines.append(f"{readers}: {amount}")
    return lines


def _amounts_read(arm: Arm, tokens: float) -> list[str]:
    """How often an arm reads its prepared text and, with weights, each source of it."""
    if not arm.corpus.folder:
        return []
    factor = tokens / arm.tokens
    times, text = passes_over_text(arm.readings)
    amounts = [passes(factor * times, text)[0]]
    if arm.passes_by_source:
        of_sources = {name: factor * often for name, often in arm.passes_by_source.items()}
        amounts.append(source_passes(of_sources)[0])
    return amounts


def _mark_warnings(costing: Costing) -> list[str]:
    """What the marks beside speeds and times mean."""
    from clozelab.planning.shapes import MAX_STEP_SECONDS

    lines = []
    if any(shape.is_estimated for shape in costing.shapes):
        lines.append(
            "? beside a speed: not timed, because a step would take more than"
            f" {MAX_STEP_SECONDS:.0f} s here; reckoned from FLOPs and this machine's matrix"
            " products, and perhaps wrong by a factor of two"
        )
    if any(shape.is_uncompiled for shape in costing.shapes):
        lines.append(
            "pre-training was timed without compilation: a run compiles for up to a minute first,"
            " which is not counted, and is then faster; --measure-again times compiled steps"
        )
    return lines
