"""The data module of all fine-tuning tasks.

It knows how long training is, and packed batches without padding. One Lightning epoch is the
stretch between two evaluations, so that these fall on exact steps, the last one included.

A batch is a dictionary: input_ids, token_type_ids, position_ids int64[T], layout, the task's
targets and `example_index` [B]. In training it has also `contents` (a digest of its examples), its
size over all ranks (global_examples, global_targets and global_tokens; targets are the predictions
that the loss is a mean of), and local_weight, 0.0 on a rank that got no example of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from clozelab.corpus.random import Draws
from clozelab.datamodules.labelled import LabelledData
from clozelab.tasks.batches import Batch, make_batch
from clozelab.tasks.sequences import Ints, Sequences, token_budget_batches
from clozelab.training.runtime import ReiterableLoader, batch_loader, loader_position


class FinetuningDataModule(LabelledData, LightningDataModule):
    """Labelled examples of any unit and target, made batches of; see LabelledData."""

    @property
    def num_first_sequences(self) -> int:
        """How many leading `train_sequences` training goes through once, before all others.

        One of them may be several sequences of a split, such as one a choice.
        """
        num_extra = sum(len(split.sequences) for split in self.extra)
        num_all = num_extra + len(self.train.sequences)
        return num_extra * len(self.train_sequences) // num_all

    @property
    def first_steps(self) -> int:
        """Optimizer steps that go through the first sequences."""
        return math.ceil(self.num_first_sequences / self.plan.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        # the last batch of an epoch may be smaller
        num_sequences = len(self.train_sequences) - self.num_first_sequences
        return math.ceil(num_sequences / self.plan.global_batch_size)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.first_steps + max(1, round(self.steps_per_epoch * self.plan.epochs))

    def loader_position(self, step: int) -> tuple[int, int, slice]:
        """(epoch, batch of it, sequences that the epoch goes through) of an optimizer step.

        The first sequences are epoch -1.
        """
        # The first sequences are gone through once, in an epoch of their own.
        if step < self.first_steps:
            return -1, step, slice(0, self.num_first_sequences)
        epoch, position = divmod(step - self.first_steps, self.steps_per_epoch)
        return epoch, position, slice(self.num_first_sequences, len(self.train_sequences))

    @property
    def evaluation_steps(self) -> list[int]:
        """Optimizer steps after which validation runs.

        They are spread evenly inside an epoch, and the last step is always one; with none an epoch
        it is the only one.
        """
        # Rounded marks, so that N evaluations an epoch fall on whole steps whatever its length.
        per_epoch = self.plan.evaluations_per_epoch
        steps = {self.total_steps}
        if not per_epoch:
            return [self.total_steps]
        for number in range(1, round(self.plan.epochs * per_epoch) + 2):
            step = self.first_steps + round(number * self.steps_per_epoch / per_epoch)
            if self.first_steps < step < self.total_steps:
                steps.add(step)
        return sorted(steps)

    def evaluation_loader(self, sequences: Sequences) -> DataLoader[Batch]:
        """All sequences once, in large batches of similar length; the same on every rank."""
        batches: Any = token_budget_batches(sequences.lengths, self.evaluation_tokens)
        collate = partial(make_batch, sequences, targets={})
        return DataLoader(batches, batch_size=None, collate_fn=collate)

    @property
    def epoch_ends(self) -> list[int]:
        """The steps that an epoch of Lightning's ends with."""
        return self.evaluation_steps

    def train_dataloader(self) -> Iterable[Batch]:
        """Batches from the trainer's step to the next evaluation."""
        return ReiterableLoader(self._loader_to_next_evaluation)

    def _loader_to_next_evaluation(self) -> Iterable[Batch]:
        step, rank, world_size = loader_position(self.trainer)
        # After the last evaluation nothing is left to train on: an empty stretch.
        later_evaluations = (mark for mark in self.evaluation_steps if mark > step)
        stop = next(later_evaluations, step)
        batches = TrainingBatches(self, range(step, stop), rank, world_size)
        return batch_loader(batches, self.plan.num_workers, self.trainer)

    def val_dataloader(self) -> Iterable[Batch]:
        # one loader for all passes: its batches never change
        loader = self.evaluation_loader(self.validation_sequences)
        return ReiterableLoader(lambda: loader)


class TrainingBatches(IterableDataset[Batch]):
    """This rank's part of some optimizer steps' batches.

    Each is a pure function of (seed, step, rank, world size).
    """

    def __init__(
        self, data: FinetuningDataModule, steps: range, rank: int, world_size: int
    ) -> None:
        self.sequences = data.train_sequences
        self.targets = data.train_targets
        self.unit = data.unit
        self.plan = data.plan
        # Known now, since workers get a copy of this object and not the data module.
        self.places = [data.loader_position(step) for step in steps]
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Batch]:
        # Worker w of W makes every W-th batch.
        worker = get_worker_info()
        first = 0
        stride = 1
        if worker:
            first = worker.id
            stride = worker.num_workers
        batches: list[Ints] = []
        batches_epoch = None
        for epoch, position, section in self.places[first::stride]:
            if epoch != batches_epoch:
                # The sequences that come first (epoch -1) share the first epoch's number: they are
                # other sequences.
                batches = self.unit.draw_batches(
                    self.sequences,
                    section,
                    batch_size=self.plan.global_batch_size,
                    seed=self.plan.seed,
                    epoch=max(0, epoch),
                )
                batches_epoch = epoch
            yield self._local_batch(epoch, batches[position] + section.start)

    def _local_batch(self, epoch: int, index: Ints) -> Batch:
        """This rank's examples of the global batch at `index`."""
        lengths = self.sequences.lengths[index]
        # One number of every example's index and length: equal runs have equal sums in every batch.
        contents = Draws(self.plan.seed, epoch + 1, index).bits("contents", lengths)
        local_index = index[self.rank :: self.world_size]
        has_examples = len(local_index) > 0
        # A rank without an example computes on another's, with a weight of nothing.
        if not has_examples:
            local_index = index[:1]
        batch = make_batch(self.sequences, local_index, self.targets)
        # Words without a label are no targets, and a batch of them alone has a loss of 0.
        num_targets = max(1, int(self.sequences.num_targets[index].sum()))
        return batch | {
            "contents": int(contents.sum()),
            "global_examples": len(index),
            "global_targets": num_targets,
            "global_tokens": int(lengths.sum()),
            "local_weight": float(has_examples),
        }
