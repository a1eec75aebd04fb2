"""What an experiment runs, whatever the seeds: each arm with its corpus, each task with a head on a
size of encoder.

Composed once; the planner and the pre-flight read the same. Everything here is arithmetic on
composed configurations: parameters, tokens, FLOPs, bytes and, once speeds are known, seconds of one
run. Sums are cost.py's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.files import Preview
from clozelab.models import cost
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.objectives.objective import Objective, build_models, plateau_tokens
from clozelab.planning.starts import Starts, constants, usual_starts

ADAM_COPIES = 3  # weights and two moments in a checkpoint
MAX_BOUND_TOKENS = 100_000_000  # finding instances takes a second or two for as many


Words = tuple[str, ...]  # of one job of a sweep, as the sweeper gives them
# a composed configuration, and the jobs that repeat it over seeds
Kind = tuple[Mapping[str, Any], Sequence[Words]]
PARTS = ("start", "steps", "forward", "fit", "saving")
"""Of the seconds of a job: start-up and end; training steps; validations or an evaluation's passes;
a probe's classifiers; checkpoints and encoders."""
# of English prose in a vocabulary of thousands of word pieces, special tokens included
CHARACTERS_A_TOKEN = 4.2
FORWARD_SHARE = 1 / 3  # of a training step's work: what a validation pass costs per token
FLOAT_BYTES = 4
SENTENCE_WORDS = 15.0  # of a tagged sentence whose file is not there
PREDICTION_BYTES, NBEST_BYTES, RECORD_BYTES = 105, 3700, 25_000
"""Of one example in predictions.jsonl, of one question in nbest_predictions.json, of what every run
folder records.
"""


@dataclass(frozen=True)
class Speed:
    """Of one of the jobs that run side by side."""

    tokens_per_second: float
    forward: float | None = None  # of an evaluation pass (fine-tuning)
    is_estimated: bool = False  # reckoned from FLOPs, nothing was timed
    problem: str = ""  # why there is none, where it is 0
    is_busy: bool = False  # the machine had other work meanwhile


@dataclass(frozen=True)
class Request:
    """Something to time."""

    question: Mapping[str, Any]  # what a timing process is asked, and what a speed is kept by
    title: str
    step_tokens: float  # of one optimizer step, as `step_flops`; words, for a BiLSTM on features
    step_flops: float


@dataclass(frozen=True, kw_only=True)
class Shape(ABC):
    """Runs that cost the same."""

    # all that is composed of the first job
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    jobs: Sequence[Words] = ((),)
    done: int = 0  # jobs that are complete, or will be taken from another experiment
    took: Sequence[float] = ()  # seconds of finished runs like these on this machine
    speeds: Sequence[Speed | None] = ()  # the answers to `requests`, once those were asked
    starts: Starts = field(default_factory=usual_starts, repr=False)

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def left(self) -> int:
        return self.count - self.done

    @property
    def is_timed(self) -> bool:
        return bool(self.speeds) and all(one and one.tokens_per_second for one in self.speeds)

    @property
    def is_estimated(self) -> bool:
        return any(one.is_estimated for one in self.speeds if one)

    @property
    def is_busy(self) -> bool:
        """Whether the machine had other work while one of the speeds, or the start-up, was
        measured."""
        return self.starts.is_busy or any(one.is_busy for one in self.speeds if one)

    @property
    def seconds(self) -> float | None:
        """Of one run, with its validations and its start; without speeds what finished runs
        took.
        """
        timed = self.timed_seconds() if self.is_timed else None
        return fmean(self.took) if timed is None and self.took else timed

    def timed_seconds(self) -> float | None:
        """Of one run by its speeds; None where its length is not known either."""
        parts = self.parts()
        if parts is None:
            return None
        return sum(parts.values())

    @abstractmethod
    def parts(self) -> dict[str, float] | None:
        """Seconds of one run by its speeds, by what they go into (some of PARTS); None where its
        length is unknown."""

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

    def hardware(self) -> dict[str, Any]:
        """The part of the trainer's settings that decides a speed; a measurement has one
        process.
        """
        chosen = {
            key: self.settings["trainer"][key] for key in ("accelerator", "precision", "threads")
        }
        return chosen | {"devices": 1, "num_nodes": 1, "strategy": "auto"}


@dataclass
class Corpus:
    """A prepared corpus, or a made-up one where there is none yet: that has no tokenizer and no
    folder.
    """

    name: str
    train: TokenShards
    validation: TokenShards
    ids: SpecialIds
    unk_id: int
    tokenizer: Tokenizer | None
    folder: Path | None = None
    # it is a sample of one that is not prepared yet, which is so many times as large
    sampled: float | None = None
    sampled_held_out: int = 0  # sentences that the whole one will hold out
    _instances: dict[str, Instances] = field(default_factory=dict, repr=False)

    @property
    def held_out_sentences(self) -> int:
        """Of the validation side, which a small sample's split does not speak for."""
        if self.sampled is None:
            return self.validation.num_sentences
        return self.sampled_held_out

    def instances(self, objective: Objective, seq_length: int) -> Instances:
        """Instances of an input format, found once for all arms that share it; of a huge corpus, in
        its beginning.
        """
        key = f"{objective.input!r} {seq_length}"
        if key not in self._instances:
            shards = self.train
            documents, sentences = (
                np.asarray(shards.document_offsets),
                np.asarray(shards.sentence_offsets),
            )
            most = MAX_BOUND_TOKENS // objective.input.copies
            number = int(np.searchsorted(sentences[documents], most, side="right")) - 1
            if 2 <= number < shards.num_documents:
                shards = replace(
                    shards,
                    document_offsets=documents[: number + 1],
                    sentence_offsets=sentences[: documents[number] + 1],
                    document_source=np.asarray(shards.document_source)[:number],
                )
            self._instances[key] = objective.bind(shards, self.ids, seq_length)
        return self._instances[key]


def made_up_corpus(vocab_size: int, documents: int = 200, sentences: int = 20) -> Corpus:
    """Random text for what needs instances of any kind: sentences of 5..24 tokens, so many a
    document.
    """
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 25, documents * sentences)
    tokens = rng.integers(min(5, vocab_size - 1), vocab_size, lengths.sum())
    shards = TokenShards(
        tokens=TokenStream([tokens]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.arange(documents + 1) * sentences,
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
    """One pre-training configuration; `objective` is its last phase's, `objectives` and their
    `nodes` those of all.
    """

    name: str
    objective: Objective
    config: EncoderConfig
    phases: Sequence[Mapping[str, int]]
    corpus: Corpus
    objectives: Sequence[Objective] = ()
    nodes: Sequence[Mapping[str, Any]] = ()

    @property
    def longest(self) -> int:
        return max(phase["seq_length"] for phase in self.phases)

    @property
    def steps(self) -> int:
        return sum(phase["steps"] for phase in self.phases)

    @cached_property
    def phase_tokens(self) -> list[int]:
        """Of each phase, as many a step as a sample of its instances holds; full ones where no
        corpus is prepared.
        """
        found = []
        for phase, own in zip(self.phases, self.of_phases, strict=True):
            held = float(phase["seq_length"])
            if self.corpus.folder is not None or self.corpus.sampled is not None:
                instances = self.corpus.instances(own, phase["seq_length"])
                index = np.linspace(0, len(instances) - 1, SAMPLED_INSTANCES).astype(np.int64)
                held = float(own.arrays(instances, 0, 0, index)["lengths"].mean())
            found.append(round(phase["steps"] * phase["global_batch_size"] * held))
        return found

    @property
    def tokens(self) -> int:
        return sum(self.phase_tokens)

    @cached_property
    def parameters(self) -> int:
        """Of the encoder with its pooler, as published sizes are given."""
        return cost.parameter_count(self.config)

    @cached_property
    def trained_parameters(self) -> int:
        """Of all models with their heads, each counted once; built without memory."""
        with torch.device("meta"):
            return cost.trained_parameters(build_models(Encoder(self.config), self.of_phases))

    @property
    def of_phases(self) -> Sequence[Objective]:
        return self.objectives or [self.objective] * len(self.phases)

    @cached_property
    def flops_per_token(self) -> list[float]:
        """Of training in each phase."""
        return [
            own.token.flops_per_token(
                self.config, phase["seq_length"], own.token.predicted_share(phase["seq_length"])
            )
            for phase, own in zip(self.phases, self.of_phases, strict=True)
        ]

    @property
    def flops(self) -> float:
        return float(np.dot(self.phase_tokens, self.flops_per_token))

    @property
    def tokens_to_plateau(self) -> float:
        """After how many tokens it knows more than frequencies, by rule of thumb; with Muon after
        half of them.
        """
        first, is_causal = self.phases[0]["seq_length"], self.objective.is_causal
        tokens = plateau_tokens(
            vocab_size=self.config.vocab_size, first_seq_length=first, is_causal=is_causal
        )
        return tokens / (2 if self.settings.get("optimizer", {}).get("matrix_learning_rate") else 1)

    @property
    def checkpoint_bytes(self) -> int:
        return ADAM_COPIES * FLOAT_BYTES * self.trained_parameters

    @property
    def result_bytes(self) -> int:
        """Of a run folder: three checkpoints at most, the encoder with its heads, and those kept on
        the way.
        """
        encoders = 1 + len(self.settings.get("keep_encoders", ()))
        return 3 * self.checkpoint_bytes + encoders * FLOAT_BYTES * self.trained_parameters

    def parts(self) -> dict[str, float]:
        speeds = [one.tokens_per_second for one in self.speeds if one]
        steps = sum(tokens / speed for tokens, speed in zip(self.phase_tokens, speeds, strict=True))
        validation = self.settings["validation"]
        rounds = -(-self.steps // validation["interval_steps"])
        tokens = rounds * validation["instances"] * validation["seq_length"]
        return {
            "start": self.starts.pretrain,
            "steps": steps,
            "forward": FORWARD_SHARE * tokens * steps / self.tokens,
            "saving": self.saved_bytes / float(constants()["saved_bytes_per_second"]),
        }

    @property
    def saved_bytes(self) -> int:
        """Of all checkpoints and encoders that one run writes."""
        interval = self.settings.get("checkpoint_interval_steps") or self.steps
        checkpoints = self.steps // int(interval) + 1
        encoders = 1 + len(self.settings.get("keep_encoders", ()))
        return (
            checkpoints * self.checkpoint_bytes + encoders * FLOAT_BYTES * self.trained_parameters
        )

    def requests(self) -> Iterator[Request]:
        """One a phase."""
        for phase, node, flops in zip(self.phases, self.nodes, self.flops_per_token, strict=True):
            tokens = phase["global_batch_size"] * phase["seq_length"]
            question = {
                "kind": "pretrain",
                "model": self.config.to_dict(),
                "phase": {**phase, "steps": 1, "objective": None},
                "objective": node,
                "hardware": self.hardware(),
                **{key: self.settings[key] for key in ("optimizer", "schedule")},
            }
            title = f"pre-training {self.name}, instances of {phase['seq_length']} tokens"
            yield Request(question, title, tokens, tokens * flops)

    def by_objective(self) -> Iterator[Arm]:
        """The arm as each of its objectives sees it, with the phases of that one."""
        if len(set(self.objectives)) < 2:
            yield self
            return
        for objective in dict.fromkeys(self.objectives):
            numbers = [number for number, one in enumerate(self.objectives) if one is objective]
            yield replace(
                self,
                name=f"{self.name}, phase {numbers[0] + 1}",
                objective=objective,
                objectives=(),
                phases=[self.phases[number] for number in numbers],
                config=replace(self.config, is_causal=objective.is_causal),
            )


class Sample(NamedTuple):
    """What a split holds: examples, the model inputs that each makes, and the mean text of one such
    input.
    """

    examples: int
    inputs: float
    characters: float
    words: float

    @classmethod
    def of(cls, split: Preview) -> Sample:
        number, parts = (
            max(1, split.num_examples),
            [texts for texts in split.texts.values() if len(texts)],
        )
        # each ending of a choice is one
        inputs = max([1.0, *(len(texts) / number for texts in parts)])
        characters = sum(sum(map(len, texts)) / len(texts) for texts in parts)
        words = sum(sum(text.count(" ") + 1 for text in texts) / len(texts) for texts in parts)
        return cls(split.num_examples, inputs, characters, words)


class Features(NamedTuple):
    """The BiLSTM that a tagging task trains over words, on a frozen encoder; hidden size of one
    direction.
    """

    input_size: int
    hidden_size: int
    num_layers: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], encoder: EncoderConfig) -> Features | None:
        """None for a task that trains its encoder."""
        module = settings["task"]["module"]
        if "features" not in settings["task"]["data"]:
            return None
        size = FeatureMix(
            module["features"], encoder.num_hidden_layers, encoder.hidden_size
        ).output_size
        return cls(
            size,
            int(module["bilstm_hidden_size"] or encoder.hidden_size),
            int(module["bilstm_num_layers"]),
        )

    @property
    def flops_per_word(self) -> float:
        """Of training: a product with every matrix, forward once and backward twice."""
        with torch.device("meta"):
            return 6.0 * sum(
                value.numel() for value in BiLSTM(*self, 0.0).parameters() if value.ndim == 2
            )


@dataclass(frozen=True)
class TaskJob(Shape):
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    task: str
    head: str
    encoder: EncoderConfig
    # None, as `validation`, where the file is not there, and lengths are guesses
    train: Sample | None
    validation: Sample | None
    tokens_per_example: float
    inputs_per_example: float  # windows of a passage, or choices; 1 for other tasks
    longest: int  # tokens of the longest input: the task's, cut to what the encoder was trained on
    # of a frozen encoder: speeds are in words of the BiLSTM, `forward` the encoder's
    features: Features | None = None
    # encoders over runs: features are kept, and read by every other run on that encoder
    pass_share: float = 0.0

    @property
    def words_per_example(self) -> float:
        return self.train.words if self.train else SENTENCE_WORDS

    @property
    def train_examples(self) -> int | None:
        limit: int | None = self.settings["max_train_examples"]
        return min(self.train.examples, limit or self.train.examples) if self.train else limit

    @property
    def validation_examples(self) -> int:
        return self.validation.examples if self.validation else 0

    @property
    def trained_examples(self) -> float:
        """Of all epochs."""
        return (self.train_examples or 0) * float(self.settings["epochs"])

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: its share of both splits once."""
        return (
            ((self.train_examples or 0) + self.validation_examples)
            * self.tokens_per_example
            * self.pass_share
        )

    @property
    def flops_per_token(self) -> float:
        """Of training the encoder; a third of it passes forward."""
        return cost.training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0)

    @property
    def flops(self) -> float | None:
        """Of training, without the head; on features: its share of the encoder's pass, and the
        BiLSTM's training.
        """
        if self.train_examples is None:
            return None
        if self.features is None:
            return self.trained_examples * self.tokens_per_example * self.flops_per_token
        words = self.trained_examples * self.words_per_example
        return self.pass_tokens * self.flops_per_token / 3 + words * self.features.flops_per_word

    @property
    def result_bytes(self) -> int:
        """Of a run folder: records, predictions, and the model where it is saved."""
        is_span = "SpanExtraction" in str(self.settings["task"]["module"]["_target_"])
        model = (
            FLOAT_BYTES * cost.parameter_count(self.encoder) if self.settings["keep_model"] else 0
        )
        return (
            RECORD_BYTES
            + self.validation_examples * (NBEST_BYTES if is_span else PREDICTION_BYTES)
            + model
        )

    @property
    def validations(self) -> int:
        """Of one run."""
        return max(
            1,
            round(float(self.settings["epochs"]) * float(self.settings["evaluations_per_epoch"])),
        )

    def parts(self) -> dict[str, float] | None:
        (speed,) = self.speeds
        if speed is None or self.train_examples is None:
            return None
        rate, evaluated = speed.tokens_per_second, self.validations * self.validation_examples
        if self.features is None:
            steps = self.trained_examples * self.tokens_per_example / rate
            forward = evaluated * self.tokens_per_example / (speed.forward or rate / FORWARD_SHARE)
        else:
            steps = (
                (self.trained_examples + evaluated * FORWARD_SHARE) * self.words_per_example / rate
            )
            # Where nothing was timed, the encoder's products are taken to be as fast as the
            # BiLSTM's.
            alike = rate * self.features.flops_per_word / (self.flops_per_token / 3)
            forward = self.pass_tokens / (speed.forward or alike)
        forward += self.validations * self.starts.validation
        saved = self.result_bytes / float(constants()["saved_bytes_per_second"])
        return {"start": self.starts.finetune, "steps": steps, "forward": forward, "saving": saved}

    def requests(self) -> Iterator[Request]:
        """One; lengths are rounded, so that like tasks share a measurement."""
        length, batch = (
            self.tokens_per_example / self.inputs_per_example,
            int(self.settings["global_batch_size"]),
        )
        tokens, flops = batch * length, self.flops_per_token
        question = {
            "kind": "finetune",
            "model": self.encoder.to_dict(),
            "head": self.head,
            "batch_size": batch,
            "tokens_each": rounded_length(length),
            "max_tokens": self.longest,
            "evaluation_tokens": int(self.settings["task"]["data"].get("evaluation_tokens", 8192)),
        }
        question |= {
            "hardware": self.hardware(),
            "optimizer": self.settings["optimizer"],
            "schedule": self.settings["schedule"],
        }
        if self.features:
            words = max(1, round(self.words_per_example))
            question |= {"kind": "features", "bilstm": self.features._asdict(), "words_each": words}
            tokens, flops = float(batch * words), self.features.flops_per_word
        size = f"{self.encoder.num_hidden_layers} layers of {self.encoder.hidden_size}"
        yield Request(
            question, f"fine-tuning {size} on {self.task} ({self.head})", tokens, tokens * flops
        )


def rounded_length(tokens: float) -> int:
    """A mean length to an eighth or less of itself, so that like tasks share a measurement."""
    step = 1
    while tokens >= 16 * step:
        step *= 2
    return max(4, round(tokens / step) * step)
