"""Every run folder below a place, as typed records. Reads, never writes.

A folder whose record is damaged or missing is a record, too: it says why, and what its place tells of it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clozelab.runs.record import CONFIG_FILE, DAMAGED, KILLED, LOCK_FILE, RUN_FILE, STATUSES, Record, read_record
from clozelab.suggestions import hint
from clozelab.training.host import PROC_LOCKS, Held, holder, holders

PLACES = re.compile(
    r"/(?P<experiment>[^/]+)/(?P<scale>[^/]+)/(?P<stage>pretrain|finetune)"
    r"(/(?P<arm>[^/]+)/seed-(?P<seed>[^/]+)"
    r"|/(?P<row>[^/]+)/pretrain-seed-(?P<pretrain_seed>[^/]+)/(?P<task>[^/]+)/seed-(?P<tuning_seed>[^/]+)|/.*)?$"
)
"""Where conf/ puts a run."""


@dataclass(frozen=True)
class Runs:
    """The runs below a folder, pre-training first, in the order of their places."""

    root: Path
    records: list[Record]

    @cached_property
    def runs(self) -> list[Record]:
        """Those that count: readable, and the first of two folders that are called the same."""
        found: dict[tuple[Any, ...], Record] = {}
        for one in self.records:
            if one.status != DAMAGED:
                found.setdefault(_identity(one), one)
        return list(found.values())

    @cached_property
    def pretrain(self) -> list[Record]:
        return [one for one in self.runs if one.stage == "pretrain"]

    @cached_property
    def finetune(self) -> list[Record]:
        return [one for one in self.runs if one.stage == "finetune"]

    @cached_property
    def damaged(self) -> list[str]:
        """Every folder that does not count, with the reason."""
        first = {_identity(one): one.folder for one in self.runs}
        return [
            f"{one.folder}: {one.problem}"
            if one.status == DAMAGED
            else f"{one.folder}: the same run as {first[_identity(one)]}, perhaps a copy; not counted"
            for one in self.records
            if one.status == DAMAGED or first[_identity(one)] != one.folder
        ]

    @property
    def synthetic(self) -> str | None:
        """Name of the generated world, if any encoder was trained on one or any task's files came from one."""
        return next((one.synthetic for one in self.runs if one.synthetic), None)


def _identity(one: Record) -> tuple[Any, ...]:
    """What a run is called in a table: two folders with one name would count twice, or one hide the other.

    Fine-tuning at another learning rate is another run, of which the table takes the best.
    """
    return one.experiment, one.scale, one.stage, *one.job_name, one.learning_rate


def find(root: Path) -> Runs:
    """Every run folder at or below `root`, by its record or what a claim leaves before there is one; none where there
    is no such folder."""
    found = {path.parent for mark in (RUN_FILE, CONFIG_FILE, LOCK_FILE) for path in root.rglob(mark) if path.is_file()}
    hidden = {folder for folder in found if any(part.startswith(".") for part in folder.relative_to(root).parts)}
    held = holders()
    records = [open_folder(folder, root, held) for folder in sorted(found - hidden)]
    order = sorted(records, key=lambda one: (one.experiment, one.scale, one.stage != "pretrain", one.stage, one.place))
    return Runs(root, order)


def find_below(runs_dir: str) -> list[Record]:
    """The records below the folder that a command line names.

    Raises:
        ValueError: there is no such folder.
    """
    if not Path(runs_dir).is_dir():
        raise ValueError(f"{runs_dir} is no folder; give runs_dir=FOLDER, or start where the runs are")
    return find(Path(runs_dir)).records


def open_folder(folder: Path, root: Path, held: Held | None = None) -> Record:
    """The record of one folder, with what is true of it now; a damaged one has the reason as its error."""
    place = folder.relative_to(root).as_posix() if folder != root else folder.name
    pid = holder(folder / LOCK_FILE, held)
    problem = f"no {RUN_FILE}"
    try:
        record = read_record(folder)
    except (OSError, ValueError) as error:
        record, problem = None, str(error)
    if record is None:
        record = _unreadable(folder, problem)
        record.status = DAMAGED if pid is None else "running"
    record.place, record.holder = place, pid
    if record.is_complete and record.stage == "finetune" and record.score is None:
        return record.model_copy(update={"status": DAMAGED, "error": f"{folder} says complete and has no scores"})
    # Only where this machine would know of a process that still runs.
    is_here = record.process is None or record.process.host == platform.node()
    if record.status == "running" and pid is None and PROC_LOCKS.is_file() and is_here:
        record.status = KILLED
    return record


def _unreadable(folder: Path, problem: str) -> Record:
    """A folder without a record: what its place tells, .../EXPERIMENT/SCALE/STAGE/... as conf/ has it."""
    found = PLACES.search(folder.resolve().as_posix())
    names: dict[str, Any] = {key: one for key, one in found.groupdict().items() if one} if found else {}
    stage, scale = names.pop("stage", ""), names.pop("scale", "")
    if "task" in names:
        names |= {"task": {"name": names["task"]}, "seed": names.pop("tuning_seed")}
    return Record.model_construct(
        stage=stage, scale=scale, error=problem, config=names, fingerprint="", started="", inputs={}, watched={},
        results_version=0, folder=folder,
    )  # fmt: skip


def select(records: Sequence[Record], experiment: str | None, filters: Mapping[str, str]) -> list[Record]:
    """The records of an experiment that fit every filter (field -> one value or several with commas).

    Raises:
        ValueError: no record has that experiment, or a status does not exist.
    """
    known = sorted({one.experiment for one in records if one.experiment})
    if experiment is not None and experiment not in known:
        raise ValueError(f"no run of {experiment!r} here; {hint(experiment, known)}")
    wanted = {key: set(value.split(",")) for key, value in filters.items()}
    for status in wanted.get("status", set()) - set(STATUSES):
        raise ValueError(f"status={status}: there is no such status; {hint(status, STATUSES)}")
    own = [one for one in records if experiment in (None, one.experiment)]
    return [one for one in own if all(getattr(one, key) in values for key, values in wanted.items())]


def no_match(records: Sequence[Record], experiment: str | None, filters: Mapping[str, str]) -> str:
    """What to say where `select` has found none of some records: which filter fits nothing, and what there is."""
    own = [one for one in records if experiment in (None, one.experiment)]
    whose = f" of {experiment}" if experiment else ""
    for key, value in filters.items():
        known = sorted({str(getattr(one, key)) for one in own} - {""})
        if not set(value.split(",")) & set(known):
            return f"none of the {len(own)} runs{whose} has {key}={value}; {hint(value, known)}"
    said = " ".join(f"{key}={value}" for key, value in filters.items())
    return f"none of the {len(own)} runs{whose} has all of {said}"
