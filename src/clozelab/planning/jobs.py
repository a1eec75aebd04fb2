"""What an experiment pre-trains: each arm, whatever its seeds, with its corpus.

Composed once; the planner and the pre-flight read the same. Everything here is arithmetic on composed configurations:
parameters, tokens, FLOPs, bytes and, once speeds are known, seconds of one run. Sums are cost.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import electra_flops_per_token, parameter_count, trained_parameters
from clozelab.models.encoder import Encoder
from clozelab.objectives.objective import Objective, build_models, plateau_tokens
from clozelab.planning.tasks import FLOAT_BYTES, FORWARD_SHARE, START_SECONDS, Request, Shape, Words
from clozelab.runs.fingerprint import SEED_KEYS

if TYPE_CHECKING:
    from clozelab.launch.sweep import Sweep

ADAM_COPIES = 3
"""Weights and two moments in a checkpoint."""
ELECTRA_ROOM = 0.15625 / 0.15
"""ELECTRA counts the released code's room for predictions (20 of 128 positions), not 15 %."""
MAX_BOUND_TOKENS = 100_000_000
"""Finding instances takes a second or two for as many."""


def kinds(sweep: Sweep) -> dict[Words, list[Words]]:
    """The jobs of a sweep that differ in seeds alone, by the words that tell them from the others."""
    groups = sweep.groups(lambda key: key not in SEED_KEYS)
    common = set.intersection(*map(set, groups)) if len(groups) > 1 else set()
    return {tuple(word for word in words if word not in common): jobs for words, jobs in groups.items()}


@dataclass
class Corpus:
    """A prepared corpus, or a made-up one where there is none yet: that has no tokenizer and no folder."""

    name: str
    train: TokenShards
    validation: TokenShards
    ids: SpecialIds
    unk_id: int
    tokenizer: Tokenizer | None
    folder: Path | None = None
    _instances: dict[str, Instances] = field(default_factory=dict, repr=False)

    def instances(self, objective: Objective, seq_length: int) -> Instances:
        """Instances of an input format, found once for all arms that share it; of a huge corpus, in its beginning."""
        key = f"{objective.input!r} {seq_length}"
        if key not in self._instances:
            self._instances[key] = objective.bind(_beginning(self.train), self.ids, seq_length)
        return self._instances[key]


def _beginning(shards: TokenShards) -> TokenShards:
    """The same split with its first documents only, where it is larger than MAX_BOUND_TOKENS."""
    documents, sentences = np.asarray(shards.document_offsets), np.asarray(shards.sentence_offsets)
    number = int(np.searchsorted(sentences[documents], MAX_BOUND_TOKENS, side="right")) - 1
    if number >= shards.num_documents or number < 2:
        return shards
    return replace(
        shards, document_offsets=documents[: number + 1], sentence_offsets=sentences[: documents[number] + 1],
        document_source=np.asarray(shards.document_source)[:number],
    )  # fmt: skip


def made_up_corpus(vocab_size: int, documents: int = 200, sentences: int = 20) -> Corpus:
    """Random text for what needs instances of any kind: sentences of 5..24 tokens, so many a document."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 25, documents * sentences)
    shards = TokenShards(
        tokens=TokenStream([rng.integers(min(5, vocab_size - 1), vocab_size, lengths.sum())]),
        sentence_offsets=np.append(0, np.cumsum(lengths)), document_offsets=np.arange(documents + 1) * sentences,
        document_source=np.zeros(documents, dtype=np.uint8), source_names=("made up",), vocab_size=vocab_size,
        unigram_entropy=0.0, fingerprint="",
    )  # fmt: skip
    return Corpus("made up", shards, shards, SpecialIds(2, 3, 0, 4, vocab_size), 1, None)


@dataclass(frozen=True)
class Arm(Shape):
    """One pre-training configuration of an experiment.

    `objective` is that of the last phase. `objectives` are those of all phases where they are not the same, and `nodes`
    their settings.
    """

    name: str
    objective: Objective
    config: EncoderConfig
    phases: Sequence[Mapping[str, int]]
    corpus: Corpus
    objectives: Sequence[Objective] = ()
    nodes: Sequence[Mapping[str, Any]] = ()

    @property
    def warmup_fraction(self) -> float:
        return float(self.settings.get("schedule", {}).get("warmup_fraction", 0.0))

    @property
    def longest(self) -> int:
        return max(phase["seq_length"] for phase in self.phases)

    @property
    def steps(self) -> int:
        return sum(phase["steps"] for phase in self.phases)

    @property
    def phase_tokens(self) -> list[int]:
        return [phase["steps"] * phase["global_batch_size"] * phase["seq_length"] for phase in self.phases]

    @property
    def tokens(self) -> int:
        """Of the whole run."""
        return sum(self.phase_tokens)

    @cached_property
    def parameters(self) -> int:
        """Of the encoder with its pooler, as published sizes are given."""
        return parameter_count(self.config)

    @cached_property
    def trained_parameters(self) -> int:
        """Of all models with their heads, each counted once; built without memory."""
        with torch.device("meta"):
            return trained_parameters(build_models(Encoder(self.config), self.of_phases))

    @property
    def of_phases(self) -> Sequence[Objective]:
        """The objective of each phase."""
        return self.objectives or [self.objective] * len(self.phases)

    @cached_property
    def flops_per_token(self) -> list[float]:
        """Of training in each phase."""
        return [
            own.token.flops_per_token(self.config, phase["seq_length"], own.predicted_fraction)
            for phase, own in zip(self.phases, self.of_phases, strict=True)
        ]

    @property
    def flops(self) -> float:
        """Of the whole run."""
        return float(np.dot(self.phase_tokens, self.flops_per_token))

    @property
    def electra_flops(self) -> float:
        """By ELECTRA's convention, every step at the longest instance."""
        fraction = min(1.0, self.objective.predicted_fraction * ELECTRA_ROOM)
        tokens = self.longest * sum(phase["steps"] * phase["global_batch_size"] for phase in self.phases)
        return tokens * electra_flops_per_token(self.config, self.longest, fraction)

    @property
    def tokens_to_plateau(self) -> float:
        """After how many tokens it knows more than frequencies, by rule of thumb."""
        first, is_causal = self.phases[0]["seq_length"], self.objective.is_causal
        return plateau_tokens(vocab_size=self.config.vocab_size, first_seq_length=first, is_causal=is_causal)

    @property
    def checkpoint_bytes(self) -> int:
        return ADAM_COPIES * FLOAT_BYTES * self.trained_parameters

    @property
    def result_bytes(self) -> int:
        """Of a run folder: the checkpoint, the encoder with its heads, and those kept on the way."""
        encoders = 1 + len(self.settings.get("keep_encoders", ()))
        return self.checkpoint_bytes + encoders * FLOAT_BYTES * self.trained_parameters

    def timed_seconds(self) -> float:
        speeds = [one.tokens_per_second for one in self.speeds if one]
        training = sum(tokens / speed for tokens, speed in zip(self.phase_tokens, speeds, strict=True))
        validation = self.settings["validation"]
        rounds = -(-self.steps // validation["interval_steps"])
        tokens = rounds * validation["instances"] * validation["seq_length"]
        return START_SECONDS["pretrain"] + training + FORWARD_SHARE * tokens * training / self.tokens

    def requests(self) -> Iterator[Request]:
        """One a phase."""
        for phase, node, flops in zip(self.phases, self.nodes, self.flops_per_token, strict=True):
            tokens = phase["global_batch_size"] * phase["seq_length"]
            question = {
                "kind": "pretrain", "model": self.config.to_dict(), "phase": {**phase, "steps": 1, "objective": None},
                "objective": node, "hardware": self.hardware(),
                **{key: self.settings[key] for key in ("optimizer", "schedule")},
            }  # fmt: skip
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
                self, name=f"{self.name}, phase {numbers[0] + 1}", objective=objective, objectives=(),
                phases=[self.phases[number] for number in numbers],
                config=replace(self.config, is_causal=objective.is_causal),
            )  # fmt: skip
