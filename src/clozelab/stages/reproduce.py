"""`clozelab reproduce EXPERIMENT scale=NAME`: prepare, the sweeps, report.

Each step is a process of its own and skips what is done, so it can be stopped and started again at
any moment, and nothing is shared but files.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from clozelab.analysis.verdict_codes import Verdict
from clozelab.analysis.verdicts import Judgement
from clozelab.launch.jobs import names_of, plan_job, planned_jobs, with_own_folders
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR
from clozelab.launch.processes import run_verb
from clozelab.launch.progress import Heartbeat, plan_file
from clozelab.planning.steps import Step, chooses_seeds, make_steps
from clozelab.report.summaries import seed_seconds
from clozelab.results.experiment import Experiment, load_experiment, open_experiment
from clozelab.runs.find import find
from clozelab.runs.progress import write_launch
from clozelab.runs.record import JobName
from clozelab.runs.store import accept_other_code
from clozelab.stages.plan import parse_budget
from clozelab.stages.report import judge
from clozelab.targets import check_targets
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.formatting import duration
from clozelab.training.host import import_torchmetrics_quickly
from clozelab.training.stopping import STOPPED

if TYPE_CHECKING:
    from clozelab.report.render import Report

HELP = """clozelab reproduce EXPERIMENT [scale=NAME] [name=value ...] [--dry-run]
clozelab reproduce EXPERIMENT until=decided [budget=8h] ...

Prepares the corpus, says how long all takes, runs every sweep and writes the
report. Stop it and start it again at any time. In a pipe or a file it prints a
line at least every 30 seconds.

  name=value             goes to every stage that has such a key
  prepare.name=value     goes to that stage alone; so do pretrain., finetune.
                         and evaluate.
  seeds=1,2,3            the pre-training seeds, in every stage
  evaluate=none          leaves the measures out; finetune=none leaves the
                         fine-tuning out
  until=decided          gives one more pre-training seed to the claim that is
                         nearest to a verdict (a primary one first), looks, and
                         goes on so: until all are decided, or the last look of
                         the rule (stopping: in paper.yaml, written before the
                         first look)
  budget=8h              begins no seed that would end later
  --skip-doctor          goes on whatever the pre-flight (clozelab doctor) would
                         find
  --no-measure           times nothing before it begins: how long it takes is
                         said by speeds that are known alone
  --dry-run              lists the jobs and how each stands: new, running,
                         interrupted, failed, complete;
                         conflict (its folder holds a run of other settings, and
                         it will be refused);
                         check (complete, its inputs have to be read to be
                         sure);
                         shared (an equal run of another experiment will be
                         taken);
                         shared? (will be taken if the files it was trained on
                         are still the same)"""


@verb(
    "reproduce",
    HELP,
    names=(1, 1),
    keys=("until", "budget"),
    flags=("dry-run", "skip-doctor", "no-measure"),
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Run the experiment; returns 0 only if every step went well."""
    experiment = open_experiment(args.names[0])
    folder = experiment.folder
    is_checked = "skip-doctor" in args.flags
    overrides = list(args.overrides)
    if args.values:
        seeds = first_seeds(experiment, args.values.get("until"), overrides)
        budget = math.inf  # seconds
        if "budget" in args.values:
            budget = parse_budget(args.values["budget"])
        if "dry-run" not in args.flags:
            return until_decided(
                experiment, args.words, overrides, [seeds], budget, is_checked=is_checked
            )
        overrides.append(seeds)
    steps = make_steps(folder, overrides)
    if "dry-run" in args.flags:
        return dry_run(steps)
    status, _ = run_round(folder, args.words, overrides, steps, is_checked=is_checked)
    return status


# One round: all steps, and a report


def run_round(
    folder: Path,
    command_line: Sequence[str],
    overrides: Sequence[str],
    steps: Sequence[Step],
    *,
    is_checked: bool,
) -> tuple[int, Report | None]:
    """Run what is not complete, and judge.

    Args:
        command_line: the words behind `clozelab reproduce`, to be noted beside the runs.
        is_checked: whether the pre-flight need not run.

    Returns:
        The exit status, and the report, or None where it was stopped.
    """
    console = Console(stderr=True)
    status = 0
    last = steps[-1]
    root, _ = last.root
    # `clozelab status` tells by this note which jobs there were to be.
    note_launch(root, command_line, steps)
    if all_complete(steps):
        console.print("every run is complete", style="dim")
        accept_other_code(find(root).runs, "any")
    else:
        arguments = (str(folder), *overrides)
        has_no_measure = "--no-measure" in command_line
        steps = with_checks(steps, arguments, is_checked=is_checked, measures=not has_no_measure)
        launcher = last.sweep.folder
        # A plan that lies there is an older reproduction's, perhaps of other settings.
        (launcher / plan_file(None)).unlink(missing_ok=True)
        status, is_stopped = run_steps(steps, console)
        if is_stopped:
            return status, None
    # Also where some runs have failed: the report says which are missing.
    console.rule("report", align="left")
    heartbeat = Heartbeat(console, partial(quiet_line, "report", time.monotonic()))
    with heartbeat.in_background():
        report = judge(load_experiment(folder), last.overrides, last.config_name)
    return status, report


def note_launch(root: Path, command_line: Sequence[str], steps: Sequence[Step]) -> None:
    """Write the jobs of every sweep beside the runs; a stage that is left out has none."""
    # Without a measure, evaluations are no stage at all.
    jobs: dict[str, list[JobName]] = {"pretrain": [], "finetune": []}
    for step in steps:
        if step.is_sweep:
            compose = step.sweep.composer.compose
            jobs[step.verb] = names_of(map(compose, step.sweep.jobs))
    write_launch(root, ["reproduce", *command_line], jobs)


def with_checks(
    steps: Sequence[Step], arguments: tuple[str, ...], *, is_checked: bool, measures: bool
) -> list[Step]:
    """Put a plan, and the pre-flight unless it `is_checked`, between the corpus and the sweeps."""
    plan_flags = ["--brief"]
    if not measures:
        plan_flags.append("--no-measure")
    checks = [Step("plan", "", None, (*arguments, *plan_flags))]
    if not is_checked:
        checks.append(Step("doctor", "", None, arguments))
    corpus = [step for step in steps if not step.is_sweep]
    sweeps = [step for step in steps if step.is_sweep]
    return [*corpus, *checks, *sweeps]


def all_complete(steps: Sequence[Step]) -> bool:
    """Whether every job is complete; looks at no further one after the first that is not."""
    for step in steps:
        if not step.is_sweep:
            continue
        if any(job.status != "complete" for job in planned_jobs(step.sweep)):
            return False
    return True


def run_steps(steps: Sequence[Step], console: Console) -> tuple[int, bool]:
    """Run one process a step, up to the first that must not be passed.

    Returns:
        The exit status, and whether nothing more is to be done.
    """
    has_failed = False
    for number, step in enumerate(steps, 1):
        title = f"{number} of {len(steps) + 1}: clozelab {' '.join(step.words())}"
        console.rule(escape(title), align="left")
        speaking: AbstractContextManager[None] = nullcontext()  # a sweep speaks for itself
        if not step.is_sweep:
            line = partial(quiet_line, step.verb, time.monotonic())
            speaking = Heartbeat(console, line).in_background()
        # The pre-flight is a step of its own: the sweeps need not look again.
        with speaking:
            status = run_verb(step.words(), environment={SKIP_DOCTOR: REPRODUCING})
        # 128 + N: a signal ended it; STOPPED is also being out of time.
        is_killed = status > 128 or status in STOPPED
        if is_killed or (status and not step.is_sweep):
            return status, True
        if status:
            has_failed = True
    return int(has_failed), False


def quiet_line(verb: str, started: float) -> str:
    return f"{verb} runs for {duration(time.monotonic() - started)}"


def dry_run(steps: Sequence[Step]) -> int:
    """List every job with its state and start nothing."""
    import_torchmetrics_quickly()  # the parts that are checked import Lightning
    for step in steps:
        say(f"clozelab {' '.join(step.words())}", "bold")
        if not step.is_sweep:
            continue
        planned = []
        for overrides in step.sweep.jobs:
            composed = step.sweep.composer.compose(overrides)
            planned.append(plan_job(composed, overrides))
            # each job would refuse a misspelt setting of its parts itself
            check_targets(composed.values)
        jobs = list(with_own_folders(planned))
        for job in jobs:
            line = f"  {job.status:<12} {job.run_dir}"
            if job.source:
                line += f"  (trained as {job.source})"
            say(line)
        counts = Counter(job.status for job in jobs)
        say("  " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0


# Rounds until all claims are decided


def first_seeds(experiment: Experiment, until: str | None, overrides: Sequence[str]) -> str:
    """The override that gives the seeds of the first look.

    Raises:
        ValueError: there is no such rule, or the seeds are chosen already.
    """
    if not until:
        raise ValueError("budget= needs until=decided")
    if until != "decided":
        raise ValueError(f"until={until}: there is until=decided alone")
    if experiment.stopping is None:
        raise ValueError(
            f"{experiment.folder}: until=decided needs a stopping rule in paper.yaml, written"
            " before the first look, such as stopping: {first: 3, most: 8}"
        )
    for override in overrides:
        if chooses_seeds(override):
            raise ValueError(f"{override}: until=decided chooses the pre-training seeds itself")
    seeds = range(1, experiment.stopping.first + 1)
    return f"seeds={','.join(map(str, seeds))}"


def until_decided(
    experiment: Experiment,
    command_line: Sequence[str],
    overrides: Sequence[str],
    seed_overrides: list[str],
    budget: float,
    *,
    is_checked: bool,
) -> int:
    """Take one look after the other, each with a seed more of the rows of one claim.

    Args:
        seed_overrides: those of the first look, besides the user's `overrides`.
        budget: seconds; no seed begins that would probably end later.

    Returns:
        The exit status.
    """
    folder = experiment.folder
    began = time.monotonic()
    while True:
        started = time.monotonic()
        round_overrides = [*overrides, *seed_overrides]
        steps = steps_with_seeds(make_steps(folder, round_overrides), seed_overrides)
        status, report = run_round(
            folder, command_line, round_overrides, steps, is_checked=is_checked
        )
        if report is None or status:
            return status
        claim = nearest(report.judgements, experiment)
        if claim is None:
            say("No claim is left that one more seed of the stopping rule could decide.")
            return 0
        # What the next seed takes: what one took in this round, or took when it was made.
        now = time.monotonic()
        num_seeds = len(seed_overrides[0].split(","))
        tasks = claim.column.tasks if claim.column else ()
        # A round may have found all its runs complete, and taken no time.
        recorded_seconds = seed_seconds(claim.rows, tasks, report.table) or 0.0
        seconds_a_seed = max((now - started) / num_seeds, recorded_seconds)
        if now - began + seconds_a_seed > budget:
            say(
                "The budget ends before another seed would, which takes about"
                f" {duration(seconds_a_seed)}.",
            )
            return 0
        new_overrides = next_seed(claim, experiment)
        if new_overrides == seed_overrides:
            raise ValueError(
                f"a seed more gave '{claim.claim.text}' none: {' '.join(new_overrides)}"
            )
        say(f"One more seed for '{claim.claim.text}': {' '.join(new_overrides)}")
        seed_overrides = new_overrides
        is_checked = True


def steps_with_seeds(steps: Sequence[Step], seed_overrides: Sequence[str]) -> list[Step]:
    """The steps that get a seed more: all, or the corpus and the stages that the overrides name."""
    if seed_overrides[0].startswith("seeds="):
        return list(steps)
    stages = {override.partition(".")[0] for override in seed_overrides}
    return [step for step in steps if step.verb in stages or not step.is_sweep]


def nearest(judgements: Sequence[Judgement], experiment: Experiment) -> Judgement | None:
    """The undecided claim to give the next seed to.

    That is the first primary one, or else the one with the nearest forecast.
    """
    max_seeds = 0
    if experiment.stopping:
        max_seeds = experiment.stopping.most
    pretrained_rows = {row.name for row in experiment.rows if row.arm}
    # The primary claims behind the first open one wait; the others gain by it.
    gate = _first_open_primary(judgements)
    candidates = []
    for judgement in judgements:
        is_waiting = judgement.claim.primary and judgement is not gate
        if is_waiting or not _has_looks_left(judgement, max_seeds):
            continue
        if pretrained_rows.intersection(judgement.rows):
            candidates.append(judgement)
    # The primary claim that the others wait for goes first.
    if any(judgement is gate for judgement in candidates):
        return gate
    return min(
        candidates,
        key=lambda judgement: (judgement.decisive_seeds or math.inf, judgement.p_value),
        default=None,
    )


def _first_open_primary(judgements: Sequence[Judgement]) -> Judgement | None:
    for judgement in judgements:
        is_open = judgement.verdict in (Verdict.INCONCLUSIVE, Verdict.ONE_SEED)
        if judgement.claim.primary and is_open:
            return judgement
    return None


def _has_looks_left(judgement: Judgement, max_seeds: int) -> bool:
    """Whether a claim is tested and undecided, and its stopping rule allows another seed."""
    if judgement.verdict is not Verdict.INCONCLUSIVE or judgement.p_value is None:
        return False
    return judgement.difference is not None and judgement.difference.count < max_seeds


def next_seed(judgement: Judgement, experiment: Experiment) -> list[str]:
    """The overrides that give a claim's rows one more seed, on the data sets that it is about."""
    # A row without an arm takes the shape of one, from its encoder's folder.
    any_arm = next((row.arm for row in experiment.rows if row.arm), "")
    arms = {}
    for row in experiment.rows:
        arms[row.name] = str(row.arm or row.delta.get("encoder_arm") or any_arm)
    arm_list = ",".join(dict.fromkeys(arms[row] for row in judgement.rows))
    row_list = ",".join(judgement.rows)
    # "1 2 3/1 2": pre-training seeds, fine-tuning seeds. The row with fewest gets the next one.
    last_seeds = []
    for seeds in judgement.seeds.values():
        last_seeds.append(max(map(int, seeds.partition("/")[0].split())))
    seed = min(last_seeds) + 1

    # What else runs with the new seed depends on the data set that the claim is about.
    pretraining = [f"pretrain.seed={seed}", f"pretrain.arm={arm_list}"]
    column = judgement.column
    if judgement.claim.against:  # another column's runs, too
        return [f"seeds={seed}", f"pretrain.arm={arm_list}", f"row={row_list}"]
    if column and column.is_pretraining:
        return pretraining
    if column and column.is_measured:
        return [
            *pretraining,
            f"evaluate.pretrain_seed={seed}",
            f"evaluate.measured={row_list}",
            f"evaluate.measure={','.join(column.tasks)}",
        ]
    finetuning = [f"finetune.pretrain_seed={seed}", f"finetune.row={row_list}"]
    if column:
        finetuning.append(f"finetune.task={','.join(column.tasks)}")
    return [*pretraining, *finetuning]
