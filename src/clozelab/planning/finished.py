"""Which jobs of a sweep need not run again, by the runs so far.

A launch composes each of its jobs to know that. Here jobs that differ in seeds alone are composed
once, for a sweep may have thousands.
"""

from __future__ import annotations

from clozelab.files.digests import digest
from clozelab.launch.jobs import plan_job
from clozelab.planning.shapes import Words
from clozelab.planning.steps import Step
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import SEED_KEYS
from clozelab.runs.record import JobName
from clozelab.runs.reuse import is_record_of, trained_by
from clozelab.text.did_you_mean import values_of

# of a planned job; `check`: complete, most likely of the same inputs
DONE = ("complete", "check", "shared", "shared?")


def done_jobs(step: Step, runs: Runs | None) -> set[Words]:
    """The jobs of one step that need not run again, by the runs so far."""
    if runs is None:
        return set()
    complete = {run.job_name: run for run in getattr(runs, step.verb) if run.is_complete}
    elsewhere = set()
    if step.verb == "pretrain":
        elsewhere = _trained_elsewhere(runs)
    if not complete and not elsewhere:
        return set()

    composer = step.sweep.composer
    done = set()
    for jobs in step.sweep.groups(lambda key: key not in SEED_KEYS).values():
        first = composer.compose(jobs[0])
        if first.get("reuse") == "never":
            continue
        for job in jobs:
            values = values_of(job)
            seeds = {key: int(values[key]) for key in SEED_KEYS if key in values}
            recorded = first.recorded | seeds
            run = complete.get(JobName.from_config(recorded))
            is_same = run is not None and is_record_of(run, stage=step.verb, recorded=recorded)
            is_asked = run is not None or (elsewhere and digest(trained_by(recorded)) in elsewhere)
            # Another setting may depend on the seed, and an equal run may have lost its encoder.
            if is_same or (is_asked and plan_job(composer.compose(job), job).status in DONE):
                done.add(job)
    return done


def _trained_elsewhere(runs: Runs) -> set[str]:
    """What other experiments have pre-trained at this scale, as digests; it may be shared."""
    digests = set()
    for scale in runs.root.parent.parent.glob(f"*/{runs.root.name}"):
        if scale.parent.name == runs.root.parent.name:
            continue
        for run in find(scale / "pretrain").runs:
            if run.is_complete:
                digests.add(digest(trained_by(run.config)))
    return digests
