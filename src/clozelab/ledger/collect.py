"""Everything that the run folders below one folder say, as plain records. Reads, never writes, never guesses.

Scores come out in percent: shares (GLUE's scorers) are multiplied, SQuAD's are percent already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clozelab.ledger.run_record import RUN_FILE, read_state
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
