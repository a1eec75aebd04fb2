"""Which jobs of a sweep need not run again, by the runs so far.

A launch composes each of its jobs to know that. Here only those are composed whose folder holds
another run than expected, for a sweep may have thousands.
"""

from __future__ import annotations

from pathlib import Path

from clozelab.files.digests import digest
from clozelab.files.origin import RUN_FILE
from clozelab.launch.jobs import plan_job
from clozelab.planning.shapes import Words
from clozelab.planning.steps import Step
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import SEED_KEYS, counting_leaves
from clozelab.runs.reuse import is_complete_run, trained_by
from clozelab.text.did_you_mean import values_of

# of a planned job; `check`: complete, most likely of the same inputs
DONE = ("complete", "check", "shared", "shared?")


def done_jobs(step: Step, runs: Runs | None) -> set[Words]:
    """The jobs of one step that need not run again, by the runs so far."""
    if runs is None:
        return set()
    sweep = step.sweep
    records = {run.folder: run for run in runs.records}
    elsewhere = _trained_elsewhere(runs) if step.verb == "pretrain" else set()
    if not records and not elsewhere:
        return set()

    done = set()
    for jobs in sweep.groups(lambda key: key not in SEED_KEYS).values():
        settings = sweep.settings(jobs[0])
        if settings["reuse"] == "never":
            continue
        of_group = counting_leaves(settings)
        for job in jobs:
            recorded = of_group | _seeds_of(job)
            # Where the launch looks, too: a run of this name in another folder is no run of it.
            folder = Path(sweep.run_dir(job))
            is_done = is_complete_run(records.get(folder), stage=step.verb, recorded=recorded)
            # Another setting may depend on the seed, and an equal run may have lost its encoder.
            may_be_done = (folder / RUN_FILE).is_file()
            if elsewhere and not may_be_done:
                may_be_done = digest(trained_by(recorded)) in elsewhere
            if may_be_done and not is_done:
                is_done = plan_job(sweep.composer.compose(job), job).status in DONE
            if is_done:
                done.add(job)
    return done


def _seeds_of(job: Words) -> dict[str, int]:
    values = values_of(job)
    return {key: int(values[key]) for key in SEED_KEYS if key in values}


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
