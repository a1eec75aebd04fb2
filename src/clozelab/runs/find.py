"""Everything that the run folders below one folder say, as plain records. Reads, never writes, never guesses.

Scores come out in percent: shares (GLUE's scorers) are multiplied, SQuAD's are percent already.

Every run folder below a place as a plain record, whatever state it is in. Reads, never writes, hides nothing.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.runs.record import CONFIG_FILE, RUN_FILE, JobName, read_state
from clozelab.runs.store import LOCK_FILE, can_tell, holder, holders
from clozelab.suggestions import hint
from clozelab.training.metrics_rows import read_rows

CURVE_KEYS = ("validation/loss", "validation/accuracy", "validation/nsp_accuracy")
PERCENT, SHARE, NATS, LOGITS, NO_UNIT = "percent", "share", "nats", "logits", ""
THRESHOLDS = ("threshold", "best_exact_thresh", "best_f1_thresh")
"""Of SQuAD 2.0: the odds of "no answer" above which there is none, a difference of logits."""


@dataclass(frozen=True)
class PretrainRun:
    """One pre-training run: `state` is its run.json, `curves` maps a key to [(tokens, value)]."""

    dir: Path
    arm: str
    seed: int
    state: Mapping[str, Any]
    curves: Mapping[str, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return bool(self.state["status"] == "complete")

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.state.get("facts", {})


@dataclass(frozen=True)
class FinetuneRun:
    """One fine-tuning run; `scores` in percent and empty unless it is complete."""

    dir: Path
    row: str
    task: str
    pretrain_seed: int
    seed: int
    state: Mapping[str, Any]
    metric: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    title: str = ""
    stand_in_for: str | None = None
    majority: float | None = None
    collapsed: bool = False
    num_examples: int | None = None
    learning_rate: float | None = None
    synthetic: str | None = None
    """Name of the generator that wrote the task's files."""
    says_origin: bool = False
    """Whether the record says where the task's files are from; those of before it did say nothing."""
    num_evaluations: int = 0
    """Of which its score is the best one."""
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Simple method -> metric -> its score on the same examples, in percent."""

    @property
    def is_complete(self) -> bool:
        return bool(self.state["status"] == "complete" and self.scores)

    @property
    def max_seq_length(self) -> int | None:
        """Tokens that its rows were cut to; None where the record does not say."""
        length = self.state.get("facts", {}).get("data", {}).get("max_seq_length")
        return int(length) if length else None


AnyRun = PretrainRun | FinetuneRun


@dataclass(frozen=True)
class Collected:
    root: Path
    pretrain: list[PretrainRun]
    finetune: list[FinetuneRun]
    damaged: list[str]
    """Folders whose records cannot be read, with the reason."""

    @property
    def runs(self) -> list[AnyRun]:
        return [*self.pretrain, *self.finetune]

    @property
    def states(self) -> list[Mapping[str, Any]]:
        return [run.state for run in self.runs]

    @property
    def synthetic(self) -> str | None:
        """Name of the generated world, if any encoder was trained on one or any task's files came from one."""
        corpora = (run.state["config_resolved"].get("corpus", {}) for run in self.pretrain)
        names = [str(corpus["name"]) for corpus in corpora if corpus.get("generator")]
        return next(iter([*names, *(run.synthetic for run in self.finetune if run.synthetic)]), None)

    def world_of(self, run: FinetuneRun) -> str | None:
        """The generated world that a run's task is of; that of the encoders where its record does not say."""
        return run.synthetic if run.says_origin else self.synthetic


def collect(root: Path) -> Collected:
    """Read every run folder below `root` (an experiment at one scale)."""
    pretrain: list[PretrainRun] = []
    finetune: list[FinetuneRun] = []
    damaged: list[str] = []
    seen: dict[tuple[Any, ...], Path] = {}
    for path in sorted(root.rglob(RUN_FILE)):
        try:
            state = read_state(path.parent)
            if state is None or state["stage"] not in ("pretrain", "finetune"):
                continue
            first = seen.setdefault(_identity(state), path.parent)
            if first != path.parent:
                damaged.append(f"{path.parent}: the same run as {first}, perhaps a copy; not counted")
            elif state["stage"] == "pretrain":
                pretrain.append(_pretrain_run(path.parent, state))
            else:
                finetune.append(_finetune_run(path.parent, state))
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{path.parent}: {type(error).__name__}: {error}")
    return Collected(root, pretrain, finetune, damaged)


def _identity(state: dict[str, Any]) -> tuple[Any, ...]:
    """What a run is called in the table: two folders with one name would count twice, or one hide the other.

    Fine-tuning at another learning rate is another run, of which the table takes the best.
    """
    config = state["config_resolved"]
    if state["stage"] == "pretrain":
        return "pretrain", str(config["arm"]), int(config["seed"])
    seeds = int(config["pretrain_seed"]), int(config["seed"])
    return "finetune", str(config["row"]), str(config["task"]["name"]), *seeds, config.get("learning_rate")


def _pretrain_run(folder: Path, state: dict[str, Any]) -> PretrainRun:
    config = state["config_resolved"]
    return PretrainRun(folder, str(config["arm"]), int(config["seed"]), state, read_curves(folder / "metrics.csv"))


def _finetune_run(folder: Path, state: dict[str, Any]) -> FinetuneRun:
    config = state["config_resolved"]
    task = config["task"]
    run = {
        "dir": folder,
        "row": str(config["row"]),
        "task": str(task["name"]),
        "pretrain_seed": int(config["pretrain_seed"]),
        "seed": int(config["seed"]),
        "state": state,
        "title": str(task.get("title") or task["name"]),
        "stand_in_for": task.get("stand_in_for"),
        "learning_rate": config.get("learning_rate"),
    }
    if state["status"] == "complete":
        run |= read_scores(folder / "scores.json")
    return FinetuneRun(**run)


def read_scores(path: Path) -> dict[str, Any]:
    saved = json.loads(path.read_text(encoding="utf-8"))
    factor = 1.0 if is_percent(saved["scores"]) else 100.0
    scores = {key: float(value) * factor for key, value in saved["scores"].items()}
    if not all(math.isfinite(value) for value in scores.values()):
        raise ValueError(f"{path} holds a score that is not a number")
    majority = saved.get("majority_baseline")
    if isinstance(majority, Mapping):
        majority = majority.get(saved["metric"], majority.get(str(saved["metric"]).rpartition("/")[2]))
    return {
        "metric": str(saved["metric"]),
        "scores": scores,
        "majority": None if majority is None else float(majority) * factor,
        "collapsed": bool(saved.get("collapsed", False)),
        "num_examples": saved.get("num_examples"),
        "num_evaluations": len(saved.get("evaluations", ())),
        "synthetic": saved.get("synthetic"),
        "says_origin": "synthetic" in saved,
        "baselines": {
            name: {f"validation/{key}": float(value) * factor for key, value in named.items()}
            for name, named in saved.get("baselines", {}).items()
        },
    } | ({"title": str(saved["title"])} if saved.get("title") else {})


def is_percent(keys: Iterable[str]) -> bool:
    """Whether scores of these names are in percent: SQuAD's official scorers', all others' are shares of one."""
    return any(key.rpartition("/")[2] in ("exact_match", "exact") for key in keys)


def unit_of(key: str) -> str:
    """The unit of a held-out figure or score, as it is shown to readers; a perplexity has none."""
    name = key.removeprefix("validation/").partition("/")[0]
    if name.endswith("loss"):
        return NATS
    if name in THRESHOLDS:
        return LOGITS
    return NO_UNIT if name.endswith("perplexity") else PERCENT


def read_curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """[(tokens, value)] of each key of CURVE_KEYS in a metrics.csv."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in read_rows(path):
        if row.key in CURVE_KEYS:
            curves.setdefault(row.key, []).append((row.tokens, row.value))
    return curves


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
