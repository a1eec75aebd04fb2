"""`clozelab plan` and `clozelab doctor`: what an experiment costs and what is wrong with it, before
anything runs.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich import filesize
from rich.console import Console

from clozelab.planning.steps import SWEEPS, Step, chooses_seeds, make_steps
from clozelab.results.experiment import Experiment, find_experiment, load_experiment
from clozelab.terminal import Heading, Words, make_console, make_table, parse, say, verb
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import DASH, STAGE_NAMES, duration, listed, passes, rough, several

if TYPE_CHECKING:  # they import torch: not for --help and mistakes
    import pandas

    from clozelab.launch.progress import Part
    from clozelab.planning.cost import Costing
    from clozelab.planning.jobs import Arm, Shape, TaskJob
    from clozelab.runs.find import Runs

HELP = """clozelab plan EXPERIMENT [scale=NAME] [name=value ...] [budget=TIME [difference=POINTS]] [--no-measure]
clozelab plan EXPERIMENT ... budget=TIME matched_by=QUANTITY
clozelab plan EXPERIMENT ... --dry-run
clozelab plan pretrain|finetune [--config-dir FOLDER] [--config-name NAME] [name=value ...]

Counts parameters and FLOPs, measures tokens per second once a shape (a few steps on made-up text, kept in the cache),
and says how many jobs there are and how many of them are left, how long all takes (measures, start-ups, pre-flight and
report included) and what of it, what it leaves on disk, and the smallest difference that the seeds can be expected to
show. Overrides are those of `clozelab reproduce`. A speed that was measured while the machine was busy is not kept.

  budget=10h       for the whole experiment: seeds of both kinds and tokens that give its primary claims (without any,
                   all claims) most power, the power of every number of seeds, and the command to run
  difference=2     the true difference in points that is to be found (default: 2)
  matched_by=      instead: what each arm can afford where arms get equal steps, tokens, flops or time, and its
                   steps_factor, a line of `arms` or pretrain.arm=NAME pretrain.steps_factor=...
  --no-measure     only speeds that are in the cache, else what finished runs took here (*)
  --measure-again  measures anew what the cache has
  --brief          says the time alone, and leaves it for the sweeps of a reproduction to count by
  --dry-run        list every job with its state, as `clozelab reproduce --dry-run` does

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would start with these words.

docs/runs.md says how times and FLOPs are counted, and what the marks beside them mean."""

DOCTOR_HELP = """clozelab doctor
clozelab doctor EXPERIMENT [scale=NAME] [name=value ...] [--all]
clozelab doctor pretrain|finetune|evaluate [--config-dir FOLDER] [--config-name NAME] [name=value ...]

Without an experiment: what this machine can do (matrix products), and which precision, kernels and threads are
taken on it.

With one, the pre-flight: every arm and task of the experiment is looked at before anything is trained (docs/doctor.md
lists the checks). It prints what is not well; --all prints every figure. Takes the overrides of `clozelab reproduce`,
which runs it before its first sweep (--skip-doctor).

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would start with these words, one run or a
sweep. A sweep (-m) of more than three jobs runs it by itself; CLOZELAB_SKIP_DOCTOR=1 leaves it out.

Exit status: 0, or 1 where a finding is an error."""

Table = tuple[list[Heading], list[list[str]]]
MATCHINGS = ("steps", "tokens", "flops", "time")
# of a reproduction, beside its jobs
SHORT_PARTS = {"prepare": "preparing", "doctor": "pre-flight", "report": "report"}
PART_HEADINGS = {
    "start": "start-up",
    "steps": "steps",
    "forward": "passes",
    "fit": "fits",
    "saving": "saving",
}


@verb(
    "plan",
    HELP,
    names=(1, 1),
    keys=("budget", "matched_by", "difference"),
    flags=("no-measure", "measure-again", "brief", "dry-run"),
    options=("config-dir", "config-name"),
    takes_overrides=True,
)
def main(said: Words) -> int:
    """Print the plan; returns the exit status."""
    budget = parse_budget(said.values["budget"]) if "budget" in said.values else None
    matched_by = said.values.get("matched_by")
    if matched_by and budget is None:
        raise ValueError(
            f"matched_by={matched_by} divides a budget among the arms: say budget=TIME too"
        )
    if matched_by and matched_by not in MATCHINGS:
        raise ValueError(f"matched_by={matched_by}: arms can be matched by {', '.join(MATCHINGS)}")
    text = said.values.get("difference", "2")
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", text) or not 0.0 < float(text) < 100.0:
        raise ValueError(f"difference={text}: give a true difference in points above 0, such as 2")
    if (stage := said.names[0]) in ("pretrain", "finetune"):
        matched_by = matched_by or "time"  # what a budget buys one run
        where = Path(said.options["config-dir"]) if "config-dir" in said.options else None
        steps = [Step(stage, said.options.get("config-name", stage), where, tuple(said.overrides))]
        experiment = Experiment(folder=Path(), name=stage, columns=())
    else:
        folder = find_experiment(stage)
        steps, experiment = make_steps(folder, said.overrides), load_experiment(folder)
    if "dry-run" in said.flags:
        from clozelab.stages.reproduce import dry_run

        return dry_run(steps)
    from clozelab.analysis.verdicts import detectable_difference
    from clozelab.planning.cost import affordable
    from clozelab.report import wording
    from clozelab.results.table import build_table
    from clozelab.runs.find import find

    step = next(step for step in steps if step.is_sweep)
    root, _ = step.root
    runs, console = find(root), make_console()
    found, parts = costs(steps, runs, said)
    for line in sums(found, parts):  # what is asked first
        console.print(line, style="bold", markup=False)
    if "brief" in said.flags:
        for line in [*busy_lines(found), *(f"not timed: {problem}" for problem in found.problems)]:
            console.print(line, style="yellow", markup=False)
        keep_plan(Path(str(step.sweep.master.hydra.sweep.dir)), parts)
        return 0
    for table in [*tables(found), *part_tables(found)]:
        console.print(make_table(*table, console.width))
    flops = sum(shape.count * (shape.flops or 0.0) for shape in found.shapes)
    for line in (f"all runs: {flops:.3g} FLOPs", disk(found, found.room(root, steps))):
        say(console, line)
    each = mean_evaluation(found)
    is_shared = budget is not None and bool(found.arms) and (matched_by or not experiment.claims)
    shares = (
        affordable(found, budget or 0.0, [matched_by] if matched_by else MATCHINGS)
        if is_shared
        else {}
    )
    for name, part in shares.items():
        console.print(make_table(*share_table(name, part), console.width))
        factors = {f"steps_factor={one.steps_factor:.3g}" for one in part.itertuples()}
        if stage == "pretrain" and len(factors) == 1:  # of several arms each has its own
            say(
                console,
                f"run: clozelab pretrain {shlex.join([*said.overrides, *factors])}",
                style="bold",
            )
    if budget is not None and not is_shared:
        for part in choose(found, experiment, steps, runs, said, budget, float(text), each):
            if isinstance(part, str):
                say(console, part)
            else:
                console.print(make_table(*part, console.width))
    if experiment.claims:
        detectable = detectable_difference(build_table(experiment, runs), found.num_seeds)
        console.print(wording.detectable_difference(detectable), markup=False)
    for line in warnings(found, shares):
        console.print(line, style="yellow", markup=False)
    return 0


def costs(steps: Sequence[Step], runs: Runs, said: Words) -> tuple[Costing, list[Part] | None]:
    """What some steps cost, and the parts of their time; None where a speed is unknown."""
    from clozelab.planning.cost import parts_of, with_speeds
    from clozelab.stages.subject import Corpora, analyse

    progress, measure = Console(stderr=True), "no-measure" not in said.flags
    with TemporaryDirectory(prefix="clozelab-plan-") as folder:
        # A generated world that is not there yet is written small, to count what it and its tasks
        # hold.
        corpora = Corpora(strict=False, world=Path(folder) if measure else None)
        costing = analyse(steps, corpora, runs)
        # All until here is what opening the experiment takes: imports, and composing each kind of
        # job.
        opening = time.process_time() - corpora.sampling
        step = next(step for step in steps if step.is_sweep)
        cache_dir = Path(step.sweep.settings(step.sweep.jobs[0])["cache_dir"])
        costing = with_speeds(
            costing,
            cache_dir,
            measure=measure,
            anew="measure-again" in said.flags,
            say=lambda line: say(progress, line, style="dim"),
        )
        return costing, parts_of(costing, steps, opening, corpora.preparing)


def keep_plan(folder: Path, parts: Sequence[Part] | None) -> None:
    """Leave a plan for the sweeps of a reproduction to count by, or none where the time is not
    known."""
    from clozelab.launch.progress import plan_file, write_plan

    if parts is None:
        (folder / plan_file(None)).unlink(missing_ok=True)
    else:
        write_plan(folder, parts)


def mean_evaluation(costing: Costing) -> float:
    """Seconds of one evaluation by one measure, over all of a plan; 0 where there is none."""
    jobs = sum(measure.count for measure in costing.measures)
    seconds = sum((measure.seconds or 0.0) * measure.count for measure in costing.measures)
    if jobs:
        return seconds / jobs
    return 0.0


def parse_budget(text: str) -> float:
    """Seconds of "2h", "90min", "1.5 h", "1h30min". ValueError: it is not a time of a second or
    more.
    """
    from pandas import Timedelta

    try:
        seconds = float(Timedelta(f"0{text}" if text.startswith(".") else text).total_seconds())
    except ValueError:
        seconds = 0.0
    # 10 would be nanoseconds, 1,5h 15 hours
    if not seconds >= 1.0 or text.strip().isdigit() or "," in text:
        raise ValueError(f"budget={text}: give a time above zero, such as 2h, 90min or 1h30min")
    return seconds


def choose(
    costing: Costing,
    experiment: Experiment,
    steps: Sequence[Step],
    runs: Runs,
    said: Words,
    budget: float,
    difference: float,
    evaluation: float,
) -> Iterator[Table | str]:
    """The power of every number of seeds that a budget pays for, the choice among them, and its
    command.
    """
    from clozelab.planning.choice import ask, choices, spreads_of
    from clozelab.results.table import build_table

    sweeps = {step.verb: step.sweep for step in steps if step.is_sweep}
    measured = sweeps["evaluate"].jobs if "evaluate" in sweeps else ()
    of_jobs = dict.fromkeys(word for job in measured for word in job)
    measures = [word.partition("=")[2] for word in of_jobs if key_of(word) == "measure"]
    tasks = list(dict.fromkeys([*(job.task for job in costing.tasks), *measures]))
    question = ask(experiment, tasks, difference)
    if not question.claims:
        yield (
            f"no claim of {experiment.name} is about a task of this plan: there is no power to"
            " reckon"
        )
        return
    tuned = sweeps["finetune"].groups(lambda key: key == "seed") if "finetune" in sweeps else ()
    spreads = spreads_of(tasks, build_table(experiment, runs) if runs.runs else None)
    # one number a pre-training seed
    spreads |= {one: replace(spreads[one], finetuning=0.0) for one in measures}
    rule = experiment.stopping
    found = choices(
        costing,
        question,
        spreads,
        budget,
        tuned_seeds=max(1, len(tuned)),
        measuring=evaluation * len(measured) / costing.num_seeds,
        looks=(rule.first, rule.most) if rule else None,
        may_shorten=all(arm.settings["steps_factor"] == 1.0 for arm in costing.arms),
    )
    best = max(found, key=lambda one: one.worth)
    first = question.num_primary
    what = (
        f"all of {first} primary claims are"
        if first
        else f"one of {len(question.claims)} claims is"
    )
    yield f"power: how often {what} decided where true differences are {difference:g} points"
    headings = ["seeds", "fine-tuning\nseeds", "tokens\na run", "time", "power"]
    most_tokens = max(arm.tokens for arm in costing.arms)
    rows = []
    for one in found:
        bar = "#" * round(12 * one.power)
        if one == best:
            bar += "  <- chosen"
        finetune_seeds = DASH
        if tuned:
            finetune_seeds = str(one.finetune_seeds)
        tokens, power = rough(most_tokens * one.factor), f"{one.power:.0%}"
        rows.append([str(one.seeds), finetune_seeds, tokens, duration(one.seconds), power, bar])
    yield [*(Heading(name, True) for name in headings), Heading("")], rows
    if not best.worth[0]:
        yield "no line reaches 80 %: give more time, fewer rows, or a larger difference="
    about = [
        f"{task} {one.pretraining:.2g} and {one.finetuning:.2g} ({one.source})"
        for task, one in spreads.items()
    ]
    yield (
        "standard deviations between pre-training and between fine-tuning seeds:"
        f" {'; '.join(about)}"
    )
    if question.unknown:
        yield (
            "not counted, since no task of this plan speaks for them:"
            f" {'; '.join(question.unknown)}"
        )
    seeds = ",".join(map(str, range(1, best.seeds + 1)))
    chosen = {}
    if tuned:
        chosen["finetune.seed"] = ",".join(map(str, range(1, best.finetune_seeds + 1)))
    if not rule:
        chosen["seeds"] = seeds
    if best.factor < 1.0:
        chosen["pretrain.steps_factor"] = f"{best.factor:.2f}"
    kept = [one for one in said.overrides if key_of(one) not in chosen and not chooses_seeds(one)]
    until = ["until=decided", f"budget={said.values['budget']}"] if rule else []
    words = [said.names[0], *kept, *(f"{key}={value}" for key, value in chosen.items()), *until]
    yield f"run: clozelab reproduce {shlex.join(words)}"


def tables(costing: Costing) -> Iterator[Table]:
    """One a stage: what its runs are, their FLOPs, speed and time."""
    # Name -> how soon a narrow terminal loses it.
    times = {"tokens/s": 1, "time": 0, "took": 2}
    if costing.arms:
        columns = {
            "runs": 0,
            "parameters": 3,
            "with heads": 6,
            "tokens": 0,
            "FLOPs/token": 5,
            "FLOPs a run": 0,
        }
        headings = [Heading("pre-training"), *_headings(columns | times)]
        yield headings, [_arm_cells(arm) for arm in costing.arms]
    if costing.tasks:
        columns = {"runs": 0, "examples": 3, "tokens each": 5, "FLOPs a run": 4}
        headings = [Heading("fine-tuning"), Heading("head"), *_headings(columns | times)]
        yield headings, [_task_cells(job) for job in costing.tasks]


def _arm_cells(arm: Arm) -> list[str]:
    return [
        arm.name,
        str(arm.count),
        f"{arm.parameters:,}",
        f"{arm.trained_parameters:,}",
        rough(arm.tokens),
        f"{arm.flops / arm.tokens:.3g}",
        f"{arm.flops:.3g}",
        *_times(arm),
    ]


def _task_cells(job: TaskJob) -> list[str]:
    head, unit = job.head, ""
    if job.features:
        head, unit = f"{job.head} on {job.features.input_size} features", " words"
    return [
        job.task,
        head,
        str(job.count),
        "unknown" if job.train_examples is None else f"{job.train_examples:,}",
        f"{job.tokens_per_example:.0f}{'' if job.train else ' ?'}",
        DASH if job.flops is None else f"{job.flops:.3g}",
        *_times(job, unit),
    ]


def part_tables(costing: Costing) -> Iterator[Table]:
    """What the seconds of one job go into, so that a wrong part shows."""
    rows = []
    named: list[tuple[str, Shape]] = [(arm.name, arm) for arm in costing.arms]
    named += [(f"{job.task}, {job.head}", job) for job in costing.tasks]
    named += [(job.measure, job) for job in costing.measures]
    for name, shape in named:
        parts = None
        if shape.is_timed:
            parts = shape.parts()
        if parts is not None:
            cells = [f"{parts[key]:.1f}" if key in parts else "" for key in PART_HEADINGS]
            rows.append([name, str(shape.count), *cells, f"{sum(parts.values()):.1f}"])
    if rows:
        soon = {"jobs": 3, "fits": 2, "saving": 1}  # lost on a narrow terminal
        columns = [
            Heading(name, True, soon.get(name, 0))
            for name in ("jobs", *PART_HEADINGS.values(), "in all")
        ]
        yield [Heading("seconds a job"), *columns], rows


def _headings(columns: Mapping[str, int]) -> list[Heading]:
    return [Heading(name, True, drop) for name, drop in columns.items()]


def _times(shape: Shape, unit: str = "") -> list[str]:
    """Speed, time of a run, and what finished ones took."""
    mark = " ?" if shape.is_estimated else ""
    speed, time, took = DASH, DASH, ""
    if shape.is_timed:
        speed = (
            " ".join(dict.fromkeys(rough(one.tokens_per_second) for one in shape.speeds if one))
            + unit
            + mark
        )
    if shape.seconds is not None:
        time = duration(shape.seconds) + (mark if shape.is_timed else " *")
    if shape.took:
        took = f"{duration(sum(shape.took) / len(shape.took))} (of {len(shape.took)})"
    return [speed, time, took]


def disk(costing: Costing, room: tuple[str, int, int, int]) -> str:
    """What the runs leave, what of it is there, and the room."""
    from clozelab.runs.cleanup import size

    folders = {arm.corpus.folder for arm in costing.arms if arm.corpus.folder}
    corpus = filesize.decimal(sum(map(size, folders))) if folders else "not prepared yet"
    place, free, wanted, used = room
    runs = f"run folders {filesize.decimal(wanted)}" + (
        f" ({filesize.decimal(used)} there already)" if used else ""
    )
    return f"disk: {runs}, prepared corpus {corpus}; {filesize.decimal(free)} free for {place}"


def sums(costing: Costing, parts: Sequence[Part] | None = None) -> list[str]:
    """Jobs and time in words, of all runs and of those that are left; `parts` has what comes beside
    the jobs."""
    lines, whole, left = list[str](), list[float | None](), list[float | None]()
    for stage, pool in costing.pools.items():
        whole.append(costing.wall(stage))
        left.append(costing.wall(stage, only_left=True))
        shared_out = f"{pool.at_once} at a time with {several(pool.threads, 'thread')}"
        beside = _left(costing.left(stage), pool.num_jobs, left[-1])
        jobs = f"{STAGE_NAMES[stage]}: {several(pool.num_jobs, 'job')}"
        lines.append(f"{jobs}, {shared_out}: {_about(whole[-1])}{beside}")
    if not lines or None in whole:
        return lines
    jobs_left = sum(map(costing.left, costing.pools))
    number = sum(pool.num_jobs for pool in costing.pools.values())
    of_jobs = sum(seconds or 0.0 for seconds in whole)
    of_left = sum(seconds or 0.0 for seconds in left)
    others = 0.0
    if parts:
        others = sum(part.seconds for part in parts) - of_left
    beside = _left(jobs_left, number, of_left + others)
    lines.append(f"together {_about(of_jobs + others)}{_others(parts)}{beside}")
    return lines


def _others(parts: Sequence[Part] | None) -> str:
    """What a reproduction's time includes beside its jobs."""
    named = {
        SHORT_PARTS[part.name]: part.seconds for part in parts or () if part.name in SHORT_PARTS
    }
    if not named:
        return ""
    said = [f"{name} {duration(seconds)}" for name, seconds in named.items()]
    return f", with {listed(said)}"


def _about(seconds: float | None) -> str:
    return "time unknown" if seconds is None else f"about {duration(seconds)}"


def _left(number: int, of: int, seconds: float | None) -> str:
    left = (
        f"{several(number, 'job')}, {_about(seconds)}"
        if number
        else "nothing, all are complete or shared"
    )
    return "" if number == of else f"; left: {left}"


def share_table(name: str, shares: pandas.DataFrame) -> Table:
    """What a budget buys: steps, tokens, FLOPs and time of one run, and the arm's steps_factor that
    makes it so.
    """
    columns = [
        Heading(column, True)
        for column in ("steps", "tokens", "FLOPs", "time a run", "steps_factor")
    ]
    return [Heading(f"equal {name}"), *columns], [
        [
            one.arm,
            f"{int(one.steps):,} ({one.factor:.2f} x)",
            rough(one.tokens),
            f"{one.flops:.3g}",
            duration(one.seconds),
            f"{one.steps_factor:.3g}",
        ]
        for one in shares.itertuples()
    ]


def busy_lines(costing: Costing) -> list[str]:
    """What to say of speeds that the machine may reach only when it is idle."""
    if not any(shape.is_busy for shape in costing.shapes):
        return []
    what = "the machine was busy with something else while speeds or start-ups were measured"
    return [f"{what}: times may be wrong, and none of those was kept; plan again when it is idle"]


def warnings(costing: Costing, shares: Mapping[str, pandas.DataFrame]) -> list[str]:
    """What a plan's reader has to know."""
    from clozelab.planning.timing import MAX_STEP_SECONDS

    lines, read = list[str](), dict[str, list[str]]()
    if any(arm.corpus.folder is None for arm in costing.arms):
        lines.append(
            "the corpus is not prepared yet: parameters are those of a full vocabulary, which may"
            " turn out smaller"
        )
    for number, arm in enumerate(costing.arms):
        tokens = min([part.tokens[number] for part in shares.values()], default=arm.tokens)
        if arm.tokens_to_plateau > tokens:
            lines.append(
                f"{arm.name}: too short to learn more than word frequencies: {rough(tokens)}"
                f" tokens, where a masked model takes about {rough(arm.tokens_to_plateau)} (rule of"
                " thumb at the tiny size; larger ones later)"
            )
        if arm.corpus.folder:
            read.setdefault(passes(tokens, arm.corpus.train.num_tokens)[0], []).append(arm.name)
    for amount, names in read.items():
        lines.append(
            f"{'every arm' if len(names) == len(costing.arms) > 1 else listed(names)}: {amount}"
        )
    lines += [f"not timed: {problem}" for problem in costing.problems]
    if any(shape.is_estimated for shape in costing.shapes):
        lines.append(
            "? beside a speed: not timed, because a step would take more than"
            f" {MAX_STEP_SECONDS:.0f} s here; reckoned from FLOPs and this machine's matrix"
            " products, and perhaps wrong by a factor of two"
        )
    lines += busy_lines(costing)
    if any(not shape.is_timed and shape.took for shape in costing.shapes):
        lines.append("* beside a time: no speed was measured; it is what finished runs took here")
    unknown = dict.fromkeys(
        job.measure for job in costing.measures if job.reading is None and not job.took
    )
    if unknown:
        lines.append(
            "a minute each is a guess, since the plan cannot count what they read:"
            f" {', '.join(unknown)}"
        )
    if guessed := dict.fromkeys(job.task for job in costing.tasks if not job.train):
        lines.append(f"files not found for {', '.join(guessed)}: their lengths (?) are guesses")
    return lines


def doctor(words: Sequence[str]) -> int:
    """Print the findings; returns the exit status."""
    words = [word for word in words if word not in ("-m", "--multirun")]  # as it is said of a sweep
    options = ("config-dir", "config-name") if set(SWEEPS) & set(words) else ()
    said = parse(
        "doctor", words, names=(0, 1), options=options, flags=("all",), takes_overrides=True
    )
    from clozelab.training.host import import_torchmetrics_quickly, tune_allocator

    is_tuned = tune_allocator()  # before torch and lightning are imported
    import_torchmetrics_quickly()
    if said.names:
        return _pre_flight(said)
    if said.overrides:
        raise ValueError(
            f"{said.overrides[0]}: doctor without an experiment looks at the machine, and takes"
            " nothing"
        )
    from clozelab.checks.doctor import look_at_machine, print_facts
    from clozelab.training.host import host_facts, usable_cores

    facts = list(look_at_machine(cores=usable_cores(), allocator_tuned=is_tuned))
    host = host_facts()
    print_facts(facts, {"processor": host["host"]["cpu"], **host["versions"]}, make_console())
    return 0


def _pre_flight(said: Words) -> int:
    """Everything that can be known to be wrong with an experiment, or with one stage's sweep."""
    started = time.perf_counter()
    from clozelab.checks.doctor import examine, print_findings
    from clozelab.checks.subject import ERROR
    from clozelab.launch.launcher import PLAN_FOLDER
    from clozelab.stages.subject import gather, gather_sweep

    name, logger = said.names[0], logging.getLogger("clozelab")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what matters comes as a finding
    try:
        if name in SWEEPS:
            folder = Path(said.options["config-dir"]) if "config-dir" in said.options else None
            plan_folder = None
            if PLAN_FOLDER in os.environ:
                plan_folder = Path(os.environ[PLAN_FOLDER])
            subject = gather_sweep(
                name,
                folder,
                said.options.get("config-name", name),
                said.overrides,
                plan_folder,
            )
        else:
            subject = gather(find_experiment(name), said.overrides)
        findings = list(examine(subject))
    finally:
        logger.setLevel(level)
    console = make_console()
    console.print(f"[bold]Pre-flight of {subject.name}[/]", highlight=False)
    print_findings(findings, console, shows_all="all" in said.flags)
    console.print(f"{time.perf_counter() - started:.0f} s", style="dim", highlight=False)
    return int(any(one.level == ERROR for one in findings))
