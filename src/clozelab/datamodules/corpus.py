"""The pre-training corpus as batches.

Unusual: one Lightning batch is one optimizer step, given as this rank's list of micro-batches, and the loader's whole
state is the step it starts at. Which rows a step holds is a pure function of (seed, step); rank, world size,
micro-batch size and worker count only cut the same global batch differently.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from clozelab.corpus.instances import Instances
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.random import batch_positions, derive_seed, instance_indices
from clozelab.datamodules.loading import device_type, for_device
from clozelab.objectives.objective import Objective, pad_predictions, to_torch

log = logging.getLogger(__name__)

VALIDATION_SEED = 20181011
"""Held-out rows and their masks are the same for every run, arm and training seed."""

SAMPLED_ROWS = 2048
"""Rows looked at once before training for what would spoil next-sentence prediction."""
MAX_FALLBACK_FRACTION = 0.05

ACCELERATOR_PREDICTIONS_MULTIPLE = 128
"""The number of predictions is raised to a multiple of it there: few shapes, and tiles that are full."""

TorchBatch = dict[str, Any]


@dataclass(frozen=True)
class Phase:
    """One stretch of pre-training at one sequence length; batch sizes count rows."""

    seq_length: int
    steps: int
    global_batch_size: int
    micro_batch_size: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"phases: {name} is {value}; it must be at least 1.")


@dataclass(frozen=True)
class BoundPhase:
    """A phase with its instances and its place among the optimizer steps."""

    phase: Phase
    first_step: int
    instances: Instances
    seed: int


class StepStream(IterableDataset[list[TorchBatch]]):
    """Optimizer steps `start_step`, `start_step` + 1, ... for one rank, each a list of micro-batches.

    Worker w of W makes every W-th step; the loader puts them back in order.
    """

    def __init__(
        self,
        objective: Objective,
        phases: Sequence[BoundPhase],
        start_step: int,
        rank: int,
        world_size: int,
        predictions_multiple: int = 1,
    ) -> None:
        self.objective = objective
        self.predictions_multiple = predictions_multiple
        self.phases = list(phases)
        self.start_step = start_step
        self.rank = rank
        self.world_size = world_size

    @property
    def total_steps(self) -> int:
        return sum(bound.phase.steps for bound in self.phases)

    def __iter__(self) -> Iterator[list[TorchBatch]]:
        worker = get_worker_info()
        offset, stride = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        for step in range(self.start_step + offset, self.total_steps, stride):
            yield self.micro_batches(step)

    def micro_batches(self, step: int) -> list[TorchBatch]:
        """This rank's part of one optimizer step; the last micro-batch is smaller where the sizes do not divide."""
        bound = next(bound for bound in reversed(self.phases) if bound.first_step <= step)
        phase = bound.phase
        positions = batch_positions(step - bound.first_step, phase.global_batch_size, self.rank, self.world_size)
        epoch, index = instance_indices(bound.seed, len(bound.instances), positions)
        micros = []
        for low in range(0, len(index), phase.micro_batch_size):
            part = slice(low, low + phase.micro_batch_size)
            batch = self.objective.make_batch(bound.instances, bound.seed, _compact(epoch[part]), index[part])
            if self.predictions_multiple > 1:
                batch = pad_predictions(batch, self.predictions_multiple)
            micros.append(to_torch(batch))
        return micros


def _compact(epoch: NDArray[np.int64]) -> int | NDArray[np.int64]:
    """One number where all rows are of one epoch, which is nearly always and cheaper."""
    return int(epoch[0]) if (epoch == epoch[0]).all() else epoch


def _as_it_is(batch: Any) -> Any:
    return batch


class ValidationStream(IterableDataset[TorchBatch]):
    """The fixed held-out rows, epoch 0, one batch at a time; every rank has the same number of batches."""

    def __init__(
        self, objective: Objective, instances: Instances, batches: list[NDArray[np.int64]], source_names: Sequence[str]
    ) -> None:
        self.objective = objective
        self.instances = instances
        self.batches = batches
        self.source_names = tuple(source_names)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[TorchBatch]:
        for index in self.batches:
            batch = to_torch(self.objective.make_batch(self.instances, VALIDATION_SEED, 0, index))
            yield {**batch, "source_names": self.source_names}


def _look_at_pairs(instances: Instances, where: str) -> None:
    """Logs documents without pairs, and warns where random next segments are too rare for an honest label."""
    skipped = getattr(instances, "num_skipped_documents", 0)
    if skipped:
        log.info("%s: %d documents of a single sentence make no pair and are left out", where, skipped)
    count = min(len(instances), SAMPLED_ROWS)
    rows = instances.rows(0, 0, instance_indices(0, len(instances), np.arange(count))[1])
    wanted = rows.num_fallbacks + (0 if rows.next_sentence_label is None else int(rows.next_sentence_label.sum()))
    if rows.num_fallbacks > MAX_FALLBACK_FRACTION * wanted:
        log.warning(
            "%s: %d of %d sampled rows that should get a random next segment find none in another document and stay "
            "'is next', so the document tells the label and next-sentence accuracy will flatter the model: add "
            "documents, or cut very long ones (in a text file, a blank line separates documents)",
            where,
            rows.num_fallbacks,
            wanted,
        )


class CorpusDataModule(LightningDataModule):
    """Training and held-out batches of a prepared corpus for one objective.

    Args:
        prepared_corpus: tokenizer, train and validation shards (PreparedCorpus).
        objective: makes the batches.
        phases: mappings with seq_length, steps, global_batch_size, micro_batch_size, in order.
        seed: of order, pairs and masks in training.
        validation_instances: held-out rows; fewer where the split has fewer.
        validation_seq_length: their length.
        num_workers: processes that make training batches; 0 is best on a CPU. Changes no batch.

    Rank, world size and the first step come from the trainer; without one they are 0, 1 and 0.
    """

    def __init__(
        self,
        prepared_corpus: Any,
        objective: Objective,
        *,
        phases: Sequence[Mapping[str, int]],
        seed: int,
        validation_instances: int,
        validation_seq_length: int,
        num_workers: int,
    ) -> None:
        super().__init__()
        if not phases:
            raise ValueError(
                "phases is empty: give at least one {seq_length, steps, global_batch_size, micro_batch_size}."
            )
        if validation_instances < 1:
            raise ValueError(f"validation.instances is {validation_instances}; it must be at least 1.")
        self.corpus = prepared_corpus
        self.objective = objective
        self.phases = [Phase(**dict(phase)) for phase in phases]
        self.seed = seed
        self.validation_instances = validation_instances
        self.validation_seq_length = validation_seq_length
        self.num_workers = num_workers
        self._bound: dict[tuple[str, int], Instances] = {}

    @property
    def total_steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    @property
    def micro_batch_sizes(self) -> list[int]:
        """Of each phase; setting it cuts the same global batches into other pieces."""
        return [phase.micro_batch_size for phase in self.phases]

    @micro_batch_sizes.setter
    def micro_batch_sizes(self, sizes: Sequence[int]) -> None:
        self.phases = [replace(phase, micro_batch_size=size) for phase, size in zip(self.phases, sizes, strict=True)]

    def setup(self, stage: str) -> None:  # noqa: ARG002
        """Finds all instances now: errors come before training starts, and forked workers share them."""
        self._check_world_size(self._place()[1])
        for phase in self.phases:
            self.instances("train", phase.seq_length)
        self.instances("validation", self.validation_seq_length)

    def instances(self, split: str, seq_length: int) -> Instances:
        """The instances of one split at one length, found once."""
        key = (split, seq_length)
        if key not in self._bound:
            shards = getattr(self.corpus, split)
            try:
                found = self.objective.bind(shards, SpecialIds.of(self.corpus.tokenizer), seq_length)
            except ValueError as error:
                raise ValueError(f"The {split} split at seq_length {seq_length}: {error}") from error
            log.info("%s split at seq_length %d: %d instances", split, seq_length, len(found))
            if self.objective.pair is not None:
                _look_at_pairs(found, f"{split} split at seq_length {seq_length}")
            self._bound[key] = found
        return self._bound[key]

    def train_stream(self, start_step: int, rank: int, world_size: int) -> StepStream:
        """The steps of one rank from `start_step` on."""
        self._check_world_size(world_size)
        bound, first_step = [], 0
        for number, phase in enumerate(self.phases):
            instances = self.instances("train", phase.seq_length)
            bound.append(BoundPhase(phase, first_step, instances, derive_seed(self.seed, f"phase {number}")))
            first_step += phase.steps
        multiple = 1 if device_type(self.trainer) == "cpu" else ACCELERATOR_PREDICTIONS_MULTIPLE
        return StepStream(self.objective, bound, start_step, rank, world_size, multiple)

    def validation_stream(self, rank: int, world_size: int) -> ValidationStream:
        """One rank's share of the held-out rows; no row twice."""
        instances = self.instances("validation", self.validation_seq_length)
        count = min(self.validation_instances, len(instances))
        if count < world_size:
            raise ValueError(
                f"The validation split has {count} instances for {world_size} devices: raise validation.instances or "
                "corpus.validation_fraction."
            )
        _, index = instance_indices(VALIDATION_SEED, len(instances), np.arange(count))
        rounds = max(1, min(-(-count // (self._validation_rows() * world_size)), count // world_size))
        parts = np.array_split(index, rounds * world_size)
        return ValidationStream(self.objective, instances, parts[rank::world_size], self.corpus.validation.source_names)

    def held_out_labels(self) -> NDArray[np.int64]:
        """The token ids that all held-out rows ask for [P]."""
        return np.concatenate([batch["prediction_labels"].numpy() for batch in self.validation_stream(0, 1)])

    def _validation_rows(self) -> int:
        """As many tokens in a batch as the largest micro-batch of training."""
        tokens = max(phase.micro_batch_size * phase.seq_length for phase in self.phases)
        return max(1, tokens // self.validation_seq_length)

    def _check_world_size(self, world_size: int) -> None:
        for phase in self.phases:
            if phase.global_batch_size % world_size:
                raise ValueError(
                    f"phases: global_batch_size {phase.global_batch_size} does not divide over {world_size} devices; "
                    "choose a multiple of the number of devices."
                )

    def _place(self) -> tuple[int, int]:
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)

    def train_dataloader(self) -> Any:
        """This rank's optimizer steps from the trainer's step on; ahead of their use where the device is a GPU."""
        rank, world_size = self._place()
        start_step = self.trainer.global_step if self.trainer is not None else 0
        # Forked workers share the memory maps and the instances; elsewhere they open and find them again.
        can_fork = "fork" in multiprocessing.get_all_start_methods()
        loader = DataLoader(
            self.train_stream(start_step, rank, world_size),
            batch_size=None,
            num_workers=self.num_workers,
            multiprocessing_context="fork" if self.num_workers and can_fork else None,
            collate_fn=_as_it_is,
        )
        return for_device(loader, self.trainer)

    def val_dataloader(self) -> DataLoader[TorchBatch]:
        return DataLoader(self.validation_stream(*self._place()), batch_size=None, num_workers=0, collate_fn=_as_it_is)
