"""What the data modules of all fine-tuning tasks share: how long training is, and packed batches
without padding.

One Lightning epoch is the stretch between two evaluations, so that these fall on exact steps, the
last one included. A batch is a dictionary: input_ids, token_type_ids, position_ids int64[T],
layout, the task's targets and `example_index` [B]; in training also global_examples, global_targets
and global_tokens, its size over all ranks (targets: the predictions that the loss is a mean of),
`contents`, and local_weight, 0.0 on a rank that got no example of it.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from clozelab.corpus.encoding import MAX_UNKNOWN_SHARE, refuse_unknown
from clozelab.corpus.files import file_sha256
from clozelab.corpus.generated import generator_of
from clozelab.corpus.random import uniform_u64
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules import files
from clozelab.datamodules.examples import Ints, Sequences, bucketed_batches, token_budget_batches
from clozelab.datamodules.files import Arrays, Facts, Scores, TaskPreview, fingerprint_of
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.training.runtime import ReiterableLoader, batch_loader, loader_position

log = logging.getLogger(__name__)

Batch = dict[str, Any]
SAMPLED_SEQUENCES = 2000  # of a split, evenly spread, in which [UNK] are counted
CUTS = {  # counts of a split that mean lost text, in words
    "truncated_sequences": "sequences are longer than max_seq_length={max_seq_length} and were cut",
    "truncated_tokens": "tokens were lost with them",
    "questions_cut": "questions are longer than max_query_length and were cut",
    "empty_texts": "texts are empty",
    "cut_words": "words are longer than a sequence and were cut",
}


@dataclass(frozen=True)
class EncoderSource:
    """An encoder for a data module that computes features with it; loaded only where they are not
    in the cache.
    """

    fingerprint: str  # names the weights: another fingerprint, other features
    load: Callable[[], Encoder]
    device: torch.device


@dataclass(frozen=True)
class TaskInputs:
    """What a task's data is made from beside its settings; the encoder takes sequences of up to
    `max_positions`.
    """

    name: str
    data_dir: Path
    cache_dir: Path
    tokenizer: Tokenizer
    max_positions: int
    encoder: EncoderSource | None = None  # only what computes features needs it
    max_unknown_share: float = MAX_UNKNOWN_SHARE  # of [UNK] in a split
    # hash of the code that reads it: what other code has put into the cache is not found
    code: str = ""
    # of a fine-tuned model: its classes, whatever the files have
    label_names: Sequence[str] | None = None
    corpus: str | None = None  # fingerprint of the prepared corpus that the encoder was trained on


@dataclass(frozen=True)
class TrainingPlan:
    """How long and on how much training goes."""

    global_batch_size: int
    epochs: float
    evaluations_per_epoch: int
    max_train_examples: int | None
    seed: int
    num_workers: int


class FinetuningDataModule(LightningDataModule):
    """Base of one data module a benchmark format; a subclass reads its splits.

    Files are named below data_dir; `how_to_get` is said where one is missing. `test_files` (name ->
    file) are read only to be predicted. `max_seq_length` is cut to what the encoder takes;
    evaluation batches to `evaluation_tokens`.
    """

    train: Any  # the training split, of the same kind as `validation`
    train_sequences: Sequences
    train_targets: dict[str, Ints]
    validation: Any  # the validation split as the task's module wants it: texts, labels, names
    validation_sequences: Sequences

    def __init__(
        self,
        *,
        inputs: TaskInputs,
        plan: TrainingPlan,
        train_file: str,
        validation_file: str,
        test_files: Mapping[str, str] | None,
        how_to_get: str,
        max_seq_length: int,
        evaluation_tokens: int,
    ) -> None:
        super().__init__()
        self.inputs, self.plan = inputs, plan
        self.require = partial(files.require_file, inputs.data_dir, how_to_get=how_to_get)
        self.max_seq_length = min(max_seq_length, inputs.max_positions)
        self.evaluation_tokens, self.test_files = evaluation_tokens, dict(test_files or {})
        self.train_path, self.validation_path = (
            self.require(train_file),
            self.require(validation_file),
        )
        self.unknown_shares: dict[str, float] = {}  # of [UNK] in the splits that were read

    @property
    @abstractmethod
    def reading(self) -> dict[str, Any]:
        """How the two files are read, and the content of all others that are read with them."""

    @property
    def tokenization(self) -> dict[str, Any]:
        """What the encoder adds: the other part of what the sequences are made from."""
        types = {} if self.inputs.tokenizer.has_token_types else {"token_types": 1}
        return {
            "tokenizer": self.inputs.tokenizer.fingerprint,
            "max_seq_length": self.max_seq_length,
            **types,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Names everything the sequences are made from; cheap."""
        return fingerprint_of({"sources": self.source_fingerprint, **self.tokenization})

    @cached_property
    def source_fingerprint(self) -> str:
        """Names the files' content and how it is read: where it is equal, runs of different
        encoders are comparable.
        """
        found = [file_sha256(path) for path in (self.train_path, self.validation_path)]
        return fingerprint_of({"files": found, **self.reading})

    @cached_property
    def synthetic(self) -> str | None:
        """Name of the generator that wrote these files in a real benchmark's format; None for real
        ones.
        """
        return generator_of(self.inputs.data_dir, (self.train_path, self.validation_path))

    @cached_property
    def baselines(self) -> Scores:
        """What simple methods score on the validation split: as a list beside it says, else learnt
        and computed.
        """
        if listed := files.baselines_of(self.inputs.data_dir, self.validation_path):
            return listed
        made_from = {"code": self.inputs.code, "sources": self.source_fingerprint}
        key = files.content_key(made_from | {"max_examples": self.plan.max_train_examples})
        folder = self.inputs.cache_dir / "baselines" / f"{self.inputs.name}-{key}"

        return files.cached_folder(folder, lambda _: {"scores": self.compute_baselines()})["scores"]

    @abstractmethod
    def compute_baselines(self) -> Scores:
        """The same, from the training examples that the plan allows; `setup` has run before, so the
        files are sound.
        """

    @property
    def facts(self) -> dict[str, Any]:
        """Counts worth keeping with a run: examples, skipped rows, cut lengths."""
        found = {
            "max_seq_length": self.max_seq_length,
            "train_examples_available": self.train.num_available,
        }
        found["unknown_shares"], found["token_types"] = (
            self.unknown_shares,
            1 + self.inputs.tokenizer.has_token_types,
        )
        found["bad_rows"] = sum(split.num_bad_rows for *_, split in self.splits())
        for name, split in (("train", self.train), ("validation", self.validation)):
            found |= {f"{name}_examples": len(split), f"{name}_counts": split.counts}
        return found

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        """Read and tokenise both splits; does nothing the second time."""
        if not hasattr(self, "train"):
            self.read_splits()
            for name, path, split in self.splits():
                if split.num_bad_rows:  # a score is over the others
                    log.warning(
                        "%s: %d damaged row(s) of %s left out",
                        self.inputs.name,
                        split.num_bad_rows,
                        path,
                    )
                self._say_what_is_lost(name, split)
            said = "%s: %d training and %d validation examples, cut at %d tokens"
            log.info(
                said, self.inputs.name, len(self.train), len(self.validation), self.max_seq_length
            )

    @abstractmethod
    def read_splits(self) -> None:
        """Fill `train`, `validation`, their sequences and targets.

        A split has a length, `num_available` (before it was cut), `num_bad_rows` and `counts` of
        what is unusual."""

    def splits(self) -> list[tuple[str, Path, Any]]:
        return [
            ("training", self.train_path, self.train),
            ("validation", self.validation_path, self.validation),
        ]

    def cached(
        self, path: Path, settings: Mapping[str, Any], build: Callable[[], tuple[Arrays, Facts]]
    ) -> tuple[Arrays, Facts, str]:
        """Arrays and facts of one file, built once, and their key: of the file, `tokenization` and
        `settings`.
        """
        key = files.content_key(
            {"code": self.inputs.code, "file": file_sha256(path), **self.tokenization, **settings}
        )
        return (
            *files.cached_arrays(
                self.inputs.cache_dir / "tasks" / f"{self.inputs.name}-{key}", build
            ),
            key,
        )

    @abstractmethod
    def preview(self) -> TaskPreview:
        """Texts and labels of both splits as written, without tokenising."""

    @property
    def num_first_sequences(self) -> int:
        """Leading sequences of `train_sequences` that training goes through once before it starts
        on the others.
        """
        return 0

    @property
    def first_steps(self) -> int:
        """Optimizer steps that go through the first sequences."""
        return -(-self.num_first_sequences // self.plan.global_batch_size)

    @property
    def steps_per_epoch(self) -> int:
        return -(
            -(len(self.train_sequences) - self.num_first_sequences) // self.plan.global_batch_size
        )

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return self.first_steps + max(1, round(self.steps_per_epoch * self.plan.epochs))

    def loader_position(self, step: int) -> tuple[int, int, slice]:
        """(epoch, batch of it, sequences it goes through) of an optimizer step; the first sequences
        are epoch -1.
        """
        if step < self.first_steps:
            return -1, step, slice(0, self.num_first_sequences)
        epoch, position = divmod(step - self.first_steps, self.steps_per_epoch)
        return epoch, position, slice(self.num_first_sequences, len(self.train_sequences))

    @property
    def evaluation_steps(self) -> list[int]:
        """Optimizer steps after which validation runs: evenly inside an epoch, and after the last
        step.
        """
        number, first, steps = (
            self.plan.evaluations_per_epoch,
            self.first_steps,
            self.steps_per_epoch,
        )
        marks = {
            first + round(k * steps / number)
            for k in range(1, round(self.plan.epochs * number) + 2)
        }
        return sorted(
            {step for step in marks if first < step < self.total_steps} | {self.total_steps}
        )

    def require_test_files(self) -> str:
        """Fingerprint of the test files; ValueError where the task has none or one is missing."""
        return fingerprint_of(
            {name: file_sha256(path) for name, path in self._test_paths().items()}
        )

    def load_test(self) -> dict[str, tuple[Sequences, Any]]:
        """The test sets by name, as `read_test` gives them; a damaged row is an error here."""
        found = {name: self.read_test(path) for name, path in self._test_paths().items()}
        for name, (_, split) in found.items():
            self._say_what_is_lost(name, split)
            if split.num_bad_rows:
                wanted = (
                    "predictions must be made for every row of a test file, so take an undamaged"
                    " copy"
                )
                raise ValueError(
                    f"{self.test_files[name]}: {split.num_bad_rows} damaged rows; {wanted}"
                )
        return found

    @abstractmethod
    def read_test(self, path: Path) -> tuple[Sequences, Any]:
        """One test file, after `setup`: its sequences for batches, and the split as the task's
        module wants it.
        """

    def _say_what_is_lost(self, name: str, split: Any) -> None:
        """Warn of text that did not fit into the sequences of a split, or is [UNK] there;
        ValueError for too much.
        """
        if lost := [
            f"{split.counts[key]} {text}" for key, text in CUTS.items() if split.counts.get(key)
        ]:
            message = ", ".join(lost).format(max_seq_length=self.max_seq_length)
            log.warning("%s, %s: %s", self.inputs.name, name, message)
        sequences, tokenizer = getattr(split, "features", split).sequences, self.inputs.tokenizer
        sampled = np.linspace(0, len(sequences) - 1, min(len(sequences), SAMPLED_SEQUENCES)).astype(
            np.int64
        )
        ids = sequences.gather(sampled)["input_ids"]
        unknown = (ids == tokenizer.unk_id).sum() / max(
            1, (~np.isin(ids, (tokenizer.cls_id, tokenizer.sep_id))).sum()
        )
        self.unknown_shares[name] = round(float(unknown), 4)
        refuse_unknown(
            f"task {self.inputs.name}, {name} file,", float(unknown), self.inputs.max_unknown_share
        )

    def _test_paths(self) -> dict[str, Path]:
        if not self.test_files:
            wanted = "name them (+task.data.test_files.NAME=FILE), or leave predict_test=false"
            raise ValueError(f"task {self.inputs.name!r} has no test files to predict; {wanted}")
        return {name: self.require(file) for name, file in self.test_files.items()}

    def evaluation_loader(self, sequences: Sequences) -> DataLoader[Batch]:
        """All sequences once, in large batches of similar length; the same on every rank."""
        batches: Any = token_budget_batches(sequences.lengths, self.evaluation_tokens)
        return DataLoader(
            batches, batch_size=None, collate_fn=partial(make_batch, sequences, targets={})
        )

    @property
    def epoch_ends(self) -> list[int]:
        """The steps that an epoch of Lightning's ends with."""
        return self.evaluation_steps

    def train_dataloader(self) -> Any:
        """Batches from the trainer's step to the next evaluation."""
        return ReiterableLoader(self._stretch)

    def _stretch(self) -> Any:
        step, rank, world = loader_position(self.trainer)
        stop = next((mark for mark in self.evaluation_steps if mark > step), step)
        return batch_loader(
            TrainingBatches(self, range(step, stop), rank, world),
            self.plan.num_workers,
            self.trainer,
        )

    def val_dataloader(self) -> Any:
        loader = self.evaluation_loader(self.validation_sequences)
        return ReiterableLoader(lambda: loader)


class TrainingBatches(IterableDataset[Batch]):
    """This rank's part of some optimizer steps' batches, each a pure function of (seed, step, rank,
    world size).
    """

    def __init__(
        self, data: FinetuningDataModule, steps: range, rank: int, world_size: int
    ) -> None:
        self.sequences, self.targets, self.plan = (
            data.train_sequences,
            data.train_targets,
            data.plan,
        )
        self.places = [data.loader_position(step) for step in steps]
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        batches: list[Ints] = []
        current = -2
        for epoch, position, sequences in self.places[first::stride]:
            if epoch != current:
                size, seed, lengths = (
                    self.plan.global_batch_size,
                    self.plan.seed,
                    self.sequences.lengths[sequences],
                )
                # The sequences that come first share the first epoch's number: they are other
                # sequences.
                batches = bucketed_batches(lengths, batch_size=size, seed=seed, epoch=max(0, epoch))
                current = epoch
            index = batches[position] + sequences.start
            contents = uniform_u64(
                self.plan.seed, epoch + 1, "contents", index, self.sequences.lengths[index]
            )
            # A rank without an example of its own computes on one, with a weight of nothing.
            mine = index[self.rank :: self.world_size]
            batch = make_batch(self.sequences, mine if len(mine) else index[:1], self.targets)
            yield batch | {
                "contents": int(contents.sum()),
                "global_examples": len(index),
                "global_targets": int(self.sequences.num_targets[index].sum()),
                "global_tokens": int(self.sequences.lengths[index].sum()),
                "local_weight": float(len(mine) > 0),
            }


def make_batch(sequences: Sequences, index: Ints, targets: Mapping[str, Ints]) -> Batch:
    """The sequences at `index` as a torch batch, with their part of each target [N]."""
    arrays = sequences.gather(index)
    layout = Layout.ragged(arrays.pop("lengths"))
    arrays |= {name: values[index] for name, values in targets.items()} | {"example_index": index}
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()
    }
    return tensors | {"layout": layout}
