"""What a check says: a level, a result in words, the figure behind it, and what to do.

What is looked at before an experiment: its arms on their corpora, its tasks, and the room for its runs.

Plain objects, so that a check can be tried on anything; who composes them from an experiment's configuration is the
stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import I64, PackedInstances, SpecialIds
from clozelab.corpus.random import instance_indices
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.examples import TaskPreview
from clozelab.models.config import EncoderConfig
from clozelab.objectives.objective import Objective

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """One result of one check."""

    check: str
    level: str
    """ok | warning (the run goes on) | error (it does not)."""
    what: str
    figure: str = ""
    remedy: str = ""


def worst(findings: Sequence[Finding]) -> str:
    """The highest level among them; ok for none."""
    levels = {finding.level for finding in findings}
    return next((level for level in (ERROR, WARNING) if level in levels), OK)


def share(count: float, total: float) -> str:
    """`12 of 300 (4.0 %)`."""
    return f"{count:,.0f} of {total:,.0f} ({100 * count / total:.1f} %)" if total else "none"


def deviation(probability: float, number: int, sigmas: float = 4.5) -> float:
    """How far an observed share of `number` draws may lie from its probability by chance."""
    return sigmas * float(probability * (1 - probability) / max(1, number)) ** 0.5


PROBE_SEED = 20181011
MAX_BOUND_TOKENS = 100_000_000
"""Finding instances takes a second or two for as many."""


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
    _instances: dict[str, Instances] = field(default_factory=dict, repr=False)

    def instances(self, objective: Objective, seq_length: int) -> Instances:
        """Instances of an input format, found once for all arms that share it; of a huge corpus, in its beginning."""
        key = f"{objective.input!r} {seq_length}"
        if key not in self._instances:
            self._instances[key] = objective.bind(_beginning(self.train), self.ids, seq_length)
        return self._instances[key]


@dataclass
class Arm:
    """One distinct pre-training configuration of an experiment."""

    name: str
    objective: Objective
    config: EncoderConfig
    phases: Sequence[Mapping[str, int]]
    warmup_fraction: float
    corpus: Corpus
    num_runs: int = 1
    num_encoders: int = 1
    """That each run leaves: the trained one, and those kept on the way."""
    objectives: Sequence[Objective] = ()
    """Of the phases, where they are not all `objective`, which is that of the last one."""

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

    @property
    def tokens(self) -> int:
        """Slots of the whole training."""
        return sum(phase["steps"] * phase["global_batch_size"] * phase["seq_length"] for phase in self.phases)

    @property
    def longest(self) -> int:
        return max(phase["seq_length"] for phase in self.phases)

    @property
    def probe_length(self) -> int:
        """Sequence length of the phase with the most instances, where the statistics are taken."""
        return max(self.phases, key=lambda phase: phase["steps"] * phase["global_batch_size"])["seq_length"]

    @cached_property
    def instances(self) -> Instances:
        return self.corpus.instances(self.objective, self.probe_length)

    def indices(self, count: int) -> I64:
        """Up to `count` instances, spread over the corpus."""
        number = len(self.instances)
        return instance_indices(PROBE_SEED, number, np.arange(min(count, number)))[1]

    def packed(self, count: int) -> PackedInstances:
        """The text of these instances in epoch 0, before the objective has touched it."""
        return self.instances.pack(PROBE_SEED, 0, self.indices(count))


@dataclass(frozen=True)
class Task:
    """One downstream task as the experiment has it."""

    name: str
    preview: TaskPreview
    tokenizer: Tokenizer | None
    max_seq_length: int
    """What its configuration asks for."""
    trained_length: int
    """Tokens of the longest instance that its encoders are trained on."""
    metrics: Sequence[str] = ()
    number_range: Sequence[float] | None = None
    stored_label_names: Sequence[str] | None = None
    """Class names that the encoder's folder remembers, in the order of their indices."""


@dataclass(frozen=True)
class Room:
    """Disk: where runs go, and what they will want there beside what arms say.

    Attributes:
        used_bytes: by runs of the same stages that are there already.
        model_bytes: of the model that each fine-tuning saves; 0 where it saves none.
    """

    folder: str
    free_bytes: int
    used_bytes: int = 0
    num_finetunings: int = 0
    model_bytes: int = 0


@dataclass(frozen=True)
class Time:
    """Seconds, by the clock, of the jobs that are left.

    Attributes:
        stages: what a stage is called -> seconds by measured speeds or earlier runs; None where there are none.
        by_flops: of the stages whose time is not known, from their FLOPs and this machine's matrix products now.
    """

    stages: Mapping[str, float | None] = field(default_factory=dict)
    by_flops: float | None = None


@dataclass(frozen=True)
class Subject:
    name: str
    arms: Sequence[Arm]
    tasks: Sequence[Task]
    room: Room
    refusals: Sequence[tuple[str, str]] = ()
    """(what, why) of everything that could not even be built: settings, task files, a damaged corpus."""
    unprepared: Sequence[str] = ()
    """Corpora that are not prepared yet."""
    noticed: Sequence[Finding] = ()
    """What composing it has shown already."""
    experiment: str = ""
    """Its name for other verbs; "" where a stage alone is looked at."""
    time: Time = field(default_factory=Time)

    @property
    def corpora(self) -> list[Corpus]:
        """The distinct prepared corpora of the arms."""
        return list({id(arm.corpus): arm.corpus for arm in self.arms if arm.corpus.tokenizer is not None}.values())


def _beginning(shards: TokenShards) -> TokenShards:
    """The same split with its first documents only, where it is larger than MAX_BOUND_TOKENS."""
    documents, sentences = np.asarray(shards.document_offsets), np.asarray(shards.sentence_offsets)
    number = int(np.searchsorted(sentences[documents], MAX_BOUND_TOKENS, side="right")) - 1
    if number >= shards.num_documents or number < 2:
        return shards
    return replace(
        shards,
        document_offsets=documents[: number + 1],
        sentence_offsets=sentences[: documents[number] + 1],
        document_source=np.asarray(shards.document_source)[:number],
    )


def made_up_corpus(vocab_size: int) -> Corpus:
    """Random text for what needs instances of any kind: 200 documents of 20 sentences of 5..24 tokens."""
    rng = np.random.default_rng(0)
    sentences = np.full(200, 20)
    lengths = rng.integers(5, 25, sentences.sum())
    shards = TokenShards(
        tokens=TokenStream([rng.integers(min(5, vocab_size - 1), vocab_size, lengths.sum())]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sentences)),
        document_source=np.zeros(200, dtype=np.uint8),
        source_names=("made up",),
        vocab_size=vocab_size,
        unigram_entropy=0.0,
        fingerprint="",
    )
    return Corpus("made up", shards, shards, SpecialIds(2, 3, 0, 4, vocab_size), 1, None)
