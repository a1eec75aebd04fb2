"""Which jobs of a sweep need not run again, by the runs so far.

A launch composes each of its jobs to know that. Here only those are composed whose folder holds
another run than expected, for a sweep may have thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from clozelab.files.digests import digest
from clozelab.files.origin import RUN_FILE
from clozelab.launch.jobs import plan_job
from clozelab.planning.shapes import Words
from clozelab.planning.steps import Step
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import counting_values
from clozelab.runs.record import Record
from clozelab.runs.reuse import is_complete_run, never_kept, trained_by

# of a planned job; `check`: complete, most likely of the same inputs
DONE = ("complete", "check", "shared", "shared?")


def done_jobs(step: Step, runs: Runs | None) -> set[Words]:
    """The jobs of one step that need not run again, by the runs so far."""
    if runs is None:
        return set()
    records = {run.folder: run for run in runs.records}
    elsewhere = _trained_elsewhere(runs) if step.verb == "pretrain" else set()
    if not records and not elsewhere:
        return set()

    return {job for job in step.sweep.jobs if _is_done(step, job, records, elsewhere)}


def _is_done(
    step: Step, job: Words, records: Mapping[Path, Record], elsewhere: Collection[str]
) -> bool:
    """Whether one job need not run again; `elsewhere` as `_trained_elsewhere` has it."""
    settings = step.sweep.settings(job)
    if settings["reuse"] == "never":
        return False
    recorded = counting_values(settings)
    # Where the launch looks, too: a run of this name in another folder is no run of it.
    folder = Path(settings["run_dir"])
    record = records.get(folder)
    if record and is_complete_run(record, stage=step.verb, recorded=recorded):
        return not never_kept(settings, record)
    may_be_done = (folder / RUN_FILE).is_file()
    if elsewhere and not may_be_done:
        may_be_done = digest(trained_by(recorded)) in elsewhere
    # What a record holds may be spelt otherwise, and an equal run may have lost its encoder.
    return may_be_done and plan_job(step.sweep.composer.compose(job), job).status in DONE


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
