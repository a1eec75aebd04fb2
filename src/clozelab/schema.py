"""The schema of every stage's configuration: names, types, ranges, and what a key means for a run.

A root dataclass per stage refuses a misspelt key wherever it stands. Values live in `conf/`, so
nearly every field is MISSING here. A free-form node carries a `_target_`, which `check_targets`
looks at. Hydra reads the types, pydantic their ranges (config.py), and makes of them
the objects that the stages get.

Two annotations say what a key means for runs that lie in folders:

- `Meaning`: whether two runs that differ in the key are two experiments. Without one they are.
- `Added(was=VALUE)`: what the key was before it existed. A run with this value is then the same
  run as an older one whose record lacks the key (docs/decisions/0021). Every new key that counts
  needs one, or all older run folders belong to another configuration.

Both may also stand in a dictionary that annotates a free-form node, for arguments of its target:
`Annotated[dict[str, Any], {"how_to_get": NEUTRAL, "window": Added(was=None)}]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, is_dataclass
from functools import cache
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from omegaconf import MISSING
from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)")
"""DAYS-HOURS:MINUTES:SECONDS; days may be left out."""


def seconds_of(time_limit: str | None) -> float:
    """Return the seconds of a time limit as Slurm writes it; infinity for None.

    ValueError for any other text.
    """
    if time_limit is None:
        return math.inf
    match = TIME_LIMIT.fullmatch(time_limit)
    if match is None:
        raise ValueError("write it as '02:30:00', with days as '1-02:30:00'")
    days, hours, minutes, seconds = (int(number) for number in match.groups(default="0"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def time_limit(text: str | None) -> str | None:
    """Return a time limit as it is; ValueError where it is none."""
    seconds_of(text)
    return text


class Meaning(NamedTuple):
    """What a difference in a key means for two runs; with `option`, only while that key is set.

    Of several options, with a blank between, one is enough.
    """

    kind: str
    """protocol: another experiment; so is a key that says nothing. neutral: no other result.
    identity: what a run is found by, written down as it is. layout: the same work laid out
    otherwise on a machine, with other rounding and other draws of dropout; in no fingerprint: a run
    may go on in another one, and two runs may be compared."""
    option: str = ""


PROTOCOL = Meaning("protocol")
LAYOUT = Meaning("layout")
NEUTRAL = Meaning("neutral")
IDENTITY = Meaning("identity")


class Added(NamedTuple):
    """What a key was before it existed: the value with which the code does what it did then.

    `was` is None, a boolean, a number or a text. A whole part that may be None is added with None.
    """

    was: bool | int | float | str | None


NO_VALUE = "no_value"
"""The type of pydantic's error for a key that has to be given."""


def one_of(*choices: str) -> AfterValidator:
    """Refuse any other text."""

    def check(value: str) -> str:
        # YAML's `false` reads 'False' in a field that holds text.
        if {"True": "true", "False": "false"}.get(value, value) not in choices:
            raise PydanticCustomError("one_of", "no choice", {"choices": choices})
        return value

    return AfterValidator(check)


def paths(value: object, source: ValidationInfo) -> object:
    """Return a source's path, a text or a list of such; ValueError for anything else.

    Only a data set of the hub has none.
    """
    dataset = source.data.get("dataset")
    if value is None and dataset is None:
        raise PydanticCustomError(NO_VALUE, "no value")
    if value is not None and dataset is not None:
        raise ValueError(f"its dataset is {dataset}: a source has either of them")
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return [str(path) for path in value]
    if isinstance(value, int | float):  # a folder that is called 2024
        return str(value)
    raise ValueError("write a file, a folder, a glob, a URL, or a list of such")


def nothing_empty(value: object) -> object:
    """Refuse an empty list or mapping at any depth: the fingerprint of a run would not show it."""
    if isinstance(value, list | dict):
        if not value:
            raise ValueError("leave an empty list or mapping out, or write null in its place")
        for child in value.values() if isinstance(value, dict) else value:
            nothing_empty(child)
    return value


Component = dict[str, Any]
"""A free-form node: `_target_`, and the arguments of what it names."""
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]


class Frozen:
    """A value is given once, when the configuration is made.

    A dataclass of `frozen=True` would be read-only for Hydra, too, which has to compose it.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__dict__:
            raise FrozenInstanceError(f"{type(self).__name__}.{name} is set already")
        super().__setattr__(name, value)


@dataclass
class PhaseConfig(Frozen):
    """One stretch of pre-training at one sequence length."""

    seq_length: Count = MISSING
    steps: Count = MISSING
    global_batch_size: Count = MISSING  # sequences per optimizer step, over all devices
    micro_batch_size: Annotated[Count, LAYOUT] = MISSING  # sequences per forward and device
    # None: the run's; the name of another one in conf/objective; or settings in which it differs
    # from the run's
    objective: Any = None
    # name of each source of the corpus -> share of the tokens that is read of it, in proportion;
    # None: the weights of corpus.sources. (A typed mapping that may be None takes no override.)
    source_weights: Annotated[Any, Added(was=None), AfterValidator(nothing_empty)] = None


@dataclass
class ScaleSizeConfig(Frozen):
    """The middle size where sizes are compared: depth a multiple of 4, heads of 12, width of 3."""

    num_hidden_layers: int = MISSING
    hidden_size: int = MISSING
    num_attention_heads: int = MISSING


@dataclass
class ScaleModelConfig(ScaleSizeConfig):
    """An encoder's size at a scale, and what goes with it."""

    intermediate_size: int = MISSING
    hidden_dropout_prob: float = MISSING
    attention_probs_dropout_prob: float = MISSING
    initializer_range: float = MISSING
    position_embedding_init: str = MISSING


@dataclass
class ModelConfig(ScaleModelConfig):
    """An encoder's shape, in Hugging Face's spelling.

    The vocabulary size comes from the prepared corpus.
    """

    hidden_act: str = MISSING
    max_position_embeddings: int = MISSING
    type_vocab_size: int = MISSING
    layer_norm_eps: float = MISSING
    embedding_size: int | None = MISSING  # None: the hidden size
    # sets of weights that the layers share; None: each has its own
    num_hidden_groups: int | None = MISSING


@dataclass
class ScalePretrainConfig(Frozen):
    """The budget of pre-training, and the recipe that suits it."""

    phases: list[PhaseConfig] = MISSING
    position_growth: str = MISSING
    learning_rate: float = MISSING
    warmup_fraction: float = MISSING
    adam_betas: list[float] = MISSING
    matrix_learning_rate: float | None = MISSING
    validation_interval_steps: int = MISSING
    validation_instances: int = MISSING
    validation_seq_length: int = MISSING
    checkpoint_interval_steps: int = MISSING
    fidelity: Annotated[str, one_of("released", "paper", "ours")] = MISSING
    # of fidelity=ours: where a random second segment comes from, the whole corpus or the first
    # one's own source
    negative_scope: Annotated[str, one_of("corpus", "source")] = MISSING
    # fractions of the steps after which experiments about the course of training keep the encoder
    keep_encoders: list[float] = MISSING
    seeds: str = MISSING  # comma-separated, as a Hydra sweep wants them


@dataclass
class ScaleFinetuneConfig(Frozen):
    """The budget of fine-tuning, and which tasks there are at a scale."""

    # None, as for epochs and global_batch_size: each task keeps its own (the paper's)
    learning_rate: float | None = MISSING
    epochs: float | None = MISSING
    global_batch_size: int | None = MISSING
    max_train_examples: int | None = MISSING
    evaluations_per_epoch: int = MISSING
    seeds: str = MISSING
    tasks: str = MISSING  # comma-separated: the tasks an experiment is judged on at this scale
    glue_tasks: str = MISSING  # what the experiment on the whole benchmark uses at this scale
    # benchmark -> the task that is it, or stands in for it, at this scale:
    # `${scale.finetune.benchmarks.mnli}`
    benchmarks: dict[str, str] = MISSING


@dataclass
class ScaleConfig(Frozen):
    """The budget, orthogonal to the arm: sizes and step counts that no arm may name.

    Its values are judged where they are used.
    """

    name: Annotated[str, IDENTITY] = MISSING
    vocab_size: int = MISSING
    model: ScaleModelConfig = field(default_factory=ScaleModelConfig)
    size_base: ScaleSizeConfig = field(default_factory=ScaleSizeConfig)
    pretrain: ScalePretrainConfig = field(default_factory=ScalePretrainConfig)
    finetune: ScaleFinetuneConfig = field(default_factory=ScaleFinetuneConfig)
    # measure -> what stands in for it here; '': nothing
    measures: dict[str, str] = field(default_factory=dict)


@dataclass
class ArchitectureConfig(Frozen):
    """What an encoder is made of: parts, each a node with `_target_` (models/config.py)."""

    # the family whose names a saved encoder has: a file of models/families
    model_type: str = MISSING
    positions: Component = MISSING
    block: Component = MISSING
    attention: Component = MISSING
    pooler: Component | None = MISSING
    projects_embeddings: bool = MISSING
    norm: Annotated[
        Component,
        {"_target_": Added(was="clozelab.models.encoder.LayerNorm"), "bias": Added(was=True)},
    ] = MISSING
    use_bias: Annotated[bool, Added(was=True)] = MISSING
    num_directions: Annotated[int, Added(was=1)] = MISSING


@dataclass
class SizeConfig(Frozen):
    """An encoder's size as ratios ("4/3") of the scale's `size_base`; read by model=ratio alone."""

    depth: str = MISSING
    width: str = MISSING
    heads: str = MISSING  # of those that keep the base's head size at this width


@dataclass
class SourceConfig(Frozen):
    """One part of a corpus: files of text, or a split of a data set of the Hugging Face hub."""

    name: str = MISSING
    format: Annotated[
        str, one_of("auto", "text", "book", "jsonl", "csv", "tsv", "parquet", "arrow")
    ] = "auto"
    text_field: str = "text"  # of jsonl a field, of a table a column
    # instead of a path: a name on the hub, which is asked with corpus.hub=true alone
    dataset: Annotated[str | None, Added(was=None)] = None
    config: Annotated[str | None, Added(was=None)] = None  # one of its configurations
    split: Annotated[str, Added(was="train")] = "train"
    revision: Annotated[str | None, Added(was=None)] = None  # a commit of 40 hex digits
    # a file, a folder, a glob, a URL, or a list of such; relative paths start at data_dir
    path: Annotated[Any, AfterValidator(paths)] = None
    # share of the tokens that training reads of it, in proportion to the other sources' weights;
    # None for all: in proportion to their sizes
    weight: Annotated[float | None, Added(was=None)] = None


@dataclass
class CorpusConfig(Frozen):
    """A text to pre-train on."""

    name: str = MISSING
    sources: list[SourceConfig] = MISSING
    # source, licence, size and revision, for people
    about: Annotated[dict[str, Any], NEUTRAL] = field(default_factory=dict)
    # the files, for a message where there are none
    how_to_get: Annotated[str | None, NEUTRAL] = None
    # a node with `_target_` that writes the sources' files below data_dir first (embedded corpora)
    generator: Component | None = None
    # of each source's text, held out in stretches of some 16,000 characters; a shorter document is
    # one stretch
    validation_fraction: Share = MISSING
    # what becomes of documents before they are tokenised, in order: names of steps (corpus/steps),
    # or {NAME: its settings}
    steps: Annotated[list[Any], {"0": Added(was="clean")}, AfterValidator(nothing_empty)] = field(
        default_factory=lambda: ["clean"]
    )
    # whether a source's data set may be asked of the Hugging Face hub
    hub: Annotated[bool, NEUTRAL] = False
    # processes that prepare it; None: as many as this process may use cores
    workers: Annotated[Count | None, NEUTRAL] = None
    # datatrove's instead, as {NAME: its settings}, see corpus/preparation/pipelines.py
    # (A typed mapping takes no new key from a command line.)
    executor: Annotated[Any, NEUTRAL] = None


@dataclass
class TokenizerConfig(Frozen):
    """How text becomes ids (corpus/tokenizer_settings.py)."""

    kind: Annotated[
        str,
        one_of(
            "wordpiece",
            "wordpiece_roberta",
            "byte_bpe",
            "unigram",
            "characters",
            "bytes",
            "whitespace",
        ),
    ] = MISSING
    vocab_size: Count = MISSING
    lowercase: bool = MISSING
    vocab_file: str | None = None
    add_prefix_space: bool | None = None
    # of the text that a vocabulary is learnt from; None: all of it
    sample_characters: Annotated[Count | None, Added(was=64_000_000)] = 64_000_000


@dataclass
class TrainerConfig(Frozen):
    """On which devices a training runs, how exactly, and what ends it."""

    accelerator: Annotated[str, one_of("auto", "cpu", "gpu", "mps", "tpu"), LAYOUT] = MISSING
    devices: Annotated[Count, LAYOUT] = MISSING  # of one node
    num_nodes: Annotated[Count, LAYOUT] = MISSING
    strategy: Annotated[str, one_of("auto", "ddp", "fsdp", "xla"), LAYOUT] = MISSING
    precision: Annotated[str, one_of("auto", "bf16-mixed", "bf16-true", "32-true")] = MISSING
    # intra-op CPU threads of one process; None: what the machine or the launcher gives
    threads: Annotated[Count | None, NEUTRAL] = MISSING
    num_workers: Annotated[int, Field(ge=0), NEUTRAL] = MISSING
    log_interval_steps: Annotated[Count, NEUTRAL] = MISSING
    progress_bar: Annotated[bool, NEUTRAL] = MISSING
    # auto: in pre-training on a GPU; whole: all layers in one, and the loss
    compile: Annotated[str, one_of("auto", "true", "false", "whole"), LAYOUT] = MISSING
    # pre-training: steps are replayed as CUDA graphs. auto: on one CUDA device, where they can be
    cuda_graphs: Annotated[str, one_of("auto", "on", "off"), LAYOUT, Added(was="off")] = MISSING
    # only algorithms whose bits do not depend on timing, on a GPU too
    deterministic: Annotated[bool, LAYOUT] = MISSING
    tf32: bool = MISSING  # fp32 matrix products on a GPU may round their factors to 10 bits
    # pre-training: compute activations twice instead of keeping them; less memory, a third more
    # work
    gradient_checkpointing: Annotated[bool, NEUTRAL] = MISSING
    # pre-training, auto: halve phases.*.micro_batch_size until a step fits; the choice is recorded
    # and kept
    micro_batch: Annotated[str, one_of("as_configured", "auto"), NEUTRAL] = MISSING
    # nothing moved: a training ends with its stacks
    hang_seconds: Annotated[Positive | None, NEUTRAL] = MISSING
    # nothing moved after a signal: it ends unsaved
    grace_seconds: Annotated[Positive | None, NEUTRAL] = MISSING
    max_time: Annotated[str | None, AfterValidator(time_limit), NEUTRAL] = MISSING
    # further arguments of Lightning's Trainer
    lightning: Annotated[Component, Meaning("protocol", "trainer.lightning")] = MISSING


@dataclass
class StageConfig(Frozen):
    """What every stage has that makes runs."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    experiment: Annotated[str, IDENTITY] = MISSING
    seed: Annotated[int, Field(ge=0), IDENTITY] = MISSING
    data_dir: Annotated[str, NEUTRAL] = MISSING
    cache_dir: Annotated[str, NEUTRAL] = MISSING
    runs_dir: Annotated[str, NEUTRAL] = MISSING
    run_dir: Annotated[str, NEUTRAL] = MISSING
    scale: Annotated[ScaleConfig, NEUTRAL] = field(default_factory=ScaleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    # of [UNK] in a text; more is refused
    max_unknown_share: Annotated[float, Field(ge=0, le=1), NEUTRAL] = MISSING
    logger: Annotated[Component | None, NEUTRAL] = None
    # of the run that the folder holds. any: it is taken, with a warning where other code has made
    # it. never: it is removed and trained anew.
    reuse: Annotated[str, one_of("any", "never"), NEUTRAL] = MISSING


@dataclass
class TrainingConfig(StageConfig):
    """What every stage has that trains."""

    optimizer: Annotated[
        Component,
        {
            "groups": Added(was=None),
            "layer_decay": Added(was=None),
            "layer_decay_rule": Added(was="electra"),
        },
    ] = MISSING
    schedule: Component = MISSING
    # what is trained of a given encoder, or added to it (models/adaptation.py); None: all of it
    adaptation: Annotated[Component | None, Added(was=None)] = None
    # of adaptation=full, what is not trained: embeddings, 3, 0-3, all but 2, or a list of such
    freeze: Annotated[Any, Added(was=None), AfterValidator(nothing_empty)] = None
    # name -> one of Lightning's
    callbacks: Annotated[Component | None, Meaning("protocol", "callbacks")] = None
    gradient_clip_norm: Annotated[float, Field(ge=0)] = MISSING  # 0: gradients are not cut
    # as SIGTERM would: the same command goes on
    stop_after_step: Annotated[Count | None, NEUTRAL] = MISSING


@dataclass
class EncoderStageConfig(StageConfig):
    """What every stage has that starts from an encoder."""

    row: Annotated[str, IDENTITY] = MISSING  # row of the experiment's table: an encoder and a head
    # folder in the Hugging Face layout; what it holds is among the inputs
    encoder: Annotated[str | None, NEUTRAL] = MISSING
    encoder_arm: Annotated[str | None, IDENTITY] = MISSING
    # after which fraction of its steps the arm's encoder is taken; below 1 it has to have been kept
    encoder_fraction: Annotated[float, Field(gt=0, le=1)] = MISSING
    pretrain_seed: Annotated[int, Field(ge=0), IDENTITY] = MISSING
    # random: the no-pre-training floor, of the same shape and vocabulary, with fresh weights
    initialisation: Annotated[str, one_of("pretrained", "random")] = MISSING
    # of sentence embeddings: what a text's vector is; auto: as the folder says, else the mean
    pooling: Annotated[str, one_of("auto", "mean", "cls"), NEUTRAL] = MISSING
    # of pairs. auto: as many as the encoder was trained with, by its folder
    # (tokenizer_config.json).
    token_types: Annotated[str, one_of("auto", "one", "two")] = MISSING


@dataclass
class PrepareConfig(Frozen):
    """The stage that prepares a corpus; it makes no run."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    data_dir: str = MISSING
    cache_dir: str = MISSING
    # only a sweep's logs lie there; here so that one list of paths suits every stage
    runs_dir: str = MISSING
    max_unknown_share: Annotated[float, Field(ge=0, le=1)] = MISSING
    # say what it would take, and prepare nothing; on a command line --dry-run
    dry_run: Annotated[bool, NEUTRAL] = False
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)


@dataclass
class ObjectiveConfig(Frozen):
    """A composition: how rows are laid out, what is predicted per token, what per pair."""

    input: Component = MISSING
    token: Annotated[
        Component,
        {
            "units": Added(was=None),
            "generator_depth": Added(was="1"),
            "embedding_sharing": Added(was="all"),
            # A teacher is known by what its folder holds, which is among the inputs.
            "teacher": NEUTRAL,
        },
    ] = MISSING
    pair: Component | None = None
    # static masking: the corpus is seen in so many ways before all repeats; None: every epoch is
    # new
    dupe_factor: Count | None = MISSING


@dataclass
class ValidationConfig(Frozen):
    """When pre-training looks at held-out text, and at how much of it."""

    interval_steps: Count = MISSING  # more than there are: validate once, at the end
    instances: Count = MISSING
    seq_length: Count = MISSING


@dataclass
class PretrainConfig(TrainingConfig):
    """The stage that pre-trains an encoder."""

    arm: Annotated[str, IDENTITY] = MISSING
    # a folder to go on from, instead of fresh weights; its shape counts, and what it holds is among
    # the inputs
    encoder: Annotated[str | None, NEUTRAL] = MISSING
    # take of that folder the shape and the vocabulary alone
    fresh_weights: Annotated[bool, Added(was=False)] = MISSING
    # of AdamW for an encoder that no run of this scale has pre-trained
    given_learning_rate: Annotated[Positive, NEUTRAL] = MISSING
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    architecture: ArchitectureConfig = field(default_factory=ArchitectureConfig)
    size: Annotated[SizeConfig, NEUTRAL] = field(default_factory=SizeConfig)
    # whose instances and masks: the released code's, the paper's text's, ours; a name for settings
    # of `objective`
    fidelity: Annotated[str, one_of("released", "paper", "ours"), NEUTRAL] = MISSING
    fidelities: Annotated[dict[str, Any], NEUTRAL] = MISSING  # name -> those settings
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    # times the steps of every phase of the scale: how an arm trains for longer or shorter than
    # others
    steps_factor: Annotated[float, Field(gt=0, allow_inf_nan=False), NEUTRAL] = MISSING
    phases: list[PhaseConfig] = MISSING
    # what the positions that a longer phase adds start as: their initialisation, or copies of
    # trained ones
    position_growth: Annotated[str, one_of("none", "tile")] = MISSING
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    checkpoint_interval_steps: Annotated[Count, NEUTRAL] = MISSING
    # about a suddenly huge gradient; the record names the steps whose updates were left out
    spike: Annotated[str, one_of("off", "stop", "skip"), NEUTRAL] = MISSING
    # fractions of the steps after which the encoder is kept as well, in encoders/step-N
    keep_encoders: Annotated[list[Share], NEUTRAL] = MISSING
    # numbers of words, or babylm
    keep_encoders_at_words: Annotated[Any, NEUTRAL] = None
    # of the weights in an encoder's folder; training itself keeps them in float32
    encoder_dtype: Annotated[
        str, one_of("float32", "float16", "bfloat16"), Added(was="float32")
    ] = MISSING
    # a run without them is of no use here: it is neither shared nor taken for complete
    needs_kept_encoders: Annotated[bool, NEUTRAL] = MISSING
    # take an equal, complete run of another experiment instead of training again
    share_runs: Annotated[bool, NEUTRAL] = MISSING


@dataclass
class TaskAlwaysConfig(Frozen):
    """What a task wants whatever the scale's fine-tuning recipe is.

    None: the scale's, or the row's.
    """

    head: str | None = None
    learning_rate: float | None = None
    epochs: float | None = None
    global_batch_size: int | None = None


# of a task's `data`, a free-form node: argument of its target -> its meaning
PARTS_OF_DATA: dict[str, Meaning | Added] = {
    "groups_by_length": Added(was=False),
    "positive_label": Added(was=None),
    "validation_fraction": Added(was=0.1),
    "validation_seed": Added(was=1),
    "validation_folds": Added(was=None),
}
PARTS_OF_DATA.update(group_column=Added(was=None))
CLASS_WEIGHTS = Added(was=None)
# Test files are read only where they are to be predicted.
TEST = Meaning("protocol", "predict_test")
PARTS_OF_DATA.update(test_files=TEST, test_id_column=TEST)
PARTS_OF_DATA.update(how_to_get=NEUTRAL, evaluation_tokens=LAYOUT)


@dataclass
class TaskConfig(Frozen):
    """One downstream task: a YAML, never a class."""

    name: Annotated[str, IDENTITY] = MISSING
    title: Annotated[str, NEUTRAL] = MISSING
    # name of the benchmark this data set stands in for; shown in every table, never beside the
    # paper's number
    stand_in_for: str | None = None
    # the key that selects the best checkpoint and stands in the table, e.g. validation/accuracy
    metric: str = MISSING
    # where the `datasets` library finds the same data (datamodules/files.py); read only with
    # hub=true
    hub: Annotated[dict[str, Any] | None, Meaning("protocol", "hub")] = None
    unit: Component = MISSING  # what examples are
    target: Component = MISSING  # what is predicted of them
    # settings that the unit, the target, and data or module take by their names
    data: Annotated[dict[str, Any], PARTS_OF_DATA] = MISSING
    module: Annotated[dict[str, Any], {"class_weights": CLASS_WEIGHTS}] = MISSING
    learning_rate: float = MISSING
    epochs: float = MISSING
    global_batch_size: int = MISSING
    always: Annotated[TaskAlwaysConfig, NEUTRAL] = field(default_factory=TaskAlwaysConfig)


@dataclass
class FinetuneConfig(EncoderStageConfig, TrainingConfig):
    """The stage that fine-tunes an encoder on a task."""

    head: Annotated[str, one_of("linear", "bilstm")] = MISSING
    task: TaskConfig = field(default_factory=TaskConfig)
    learning_rate: Annotated[Positive, IDENTITY] = MISSING
    recipe_for: Annotated[str | None, NEUTRAL] = MISSING
    # of given encoders: model_type -> the lowest and the highest one that a task's is moved to
    family_learning_rates: Annotated[dict[str, list[float]], NEUTRAL] = MISSING
    # layers at the top that begin with fresh weights, and the pooler with them
    reinitialise_layers: Annotated[int, Field(ge=0), Added(was=0)] = MISSING
    epochs: Positive = MISSING
    global_batch_size: Count = MISSING
    max_train_examples: Count | None = MISSING  # of each training file
    # whether a seed draws those, as many of each class (few-shot); else all runs share one draw
    sample_by_seed: Annotated[bool, Added(was=False)] = MISSING
    # which of the run's two seeds draws them, and chooses the fold
    sampling_seed: Annotated[
        str,
        one_of("seed", "pretrain_seed"),
        Meaning("protocol", "sample_by_seed task.data.validation_folds"),
        Added(was="seed"),
    ] = MISSING
    # 0: at the end alone, so that validation selects nothing
    evaluations_per_epoch: Annotated[int, Field(ge=0)] = MISSING
    # the best checkpoint as RUN_DIR/model: encoder, head, tokenizer
    keep_model: Annotated[bool, NEUTRAL] = MISSING
    # validation rows that stand in training are neither warned of nor refused
    allow_validation_in_training: Annotated[bool, NEUTRAL] = MISSING
    hub: bool = MISSING  # take the task's files from the Hugging Face hub instead of data_dir
    # also predict the task's test files, as `clozelab submit` wants them
    predict_test: bool = MISSING


@dataclass
class MeasureConfig(Frozen):
    """What is measured of an encoder or of a fine-tuned model."""

    name: Annotated[str, IDENTITY] = MISSING
    title: Annotated[str, NEUTRAL] = MISSING
    metric: str = MISSING  # the key of the main score, e.g. validation/accuracy
    # where fine-tuned models lie; None: an encoder is measured
    encoder: Annotated[str | None, NEUTRAL] = MISSING
    # the task (a choice of conf/task) whose files, and whose scorer, are taken; None: the measure
    # has its own
    task: Annotated[
        Component | None,
        {f"data.{key}": meaning for key, meaning in PARTS_OF_DATA.items()}
        | {"module.class_weights": CLASS_WEIGHTS},
    ] = MISSING
    max_train_examples: Count | None = MISSING  # of the task; what a probe is fitted to
    # a fine-tuned model's name of a class -> what the file calls it
    label_names: Annotated[Any, Meaning("protocol", "measure.label_names")] = None
    # None: the task's
    module: Annotated[
        Component | None,
        {
            "temperature": Added(was=1.0),
            "mix": Added(was=False),
            "description_length": Added(was=False),
        },
    ] = MISSING
    data: Annotated[Component | None, PARTS_OF_DATA] = MISSING  # None: the task's


@dataclass
class EvaluateConfig(EncoderStageConfig):
    """The stage that measures without training the encoder."""

    measure: MeasureConfig = field(default_factory=MeasureConfig)
    # fine-tuned models that are scored as one: folders or patterns, which are among the inputs
    models: Annotated[Any, NEUTRAL] = None
    combine: Annotated[str, one_of("none", "weights", "predictions"), Added(was="none")] = MISSING


SCHEMAS: dict[str, type] = {
    "prepare": PrepareConfig,
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
}


@cache
def meanings() -> dict[str, Meaning]:
    """Return dotted key -> what it means for a run, where that is not part of the protocol.

    A list's places are `*`. A key that is not here means what the nearest one above it does.
    """
    result = {"hydra": NEUTRAL}
    for schema in SCHEMAS.values():
        for key, notes in keys_of(schema):
            meaning = _meaning_in(notes)
            if meaning != PROTOCOL:
                result[key] = meaning
    return result


@cache
def meaning_of(name: str) -> Meaning:
    """Return what a dotted key means for a run: its own meaning, or the nearest key's above it."""
    key = _without_places(name)
    while key and key not in meanings():
        key = key.rpartition(".")[0]
    return meanings().get(key, PROTOCOL)


@cache
def added_keys() -> dict[str, Added]:
    """Return dotted key -> what it was before it existed, for keys that say so."""
    result = {}
    for schema in SCHEMAS.values():
        for key, notes in keys_of(schema):
            for note in notes:
                if isinstance(note, Added):
                    result[key] = note
    return result


@cache
def added_of(name: str) -> Added | None:
    """Return what a dotted key was before it existed; None where it does not say."""
    added = added_keys()
    return added.get(name, added.get(_without_places(name)))


def is_as_before(name: str, value: object) -> bool:
    """Whether a dotted key has the value that it had before it existed."""
    added = added_of(name)
    return added is not None and value == added.was


def _without_places(name: str) -> str:
    """Return `phases.*.steps` for `phases.0.steps`."""
    return re.sub(r"\.\d+\b", ".*", name)


def _meaning_in(annotations: tuple[object, ...]) -> Meaning:
    for annotation in annotations:
        if isinstance(annotation, Meaning):
            return annotation
    return PROTOCOL


def keys_of(
    schema: type, prefix: str = "", *, identity_only: bool = False
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield every dotted key of a dataclass with its annotations, parents first.

    Below a neutral part only what a run is named by is a key (`identity_only`): the other values
    are judged where they are used.
    """
    for name, hint in get_type_hints(schema, include_extras=True).items():
        annotations = getattr(hint, "__metadata__", ())
        meaning = _meaning_in(annotations)
        if identity_only and meaning != IDENTITY:
            continue
        key = f"{prefix}{name}"
        yield key, annotations

        yield from _keys_of_free_form(key, annotations)
        value_type = get_args(hint)[0] if annotations else hint
        for schema_below, prefix_below in _schemas_in(value_type, key):
            yield from keys_of(schema_below, prefix_below, identity_only=meaning == NEUTRAL)


def _keys_of_free_form(
    key: str, annotations: tuple[object, ...]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the keys of a free-form node that a dictionary among its annotations speaks of."""
    for annotation in annotations:
        if isinstance(annotation, dict):
            for argument, note in annotation.items():
                yield f"{key}.{argument}", (note,)


def _schemas_in(value_type: object, key: str) -> Iterator[tuple[type, str]]:
    """Yield the dataclass of a node (ModelConfig) or of a list's nodes (list[PhaseConfig]).

    Each comes with the prefix of its keys.
    """
    candidates = [(value_type, f"{key}.")]
    candidates += [(item_type, f"{key}.*.") for item_type in get_args(value_type)]
    for candidate, prefix in candidates:
        if isinstance(candidate, type) and is_dataclass(candidate):
            yield candidate, prefix


CONDITIONAL_KEYS = {key: meaning.option for key, meaning in meanings().items() if meaning.option}
"""Key -> the option, or options with blanks between, without which it cannot change a result."""
