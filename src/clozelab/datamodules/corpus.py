"""The pre-training corpus as batches.

Unusual: one Lightning batch is one optimizer step, given as this rank's list of micro-batches.
Which instances it holds is a pure function of (seed, step); rank, world size, micro-batch size and
workers only cut the same batch differently.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from clozelab.corpus.instances import BoundPairs, DrawnInstances, Instances
from clozelab.corpus.mixing import Mixture, PhaseReading, check_weights
from clozelab.corpus.packing import I64, PackedInstances, SpecialIds
from clozelab.corpus.random import Draws, derive_seed, instance_indices, one_or_all
from clozelab.corpus.shards import PreparedCorpus
from clozelab.objectives.objective import Arrays, Objective, TorchBatch, pad_predictions, to_torch
from clozelab.training.guards import raised_by_all_ranks
from clozelab.training.runtime import ReiterableLoader, batch_loader, device_type, loader_position

log = logging.getLogger(__name__)

# held-out instances and their masks are the same for every run, arm and training seed
VALIDATION_SEED = 20181011
# looked at once before training for what would spoil next-sentence prediction
SAMPLED_INSTANCES = 2048
MAX_FALLBACK_FRACTION = 0.05
# of the tokens: text that is left out is told, and warned of
MIN_LEFT_OUT_FRACTION = 1e-6
MAX_LEFT_OUT_FRACTION = 0.05
SAMPLED_FOR_WORDS = 8192  # instances of a phase: words a step to within half a per cent
SAMPLED_FOR_TOKENS = 512  # how often a text is read, to within two per cent
# found in one go, for several steps: few cost nearly as much
INSTANCES_AHEAD = 16384
# predictions are padded to it there: few shapes, and tiles that are full
ACCELERATOR_PREDICTIONS_MULTIPLE = 128


@dataclass(frozen=True)
class Phase:
    """One stretch of pre-training at one sequence length; batch sizes count instances."""

    seq_length: int
    steps: int
    global_batch_size: int
    micro_batch_size: int


PhaseSizes = Mapping[str, int]  # a Phase as a configuration has it, which may say more


@dataclass(frozen=True)
class BoundPhase:
    """A phase with its objective, its instances and its place among the optimizer steps."""

    number: int
    phase: Phase
    objective: Objective
    first_step: int
    instances: Instances
    seed: int
    # None: all sources in proportion to their sizes
    mixture: Mixture | None = None

    def places(self, position: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions counted over the whole phase -> (epoch, instance), shaped like `position`."""
        if self.mixture is None:
            return instance_indices(self.seed, len(self.instances), position)
        return self.mixture.places(position)

    def sample(self, most: int) -> tuple[PackedInstances, NDArray[np.int64]]:
        """The first instances that are read, and the tokens of text of each."""
        number = min(most, self.phase.steps * self.phase.global_batch_size)
        epoch, index = self.places(np.arange(number))
        packed = self.instances.pack(self.seed, epoch, index)
        return packed, (~packed.special).reshape(-1, packed.width).sum(axis=1)


def phase_at(phases: Sequence[BoundPhase], step: int) -> BoundPhase:
    """The phase that an optimizer step, counted from 0, is in."""
    return next(bound for bound in reversed(phases) if bound.first_step <= step)


class StepStream(IterableDataset[list[TorchBatch]]):
    """Optimizer steps from `start_step` on for one rank, each a list of micro-batches.

    Worker w of W makes every W-th step.
    """

    def __init__(
        self,
        phases: Sequence[BoundPhase],
        start_step: int,
        rank: int,
        world_size: int,
        predictions_multiple: int = 1,
    ) -> None:
        self.phases = list(phases)
        self.start_step = start_step
        self.rank = rank
        self.world_size = world_size
        self.predictions_multiple = predictions_multiple
        self._stride = 1
        # Step -> its instances, with their places and epochs.
        self._ahead: dict[int, tuple[DrawnInstances, I64, I64]] = {}

    def __iter__(self) -> Iterator[list[TorchBatch]]:
        total_steps = sum(bound.phase.steps for bound in self.phases)
        worker = get_worker_info()
        offset = 0
        if worker is not None:
            offset = worker.id
            self._stride = worker.num_workers
        for step in range(self.start_step + offset, total_steps, self._stride):
            yield self.micro_batches(step)

    def micro_batches(self, step: int) -> list[TorchBatch]:
        """This rank's part of one optimizer step.

        The last micro-batch is smaller where the sizes do not divide.
        """
        bound = phase_at(self.phases, step)
        phase = bound.phase
        share = phase.global_batch_size // self.world_size
        if share * self.world_size != phase.global_batch_size:
            raise ValueError(
                f"a global batch of {phase.global_batch_size} does not divide over"
                f" {self.world_size} devices: choose phases.{bound.number}.global_batch_size or the"
                " devices to match"
            )
        if step not in self._ahead:
            self._find_instances(bound, step, share)
        drawn, order, epoch = self._ahead.pop(step)
        batches = []
        for low in range(0, share, phase.micro_batch_size):
            rows = slice(low, low + phase.micro_batch_size)
            batches.append(self._micro_batch(bound, drawn.part(rows), order[rows], epoch[rows]))
        return batches

    def _find_instances(self, bound: BoundPhase, step: int, share: int) -> None:
        """Finds `share` instances for this step and for each of some that follow in the phase."""
        ahead = max(1, INSTANCES_AHEAD // share) * self._stride
        end = min(bound.first_step + bound.phase.steps, step + ahead)
        steps = np.arange(step, end, self._stride)
        # Instances are counted over the whole phase; rank r has the r-th share of a step's.
        first = (steps - bound.first_step) * bound.phase.global_batch_size + self.rank * share
        order = np.concatenate([number + np.arange(share) for number in first])
        epoch, index = bound.places(order)
        drawn = bound.objective.draw(bound.instances, bound.seed, one_or_all(epoch), index)
        self._ahead = {}
        for number, ahead_step in enumerate(steps.tolist()):
            rows = slice(number * share, (number + 1) * share)
            self._ahead[ahead_step] = (drawn.part(rows), order[rows], epoch[rows])

    def _micro_batch(
        self, bound: BoundPhase, drawn: DrawnInstances, order: I64, epoch: I64
    ) -> TorchBatch:
        """The instances at some places of the phase's order."""
        packed, labels = bound.objective.arranged(drawn, order)
        batch = bound.objective.arrays_of(packed) | labels
        if self.predictions_multiple > 1:
            batch = pad_predictions(batch, self.predictions_multiple)
        contents = contents_of(batch, epoch, drawn.draws.names)
        return to_torch(batch | {"phase": bound.number, "contents": contents})


def contents_of(batch: Arrays, epoch: NDArray[np.int64], index: NDArray[np.int64]) -> int:
    """40 bits of which instances a batch holds and of their tokens, for `update_batch_digest`.

    The tokens are those that the encoder sees. It is the sum of its instances' own, so that a step
    has the same however it is cut: sums of some thousands stay exact.
    """
    # A random number a slot weighs the tokens: [instances, width].
    weights, tail_weights = _slot_weights(batch["width"])
    tokens = batch["input_ids"].reshape(len(index), -1).view(np.uint64)
    token_sums = np.einsum("ij,j->i", tokens, weights)
    # Padding counts nothing; where there is some, the last slot has its id.
    token_sums -= tokens[:, -1] * tail_weights[batch["lengths"]]
    # The upper 40 bits of a hash of each instance's epoch, number and tokens.
    instances = Draws(0, one_or_all(epoch), index).bits("contents", token_sums) >> np.uint64(24)
    return int(instances.sum()) % 2**40


@lru_cache(maxsize=8)
def _slot_weights(width: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """A random number of each slot [width], and the sum of those from each on [width + 1]."""
    weights = Draws(0, 0, np.arange(width)).bits("contents")
    tail_weights = np.cumsum(weights[::-1], dtype=np.uint64)[::-1]
    return weights, np.append(tail_weights, np.uint64(0))


@dataclass(eq=False)
class ValidationStream(IterableDataset[TorchBatch]):
    """The fixed held-out instances, epoch 0, one batch at a time.

    Every rank has the same number of batches.
    """

    # with the places of each batch among the held-out instances
    phases: Sequence[tuple[Objective, Instances, list[NDArray[np.int64]]]]
    current: Callable[[], int]  # which phase a pass is in
    source_names: tuple[str, ...]

    def __iter__(self) -> Iterator[TorchBatch]:
        number = self.current()
        objective, instances, batches = self.phases[number]
        for order in batches:
            _, index = instance_indices(VALIDATION_SEED, len(instances), order)
            batch = objective.arrays(instances, VALIDATION_SEED, 0, index, order)
            facts = {
                "phase": number,
                "source_names": self.source_names,
                "sep_id": instances.ids.sep,
            }
            yield to_torch(batch | facts)


def _tell_left_out(instances: Instances, objective: Objective, where: str) -> None:
    """Say how much text makes no pair of segments; much of it is a warning."""
    share = instances.left_out_fraction
    text = "sentences of which no two fit"
    remedy = "a larger seq_length of the phase reads more"
    if isinstance(instances, BoundPairs):
        text = f"{instances.num_skipped_documents} documents of a single sentence"
        remedy = "objective/input=full_sentences reads them"
        if objective.pair is not None:
            remedy += ", with an objective that asks for no pairs (objective=mlm)"
    level = logging.INFO
    advice = ""
    if share > MAX_LEFT_OUT_FRACTION:
        level = logging.WARNING
        advice = f": {remedy}"
    if share > MIN_LEFT_OUT_FRACTION:
        log.log(
            level,
            "%s: %s, with %.1f%% of the tokens, make no pair and are left out%s",
            where,
            text,
            100 * share,
            advice,
        )


def _check_pairs(instances: Instances, where: str) -> None:
    """Say where random next segments are of other sources or lack."""
    if isinstance(instances, BoundPairs) and instances.single_document_sources:
        log.warning(
            "%s: source %s has a single document to make pairs of, so their random next"
            " segments are other sources'",
            where,
            ", ".join(instances.single_document_sources),
        )
    _warn_of_fallbacks(instances, where)


def _warn_of_fallbacks(instances: Instances, where: str) -> None:
    """Where too many pairs that should get a random next segment find none, and stay IsNext."""
    count = min(len(instances), SAMPLED_INSTANCES)
    _, sample = instance_indices(0, len(instances), np.arange(count))
    packed = instances.pack(0, 0, sample)
    num_negatives = packed.num_fallbacks
    if packed.next_sentence_label is not None:
        num_negatives += int(packed.next_sentence_label.sum())
    if packed.num_fallbacks > MAX_FALLBACK_FRACTION * num_negatives:
        log.warning(
            "%s: %d of %d sampled pairs that should get a random next segment find none in another"
            " document and stay 'is next', so the document gives the label away and next-sentence"
            " accuracy will flatter the model: add documents, or cut very long ones (in a text"
            " file, a blank line separates documents)",
            where,
            packed.num_fallbacks,
            num_negatives,
        )


class CorpusDataModule(LightningDataModule):
    """Training and held-out batches of a prepared corpus.

    Args:
        prepared_corpus: tokenizer, train and validation shards (PreparedCorpus).
        objectives: one a phase, often the same; they make the batches. Validation takes that of
            the phase it falls in.
        phases: mappings with seq_length, steps, global_batch_size, micro_batch_size, in order.
        seed: of order, pairs and masks in training.
        validation_instances: held-out ones, of validation_seq_length; fewer where the split has
            fewer.
        num_workers: processes that make training batches; 0 is best on a CPU. Changes no batch.
        source_weights: one a phase: name of each source -> the share of tokens that is read of it,
            in proportion; empty: all are read in proportion to their sizes.

    Rank, world size and the first step come from the trainer; without one they are 0, 1 and 0.
    """

    def __init__(
        self,
        prepared_corpus: PreparedCorpus,
        objectives: Sequence[Objective],
        *,
        phases: Sequence[PhaseSizes],
        seed: int,
        validation_instances: int,
        validation_seq_length: int,
        num_workers: int,
        source_weights: Sequence[Mapping[str, float]] = (),
    ) -> None:
        super().__init__()
        self.corpus = prepared_corpus
        self.objectives = list(objectives)
        names = [field.name for field in fields(Phase)]  # a configuration may say more of a phase
        self.phases = []
        for phase in phases:
            self.phases.append(Phase(**{name: phase[name] for name in names}))
        self.source_weights = source_weights
        self.seed = seed
        self.num_workers = num_workers
        self.validation_instances = validation_instances
        self.validation_seq_length = validation_seq_length
        self._bound: dict[object, Instances] = {}

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def first_steps(self) -> list[int]:
        """Of each phase."""
        # phases of 100 and 50 steps begin at [0, 100]
        return [0, *accumulate(phase.steps for phase in self.phases)][:-1]

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Find all instances now.

        So errors come before training starts, and forked workers share the instances.
        """
        for number, (objective, phase) in enumerate(zip(self.objectives, self.phases, strict=True)):
            try:
                objective.token.check_batch(phase.global_batch_size)
            except ValueError as error:
                raise ValueError(f"phases.{number}: {error}") from None
            self._training_instances(number)
            self.instances("validation", self.validation_seq_length, objective)
        self.bound_phases()  # weights that cannot be kept are refused

    def instances(
        self,
        split: str,
        seq_length: int,
        objective: Objective | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Instances:
        """The instances of a split at a length, found once for each input format and weights.

        The objective is the last phase's, or another.
        """
        if objective is None:
            objective = self.objectives[-1]
        shares = frozenset(weights.items()) if weights else None
        key = (split, seq_length, objective.input, shares)
        if key not in self._bound:
            shards = getattr(self.corpus, split)
            special_ids = SpecialIds.from_tokenizer(self.corpus.tokenizer)
            try:
                instances = objective.input.bind(shards, special_ids, seq_length, weights)
            except ValueError as error:
                raise ValueError(
                    f"The {split} split at seq_length {seq_length}: {error}"
                ) from error
            log.info("%s split at seq_length %d: %d instances", split, seq_length, len(instances))
            where = f"{split} split at seq_length {seq_length}"
            _tell_left_out(instances, objective, where)
            if objective.pair is not None:
                _check_pairs(instances, where)
            self._bound[key] = instances
        return self._bound[key]

    def bound_phases(self) -> list[BoundPhase]:
        """The phases as they are now, with their training instances."""
        phases = []
        parts = zip(self.phases, self.objectives, self.first_steps, self.mixtures, strict=True)
        for number, (phase, objective, first_step, mixture) in enumerate(parts):
            instances = self._training_instances(number)
            seed = self._seed_of(number)
            phases.append(
                BoundPhase(number, phase, objective, first_step, instances, seed, mixture)
            )
        return phases

    @cached_property
    def mixtures(self) -> list[Mixture | None]:
        """The mixture of each phase that has weights; ValueError where one cannot be read."""
        mixtures = []
        for number in range(len(self.phases)):
            weights = self._weights(number)
            mixture = None
            if weights:
                instances = self._training_instances(number)
                names = self.corpus.train.source_names
                lengths = dict(zip(names, instances.mean_tokens, strict=True))
                mixture = Mixture(instances.sources(), weights, lengths, self._seed_of(number))
            mixtures.append(mixture)
        return mixtures

    def _training_instances(self, number: int) -> Instances:
        """Those of a phase."""
        seq_length = self.phases[number].seq_length
        weights = self._weights(number)
        return self.instances("train", seq_length, self.objectives[number], weights)

    def _seed_of(self, number: int) -> int:
        return derive_seed(self.seed, f"phase {number}")

    def _weights(self, number: int) -> Mapping[str, float] | None:
        """Those of a phase, if it has any; ValueError where they are no share of each source."""
        if not any(self.source_weights):
            return None
        weights = self.source_weights[number]
        if not weights:
            return None
        names = self.corpus.train.source_names
        check_weights(f"phases.{number}.source_weights", weights, names)
        return weights

    def words_by_step(self) -> NDArray[np.float64]:
        """Words that have been read after each step, repeated ones as well [steps].

        They are those of a sample of each phase's instances, by the words that a token of their
        source has.
        """
        per_token = self.corpus.words_per_token()
        of_steps = []
        for bound in self.bound_phases():
            packed, tokens = bound.sample(SAMPLED_FOR_WORDS)
            words = bound.phase.global_batch_size * (tokens * per_token[packed.source]).mean()
            of_steps.append(np.full(bound.phase.steps, words))
        return np.cumsum(np.concatenate(of_steps))

    def readings(self) -> list[PhaseReading]:
        """What each phase reads of the text: its instances may be short, and are not padded."""
        readings = []
        for bound in self.bound_phases():
            _, tokens = bound.sample(SAMPLED_FOR_TOKENS)
            num_instances = bound.phase.steps * bound.phase.global_batch_size
            sizes = dict(self.corpus.train.tokens_by_source)
            for name, read in zip(sizes, bound.instances.tokens_read.tolist(), strict=True):
                sizes[name] = min(sizes[name], round(read))
            weights = self._weights(bound.number) or {}
            readings.append(PhaseReading(num_instances * float(tokens.mean()), weights, sizes))
        return readings

    def train_stream(self, start_step: int, rank: int, world_size: int) -> StepStream:
        """The steps of one rank from `start_step` on."""
        multiple = ACCELERATOR_PREDICTIONS_MULTIPLE
        if device_type(self.trainer) == "cpu":
            multiple = 1
        return StepStream(self.bound_phases(), start_step, rank, world_size, multiple)

    def validation_stream(self, rank: int, world_size: int) -> ValidationStream:
        """One rank's share of the held-out instances; none twice."""
        phases = []
        # As many tokens in a batch as the largest micro-batch of training.
        tokens = max(phase.micro_batch_size * phase.seq_length for phase in self.phases)
        batch_size = max(1, tokens // self.validation_seq_length)
        for objective in self.objectives:
            instances = self.instances("validation", self.validation_seq_length, objective)
            count = min(self.validation_instances, len(instances))
            if count < world_size:
                raise ValueError(
                    f"The validation split has {count} instances for {world_size} devices: raise"
                    " validation.instances or corpus.validation_fraction."
                )
            # As few rounds of a batch on every rank as hold all, and no batch without an instance.
            rounds = math.ceil(count / (batch_size * world_size))
            rounds = max(1, min(rounds, count // world_size))
            batches = np.array_split(np.arange(count), rounds * world_size)
            phases.append((objective, instances, batches[rank::world_size]))
        return ValidationStream(phases, self._current_phase, self.corpus.validation.source_names)

    def held_out_labels(self) -> NDArray[np.int64]:
        """What the held-out loss is over [P].

        It is the tokens that all instances ask for, by the last phase's objective.
        """
        batches = self.validation_stream(0, 1)
        labels = np.concatenate([batch["prediction_labels"].numpy() for batch in batches])
        return labels[labels != self.corpus.tokenizer.sep_id]

    def _current_phase(self) -> int:
        """The phase of the step that was just taken; the last one where nobody trains."""
        if self.trainer is None:
            return len(self.phases) - 1
        # Phases begin at [0, 100]: step number 100, counted from 1, is the first one's last.
        return max(0, bisect_left(self.first_steps, self.trainer.global_step) - 1)

    @property
    def epoch_ends(self) -> list[int]:
        """The steps that an epoch of Lightning's ends with: all phases are one."""
        return [self.total_steps]

    def train_dataloader(self) -> Iterable[TorchBatch | list[TorchBatch]]:
        """This rank's optimizer steps from the trainer's step on.

        They are made ahead of their use where the device is a GPU.
        """
        return ReiterableLoader(self._train_loader)

    def _train_loader(self) -> Iterable[TorchBatch | list[TorchBatch]]:
        stream = self.train_stream(*loader_position(self.trainer))
        return batch_loader(stream, self.num_workers, self.trainer)

    def val_dataloader(self) -> Iterable[TorchBatch | list[TorchBatch]]:
        _, rank, world_size = loader_position(self.trainer)
        with raised_by_all_ranks(self.trainer):
            return batch_loader(self.validation_stream(rank, world_size))
