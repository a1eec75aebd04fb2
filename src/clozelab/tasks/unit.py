"""What a task's examples are: how they are read, and become sequences and batches.

A unit (a text or a pair, the words of a sentence, a question with its passage, a context with its
endings) knows the files it comes from, what of a held-out part stays together, and what a head
stands on. It knows nothing of what is predicted (target.py).

Letters: N examples of a split, B of a batch, H hidden size.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM
from clozelab.tasks.batches import Batch, BatchValues, in_order
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.preview import Preview
from clozelab.tasks.sequences import Ints, Sequences, bucketed_batches, join_sequences
from clozelab.tasks.splitting import swapped_hashes, text_hashes
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    from clozelab.tasks.target import Target


@dataclass(frozen=True, kw_only=True)
class Split:
    """The examples of one file for one role, encoded."""

    sequences: Sequences
    ids: NDArray[np.str_]  # [N]
    labels: np.ndarray  # as the target encodes them, one an example or one a word
    num_available: int = 0  # examples of the file, before it was cut
    num_bad_rows: int = 0
    counts: PlainDict = field(default_factory=dict)  # what is unusual about those in use
    # further validation sets, scored beside this one
    extra: dict[str, Split] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_outputs(self) -> int:
        """How many outputs a model has for it."""
        return len(self)

    @property
    def targets(self) -> dict[str, np.ndarray]:
        """What a training batch has of each sequence beside its tokens."""
        return {}

    @property
    def validation_sets(self) -> dict[str, Split]:
        """Itself and its `extra`, by what messages call them."""
        sets = {"validation split": self}
        for name, split in self.extra.items():
            sets[f"validation set {name}"] = split
        return sets

    def pool(self, outputs: np.ndarray) -> np.ndarray:
        """[num_outputs, ...] -> [N, ...], where an example has several outputs."""
        return outputs


class Examples(Protocol):
    """Some examples of a file, as each unit reads them: N of them."""

    @property
    def num_bad_rows(self) -> int:
        """Damaged rows that were left out."""

    @property
    def ids(self) -> Sequence[str]:
        """What records and prediction files call each example."""

    @property
    def rows(self) -> Sequence[Sequence[str]]:
        """The texts of each example: by them files are compared."""

    @property
    def lines(self) -> Sequence[int]:
        """Where each example stands in its file."""

    @property
    def numbers(self) -> Sequence[int]:
        """Which of the file's rows each example is, however many of them were read."""

    @property
    def labels(self) -> Sequence[Any] | None:
        """As a target reads them; None: the file has none."""

    @property
    def counts(self) -> Mapping[str, int]:
        """What is unusual about the file."""

    def __len__(self) -> int: ...

    def select(self, index: Sequence[int]) -> Self:
        """Those of these numbers."""


E = TypeVar("E", bound=Examples)


@dataclass(frozen=True)
class SplitSource(Generic[E]):
    """Where a split comes from."""

    path: Path
    role: str  # training | validation | test
    key: str  # names the content: what is computed from the sequences is stored under it
    examples: Callable[[], E]  # those in use, read once
    read: Callable[[], E]  # the same, read anew


@dataclass(frozen=True)
class EncoderSource:
    """An encoder for a unit that computes features with it.

    It is loaded only where the features are not in the cache.
    """

    fingerprint: str  # names the weights: another fingerprint, other features
    load: Callable[[], Encoder]
    device: torch.device


@dataclass(frozen=True)
class BatchContext:
    """What a unit may need beside its examples, to make batches of them."""

    name: str  # of the task
    cache_dir: Path
    evaluation_tokens: int
    encoder: EncoderSource | None


class TaskModel(Protocol):
    """The parts of the trained module that a unit uses."""

    encoder: Encoder
    bilstm: BiLSTM | None

    @property
    def output_head(self) -> nn.Module: ...

    def encode(self, batch: Batch, read_slots: Tensor | None = None) -> Tensor:
        """[T, H]: the encoder's states, or what the BiLSTM makes of them.

        `read_slots`: those of the encoder's that are wanted; None: all.
        """


class Unit(ABC, Generic[E]):
    """Base of all units, each of which has a class for what it reads."""

    kind: ClassVar[str] = ""  # by which a target names it; "": any target may take it
    row_noun: ClassVar[str] = "line"  # what numbers a file's rows
    # of the rows of which a part is held out for validation
    grouping: str = "rows with the same text stay together"
    group_column: str | None = None  # rows with the same cell of it are in one part of the file
    column_key: ClassVar[str] = "task.data.label_column"  # of the labels
    index_key: ClassVar[str] = "example_index"  # what of a batch numbers a model's outputs
    aligned: bool = False  # text number i of every part, and label i, are of example i
    # joint: as one sequence; apart: each text as one; choices: the first with each other; "": none
    pairs_read: str = ""
    template_texts: Sequence[str] = ()  # of a prompt: what stands in each sequence, beside the mask
    expects_unanswerable: bool | None = None  # of questions: whether some may have no answer
    reads_folders: bool = False  # what its data name are folders of files
    has_folds = False  # it tells training from validation itself
    # whether training reads fewer rows of a file than validation, or other texts of them
    training_differs: bool = False
    # whether two rows with the same texts may be held out and trained on
    divides_equal_rows = False
    # whether a training batch holds examples of similar length; None: where they have labels and
    # the target does not compare them, for their lengths would tell them apart
    groups_by_length: bool | None = None
    has_training_labels: bool = True
    trains_text_with_itself: bool = False  # a text's positive is the text again
    compares_swapped = False  # whether a pair is the same in swapped order
    # whether files of `train_extra`, and of `extra_validation_files`, may stand beside the main one
    trains_on_several_files: ClassVar[bool] = True
    scores_several_files: ClassVar[bool] = True
    max_seq_length: int  # tokens of a sequence, once `fitted`

    def fitted(self, max_seq_length: int, task_name: str) -> Self:
        """A copy for sequences of so many tokens; ValueError where that is too short."""
        fitted = copy.copy(self)
        fitted.max_seq_length = max_seq_length
        return fitted

    def check_head(self, head: str) -> None:
        """ValueError for a head that cannot stand on it."""

    def check_files(
        self, train_extra: Sequence[str] | None, extra_validation: Mapping[str, str] | None
    ) -> None:
        """ValueError for further files where there can be one alone."""
        if train_extra and not self.trains_on_several_files:
            raise ValueError(
                f"task.data.train_extra={list(train_extra)}: this task trains on one file; write"
                " all into task.data.train_file"
            )
        if extra_validation and not self.scores_several_files:
            name, file = next(iter(extra_validation.items()))
            raise ValueError(
                f"task.data.extra_validation_files.{name}={file}: this task is scored on one file;"
                " leave the setting out, and score the finished model on that file with"
                " measure=labelled (docs/measures.md)"
            )

    # Fingerprints, and what a model's folder remembers

    def check_target(self, target: Target) -> None:
        """ValueError for a target that cannot predict from this unit, or has nothing to learn."""
        if target.units and self.kind and self.kind not in target.units:
            raise ValueError(
                f"task.target {type(target).__name__} cannot predict from task.unit"
                f" {type(self).__name__}: take {' or '.join(target.units)} as the unit"
            )
        if target.learns_from_labels and not self.has_training_labels:
            raise ValueError(
                f"task.target {type(target).__name__} learns from labels, and with"
                " task.data.train_columns the training file has none: leave train_columns out"
            )
        if self.has_training_labels and not target.learns_from_labels:
            raise ValueError(
                f"task.target {type(target).__name__} learns from texts without labels: name their"
                " columns in task.data.train_columns"
            )

    @abstractmethod
    def reading(self, target: Target) -> PlainDict:
        """How files are read, for fingerprints."""

    def role_reading(self, role: str) -> PlainDict:
        """What a file of a role is read by beside that, for the cache."""
        return {}

    def tokenization(self) -> PlainDict:
        """The same of how texts become tokens, beside the tokenizer and the length."""
        return {}

    def config_to_save(self) -> PlainDict:
        """How texts were read, for a model's config.json: names of settings -> values."""
        return {"max_seq_length": self.max_seq_length}

    def model_config_to_save(self) -> PlainDict:
        """The same of what the head stands on."""
        return {}

    @property
    def facts(self) -> PlainDict:
        """What a run's record keeps of it."""
        return {}

    # Files

    def row_arrays(self, examples: E) -> Arrays:
        """A hash of each row's texts, and its line; of pairs another one, in swapped order."""
        rows = examples.rows
        arrays: Arrays = {
            "row_hashes": text_hashes(rows),
            "row_lines": np.array(examples.lines, dtype=np.int64),
        }
        if self.compares_swapped and rows and len(rows[0]) == 2:
            arrays["swapped_hashes"] = swapped_hashes(rows)
        return arrays

    @abstractmethod
    def read(self, path: Path, role: str, target: Target, *, strict: bool = True) -> E:
        """The examples of a file; without `strict` labels are taken as they are written."""

    @abstractmethod
    def groups(self, examples: E) -> Sequence[str]:
        """[N]: examples of one group are held out together, or not at all."""

    def strata(self, examples: E, target: Target) -> NDArray[np.int64] | None:
        """[N]: of what the held-out part has the same shares."""
        return None

    @abstractmethod
    def preview_texts(self, examples: E) -> Mapping[str, Sequence[str]]:
        """Part of an example (sentence, question, ...) -> its texts."""

    def preview(self, examples: E, target: Target) -> Preview:
        """The examples as written."""
        labels = None
        if examples.labels is not None:
            labels = target.shown_labels(self.flat_labels(examples))
        rows = examples.rows
        counts = dict(examples.counts)
        return Preview(self.preview_texts(examples), labels, len(examples), counts, rows)

    def joined(self, parts: Sequence[E]) -> E:
        """The examples of several training files as those of one, for baselines."""
        (examples,) = parts
        return examples

    # Sequences

    def flat_labels(self, examples: E) -> Sequence[Any]:
        """One label for each prediction, in file order."""
        return examples.labels or ()

    def line_of(self, examples: E, place: int) -> int:
        """Where the label stands that is number `place` of `flat_labels`."""
        return examples.lines[place]

    def label_pool(self, examples: E) -> Sequence[Any]:
        """All labels of the file that the examples are of, among which its classes are."""
        return examples.labels or ()

    def labels(self, examples: E, target: Target, path: Path) -> np.ndarray:
        """The labels as numbers; -1 for examples without labels."""
        if examples.labels is None:
            return np.full(len(examples), -1, dtype=np.int64)
        return target.encode(self.flat_labels(examples))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """ValueError where a sequence in these tokens has no place for a text."""

    @abstractmethod
    def encode(self, examples: E, tokenizer: Tokenizer) -> tuple[Arrays, PlainDict]:
        """Arrays of all sequences, and what was unusual about them."""

    @abstractmethod
    def split(self, arrays: Arrays, facts: Facts, source: SplitSource[E]) -> Split:
        """A split of what `encode` and `labels` gave."""

    def check_splits(self, splits: Sequence[tuple[Path, Any]], name: str) -> None:
        """Warn of what is odd about training and validation of the task of this name."""

    def batched(self, splits: Sequence[Any], role: str, batch_context: BatchContext) -> Sequences:
        """What batches of some splits, one behind the other, are made of."""
        return join_sequences([split.sequences for split in splits])

    def draw_batches(
        self, sequences: Sequences, part: slice, *, batch_size: int, seed: int, epoch: int
    ) -> list[Ints]:
        """The training batches of an epoch: which sequences share a step.

        They are numbered from the beginning of `part`, and each of it is in one batch. Workers call
        it, too: it is a pure function of its arguments.
        """
        lengths = sequences.lengths[part]
        groups_by_length = self.groups_by_length
        if groups_by_length is None:
            groups_by_length = self.has_training_labels
        if not groups_by_length:
            # Examples of one length are not sorted, so that batches are uniform draws.
            lengths = np.zeros_like(lengths)
        return bucketed_batches(lengths, batch_size=batch_size, seed=seed, epoch=epoch)

    def targets(self, splits: Sequence[Any]) -> dict[str, np.ndarray]:
        """What a training batch has of each sequence beside its tokens."""
        targets = {}
        for name in splits[0].targets:
            targets[name] = np.concatenate([split.targets[name] for split in splits])
        return targets

    # The model

    def parts(self, encoder: Encoder) -> dict[str, nn.Module]:
        """What stands between the encoder and a head, by its name, beside a BiLSTM."""
        return {}

    def input_size(self, parts: Mapping[str, nn.Module]) -> int | None:
        """Width of what `parts` give; None: the encoder's."""
        return None

    @abstractmethod
    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """What an output layer stands on, one row a prediction."""

    def outputs(self, batches: Sequence[BatchValues], splits: Sequence[Any]) -> list[np.ndarray]:
        """What the model said of each split, in the order of its examples.

        `batches` number the outputs of all splits one behind the other.
        """
        counts = [split.num_outputs for split in splits]
        values = in_order(batches, sum(counts))
        ends = np.cumsum(counts)[:-1]
        parts = np.split(values, ends)
        return [split.pool(part) for split, part in zip(splits, parts, strict=True)]
