"""Complete runs that are not what they are called: made otherwise than the file of their row or arm says.

An override may undo what a file says, and a file may be changed after its runs were made. Such a row measures
something else than its name, so no claim is judged on it.

Whether two rows may be compared: were they made in the same way, apart from what they are about?

What two rows or arms are about is what their files (`row/*.yaml`, `arm/*.yaml`) set differently, and what paper.yaml
lists in `differ_in`. How a row is fine-tuned (PROTOCOL) is never a row's subject unless `differ_in` says so. Arms must
have seen as much as paper.yaml's `matched_by` asks for: steps and tokens where it says nothing. Where it asks for
something else than steps, arms may be of any length. What is not known of an arm cannot be matched.

Runs of different seeds that are one and the same run: they have no spread to speak of, and decide nothing.

Told by what they began with, or by what they answered and the losses on the way, never by equal scores alone: on 400
examples two honest runs often have the same accuracy.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from clozelab.config import CONF_DIR
from clozelab.launch.overrides import Stated, contradictions, read_stated
from clozelab.runs.find import AnyRun, Collected, FinetuneRun, PretrainRun
from clozelab.training.metrics_rows import read_rows
from clozelab.verdicts.consistency import (
    FINETUNE_DATA,
    FINETUNE_MAY_DIFFER,
    PRETRAIN_DATA,
    PRETRAIN_MAY_DIFFER,
    Delta,
    compared,
    encoder_of,
    is_within,
    meant_to_differ,
    read_deltas,
)
from clozelab.verdicts.experiment import RATE_KEYS, Experiment
from clozelab.verdicts.wording import rough


def misfiled(experiment: Experiment, collected: Collected) -> dict[str, str]:
    """Row -> what its complete runs, or those of its arm, contradict; only rows where they do."""
    found = {}
    for row in experiment.rows:
        runs = [run for run in collected.finetune if run.row == row.name and run.is_complete]
        arm_runs = [run for run in collected.pretrain if run.arm == row.arm and run.is_complete]
        arm = {"encoder_arm": row.arm} if row.arm is not None else {}
        reasons = [
            _contradiction(f"row/{row.name}.yaml", runs, _file(experiment, "row", row.name), collected.root),
            _contradiction(f"row {row.name} of paper.yaml", runs, arm, collected.root),
            _contradiction(f"arm/{row.arm}.yaml", arm_runs, _file(experiment, "arm", str(row.arm)), collected.root),
        ]
        if reason := next(filter(None, reasons), ""):
            found[row.name] = reason
    return found


def _file(experiment: Experiment, kind: str, name: str) -> Stated:
    return read_stated((experiment.folder, CONF_DIR), kind, name)


def _contradiction(what: str, runs: Sequence[AnyRun], stated: Stated, root: Path) -> str:
    """The first setting in which runs are not what is said of them, in words; empty where they are."""
    wrong = [(run, found) for run in runs if (found := _undone(run.state, stated))]
    if not wrong:
        return ""
    run, found = wrong[0]
    key, (value, said) = next(iter(found.items()))
    return (
        f"not what it is called: {what} says {key}={said}, and {len(wrong)} of {len(runs)} complete runs have another "
        f"(e.g. {run.dir.relative_to(root).as_posix()}: {'null' if value is None else value})"
    )


def _undone(state: Mapping[str, Any], stated: Stated) -> dict[str, tuple[Any, Any]]:
    found = contradictions(stated, state.get("config_resolved", {}))
    # An encoder from elsewhere has no arm.
    return {key: pair for key, pair in found.items() if key != "encoder_arm" or pair[0] is not None}


PROTOCOL = frozenset(
    {
        "epochs",
        "evaluations_per_epoch",
        "global_batch_size",
        "gradient_clip_norm",
        "learning_rate",
        "max_train_examples",
        "optimizer",
        "schedule",
    }
)
FOLLOWS = {"optimizer.learning_rate": "learning_rate"}
"""Settings that only repeat another one."""
TOLERANCE = 0.02
NAMES = {"training_seconds": "training time (seconds x devices)"}
SHOWN = 3

Settings = Mapping[tuple[int, ...], Mapping[str, str]]
"""Seeds -> dotted key -> its value in the run (the runs, where learning rates were tried) with these seeds."""


@dataclass(frozen=True)
class Comparability:
    """What is known of how rows were made; no settings at all bar nothing.

    Attributes:
        arms: row -> its pre-training arm, or None.
        pretrain: arm -> settings of its complete runs, by seed.
        finetune: (row, task) -> settings of its complete runs, by pre-training and fine-tuning seed.
        amounts: arm -> what one run of it saw and took, as means.
        matched_by: which of the amounts have to agree.
        arm_files, row_files: what their files set.
        encoders: row -> (pre-training seed, fraction of the steps) -> the encoders that its runs began from.
        misfiled: row -> why its runs are not what it is called.
        free_keys: settings that may differ by intention in any of them.
    """

    arms: Mapping[str, str | None] = field(default_factory=dict)
    pretrain: Mapping[str, Settings] = field(default_factory=dict)
    finetune: Mapping[tuple[str, str], Settings] = field(default_factory=dict)
    amounts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    matched_by: tuple[str, ...] = ()
    arm_files: Mapping[str, Delta] = field(default_factory=dict)
    row_files: Mapping[str, Delta] = field(default_factory=dict)
    encoders: Mapping[str, Mapping[tuple[int, float], frozenset[str]]] = field(default_factory=dict)
    misfiled: Mapping[str, str] = field(default_factory=dict)
    free_keys: frozenset[str] = frozenset()

    def why_not(self, first: str, second: str, tasks: Iterable[str]) -> str:
        """Why two rows' scores on these tasks are not comparable; empty where they are."""
        arms = self.arms.get(first), self.arms.get(second)
        reasons = [self._unmatched(arms[0], arms[1])] if arms[0] and arms[1] and arms[0] != arms[1] else []
        about = meant_to_differ(self.row_files.get(first, {}), self.row_files.get(second, {}))
        free = {*self.free_keys, *(key for key in about if key.split(".")[0] not in PROTOCOL)}
        for task in tasks:
            settings = self.finetune.get((first, task), {}), self.finetune.get((second, task), {})
            reasons.append(_difference("fine-tuned", *settings, free))
        reasons += [self.misfiled.get(row, "") for row in (first, second)]
        reasons += [self._other_encoder(first, second)] if arms[0] and arms[0] == arms[1] else []
        return next(filter(None, reasons), "")

    def _other_encoder(self, first: str, second: str) -> str:
        """Two rows of one arm are about one encoder; one that was given from elsewhere is another."""
        mine, theirs = self.encoders.get(first, {}), self.encoders.get(second, {})
        for key in sorted(mine.keys() & theirs.keys()):
            if mine[key] != theirs[key]:
                return f"the rows stand for one encoder, and began from different ones (pre-training seed {key[0]})"
        return ""

    def _unmatched(self, first: str, second: str) -> str:
        amounts = {arm: self.amounts.get(arm, {}) for arm in (first, second)}
        if self.matched_by and (absent := [arm for arm in amounts if arm not in self.amounts]):
            return f"no complete pre-training run of {' and '.join(absent)}"
        for key in self.matched_by:
            name = NAMES.get(key, key)
            if unknown := [arm for arm, one in amounts.items() if key not in one]:
                return f"{name} of pre-training not known for {' and '.join(unknown)}, so nobody can say the arms match"
            pair = [one[key] for one in amounts.values()]
            if abs(pair[0] - pair[1]) > TOLERANCE * max(pair):
                return (
                    f"arms not matched: {rough(pair[0])} against {rough(pair[1])} {name} of pre-training, and "
                    "matched_by in paper.yaml does not say that this is meant"
                )
        settings = self.pretrain.get(first, {}), self.pretrain.get(second, {})
        about = meant_to_differ(self.arm_files.get(first, {}), self.arm_files.get(second, {}))
        return _difference("pre-trained", *settings, {*self.free_keys, *about})


def build_comparability(experiment: Experiment, collected: Collected) -> Comparability:
    """Read it from the complete runs of the experiment's rows and arms, and from its files."""
    pretrain: dict[str, list[PretrainRun]] = {}
    for run in collected.pretrain:
        if run.is_complete:
            pretrain.setdefault(run.arm, []).append(run)
    finetune: dict[tuple[str, str], list[FinetuneRun]] = {}
    for one in collected.finetune:
        if one.is_complete:
            finetune.setdefault((one.row, one.task), []).append(one)
    return Comparability(
        arms={row.name: row.arm for row in experiment.rows},
        pretrain={arm: _settings(runs, PRETRAIN_MAY_DIFFER, PRETRAIN_DATA) for arm, runs in pretrain.items()},
        finetune={key: _settings(runs, FINETUNE_MAY_DIFFER, FINETUNE_DATA) for key, runs in finetune.items()},
        amounts={arm: _amounts(runs) for arm, runs in pretrain.items()},
        matched_by=experiment.matched,
        arm_files=read_deltas(experiment.folder / "arm"),
        row_files=read_deltas(experiment.folder / "row"),
        encoders=_encoders(collected.finetune),
        misfiled=misfiled(experiment, collected),
        free_keys=experiment.free_keys,
    )


def _encoders(runs: Sequence[FinetuneRun]) -> dict[str, dict[tuple[int, float], frozenset[str]]]:
    found: dict[str, dict[tuple[int, float], frozenset[str]]] = {}
    for run in runs:
        config, encoder = run.state.get("config_resolved", {}), run.state.get("inputs", {}).get("encoder")
        if run.is_complete and encoder and config.get("initialisation") == "pretrained":
            mine = found.setdefault(run.row, {})
            key = (run.pretrain_seed, float(config.get("encoder_fraction", 1.0)))
            mine[key] = mine.get(key, frozenset()) | {encoder}
    return found


def _settings(runs: Sequence[AnyRun], may_differ: tuple[str, ...], data: Sequence[str]) -> Settings:
    found: dict[tuple[int, ...], dict[str, set[str]]] = {}
    rates: dict[str, set[str]] = {}
    for run in runs:
        seeds = (run.seed,) if isinstance(run, PretrainRun) else (run.pretrain_seed, run.seed)
        for key, value in compared(run.state, may_differ, data).items():
            mine = rates if isinstance(run, FinetuneRun) and key in RATE_KEYS else found.setdefault(seeds, {})
            mine.setdefault(key, set()).add(str(value))
    # Of the rates that were tried a row takes one for all its seeds.
    return {
        seeds: {key: "/".join(sorted(values)) for key, values in (one | rates).items()} for seeds, one in found.items()
    }


def _difference(how: str, first: Settings, second: Settings, free: Collection[str]) -> str:
    """In words, what two rows' settings differ in for some seeds that both have: a difference is paired by seed."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for seeds in sorted(first.keys() & second.keys()):
        for key in first[seeds].keys() | second[seeds].keys():
            pair = first[seeds].get(key, "none"), second[seeds].get(key, "none")
            if pair[0] != pair[1] and not is_within(key, free):
                for values, value in zip(found.setdefault(key, ({}, {})), pair, strict=True):
                    values[value] = None
    differing = [key for key in sorted(found) if FOLLOWS.get(key) not in found]
    if not differing:
        return ""
    parts = [f"{key} {'/'.join(found[key][0])} against {'/'.join(found[key][1])}" for key in differing[:SHOWN]]
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return f"another protocol: {how} with {'; '.join(parts)}{more}, which differ_in in paper.yaml does not allow for"


def _amounts(runs: Sequence[PretrainRun]) -> dict[str, float]:
    """Means over seeds, of what every run knows of itself."""
    known = [_amounts_of(run) for run in runs]
    keys = [key for key in ("steps", "tokens", "flops", "training_seconds") if all(key in one for one in known)]
    return {key: sum(one[key] for one in known) / len(known) for key in keys}


def _amounts_of(run: PretrainRun) -> dict[str, float]:
    """What a run saw and took, all its devices together."""
    found = {key: float(value) for key, value in run.facts.items() if _is_number(value)}
    world_size = run.facts.get("world_size", _devices(run.state["config_resolved"].get("trainer")))
    if not _is_number(world_size):
        found.pop("training_seconds", None)
    elif "training_seconds" in found:
        found["training_seconds"] *= world_size
    # Runs of before `flops` was recorded know their utilisation, which is that of one device.
    if "flops" not in found and {"mfu", "matmul_ceiling", "training_seconds"} <= found.keys():
        found["flops"] = found["mfu"] * found["matmul_ceiling"] * found["training_seconds"]
    return found


def _devices(trainer: Mapping[str, Any] | None) -> int | None:
    """Of a run that did not record them: as configured; None where it took what it found."""
    counts = [(trainer or {}).get(key, 1) for key in ("devices", "num_nodes")]
    return math.prod(counts) if all(isinstance(count, int) and count > 0 for count in counts) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


ANSWERS = ("predictions*.json*", "nbest_predictions.json", "null_odds.json")


def copied_seeds(runs: Iterable[FinetuneRun]) -> str:
    """Which seeds of one row on one task are copies, in words; empty where none are known to be."""
    # Two runs that have both collapsed answer alike without being one.
    ordered = sorted((run for run in runs if not run.collapsed), key=lambda run: (run.pretrain_seed, run.seed))
    encoders: dict[str, set[int]] = {}
    for run in ordered:
        if encoder := encoder_of(run):
            encoders.setdefault(encoder, set()).add(run.pretrain_seed)
    for seeds in encoders.values():
        if len(seeds) > 1:
            return f"pre-training seeds {_listed(map(str, sorted(seeds)))} are one and the same encoder"
    if same := next(_equal_answers(ordered), []):
        names = (f"{run.pretrain_seed}/{run.seed}" for run in same)
        return f"runs {_listed(names)} (pre-training/fine-tuning seed) gave the same answers to the last digit"
    return ""


def _equal_answers(runs: list[FinetuneRun]) -> Iterator[list[FinetuneRun]]:
    """Groups of runs with the same files of predictions; files are read only where all scores are equal.

    Some files hold answers without numbers behind them (tags), on which two good runs may agree: their training losses
    do not.
    """

    def scores(run: FinetuneRun) -> list[tuple[str, float]]:
        return sorted(run.scores.items())

    for _, group in groupby(sorted(runs, key=scores), key=scores):
        equal = list(group)
        answers: dict[tuple[tuple[str, str], ...], list[FinetuneRun]] = {}
        for run in equal if len(equal) > 1 else []:
            if files := _predictions(run):
                answers.setdefault(tuple(sorted(files.items())), []).append(run)
        yield from (same for same in answers.values() if len(same) > 1)


def _predictions(run: FinetuneRun) -> Mapping[str, str]:
    """Name -> sha256 of the files that hold its answers and what they came from; nothing without answers."""
    files = [path for pattern in ANSWERS for path in sorted(run.dir.glob(pattern)) if path.is_file()]
    if not files:
        return {}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    losses = [(row.step, row.value) for row in read_rows(run.dir / "metrics.csv") if row.key == "train/loss"]
    return found | {"losses": str(losses)}


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"
