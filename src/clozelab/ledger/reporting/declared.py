"""What an experiment's arms and rows are about: what their files (`arm/*.yaml`, `row/*.yaml`) set.

Two of them may differ in what their files say differently and in what follows from that. What both files say alike
is no difference that anybody meant.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab.config import CONF_DIR
from clozelab.ledger.fingerprint import flatten

Delta = Mapping[str, str]
"""Dotted key, or a whole part -> what a file says of it, as text."""

RATE_KEYS = ("learning_rate", "optimizer.learning_rate")
STEP_KEYS = ("phases.*.steps", "validation.interval_steps")
"""How long pre-training is, and what is counted in its steps."""
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
    found = {}
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
