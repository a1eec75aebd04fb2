"""Whether the runs of a table may be compared at all: what should be equal in all of them, and is not.

A run folder refuses another configuration, but two folders of one experiment may hold two: the first half of a sweep
with other epochs than the second, an encoder trained anew after its scores were taken. Reads records only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import Collected, FinetuneRun, PretrainRun
from clozelab.ledger.fingerprint import encoder_fingerprint, flatten

PRETRAIN_MAY_DIFFER = ("arm", "seed", "objective")
FINETUNE_MAY_DIFFER = (
    "row",
    "encoder_arm",
    "encoder_fraction",
    "head",
    "initialisation",
    "pretrain_seed",
    "seed",
    "save_model",
    "predict_test",
)
RATE_KEYS = ("learning_rate", "optimizer.learning_rate")
SHOWN_VALUES = 3


def inconsistencies(collected: Collected) -> list[str]:
    """One line for everything that makes complete runs unequal beyond what their names say."""
    pretrain = [run for run in collected.pretrain if run.is_complete]
    finetune = [run for run in collected.finetune if run.is_complete]
    lines = _differing("pre-training runs", pretrain, PRETRAIN_MAY_DIFFER, "corpus")
    for task in sorted({run.task for run in finetune}):
        runs = [run for run in finetune if run.task == task]
        free = (*FINETUNE_MAY_DIFFER, *(RATE_KEYS if _same_rates(runs) else ()))
        lines += _differing(f"fine-tuning runs on {task}", runs, free, "task_data")
    return lines + _shared_encoders(finetune) + _replaced_encoders(pretrain, finetune)


def _same_rates(runs: Sequence[FinetuneRun]) -> bool:
    """Whether each was fine-tuned at the same learning rates, of which the table takes the best."""
    rates: dict[tuple[str, int, int], set[tuple[Any, ...]]] = {}
    for run in runs:
        values = flatten(run.state["config_resolved"])
        rates.setdefault((run.row, run.pretrain_seed, run.seed), set()).add(tuple(map(values.get, RATE_KEYS)))
    return len(set(map(frozenset, rates.values()))) == 1


def _differing(what: str, runs: Sequence[PretrainRun | FinetuneRun], free: Iterable[str], data: str) -> list[str]:
    """Lines for the settings, input data and precision that are not the same in all runs."""
    values: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        for key, value in _compared(run.state, tuple(free), data).items():
            values.setdefault(key, {}).setdefault(str(value), []).append(_name(run))
    lines = []
    for key, found in sorted(values.items()):
        without = len(runs) - sum(map(len, found.values()))
        parts = [f"{value} ({len(names)} runs, e.g. {names[0]})" for value, names in list(found.items())[:SHOWN_VALUES]]
        parts += [f"none ({without} runs)"] if without else []
        if len(parts) > 1:
            lines.append(f"{what} differ in {key}: {', '.join(parts)}")
    return lines


def _compared(state: Mapping[str, Any], free: tuple[str, ...], data: str) -> dict[str, Any]:
    """Dotted key -> value of all that should be equal; `free` names whole parts or single values."""
    values = flatten({key: value for key, value in state["config_resolved"].items() if key not in free})
    values = {key: value for key, value in values.items() if key not in free}
    inputs, facts = state.get("inputs", {}), state.get("facts", {})
    values |= {f"input {data}": str(inputs[data])[:12]} if data in inputs else {}
    values |= {"precision": facts["precision"]} if "precision" in facts else {}
    return values | ({"results_version": state["results_version"]} if "results_version" in state else {})


def _name(run: PretrainRun | FinetuneRun) -> str:
    if isinstance(run, PretrainRun):
        return f"{run.arm} seed {run.seed}"
    return f"{run.row} seed {run.pretrain_seed}/{run.seed}"


def _encoder(run: FinetuneRun) -> str | None:
    """Fingerprint of the weights a run began with; None where they were fresh or nothing is recorded."""
    is_trained = run.state["config_resolved"].get("initialisation") == "pretrained"
    return run.state.get("inputs", {}).get("encoder") if is_trained else None


def _shared_encoders(runs: Sequence[FinetuneRun]) -> list[str]:
    """A pre-training seed of a row is one encoder, and two seeds are two."""
    encoders: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        if encoder := _encoder(run):
            encoders.setdefault((run.row, run.pretrain_seed), set()).add(encoder)
    lines = [
        f"{row}, pre-training seed {seed}: its runs began with {len(used)} different encoders"
        for (row, seed), used in encoders.items()
        if len(used) > 1
    ]
    seeds: dict[tuple[str, str], list[int]] = {}
    for (row, seed), used in encoders.items():
        for encoder in used:
            seeds.setdefault((row, encoder), []).append(seed)
    return lines + [
        f"{row}: pre-training seeds {', '.join(map(str, same))} are one and the same encoder"
        for (row, _), same in seeds.items()
        if len(same) > 1
    ]


def _replaced_encoders(pretrain: Sequence[PretrainRun], finetune: Sequence[FinetuneRun]) -> list[str]:
    """Scores of an encoder that has been trained anew since."""
    current = {
        (run.arm, run.seed): {encoder_fingerprint(path.parent) for path in _encoder_configs(run.dir)}
        for run in pretrain
        if (run.dir / "encoder" / "config.json").is_file()
    }
    lines = []
    for run in finetune:
        arm, used = str(run.state["config_resolved"].get("encoder_arm")), _encoder(run)
        if used and used not in current.get((arm, run.pretrain_seed), {used}):
            lines.append(f"{run.dir}: began with another encoder than the one of {arm} seed {run.pretrain_seed} now")
    return lines


def _encoder_configs(folder: Path) -> list[Path]:
    """config.json of a run's last encoder and of those kept on the way."""
    return [folder / "encoder" / "config.json", *sorted(folder.glob("encoders/*/config.json"))]
