"""Overrides that must not run: they change nothing, or file a run as something else.

A row or an arm is what its own delta says, and its results are judged as that: an override that
differs from it needs a name of its own. What the delta leaves open (null, `${...}`) may be
overridden.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from clozelab.config import scaled_phases
from clozelab.launch.experiments import MEASURED
from clozelab.runs.provenance import read_delta
from clozelab.text.did_you_mean import key_of

ENCODER_ARM = "${encoder_arm}"
# the row of a table for an encoder from elsewhere (encoder=FOLDER): no pre-training then
GIVEN_ROW = "given"
SHOWN_SETTINGS = 6  # of what an arm or a row stands for


def check_overrides(config: DictConfig) -> None:
    """Raise ValueError for an override that changes nothing, or files a run as something else.

    The message says what to write instead. `config` is of a run, while Hydra's own configuration
    says how it was composed.
    """
    if not HydraConfig.initialized():
        return
    overrides = {key_of(override): override for override in HydraConfig.get().overrides.task}
    # Only a pre-training has no row.
    if "row" not in config:
        _refuse_idle_in_pretraining(config, overrides)
        _refuse_undone(config, "arm", overrides)
        return
    if "task" in config:
        _refuse_idle_in_finetuning(config, overrides)
    _refuse_misfiled_encoder(config, overrides)
    _refuse_undone(config, "row", overrides)


def _refuse_idle_in_finetuning(config: DictConfig, overrides: Collection[str]) -> None:
    """`task.KEY=`, where the run takes KEY from elsewhere, and what fine-tuning does not have."""
    # conf/finetune.yaml takes these from the scale first, then from the task.
    for key in ("learning_rate", "epochs", "global_batch_size"):
        if f"task.{key}" in overrides and config[key] != config.task[key]:
            word = f"{key}={config.task[key]}"
            raise ValueError(
                f"task.{word} would change nothing: {key} is {config[key]} here, which"
                f" scale={config.scale.name} or another override sets. Say {word} instead"
            )
    if config.trainer.gradient_checkpointing:
        word = "trainer.gradient_checkpointing=true"
        raise ValueError(
            f"{word} would change nothing in fine-tuning, which does not have it: leave it out, or"
            f" say pretrain.{word} where a command is about both stages"
        )


def _refuse_idle_in_pretraining(config: DictConfig, overrides: Collection[str]) -> None:
    """`steps_factor=` beside `phases=`, and `size.RATIO=` of a model that takes no ratios."""
    # `phases` is `${scaled_phases:...}` unless somebody has said phases.
    phases = scaled_phases(config.scale.pretrain.phases, config.steps_factor)
    if config.steps_factor != 1 and config.phases != phases:
        raise ValueError(
            f"steps_factor={config.steps_factor:g} would change nothing: phases=[...] says all"
            " steps outright. Say scale.pretrain.phases=[...] instead, which the factor multiplies,"
            " or leave one of them out"
        )
    ratios = sorted(key for key in overrides if key.partition(".")[0] == "size")
    if ratios and "${size." not in str(OmegaConf.to_container(config.model, resolve=False)):
        model = HydraConfig.get().runtime.choices.get("model")
        raise ValueError(
            f"{ratios[0]} would change nothing: model={model} says its sizes outright. Say"
            " model=ratio too, for ratios of the scale's size, or model.num_hidden_layers=..."
            " itself"
        )


def _refuse_misfiled_encoder(config: DictConfig, overrides: Collection[str]) -> None:
    """`encoder=FOLDER` in a row that stands for the encoder of an arm."""
    node = OmegaConf.masked_copy(config, ["row", "encoder"])
    unresolved: Any = OmegaConf.to_container(node, resolve=False)
    if config.encoder_arm is None or ENCODER_ARM in str(unresolved["encoder"]):
        return  # nobody has said another encoder
    if unresolved["row"] == ENCODER_ARM and "encoder_arm" not in overrides:
        raise ValueError(
            f"encoder={config.encoder} has no name yet, and its scores would be filed as the row"
            f" {config.row}: say row=NAME too"
        )
    if not {"row", MEASURED} & HydraConfig.get().runtime.choices.keys():
        return  # no experiment, whose rows stand for something
    takes_any = bool(read_delta("row", GIVEN_ROW))
    if config.row != config.encoder_arm and takes_any:
        return
    if takes_any:
        instead = f"take row={GIVEN_ROW}"
    else:
        verb = "finetune" if "task" in config else "evaluate"
        instead = f"`clozelab {verb} encoder=FOLDER row=NAME` scores another"
    raise ValueError(
        f"encoder={config.encoder}: the row {config.row} stands for the encoder that the arm"
        f" {config.encoder_arm} has trained; {instead}"
    )


def _refuse_undone(config: DictConfig, group: str, overrides: Mapping[str, str]) -> None:
    """Whatever undoes the delta of the run's arm or row; `overrides` are by their key."""
    choices = HydraConfig.get().runtime.choices
    name = str(config[group])
    noun = group
    if MEASURED in choices:  # an evaluation in an experiment
        group = MEASURED
        noun = "row"
    choice = choices.get(group)
    if choice is None:
        return
    if name != choice and not read_delta(group, name):
        return  # what has a name of its own may be anything
    delta = _fixed_delta(config, group, choice)
    undone = list(_undone(config, delta, overrides))
    if not undone:
        return
    settings = [f"{key.removeprefix('/')}={value}" for key, value in delta.items()]
    raise ValueError(
        f"{undone[0]}: the {noun} {choice} stands for {', '.join(settings[:SHOWN_SETTINGS])}, and"
        " its results would be filed and judged as that. Leave it out, or give the experiment"
        f" another {noun}"
    )


def _fixed_delta(config: DictConfig, group: str, choice: str) -> dict[str, Any]:
    """What an arm or a row fixes: dotted key -> value, "/group" -> choice.

    Not what it leaves open. A row's encoder is that of the whole run unless it says a fraction.
    """
    whole_delta = read_delta(group, choice, with_parts=False)
    if group != "arm":
        whole_delta = {"encoder_fraction": 1.0} | whole_delta
    delta = {}
    if group in config:
        delta[group] = choice
    for key, value in whole_delta.items():
        is_open = value is None or "${" in str(value)
        if not is_open and not key.startswith("hydra."):
            delta[key] = value
    return delta


def _undone(
    config: DictConfig, delta: Mapping[str, Any], overrides: Mapping[str, str]
) -> Iterator[str]:
    """`key=value` of each setting and choice of a delta that the run has otherwise."""
    choices = HydraConfig.get().runtime.choices
    groups = {}
    for key, value in delta.items():
        if key.startswith("/"):
            groups[key.removeprefix("/")] = value
            continue
        actual = OmegaConf.select(config, key)
        if actual != value and str(actual) != str(value):
            yield f"{key}={actual}"
    for group, choice in groups.items():
        actual = choices.get(group, choice)
        if actual != choice:
            yield f"{group}={actual}"
    # A choice inside of one that the delta makes: objective.input= where it says objective.
    prefixes = tuple(f"{group}/" for group in groups)
    for key, override in overrides.items():
        inner = key.replace(".", "/")
        if inner in choices and inner not in groups and inner.startswith(prefixes):
            yield override
