"""Every run folder below a place as a plain record, whatever state it is in. Reads, never writes, hides nothing."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import read_scores
from clozelab.ledger.locks import LOCK_FILE, can_tell, holder, holders
from clozelab.ledger.run_record import CONFIG_FILE, RUN_FILE, JobName, read_state
from clozelab.suggestions import hint

DAMAGED, KILLED = "damaged", "killed"
STATUSES = ("complete", "running", KILLED, "interrupted", "failed", DAMAGED)
"""`killed`: the record says running, and no process holds the folder."""
_SCALE = re.compile(r"^scale:\n(?:  .*\n)*?  name: (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """One run folder.

    Attributes:
        folder: as found.
        place: the folder below the place that was searched.
        status: one of STATUSES.
        problem: why it is damaged or failed, in one line.
        experiment, scale, stage: empty where a damaged folder does not say.
        name: arm of a pre-training run, row of a fine-tuning run.
        seeds: "1", or pre-training/fine-tuning "1/2".
        metric, score: the headline; percent for a fine-tuning score, the held-out loss for pre-training.
        holder: process that holds the folder now.
    """

    folder: Path
    place: str
    status: str
    problem: str = ""
    experiment: str = ""
    scale: str = ""
    stage: str = ""
    name: str = ""
    task: str = ""
    seeds: str = ""
    metric: str = ""
    score: float | None = None
    holder: int | None = None
    state: Mapping[str, Any] = field(default_factory=dict)

    @property
    def job_name(self) -> JobName:
        return JobName(self.name, self.task, self.seeds)

    @property
    def seconds(self) -> float:
        return float(self.state.get("seconds") or 0.0)

    @property
    def started(self) -> str:
        """UTC, to the minute."""
        return str(self.state.get("started") or "")[:16].replace("T", " ")

    @property
    def fingerprint(self) -> str:
        return str(self.state.get("fingerprint") or "")


def find_records(root: Path) -> list[Record]:
    """A record of every run folder at or below `root`, pre-training first.

    Raises:
        ValueError: there is no such folder.
    """
    if not root.is_dir():
        raise ValueError(f"{root} is no folder; give runs_dir=FOLDER, or start where the runs are")
    held = holders()
    records = [read_record(folder, root, held) for folder in _run_folders(root)]
    return sorted(records, key=lambda one: (one.experiment, one.scale, one.stage != "pretrain", one.stage, one.place))


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with a record, or with what a claim leaves before there is one."""
    marks = (RUN_FILE, CONFIG_FILE, LOCK_FILE)
    found = {path.parent for mark in marks for path in root.rglob(mark) if path.is_file()}
    hidden = {folder for folder in found if any(part.startswith(".") for part in folder.relative_to(root).parts)}
    yield from sorted(found - hidden)


def read_record(folder: Path, root: Path, held: dict[tuple[int, int, int], int] | None = None) -> Record:
    """The record of one folder; a damaged one is a record, too."""
    place = folder.relative_to(root).as_posix() if folder != root else folder.name
    pid = holder(folder, held)
    try:
        state = read_state(folder)
        if state is None:
            return Record(folder, place, "running" if pid is not None else DAMAGED, f"no {RUN_FILE}", holder=pid)
        return _record(folder, place, state, pid)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Record(folder, place, DAMAGED, one_line(error), holder=pid, **_from_path(folder))


def _record(folder: Path, place: str, state: dict[str, Any], pid: int | None) -> Record:
    config = state["config_resolved"]
    common: dict[str, Any] = {
        "folder": folder,
        "place": place,
        "status": _status(state, pid),
        "problem": one_line(state.get("error") or ""),
        "experiment": str(config.get("experiment", "")),
        "scale": scale_of(folder, str(config.get("experiment", ""))),
        "stage": str(state["stage"]),
        "holder": pid,
        "state": state,
    }
    common |= JobName.of(config)._asdict()
    if state["stage"] == "finetune":
        if state["status"] == "complete":
            scores = read_scores(folder / "scores.json")
            common |= {"metric": scores["metric"], "score": scores["scores"].get(scores["metric"])}
    else:
        loss = state.get("facts", {}).get("validation/loss")
        common |= {"metric": "validation/loss", "score": None if loss is None else float(loss)}
    return Record(**common)


def _status(state: Mapping[str, Any], pid: int | None) -> str:
    """`killed` only where this machine would know of a process that still runs."""
    if state["status"] != "running" or pid is not None or not can_tell():
        return str(state["status"])
    host = (state.get("process") or {}).get("host")
    return "running" if host and host != platform.node() else KILLED


def scale_of(folder: Path, experiment: str) -> str:
    """The scale's name, from the folder's place or from the configuration in it; empty where neither says."""
    parts = folder.resolve().parts
    if experiment in parts[:-2]:
        return parts[len(parts) - 1 - parts[::-1].index(experiment) + 1]
    try:
        found = _SCALE.search((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    return found[1] if found else ""


def _from_path(folder: Path) -> dict[str, Any]:
    """What the place of a damaged folder tells: .../EXPERIMENT/SCALE/STAGE/... as conf/ has it."""
    parts = folder.resolve().parts
    found: dict[str, str] = {}
    for stage in ("pretrain", "finetune"):
        if stage in parts[2:]:
            at = len(parts) - 1 - parts[::-1].index(stage)
            found = {"experiment": parts[at - 2], "scale": parts[at - 1], "stage": stage}
            rest = parts[at + 1 :]
            if stage == "pretrain" and len(rest) == 2:
                found |= {"name": rest[0], "seeds": rest[1].removeprefix("seed-")}
            elif stage == "finetune" and len(rest) == 4:
                seeds = f"{rest[1].removeprefix('pretrain-seed-')}/{rest[3].removeprefix('seed-')}"
                found |= {"name": rest[0], "task": rest[2], "seeds": seeds}
    return found


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
    return [
        one
        for one in records
        if experiment in (None, one.experiment) and all(getattr(one, key) in values for key, values in wanted.items())
    ]


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


def one_line(text: object) -> str:
    """An error's words in one line."""
    return " ".join(str(text).split())
