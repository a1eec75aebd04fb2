"""Overrides that must not run: they change nothing, or file a run as something else.

A row or an arm is what its own delta says, and its results are judged as that: an override that
differs from it needs a name of its own. What the delta leaves open (null, `${...}`) may be
overridden.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from clozelab.config import Composed, Composition, scaled_phases
from clozelab.launch.experiments import MEASURED
from clozelab.models.config_keys import ConfigJson
from clozelab.runs.provenance import read_delta
from clozelab.text.did_you_mean import key_of
from clozelab.text.plain import PlainDict, PlainMapping, ReadOnlyJson, read_json

ENCODER_ARM = "${encoder_arm}"
# the row of a table for an encoder from elsewhere (encoder=FOLDER): no pre-training then
GIVEN_ROW = "given"
OWN_TASK = "own"  # the choice that task=FILE stands for
SHAPE_GROUPS = ("model", "size", "architecture")
LONGER = ("longformer", "big_bird")  # types which a shorter encoder's weights may become
SHOWN_SETTINGS = 6  # of what an arm or a row stands for


def check_overrides(composed: Composed) -> None:
    """Raise ValueError for an override that changes nothing, or files a run as something else.

    The message says what to write instead.
    """
    origin = composed.origin
    if origin is None:
        return
    overrides = {key_of(override): override for override in origin.overrides}
    _refuse_text_of_generated(composed, origin, overrides)
    if composed.stage == "prepare":
        return
    # Only a pre-training has no row.
    if "row" not in composed.values:
        _refuse_idle_in_pretraining(composed, origin, overrides)
        _refuse_undone(composed, origin, "arm", overrides)
        return
    if "task" in composed.values:
        requested = overrides
        if origin.choices.get("task") == OWN_TASK:  # which says epochs that nobody has asked for
            requested = dict(overrides)
            requested.pop("task.epochs", None)
        _refuse_idle_in_finetuning(composed.values, requested)
    _refuse_misfiled_encoder(composed, origin, overrides)
    _refuse_undone(composed, origin, "row", overrides)


def _refuse_text_of_generated(
    composed: Composed, origin: Composition, overrides: Mapping[str, str]
) -> None:
    """`corpus.sources.0.path=`, which a generated corpus would still be called by its own name."""
    corpus = composed.values.get("corpus", {})
    word = overrides.get("corpus.sources.0.path")
    if word is not None and corpus.get("generator") is not None:
        path = word.partition("=")[2]
        raise ValueError(
            f"{word} would be read as the generated corpus {corpus['name']}, which"
            f" corpus={origin.choices.get('corpus')} is: say text={path} instead"
        )


def _refuse_idle_in_finetuning(config: ReadOnlyJson, overrides: Collection[str]) -> None:
    """`task.KEY=`, where the run takes KEY from elsewhere, and what fine-tuning does not have."""
    task = config["task"]
    # conf/finetune.yaml takes these from the scale first, then from the task.
    for key in ("learning_rate", "epochs", "global_batch_size"):
        if f"task.{key}" in overrides and config[key] != task[key]:
            word = f"{key}={task[key]}"
            raise ValueError(
                f"task.{word} would change nothing: {key} is {config[key]} here, which"
                f" scale={config['scale']['name']} or another override sets. Say {word} instead"
            )
    if config["trainer"]["gradient_checkpointing"]:
        word = "trainer.gradient_checkpointing=true"
        raise ValueError(
            f"{word} would change nothing in fine-tuning, which does not have it: leave it out, or"
            f" say pretrain.{word} where a command is about both stages"
        )


def _refuse_idle_in_pretraining(
    composed: Composed, origin: Composition, overrides: Mapping[str, str]
) -> None:
    """`steps_factor=` beside `phases=`, `size.RATIO=` of a model that takes no ratios, and what a
    given encoder brings with it.
    """
    config = composed.values
    if config["encoder"] is not None:
        _refuse_shape_of_given(config, overrides)
    # `phases` is `${scaled_phases:...}` unless somebody has said phases.
    factor = config["steps_factor"]
    phases = scaled_phases(config["scale"]["pretrain"]["phases"], factor)
    if factor != 1 and config["phases"] != phases:
        raise ValueError(
            f"steps_factor={factor:g} would change nothing: phases=[...] says all"
            " steps outright. Say scale.pretrain.phases=[...] instead, which the factor multiplies,"
            " or leave one of them out"
        )
    ratios = sorted(key for key in overrides if key.partition(".")[0] == "size")
    if ratios and "${size." not in str(composed.unresolved["model"]):
        model = origin.choices.get("model")
        raise ValueError(
            f"{ratios[0]} would change nothing: model={model} says its sizes outright. Say"
            " model=ratio too, for ratios of the scale's size, or model.num_hidden_layers=..."
            " itself"
        )


def _refuse_shape_of_given(config: ReadOnlyJson, overrides: Mapping[str, str]) -> None:
    """`model.KEY=` beside `encoder=FOLDER`; a longer encoder of it has positions of its own."""
    given: ConfigJson = {}
    with suppress(OSError, ValueError):  # the stage says what is wrong with the folder
        given = read_json(Path(config["encoder"]).expanduser() / "config.json")
    given_type = str(given.get("model_type")).removeprefix("clozelab_")
    model_type = config["architecture"]["model_type"]
    lasting: tuple[str, ...] = ()
    if model_type == given_type:
        lasting = ("architecture=",)  # which says what the folder is
    elif model_type in LONGER:
        lasting = ("architecture=", "architecture.attention", "model.max_position_embeddings=")
        _refuse_fewer_positions(config, given, given_type, overrides)
    for key, word in overrides.items():
        group = key.partition(".")[0]
        if group in SHAPE_GROUPS and not word.startswith(lasting):
            raise ValueError(
                f"{word} would change nothing: encoder={config['encoder']} brings its own shape,"
                " dropout too. Leave it out, or change the folder's config.json"
            )


def _refuse_fewer_positions(
    config: ReadOnlyJson, given: ConfigJson, given_type: str, overrides: Mapping[str, str]
) -> None:
    """`model.max_position_embeddings=` below those that a longer encoder begins with."""
    positions = given.get("max_position_embeddings", 0)
    if given_type == "roberta":
        positions -= 2  # the first rows of its table are of no position
    word = overrides.get("model.max_position_embeddings")
    if word is not None and config["model"]["max_position_embeddings"] < positions:
        raise ValueError(
            f"{word} would change nothing: encoder={config['encoder']} has {positions} positions,"
            " and a longer encoder keeps them all. Leave it out, or say more"
        )


def _refuse_misfiled_encoder(
    composed: Composed, origin: Composition, overrides: Collection[str]
) -> None:
    """`encoder=FOLDER` in a row that stands for the encoder of an arm."""
    config = composed.values
    encoder_arm = config["encoder_arm"]
    if encoder_arm is None or ENCODER_ARM in str(composed.unresolved["encoder"]):
        return  # nobody has said another encoder
    if composed.unresolved["row"] == ENCODER_ARM and "encoder_arm" not in overrides:
        raise ValueError(
            f"encoder={config['encoder']} has no name yet, and its scores would be filed as the row"
            f" {config['row']}: say row=NAME too"
        )
    if not {"row", MEASURED} & origin.choices.keys():
        return  # no experiment, whose rows stand for something
    takes_any = bool(read_delta(origin, "row", GIVEN_ROW))
    if config["row"] != encoder_arm and takes_any:
        return
    if takes_any:
        instead = f"take row={GIVEN_ROW}"
    else:
        instead = f"`clozelab {composed.stage} encoder=FOLDER row=NAME` scores another"
    raise ValueError(
        f"encoder={config['encoder']}: the row {config['row']} stands for the encoder that the arm"
        f" {encoder_arm} has trained; {instead}"
    )


def _refuse_undone(
    composed: Composed, origin: Composition, group: str, overrides: Mapping[str, str]
) -> None:
    """Whatever undoes the delta of the run's arm or row; `overrides` are by their key."""
    name = str(composed.values[group])
    noun = group
    if MEASURED in origin.choices:  # an evaluation in an experiment
        group = MEASURED
        noun = "row"
    choice = origin.choices.get(group)
    if choice is None:
        return
    if name != choice and not read_delta(origin, group, name):
        return  # what has a name of its own may be anything
    delta = _fixed_delta(composed.values, origin, group, str(choice))
    undone = list(_undone(composed, origin.choices, delta, overrides))
    if not undone:
        return
    settings = [f"{key.removeprefix('/')}={value}" for key, value in delta.items()]
    raise ValueError(
        f"{undone[0]}: the {noun} {choice} stands for {', '.join(settings[:SHOWN_SETTINGS])}, and"
        " its results would be filed and judged as that. Leave it out, or give the experiment"
        f" another {noun}"
    )


def _fixed_delta(config: PlainMapping, origin: Composition, group: str, choice: str) -> PlainDict:
    """What an arm or a row fixes: dotted key -> value, "/group" -> choice.

    Not what it leaves open. A row's encoder is that of the whole run unless it says a fraction.
    """
    whole_delta = read_delta(origin, group, choice, with_parts=False)
    if group != "arm":
        whole_delta = {"encoder_fraction": 1.0} | whole_delta
    delta: PlainDict = {}
    if group in config:
        delta[group] = choice
    for key, value in whole_delta.items():
        is_open = value is None or "${" in str(value)
        if not is_open and not key.startswith("hydra."):
            delta[key] = value
    return delta


def _undone(
    composed: Composed,
    choices: PlainMapping,
    delta: PlainMapping,
    overrides: Mapping[str, str],
) -> Iterator[str]:
    """`key=value` of each setting and choice of a delta that the run has otherwise."""
    for key, value in delta.items():
        group = key.removeprefix("/")
        actual = composed.get(key) if group == key else choices.get(group, value)
        if not _is_held(actual, value):
            yield f"{group}={actual}"
    # A choice inside of one that the delta makes: objective.input= where it says objective.
    prefixes = tuple(f"{key.removeprefix('/')}/" for key in delta if key.startswith("/"))
    for key, override in overrides.items():
        inner = key.replace(".", "/")
        if inner in choices and f"/{inner}" not in delta and inner.startswith(prefixes):
            yield override


def _is_held(actual: object, value: object) -> bool:
    """Whether a setting is what a delta says. The schema may have filled in keys beside them."""
    if isinstance(actual, Mapping) and isinstance(value, Mapping):
        return all(_is_held(actual.get(key), each) for key, each in value.items())
    if isinstance(actual, list) and isinstance(value, list):
        return len(actual) == len(value) and all(map(_is_held, actual, value))
    return actual == value or str(actual) == str(value)
