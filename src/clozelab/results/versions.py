"""Which runs a table compares where it has runs of several results versions.

A results version (runs/fingerprint.py) forbids mixing within a comparison, not reading
(docs/decisions/0019). So a column is of one version: the newest that any of its complete runs has.
Runs of older ones stand in no cell, and neither do runs on encoders that stand in none.
`results.csv` has all of them, and the report names them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.analysis.comparability import group_by
from clozelab.analysis.reasons import Age, Outdated, OutdatedRuns
from clozelab.runs.inputs import encoder_fingerprint

if TYPE_CHECKING:
    from clozelab.runs.record import Record

# what `differ_in` says where rows may be of different versions
VERSION_KEY = "results_version"
# folder of a run that is in no cell -> why not
OutdatedFolders = Mapping[Path, Outdated]


def find_outdated(runs: Iterable[Record], free_keys: Iterable[str] = ()) -> OutdatedFolders:
    """The complete runs of an experiment at one scale that are in no cell, beside newer ones.

    With VERSION_KEY among `free_keys` rows may be of different versions; each takes its own
    newest.
    """
    complete = [run for run in runs if run.is_complete]
    is_free = VERSION_KEY in free_keys

    def comparison_of(run: Record) -> Hashable:
        if is_free:
            return run.stage, run.task, run.name
        return run.stage, run.task

    outdated: dict[Path, Outdated] = {}
    old_encoders: set[tuple[str, int]] = set()
    for group in group_by(complete, comparison_of).values():
        newest = max(run.results_version for run in group)
        older = [run for run in group if run.results_version < newest]
        for run in older:
            outdated[run.folder] = Outdated(Age.OLDER_VERSION, run.results_version, newest)
            if run.stage == "pretrain":
                old_encoders.add((run.name, run.seed))

    # What was measured on an encoder that is left out would bring the old version in again.
    candidates = [run for run in complete if _arm_and_seed(run) in old_encoders]
    if not candidates:
        return outdated
    current_encoders = _encoder_checksums(run for run in complete if run.folder not in outdated)
    for run in candidates:
        # The arm and seed may have been trained anew, and this run may have begun with that.
        if run.inputs.get("encoder") not in current_encoders:
            outdated.setdefault(run.folder, Outdated(Age.OLDER_ENCODER))
    return outdated


def _encoder_checksums(runs: Iterable[Record]) -> set[str]:
    """The fingerprints of all encoders that the pre-trainings among some runs have kept."""
    checksums: set[str] = set()
    for run in runs:
        if run.stage != "pretrain":
            continue
        # encoder/, and those of points on the way
        for file in run.folder.glob("encoder*/**/checksums.json"):
            with suppress(ValueError):  # its other files are gone
                checksums.add(encoder_fingerprint(file.parent))
    return checksums


def _arm_and_seed(run: Record) -> tuple[str, int] | None:
    """Of the pre-training whose encoder a run began with; None where there is none."""
    if run.stage == "pretrain" or run.config.get("initialisation") != "pretrained":
        return None
    return str(run.config.get("encoder_arm")), run.pretrain_seed


def num_outdated(outdated: OutdatedFolders, runs: Iterable[Record], row: str, task: str) -> int:
    """How many runs a cell leaves out."""
    return sum(run.folder in outdated and (run.name, run.task) == (row, task) for run in runs)


def all_are_outdated(outdated: OutdatedFolders, runs: Sequence[Record]) -> OutdatedRuns | None:
    """Why a row or an arm has no score, by all its runs in a column; None where it may have one."""
    complete = [run for run in runs if run.is_complete]
    reasons = [outdated[run.folder] for run in complete if run.folder in outdated]
    if not complete or len(reasons) < len(complete):
        return None
    return OutdatedRuns(complete[0].name, len(complete), tuple(dict.fromkeys(reasons)))
