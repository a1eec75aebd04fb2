"""Whether the runs of a table may be compared at all: what should be equal in all of them, and is not.

A run folder refuses another configuration, but two folders of one experiment may hold two: the first half of a sweep
with other epochs than the second, an encoder trained anew after its scores were taken. What an arm's or a row's own
file sets is that arm's difference from the others; inside the arm it has to be one. Reads records only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import AnyRun, Collected, FinetuneRun, PretrainRun
from clozelab.ledger.fingerprint import CONDITIONAL_KEYS, encoder_fingerprint, flatten, is_of_no_account
from clozelab.ledger.reporting.declared import RATE_KEYS, is_within, meant_to_differ, read_deltas

PRETRAIN_MAY_DIFFER = ("arm", "seed")
FINETUNE_MAY_DIFFER = (
    "row",
    "encoder_arm",
    "encoder_fraction",
    "pretrain_seed",
    "seed",
    "save_model",
    "predict_test",
    *(key for key, option in CONDITIONAL_KEYS.items() if option == "predict_test"),
)
PRETRAIN_DATA = ("corpus",)
FINETUNE_DATA = ("task_files", "task_data")
"""The task's files, whatever vocabulary their tokens are of; records before results_version 3 have the tokens only."""
SHOWN_VALUES = 3
Declared = Mapping[str, frozenset[str]]
"""Arm or row -> dotted keys (or parts) in which it may differ from the others, and its own runs may not."""


def inconsistencies(collected: Collected, experiment: Path | None = None, free: Iterable[str] = ()) -> list[str]:
    """One line for everything that makes complete runs unequal beyond what their names say.

    Args:
        collected: the runs of one experiment at one scale.
        experiment: the experiment's folder, whose arm/ and row/ files say where runs differ by design.
        free: settings in which any two arms or rows may differ, from paper.yaml.
    """
    pretrain = [run for run in collected.pretrain if run.is_complete]
    finetune = [run for run in collected.finetune if run.is_complete]
    arms = _declared(sorted({run.arm for run in pretrain}), experiment, "arm", free)
    rows = _declared(sorted({run.row for run in finetune}), experiment, "row", free)
    values = [(run, compared(run.state, PRETRAIN_MAY_DIFFER, PRETRAIN_DATA)) for run in pretrain]
    lines = _differing("pre-training runs", values, arms)
    for task in sorted({run.task for run in finetune}):
        runs = [run for run in finetune if run.task == task]
        lines += _differing(f"fine-tuning runs on {task}", _finetuned(runs), rows)
        lines += _cut_differently(task, runs)
    return lines + _shared_encoders(finetune) + _replaced_encoders(pretrain, finetune)


def _declared(names: Sequence[str], experiment: Path | None, group: str, free: Iterable[str]) -> Declared:
    """What is each arm's or row's own: what its file sets otherwise than some other's, and what is free for all."""
    deltas = read_deltas(experiment / group) if experiment else {}
    own = {name: frozenset(free) for name in names}
    for name, other in itertools.permutations(names, 2):
        own[name] |= meant_to_differ(deltas.get(name, {}), deltas.get(other, {}))
    return own


def _finetuned(runs: Sequence[FinetuneRun]) -> list[tuple[FinetuneRun, dict[str, Any]]]:
    """Runs of one task with what should be equal in them; of a learning rate, all that were tried for the row's seeds.

    The table takes the best of them: where all were tried everywhere, runs at different ones are no difference.
    """
    found = [(run, compared(run.state, FINETUNE_MAY_DIFFER, FINETUNE_DATA)) for run in runs]
    tried: dict[tuple[str, int, int, str], set[str]] = {}
    for run, values in found:
        for key in values.keys() & set(RATE_KEYS):
            tried.setdefault((run.row, run.pretrain_seed, run.seed, key), set()).add(str(values[key]))
    for run, values in found:
        for key in values.keys() & set(RATE_KEYS):
            values[key] = "/".join(sorted(tried[run.row, run.pretrain_seed, run.seed, key]))
    return found


def _differing(what: str, found_in: Sequence[tuple[AnyRun, Mapping[str, Any]]], declared: Declared) -> list[str]:
    """Lines for the settings, input data and precision that are not the same in all runs, or, for those that are an
    arm's or row's own, not in all of its own."""
    groups: dict[tuple[str, str], list[AnyRun]] = {}
    values: dict[tuple[str, str], dict[str, list[str]]] = {}
    keys = sorted({key for _, found in found_in for key in found})
    for run, found in found_in:
        own = declared.get(_delta(run), frozenset())
        for key in keys:
            group = key, _delta(run) if is_within(key, own) else ""
            groups.setdefault(group, []).append(run)
            if key in found:
                values.setdefault(group, {}).setdefault(str(found[key]), []).append(_name(run))
    return _unequal_lines(what, groups, values)


def _unequal_lines(
    what: str, groups: Mapping[tuple[str, str], Sequence[Any]], values: Mapping[tuple[str, str], dict[str, list[str]]]
) -> list[str]:
    lines = []
    for (key, delta), found in sorted(values.items()):
        without = len(groups[key, delta]) - sum(map(len, found.values()))
        parts = [f"{value} ({len(names)} runs, e.g. {names[0]})" for value, names in list(found.items())[:SHOWN_VALUES]]
        parts += [f"none ({without} runs)"] if without else []
        if len(parts) > 1:
            owner = f" of {delta}" if delta else ""
            lines.append(f"{what}{owner} differ in {key}: {', '.join(parts)}")
    return lines


def _cut_differently(task: str, runs: Sequence[FinetuneRun]) -> list[str]:
    """Rows are cut to what an encoder was trained on, which no setting says."""
    lengths: dict[str, list[str]] = {}
    for run in runs:
        if run.max_seq_length:
            lengths.setdefault(f"{run.max_seq_length} tokens", []).append(_name(run))
    group = "the length that rows are cut to", ""
    return _unequal_lines(f"fine-tuning runs on {task}", {group: runs}, {group: lengths})


def _delta(run: AnyRun) -> str:
    return run.arm if isinstance(run, PretrainRun) else run.row


def compared(state: Mapping[str, Any], free: tuple[str, ...], data: Sequence[str]) -> dict[str, Any]:
    """Dotted key -> value of all that should be equal; `free` names whole parts or single values.

    Of the inputs, the first one of `data` that the record has.

    How the work was laid out on a machine is not of it (fingerprint.LAYOUT_KEYS); precision is.
    """
    values = flatten({key: value for key, value in state.get("config_resolved", {}).items() if key not in free})
    values = {key: value for key, value in values.items() if not is_within(key, free) and not is_of_no_account(key)}
    inputs, facts = state.get("inputs", {}), state.get("facts", {})
    name = next((name for name in data if name in inputs), None)
    values |= {f"input {name}": str(inputs[name])[:12]} if name else {}
    values |= {"precision": facts["precision"]} if "precision" in facts else {}
    return values | ({"results_version": state["results_version"]} if "results_version" in state else {})


def _name(run: AnyRun) -> str:
    if isinstance(run, PretrainRun):
        return f"{run.arm} seed {run.seed}"
    return f"{run.row} seed {run.pretrain_seed}/{run.seed}"


def encoder_of(run: FinetuneRun) -> str | None:
    """Fingerprint of the weights a run began with; None where they were fresh or nothing is recorded."""
    is_trained = run.state.get("config_resolved", {}).get("initialisation") == "pretrained"
    return run.state.get("inputs", {}).get("encoder") if is_trained else None


def _shared_encoders(runs: Sequence[FinetuneRun]) -> list[str]:
    """A pre-training seed of a row is one encoder, and two seeds are two."""
    encoders: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        if encoder := encoder_of(run):
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
        arm, used = str(run.state["config_resolved"].get("encoder_arm")), encoder_of(run)
        if used and used not in current.get((arm, run.pretrain_seed), {used}):
            lines.append(f"{run.dir}: began with another encoder than the one of {arm} seed {run.pretrain_seed} now")
    return lines


def _encoder_configs(folder: Path) -> list[Path]:
    """config.json of a run's last encoder and of those kept on the way."""
    return [folder / "encoder" / "config.json", *sorted(folder.glob("encoders/*/config.json"))]
