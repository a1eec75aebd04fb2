"""Configuration errors in words that help: which key is wrong and what was probably meant.

Hydra's own advice for a key that does not exist ("to append to your config use +key") is of no use here: the schema
refuses an appended key too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from clozelab.runs.fingerprint import no_value
from clozelab.schema import SCHEMAS
from clozelab.suggestions import CONF_DIR, nearest

CONFIGURATION_ERRORS: tuple[type[Exception], ...] = (HydraException, OmegaConfBaseException, YAMLError)
WRONG_IN_FILE = re.compile(r"In '([^']+)': \w+ raised while composing config:\s*Key '[^']+' .*\s+full_key: (\S+)")


def explain(error: BaseException, verb: str, *, config_name: str | None = None, folder: Path | None = None) -> str:
    """The message of a configuration error; a key that does not exist comes with the nearest one that does.

    Args:
        error: from composing a configuration.
        verb: the stage it was for.
        config_name, folder: as of `compose`, where they are not the stage's own.
    """
    text = str(error).strip()
    if (choice := _wrong_choice(text)) is not None:
        return choice
    stage = verb if verb in SCHEMAS else "pretrain"  # which the verbs without a configuration ask
    if (wrong := WRONG_IN_FILE.match(text)) is not None:
        name, key = wrong.groups()
        files = [place / f"{name}.yaml" for place in (folder, CONF_DIR) if place is not None]
        file = next((one for one in files if one.is_file()), name)
        return f"{file}: {_no_key(stage, key, known_keys(stage, None, of_hydra=key.startswith('hydra.')))}"
    found = re.match(r"Could not override '([^']+)'", text)
    if found is None:
        cause = error.__cause__
        if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
            reason = str(cause).strip()
            word = text.removeprefix("Error merging override ")
            return f"{word}: {reason.splitlines()[0]}" if word != text else f"{text}\n{reason}"
        if isinstance(error, MissingMandatoryValue):
            return no_value(re.sub(r"\[(\d+)\]", r".\1", str(error.full_key)))
        if isinstance(error, OmegaConfBaseException) and error.full_key:
            return f"{error.full_key}: {text.splitlines()[0]}"
        return text
    known = known_keys(config_name or stage, folder, of_hydra=found[1].startswith("hydra."))
    if found[1] in known:  # the key is right, something in its value is not
        return f"{found[1]}: {(str(error.__cause__ or '').strip() or text).splitlines()[0]}"
    return _no_key(stage, found[1], known)


def _no_key(stage: str, key: str, known: Sequence[str]) -> str:
    where = f"see `clozelab {stage} --cfg {'hydra' if key.startswith('hydra.') else 'job'}`"
    near = nearest_key(key, known)
    if near is not None:
        return f"{stage} has no key {key!r}; did you mean {near!r}? ({where})"
    parent = key.rpartition(".")[0]
    beside = [name.rpartition(".")[2] for name in known if parent and name.rpartition(".")[0] == parent]
    return f"{stage} has no key {key!r}; " + (f"{parent} has {', '.join(beside)} ({where})" if beside else where)


def _wrong_choice(text: str) -> str | None:
    """A group's choice that does not exist, in one line; None for any other of Hydra's messages."""
    found = re.search(r"Could not find '(.+)/([^/']+)'\s+Available options in '[^']+':\n((?:[ \t]+\S+\n?)+)", text)
    if found is None:
        return None
    group, name, known = found[1], found[2], found[3].split()
    near = nearest(name, known, cutoff=0.5)
    meant = f"; did you mean {near!r}?" if near else ""
    return f"there is no {group} {name!r}{meant} (there are {', '.join(known)})"


def known_keys(config_name: str, folder: Path | None, *, of_hydra: bool = False) -> list[str]:
    """Dotted names of all keys of a configuration, or of Hydra's own beside it; none where it does not compose."""
    from clozelab.launch.sweep import compose, without_hydra  # lazy: only what is wrong needs it, and it needs much

    try:
        whole = compose(config_name, folder=folder)
        config = OmegaConf.masked_copy(whole, "hydra") if of_hydra else without_hydra(whole)
        return _dotted(OmegaConf.to_container(config, resolve=False), "")
    except CONFIGURATION_ERRORS:
        return []


def _dotted(value: Any, where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    names = [(f"{where}.{key}" if where else str(key), child) for key, child in value.items()]
    return [name for name, child in names for name in (name, *_dotted(child, name))]


def nearest_key(key: str, known: Sequence[str]) -> str | None:
    """The key that was probably meant: one beside it that is spelt alike, else any that is or that ends in it."""
    parent, _, last = key.rpartition(".")
    beside = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == parent}
    near = nearest(last, beside)
    if near:
        return beside[near]
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    # By whole names, its neighbours and what it stands below would always win.
    others = [name for name in known if not key.startswith(f"{name}.") and name.rpartition(".")[0] != parent]
    return next(iter(elsewhere), None) or nearest(key, others, cutoff=0.75)
