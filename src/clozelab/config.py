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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from clozelab.suggestions import CONF_DIR as CONF_DIR
from clozelab.suggestions import EXPERIMENTS_DIR as EXPERIMENTS_DIR
from clozelab.suggestions import nearest


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

    Raises:
        ValueError: the factor is not above 0.
    """
    if not 0.0 < float(factor) < math.inf:
        raise ValueError(f"steps_factor is {factor}: it is a number above 0 (0.5 for half of the scale's steps)")
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
        found = json.loads((Path(run_dir) / "run.json").read_text(encoding="utf-8"))["config_resolved"]["phases"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, list) else None


def at_least(least: float, value: float) -> float:
    """`${at_least:4,${scale.model.num_hidden_layers}}`: the value, or the least where it is below."""
    return max(least, value)


RESOLVERS: tuple[Callable[..., Any], ...] = (fallback, at_least, scaled, scaled_phases, encoder_place)
"""Known to configurations by their own names (config.register)."""


@dataclass
class PhaseConfig:
    """One stretch of pre-training at one sequence length."""

    seq_length: int = MISSING
    steps: int = MISSING
    global_batch_size: int = MISSING
    """Sequences per optimizer step, over all devices."""
    micro_batch_size: int = MISSING
    """Sequences per forward and device."""


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
    keep_encoders: list[float] = MISSING
    """Fractions of the steps after which experiments about the course of training keep the encoder."""
    seeds: str = MISSING
    """Comma-separated, as a Hydra sweep wants them."""


@dataclass
class ScaleFinetuneConfig:
    learning_rate: float | None = MISSING
    """None, as for epochs and global_batch_size: each task keeps its own (the paper's)."""
    epochs: float | None = MISSING
    global_batch_size: int | None = MISSING
    max_train_examples: int | None = MISSING
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

    name: str = MISSING
    vocab_size: int = MISSING
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
    format: str = "auto"
    """auto | text | jsonl."""
    text_field: str = "text"


@dataclass
class CorpusConfig:
    name: str = MISSING
    sources: list[SourceConfig] = MISSING
    generator: dict[str, Any] | None = None
    """A node with `_target_` that writes the sources' files below data_dir first (embedded corpora)."""
    vocab_file: str | None = None
    vocab_size: int = MISSING
    lowercase: bool = MISSING
    validation_fraction: float = MISSING


@dataclass
class TrainerConfig:
    accelerator: str = MISSING
    devices: int = MISSING
    num_nodes: int = MISSING
    strategy: str = MISSING
    """auto | ddp | fsdp | xla."""
    precision: str = MISSING
    """auto (bf16 where the processor multiplies it natively, else fp32) | bf16-mixed | bf16-true | 32-true."""
    threads: int | None = MISSING
    """Intra-op CPU threads of one process; None: what the machine or the launcher gives."""
    num_workers: int = MISSING
    log_interval_steps: int = MISSING
    progress_bar: bool = MISSING
    compile: str = MISSING
    """auto (in pre-training: on a GPU, and on a CPU where a calibration found that it pays) | true | false."""
    calibrate: bool = MISSING
    """Pre-training on one CPU process: time the kernels that compete before training, and keep the winners."""
    deterministic: bool = MISSING
    """Only algorithms whose bits do not depend on timing, on a GPU too; never calibrates."""
    tf32: bool = MISSING
    """fp32 matrix products on a GPU may round their factors to 10 bits."""
    gradient_checkpointing: bool = MISSING
    """Pre-training: compute activations twice instead of keeping them; less memory, a third more work."""
    micro_batch: str = MISSING
    """Pre-training: as_configured | auto (halve phases.*.micro_batch_size until a step fits on the device)."""


@dataclass
class StageConfig:
    """What every training stage has."""

    experiment: str = MISSING
    seed: int = MISSING
    data_dir: str = MISSING
    cache_dir: str = MISSING
    runs_dir: str = MISSING
    run_dir: str = MISSING
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    optimizer: dict[str, Any] = MISSING
    schedule: dict[str, Any] = MISSING
    logger: dict[str, Any] | None = None


@dataclass
class PrepareConfig:
    data_dir: str = MISSING
    cache_dir: str = MISSING
    runs_dir: str = MISSING
    """Only a sweep's logs lie there; here so that one list of paths suits every stage."""
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)


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
    interval_steps: int = MISSING
    instances: int = MISSING
    seq_length: int = MISSING


@dataclass
class PretrainConfig(StageConfig):
    arm: str = MISSING
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    size: SizeConfig = field(default_factory=SizeConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    steps_factor: float = MISSING
    """Times the steps of every phase of the scale: how an arm trains for longer or shorter than others."""
    phases: list[PhaseConfig] = MISSING
    position_growth: str = MISSING
    """What the positions that a longer phase adds start as: none (their initialisation) | tile (copies)."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint_interval_steps: int = MISSING
    gradient_clip_norm: float = MISSING
    keep_encoders: list[float] = MISSING
    """Fractions of the steps after which the encoder is kept as well, in encoders/step-N."""
    needs_kept_encoders: bool = MISSING
    """A run without them is of no use here: it is neither shared nor taken for complete."""
    share_runs: bool = MISSING
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

    name: str = MISSING
    title: str = MISSING
    stand_in_for: str | None = None
    """Name of the benchmark this data set stands in for; shown in every table, never beside the paper's number."""
    metric: str = MISSING
    """The key that selects the best checkpoint and stands in the table, e.g. validation/accuracy."""
    hub: dict[str, Any] | None = None
    """Where the `datasets` library finds the same data (data/readers/hub.py); read only with hub=true."""
    module: dict[str, Any] = MISSING
    data: dict[str, Any] = MISSING
    learning_rate: float = MISSING
    epochs: float = MISSING
    global_batch_size: int = MISSING
    always: TaskAlwaysConfig = field(default_factory=TaskAlwaysConfig)


@dataclass
class FinetuneConfig(StageConfig):
    row: str = MISSING
    """Row of the experiment's table: an encoder and a head."""
    encoder: str | None = MISSING
    """Folder in the Hugging Face layout."""
    encoder_arm: str | None = MISSING
    encoder_fraction: float = MISSING
    """After which fraction of its steps the arm's encoder is taken; below 1 it has to have been kept."""
    pretrain_seed: int = MISSING
    initialisation: str = MISSING
    """pretrained | random (the no-pre-training floor: same shape and vocabulary, fresh weights)."""
    head: str = MISSING
    """linear | bilstm."""
    task: TaskConfig = field(default_factory=TaskConfig)
    learning_rate: float = MISSING
    epochs: float = MISSING
    global_batch_size: int = MISSING
    max_train_examples: int | None = MISSING
    evaluations_per_epoch: int = MISSING
    gradient_clip_norm: float = MISSING
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


def check_schema(stage: str, config: DictConfig) -> None:
    """Refuse keys that a stage does not have; Hydra lets `+key=value` past its own check.

    Raises:
        ValueError: names the key.
    """
    plain = OmegaConf.create(OmegaConf.to_container(config, resolve=False))
    try:
        OmegaConf.merge(OmegaConf.structured(SCHEMAS[f"{stage}_schema"]), plain)
    except OmegaConfBaseException as error:
        message = str(error).split("\n", 1)[0]
        hint = _nearest(stage, str(error.full_key))
        raise ValueError(f"{error.full_key}: {message}{hint} (see `clozelab {stage} --cfg job`)") from error


def _nearest(stage: str, key: str) -> str:
    parent, _, last = key.rpartition(".")
    structured = OmegaConf.structured(SCHEMAS[f"{stage}_schema"])
    node = OmegaConf.select(structured, parent) if parent else structured
    near = nearest(last, map(str, node)) if isinstance(node, DictConfig) else None
    return f"; did you mean {near!r}?" if near not in (None, last) else ""


def register() -> None:
    """Make the root schemas and the resolvers known to Hydra; calling it twice is harmless."""
    from hydra.core.config_store import ConfigStore  # lazy: the schema alone does not need Hydra

    store = ConfigStore.instance()
    for name, schema in SCHEMAS.items():
        store.store(name=name, node=schema, provider="clozelab")
    for resolver in RESOLVERS:
        OmegaConf.register_new_resolver(resolver.__name__, resolver, replace=True)
