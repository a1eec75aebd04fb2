"""Arms of an experiment, whatever the seeds: an objective, a model and a corpus each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clozelab.assembly.encoders import given_lengths
from clozelab.assembly.passes import MOST_PASSES, passes_by_source, passes_over_text
from clozelab.assembly.plateau import tokens_to_plateau
from clozelab.assembly.words import marks_within
from clozelab.corpus.instances import Instances
from clozelab.corpus.mixing import Mixture, PhaseReading
from clozelab.corpus.packing import I64, SpecialIds
from clozelab.corpus.random import instance_indices, one_or_all
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models import cost
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.objectives.objective import Objective, build_models
from clozelab.planning.shapes import (
    FLOAT_BYTES,
    FORWARD_SHARE,
    Question,
    Request,
    Shape,
    adapt_encoder,
    adaptation_of,
    frozen_weights,
    optimizer_kind,
)
from clozelab.schema import PretrainConfig
from clozelab.text.plain import PlainMapping

MOMENTS = 2  # of each trained weight, in a checkpoint
MAX_BOUND_TOKENS = 100_000_000  # finding instances takes a second or two for as many
# how full they are decides the tokens of a step: full sentences fill 92 % of them here
SAMPLED_INSTANCES = 512

Weights = Mapping[str, float]  # name of each source -> its mixing weight; empty without any
NO_WEIGHTS: Weights = {}
LengthKey = tuple[Objective, int, tuple[tuple[str, float], ...]]


class InstanceLength(NamedTuple):
    """The mean of instances."""

    tokens: float
    text: float  # of these, those that are not special


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
    _beginnings: dict[int, TokenShards] = field(default_factory=dict, repr=False, init=False)
    _instances: dict[str, Instances] = field(default_factory=dict, repr=False)
    _lengths: dict[LengthKey, InstanceLength] = field(default_factory=dict, repr=False)

    @property
    def held_out_sentences(self) -> int:
        """Of the validation side, which a small sample's split does not speak for."""
        if self.sampled is None:
            return self.validation.num_sentences
        return self.sampled_held_out

    def instances(
        self, objective: Objective, seq_length: int, weights: Weights | None = None
    ) -> Instances:
        """Instances of an input format, found once for all arms that share it and the weights."""
        key = f"{objective.input!r} {seq_length} {weights}"
        if key not in self._instances:
            shards = self._beginning(objective)
            self._instances[key] = objective.input.bind(shards, self.ids, seq_length, weights)
        return self._instances[key]

    def _beginning(self, objective: Objective) -> TokenShards:
        most_tokens = MAX_BOUND_TOKENS // objective.input.copies
        if most_tokens not in self._beginnings:
            self._beginnings[most_tokens] = _beginning_of(self.train, most_tokens)
        return self._beginnings[most_tokens]

    def first_read(
        self, objective: Objective, seq_length: int, weights: Weights, seed: int, number: int
    ) -> tuple[Instances, int | I64, I64]:
        """Instances, and the epochs and places in them of the first `number` that are read.

        Those of weighted sources are read as their weights say; without weights none twice.
        """
        sizes = self._beginning(objective).tokens_by_source
        # The beginning of a corpus, or a small world, may lack a source.
        source_weights = {
            name: weights.get(name, 0.0) if size else 0.0 for name, size in sizes.items()
        }
        if not any(source_weights.values()):
            instances = self.instances(objective, seq_length)
            order = np.arange(min(number, len(instances)))
            return instances, 0, instance_indices(seed, len(instances), order)[1]
        instances = self.instances(objective, seq_length, source_weights)
        lengths = dict(zip(sizes, instances.mean_tokens, strict=True))
        mixture = Mixture(instances.sources(), source_weights, lengths, seed)
        epoch, index = mixture.places(np.arange(number))
        return instances, one_or_all(epoch), index

    def mean_length(
        self, objective: Objective, seq_length: int, weights: Weights
    ) -> InstanceLength:
        """Tokens in an instance, by a sample; arms that share an objective share it."""
        key = (objective, seq_length, tuple(weights.items()))
        if key not in self._lengths:
            if weights:
                instances, epoch, index = self.first_read(
                    objective, seq_length, weights, 0, SAMPLED_INSTANCES
                )
            else:
                instances = self.instances(objective, seq_length)
                epoch = 0
                index = np.linspace(0, len(instances) - 1, SAMPLED_INSTANCES).astype(np.int64)
            arrays = objective.arrays(instances, 0, epoch, index)
            # A row of the permuted objectives has queries behind its text, which the FLOPs a token
            # of text count.
            lengths = arrays["lengths"]
            if "text_lengths" in arrays:
                lengths = arrays["text_lengths"]
            num_text = (~instances.pack(0, epoch, index).special).sum()
            self._lengths[key] = InstanceLength(float(np.mean(lengths)), num_text / len(index))
        return self._lengths[key]

    def read_shares(self, objective: Objective, seq_length: int) -> NDArray[np.float64]:
        """Share of each source's tokens that some instance has [sources]; 1 of one without any."""
        sizes = np.array([*self._beginning(objective).tokens_by_source.values()])
        read = self.instances(objective, seq_length).tokens_read
        return np.where(sizes > 0, read / np.maximum(sizes, 1), 1.0)


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
    source_weights: Sequence[Weights] = ()

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequences that its weights, given ones included, have seen."""
        lengths = {phase["seq_length"] for phase in self.phases}
        return max(lengths | given_lengths(self.settings, self.of_phases))

    @property
    def steps(self) -> int:
        return sum(phase["steps"] for phase in self.phases)

    @cached_property
    def phase_tokens(self) -> list[int]:
        """Of each phase; instances are as full as a sample of them, or full without a corpus."""
        tokens = []
        parts = zip(self.phases, self.of_phases, self.weights_of_phases, strict=True)
        for phase, objective, weights in parts:
            of_instance = float(phase["seq_length"])
            if self.corpus.folder is not None or self.corpus.sampled is not None:
                length = self.corpus.mean_length(objective, phase["seq_length"], weights)
                of_instance = length.tokens
            tokens.append(round(phase["steps"] * phase["global_batch_size"] * of_instance))
        return tokens

    @cached_property
    def readings(self) -> list[PhaseReading]:
        """What each phase reads of the text: special tokens are none of it."""
        readings = []
        sizes = self.corpus.train.tokens_by_source
        parts = zip(self.phases, self.of_phases, self.weights_of_phases, strict=True)
        for phase, objective, weights in parts:
            seq_length = phase["seq_length"]
            length = self.corpus.mean_length(objective, seq_length, weights)
            tokens = phase["steps"] * phase["global_batch_size"] * length.text
            read = {}
            shares = self.corpus.read_shares(objective, seq_length).tolist()
            for (name, size), share in zip(sizes.items(), shares, strict=True):
                read[name] = round(min(share, 1.0) * size)
            readings.append(PhaseReading(tokens, weights, read))
        return readings

    @property
    def passes(self) -> float:
        """How often it reads the text of a prepared corpus."""
        return passes_over_text(self.readings)[0]

    @property
    def tokens(self) -> int:
        return sum(self.phase_tokens)

    @property
    def useful_factor(self) -> float:
        """The multiple of its steps with which it does not yet learn its text by heart."""
        if self.corpus.folder is None:
            return float("inf")
        times = [self.passes, *self.passes_by_source.values()]
        # A little less, since factors are rounded.
        return 0.99 * MOST_PASSES / max(times)

    @cached_property
    def passes_by_source(self) -> dict[str, float]:
        """How often each source of a prepared corpus is read; empty without weights."""
        if self.corpus.folder is None or not any(self.source_weights):
            return {}
        return passes_by_source(self.readings)

    @cached_property
    def parameters(self) -> int:
        """Of the encoder with its pooler, as published sizes are given."""
        return cost.parameter_count(self.config)

    @cached_property
    def kept_parameters(self) -> int:
        """Of all models with their heads, each counted once; built without memory."""
        return _kept_parameters(self.config, tuple(self.of_phases))

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
    def weights_of_phases(self) -> Sequence[Weights]:
        """Mixing weights of each phase; empty: all sources in proportion to their sizes."""
        if self.source_weights:
            return self.source_weights
        return [NO_WEIGHTS] * len(self.phases)

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
            shape = (self.config, seq_length, share)
            frozen = frozen_weights(self.config, self.settings, "model.models.encoder.encoder.")
            has_pair = objective.pair is not None
            left_out = objective.token.frozen_flops_per_token(*shape, frozen, has_pair)
            flops.append(objective.flops_per_token(*shape) - left_out)
        return flops

    @property
    def flops(self) -> float:
        return float(np.dot(self.phase_tokens, self.flops_per_token))

    @property
    def tokens_to_plateau(self) -> float:
        """After how many tokens it knows more than frequencies, by rule of thumb."""
        first = self.phases[0]["seq_length"]
        return tokens_to_plateau(self.settings, self.objective, self.config.vocab_size, first)

    @property
    def checkpoint_bytes(self) -> int:
        return FLOAT_BYTES * (self.kept_parameters + MOMENTS * self.trained_parameters)

    @property
    def result_bytes(self) -> int:
        """Of a run folder: three checkpoints at most, and the encoders."""
        num_encoders = 1 + len(self.settings.keep_encoders)
        marks = self.settings.keep_encoders_at_words
        if marks is not None:
            # A word has one token at least.
            num_encoders += np.size(marks_within(marks, self.tokens))
        return 3 * self.checkpoint_bytes + num_encoders * FLOAT_BYTES * self.kept_parameters

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
        optimizer = optimizer_kind(self.settings.optimizer)
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
                "optimizer": optimizer,
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
            weights_of_phases = []
            parts = zip(self.phases, self.objectives, self.weights_of_phases, strict=True)
            for phase, objective_of_phase, weights in parts:
                if objective_of_phase is objective:
                    phases.append(phase)
                    weights_of_phases.append(weights)
            yield replace(
                self,
                name=f"{self.name}, phase {first + 1}",
                objective=objective,
                objectives=(),
                phases=phases,
                source_weights=weights_of_phases,
                config=replace(
                    self.config,
                    is_causal=objective.is_causal,
                    predicts_next=objective.predicts_next,
                ),
            )


@cache
def _kept_parameters(config: EncoderConfig, objectives: tuple[Objective, ...]) -> int:
    with torch.device("meta"):
        return cost.trained_parameters(build_models(Encoder(config), objectives))
