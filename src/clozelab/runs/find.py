"""Every run folder below a place, as typed records; and which of them is the run asked for, or
trained the same.

A folder whose record is damaged or missing is a record, too: it says why, and what its place tells.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from clozelab.config import kept_step, total_steps
from clozelab.runs.fingerprint import (
    RESULTS_VERSIONS,
    are_untouched,
    code_hash,
    encoder_fingerprint,
    identity_of,
)
from clozelab.runs.record import (
    CONFIG_FILE,
    DAMAGED,
    KILLED,
    LOCK_FILE,
    RUN_FILE,
    STATUSES,
    Record,
    plain_config,
    read_record,
)
from clozelab.text.did_you_mean import hint
from clozelab.training.host import PROC_LOCKS, Held, holder, holders, host_facts

PLACES = re.compile(  # where conf/ puts a run
    r"/(?P<experiment>[^/]+)/(?P<scale>[^/]+)/(?P<stage>pretrain|finetune|evaluate)"
    r"(/(?P<arm>[^/]+)/seed-(?P<seed>[^/]+)"
    r"|/(?P<row>[^/]+)/pretrain-seed-(?P<pretrain_seed>[^/]+)/(?P<task>[^/]+)/seed-(?P<tuning_seed>[^/]+)|/.*)?$"
)
# what a run is called: nothing that was trained depends on it
NAMES = frozenset({"experiment", "arm"})


@dataclass(frozen=True)
class Runs:
    """The runs below a folder, pre-training first, in the order of their places."""

    root: Path
    records: list[Record]

    @cached_property
    def runs(self) -> list[Record]:
        """Those that count: readable and, of folders that are called the same, the one that was
        made where it lies.
        """
        found: dict[tuple[Any, ...], Record] = {}
        for one in self.records:
            name = cell_of(one)
            if one.status != DAMAGED and (
                name not in found or _at_home(one) > _at_home(found[name])
            ):
                found[name] = one
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
        first, found = {cell_of(one): one for one in self.runs}, list[str]()
        for one in self.records:
            if one.status == DAMAGED:
                found.append(f"{one.folder}: {one.problem}")
            elif (counts := first[cell_of(one)]).folder != one.folder:
                same = (
                    "the same run as {}, a copy by its place"
                    if is_copy(one, counts)
                    else "another run of the cell of {}"
                )
                found.append(f"{one.folder}: {same.format(counts.folder)}; not counted")
        return found

    @cached_property
    def evaluate(self) -> list[Record]:
        return [one for one in self.runs if one.stage == "evaluate"]

    @property
    def lost(self) -> list[str]:
        """Every complete pre-training without its curve."""
        gone = (
            one.folder
            for one in self.pretrain
            if one.is_complete and not (one.folder / "metrics.csv").is_file()
        )
        return [
            f"{folder}: its metrics.csv is gone, so it is in no plot; its scores count"
            for folder in gone
        ]

    @property
    def synthetic(self) -> str | None:
        """Name of the generated world, if any encoder was trained on one or any task's files came
        from one.
        """
        return next((one.synthetic for one in self.runs if one.synthetic), None)


def cell_of(one: Record) -> tuple[Any, ...]:
    """What a run is called in a table, which takes the best of several learning rates."""
    return one.experiment, one.scale, one.stage, *one.job_name, one.learning_rate


def is_copy(one: Record, other: Record) -> bool:
    """Whether two folders hold one run: its configuration, its inputs and its scores."""
    return (one.fingerprint, one.status, one.values) == (
        other.fingerprint,
        other.status,
        other.values,
    )


def _at_home(one: Record) -> int:
    """How many names on the way to its folder are those of the place where it was made, from the
    last one on.
    """
    return len(os.path.commonprefix([one.folder.resolve().parts[::-1], Path(one.home).parts[::-1]]))  # noqa: RUF071


def find(root: Path) -> Runs:
    """Every run folder at or below `root`, by its record or what a claim leaves before it; none
    where that is none.
    """
    found = {
        path.parent
        for mark in (RUN_FILE, CONFIG_FILE, LOCK_FILE)
        for path in root.rglob(mark)
        if path.is_file()
    }
    hidden = {
        folder
        for folder in found
        if any(part.startswith(".") for part in folder.relative_to(root).parts)
    }
    held = holders()
    records = [open_folder(folder, root, held) for folder in sorted(found - hidden)]
    order = sorted(
        records,
        key=lambda one: (one.experiment, one.scale, one.stage != "pretrain", one.stage, one.place),
    )
    return Runs(root, order)


def find_below(runs_dir: str) -> list[Record]:
    """The records below the folder that a command line names; ValueError where there is none."""
    if not Path(runs_dir).is_dir():
        raise ValueError(
            f"{runs_dir} is no folder; give runs_dir=FOLDER, or start where the runs are"
        )
    return find(Path(runs_dir)).records


def open_folder(folder: Path, root: Path, held: Held | None = None) -> Record:
    """The record of one folder, with what is true of it now; without one, the reason is its
    error.
    """
    place = folder.relative_to(root).as_posix() if folder != root else folder.name
    pid = holder(folder / LOCK_FILE, held)
    problem = f"no {RUN_FILE}"
    try:
        record = read_record(folder)
    except (OSError, ValueError) as error:
        record, problem = None, str(error)
    if record is None:  # what its place tells
        at = PLACES.search(folder.resolve().as_posix())
        names: dict[str, Any] = (
            {key: one for key, one in at.groupdict().items() if one} if at else {}
        )
        stage, scale = names.pop("stage", ""), names.pop("scale", "")
        if "task" in names:  # or a measure
            names |= {"task": {"name": names["task"]}, "seed": names.pop("tuning_seed")}
        record = Record.model_construct(
            stage=stage,
            scale=scale,
            error=problem,
            config=names,
            fingerprint="",
            started="",
            inputs={},
            watched={},
            results_version=0,
            folder=folder,
            status=DAMAGED if pid is None else "running",
        )
    record.place, record.holder = place, pid
    if record.is_complete and record.stage != "pretrain" and record.score is None:
        return record.model_copy(
            update={"status": DAMAGED, "error": f"{folder} says complete and has no scores"}
        )
    # Only where this machine would know of a process that still runs.
    is_here = record.process is None or record.process.host == platform.node()
    if record.status == "running" and pid is None and PROC_LOCKS.is_file() and is_here:
        record.status = KILLED
    return record


def select(
    records: Sequence[Record], experiment: str | None, filters: Mapping[str, str]
) -> list[Record]:
    """The records of an experiment (ValueError where it has none) that fit every filter: field ->
    values by commas.
    """
    known = sorted({one.experiment for one in records if one.experiment})
    if experiment is not None and experiment not in known:
        raise ValueError(f"no run of {experiment!r} here; {hint(experiment, known)}")
    wanted = {key: set(value.split(",")) for key, value in filters.items()}
    for status in wanted.get("status", set()) - set(STATUSES):
        raise ValueError(f"status={status}: there is no such status; {hint(status, STATUSES)}")
    own = [one for one in records if experiment in (None, one.experiment)]
    return [
        one for one in own if all(getattr(one, key) in values for key, values in wanted.items())
    ]


def no_match(records: Sequence[Record], experiment: str | None, filters: Mapping[str, str]) -> str:
    """What to say where `select` has found none of some records: which filter fits nothing, and
    what there is.
    """
    own = [one for one in records if experiment in (None, one.experiment)]
    whose = f" of {experiment}" if experiment else ""
    for key, value in filters.items():
        known = sorted({str(getattr(one, key)) for one in own} - {""})
        if not set(value.split(",")) & set(known):
            return f"none of the {len(own)} runs{whose} has {key}={value}; {hint(value, known)}"
    said = " ".join(f"{key}={value}" for key, value in filters.items())
    return f"none of the {len(own)} runs{whose} has all of {said}"


def is_record_of(record: Record, *, stage: str, config: DictConfig) -> bool:
    """Whether a record is of this very configuration, whatever it read; ValueError where a value is
    missing.
    """
    is_current = record.stage == stage and record.results_version == RESULTS_VERSIONS[stage]
    return is_current and identity_of(record.config) == identity_of(plain_config(config))


def is_done(run_dir: str | Path, *, stage: str, config: DictConfig) -> bool:
    """Whether the folder surely holds this very run, complete, its inputs untouched, and what
    others take from it.
    """
    folder = Path(run_dir)
    try:
        record = read_record(folder)
        if record is None or config.get("reuse") == "never" or not record.is_complete:
            return False
        if not is_record_of(record, stage=stage, config=config):
            return False
        has_inputs = are_untouched(config, record.watched) or _has_traveled(record, config)
        if not has_inputs or (config.get("reuse") == "same_code" and other_code(record)):
            return False
    except ValueError:
        return False
    if stage != "pretrain":
        return (folder / "scores.json").is_file()
    return (record.shared is None or shared_run_is_there(record)) and not missing_encoders(
        config, folder
    )


def _has_traveled(record: Record, config: DictConfig) -> bool:
    """Whether a fine-tuning run came without its encoder's weights, of which the checksums are
    those that it read.
    """
    folder = Path(str(config.get("encoder") or ""))
    if (
        record.stage != "finetune"
        or not (folder / "checksums.json").is_file()
        or any(folder.glob("*.safetensors"))
    ):
        return False
    return encoder_fingerprint(folder) == record.inputs.get("encoder")


def other_code(record: Record | None) -> str:
    """What to say of a run that other code has made, or begun, than would make it now; empty where
    none has.
    """
    if record is None:
        return ""
    digest = code_hash(record.stage, record.config)
    sessions = [
        *record.earlier_sessions,
        {"code": record.code, "git": record.git and record.git.model_dump()},
    ]
    if (theirs := next((one for one in sessions if one.get("code") != digest), None)) is None:
        return ""
    sides = (theirs.get("code") or "", theirs.get("git")), (digest, host_facts()["git"])
    gits = (
        f"commit {git['commit'][:10]}{', changed' * git['dirty']}" if git else "no commit"
        for _, git in sides
    )
    made, now = (
        f"{code[:10] or 'unknown'} ({git})" for (code, _), git in zip(sides, gits, strict=True)
    )
    return f"{record.folder} was made by other code: {made}, now {now}"


def kept_steps(config: DictConfig) -> list[int]:
    """Steps after which the run keeps its encoder; ValueError for an impossible fraction."""
    try:
        return [
            kept_step(fraction, total_steps(config.phases)) for fraction in config.keep_encoders
        ]
    except ValueError as error:
        raise ValueError(f"keep_encoders: {error}") from None


def missing_encoders(config: DictConfig, folder: Path) -> list[str]:
    """Kept encoders that a run's folder lacks and this configuration needs."""
    places = (
        [f"encoders/step-{step}" for step in kept_steps(config)]
        if config.get("needs_kept_encoders")
        else []
    )
    return [place for place in places if not (folder / place / "config.json").is_file()]


def require_kept_encoders(config: DictConfig) -> None:
    """ValueError for a complete run that was made without the encoders that are needed here."""
    if missing := missing_encoders(config, Path(config.run_dir)):
        lacks = (
            f"is complete, but has no {', '.join(missing)}: it was trained without keep_encoders"
        )
        raise ValueError(
            f"{config.run_dir} {lacks}. Remove the folder to train again, or give run_dir another"
            " name"
        )


def trained_by(config: Mapping[str, Any]) -> dict[str, Any]:
    """What was trained: a record's configuration without its names and layout."""
    return {key: value for key, value in identity_of(config).items() if key not in NAMES}


def find_equal_run(
    config: DictConfig, inputs: Mapping[str, str] | None = None, anyhow: bool = False
) -> Record | None:
    """A complete run of another experiment that trained just this by itself, with every encoder
    that is needed of it.

    `inputs`: fingerprints of what it reads; None: the answer is only likely. `anyhow`: made by any
    code (reuse=any)."""
    if not config.get("share_runs") or config.get("reuse") == "never":
        return None
    anyhow, mine = anyhow or config.get("reuse") == "any", trained_by(plain_config(config))
    pattern = f"*/{config.scale.name}/pretrain/*/seed-{config.seed}/{RUN_FILE}"
    for folder in (path.parent for path in sorted(Path(config.runs_dir).glob(pattern))):
        try:
            theirs = read_record(folder)
        except (OSError, ValueError):
            continue  # a damaged record is its own experiment's trouble
        if theirs is None or not theirs.is_complete or theirs.experiment == str(config.experiment):
            continue
        is_current = (
            theirs.shared is None and theirs.results_version == RESULTS_VERSIONS["pretrain"]
        )
        is_equal = trained_by(theirs.config) == mine and inputs in (None, theirs.inputs)
        has_encoders = (folder / "encoder/model.safetensors").is_file() and not missing_encoders(
            config, folder
        )
        if is_current and is_equal and has_encoders and (anyhow or not other_code(theirs)):
            return theirs
    return None


def shared_run_is_there(record: Record) -> bool:
    """Whether the run that a shared record speaks of still has the same weights; trained anew it
    may have others.
    """
    if record.shared is None:
        return False
    source = Path(os.path.normpath(record.folder.resolve() / record.shared.run))
    try:
        found = read_record(source)
        is_same = (
            found is not None
            and found.is_complete
            and found.fingerprint == record.shared.fingerprint
        )
        return is_same and encoder_fingerprint(source / "encoder") == record.shared.weights
    except (OSError, ValueError):
        return False
