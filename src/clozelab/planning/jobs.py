"""What an experiment pre-trains: each arm, whatever its seeds, with its corpus.

Composed once; the planner and the pre-flight read the same. Everything here is arithmetic on composed configurations:
parameters, tokens, FLOPs and bytes of one run. Speeds and sums are cost.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate

from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import electra_flops_per_token, parameter_count, trained_parameters
from clozelab.models.encoder import Encoder
from clozelab.models.folders import read_config
from clozelab.objectives.objective import Objective, build_models
from clozelab.objectives.plateau import plateau_tokens
from clozelab.runs.fingerprint import SEED_KEYS

if TYPE_CHECKING:
    from clozelab.launch.sweep import Sweep

Words = tuple[str, ...]
"""Of one job of a sweep, as the sweeper gives them."""

FLOAT_BYTES = 4
ADAM_COPIES = 3
"""Weights and two moments in a checkpoint."""
ELECTRA_ROOM = 0.15625 / 0.15
"""ELECTRA counts the released code's room for predictions (20 of 128 positions), not 15 %."""
MAX_BOUND_TOKENS = 100_000_000
"""Finding instances takes a second or two for as many."""


def kinds(sweep: Sweep) -> dict[Words, list[Words]]:
    """The jobs of a sweep that differ in seeds alone, by the words that tell them from the others."""
    groups = sweep.groups(lambda key: key not in SEED_KEYS)
    told = [set(words) for words in groups]
    common = set.intersection(*told) if len(told) > 1 else set()
    return {tuple(word for word in words if word not in common): jobs for words, jobs in groups.items()}


class Past(NamedTuple):
    """What runs so far say: `done` of the jobs, and how many seconds finished ones took on this machine."""

    done: int = 0
    seconds: float | None = None


NO_PAST = Past()


@dataclass
class Corpus:
    """A prepared corpus, or a made-up one where there is none yet."""

    name: str
    train: TokenShards
    validation: TokenShards
    ids: SpecialIds
    unk_id: int
    tokenizer: Tokenizer | None
    """None: made up."""
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
class Arm:
    """One pre-training configuration of an experiment, with the jobs that repeat it over seeds."""

    name: str
    objective: Objective
    config: EncoderConfig
    phases: Sequence[Mapping[str, int]]
    corpus: Corpus
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The whole composed configuration, of its first job."""
    objectives: Sequence[Objective] = ()
    """Of the phases, where they are not all `objective`, which is that of the last one."""
    jobs: Sequence[Words] = ((),)
    past: Past = NO_PAST
    speeds: Sequence[float | None] = ()
    """Tokens a second in each phase."""
    is_estimated: bool = False
    """The speeds are not measured but reckoned from FLOPs."""

    @property
    def count(self) -> int:
        return len(self.jobs)

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
    def tokens(self) -> int:
        """Of the whole run."""
        return sum(phase["steps"] * phase["global_batch_size"] * phase["seq_length"] for phase in self.phases)

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
    def step_flops(self) -> list[float]:
        """Of one optimizer step of each phase."""
        return [
            phase["global_batch_size"] * phase["seq_length"]
            * own.token.flops_per_token(self.config, phase["seq_length"], own.predicted_fraction)
            for phase, own in zip(self.phases, self.of_phases, strict=True)
        ]  # fmt: skip

    @property
    def flops(self) -> float:
        """Of the whole run."""
        return sum(phase["steps"] * flops for phase, flops in zip(self.phases, self.step_flops, strict=True))

    @property
    def electra_flops(self) -> float:
        """By ELECTRA's convention, every step at the longest instance."""
        fraction = min(1.0, self.objective.predicted_fraction * ELECTRA_ROOM)
        tokens = self.longest * sum(phase["steps"] * phase["global_batch_size"] for phase in self.phases)
        return tokens * electra_flops_per_token(self.config, self.longest, fraction)

    @property
    def tokens_to_plateau(self) -> float:
        """After how many tokens it knows more than frequencies, by rule of thumb."""
        first = self.phases[0]["seq_length"]
        is_causal = self.objective.is_causal
        return plateau_tokens(vocab_size=self.config.vocab_size, first_seq_length=first, is_causal=is_causal)

    @property
    def is_timed(self) -> bool:
        return bool(self.speeds) and all(self.speeds)

    @property
    def checkpoint_bytes(self) -> int:
        return ADAM_COPIES * FLOAT_BYTES * self.trained_parameters

    @property
    def encoder_bytes(self) -> int:
        """Of the trained encoder with its heads, and of those kept on the way."""
        return (1 + len(self.settings.get("keep_encoders", ()))) * FLOAT_BYTES * self.trained_parameters

    @property
    def result_bytes(self) -> int:
        """Of a run folder."""
        return self.checkpoint_bytes + self.encoder_bytes

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


def make_arm(settings: Mapping[str, Any], jobs: Sequence[Words], corpus: Corpus) -> Arm:
    """The arm of a composed pre-training configuration."""
    from clozelab.launch.sweep import phase_objectives

    nodes = phase_objectives(settings)
    built = [Objective(**instantiate(node, _convert_="all")) for node in nodes]
    objectives = [built[nodes.index(node)] for node in nodes]  # those of equal settings are the same
    is_causal = objectives[-1].is_causal
    if settings["encoder"] is None:
        config = EncoderConfig(
            **settings["model"], **settings["architecture"],
            vocab_size=corpus.ids.vocab_size, pad_token_id=corpus.ids.pad, is_causal=is_causal,
        )  # fmt: skip
    else:
        config = replace(read_config(settings["encoder"]), is_causal=is_causal)
    return Arm(str(settings["arm"]), objectives[-1], config, settings["phases"], corpus, settings, objectives, jobs)
