"""Overrides that are possible and cannot be meant: refused as soon as a job is composed.

A row or an arm is what its own delta says, and its results are judged as that. Whatever differs from it needs a name
of its own. What the delta leaves open (null, `${...}`, nothing) may be overridden for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clozelab.config import scaled_phases
from clozelab.runs.record import read_delta
from clozelab.terminal import key_of

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
    takes_any = bool(read_delta("row", GIVEN_ROW))
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
    if choice is None or (name != choice and not read_delta(kind, name)):
        return  # what has a name of its own may be anything
    said = {key: value for key, value in read_delta(kind, choice).items() if not key.startswith("hydra.")}
    delta = {kind: choice} | {key: one for key, one in said.items() if one is not None and "${" not in str(one)}
    groups = {key.removeprefix("/"): said for key, said in delta.items() if key.startswith("/")}
    inside = {key for key in choices if key not in groups and key.startswith(tuple(f"{group}/" for group in groups))}
    values = {key: OmegaConf.select(config, key) for key in delta if not key.startswith("/")}
    undone = [f"{key}={one}" for key, one in values.items() if one != delta[key] and str(one) != str(delta[key])]
    undone += [f"{key}={choices[key]}" for key, said in groups.items() if choices.get(key, said) != said]
    undone += [word for key, word in words.items() if key.replace(".", "/") in inside]
    if undone:
        says = ", ".join(f"{key.removeprefix('/')}={value}" for key, value in delta.items())
        raise ValueError(
            f"{undone[0]}: the {kind} {choice} stands for {says}, and its results would be filed and judged as that."
            f" Leave it out, or give the experiment another {kind}"
        )
