"""Runs that cost the same, and what has to be timed to know what they cost.

Composed once; the planner and the pre-flight read the same. Everything here is arithmetic on
composed configurations: parameters, tokens, FLOPs, bytes and, once speeds are known, seconds of one
run. Sums are cost.py's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypedDict, TypeVar

import torch

from clozelab.models import cost, trained
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.optim.groups import frozen_names
from clozelab.schema import Component, EvaluateConfig, FinetuneConfig, StageConfig, TrainingConfig
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping, ReadOnlyJson
from clozelab.training.host import import_torchmetrics_quickly

C = TypeVar("C", bound=StageConfig)
Words = tuple[str, ...]  # of one job of a sweep, as the sweeper gives them
FORWARD_SHARE = 1 / 3  # of a training step's work: what a validation pass costs per token
SHORTEST_PASS = 4  # tokens of an input of a pass that is timed
FLOAT_BYTES = 4
MAX_STEP_SECONDS = 30.0  # shapes whose steps take longer, by their FLOPs, are not timed
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


def optimizer_kind(optimizer: Component) -> Component:
    """What decides an optimizer's speed, so that arms of other learning rates share a timing."""
    rates = [key for key in optimizer if key.endswith("learning_rate") and optimizer[key]]
    return optimizer | dict.fromkeys(rates, 1e-3)


def adapt_encoder(encoder: Encoder, settings: PlainMapping) -> None:
    """Adapt an encoder as settings say; its pooler counts as one of given weights."""
    import_torchmetrics_quickly()
    from clozelab.assembly.factory import adaptation  # lazy: it imports Lightning

    encoder.has_trained_pooler = True
    adaptation(settings, encoder)()


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
