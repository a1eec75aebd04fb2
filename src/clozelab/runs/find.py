"""Every run folder below a place, as typed records.

A folder whose record is damaged or missing is a record, too: it says why, and what its place tells.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from claims.text.did_you_mean import hint
from clozelab.config import GIVEN
from clozelab.files.origin import RUN_FILE
from clozelab.runs.record import (
    CONFIG_FILE,
    DAMAGED,
    KILLED,
    LOCK_FILE,
    STATUSES,
    Record,
    read_record,
)
from clozelab.training.host import PROC_LOCKS, Held, holder, holders

PLACE = re.compile(r"/([^/]+)/([^/]+)/(pretrain|finetune|evaluate)(/|$)")
"""Where conf/ puts a run: EXPERIMENT/SCALE/STAGE/..."""
# a claim writes the lock first, then config.yaml, then run.json
MARKS = frozenset({LOCK_FILE, CONFIG_FILE, RUN_FILE})
# run folder -> the job that Slurm was handed for it; older sweeps left a .lock beside it
HANDED_OVER_FILE = "handed_over.json"
GONE = (-1, -1)
RUN_AGAIN = "remove the folder to run it again"


@dataclass(frozen=True)
class Runs:
    """The runs below a folder, pre-training first, in the order of their places."""

    root: Path
    records: list[Record]

    @cached_property
    def runs(self) -> list[Record]:
        """Those that count: readable, and one for each name.

        Of folders that are called the same it is the one that was made where it lies.
        """
        counted: dict[tuple[Hashable, ...], Record] = {}
        for record in self.records:
            if record.status == DAMAGED:
                continue
            cell = cell_of(record)
            if cell not in counted or _matching_parts_of_home(record) > _matching_parts_of_home(
                counted[cell]
            ):
                counted[cell] = record
        return list(counted.values())

    @cached_property
    def pretrain(self) -> list[Record]:
        return [run for run in self.runs if run.stage == "pretrain"]

    @cached_property
    def finetune(self) -> list[Record]:
        return [run for run in self.runs if run.stage == "finetune"]

    @cached_property
    def evaluate(self) -> list[Record]:
        return [run for run in self.runs if run.stage == "evaluate"]

    @cached_property
    def damaged(self) -> list[str]:
        """Every folder that does not count, with the reason."""
        if len(self.runs) == len(self.records):
            return []
        counted = {cell_of(run): run for run in self.runs}
        lines = []
        for record in self.records:
            if record.status == DAMAGED:
                lines.append(f"{record.folder}: {record.problem}")
                continue
            run = counted[cell_of(record)]
            if run.folder == record.folder:
                continue
            if is_copy(record, run):
                relation = f"the same run as {run.folder}, a copy by its place"
            else:
                relation = f"another run of the cell of {run.folder}"
            lines.append(f"{record.folder}: {relation}; not counted")
        return lines

    @property
    def lost(self) -> list[str]:
        """Every complete pre-training without its curve, or with that of another run."""
        lines = []
        for run in self.pretrain:
            if not run.is_complete:
                continue
            if not (run.folder / "metrics.csv").is_file():
                lines.append(
                    f"{run.folder}: its metrics.csv is gone, so it is in no plot; its scores count"
                )
            elif run.shared is not None and _has_other_settings(run):
                lines.append(
                    f"{run.folder}: the run that it shares, {run.shared.run}, was trained anew with"
                    " other settings; its curve and its encoder are of that one: remove the folder"
                )
        return lines


def _has_other_settings(run: Record) -> bool:
    """Whether another run lies today where a shared one's links lead.

    Its weights are not read: the job itself, which does so, would refuse it.
    """
    assert run.shared is not None and run.shared_folder is not None
    try:
        present = read_record(run.shared_folder)
    except ValueError:
        return False
    return present is not None and present.fingerprint != run.shared.fingerprint


def cell_of(run: Record) -> tuple[Hashable, ...]:
    """Return what a run is called in a table, which takes the best of several learning rates."""
    return run.experiment, run.scale, run.stage, *run.job_name, run.learning_rate


def is_copy(first: Record, second: Record) -> bool:
    """Whether two folders hold one run: its configuration, its inputs and its scores."""
    return (
        first.fingerprint == second.fingerprint
        and first.status == second.status
        and first.values == second.values
    )


def _matching_parts_of_home(run: Record) -> int:
    """Return how many names, from the last one on, its folder has in common with its home.

    A run of `mlm/seed-1` that lies in `copies/seed-1` has one.
    """
    num_equal = 0
    here = run.folder.resolve().parts[::-1]
    home = Path(run.home).parts[::-1]
    for name, home_name in zip(here, home, strict=False):
        if name != home_name:
            break
        num_equal += 1
    return num_equal


def find(root: Path) -> Runs:
    """Return every run folder at or below `root`; no run where that is no folder.

    A run folder has a record, or what a claim leaves before it.
    """
    folders = list(_run_folders(root))
    # asked once for all folders: the list of locks of a large machine is long
    held = holders()
    records = [open_folder(folder, root, held) for folder in folders]

    def order(run: Record) -> tuple[str, str, bool, str, str]:
        # False sorts first: pre-training before what is made of it.
        return run.experiment, run.scale, run.stage != "pretrain", run.stage, run.place

    return Runs(root, sorted(records, key=order))


def _run_folders(root: Path) -> Iterator[Path]:
    """Yield each run folder once, also behind a link to another disk; hidden ones are left out."""
    inside = root.resolve()
    searched = {GONE}
    for name, subfolders, files in os.walk(root, followlinks=True):
        folder = Path(name)
        identity = _identity(folder)
        if identity in searched:  # a circle of links, or gone meanwhile
            subfolders.clear()
            continue
        searched.add(identity)
        is_run = any((folder / mark).is_file() for mark in MARKS.intersection(files))
        if is_run and HANDED_OVER_FILE not in files:
            yield folder
        # What links of a run, and of what an experiment was given, lead to is no run of here.
        follows_links = not is_run and folder.name != GIVEN
        visible = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        subfolders[:] = [
            subfolder
            for subfolder in visible
            if _is_searched(folder / subfolder, inside, follows_links=follows_links)
        ]


def _identity(folder: Path) -> tuple[int, int]:
    """The device and the inode of a folder; GONE where it is not there any more."""
    try:
        status = folder.stat()
    except OSError:
        return GONE
    return status.st_dev, status.st_ino


def _is_searched(folder: Path, inside: Path, *, follows_links: bool) -> bool:
    """Whether runs of here may lie in a folder that are not met elsewhere below `inside`."""
    if not folder.is_symlink():
        return True
    target = folder.resolve()
    # What lies above has other folders of runs, too.
    is_above = inside.is_relative_to(target)
    return follows_links and not is_above and not target.is_relative_to(inside)


def is_folder_of_runs(name: str) -> bool:
    """Whether a name on a command line is a folder to look for runs in, and no experiment's."""
    folder = Path(name)
    return folder.is_dir() and not (folder / "paper.yaml").is_file()


def find_below(runs_dir: str) -> list[Record]:
    """Return the records below the folder that a command line names; ValueError for none."""
    if not Path(runs_dir).is_dir():
        raise ValueError(
            f"{runs_dir} is no folder; give runs_dir=FOLDER, or start where the runs are"
        )
    return find(Path(runs_dir)).records


def of_other_scales(root: Path) -> str:
    """Return " (there are runs of scale=...)" for the scales beside RUNS_DIR/EXPERIMENT/SCALE.

    It is for the error where `root` has no runs; empty where no other scale has any.
    """
    scales = {record.scale for record in find(root.parent).records} - {"", root.name}
    if not scales:
        return ""
    return f" (there are runs of scale={', '.join(sorted(scales))})"


def open_folder(folder: Path, root: Path, held: Held | None = None) -> Record:
    """Return the record of one folder, with what is true of it now.

    Of a folder without a readable record, the reason is the record's error. `held` is an answer of
    `training.host.holders`, for asking about many folders.
    """
    process = holder(folder / LOCK_FILE, held)
    problem = f"no {RUN_FILE}"
    if process is None:
        problem += f"; {RUN_AGAIN}"
    try:
        record = read_record(folder)
    except (OSError, ValueError) as error:
        record = None
        problem = str(error)
    if record is None:
        record = _record_by_place(folder, problem)
        record.status = DAMAGED if process is None else "running"
    record.place = folder.relative_to(root).as_posix() if folder != root else folder.name
    record.holder = process

    # a fine-tuning is there for its scores; of a pre-training the encoder counts
    if record.is_complete and record.stage != "pretrain" and record.score is None:
        return record.model_copy(
            update={
                "status": DAMAGED,
                "error": f"{folder} is complete and has no scores; {RUN_AGAIN}",
            }
        )
    if is_of_killed_process(record, process):
        record.status = KILLED
    return record


def is_of_killed_process(record: Record, process: int | None) -> bool:
    """Whether a record says that it runs, and `process`, who holds its folder, is nobody.

    False where this machine would not know of a process that still runs.
    """
    is_here = record.process is None or record.process.host == platform.node()
    return record.status == "running" and process is None and PROC_LOCKS.is_file() and is_here


def _record_by_place(folder: Path, problem: str) -> Record:
    """Make the record of a folder without one: what its place tells, and why there is no more."""
    match = PLACE.search(folder.resolve().as_posix())
    experiment = scale = stage = ""
    if match:
        experiment, scale, stage, _ = match.groups()
    return Record.model_construct(
        stage=stage,
        scale=scale,
        error=problem,
        config={"experiment": experiment},
        fingerprint="",
        started="",
        inputs={},
        watched={},
        results_version=0,
        folder=folder,
        status=DAMAGED,
    )


def select(
    records: Sequence[Record], experiment: str | None, filters: Mapping[str, str]
) -> list[Record]:
    """Return the records of an experiment that fit every filter: field -> values by commas.

    ValueError where the experiment has none, and for a status that there is not.
    """
    statuses = filters.get("status", STATUSES[0])
    for status in set(statuses.split(",")).difference(STATUSES):
        raise ValueError(f"status={status}: there is no such status; {hint(status, STATUSES)}")
    selected = list(records)
    if experiment is not None:
        experiments = sorted({record.experiment for record in records if record.experiment})
        if experiment not in experiments:
            raise ValueError(f"no run of {experiment!r} here; {hint(experiment, experiments)}")
        selected = [record for record in records if record.experiment == experiment]
    for field, text in filters.items():
        values = text.split(",")
        selected = [record for record in selected if getattr(record, field) in values]
    return selected


def no_match(records: Sequence[Record], filters: Mapping[str, str]) -> str:
    """Say why `select` has found none of some records, and what values there are."""
    conditions = []
    for field, values in filters.items():
        known_values = sorted({str(getattr(record, field)) for record in records} - {""})
        conditions.append(f"{field}={values}")
        if set(known_values).isdisjoint(values.split(",")):
            conditions[-1] += f" ({hint(values, known_values)})"
    return f"none of the {len(records)} runs has {' and '.join(conditions)}"


def open_run(path: str) -> Record:
    """Read the record of one run folder; ValueError where there is none, or it is damaged."""
    folder = Path(path)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{path} is no run folder (no run.json); `clozelab runs --csv` lists them")
    record = open_folder(folder, folder)
    if record.status == DAMAGED:
        raise ValueError(record.problem)
    return record


def find_record(path: Path) -> Record | None:
    """The record of the run that a model's path is, or lies in (RUN/encoder)."""
    # RUN, or RUN/encoder and RUN/model.
    for folder in (path, path.parent):
        if folder.is_dir():
            record = read_record(folder)
            if record is not None:
                return record
    return None


def is_unfinished(path: Path, record: Record | None) -> bool:
    """Whether a path is a pre-training run without an encoder's folder."""
    if record is None or record.stage != "pretrain":
        return False
    return not (record.folder / "encoder").is_dir() and (path / RUN_FILE).is_file()
