"""Multiple choice: a context and a few endings of which one is right, from SWAG's CSV files and
others of that kind.

SWAG is true CSV: fields with commas stand in quotes. Other sets (CODAH) are tab-separated without
quoting, like GLUE. Each choice becomes a sequence `[CLS] context [SEP] start ending [SEP]`, where
the start is the beginning of the second sentence that all endings share (SWAG's `sent2`), if there
is one. An example is as many sequences as it has endings.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.datamodules.baselines import BAG, guess_choices
from clozelab.datamodules.examples import (
    GroupedSequences,
    Sequences,
    TokenSequences,
    encode_examples,
)
from clozelab.datamodules.files import Arrays, Facts, Preview, Scores, TaskPreview
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import LabelledSplit, TableFormat, TextExamples
from clozelab.datamodules.labels import warn_of_lacking_classes
from clozelab.metrics import glue

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChoiceFormat:
    """Where the parts of an example are; `columns` and `file_format` as TableFormat's."""

    context_column: str
    start_column: str | None  # the beginning that all endings share; None: they stand alone
    ending_columns: Sequence[str]
    label_column: str
    columns: Sequence[str] | None = None
    file_format: str = "auto"

    def __post_init__(self) -> None:
        if len(self.ending_columns) < 2:
            raise ValueError(
                f"ending_columns must name at least two columns, not {list(self.ending_columns)}"
            )

    @property
    def label_names(self) -> list[str]:
        """The endings' numbers."""
        return [str(number) for number in range(len(self.ending_columns))]

    def read(self, path: Path, has_labels: bool = True) -> TextExamples:
        """One file: texts are the context and its endings, each with the start; otherwise as
        TableFormat.read.
        """
        starts = [self.start_column] if self.start_column else []
        columns, first = [self.context_column, *starts, *self.ending_columns], 1 + len(starts)
        table = TableFormat(columns, self.label_column, None, self.columns, self.file_format)
        found = table.read(path, has_labels, names=self.label_names)
        found.texts = [
            (texts[0], *(" ".join([*texts[1:first], ending]).strip() for ending in texts[first:]))
            for texts in found.texts
        ]
        return found


def fold_of(context: str, number: int) -> int:
    """Into which of `number` folds a context falls, by its text: equal contexts are always on the
    same side.
    """
    return int.from_bytes(hashlib.sha256(context.encode()).digest()[:8]) % number


class ChoiceDataModule(FinetuningDataModule):
    """A context and its endings; the batch size counts examples. Args: as
    conf/task/format/swag.yaml says of each.
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
        names = columns and list(columns)
        self.layout = ChoiceFormat(
            context_column, start_column, list(ending_columns), label_column, names, file_format
        )
        self.published_train_examples = published_train_examples
        self.folds, self.held_out_fold = folds, held_out_fold
        if (folds, held_out_fold) != (None, None) and held_out_fold not in range(folds or 0):
            raise ValueError(
                f"held_out_fold={held_out_fold} is not one of folds={folds} (counted from 0)"
            )

    @property
    def reading(self) -> dict[str, Any]:
        return {"layout": asdict(self.layout), "folds": [self.folds, self.held_out_fold]}

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training", self.plan.max_train_examples)
        warn_of_lacking_classes(self.train_path, self.train.labels, self.train.label_names)
        self.validation = self._load(self.validation_path, "validation")
        self.train_sequences, self.train_targets = (
            self._grouped(self.train),
            {"labels": self.train.labels},
        )
        self.validation_sequences = self._grouped(self.validation)
        found, published = self.train.num_available, self.published_train_examples
        if published not in (None, found):
            log.warning(
                "%s has %d examples, %s's own has %d: another set in the same columns? Give it a"
                " task of its own name",
                *(self.train_path, found, self.inputs.name, published),
            )

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        """Whole whatever the folds, and without its labels."""
        split = self._load(path, "test")
        return self._grouped(split), split

    def _grouped(self, split: LabelledSplit) -> GroupedSequences:
        return GroupedSequences(split.sequences, len(self.layout.ending_columns))

    def _read(self, path: Path, role: str) -> TextExamples:
        """What of a file is for training, validation or test: there are folds where one file is
        both of the first.
        """
        found = self.layout.read(path, has_labels=role != "test")
        if self.folds is None or role == "test":
            return found
        held_out = [
            fold_of(context, self.folds) == self.held_out_fold for context, *_ in found.texts
        ]
        found = found.select(
            [i for i, is_out in enumerate(held_out) if is_out == (role == "validation")]
        )
        if not len(found):
            raise ValueError(
                f"{path}: no example is for {role} of folds={self.folds}; take fewer, or a larger"
                " file"
            )
        return found

    def _load(self, path: Path, role: str, max_examples: int | None = None) -> LabelledSplit:
        """One split: an example is as many sequences as it has endings; its class is an ending's
        number.
        """

        def build() -> tuple[Arrays, Facts]:
            examples = self._read(path, role)
            chosen = examples.limited(max_examples)
            first = [context for context, *endings in chosen.texts for _ in endings]
            second = [ending for _, *endings in chosen.texts for ending in endings]
            sequences = encode_examples(
                self.inputs.tokenizer, first, second, max_seq_length=self.max_seq_length
            )
            arrays = {
                "ids": np.array(chosen.ids),
                "labels": chosen.label_values(self.layout.label_names),
            }
            empty = sum(not text.strip() for texts in chosen.texts for text in texts)
            facts = {"num_available": len(examples), "num_bad_rows": examples.num_bad_rows}
            return arrays | sequences.arrays(), facts | {
                "counts": sequences.cut_counts() | {"empty_texts": empty}
            }

        arrays, facts, _ = self.cached(
            path, self.reading | {"role": role, "max_examples": max_examples}, build
        )
        kept = TokenSequences.of(arrays), arrays["ids"], arrays["labels"], self.layout.label_names
        return LabelledSplit(*kept, **facts)

    def compute_baselines(self) -> Scores:
        """Bag of words: the ending that looks most like a right one."""
        train = self._read(self.train_path, "training").limited(self.plan.max_train_examples)
        asked = self._read(self.validation_path, "validation")
        pairs, asked_pairs = (
            [(context, endings) for context, *endings in one.texts] for one in (train, asked)
        )
        labels, truth = (one.label_values(self.layout.label_names) for one in (train, asked))
        return {BAG: glue.score(["accuracy"], guess_choices(pairs, labels, asked_pairs), truth)}

    def preview(self) -> TaskPreview:
        splits = []
        for path, role in ((self.train_path, "training"), (self.validation_path, "validation")):
            found = self._read(path, role)
            endings = [ending for _, *endings in found.texts for ending in endings]
            texts = {"context": [context for context, *_ in found.texts], "ending": endings}
            splits.append(
                Preview(texts, found.labels, len(found), {"damaged rows": found.num_bad_rows})
            )
        return TaskPreview(splits[0], splits[1], self.layout.label_names)
