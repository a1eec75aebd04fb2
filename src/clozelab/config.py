# ruff: noqa: RUF009  (`key` makes a field)
"""What `${name:...}` means in a configuration: a size from ratios, phases from a factor, where an encoder was kept.

The schema of every stage's configuration: the only dataclasses Hydra knows.

A root dataclass per stage refuses a misspelt key wherever it stands (command line, group file, experiment). Values live
in `conf/`, one home each; here are only names and types, so nearly every field is MISSING. Groups whose members differ
in behaviour carry a `_target_` (objective, optimizer, schedule, logger, a task's `module` and `data`); those nodes are
free-form for Hydra and are checked by `check_targets` against an allow-list and against the target's own signature.

`register()` puts the schemas and the resolvers where Hydra finds them; it must run before anything is composed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.suggestions import CONF_DIR as CONF_DIR
from clozelab.suggestions import EXPERIMENTS_DIR as EXPERIMENTS_DIR
from clozelab.suggestions import hint, nearest


def fallback(*values: Any) -> Any:
    """The first value that is not None: `${fallback:${scale.finetune.epochs},${task.epochs}}`."""
    return next((value for value in values if value is not None), None)


def scaled(value: int, *ratios: Any) -> int:
    """`${scaled:${scale.size_base.hidden_size},4/3}`: a whole number times ratios, exactly.

    Raises:
        ValueError: a ratio is none, or the product is not a whole number.
    """
    try:
        product = math.prod((Fraction(str(ratio)) for ratio in ratios), start=Fraction(value))
    except (ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{', '.join(map(str, ratios))}: give a ratio as 1, 1/2 or 4/3") from error
    if product.denominator != 1 or product < 1:
        text = " x ".join(map(str, (value, *ratios)))
        raise ValueError(
            f"{text} = {float(product):g} is no size: it has to be a positive whole number. Choose a scale whose "
            "size_base this ratio divides (depth a multiple of 4, heads of 12, width of 3), or set scale.size_base"
        )
    return int(product)


def scaled_phases(phases: Sequence[Mapping[str, Any]], factor: float) -> Sequence[Mapping[str, Any]]:
    """`${scaled_phases:${scale.pretrain.phases},${steps_factor}}`: phases with a multiple of their steps, at least one.

    At 1 it is the very node that was given, so that an override of `phases.0.steps` still finds it; otherwise the list
    refuses one, which would be lost.
    """
    if float(factor) == 1.0:
        return phases
    made = [{**phase, "steps": max(1, round(phase["steps"] * float(factor)))} for phase in phases]
    return OmegaConf.create(made, flags={"readonly": True})


def kept_step(fraction: float, total_steps: int) -> int:
    """The step after which the encoder of a fraction of the run is kept.

    Raises:
        ValueError: the fraction is not above 0 and below 1, or no step belongs to it.
    """
    step = round(float(fraction) * total_steps)
    if not 0.0 < float(fraction) < 1.0 or not 0 < step < total_steps:
        raise ValueError(
            f"{fraction} of {total_steps} steps: an encoder is kept after a fraction above 0 and below 1 that is at "
            "least one step (the last one is always there)"
        )
    return step


def encoder_place(run_dir: str, fraction: float, phases: Sequence[Mapping[str, Any]]) -> str:
    """`${encoder_place:RUN_DIR,${encoder_fraction},${scale.pretrain.phases}}`: an encoder of a pre-training run.

    Args:
        run_dir: the run's folder.
        fraction: of the run's own steps, as its record says; 1 for the last encoder.
        phases: the scale's; of a run that has not begun.
    """
    if float(fraction) == 1.0:
        return f"{run_dir}/encoder"
    step = kept_step(fraction, total_steps(_recorded_phases(run_dir) or phases))
    return f"{run_dir}/encoders/step-{step}"


def total_steps(phases: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(phase["steps"]) for phase in phases)


def _recorded_phases(run_dir: str) -> list[dict[str, Any]] | None:
    """What a run was trained with; None where nothing says so."""
    try:
        found = json.loads((Path(run_dir) / "run.json").read_text(encoding="utf-8"))["config"]["phases"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def at_least(least: float, value: float) -> float:
    """`${at_least:4,${scale.model.num_hidden_layers}}`: the value, or the least where it is below."""
    return max(least, value)


RESOLVERS: tuple[Callable[..., Any], ...] = (fallback, at_least, scaled, scaled_phases, encoder_place)
"""Known to configurations by their own names (config.register)."""


class Kind(StrEnum):
    """What a difference in a key means for two runs. A key that says nothing is part of the protocol."""

    PROTOCOL = "protocol"
    """Another value is another experiment."""
    LAYOUT = "layout"
    """How the same work is laid out on a machine: other rounding and other draws of dropout. It is part of a
    fingerprint, because a resumed run goes on to the bit, and no reason against comparing two runs."""
    NEUTRAL = "neutral"
    """It cannot change a result, or what counts of it is interpolated where it is used."""
    IDENTITY = "identity"
    """What a run is found by: written down as it is, also where it comes from the environment by another key."""


class Meaning(NamedTuple):
    """What a key means for a run; with `option`, only while that key is set, and it is neutral otherwise."""

    kind: Kind = Kind.PROTOCOL
    option: str = ""


PROTOCOL, LAYOUT, NEUTRAL, IDENTITY = map(Meaning, Kind)


@dataclass(frozen=True)
class Rule:
    """What a field of the schema says beyond its type.

    Attributes:
        meaning: of the key for a run.
        choices: all that it may be; empty where there are too many to list.
        least, above, below, most: its range, of every number of a list; None is allowed where the type allows it.
        parts: meanings of keys below a free-form node.
    """

    meaning: Meaning = PROTOCOL
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    below: float | None = None
    most: float | None = None
    parts: Mapping[str, Meaning] = field(default_factory=dict)


def key(meaning: Meaning = PROTOCOL, *, default: Any = MISSING, **rule: Any) -> Any:
    """A field with a Rule; its value stands in conf/, so it is missing here."""
    return field(default=default, metadata={"rule": Rule(meaning, **rule)})


def count(meaning: Meaning = PROTOCOL) -> Any:
    return key(meaning, least=1)


@dataclass
class PhaseConfig:
    """One stretch of pre-training at one sequence length."""

    seq_length: int = count()
    steps: int = count()
    global_batch_size: int = count()
    """Sequences per optimizer step, over all devices."""
    micro_batch_size: int = count(LAYOUT)
    """Sequences per forward and device."""
    objective: Any = None
    """None: the run's; the name of another one in conf/objective; or settings in which it differs from the run's."""


@dataclass
class ScaleModelConfig:
    num_hidden_layers: int = MISSING
    hidden_size: int = MISSING
    num_attention_heads: int = MISSING
    intermediate_size: int = MISSING
    hidden_dropout_prob: float = MISSING
    attention_probs_dropout_prob: float = MISSING
    initializer_range: float = MISSING
    position_embedding_init: str = MISSING


@dataclass
class ScaleSizeConfig:
    """The middle size where sizes are compared: depth a multiple of 4, heads of 12, width of 3."""

    num_hidden_layers: int = MISSING
    hidden_size: int = MISSING
    num_attention_heads: int = MISSING


@dataclass
class ScalePretrainConfig:
    phases: list[PhaseConfig] = MISSING
    position_growth: str = MISSING
    learning_rate: float = MISSING
    warmup_fraction: float = MISSING
    adam_betas: list[float] = MISSING
    validation_interval_steps: int = MISSING
    validation_instances: int = MISSING
    validation_seq_length: int = MISSING
    checkpoint_interval_steps: int = MISSING
    dupe_factor: int | None = None
    """Static masking in so many copies of each instance; None: a new mask every epoch."""
    keep_encoders: list[float] = key(above=0, below=1)
    """Fractions of the steps after which experiments about the course of training keep the encoder."""
    seeds: str = MISSING
    """Comma-separated, as a Hydra sweep wants them."""


@dataclass
class ScaleFinetuneConfig:
    learning_rate: float | None = key(above=0)
    """None, as for epochs and global_batch_size: each task keeps its own (the paper's)."""
    epochs: float | None = key(above=0)
    global_batch_size: int | None = count()
    max_train_examples: int | None = count()
    evaluations_per_epoch: int = MISSING
    seeds: str = MISSING
    tasks: str = MISSING
    """Comma-separated: the tasks an experiment is judged on at this scale."""
    glue_tasks: str = MISSING
    """What the experiment on the whole benchmark uses at this scale."""
    benchmarks: dict[str, str] = MISSING
    """Benchmark -> the task that is it, or stands in for it, at this scale: `${scale.finetune.benchmarks.mnli}`."""


@dataclass
class ScaleConfig:
    """The budget, orthogonal to the arm: every size and step count that an arm must not name."""

    name: str = key(IDENTITY)
    vocab_size: int = count()
    model: ScaleModelConfig = field(default_factory=ScaleModelConfig)
    size_base: ScaleSizeConfig = field(default_factory=ScaleSizeConfig)
    pretrain: ScalePretrainConfig = field(default_factory=ScalePretrainConfig)
    finetune: ScaleFinetuneConfig = field(default_factory=ScaleFinetuneConfig)


@dataclass
class ModelConfig:
    """Encoder shape, in Hugging Face's spelling; the vocabulary size comes from the prepared corpus."""

    hidden_size: int = MISSING
    num_hidden_layers: int = MISSING
    num_attention_heads: int = MISSING
    intermediate_size: int = MISSING
    hidden_act: str = MISSING
    hidden_dropout_prob: float = MISSING
    attention_probs_dropout_prob: float = MISSING
    max_position_embeddings: int = MISSING
    type_vocab_size: int = MISSING
    initializer_range: float = MISSING
    layer_norm_eps: float = MISSING
    position_embedding_init: str = MISSING
    embedding_size: int | None = MISSING
    """None: the hidden size."""
    num_hidden_groups: int | None = MISSING
    """Sets of weights that the layers share; None: each has its own."""


@dataclass
class ArchitectureConfig:
    """What an encoder is made of: parts, each a node with `_target_` (models/config.py)."""

    model_type: str = MISSING
    """The family whose names a saved encoder has: a file of models/families."""
    positions: dict[str, Any] = MISSING
    block: dict[str, Any] = MISSING
    attention: dict[str, Any] = MISSING
    pooler: dict[str, Any] | None = MISSING
    projects_embeddings: bool = MISSING


@dataclass
class SizeConfig:
    """An encoder's size as ratios ("4/3") of the scale's `size_base`; read by model=ratio alone."""

    depth: str = MISSING
    width: str = MISSING
    heads: str = MISSING
    """Of the heads that keep the base's head size at this width."""


@dataclass
class SourceConfig:
    name: str = MISSING
    path: str = MISSING
    """A file, a folder or a glob; relative paths start at data_dir."""
    format: str = key(default="auto", choices=("auto", "text", "jsonl"))
    text_field: str = "text"


@dataclass
class CorpusConfig:
    name: str = MISSING
    sources: list[SourceConfig] = MISSING
    generator: dict[str, Any] | None = None
    """A node with `_target_` that writes the sources' files below data_dir first (embedded corpora)."""
    validation_fraction: float = key(above=0, below=1)


@dataclass
class TokenizerConfig:
    """How text becomes ids (corpus/tokenizers.py)."""

    kind: str = key(choices=("wordpiece", "byte_bpe"))
    vocab_size: int = count()
    lowercase: bool = MISSING
    vocab_file: str | None = None
    add_prefix_space: bool | None = None


@dataclass
class TrainerConfig:
    accelerator: str = key(LAYOUT, choices=("auto", "cpu", "gpu", "tpu"))
    devices: int = count(LAYOUT)
    """Of one node."""
    num_nodes: int = count(LAYOUT)
    strategy: str = key(LAYOUT, choices=("auto", "ddp", "fsdp", "xla"))
    precision: str = key(choices=("auto", "bf16-mixed", "bf16-true", "32-true"))
    """auto: bf16 where the processor multiplies it natively, else fp32."""
    threads: int | None = count(NEUTRAL)
    """Intra-op CPU threads of one process; None: what the machine or the launcher gives."""
    num_workers: int = key(NEUTRAL, least=0)
    log_interval_steps: int = count(NEUTRAL)
    progress_bar: bool = key(NEUTRAL)
    compile: str = key(LAYOUT, choices=("auto", "true", "false"))
    """auto: in pre-training on a GPU, and on a CPU where a calibration found that it pays."""
    calibrate: bool = key(LAYOUT)
    """Pre-training on one CPU process: time the kernels that compete before training, and keep the winners."""
    deterministic: bool = key(LAYOUT)
    """Only algorithms whose bits do not depend on timing, on a GPU too; never calibrates."""
    tf32: bool = MISSING
    """fp32 matrix products on a GPU may round their factors to 10 bits."""
    gradient_checkpointing: bool = key(NEUTRAL)
    """Pre-training: compute activations twice instead of keeping them; less memory, a third more work."""
    micro_batch: str = key(NEUTRAL, choices=("as_configured", "auto"))
    """Pre-training, auto: halve phases.*.micro_batch_size until a step fits on the device. What was chosen is in the
    record, and a resumed run keeps it."""


@dataclass
class StageConfig:
    """What every training stage has."""

    experiment: str = key(IDENTITY)
    seed: int = key(IDENTITY, least=0)
    data_dir: str = key(NEUTRAL)
    cache_dir: str = key(NEUTRAL)
    runs_dir: str = key(NEUTRAL)
    run_dir: str = key(NEUTRAL)
    scale: ScaleConfig = field(default_factory=ScaleConfig, metadata={"rule": Rule(NEUTRAL)})
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    logger: dict[str, Any] | None = key(NEUTRAL, default=None)


@dataclass
class PrepareConfig:
    data_dir: str = MISSING
    cache_dir: str = MISSING
    runs_dir: str = MISSING
    """Only a sweep's logs lie there; here so that one list of paths suits every stage."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


@dataclass
class ObjectiveConfig:
    """A composition: how rows are laid out, what is predicted per token, what per pair."""

    input: dict[str, Any] = MISSING
    token: dict[str, Any] = MISSING
    pair: dict[str, Any] | None = None
    dupe_factor: int | None = MISSING
    """Static masking: each instance repeats after this many epochs; None: every epoch is new."""


@dataclass
class ValidationConfig:
    interval_steps: int = count()
    """Beyond the last step: validate once, at the end."""
    instances: int = count()
    seq_length: int = count()


@dataclass
class PretrainConfig(StageConfig):
    arm: str = key(IDENTITY)
    encoder: str | None = key(NEUTRAL)
    """A folder to go on from, instead of fresh weights; its shape counts, and what it holds is among the inputs."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    architecture: ArchitectureConfig = field(default_factory=ArchitectureConfig)
    size: SizeConfig = field(default_factory=SizeConfig, metadata={"rule": Rule(NEUTRAL)})
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    steps_factor: float = key(NEUTRAL, above=0, below=math.inf)
    """Times the steps of every phase of the scale: how an arm trains for longer or shorter than others."""
    phases: list[PhaseConfig] = MISSING
    position_growth: str = key(choices=("none", "tile"))
    """What the positions that a longer phase adds start as: their initialisation, or copies of trained ones."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint_interval_steps: int = count(NEUTRAL)
    gradient_clip_norm: float = key(least=0)
    """0: gradients are not cut."""
    keep_encoders: list[float] = key(NEUTRAL, above=0, below=1)
    """Fractions of the steps after which the encoder is kept as well, in encoders/step-N."""
    needs_kept_encoders: bool = key(NEUTRAL)
    """A run without them is of no use here: it is neither shared nor taken for complete."""
    share_runs: bool = key(NEUTRAL)
    """Take an equal, complete run of another experiment instead of training again."""


@dataclass
class TaskAlwaysConfig:
    """What a task wants whatever the scale's fine-tuning recipe is; None: the scale's, the row's."""

    head: str | None = None
    learning_rate: float | None = None
    epochs: float | None = None
    global_batch_size: int | None = None


@dataclass
class TaskConfig:
    """One downstream task: a YAML, never a class."""

    name: str = key(IDENTITY)
    title: str = key(NEUTRAL)
    stand_in_for: str | None = None
    """Name of the benchmark this data set stands in for; shown in every table, never beside the paper's number."""
    metric: str = MISSING
    """The key that selects the best checkpoint and stands in the table, e.g. validation/accuracy."""
    hub: dict[str, Any] | None = key(Meaning(option="hub"), default=None)
    """Where the `datasets` library finds the same data (data/readers/hub.py); read only with hub=true."""
    module: dict[str, Any] = MISSING
    data: dict[str, Any] = key(
        parts={
            "how_to_get": NEUTRAL,
            "evaluation_tokens": LAYOUT,
            "test_files": Meaning(option="predict_test"),
            "test_id_column": Meaning(option="predict_test"),
        }
    )
    learning_rate: float = MISSING
    epochs: float = MISSING
    global_batch_size: int = MISSING
    always: TaskAlwaysConfig = field(default_factory=TaskAlwaysConfig, metadata={"rule": Rule(NEUTRAL)})


@dataclass
class FinetuneConfig(StageConfig):
    row: str = key(IDENTITY)
    """Row of the experiment's table: an encoder and a head."""
    encoder: str | None = key(NEUTRAL)
    """Folder in the Hugging Face layout; what it holds is among the inputs."""
    encoder_arm: str | None = key(IDENTITY)
    encoder_fraction: float = key(above=0, most=1)
    """After which fraction of its steps the arm's encoder is taken; below 1 it has to have been kept."""
    pretrain_seed: int = key(IDENTITY, least=0)
    initialisation: str = key(choices=("pretrained", "random"))
    """random: the no-pre-training floor, of the same shape and vocabulary, with fresh weights."""
    head: str = MISSING
    """linear | bilstm."""
    task: TaskConfig = field(default_factory=TaskConfig)
    learning_rate: float = key(IDENTITY, above=0)
    epochs: float = key(above=0)
    global_batch_size: int = count()
    max_train_examples: int | None = count()
    """None: all."""
    evaluations_per_epoch: int = count()
    gradient_clip_norm: float = key(least=0)
    save_model: bool = MISSING
    """Also write the fine-tuned model, in the Hugging Face layout."""
    hub: bool = MISSING
    """Take the task's files from the Hugging Face hub instead of data_dir."""
    predict_test: bool = MISSING
    """Also predict the task's test files, as `clozelab submit` wants them."""


SCHEMAS: dict[str, type] = {
    "prepare_schema": PrepareConfig,
    "pretrain_schema": PretrainConfig,
    "finetune_schema": FinetuneConfig,
}


@cache
def meanings() -> dict[str, Meaning]:
    """Dotted key (with `*` for a list's places) -> what it means for a run.

    A key that is not here means what the nearest key above it does; where none is, it is part of the protocol.
    """
    found = {"hydra": NEUTRAL}
    for schema in SCHEMAS.values():
        for name, rule in _rules(schema):
            found |= {} if rule.meaning == PROTOCOL else {name: rule.meaning}
            found |= {f"{name}.{part}": meaning for part, meaning in rule.parts.items()}
    return found


@cache
def meaning_of(name: str) -> Meaning:
    """What a dotted key means for a run: its own meaning, or that of the nearest key above it."""
    for end in reversed(_ends(name)):
        for pattern, meaning in meanings().items():
            if fnmatchcase(name[:end], pattern) and pattern.count(".") == name[:end].count("."):
                return meaning
    return PROTOCOL


def _ends(name: str) -> list[int]:
    """Where the keys above a dotted key end, and it itself."""
    return [at for at, letter in enumerate(name) if letter == "."] + [len(name)]


def _rules(schema: type, where: str = "", *, named_alone: bool = False) -> Iterator[tuple[str, Rule]]:
    """Every dotted key of a dataclass with its rule, parents first.

    Below a neutral part only what a run is named by has one: the other values are judged where they are used.
    """
    types = get_type_hints(schema)
    for one in fields(schema):
        name, rule = f"{where}{one.name}", one.metadata.get("rule", Rule())
        if named_alone and rule.meaning != IDENTITY:
            continue
        yield name, rule
        parts = [(types[one.name], f"{name}."), *((part, f"{name}.*.") for part in get_args(types[one.name]))]
        for part, below in parts:
            if is_dataclass(part) and isinstance(part, type):
                yield from _rules(part, below, named_alone=rule.meaning == NEUTRAL)


@cache
def _rules_of(stage: str) -> dict[str, Rule]:
    """The rules of a stage that say more than a meaning."""
    found = dict(_rules(SCHEMAS[f"{stage}_schema"]))
    return {name: rule for name, rule in found.items() if rule != Rule(rule.meaning, parts=rule.parts)}


def check_config(stage: str, config: DictConfig) -> None:
    """Refuse what a stage's schema does not allow, in one sentence a mistake.

    Args:
        config: a composed configuration; `${...}` is resolved, and a value that has to be given may still be missing.

    Raises:
        ValueError: names each key, its value, what is allowed and the nearest of it.
    """
    rules = _rules_of(stage)
    said: Any = OmegaConf.to_container(config, resolve=False)
    if unknown := [*_unknown(SCHEMAS[f"{stage}_schema"], said)]:
        raise ValueError("\n".join(unknown))
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException:  # a resolver's refusal, perhaps of what is wrong where it stands
        if not [*_mistakes(rules, said)]:
            raise
        plain = said
    if mistakes := [*_mistakes(rules, plain)]:
        raise ValueError("\n".join(mistakes))


def _unknown(schema: type, node: Any, where: str = "") -> Iterator[str]:
    """What Hydra lets past its own check as `+key=value`."""
    if not isinstance(node, Mapping):
        return
    types = get_type_hints(schema)
    for name, value in node.items():
        if name not in types:
            yield f"{where}{name}: there is no such key; {hint(str(name), types)}"
        elif is_dataclass(types[name]):
            yield from _unknown(types[name], value, f"{where}{name}.")


def _mistakes(rules: Mapping[str, Rule], config: Mapping[str, Any]) -> Iterator[str]:
    for name, rule in rules.items():
        for place, value in _values(config, name.split(".")):
            # YAML's `false` reads 'False' in a field that holds text.
            value = {"True": "true", "False": "false"}.get(value, value) if isinstance(value, str) else value
            if isinstance(value, str) and rule.choices and value not in rule.choices and "${" not in value:
                near = nearest(value, rule.choices)
                meant = f"; did you mean {near!r}?" if near else ""
                yield f"{place} is {value!r}: choose one of {', '.join(rule.choices)}{meant}"
            elif isinstance(value, int | float) and not _fits(value, rule):
                yield f"{place} is {value}: it must be {_range(rule)}"


def _values(node: Any, parts: Sequence[str], where: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of what lies at a pattern, every place of a list; nothing for what is missing."""
    if isinstance(node, list) and (not parts or parts[0] == "*"):
        for place, value in enumerate(node):
            yield from _values(value, parts[1:], f"{where}.{place}")
    elif not parts:
        yield where, None if node == MISSING else node
    elif isinstance(node, Mapping) and parts[0] in node:
        yield from _values(node[parts[0]], parts[1:], f"{where}.{parts[0]}" if where else parts[0])


def _fits(value: float, rule: Rule) -> bool:
    return (
        (rule.least is None or value >= rule.least)
        and (rule.above is None or value > rule.above)
        and (rule.below is None or value < rule.below)
        and (rule.most is None or value <= rule.most)
    )


def _range(rule: Rule) -> str:
    limits = {"at least": rule.least, "above": rule.above, "below": rule.below, "at most": rule.most}
    return " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit not in (None, math.inf))


def register() -> None:
    """Make the root schemas and the resolvers known to Hydra; calling it twice is harmless."""
    from hydra.core.config_store import ConfigStore  # lazy: the schema alone does not need Hydra

    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=name, node=schema, provider="clozelab")
    for resolver in RESOLVERS:
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
