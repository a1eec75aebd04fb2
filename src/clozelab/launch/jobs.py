"""A sweep's jobs before they run: where each would run, and how its folder stands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from clozelab.config import Composed
from clozelab.launch.overrides import check_overrides
from clozelab.launch.sweep import Sweep
from clozelab.runs.inputs import are_untouched
from clozelab.runs.record import DAMAGED, JobName, read_record
from clozelab.runs.reuse import find_equal_run, is_done, is_record_of, never_kept

LIKELY_SHARED = "shared?"


class PlannedJob(NamedTuple):
    """One job of a sweep before it runs."""

    overrides: tuple[str, ...]
    run_dir: str
    status: str
    """How its folder stands:

    new
    conflict      a run of other settings, or that kept less, is there: the job will be refused
    shared        new, and an equal run of another experiment will be taken
    shared?       will be, if the files it read are still the same
    complete      nothing it was made from can have changed
    running, interrupted, failed
    check         complete, but perhaps of other inputs, or of code that must not be
    damaged       its record cannot be read: the job itself will say so
    """
    source: str = ""  # folder of the run that is, or will be, shared


def planned_jobs(sweep: Sweep) -> Iterator[PlannedJob]:
    """Return every job, in the order in which it is started, with how it stands now."""
    return with_own_folders(
        plan_job(sweep.composer.compose(overrides), overrides) for overrides in sweep.jobs
    )


def plan_job(job: Composed, overrides: Sequence[str]) -> PlannedJob:
    """Say where a composed job runs and how its folder stands.

    ValueError for overrides that cannot be meant.
    """
    job.check()
    if job.stage != "prepare":
        check_overrides(job)
    run_dir = str(job.get("run_dir") or "")
    status = "new"
    source = ""
    if run_dir:
        status, source = job_status(job, run_dir)
    return PlannedJob(tuple(overrides), run_dir, status, source)


def with_own_folders(planned: Iterable[PlannedJob]) -> Iterator[PlannedJob]:
    """Yield the jobs as they are; ValueError for one whose folder is another's.

    It would wait for that one, or be refused by it.
    """
    by_folder: dict[str, PlannedJob] = {}
    for plan in planned:
        if plan.run_dir in by_folder:
            earlier = by_folder[plan.run_dir]
            differing = ", ".join(sorted(set(plan.overrides) ^ set(earlier.overrides)))
            raise ValueError(
                f"two jobs of this sweep would share the folder {plan.run_dir}; they differ in"
                f" {differing}. Sweep a key that run_dir contains, or put it there:"
                " run_dir='...${key}...'"
            )
        if plan.run_dir:
            by_folder[plan.run_dir] = plan
        yield plan


def job_status(job: Composed, run_dir: str) -> tuple[str, str]:
    """Return the status of a PlannedJob, and the run that it shares or ""."""
    folder = Path(run_dir)
    try:
        record = read_record(folder)
    except ValueError:
        return DAMAGED, ""
    if record is None or job.get("reuse") == "never":
        return _status_of_new(job)
    # The note says where the shared run is as seen from this folder.
    source = ""
    if record.shared:
        source = os.path.normpath(folder / record.shared.run)
    if is_done(run_dir, stage=job.stage, config=job):
        return "complete", source
    with suppress(ValueError):  # a value is missing: the job itself says which
        if not is_record_of(record, stage=job.stage, recorded=job.recorded):
            return "conflict", source
        if record.is_complete and never_kept(job.values, record):
            return "conflict", source
    # Complete, and yet not done: something that it was made from may have changed.
    if record.is_complete:
        return "check", source
    return record.status, source


def _status_of_new(job: Composed) -> tuple[str, str]:
    """Whether a job without a run of its own will be trained, or takes an equal run's."""
    # Only pre-trainings are shared: rows of several experiments want the same encoder.
    if job.stage != "pretrain":
        return "new", ""
    equal_run = find_equal_run(job)
    if not equal_run:
        return "new", ""
    status = LIKELY_SHARED
    if are_untouched(job, equal_run.watched):
        status = "shared"
    return status, str(equal_run.folder)


def names_of(composed: Iterable[Composed]) -> list[JobName]:
    """Return the names that the runs of composed jobs will have."""
    return [JobName.from_config(job.values) for job in composed]
