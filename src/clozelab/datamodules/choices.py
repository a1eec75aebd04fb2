"""Multiple choice: a context and a few endings of which one is right.

The files are SWAG's CSV files and others of that kind. SWAG is true CSV: fields with commas stand
in quotes. Other sets (CODAH) are tab-separated without quoting, like GLUE.

Each choice becomes a sequence `[CLS] context [SEP] start ending [SEP]`, where the start is the
beginning of the second sentence that all endings share (SWAG's `sent2`), if there is one. An
example is as many sequences as it has endings.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Unpack

import numpy as np

from clozelab.datamodules.finetuning import FinetuningDataModule, TaskArguments
from clozelab.datamodules.labelled import LabelledSplit
from clozelab.tasks.baselines import BAG, Scores, guess_choices
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.label_kinds import Classes
from clozelab.tasks.labels import warn_of_lacking_classes
from clozelab.tasks.preview import Preview
from clozelab.tasks.sequences import (
    GroupedSequences,
    Sequences,
    TokenSequences,
    encode_examples,
)
from clozelab.tasks.tables import TableFormat, TextExamples
from clozelab.text.plain import JsonObject

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
        """Read one file as TableFormat.read does.

        The texts of an example are the context and its endings, each with the start before it.
        """
        start_columns = [self.start_column] if self.start_column else []
        columns = [self.context_column, *start_columns, *self.ending_columns]
        table = TableFormat(columns, self.label_column, None, self.columns, self.file_format)
        examples = table.read(path, has_labels, names=self.label_names)
        # cells: context, [start], ending, ending, ... -> context, start + ending, ...
        first_ending = 1 + len(start_columns)
        texts = []
        for cells in examples.texts:
            choices = []
            for ending in cells[first_ending:]:
                choices.append(" ".join([*cells[1:first_ending], ending]).strip())
            texts.append((cells[0], *choices))
        examples.texts = texts
        return examples


def fold_of(context: str, num_folds: int) -> int:
    """Into which of `num_folds` folds a context falls.

    Its text decides: equal contexts are always on the same side.
    """
    # not `hash`, which is another one in every process
    digest = hashlib.sha256(context.encode()).digest()
    return int.from_bytes(digest[:8]) % num_folds


class ChoiceDataModule(FinetuningDataModule):
    """A context and its endings; the batch size counts examples.

    Args: as conf/task/format/swag.yaml says of each.
    """

    grouping = "rows with the same context stay together"

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
        **common: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**common)
        if columns:
            columns = list(columns)
        self.layout = ChoiceFormat(
            context_column, start_column, list(ending_columns), label_column, columns, file_format
        )
        self.published_train_examples = published_train_examples
        self.folds = folds
        self.held_out_fold = held_out_fold
        # One of the two settings alone is a mistake, too.
        has_folds = folds is not None or held_out_fold is not None
        if has_folds and held_out_fold not in range(folds or 0):
            raise ValueError(
                f"held_out_fold={held_out_fold} is not one of folds={folds} (counted from 0)"
            )

    @property
    def reading(self) -> JsonObject:
        return {"layout": asdict(self.layout), "folds": [self.folds, self.held_out_fold]}

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training")
        warn_of_lacking_classes(self.train_path, self.train.labels, self.train.label_names)
        self.validation = self._load(self.validation_path, "validation")
        self.train_sequences = self._grouped(self.train)
        self.train_targets = {"labels": self.train.labels}
        self.validation_sequences = self._grouped(self.validation)
        available = self.train.num_available
        published = self.published_train_examples
        # Sets with these columns are many: a warning where the size tells them apart.
        if published is not None and available != published:
            log.warning(
                "%s has %d examples, %s's own has %d: another set in the same columns? Give it a"
                " task of its own name",
                self.train_path,
                available,
                self.inputs.name,
                published,
            )

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        """Whole whatever the folds, and without its labels."""
        split = self._load(path, "test")
        return self._grouped(split), split

    def _grouped(self, split: LabelledSplit) -> GroupedSequences:
        return GroupedSequences(split.sequences, len(self.layout.ending_columns))

    def _read(self, path: Path, role: str) -> TextExamples:
        """The examples of a file that are for training, validation or test.

        With folds one file is both of the first, and a context's fold says for which it is.
        """
        examples = self.layout.read(path, has_labels=role != "test")
        # Without folds each role has a file of its own, and a test file is never divided.
        contexts = [context for context, *_ in examples.texts]
        if self.folds is None or role == "test":
            return examples.select(self.rows_of(role, path, contexts))
        selection = []
        for number, context in enumerate(contexts):
            is_held_out = fold_of(context, self.folds) == self.held_out_fold
            if is_held_out == (role == "validation"):
                selection.append(number)
        if not selection:
            raise ValueError(
                f"{path}: no example is for {role} of folds={self.folds}; take fewer, or a larger"
                " file"
            )
        return examples.select(selection)

    def _load(self, path: Path, role: str) -> LabelledSplit:
        """One split; the class of an example is its right ending's number."""
        arrays, facts, _ = self.cached(path, role, self._encode)
        return LabelledSplit(
            sequences=TokenSequences.of(arrays),
            ids=arrays["ids"],
            labels=arrays["labels"],
            label_names=self.layout.label_names,
            read_texts=lambda: self._read(path, role).texts,
            **facts,
        )

    def _encode(self, path: Path, role: str) -> tuple[Arrays, Facts]:
        """What the cache holds of one split."""
        examples = self._read(path, role)
        selected = examples.limited(self.limit(role))
        # (context, a, b), (other, c, d): context context other other | a b c d
        contexts = []
        endings = []
        for context, *choices in selected.texts:
            contexts += [context] * len(choices)
            endings += choices
        sequences = encode_examples(
            self.inputs.tokenizer, contexts, endings, max_seq_length=self.max_seq_length
        )
        arrays: Arrays = {
            "ids": np.array(selected.ids),
            "labels": selected.label_values(Classes(self.layout.label_names)),
        }
        texts = itertools.chain.from_iterable(selected.texts)
        counts = sequences.cut_counts()
        counts["empty_texts"] = sum(not text.strip() for text in texts)
        facts: Facts = {
            "num_available": len(examples),
            "num_bad_rows": examples.num_bad_rows,
            "counts": counts,
        }
        return arrays | examples.row_arrays() | sequences.arrays(), facts

    def compute_baselines(self) -> Scores:
        """Bag of words: the ending that looks most like a right one."""
        train = self._read(self.train_path, "training").limited(self.limit("training"))
        validation = self._read(self.validation_path, "validation")
        kind = Classes(self.layout.label_names)
        guesses = guess_choices(_choices(train), train.label_values(kind), _choices(validation))
        return {BAG: kind.score(["accuracy"], guesses, validation.label_values(kind))}

    def preview_facts(self, train: Preview) -> JsonObject:  # noqa: ARG002
        return {"kind": Classes(self.layout.label_names)}

    def preview_of(self, path: Path, role: str) -> Preview:
        examples = self._read(path, role)
        contexts = []
        endings = []
        for context, *choices in examples.texts:
            contexts.append(context)
            endings += choices
        texts = {"context": contexts, "ending": endings}
        counts = {"damaged rows": examples.num_bad_rows}
        return Preview(texts, examples.labels, len(examples), counts, examples.texts)


def _choices(examples: TextExamples) -> list[tuple[str, list[str]]]:
    """(context, endings) of each example."""
    return [(context, endings) for context, *endings in examples.texts]
