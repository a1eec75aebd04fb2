"""`clozelab plan EXPERIMENT`: parameters, FLOPs, jobs, time, disk and what the seeds can show, before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.planning.steps import make_steps, runs_root
from clozelab.suggestions import DASH, duration, rough
from clozelab.terminal import Heading, make_console, make_table, parse, say, wants_help
from clozelab.verdicts.experiment import find_experiment, load_experiment

if TYPE_CHECKING:  # which imports torch: not for --help and mistakes
    from clozelab.planning.cost import Costing, Share
    from clozelab.planning.jobs import Arm
    from clozelab.planning.tasks import TaskJob
    from clozelab.runs.find import Runs

HELP = """clozelab plan EXPERIMENT [scale=NAME] [name=value ...] [budget=TIME [matched_by=QUANTITY]] [--no-measure]
clozelab plan EXPERIMENT ... --dry-run

Counts parameters and FLOPs, measures tokens per second once a shape (a few steps on made-up text, kept in the cache),
and says how many jobs there are and how many of them are left, how long they take, what they leave on disk, and the
smallest difference that the seeds can be expected to show. Overrides are those of `clozelab reproduce`.

  budget=2h        for the whole experiment: what each arm can afford, and the steps_factor for it, a line of
                   arm/NAME.yaml or pretrain.arm=NAME pretrain.steps_factor=... (with matched_by in paper.yaml)
  matched_by=      what arms get equal shares of: steps, tokens, flops or time (default: each in turn)
  --no-measure     only speeds that are in the cache, else what finished runs took here (*)
  --dry-run        list every job with its state, as `clozelab reproduce --dry-run` does

A shape whose steps would take more than 30 s here is not timed but reckoned from its FLOPs (?).

FLOPs are 3 (L (24 H^2 + 4 S H) + f (2 H^2 + 2 H V)) a token (forward once, backward twice, matrix products only; f the
share of predicted positions); beside them ELECTRA's convention, which other papers quote: backward counted once, the
embedding look-up as a product, every step at the longest row, the room for predictions (20 of 128 positions)."""


Table = tuple[list[Heading], list[list[str]]]
UNITS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def main(words: Sequence[str]) -> int:
    """Print the plan; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("plan", words, names=(1, 1), keys=("budget", "matched_by"), flags=("no-measure", "dry-run"),
                 takes_overrides=True)  # fmt: skip
    budget = parse_budget(said.values["budget"]) if "budget" in said.values else None
    matched_by = said.values.get("matched_by")
    if matched_by and budget is None:
        raise ValueError(f"matched_by={matched_by} divides a budget among the arms: say budget=TIME too")
    folder = find_experiment(said.names[0])
    steps = make_steps(folder, said.overrides)
    if "dry-run" in said.flags:
        from clozelab.stages.reproduce import dry_run

        return dry_run(steps)
    from clozelab.planning.cost import MATCHINGS, affordable, analyse, with_speeds
    from clozelab.runs.find import find
    from clozelab.stages.subject import Corpora
    from clozelab.verdicts.judging import describe

    if matched_by and matched_by not in MATCHINGS:
        raise ValueError(f"matched_by={matched_by}: arms can be matched by {', '.join(MATCHINGS)}")
    sweep = next(step for step in steps if step.is_sweep)
    root = runs_root(folder, sweep.overrides, sweep.config_name)[0]
    runs, corpora = find(root), Corpora(strict=False)
    console, progress = make_console(), Console(stderr=True)
    found = analyse(steps, corpora, runs)
    for table in size_tables(found):
        console.print(make_table(*table, console.width))
    for line in totals(found):
        say(console, line)
    cache_dir = Path(sweep.sweep.settings(sweep.sweep.jobs[0])["cache_dir"])
    measure = "no-measure" not in said.flags
    found = with_speeds(found, cache_dir, measure=measure, say=lambda line: say(progress, line, style="dim"))
    for table in time_tables(found, runs):
        console.print(make_table(*table, console.width))
    for line in sums(found):
        say(console, line)
    shares = {} if budget is None else affordable(found, budget, matched_by)
    for name, part in shares.items():
        console.print(make_table(*share_table(name, part), console.width))
    say(console, describe(load_experiment(folder), runs, found.num_seeds))
    for line in warnings(found, shares):
        say(console, line, style="yellow")
    return 0


def parse_budget(text: str) -> float:
    """Seconds of "2h", "90min", "1.5 h", "1h30min".

    Raises:
        ValueError: it is not a time above zero.
    """
    number = r"(\d+\.?\d*|\.\d+)\s*(min|[smhd])"
    parts = re.findall(number, text)
    seconds = sum(float(value) * UNITS[unit] for value, unit in parts)
    if re.sub(number, "", text).strip() or seconds <= 0.0:
        raise ValueError(f"budget={text}: give a time above zero, such as 2h, 90min or 1h30min")
    return seconds


def size_tables(costing: Costing) -> Iterator[Table]:
    """What needs no speed: parameters, tokens, FLOPs; ELECTRA's convention beside ours."""
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


def time_tables(costing: Costing, runs: Runs) -> Iterator[Table]:
    """Speeds and times; the last column is what finished runs took."""
    columns = _headings({"runs": 0, "tokens/s": 2, "time": 0, "took": 1})
    done = [run for run in runs.runs if run.is_complete]
    if costing.arms:
        rows = []
        for arm in costing.arms:
            known = [speed for speed in arm.speeds if speed]
            speed = " ".join(map(rough, dict.fromkeys(known))) if len(known) == len(arm.phases) else ""
            phases = [dict(phase) for phase in arm.phases]
            same = [run.seconds for run in done if run.name == arm.name and run.config.get("phases") == phases]
            rows.append([arm.name, str(arm.count), *_times(speed, arm), _took(same)])
        yield [Heading("pre-training"), *columns], rows
    if costing.tasks:
        rows = []
        for job in costing.tasks:
            same = [run.seconds for run in done if run.task == job.task and run.config.get("head") == job.head]
            speed = rough(job.speed) + (" words" if job.features else "") if job.speed else ""
            rows.append([job.task, _head(job), str(job.count), *_times(speed, job), _took(same)])
        yield [Heading("fine-tuning"), Heading("head"), *columns], rows


def _times(speed: str, shape: Arm | TaskJob) -> list[str]:
    from clozelab.planning.cost import seconds_of

    seconds, mark = seconds_of(shape), " ?" if shape.is_estimated else ""
    time = DASH if seconds is None else duration(seconds) + (mark if speed else " *")
    return [f"{speed}{mark}" if speed else DASH, time]


def _took(seconds: Sequence[float]) -> str:
    """Mean duration of finished runs; empty where there is none."""
    return f"{duration(sum(seconds) / len(seconds))} (of {len(seconds)})" if seconds else ""


def totals(costing: Costing) -> list[str]:
    """FLOPs and disk of all runs in words."""
    from clozelab.runs.gc import describe_size, size

    flops = sum(shape.count * (shape.flops or 0.0) for shape in costing.all_shapes)
    folders = {arm.corpus.folder for arm in costing.arms if arm.corpus.folder}
    cache = describe_size(sum(map(size, folders))) if folders else "not prepared yet"
    disk = f"run folders {describe_size(costing.run_bytes)}, prepared corpus {cache}"
    return [f"all runs: {flops:.3g} FLOPs", f"disk: {disk}"]


def sums(costing: Costing) -> list[str]:
    """Jobs and time in words, of all runs and of those that are left."""
    lines, whole, rest, num_jobs, num_left = [], 0.0, 0.0, 0, 0
    for verb, pool in costing.pools.items():
        seconds, left = costing.wall(verb), costing.left(verb)
        seconds_left = costing.wall(verb, only_left=True)
        beside = "" if left == pool.num_jobs else f"; left: {_left(left, seconds_left)}"
        shared_out = f"{pool.at_once} at a time with {pool.threads} thread(s)"
        lines.append(f"{NAMES[verb]}: {pool.num_jobs} jobs, {shared_out}: {_about(seconds)}{beside}")
        whole += float("nan") if seconds is None else seconds
        rest += float("nan") if seconds_left is None else seconds_left
        num_jobs, num_left = num_jobs + pool.num_jobs, num_left + left
    if whole == whole and lines:
        beside = "" if num_left == num_jobs else f"; left: {_left(num_left, rest)}"
        lines.append(f"together {_about(whole)}, without preparing the corpus{beside}")
    return lines


def _about(seconds: float | None) -> str:
    return "time unknown" if seconds is None or seconds != seconds else f"about {duration(seconds)}"


def _left(number: int, seconds: float | None) -> str:
    return f"{number} jobs, {_about(seconds)}" if number else "nothing, all are complete or shared"


def share_table(name: str, shares: Sequence[Share]) -> Table:
    """What a budget buys: steps, tokens, FLOPs and time of one run, and the arm's steps_factor that makes it so."""
    columns = [Heading(column, True) for column in ("steps", "tokens", "FLOPs", "time a run", "steps_factor")]
    return [Heading(f"equal {name}"), *columns], [
        [
            one.arm, f"{one.steps:,} ({one.factor:.2f} x)", rough(one.tokens), f"{one.flops:.3g}",
            duration(one.seconds), f"{one.steps_factor:.3g}",
        ]
        for one in shares
    ]  # fmt: skip


def warnings(costing: Costing, shares: Mapping[str, Sequence[Share]]) -> list[str]:
    """What a plan's reader has to know."""
    from clozelab.planning.cost import seconds_of
    from clozelab.planning.timing import BUSY_SHARE, MAX_STEP_SECONDS

    lines = []
    if any(arm.corpus.folder is None for arm in costing.arms):
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
        if arm.tokens_to_plateau > tokens:
            lines.append(
                f"{arm.name}: {rough(tokens)} tokens, and a masked model takes about {rough(arm.tokens_to_plateau)} to "
                "leave its first plateau (rule of thumb at the tiny size; larger models later)"
            )
    lines += [f"not timed: {problem}" for problem in costing.problems]
    if any(shape.is_estimated for shape in costing.all_shapes):
        lines.append(
            f"? beside a speed: not timed, because a step would take more than {MAX_STEP_SECONDS:.0f} s here; reckoned "
            "from FLOPs and this machine's matrix products, and perhaps wrong by a factor of two"
        )
    if any(not shape.is_timed and seconds_of(shape) is not None for shape in costing.all_shapes):
        lines.append("* beside a time: no speed was measured; it is what finished runs took here")
    if guessed := dict.fromkeys(job.task for job in costing.tasks if not job.is_counted):
        lines.append(f"files not found for {', '.join(guessed)}: their lengths (?) are guesses")
    return lines
