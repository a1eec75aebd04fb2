"""What an experiment's arms and rows are about: what their files (`arm/*.yaml`, `row/*.yaml`) set.

Two of them may differ in what their files say differently and in what follows from that. What both files say alike
is no difference that anybody meant.

Whether the runs of a table may be compared at all: what should be equal in all of them, and is not.

A run folder refuses another configuration, but two folders of one experiment may hold two: the first half of a sweep
with other epochs than the second, an encoder trained anew after its scores were taken. What an arm's or a row's own
file sets is that arm's difference from the others; inside the arm it has to be one. Reads records only.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab.config import CONF_DIR
from clozelab.launch.experiments import inline_configs
from clozelab.runs.find import AnyRun, Collected, FinetuneRun, PretrainRun
from clozelab.runs.fingerprint import CONDITIONAL_KEYS, encoder_fingerprint, flatten, is_of_no_account
from clozelab.verdicts.experiment import RATE_KEYS

Delta = Mapping[str, str]
"""Dotted key, or a whole part -> what a file says of it, as text."""

FOLLOWING = {
    "learning_rate": RATE_KEYS,
    "size.depth": ("model.num_hidden_layers",),
    "size.heads": ("model.num_attention_heads",),
    "size.width": ("model.hidden_size", "model.intermediate_size", "model.num_attention_heads"),
    "steps_factor": ("phases.*.steps",),
    "task": ("head", "epochs", "global_batch_size", *RATE_KEYS),
    "task.always.epochs": ("epochs",),
    "task.always.global_batch_size": ("global_batch_size",),
    "task.always.head": ("head",),
    "task.always.learning_rate": RATE_KEYS,
    "task.epochs": ("epochs",),
    "task.global_batch_size": ("global_batch_size",),
    "task.learning_rate": RATE_KEYS,
}
"""What the resolved configuration derives from a key that an arm or row sets."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def read_deltas(folder: Path) -> dict[str, Delta]:
    """What each file of a folder of arms or rows sets, by its name; unreadable ones are left out."""
    found = {
        name.rpartition("/")[2]: _delta(config, folder.parent)
        for name, config in inline_configs(folder.parent).items()
        if name.startswith(f"{folder.name}/")
    }
    for path in sorted(folder.glob("*.yaml")):
        plain = _plain(path)
        if plain is not None:
            found[path.stem] = _delta(plain, folder.parent)
    return found


def with_following(keys: Iterable[str]) -> frozenset[str]:
    """These keys and what the configuration derives from them."""
    own = frozenset(keys)
    return own.union(*(FOLLOWING.get(key, ()) for key in own))


def meant_to_differ(first: Delta, second: Delta) -> frozenset[str]:
    """The keys that two files set differently (or only one of them), with what follows.

    The same text is the same value, unless it refers to a key that differs.
    """
    found = with_following(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))
    while True:
        more = {key for key, text in first.items() if any(is_within(name, found) for name in REFERENCE.findall(text))}
        if more <= found:
            return found
        found = with_following(found | more)


def is_within(key: str, parts: Iterable[str]) -> bool:
    """Whether a dotted key is one of these, or inside one; a `*` stands for anything."""
    return any(key == part or key.startswith(f"{part}.") or fnmatch.fnmatchcase(key, part) for part in parts)


def _plain(path: Path) -> dict[str, Any] | None:
    try:
        plain = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError):
        return None
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def _delta(plain: dict[str, Any], experiment: Path) -> Delta:
    found: dict[str, str] = {}
    for entry in plain.pop("defaults", ()):
        found |= _chosen(entry, experiment)
    plain.pop("hydra", None)
    empty = {key: str(value) for key, value in plain.items() if value in ({}, [])}
    return found | empty | _leaves(plain)


def _leaves(plain: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in flatten(dict(plain)).items()}


def _chosen(entry: Any, experiment: Path) -> dict[str, str]:
    """What one entry of a defaults list sets.

    "override /objective: mlm" chooses the file, and with it those of its sub-groups; "/task/format/features@task" only
    lays its file's own keys over the part `task`.
    """
    text, choice = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, None)
    group, _, package = str(text).removeprefix("override ").partition("@")
    name = "/".join(filter(None, (group.strip("/"), choice)))
    part = (package or group.strip("/")).replace("/", ".")
    if part == "_self_":
        return {}
    if str(text).startswith("override "):
        return _choice(name, part, str(choice), experiment)
    keys = _group_file(name, experiment)
    if keys is None or set(map(str, keys.pop("defaults", ()))) - {"_self_"}:
        return {part: str(choice or name)}  # the whole part: replaced, or not to be seen from here what of it is set
    return _leaves({part: keys})


def _choice(name: str, part: str, choice: str, experiment: Path) -> dict[str, str]:
    """What choosing a file for a part sets: its own keys, and which file each sub-group takes.

    A file that describes one object is that choice as a whole, and so is one that cannot be seen through.
    """
    keys = _group_file(name, experiment)
    if keys is None or "_target_" in keys:
        return {part: choice}
    found: dict[str, str] = {}
    for entry in keys.pop("defaults", ()):
        text, chosen = next(iter(entry.items())) if isinstance(entry, Mapping) else (str(entry), None)
        if text == "_self_":
            continue
        if text.startswith(("/", "override ")) or "@" in text:
            return {part: choice}
        if chosen is None:  # another file of the same group
            found |= _choice(f"{name.rpartition('/')[0]}/{text}", part, text, experiment)
        else:
            found[f"{part}.{text.replace('/', '.')}"] = str(chosen)
    return found | _leaves({part: keys})


def _group_file(name: str, experiment: Path) -> dict[str, Any] | None:
    """An experiment's own groups come before those of conf/."""
    files = [folder / f"{name}.yaml" for folder in (experiment, CONF_DIR)]
    return next((_plain(path) for path in files if path.is_file()), None)


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
        own = declared.get(_delta_consistency(run), frozenset())
        for key in keys:
            group = key, _delta_consistency(run) if is_within(key, own) else ""
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


def _delta_consistency(run: AnyRun) -> str:
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
