"""Which runs a table compares where it has runs of several results versions.

A results version (runs/identity.py) forbids mixing within a comparison, not reading
(docs/decisions/0019). So a column is of one version: the newest that any of its complete runs has.
Runs of older ones stand in no cell, and neither do runs on encoders that stand in none.
`results.csv` has all of them, and the report names them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.runs.record import grouped

if TYPE_CHECKING:
    from clozelab.runs.record import Record

VERSION_KEY = "results_version"  # what `differ_in` says where rows may be of different versions
Outdated = Mapping[Path, str]  # folder of a run that is in no cell -> why not


def find_outdated(runs: Iterable[Record], free_keys: Iterable[str] = ()) -> Outdated:
    """The complete runs of an experiment at one scale that are in no cell, since newer ones are
    beside.

    With VERSION_KEY among `free_keys` rows may be of different versions; each takes its own
    newest."""
    complete = [run for run in runs if run.is_complete]
    is_free = VERSION_KEY in free_keys

    def comparison_of(run: Record) -> Hashable:
        if is_free:
            return run.stage, run.task, run.name
        return run.stage, run.task

    outdated: dict[Path, str] = {}
    old_encoders: set[tuple[str, int]] = set()
    for mine in grouped(complete, comparison_of).values():
        newest = max(run.results_version for run in mine)
        for run in mine:
            if run.results_version == newest:
                continue
            versions = f"{run.results_version}, beside others of {newest}"
            outdated[run.folder] = f"of results version {versions}"
            if run.stage == "pretrain":
                old_encoders.add((run.name, run.seed))

    # What was measured on an encoder that is left out would bring the old version in again.
    for run in complete:
        if _encoder_of(run) in old_encoders:
            outdated.setdefault(run.folder, "on encoders of an older results version than others")
    return outdated


def _encoder_of(run: Record) -> tuple[str, int] | None:
    """Arm and seed of the pre-training whose encoder a run began with; None where there is none."""
    if run.stage == "pretrain" or run.config.get("initialisation") != "pretrained":
        return None
    return str(run.config.get("encoder_arm")), run.pretrain_seed


def describe(outdated: Outdated, runs: Sequence[Record]) -> Iterator[str]:
    """A line for each stage, task and reason: how many runs are left out, of which arms or rows."""
    left_out = [run for run in runs if run.folder in outdated]
    kinds = grouped(left_out, lambda run: (run.stage, run.task, outdated[run.folder]))
    for (stage, task, why), mine in kinds.items():
        column = f"{stage} {task}".strip()
        names = ", ".join(grouped(mine))
        yield (
            f"{column}: {len(mine)} run(s) of {names} are {why}: no comparison mixes them, so they"
            " are in no cell; make them again, or give them a runs_dir of their own"
        )


def older_runs(outdated: Outdated, runs: Iterable[Record], row: str, task: str) -> str:
    """How many runs a cell leaves out; empty for none."""
    count = sum(run.folder in outdated and (run.name, run.task) == (row, task) for run in runs)
    if not count:
        return ""
    return f"{count} run(s) of an older results version left out"


def why_no_score(outdated: Outdated, runs: Iterable[Record]) -> str:
    """Why a row or an arm has no score, by all its runs in a column; empty where it may have
    one."""
    complete = [run for run in runs if run.is_complete]
    reasons = {outdated.get(run.folder, "") for run in complete}
    if not complete or "" in reasons:
        return ""
    who = f"all {len(complete)} run(s) of {complete[0].name}"
    return f"{who} are {min(reasons)}, and no comparison mixes them"
