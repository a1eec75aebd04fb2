"""Multiple choice: a context and a few endings of which one is right, from SWAG's CSV files and others of that kind.

SWAG is true CSV: fields with commas stand in quotes. Other sets (CODAH) are tab-separated without quoting, like GLUE.
Each choice becomes a sequence `[CLS] context [SEP] start ending [SEP]`, where the start is the beginning of the second
sentence that all endings share (SWAG's `sent2`), if there is one. An example is as many sequences as it has endings.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import of_choices
from clozelab.datamodules.cache import Arrays, Facts
from clozelab.datamodules.examples import (
    GroupedSequences,
    LabelledSplit,
    Preview,
    Sequences,
    TaskPreview,
    TokenSequences,
    encode_examples,
    subset,
)
from clozelab.datamodules.files import Scores, TableFormat, TextExamples
from clozelab.datamodules.finetuning import FinetuningDataModule

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChoiceFormat:
    """Where the parts of an example are; `columns` and `file_format` as TableFormat's."""

    context_column: str
    start_column: str | None
    """The beginning that all endings share; None: they stand alone."""
    ending_columns: Sequence[str]
    label_column: str
    columns: Sequence[str] | None = None
    file_format: str = "auto"

    def __post_init__(self) -> None:
        if len(self.ending_columns) < 2:
            raise ValueError(f"ending_columns must name at least two columns, not {list(self.ending_columns)}")

    def read(self, path: Path, labels: str = "required") -> TextExamples:
        """Read one file: texts are the context and its endings, each with the start; the label is an ending's number.

        Raises as TableFormat.read.
        """
        number = len(self.ending_columns)

        def make(values: dict[str, str]) -> tuple[str, ...]:
            start = f"{values[self.start_column]} " if self.start_column else ""
            return values[self.context_column], *((start + values[name]).strip() for name in self.ending_columns)

        def check(label: str) -> str | None:
            is_choice = label.isdecimal() and int(label) < number
            return None if is_choice else f"is not the number of a choice, 0 to {number - 1}"

        columns = [self.context_column, *self.ending_columns, *([self.start_column] if self.start_column else [])]
        table = TableFormat(columns, self.label_column, None, self.columns, self.file_format)
        return table.read(path, check_label=check, labels=labels, make=make)


@dataclass(frozen=True)
class Fold:
    """A part of a file that has no official split: contexts fall into `number` folds by their text.

    Training reads all folds but `held_out`, validation that one; equal contexts are always on the same side.
    """

    number: int
    held_out: int
    is_training: bool

    def __post_init__(self) -> None:
        if not (self.number >= 2 and 0 <= self.held_out < self.number):
            raise ValueError(f"held_out_fold={self.held_out} is not one of folds={self.number} (counted from 0)")

    def holds(self, context: str) -> bool:
        place = int.from_bytes(hashlib.sha256(context.encode()).digest()[:8]) % self.number
        return (place != self.held_out) == self.is_training


class ChoiceDataModule(FinetuningDataModule):
    """A context and its possible endings.

    Args:
        published_train_examples: how many the set's own training file has; another number is warned of, since other
            sets come in the same columns. None: not known.
        folds, held_out_fold: for a set without an official split (the same file twice); None for one that has it.
        file_format, columns: as LabelledDataModule's.
        context_column, ending_columns, label_column: by name; the label is the number of an ending.
        start_column: the beginning that all endings share; None where they stand alone.
        the others: as FinetuningDataModule's; the batch size counts examples, not sequences.
    """

    def __init__(
        self,
        *,
        published_train_examples: int | None,
        folds: int | None,
        held_out_fold: int | None,
        file_format: str,
        columns: Sequence[str] | None,
        context_column: str,
        start_column: str | None,
        ending_columns: Sequence[str],
        label_column: str,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        names = list(columns) if columns is not None else None
        self.layout = ChoiceFormat(context_column, start_column, list(ending_columns), label_column, names, file_format)
        if (folds is None) != (held_out_fold is None):
            raise ValueError(f"folds={folds} and held_out_fold={held_out_fold}: give both, or neither")
        self.published_train_examples = published_train_examples
        self.folds = None if folds is None or held_out_fold is None else (folds, held_out_fold)

    @property
    def sources(self) -> dict[str, Any]:
        files = [file_sha256(path) for path in (self.train_path, self.validation_path)]
        return {"files": files, "layout": asdict(self.layout), "folds": self.folds}

    def read_splits(self) -> Iterable[tuple[str, Path, LabelledSplit]]:
        self.train = self._load(self.train_path, self._fold(True), self.plan.max_train_examples)
        self.validation = self._load(self.validation_path, self._fold(False), None)
        number = len(self.layout.ending_columns)
        self.train_sequences, self.train_targets = (
            GroupedSequences(self.train.sequences, number),
            {"labels": self.train.labels},
        )
        self.validation_sequences = GroupedSequences(self.validation.sequences, number)
        found, published = self.train.num_available, self.published_train_examples
        if published not in (None, found):
            log.warning(
                "%s has %d examples, %s's own has %d: another set in the same columns? Give it a task of its own name",
                *(self.train_path, found, self.inputs.name, published),
            )
        yield "training", self.train_path, self.train
        yield "validation", self.validation_path, self.validation

    def compute_baselines(self) -> Scores:
        train = self._read(self.train_path, self._fold(True))
        train = train.select(subset(len(train), self.plan.max_train_examples))
        return of_choices(train, self._read(self.validation_path, self._fold(False)))

    def preview(self) -> TaskPreview:
        names = [str(number) for number in range(len(self.layout.ending_columns))]
        train, validation = self._preview(self.train_path, True), self._preview(self.validation_path, False)
        return TaskPreview(train, validation, names)

    def _preview(self, path: Path, is_training: bool) -> Preview:
        found = self._read(path, self._fold(is_training))
        texts = {
            "context": [context for context, *_ in found.texts],
            "ending": [ending for _, *endings in found.texts for ending in endings],
        }
        return Preview(texts, found.labels, len(found), {"damaged rows": found.num_bad_rows})

    def _fold(self, is_training: bool) -> Fold | None:
        return None if self.folds is None else Fold(*self.folds, is_training=is_training)

    def _read(self, path: Path, fold: Fold | None, labels: str = "required") -> TextExamples:
        """A fold's part of a file."""
        found = self.layout.read(path, labels)
        if fold is None:
            return found
        found = found.select([i for i, texts in enumerate(found.texts) if fold.holds(texts[0])])
        if not len(found):
            raise ValueError(f"{path}: no example falls into this fold of {fold}; take fewer folds or a larger file")
        return found

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "train_examples": len(self.train),
            "train_examples_available": self.train.num_available,
            "train_counts": self.train.counts,
            "validation_examples": len(self.validation),
            "validation_counts": self.validation.counts,
            "bad_rows": self.train.num_bad_rows + self.validation.num_bad_rows,
            "max_seq_length": self.max_seq_length,
        }

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        """Whole whatever the folds, and without its labels."""
        split = self._load(path, None, None, labels="unread")
        self.refuse_damaged(path, split.num_bad_rows, "rows")
        return GroupedSequences(split.sequences, len(self.layout.ending_columns)), split

    def _load(self, path: Path, fold: Fold | None, max_examples: int | None, labels: str = "required") -> LabelledSplit:
        """One split: an example is as many sequences as it has endings; its class is an ending's number."""
        settings = {
            "layout": asdict(self.layout),
            "fold": fold and asdict(fold),
            "max_examples": max_examples,
            "read": labels,
        }

        def build() -> tuple[Arrays, Facts]:
            examples = self._read(path, fold, labels)
            chosen = examples.select(subset(len(examples), max_examples))
            first = [context for context, *endings in chosen.texts for _ in endings]
            second = [ending for _, *endings in chosen.texts for ending in endings]
            sequences = encode_examples(self.inputs.tokenizer, first, second, max_seq_length=self.max_seq_length)
            known = chosen.labels or ["-1"] * len(chosen)
            arrays = sequences.arrays() | {
                "ids": np.array(chosen.ids, dtype=np.str_),
                "labels": np.array([int(label) for label in known], dtype=np.int64),
            }
            contexts = [context for context, *_ in chosen.texts]
            counts = sequences.cut_counts() | {"empty_texts": sum(not text.strip() for text in [*contexts, *second])}
            names = [str(number) for number in range(len(self.layout.ending_columns))]
            facts = {"num_available": len(examples), "num_bad_rows": examples.num_bad_rows, "counts": counts}
            return arrays, {"label_names": names, **facts}

        arrays, facts, _ = self.cached(path, settings, build)
        return LabelledSplit(sequences=TokenSequences.of(arrays), ids=arrays["ids"], labels=arrays["labels"], **facts)
