"""`clozelab reproduce EXPERIMENT scale=NAME`: prepare, the sweeps, report.

Each step is a process of its own and skips what is done, so it can be stopped and started again at
any moment, and nothing is shared but files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from claims.text.phrases import duration, truncate_list
from clozelab.addresses import check_targets
from clozelab.launch.jobs import names_of, plan_job, planned_jobs, with_own_folders
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR
from clozelab.launch.processes import run_verb
from clozelab.launch.progress import Heartbeat, plan_file
from clozelab.planning.next_seed import nearest, next_seed, stages_with_seeds
from clozelab.planning.steps import Step, make_steps
from clozelab.report.judging import judge
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.runs.find import find
from clozelab.runs.progress import write_launch
from clozelab.runs.record import JobName
from clozelab.runs.store import warn_of_other_code
from clozelab.terminal import say
from clozelab.training.host import import_torchmetrics_quickly
from clozelab.training.stopping import STOPPED

if TYPE_CHECKING:
    from clozelab.report.render import Report


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
        warn_of_other_code(find(root).runs)
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
        if status and _ends_all(step, status):
            return status, True
        if status:
            has_failed = True
    return int(has_failed), False


def _ends_all(step: Step, status: int) -> bool:
    """Whether nothing can follow a step that ended with an exit status other than 0."""
    # 128 + N: a signal ended it; STOPPED is also being out of time.
    if status > 128 or status in STOPPED:
        return True
    if step.verb == "doctor":
        say("Mend what the pre-flight has found, or go on with --skip-doctor.", "bold red")
    if step.verb == "pretrain" and _stand_in_the_way(step):
        return True
    return not step.is_sweep


def _stand_in_the_way(step: Step) -> bool:
    """Whether encoders of another run lie where a pre-training's own should; says which.

    What comes next would take them for its own.
    """
    folders = [job.run_dir for job in planned_jobs(step.sweep) if job.status == "conflict"]
    if not folders:
        return False
    say(
        "Nothing is fine-tuned or evaluated: encoders of other settings, or of an older results"
        f" version, lie in {truncate_list(folders)}. Remove these folders, or give the arm that has"
        " changed another name.",
        "bold red",
        wraps=True,
    )
    return True


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
        steps = make_steps(folder, round_overrides, stages_with_seeds(seed_overrides))
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
        # A round may have found all its runs complete, and taken no time.
        recorded_seconds = report.table.seconds_a_seed(claim.rows, claim.tasks) or 0.0
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
