"""`clozelab reproduce EXPERIMENT scale=NAME`: prepare, both sweeps, report. Every step skips what is done.

Each step is a process of its own, so it can be stopped and started again at any moment and nothing is shared but files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from clozelab.launch.jobs import LIKELY_SHARED, names_of, planned_jobs
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR
from clozelab.launch.processes import run_verb
from clozelab.planning.steps import SWEEPS, Step, make_steps
from clozelab.runs.find import find
from clozelab.runs.store import accept_other_code
from clozelab.runs.upkeep import write_launch
from clozelab.stages.report import judge
from clozelab.terminal import parse, wants_help
from clozelab.training.stopping import STOPPED
from clozelab.verdicts.experiment import find_experiment

HELP = """clozelab reproduce EXPERIMENT [scale=NAME] [name=value ...] [--dry-run]

Prepares the corpus, runs both sweeps and writes the report. Stop it and start it again at any time.

  name=value             goes to every stage that has such a key
  prepare.name=value     goes to that stage alone; so do pretrain. and finetune.
  --skip-doctor          goes on whatever the pre-flight (clozelab doctor) would find
  --dry-run              lists the jobs and how each stands: new, running, interrupted, failed, complete;
                         conflict (its folder holds a run of other settings, and it will be refused);
                         check (complete, its inputs have to be read to be sure);
                         shared (an equal run of another experiment will be taken);
                         shared? (will be taken if the files it was trained on are still the same)"""


def main(words: Sequence[str]) -> int:
    """Run the experiment; returns 0 only if every step went well."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    said = parse("reproduce", words, names=(1, 1), flags=("dry-run", "skip-doctor"), takes_overrides=True)
    folder = find_experiment(said.names[0])
    steps = make_steps(folder, said.overrides)
    if "dry-run" in said.flags:
        return dry_run(steps)
    last, console, status = steps[-1], Console(stderr=True), 0
    jobs = {one.verb: names_of(map(one.sweep.composer.compose, one.sweep.jobs)) for one in steps if one.is_sweep}
    write_launch(last.root[0], ["reproduce", *words], {stage: jobs.get(stage, []) for stage in SWEEPS})
    if all_complete(steps):
        console.print("every run is complete", style="dim")
        accept_other_code(find(last.root[0]).runs, "any")
    else:
        if "skip-doctor" not in said.flags:
            before = sum(not step.is_sweep for step in steps)
            steps.insert(before, Step("doctor", "", None, (str(folder), *said.overrides)))
        status, is_stopped = run_steps(steps, console)
        if is_stopped:
            return status
    console.rule("report", align="left")
    judge(folder, last.overrides, last.config_name)
    return status


def all_complete(steps: Sequence[Step]) -> bool:
    """Looks at no further job once one is not complete."""
    return all(job.status == "complete" for step in steps if step.is_sweep for job in planned_jobs(step.sweep))


def run_steps(steps: Sequence[Step], console: Console) -> tuple[int, bool]:
    """(status, whether nothing more is to be done): one process a step, up to the first that must not be passed."""
    failed = False
    for number, step in enumerate(steps, 1):
        console.rule(escape(f"{number} of {len(steps) + 1}: clozelab {' '.join(step.words())}"), align="left")
        status = run_verb(step.words(), **{SKIP_DOCTOR: REPRODUCING})
        if status > 128 or status in STOPPED or (status and not step.is_sweep):
            return status, True
        failed |= status != 0
    return int(failed), False


def dry_run(steps: Sequence[Step]) -> int:
    """List every job with its state and start nothing."""
    console = Console()
    for step in steps:
        console.print(f"clozelab {' '.join(step.words())}", style="bold", markup=False, soft_wrap=True)
        if not step.is_sweep:
            continue
        jobs = list(planned_jobs(step.sweep))
        for job in jobs:
            doubt = ", if its files are still the same" if job.status == LIKELY_SHARED else ""
            source = f"  (trained as {job.source}{doubt})" if job.source else ""
            console.print(f"  {job.status:<12} {job.run_dir}{source}", markup=False, highlight=False, soft_wrap=True)
        counts = Counter(job.status for job in jobs)
        console.print("  " + ", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0
