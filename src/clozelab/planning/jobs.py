"""What an experiment runs, whatever the seeds: arms with their corpora, tasks on sizes of encoder.

Composed once; the planner and the pre-flight read the same. Everything here is arithmetic on
composed configurations: parameters, tokens, FLOPs, bytes and, once speeds are known, seconds of one
run. Sums are cost.py's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, TypedDict, TypeVar

import numpy as np
import torch

from clozelab.addresses import build_parts
from clozelab.assembly import factory
from clozelab.assembly.passes import MOST_PASSES, passes_by_source
from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.metrics.metric import metric_of
from clozelab.models import cost, trained
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.objectives.objective import Objective, build_models, plateau_tokens
from clozelab.optim.groups import frozen_names
from clozelab.schema import (
    Component,
    EvaluateConfig,
    FinetuneConfig,
    PretrainConfig,
    StageConfig,
    TaskConfig,
    TrainingConfig,
)
from clozelab.tasks.preview import Preview
from clozelab.tasks.target import metrics_of
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping, ReadOnlyJson

MOMENTS = 2  # of each trained weight, in a checkpoint
MAX_BOUND_TOKENS = 100_000_000  # finding instances takes a second or two for as many

C = TypeVar("C", bound=StageConfig)
Words = tuple[str, ...]  # of one job of a sweep, as the sweeper gives them
# of English prose in a vocabulary of thousands of word pieces, special tokens included
CHARACTERS_A_TOKEN = 4.2
FORWARD_SHARE = 1 / 3  # of a training step's work: what a validation pass costs per token
SHORTEST_PASS = 4  # tokens of an input of a pass that is timed
FLOAT_BYTES = 4
SENTENCE_WORDS = 15.0  # of a tagged sentence whose file is not there
PREDICTION_BYTES = 105  # of one example in predictions.jsonl
NBEST_BYTES = 3700  # of one question in nbest_predictions.json
RECORD_BYTES = 25_000  # of what every run folder records


class JobGroup(NamedTuple, Generic[C]):
    """Jobs that differ in seeds alone."""

    settings: C  # the configuration of the first of them
    jobs: Sequence[Words]


@dataclass(frozen=True)
class Speed:
    """Of one of the jobs that run side by side."""

    tokens_per_second: float
    is_estimated: bool = False  # reckoned from FLOPs, nothing was timed
    problem: str = ""  # why there is none, where it is 0
    is_busy: bool = False  # the machine had other work meanwhile
    is_uncompiled: bool = False  # timed as written, where a run compiles


class TaskPlace(NamedTuple):
    """A task, and where its files lie."""

    task: ReadOnlyJson  # its settings
    data_dir: str
    cache_dir: str
    hub: bool | None = None  # None: of an evaluation, which cannot take the files from there

    @classmethod
    def of_finetuning(cls, cfg: FinetuneConfig) -> TaskPlace:
        """Return the task of a fine-tuning."""
        return cls(vars(cfg.task), cfg.data_dir, cfg.cache_dir, cfg.hub)

    @classmethod
    def of_measure(cls, cfg: EvaluateConfig) -> TaskPlace:
        """Return the task that a measure takes."""
        return cls(cfg.measure.task or {}, cfg.data_dir, cfg.cache_dir)


class Question(TypedDict, total=False):
    """What a timing process is asked: a model, a machine, and the batches of one kind of job."""

    kind: str  # pretrain, finetune, features or forward
    model: JsonObject
    hardware: JsonObject
    optimizer: Component
    schedule: Component
    adaptation: Component
    freeze: object
    # of pre-training
    phase: JsonObject
    objective: PlainMapping
    # of the others
    head: str
    batch_size: int
    tokens_each: float
    max_tokens: int
    evaluation_tokens: int
    words_each: int
    bilstm: dict[str, int]
    # for how long
    seconds: float
    ticks: int
    steps_a_tick: int


@dataclass(frozen=True)
class Request:
    """Something to time."""

    question: Question  # what a timing process is asked, and what a speed is kept by
    title: str
    step_tokens: float  # of one optimizer step, as `step_flops`; words, for a BiLSTM on features
    step_flops: float


@dataclass(frozen=True, kw_only=True)
class Shape(ABC):
    """Runs that cost the same."""

    settings: StageConfig = field(repr=False)  # the configuration of the first job
    jobs: Sequence[Words] = ((),)
    done: int = 0  # jobs that are complete, or will be taken from another experiment
    speeds: Sequence[Speed | None] = ()  # the answers to `requests`, once those were asked
    start: float = 0.0  # seconds of a job besides its steps and passes

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def left(self) -> int:
        return self.count - self.done

    @property
    def is_timed(self) -> bool:
        return bool(self.speeds) and all(speed and speed.tokens_per_second for speed in self.speeds)

    @property
    def is_estimated(self) -> bool:
        return any(speed.is_estimated for speed in self.speeds if speed)

    @property
    def is_busy(self) -> bool:
        """Whether the machine had other work while a speed was measured."""
        return any(speed.is_busy for speed in self.speeds if speed)

    @property
    def is_uncompiled(self) -> bool:
        """Whether a speed was measured without the compilation of a run."""
        return any(speed.is_uncompiled for speed in self.speeds if speed)

    @property
    def rates(self) -> list[float]:
        """Tokens a second, an answer to each request."""
        return [speed.tokens_per_second for speed in self.speeds if speed]

    @property
    def seconds(self) -> float | None:
        """Of one run with its validations and its start; None where something is not known."""
        if not self.is_timed:
            return None
        return self.timed_seconds()

    @abstractmethod
    def timed_seconds(self) -> float | None:
        """The same by its speeds; None: its length is unknown."""

    @abstractmethod
    def requests(self) -> Iterator[Request]:
        """What has to be timed for it."""

    @property
    @abstractmethod
    def flops(self) -> float | None:
        """Of one run; None where its length is not known."""

    @property
    @abstractmethod
    def result_bytes(self) -> int:
        """Of a run folder."""

    def hardware(self) -> PlainDict:
        """What decides a speed of the trainer's settings; a measurement has one process."""
        trainer = self.settings.trainer
        return {
            "accelerator": trainer.accelerator,
            "precision": trainer.precision,
            "threads": trainer.threads,
            "devices": 1,
            "num_nodes": 1,
            "strategy": "auto",
            "compile": trainer.compile,
            "cuda_graphs": trainer.cuda_graphs,
        }


@dataclass
class Corpus:
    """A prepared corpus, or a made-up one where there is none yet.

    A made-up one has no tokenizer and no folder.

    Attributes:
        sampled: it is a sample of one not prepared yet, which is so many times as large.
        sampled_held_out: sentences that the whole one will hold out.
    """

    name: str
    train: TokenShards
    validation: TokenShards
    ids: SpecialIds
    unk_id: int
    tokenizer: Tokenizer | None
    folder: Path | None = None
    sampled: float | None = None
    sampled_held_out: int = 0
    _instances: dict[str, Instances] = field(default_factory=dict, repr=False)

    @property
    def held_out_sentences(self) -> int:
        """Of the validation side, which a small sample's split does not speak for."""
        if self.sampled is None:
            return self.validation.num_sentences
        return self.sampled_held_out

    def instances(self, objective: Objective, seq_length: int) -> Instances:
        """Instances of an input format, found once for all arms that share it."""
        key = f"{objective.input!r} {seq_length}"
        if key not in self._instances:
            shards = _beginning_of(self.train, MAX_BOUND_TOKENS // objective.input.copies)
            self._instances[key] = objective.bind(shards, self.ids, seq_length)
        return self._instances[key]


def _beginning_of(shards: TokenShards, most_tokens: int) -> TokenShards:
    """As many first documents as have so many tokens; all where that would be less than two."""
    documents = np.asarray(shards.document_offsets)
    sentences = np.asarray(shards.sentence_offsets)
    # Documents that begin at the sentences [0, 2, 5], and sentences at the tokens
    # [0, 9, 17, 20, 31, 40]: the documents begin at the tokens [0, 17, 40].
    begins = sentences[documents]
    number = int(np.searchsorted(begins, most_tokens, side="right")) - 1
    if not 2 <= number < shards.num_documents:
        return shards
    return replace(
        shards,
        document_offsets=documents[: number + 1],
        sentence_offsets=sentences[: documents[number] + 1],
        document_source=np.asarray(shards.document_source)[:number],
    )


def synthetic_corpus(vocab_size: int, documents: int = 200, sentences: int = 20) -> Corpus:
    """Random text for what needs instances of any kind.

    Args:
        vocab_size: of its tokens.
        documents: how many.
        sentences: of each document; they have 5 to 24 tokens.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 25, documents * sentences)
    # ids 0 to 4 are [PAD], [UNK], [CLS], [SEP] and [MASK]
    tokens = rng.integers(min(5, vocab_size - 1), vocab_size, lengths.sum())
    sentence_offsets = np.append(0, np.cumsum(lengths))
    document_offsets = np.arange(documents + 1) * sentences
    shards = TokenShards(
        tokens=TokenStream([tokens]),
        sentence_offsets=sentence_offsets,
        document_offsets=document_offsets,
        document_source=np.zeros(documents, dtype=np.uint8),
        source_names=("made up",),
        vocab_size=vocab_size,
        unigram_entropy=0.0,
        fingerprint="",
    )
    return Corpus("made up", shards, shards, SpecialIds(2, 3, 0, 4, vocab_size), 1, None)


# how full they are decides the tokens of a step: full sentences fill 92 % of them here
SAMPLED_INSTANCES = 512


@dataclass(frozen=True)
class Arm(Shape):
    """One pre-training configuration.

    Attributes:
        objective: its last phase's.
        objectives, nodes: those of all phases, built and as they are configured.
        source_weights: mixing weights of each phase.
    """

    name: str
    objective: Objective
    config: EncoderConfig
    phases: Sequence[Mapping[str, int]]
    settings: PretrainConfig = field(repr=False, kw_only=True)
    corpus: Corpus
    objectives: Sequence[Objective] = ()
    nodes: Sequence[PlainMapping] = ()
    source_weights: Sequence[Mapping[str, float]] = ()

    @property
    def longest(self) -> int:
        return max(phase["seq_length"] for phase in self.phases)

    @property
    def steps(self) -> int:
        return sum(phase["steps"] for phase in self.phases)

    @cached_property
    def phase_tokens(self) -> list[int]:
        """Of each phase; instances are as full as a sample of them, or full without a corpus."""
        tokens = []
        for phase, objective in zip(self.phases, self.of_phases, strict=True):
            of_instance = float(phase["seq_length"])
            if self.corpus.folder is not None or self.corpus.sampled is not None:
                instances = self.corpus.instances(objective, phase["seq_length"])
                index = np.linspace(0, len(instances) - 1, SAMPLED_INSTANCES).astype(np.int64)
                arrays = objective.arrays(instances, 0, 0, index)
                # Of the text: a row of the permuted objectives has queries behind it, which
                # the FLOPs a token of text count.
                lengths = arrays["lengths"]
                if "text_lengths" in arrays:
                    lengths = arrays["text_lengths"]
                of_instance = float(np.mean(lengths))
            tokens.append(round(phase["steps"] * phase["global_batch_size"] * of_instance))
        return tokens

    @property
    def tokens(self) -> int:
        return sum(self.phase_tokens)

    @property
    def useful_factor(self) -> float:
        """The multiple of its steps with which it does not yet learn its text by heart."""
        if self.corpus.folder is None:
            return float("inf")
        times = [self.tokens / self.corpus.train.num_tokens, *self.passes_by_source.values()]
        # A little less, since factors are rounded.
        return 0.99 * MOST_PASSES / max(times)

    @cached_property
    def passes_by_source(self) -> dict[str, float]:
        """How often each source of a prepared corpus is read; empty without weights."""
        if self.corpus.folder is None or not any(self.source_weights):
            return {}
        sizes = self.corpus.train.tokens_by_source()
        return passes_by_source(self.phase_tokens, self.source_weights, sizes)

    @cached_property
    def parameters(self) -> int:
        """Of the encoder with its pooler, as published sizes are given."""
        return cost.parameter_count(self.config)

    @cached_property
    def kept_parameters(self) -> int:
        """Of all models with their heads, each counted once; built without memory."""
        with torch.device("meta"):
            return cost.trained_parameters(build_models(Encoder(self.config), self.of_phases))

    @cached_property
    def trained_parameters(self) -> int:
        """Of these, and of what is added to them, what the optimizer has moments of."""
        if not adaptation_of(self.settings):
            return self.kept_parameters
        with torch.device("meta"):
            models = build_models(Encoder(self.config), self.of_phases)
            encoder = models["encoder"].encoder
            adapt_encoder(encoder, adaptation_of(self.settings))
        frozen = [weight for weight in encoder.parameters() if not weight.requires_grad]
        return cost.trained_parameters(models) - sum(weight.numel() for weight in frozen)

    @property
    def of_phases(self) -> Sequence[Objective]:
        if self.objectives:
            return self.objectives
        return [self.objective] * len(self.phases)

    @cached_property
    def flops_per_token(self) -> list[float]:
        """Of training in each phase."""
        flops = []
        for phase, objective in zip(self.phases, self.of_phases, strict=True):
            seq_length = phase["seq_length"]
            share = objective.token.predicted_share(seq_length)
            every = objective.flops_per_token(self.config, seq_length, share)
            frozen = frozen_weights(self.config, self.settings, "model.models.encoder.encoder.")
            flops.append(every - cost.frozen_flops_per_token(self.config, seq_length, frozen))
        return flops

    @property
    def flops(self) -> float:
        return float(np.dot(self.phase_tokens, self.flops_per_token))

    @property
    def tokens_to_plateau(self) -> float:
        """After how many tokens it knows more than frequencies, by rule of thumb.

        With Muon it takes half of them. An encoder that begins with given weights knows more.
        """
        if self.settings.encoder is not None:
            return 0.0
        tokens = plateau_tokens(
            vocab_size=self.config.vocab_size,
            first_seq_length=self.phases[0]["seq_length"],
            is_causal=self.objective.is_causal,
        )
        if self.settings.optimizer.get("matrix_learning_rate"):
            return tokens / 2
        return tokens

    @property
    def encoder_bytes(self) -> int:
        """Of the encoders with their heads that a run keeps, the last one among them."""
        num_encoders = 1 + len(self.settings.keep_encoders)
        return num_encoders * FLOAT_BYTES * self.kept_parameters

    @property
    def checkpoint_bytes(self) -> int:
        return FLOAT_BYTES * (self.kept_parameters + MOMENTS * self.trained_parameters)

    @property
    def result_bytes(self) -> int:
        """Of a run folder: three checkpoints at most, and the encoders."""
        return 3 * self.checkpoint_bytes + self.encoder_bytes

    def timed_seconds(self) -> float:
        steps = 0.0
        for tokens, rate in zip(self.phase_tokens, self.rates, strict=True):
            steps += tokens / rate
        validation = self.settings.validation
        # Rounded up: a last, shorter stretch is validated, too.
        rounds = -(-self.steps // validation.interval_steps)
        validation_tokens = rounds * validation.instances * validation.seq_length
        return self.start + steps * (1.0 + FORWARD_SHARE * validation_tokens / self.tokens)

    def requests(self) -> Iterator[Request]:
        """One a phase."""
        for phase, node, flops in zip(self.phases, self.nodes, self.flops_per_token, strict=True):
            tokens = phase["global_batch_size"] * phase["seq_length"]
            # Speed depends neither on the number of steps nor on the objective's name.
            shape = {**phase, "steps": 1, "objective": None}
            question: Question = {
                "kind": "pretrain",
                "model": self.config.to_dict(),
                "phase": shape,
                "objective": node,
                "hardware": self.hardware(),
                "optimizer": self.settings.optimizer,
                "schedule": self.settings.schedule,
                **adaptation_of(self.settings),
            }
            title = f"pre-training {self.name}, instances of {phase['seq_length']} tokens"
            yield Request(question, title, tokens, tokens * flops)

    def by_objective(self) -> Iterator[Arm]:
        """The arm as each of its objectives sees it, with the phases of that one."""
        if len(set(self.objectives)) < 2:
            yield self
            return
        for objective in dict.fromkeys(self.objectives):
            first = self.objectives.index(objective)
            phases = []
            for phase, objective_of_phase in zip(self.phases, self.objectives, strict=True):
                if objective_of_phase is objective:
                    phases.append(phase)
            yield replace(
                self,
                name=f"{self.name}, phase {first + 1}",
                objective=objective,
                objectives=(),
                phases=phases,
                config=replace(
                    self.config,
                    is_causal=objective.is_causal,
                    predicts_next=objective.predicts_next,
                ),
            )


class Sample(NamedTuple):
    """What a split holds.

    Attributes:
        examples: how many.
        inputs: of the model that each example makes.
        characters, words: of the text of one such input, on average.
    """

    examples: int
    inputs: float
    characters: float
    words: float

    @classmethod
    def from_preview(cls, split: Preview) -> Sample:
        num_examples = max(1, split.num_examples)
        inputs = 1.0
        characters = 0.0
        words_per_text = 0.0
        for texts in split.texts.values():
            if not len(texts):
                continue
            # Texts by part, such as a question and its endings: each ending is an input.
            inputs = max(inputs, len(texts) / num_examples)
            characters += sum(map(len, texts)) / len(texts)
            words_per_text += sum(text.count(" ") + 1 for text in texts) / len(texts)
        return cls(split.num_examples, inputs, characters, words_per_text)


class Samples(NamedTuple):
    """The splits of a task; None where a file is not there."""

    train: Sample | None
    validation: Sample | None


NO_SAMPLES = Samples(None, None)


class Features(NamedTuple):
    """The BiLSTM that a tagging task trains over words, on a frozen encoder."""

    input_size: int
    hidden_size: int  # of one direction
    num_layers: int

    @classmethod
    def from_task(cls, task: TaskConfig, encoder: EncoderConfig) -> Features | None:
        """None for a task that trains its encoder."""
        if "features" not in task.data:
            return None
        module = task.module
        mix = FeatureMix(module["features"], encoder.num_hidden_layers, encoder.output_size)
        return cls(
            mix.output_size,
            int(module["bilstm_hidden_size"] or encoder.hidden_size),
            int(module["bilstm_num_layers"]),
        )

    @property
    def flops_per_word(self) -> float:
        """Of training: a product with every matrix, forward once and backward twice."""
        with torch.device("meta"):
            parameters = list(BiLSTM(*self, 0.0).parameters())
        return 6.0 * sum(value.numel() for value in parameters if value.ndim == 2)


class ExampleLengths(NamedTuple):
    """Of an example of a task."""

    tokens: float
    inputs: float  # windows of a passage, or choices; 1 for other tasks


@dataclass(frozen=True)
class TaskJob(Shape):
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    settings: FinetuneConfig = field(repr=False, kw_only=True)
    task: str
    head: str
    encoder: EncoderConfig
    samples: Samples
    lengths: ExampleLengths  # guesses where there is no sample of training examples
    longest: int  # tokens of the longest input: the task's, cut to what the encoder was trained on
    # of a frozen encoder: speeds are in words of the BiLSTM, `forward` the encoder's
    features: Features | None = None
    # encoders over runs: features are kept, and read by every other run on that encoder
    pass_share: float = 0.0

    @cached_property
    def unit(self) -> str:
        """Of the task's main score."""
        task = self.settings.task
        _, target = build_parts(vars(task))
        metrics = metrics_of(target, task.data.get("extra_validation_files") or ())
        return metric_of(task.metric, metrics).unit

    @property
    def words_per_example(self) -> float:
        train = self.samples.train
        if train is None:
            return SENTENCE_WORDS
        return train.words

    @property
    def train_examples(self) -> int | None:
        limit = self.settings.max_train_examples
        train = self.samples.train
        if train is None:
            return limit
        return min(train.examples, limit or train.examples)

    @property
    def validation_examples(self) -> int:
        validation = self.samples.validation
        if validation is None:
            return 0
        return validation.examples

    @property
    def trained_examples(self) -> float:
        """Of all epochs."""
        return (self.train_examples or 0) * self.settings.epochs

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: its share of both splits once."""
        examples = (self.train_examples or 0) + self.validation_examples
        return examples * self.lengths.tokens * self.pass_share

    @property
    def flops_per_token(self) -> float:
        """Of training the encoder, without what is frozen."""
        length = round(self.lengths.tokens)
        frozen = frozen_weights(self.encoder, self.settings, "encoder.")
        left_out = cost.frozen_flops_per_token(self.encoder, length, frozen)
        return cost.training_flops_per_token(self.encoder, length, 0.0) - left_out

    @property
    def flops(self) -> float | None:
        """Of training, without the head.

        On features it is the share of the encoder's pass, and the BiLSTM's training.
        """
        if self.train_examples is None:
            return None
        if self.features is None:
            return self.trained_examples * self.lengths.tokens * self.flops_per_token
        words = self.trained_examples * self.words_per_example
        length = round(self.lengths.tokens)
        pass_flops = cost.training_flops_per_token(self.encoder, length, 0.0) / 3
        return self.pass_tokens * pass_flops + words * self.features.flops_per_word

    @property
    def result_bytes(self) -> int:
        """Of a run folder: records, predictions, and the model where it is saved."""
        of_example = PREDICTION_BYTES
        if "n_best_size" in self.settings.task.module:
            of_example = NBEST_BYTES
        model_bytes = 0
        if self.settings.keep_model:
            model_bytes = FLOAT_BYTES * cost.parameter_count(self.encoder)
        return RECORD_BYTES + self.validation_examples * of_example + model_bytes

    @property
    def validations(self) -> int:
        """Of one run."""
        number = self.settings.epochs * self.settings.evaluations_per_epoch
        return max(1, round(number))

    def timed_seconds(self) -> float | None:
        if self.train_examples is None:
            return None
        train_rate, pass_rate = self.rates
        evaluated = self.validations * self.validation_examples
        if self.features is None:
            trained = self.trained_examples * self.lengths.tokens
            passed = evaluated * self.lengths.tokens
        else:
            # The BiLSTM reads words, in training and in validations.
            examples = self.trained_examples + FORWARD_SHARE * evaluated
            trained = examples * self.words_per_example
            passed = self.pass_tokens
        return self.start + trained / train_rate + passed / pass_rate

    def requests(self) -> Iterator[Request]:
        """Training, and the encoder's passes; of a frozen encoder the BiLSTM's training in words.

        Lengths are rounded, so that like tasks share a measurement.
        """
        length = self.lengths.tokens / self.lengths.inputs
        batch_size = self.settings.global_batch_size
        hardware = self.hardware()
        question: Question = {
            "model": self.encoder.to_dict(),
            "batch_size": batch_size,
            "hardware": hardware,
            "optimizer": self.settings.optimizer,
            "schedule": self.settings.schedule,
            **adaptation_of(self.settings),
        }
        if self.features is None:
            question |= {"kind": "finetune", "head": self.head}
            question |= {"tokens_each": rounded_length(length), "max_tokens": self.longest}
            tokens = batch_size * length
            flops = tokens * self.flops_per_token
        else:
            words = max(1, round(self.words_per_example))
            question |= {"kind": "features", "words_each": words}
            question["bilstm"] = self.features._asdict()
            tokens = float(batch_size * words)
            flops = tokens * self.features.flops_per_word
            hardware = hardware | {"precision": "32-true"}  # as a frozen encoder's features are
        size = f"{self.encoder.num_hidden_layers} layers of {self.encoder.hidden_size}"
        title = f"fine-tuning {size} on {self.task} ({self.head})"
        yield Request(question, title, tokens, flops)
        yield forward_request(self.encoder, length, self.settings.task.data, hardware)


def frozen_weights(config: EncoderConfig, settings: TrainingConfig, prefix: str) -> frozenset[str]:
    """The encoder's weights that `optimizer.groups` freezes; a module has them at `prefix`."""
    names = [prefix + name for name in cost.weight_names(config)]
    frozen = frozen_names(names, settings.optimizer.get("groups"))
    by_groups = frozenset(name.removeprefix(prefix) for name in frozen)
    adaptation = adaptation_of(settings)
    if not adaptation:
        return by_groups
    with torch.device("meta"):
        encoder = Encoder(config)
        adapt_encoder(encoder, adaptation)
    return by_groups | trained.frozen_weights(encoder)


def adaptation_of(settings: TrainingConfig) -> Question:
    """What a configuration says of adapting an encoder; empty for one that is trained whole."""
    adaptation: Question = {}
    if settings.adaptation is not None:
        adaptation["adaptation"] = settings.adaptation
    if settings.freeze is not None:
        adaptation["freeze"] = settings.freeze
    return adaptation


def adapt_encoder(encoder: Encoder, settings: PlainMapping) -> None:
    """Adapt an encoder as settings say; its pooler counts as one of given weights."""
    encoder.has_trained_pooler = True
    factory.adaptation(settings, encoder)()


def forward_request(
    encoder: EncoderConfig, length: float, data: Component, hardware: PlainMapping
) -> Request:
    """An encoder's passes over inputs of so many tokens, in batches as a task's data has them."""
    # rounded up to a power of two, so that like inputs share one
    length = max(SHORTEST_PASS, 2 ** math.ceil(math.log2(length)))
    tokens = int(data.get("evaluation_tokens", 8192))
    question: Question = {
        "kind": "forward",
        "tokens_each": length,
        # a mask of attention costs nothing
        "model": encoder.to_dict() | {"is_causal": False},
        "max_tokens": encoder.max_position_embeddings,
        "evaluation_tokens": tokens,
        "hardware": dict(hardware),
    }
    size = f"{encoder.num_hidden_layers} layers of {encoder.hidden_size}"
    title = f"evaluating {size}, inputs of {length} tokens"
    flops = FORWARD_SHARE * cost.training_flops_per_token(encoder, int(length), 0.0)
    return Request(question, title, tokens, tokens * flops)


def rounded_length(tokens: float) -> int:
    """A mean length to an eighth or less of itself, so that like tasks share a measurement."""
    # 37 tokens: steps of 4, so 36; 100 tokens: steps of 8, so 96
    step = 1
    while tokens >= 16 * step:
        step *= 2
    return max(4, round(tokens / step) * step)
