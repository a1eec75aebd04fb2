"""What a row's or an arm's own file says that its runs are: the values it spells out and the parts it is made of.

What it leaves open is not of it: null, to be given, and `${...}`, another key's to say.

Overrides that are possible and cannot be meant: refused as soon as a job is composed.

A row or an arm that has a file is what its file says, and its results are judged as that. Whatever differs from it
needs a name of its own, which no file has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clozelab.config import scaled_phases
from clozelab.launch.experiments import ExperimentSource
from clozelab.runs.fingerprint import is_of_no_account
from clozelab.terminal import key_of

TARGET = "_target_"
Stated = Mapping[str, Any]
"""Dotted key -> value; "/group" -> choice."""


def read_stated(folders: Sequence[Path], kind: str, name: str) -> Stated:
    """What the file says; nothing where there is none.

    Of a part that it replaces (`override /objective: mlm`), the classes and choices: its settings are the part's.
    """
    return _stated(folders, kind, name, "")


def contradictions(stated: Stated, config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (what the configuration has, what the file says), where they differ.

    A key that a recorded configuration does not have says nothing.
    """
    found = {}
    for key, value in stated.items():
        if key.startswith("/") or (key != "encoder" and is_of_no_account(key)):
            continue
        known, other = _look_up(config, key)
        if known and not _fits(other, value, key):
            found[key] = (other, value)
    return found


def _fits(found: Any, said: Any, key: str) -> bool:
    """Whether a value is what was said; of a mapping in a list what counts and was said, whatever else it has."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        counting = {name: value for name, value in said.items() if not is_of_no_account(f"{key}.{name}")}
        return all(_fits(found.get(name), value, f"{key}.{name}") for name, value in counting.items())
    if isinstance(said, list) and isinstance(found, list):
        pairs = zip(found, said, strict=False)
        return len(found) == len(said) and all(_fits(*pair, f"{key}.{place}") for place, pair in enumerate(pairs))
    return bool(found == said) or str(found) == str(said)


def _look_up(config: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    """(whether the configuration says anything of a dotted key, what)."""
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return True, None  # what it is a part of has been taken out
        if part not in node:
            return False, None
        node = node[part]
    return True, node


def _stated(folders: Sequence[Path], group: str, name: str, package: str) -> dict[str, Any]:
    plain = _said_of(folders, f"{group}/{name}")
    found: dict[str, Any] = {}
    for part, choice in _choices(plain.get("defaults", ()), group):
        inner = _stated(folders, part, choice, part.replace("/", "."))
        found |= {f"/{part}": choice}
        found |= {key: value for key, value in inner.items() if key.startswith("/") or key.endswith(TARGET)}
    own = {key: value for key, value in plain.items() if key not in ("defaults", "hydra")}
    return found | dict(_literals(own, package))


def _said_of(folders: Iterable[Path], name: str) -> dict[str, Any]:
    for source in (ExperimentSource("", str(folder)) for folder in folders):
        if source.is_config(name):
            plain = OmegaConf.to_container(source.load_config(name).config, resolve=False)
            return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}
    return {}


def _choices(defaults: Iterable[Any], group: str) -> Iterator[tuple[str, str]]:
    """(group, choice) of a defaults list; an entry that lays a file over another part is that part's matter."""
    for entry in defaults:
        for text, choice in entry.items() if isinstance(entry, Mapping) else ():
            part = str(text).removeprefix("override ").strip()
            if isinstance(choice, str) and "@" not in part and "${" not in choice:
                yield (part.removeprefix("/") if part.startswith("/") else f"{group}/{part}"), choice


def _literals(node: Mapping[Any, Any], where: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{where}.{key}" if where else str(key)
        if isinstance(value, Mapping):
            yield from _literals(value, path)
        elif value is not None and "${" not in str(value) and value != "???":
            yield path, value


SCALE_OWNED = ("learning_rate", "epochs", "global_batch_size")
"""Keys of a task that a scale may replace."""
IDLE_IN_FINETUNING = ("calibrate", "gradient_checkpointing")
ARM = "${encoder_arm}"
GIVEN_ROW = "given"
"""The row of a table for an encoder from elsewhere (encoder=FOLDER): no pre-training then."""


def check_overrides(config: DictConfig) -> None:
    """Refuse an override that changes nothing, and one that files a run as something else.

    Args:
        config: of a pre-training or a fine-tuning, while Hydra's own configuration says how it was composed.

    Raises:
        ValueError: says what to write instead.
    """
    if not HydraConfig.initialized():
        return
    words = {key_of(word): word for word in HydraConfig.get().overrides.task}
    if "row" in config:
        _refuse_idle_recipe(config, words)
        _refuse_misfiled_encoder(config, words)
    else:
        _refuse_idle_length(config)
        _refuse_idle_size(config, words)
    _refuse_undone(config, "row" if "row" in config else "arm", words)


def _refuse_idle_recipe(config: DictConfig, words: Collection[str]) -> None:
    for key in SCALE_OWNED:
        if f"task.{key}" in words and config[key] != config.task[key]:
            raise ValueError(
                f"task.{key}={config.task[key]} would change nothing: {key} is {config[key]} here, which scale="
                f"{config.scale.name} or another override sets. Say {key}={config.task[key]} instead"
            )
    for key in IDLE_IN_FINETUNING:
        if config.trainer[key]:
            raise ValueError(
                f"trainer.{key}=true would change nothing in fine-tuning, which does not have it: leave it out, or say"
                f" pretrain.trainer.{key}=true where a command is about both stages"
            )


def _refuse_idle_length(config: DictConfig) -> None:
    said = scaled_phases(config.scale.pretrain.phases, config.steps_factor)
    if config.steps_factor != 1 and config.phases != said:
        raise ValueError(
            f"steps_factor={config.steps_factor:g} would change nothing: phases=[...] says all steps outright."
            " Say scale.pretrain.phases=[...] instead, which the factor multiplies, or leave one of them out"
        )


def _refuse_idle_size(config: DictConfig, words: Collection[str]) -> None:
    said = sorted(key for key in words if key.partition(".")[0] == "size")
    if said and "${size." not in str(OmegaConf.to_container(config.model, resolve=False)):
        raise ValueError(
            f"{said[0]} would change nothing: model={HydraConfig.get().runtime.choices.get('model')} says its sizes"
            " outright. Say model=ratio too, for ratios of the scale's size, or model.num_hidden_layers=... itself"
        )


def _refuse_misfiled_encoder(config: DictConfig, words: Collection[str]) -> None:
    raw: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, ["row", "encoder"]), resolve=False)
    if config.encoder_arm is None or ARM in str(raw["encoder"]):
        return
    if raw["row"] == ARM and "encoder_arm" not in words:
        raise ValueError(
            f"encoder={config.encoder} has no name yet, and its scores would be filed as the row {config.row}: say "
            "row=NAME too"
        )
    if "row" not in HydraConfig.get().runtime.choices:
        return
    takes_any = bool(_said_of(_folders(), f"row/{GIVEN_ROW}"))
    if config.row == config.encoder_arm or not takes_any:
        instead = f"take row={GIVEN_ROW}" if takes_any else "`clozelab finetune encoder=FOLDER row=NAME` scores another"
        raise ValueError(
            f"encoder={config.encoder}: the row {config.row} stands for the encoder that the arm {config.encoder_arm} "
            f"has trained; {instead}"
        )


def _refuse_undone(config: DictConfig, kind: str, words: Mapping[str, str]) -> None:
    """A row or an arm is what its own delta says, and its results are judged as that."""
    choices = HydraConfig.get().runtime.choices
    choice, name = choices.get(kind), str(config[kind])
    if choice is None or (name != choice and not _said_of(_folders(), f"{kind}/{name}")):
        return  # what has a name of its own may be anything
    delta = {kind: choice} | _delta(kind, choice)
    groups = {key.removeprefix("/"): said for key, said in delta.items() if key.startswith("/")}
    inside = {key for key in choices if key not in groups and key.startswith(tuple(f"{group}/" for group in groups))}
    values = {key: OmegaConf.select(config, key) for key in delta if not key.startswith("/")}
    undone = [f"{key}={value}" for key, value in values.items() if str(value) != str(delta[key])]
    undone += [f"{key}={choices.get(key)}" for key, said in groups.items() if choices.get(key) != said]
    undone += [word for key, word in words.items() if key.replace(".", "/") in inside]
    if undone:
        says = ", ".join(f"{key.removeprefix('/')}={value}" for key, value in delta.items())
        raise ValueError(
            f"{undone[0]}: the {kind} {choice} stands for {says}, and its results would be filed and judged as that."
            f" Leave it out, or give the experiment another {kind}"
        )


def _delta(kind: str, choice: str) -> dict[str, Any]:
    """Dotted key -> value, "/group" -> choice: what a row or an arm itself says and does not leave open."""
    plain = _said_of(_folders(), f"{kind}/{choice}")
    chosen = [entry for entry in plain.pop("defaults", ()) if isinstance(entry, Mapping)]
    groups = {key.removeprefix("override "): value for entry in chosen for key, value in entry.items()}
    plain.pop("hydra", None)
    return groups | dict(_literals(plain, ""))


def _folders() -> list[Path]:
    """Where the files of groups are looked for."""
    return [Path(source.path) for source in HydraConfig.get().runtime.config_sources if source.schema == "file"]
