"""The command that makes a run again, proved by composing it: what it would run is what the folder's record says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.ledger.fingerprint import LATER_KEYS, canonical, flatten
from clozelab.ledger.plan import SWEEPS
from clozelab.ledger.run_record import CONFIG_FILE
from clozelab.ledger.sweep import compose, hydra_config, without_hydra
from clozelab.ledger.words import default_path

KEYS = {"pretrain": ("arm", "seed"), "finetune": ("row", "task", "pretrain_seed", "seed")}
"""What an experiment's sweeps choose a job by."""


def remake(experiment: Path, state: Mapping[str, Any], run_dir: Path, runs_dir: str, scale: str) -> tuple[str, str]:
    """(command line, what it lacks) of a run of an experiment; the second is empty where the command is proved.

    Args:
        experiment: its folder.
        state: the run's record.
        run_dir: its folder.
        runs_dir: what the command is to say.
        scale: its name.
    """
    stage = str(state["stage"])
    config = state["config_resolved"]
    chosen = {key: config.get(key) for key in KEYS[stage]}
    if stage == "finetune":
        chosen["task"] = config["task"]["name"]
    words = [f"scale={scale}", *(f"{key}={value}" for key, value in chosen.items())]
    extra, lacking = _differing_overrides(experiment, SWEEPS[stage], words, config)
    paths = places(run_dir, runs_dir)
    line = ["clozelab", stage, "--config-dir", _shown(experiment), "--config-name", SWEEPS[stage]]
    return shlex.join([*line, *words, *extra, *paths, "hydra.mode=RUN"]), lacking


def places(run_dir: Path, runs_dir: str) -> list[str]:
    """Where data and runs lie, as overrides; nothing of a place that is the usual one, seen from here."""
    found = {"data_dir": said_in_config(run_dir, "data_dir"), "runs_dir": runs_dir}
    usual = {key: (default_path(key), str(Path(default_path(key)).absolute())) for key in found}
    return [f"{key}={place}" for key, place in found.items() if place and place not in usual[key]]


def _differing_overrides(
    experiment: Path, name: str, words: list[str], recorded: Mapping[str, Any]
) -> tuple[list[str], str]:
    """(further overrides that make the composed configuration the recorded one, what even they do not)."""
    try:
        found = differing(compose(name, words, folder=experiment), recorded)
        extra = [f"{key}={as_word(value)}" for key, value in found.items()]
        if not found:
            return [], ""
        again = [*words, *extra]
        if not differing(compose(name, again, folder=experiment), recorded):
            return extra, ""
        lacking = f"not enough to make this run: the sweep now says otherwise for {', '.join(found)}"
        return [], f"{lacking}; the run's own settings are in {CONFIG_FILE}"
    except (ValueError, OmegaConfBaseException, OSError) as error:
        return [], f"cannot be composed now: {' '.join(str(error).split())}"
    except Exception as error:  # Hydra's errors are of many kinds, and all mean that
        return [], f"cannot be composed now: {type(error).__name__}: {' '.join(str(error).split())}"


def differing(composed: DictConfig, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> recorded value of what a composed configuration (with its `hydra` node) has otherwise.

    A list of another length is one value: an override of its parts can neither lengthen nor shorten it.
    """
    with hydra_config(composed):
        now = flatten(json.loads(json.dumps(canonical(without_hydra(composed)))))
    then = {key: value for key, value in flatten(dict(recorded)).items() if LATER_KEYS.get(key, ...) != value}
    keys = [key for key in [*then, *(set(now) - set(then))] if now.get(key, ...) != then.get(key, ...)]
    other = {place: whole for key in keys if (key in now) != (key in then) for place, whole in _list_of(key, recorded)}
    apart = {key: then.get(key) for key in keys if not key.startswith(tuple(f"{place}." for place in other))}
    return other | apart


def _list_of(key: str, recorded: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(dotted key, value) of the recorded list that a key is inside of; nothing where it is in none."""
    found: Any = recorded
    parts = key.split(".")
    for i, part in enumerate(parts):
        if isinstance(found, list):
            return [(".".join(parts[:i]), found)]
        if not isinstance(found, Mapping) or part not in found:
            return []
        found = found[part]
    return []


def as_word(value: Any) -> str:
    """A recorded value as the command line has it."""
    if isinstance(value, list):
        return f"[{','.join(map(as_word, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{as_word(part)}' for key, part in value.items())}}}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def is_shared(word: str) -> bool:
    """Whether an override is for every stage of a reproduction, `prepare` among them."""
    return word.startswith(("corpus.", "scale."))


def said_in_config(run_dir: Path, key: str) -> str:
    """A path as it was said to the run; empty where its configuration cannot be read or does not have it."""
    try:
        return str(OmegaConf.to_container(OmegaConf.load(run_dir / CONFIG_FILE))[key] or "")  # type: ignore[call-overload,index]
    except (OSError, OmegaConfBaseException, KeyError, TypeError, ValueError):
        return ""


def _shown(folder: Path) -> str:
    """Relative to where we are, if it lies below."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)
