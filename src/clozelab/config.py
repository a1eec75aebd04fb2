"""A composed configuration, and the only door from it into the house.

`Composed` validates what Hydra has composed, resolves it and works out what a run of it is known
by, each once. The stages get its `config`, a dataclass of schema.py, and `runs` its other views;
nobody below knows Hydra or OmegaConf. `hydra_compat.register()` puts the schemas and the resolvers
where Hydra finds them; it must run before anything is composed.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import Container, DictConfig, ListConfig, Node, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from omegaconf.resolvers import oc
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from claims.text.did_you_mean import hint, nearest
from clozelab.corpus.paths import path_list
from clozelab.files.origin import RUN_FILE, is_given
from clozelab.files.public import encoder_folder
from clozelab.models.locate import count_weights, find_model
from clozelab.schema import CONDITIONAL_KEYS, IDENTITY, NEUTRAL, NO_VALUE, SCHEMAS, meaning_of
from clozelab.text.plain import (
    Json,
    JsonObject,
    PlainDict,
    PlainMapping,
    ReadOnlyJson,
    flatten,
    read_json,
)
from clozelab.text.redaction import digested, redacted

T = TypeVar("T")


def fallback(*values: object) -> object:
    """`${fallback:${scale.finetune.epochs},${task.epochs}}`: the first value that is not None."""
    for value in values:
        if value is not None:
            return value
    return None


def scaled(value: int, *ratios: object) -> int:
    """`${scaled:${scale.size_base.hidden_size},4/3}`: a whole number times ratios.

    ValueError where that is no whole number.
    """
    try:
        # exact: 4/3 of 3/4 of 12 is 12
        product = math.prod((Fraction(str(ratio)) for ratio in ratios), start=Fraction(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{', '.join(map(str, ratios))}: give a ratio as 1, 1/2 or 4/3") from error
    if product.denominator != 1 or product < 1:
        factors = " x ".join(map(str, (value, *ratios)))
        raise ValueError(
            f"{factors} = {float(product):g} is no size: it has to be a positive whole number."
            " Choose a scale whose size_base this ratio divides (depth a multiple of 4, heads of"
            " 12, width of 3), or set scale.size_base"
        )
    return int(product)


def scaled_phases(phases: Sequence[Mapping[str, int]], factor: float) -> Sequence[PlainMapping]:
    """`${scaled_phases:${scale.pretrain.phases},${steps_factor}}`: phases with more or fewer steps.

    Each has a multiple of its steps, at least one. At 1 it is the very node that was given, so that
    an override of `phases.0.steps` still finds it; otherwise the list refuses one, which would be
    lost.
    """
    if float(factor) == 1.0:
        return phases
    longer_phases = []
    for phase in phases:
        steps = max(1, round(phase["steps"] * float(factor)))
        # merged, not copied into a dict: a phase of the schema's type stays one
        longer_phases.append(OmegaConf.merge(phase, {"steps": steps}))
    return OmegaConf.create(longer_phases, flags={"readonly": True})


def kept_step(fraction: float, total_steps: int) -> int:
    """Return the step after which the encoder of a fraction of the run is kept.

    ValueError where there is none.
    """
    step = round(float(fraction) * total_steps)
    if not 0.0 < float(fraction) < 1.0 or not 0 < step < total_steps:
        raise ValueError(
            f"{fraction} of {total_steps} steps: an encoder is kept after a fraction above 0 and"
            " below 1 that is at least one step (the last one is always there)"
        )
    return step


def encoder_place(run_dir: str, fraction: float, phases: Sequence[PlainMapping]) -> str:
    """`${encoder_place:RUN_DIR,${encoder_fraction},${scale.pretrain.phases}}`: a run's encoder.

    It is the encoder after a fraction of the run's own steps, as its record says, or of these
    phases' where it has not begun.
    """
    if float(fraction) == 1.0:
        return f"{run_dir}/encoder"
    with suppress(OSError, ValueError, KeyError, TypeError):  # it has not begun
        # What the run was trained for counts, whatever the scale says today.
        record = read_json(Path(run_dir) / RUN_FILE)
        phases = record["config"]["phases"] or phases
    return f"{run_dir}/encoders/step-{kept_step(fraction, total_steps(phases))}"


def of_scale(value: object, *, _root_: DictConfig) -> object:
    """`${of_scale:${scale.finetune.epochs}}`: a setting for encoders that this scale pre-trains.

    It is None for an encoder that is given: its recipe is not the scale's.
    """
    return value if given_encoder(_root_) is None else None


def suited_learning_rate(
    rate: float, ranges: Mapping[str, Sequence[float]], *, _root_: DictConfig
) -> float:
    """`${suited_learning_rate:${task.learning_rate},RANGES}`: the one of a given encoder.

    A task's learning rate is for encoders of width 768. A narrower one is given more, by the square
    of the widths' ratio, up to HIGHEST_LEARNING_RATE: 3e-5 becomes 1.2e-4 at width 384, 2.7e-4 at
    256 (the ELECTRA paper has 3e-4 there) and 1e-3 at 128. Last, it is moved into the range that is
    usual for the encoder's family.
    """
    folder = _encoder_of_recipe(_root_)
    if folder is None:
        return rate
    config = _model_config(folder)
    width: float = BASE_WIDTH
    for key in ("d_model", "dim", "hidden_size"):
        value = config.get(key)
        if isinstance(value, int | float) and value > 0:
            width = value
    if width < BASE_WIDTH:
        narrow_rate = round(rate * (BASE_WIDTH / width) ** 2, 6)
        rate = max(rate, min(narrow_rate, HIGHEST_LEARNING_RATE))
    # Ours have a prefix where transformers would compute something else.
    family = str(config.get("model_type")).removeprefix("clozelab_")
    low, high = ranges.get(family, (rate, rate))
    return min(max(rate, low), high)


def _model_config(folder: Path) -> PlainDict:
    """The configuration in an encoder's folder; empty where none can be read."""
    file = folder / "config.json"
    if not file.is_file():
        file = folder / "bert_config.json"  # as Google released its encoders
    with suppress(OSError, ValueError, TypeError):  # it is read, or refused, elsewhere
        return dict(read_json(file))
    return {}


def enough_epochs(
    epochs: float, most_examples: int | None, batch_size: int, *, _root_: DictConfig
) -> float:
    """`${enough_epochs:${task.epochs},${max_train_examples},${global_batch_size}}`: more for few.

    A given encoder hardly moves in a few steps. Where a limit leaves few examples, there are as
    many epochs as make LEAST_STEPS, up to MOST_EPOCHS.
    """
    if most_examples is None or _encoder_of_recipe(_root_) is None:
        return epochs
    enough = math.ceil(LEAST_STEPS * batch_size / most_examples)
    return max(epochs, min(enough, MOST_EPOCHS))


def _encoder_of_recipe(root: DictConfig) -> Path | None:
    """The encoder that learning rate and epochs have to suit; None where they are the scale's."""
    if root.recipe_for is None:
        return given_encoder(root)
    return Path(encoder_folder(root.recipe_for))


@dataclass
class _Reading:
    """What has been found in configurations that are only read at present."""

    # (id of a node, `names_variables`) -> node and what it means; None: one may be changed
    found: dict[tuple[int, bool], tuple[object, Any]] | None = None
    names_variables: bool = False  # `_environment_of_names`


_reading = _Reading()


def found_once(node: Any, find: Callable[[Any], T]) -> T:
    """What `find` makes of a node, once as long as configurations are only read."""
    if _reading.found is None:
        return find(node)
    key = (id(node), _reading.names_variables)
    if key not in _reading.found:
        _reading.found[key] = (node, find(node))
    found: T = _reading.found[key][1]
    return found


def given_encoder(root: DictConfig) -> Path | None:
    """The encoder that a stage's configuration names; None for one that its scale pre-trains."""
    return found_once(root, _find_given_encoder)  # a dozen settings ask


def _find_given_encoder(root: DictConfig) -> Path | None:
    if root.encoder is None or OmegaConf.select(root, "fresh_weights"):
        return None
    # `_environment_of_names` may have put a variable's name in the place of its value.
    folder = re.sub(r"\(env (\w+)\)", lambda name: os.environ.get(name[1], ""), root.encoder)
    with suppress(ValueError):  # said where the configuration is resolved
        folder = encoder_folder(folder)
    return Path(folder) if is_given(folder, root.scale.name) else None


def mode_of(metric: str, *, _root_: DictConfig) -> str:
    """`${mode_of:${task.metric}}`: max, or min for a score of the task that is better when lower.

    So its Metric says; ValueError where the task has no such score.
    """
    from clozelab.addresses import build_parts  # lazy: only who stops early waits for torch
    from clozelab.metrics.metric import metric_of
    from clozelab.tasks.target import metrics_of

    task: Any = to_plain(_root_.task)
    _, target = build_parts(task)
    metrics = metrics_of(target, task["data"].get("extra_validation_files") or ())
    return "max" if metric_of(metric, metrics).higher_is_better else "min"


def adapted_steps(
    encoder: str | None,
    passes: float,
    step_tokens: int,
    least: int,
    most_flops: float,
    *,
    _root_: DictConfig,
) -> int:
    """`${adapted_steps:${encoder},3,2048,100,2e14}`: steps that suit a text and an encoder.

    So many passes over the text, at least some steps, and no more than the FLOPs pay for. `least`
    in a stage that has no text.
    """
    if "corpus" not in _root_:
        return least
    from clozelab.corpus.files import CorpusSource  # lazy: only who trains further reads a text
    from clozelab.corpus.sizes import text_bytes

    num_bytes = 0.0
    for node in _root_.corpus.sources:
        if node.path is not None:
            paths = path_list(node.path)
            source = CorpusSource(node.name, paths, node.format, node.text_field)
            num_bytes += text_bytes(source, _root_.data_dir)
    steps = passes * num_bytes / TOKEN_BYTES / step_tokens
    if encoder is not None:
        # Six operations a weight and token.
        num_weights = max(1.0, _weights_of(encoder))
        steps = min(steps, most_flops / (6 * step_tokens * num_weights))
    return max(least, round(steps))


def _weights_of(encoder: str) -> float:
    """About how many weights a given encoder has; 0 where none are there."""
    folder = Path(encoder)
    with suppress(ValueError):  # it is refused elsewhere
        folder = find_model(encoder)
    if folder.is_file():
        folder = folder.parent
    return count_weights(folder, _model_config(folder))


def total_steps(phases: Sequence[ReadOnlyJson]) -> int:
    """Return the optimizer steps of all phases."""
    return sum(int(phase["steps"]) for phase in phases)


def at_least(least: float, value: float) -> float:
    """`${at_least:4,${scale.model.num_hidden_layers}}`: the value, or the least if it is below."""
    return max(least, value)


def listed(*names: str) -> str:
    """`${listed:a,,b}`: the measures that are not empty, as the values of a sweep.

    ValueError where all are.
    """
    if not any(names):
        raise ValueError(
            "the experiment's measures have no files at this scale: evaluate=none leaves them out"
        )
    return ",".join(filter(None, names))


RESOLVERS: tuple[Callable[..., object], ...] = (
    fallback,
    at_least,
    listed,
    scaled,
    scaled_phases,
    encoder_place,
    of_scale,
    suited_learning_rate,
    enough_epochs,
    mode_of,
    adapted_steps,
)
"""Known to configurations by their own names (hydra_compat.register)."""


TOKEN_BYTES = 4.5  # of English text
GIVEN = "given"
"""Folder beside an experiment's runs: links to its inputs, which records call by their names.

It lies in RUNS_DIR/EXPERIMENT/SCALE."""
PLACE = ("runs_dir", "experiment", "scale.name")
PLACES_OF_ENCODERS = ("encoder", "objective.token.teacher", "tokenizer.vocab_file")
"""Keys that may name a public encoder, or a file of it."""
MISSING_VALUE = "???"
UNRESOLVED = re.compile(r"^\?{3}$|\$\{")
"""A value that is missing, or not resolved."""


def typed(stage: str, values: PlainMapping) -> Any:
    """Return a stage's configuration of schema.py from plain values.

    ValueError for a value that is missing or that its key may not have, and for an unknown key.
    """
    for key, value in flatten(dict(values)).items():
        if value == MISSING_VALUE and not key.startswith("scale."):
            raise ValueError(missing_value_message(key))
    try:
        return adapter(SCHEMAS[stage]).validate_python(values)
    except ValidationError as error:
        # Where only the scale's values are wrong, they are what is said.
        mistakes = validation_messages(stage, values) or map(_wrong_value, error.errors())
        raise ValueError("\n".join(mistakes)) from None


def validation_messages(stage: str, plain: object) -> list[str]:
    """Return a sentence for each mistake in a configuration of plain values.

    Where keys are unknown, which Hydra lets past its own check as `+key=value`, there are only
    those. The scale's values are judged where they are used. A value that has to be given may be
    missing.
    """
    try:
        adapter(SCHEMAS[stage]).validate_python(plain)
    except ValidationError as error:
        unknown_keys = []
        wrong_values = []
        for mistake in error.errors(include_url=False):
            # The scale's values are judged where they are used, interpolations once resolved.
            if mistake["type"] == "unexpected_keyword_argument":
                unknown_keys.append(_unknown_key(mistake, plain))
            elif mistake["type"] == NO_VALUE or mistake["loc"][0] == "scale":
                continue
            elif not UNRESOLVED.search(str(mistake["input"])):
                wrong_values.append(_wrong_value(mistake))
        # A misspelt key goes first: another may look wrong only for want of it.
        return unknown_keys or wrong_values
    return []


def _unknown_key(mistake: ErrorDetails, plain: object) -> str:
    """Write the sentence for an unknown key, as pydantic reports it, of a configuration."""
    # ("model", "hiden_size"): the keys of the node that has it are those that may be meant
    *parents, name = mistake["loc"]
    node: Any = plain
    for parent in parents:
        node = node[parent]
    known_keys = [key for key in node if key != name]
    return f"{_dotted(mistake)}: there is no such key; {hint(str(name), known_keys)}"


def _wrong_value(mistake: ErrorDetails) -> str:
    """Write the sentence for a value that its key may not have, as pydantic reports it."""
    key = _dotted(mistake)
    value = mistake["input"]
    choices = mistake.get("ctx", {}).get("choices")
    if choices:
        near = nearest(value, choices)
        meant = f"; did you mean {near!r}?" if near else ""
        return f"{key} is {value!r}: choose one of {', '.join(choices)}{meant}"
    if mistake["type"] == NO_VALUE:
        return missing_value_message(key)
    reason = mistake["msg"].removeprefix("Value error, ").replace("Input should", "it must")
    return f"{key} is {value}: {reason}"


def _dotted(mistake: ErrorDetails) -> str:
    return ".".join(map(str, mistake["loc"]))


adapter: Callable[[type], TypeAdapter[object]] = functools.cache(TypeAdapter)


class ConfigSource(NamedTuple):
    """A folder, or the like, that configuration files were looked for in."""

    provider: str
    schema: str
    path: str


@dataclass(frozen=True)
class Composition:
    """What Hydra composed a configuration of."""

    config_name: str
    overrides: list[str]  # of the stage's keys, in order
    hydra_overrides: list[str]  # of Hydra's own
    choices: PlainDict  # group -> choice
    sources: list[ConfigSource]

    @property
    def config_dir(self) -> str:
        """The folder, or file, of `--config-dir`; "" without one."""
        for source in self.sources:
            if source.provider == "command-line":
                return source.path
        return ""


class Composed:
    """What Hydra has composed for a stage; each view of it is made once.

    Args:
        stage: whose schema it follows.
        node: all of it, with Hydra's own node or without.
        hydra: a node that has Hydra's own node; None for a configuration that Hydra knows nothing
            of.
    """

    def __init__(self, stage: str, node: DictConfig, hydra: DictConfig | None = None) -> None:
        self.stage = stage
        self.node = node
        self.composed_ns = time.time_ns()
        self._hydra = hydra

    @classmethod
    def from_node(cls, whole: DictConfig) -> Composed:
        """Return the views of a configuration with its `hydra` node; its schema says the stage."""
        stages: dict[type | None, str] = {schema: stage for stage, schema in SCHEMAS.items()}
        return cls(stages[OmegaConf.get_type(whole)], whole, whole)

    @classmethod
    def from_hydra_main(cls, stage: str, node: object) -> Composed:
        """Return the views of what `hydra.main` gives its function."""
        assert isinstance(node, DictConfig)
        from hydra.core.hydra_config import HydraConfig

        hydra: Any = HydraConfig.instance().cfg
        return cls(stage, node, hydra)

    @cached_property
    def config(self) -> Any:
        """The stage's configuration; ValueError for a wrong or missing value, or unknown key."""
        self.check()
        return typed(self.stage, self.values)

    def check(self) -> None:
        """ValueError with a sentence for each key that the stage's schema does not allow.

        A value that has to be given may be missing.
        """
        try:
            mistakes = validation_messages(self.stage, self.values)
        except OmegaConfBaseException:  # a resolver's refusal, perhaps of what is wrong there
            mistakes = validation_messages(self.stage, self.unresolved)
            if not mistakes:
                raise
        if mistakes:
            raise ValueError("\n".join(mistakes))

    @cached_property
    def values(self) -> JsonObject:
        """Everything but Hydra's own node as plain values, resolved.

        A public encoder is the folder that its name stands for; ValueError where there is none.
        """
        with self.resolving() as node:
            values = to_plain(node)
        name_encoder_folders(values)
        return values

    @cached_property
    def unresolved(self) -> PlainDict:
        """The same as it was composed, with its interpolations."""
        with without_hydra_part(self.node) as node:
            return to_plain(node, resolve=False)

    @cached_property
    def unresolved_hydra(self) -> JsonObject:
        """Hydra's own node below its name, with its interpolations."""
        return {"hydra": to_plain(self.node.hydra, resolve=False)}

    @cached_property
    def recorded(self) -> PlainDict:
        """What run.json holds of it: resolved, without what changes nothing, secrets as hashes.

        ValueError where a value is missing.
        """
        with self.resolving() as node:
            return canonical(node)

    @property
    def yaml(self) -> str:
        """The configuration as composed, in YAML, unresolved, without literal secrets."""
        # as OmegaConf.to_yaml writes it, which makes nodes of the plain values first
        return yaml.dump(
            redacted(self.unresolved),
            default_flow_style=False,
            allow_unicode=True,
            sort_keys=False,
            Dumper=get_omega_conf_dumper(),
        )

    @cached_property
    def origin(self) -> Composition | None:
        """What it was composed of; None where Hydra knows nothing of it."""
        if self._hydra is None:
            return None
        hydra = self._hydra.hydra
        sources = []
        for source in hydra.runtime.config_sources:
            schema = str(source.schema or "")
            sources.append(ConfigSource(str(source.provider), schema, str(source.path)))
        choices = {}
        for group, choice in hydra.runtime.choices.items():
            choices[str(group)] = choice
        return Composition(
            config_name=str(hydra.job.config_name),
            overrides=list(hydra.overrides.task),
            hydra_overrides=list(hydra.overrides.hydra),
            choices=choices,
            sources=sources,
        )

    def get(self, key: str) -> Json:
        """Return the plain value of a dotted key, resolved by itself; None where there is none."""
        with self.resolving() as node:
            return to_plain(OmegaConf.select(node, key))

    def hydra_value(self, key: str) -> Json:
        """Return the plain value of one of Hydra's own keys, resolved."""
        with self._known_to_hydra():
            return to_plain(OmegaConf.select(self.node, f"hydra.{key}"))

    def partly_resolved(self) -> PlainDict:
        """Return everything with Hydra's own node as plain values.

        A part in which something means nothing yet, or a value is missing, is as it is written.
        """
        plain = {}
        unresolved: PlainDict = {}
        with self._known_to_hydra():
            for key in map(str, self.node):
                try:
                    plain[key] = to_plain(self.node[key])
                except (OmegaConfBaseException, ValueError, TypeError):
                    if not unresolved:  # rarely needed, and slow
                        unresolved = to_plain(self.node, resolve=False)
                    plain[key] = unresolved[key]
        return plain

    def resolved_texts(self, texts: Collection[str]) -> list[tuple[str, str, str]]:
        """Return key, text and resolved text wherever one of some interpolations stands.

        Not those that mean nothing yet. Hydra's own node is looked at, too.
        """
        with self._known_to_hydra():
            return list(_resolved_texts(self.node, "", texts))

    @contextmanager
    def resolving(self) -> Iterator[DictConfig]:
        """Yield it without Hydra's own node, which `${hydra:...}` then means."""
        with self._known_to_hydra(), without_hydra_part(self.node) as node:
            yield node

    @contextmanager
    def _known_to_hydra(self) -> Iterator[None]:
        """Let `${hydra:...}` mean this configuration until the block ends."""
        from hydra.core.hydra_config import HydraConfig

        # Hydra has one global place for it, which may hold another one at the time.
        holder: Any = HydraConfig.instance()
        config_before = holder.cfg
        found_before = _reading.found
        holder.cfg = self._hydra_alone
        _reading.found = {}
        try:
            yield
        finally:
            holder.cfg = config_before
            _reading.found = found_before

    @cached_property
    def _hydra_alone(self) -> DictConfig | None:
        """What Hydra's own place for it holds: a copy of that node alone."""
        if self._hydra is None:
            return None
        alone = OmegaConf.masked_copy(self._hydra, "hydra")
        alone.hydra._set_parent(alone)
        return alone


def name_encoder_folders(values: JsonObject) -> None:
    """Put the folders that names of public encoders stand for into resolved values.

    ValueError where there is none.
    """
    for place in PLACES_OF_ENCODERS:
        *parents, key = place.split(".")
        settings = values
        for parent in parents:
            settings = settings.get(parent) or {}
        if isinstance(settings.get(key), str):
            settings[key] = encoder_folder(settings[key])


def to_plain(value: object, *, resolve: bool = True) -> Json:
    """Return a node as plain values; any other value as it is."""
    if isinstance(value, Container):
        return OmegaConf.to_container(value, resolve=resolve)
    return value


def canonical(config: DictConfig | PlainMapping) -> PlainDict:
    """Return a configuration as a record holds it: resolved, without what changes nothing.

    What comes from the environment and what looks like a secret is a hash. ValueError where a value
    is missing.
    """
    if not isinstance(config, DictConfig):
        config = OmegaConf.create(dict(config))
    given = "{}/{}/{}/{}/".format(*(OmegaConf.select(config, key) for key in PLACE), GIVEN)
    switched_off = set()
    for key, options in CONDITIONAL_KEYS.items():
        if not any(OmegaConf.select(config, option) for option in options.split()):
            switched_off.add(key)
    plain = _Recorded(frozenset(switched_off), given).mapping(config, "")
    # Through JSON, so that it equals what run.json gives back.
    return dict(json.loads(json.dumps(plain)))


@dataclass(frozen=True)
class _Recorded:
    """Walks through a configuration for `canonical`; `path` is the dotted key of a node."""

    switched_off: frozenset[str]
    given: str  # the folder of an experiment's inputs

    def mapping(self, node: DictConfig, path: str) -> PlainDict:
        plain = {}
        for key in node:
            child_path = f"{path}.{key!s}" if path else str(key)
            if child_path not in self.switched_off and meaning_of(child_path) != NEUTRAL:
                plain[str(key)] = self.value(node, key, child_path)
        return plain

    def value(self, node: DictConfig | ListConfig, key: Any, path: str) -> object:
        try:
            value = node[key]
        except MissingMandatoryValue as error:
            raise ValueError(missing_value_message(path)) from error

        # written down as it is, or as the hash of what the environment says
        interpolation = interpolation_of(node, key)
        if meaning_of(path) == IDENTITY and "oc.env" not in interpolation:
            return value
        if interpolation and _is_from_environment(node, key, interpolation, value):
            return f"{interpolation} {digested(value)}"

        # a node of nodes, or a value that may look like a secret
        if isinstance(value, DictConfig):
            return self.mapping(value, path)
        if isinstance(value, ListConfig):
            return [self.value(value, index, f"{path}.{index}") for index in range(len(value))]
        if isinstance(value, str) and value.startswith(self.given):
            return f"{GIVEN}/{value.removeprefix(self.given)}"
        shown = redacted(value, path)
        if shown == value:
            return value
        return f"{shown} {digested(value)}"


def interpolation_of(node: DictConfig | ListConfig, key: Any) -> str:
    """Return the text of an interpolation, as `${scale.vocab_size}`; "" for any other value."""
    raw = node._get_node(key)
    if raw is None or not OmegaConf.is_interpolation(node, key):
        return ""
    text: str = raw._value()  # type: ignore[union-attr]
    return text


def _is_from_environment(
    node: DictConfig | ListConfig, key: Any, interpolation: str, value: object
) -> bool:
    """Whether an interpolated value would be another one in another environment."""
    if "oc.env" in interpolation:
        return True
    if isinstance(value, DictConfig | ListConfig) and ":" not in interpolation:
        return False  # another part of the configuration: its own values will be asked
    # also through other keys and inside longer values
    with _environment_of_names():
        try:
            return bool(node[key] != value)
        except (OmegaConfBaseException, TypeError, ValueError):
            return True  # its type, or a resolver, cannot do with "(env NAME)"


@contextmanager
def _environment_of_names() -> Iterator[None]:
    """Let `${oc.env:NAME}` read "(env NAME)" while inside.

    OmegaConf has one table of resolvers for the whole process, so no other thread may resolve a
    configuration meanwhile.
    """

    def name_of_variable(name: str, *_default: str) -> str:
        return f"(env {name})"

    OmegaConf.register_new_resolver("oc.env", name_of_variable, replace=True)
    _reading.names_variables = True
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        _reading.names_variables = False


def missing_value_message(key: str) -> str:
    """Return the error message for a required key without a value."""
    return f"{key} has no value; give one: {key}=..."


@contextmanager
def without_hydra_part(composed: DictConfig) -> Iterator[DictConfig]:
    """The same node without its `hydra` part, half of all nodes, until the block ends.

    OmegaConf can only delete that part, or copy all of it first.
    """
    nodes = composed.__dict__["_content"]
    composed.__dict__["_content"] = {key: node for key, node in nodes.items() if key != "hydra"}
    try:
        yield composed
    finally:
        composed.__dict__["_content"] = nodes


def _resolved_texts(
    node: DictConfig | ListConfig, prefix: str, texts: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    """Yield what `Composed.resolved_texts` returns, of a node whose keys begin with `prefix`."""
    keys: Iterable[Any] = node
    if isinstance(node, ListConfig):
        keys = range(len(node))
    for name in keys:
        # As it is written: OmegaConf's public doors resolve a text, and convert all of a node.
        child: Any = node._get_node(name)
        content = child._value() if isinstance(child, Node) else None
        key = f"{prefix}{name}"
        if isinstance(content, dict | list):
            yield from _resolved_texts(child, f"{key}.", texts)
        elif isinstance(content, str) and content in texts:
            with suppress(OmegaConfBaseException, ValueError, TypeError):
                value = node[name]
                if isinstance(value, str):
                    yield key, content, value


# Of fine-tuning a given encoder: the width that tasks' learning rates are for, and the highest one.
BASE_WIDTH = 768
HIGHEST_LEARNING_RATE = 1e-3
# MiniLM has found no entity of WNUT-17 after 63 steps, and a fifth of them after 126.
LEAST_STEPS = 150
MOST_EPOCHS = 25
