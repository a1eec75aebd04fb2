"""Which jobs of a sweep need not run again, by the runs so far.

A launch composes each of its jobs to know that. Here jobs that differ in seeds alone are composed
once, for a sweep may have thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from clozelab.files.digests import digest
from clozelab.launch.jobs import plan_job
from clozelab.planning.shapes import Words
from clozelab.planning.steps import Step
from clozelab.runs.find import Runs, find
from clozelab.runs.identity import SEED_KEYS
from clozelab.runs.record import JobName, Record
from clozelab.runs.reuse import is_record_of, trained_by
from clozelab.text.did_you_mean import values_of
from clozelab.text.plain import PlainDict

# of a planned job; `check`: complete, most likely of the same inputs
DONE = ("complete", "check", "shared", "shared?")


@dataclass(frozen=True)
class FinishedRuns:
    """The complete runs of one verb."""

    verb: str
    by_name: Mapping[JobName, Record]
    # digests of the configurations that other experiments have pre-trained with
    elsewhere: Collection[str]

    @classmethod
    def from_runs(cls, runs: Runs, verb: str) -> Self:
        by_name = {run.job_name: run for run in getattr(runs, verb) if run.is_complete}
        elsewhere = _trained_elsewhere(runs) if verb == "pretrain" else set()
        return cls(verb, by_name, elsewhere)

    def has(self, recorded: PlainDict) -> bool:
        """Whether a run has a job's name and its configuration."""
        run = self.by_name.get(JobName.from_config(recorded))
        return run is not None and is_record_of(run, stage=self.verb, recorded=recorded)

    def may_have(self, recorded: PlainDict) -> bool:
        """Whether a run has a job's name, or another experiment may have trained it."""
        if JobName.from_config(recorded) in self.by_name:
            return True
        return bool(self.elsewhere) and digest(trained_by(recorded)) in self.elsewhere


def done_jobs(step: Step, runs: Runs | None) -> set[Words]:
    """The jobs of one step that need not run again, by the runs so far."""
    if runs is None:
        return set()
    finished = FinishedRuns.from_runs(runs, step.verb)
    if not finished.by_name and not finished.elsewhere:
        return set()

    composer = step.sweep.composer
    done = set()
    for jobs in step.sweep.groups(lambda key: key not in SEED_KEYS).values():
        first = composer.compose(jobs[0])
        if first.get("reuse") == "never":
            continue
        for job in jobs:
            recorded = first.recorded | _seeds_of(job)
            is_done = finished.has(recorded)
            # Another setting may depend on the seed, and an equal run may have lost its encoder.
            if not is_done and finished.may_have(recorded):
                is_done = plan_job(composer.compose(job), job).status in DONE
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
