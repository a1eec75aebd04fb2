"""Labelled texts and pairs from tables.

Tables are the official GLUE files, and anybody's tsv, csv, jsonl, Parquet or Arrow. A task is a
YAML.

GLUE's format is tab-separated but not CSV: a quotation mark is a character like any other. Some
files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files
have no labels. A rare damaged row is skipped and counted. A label outside the list is never
skipped: it means that the list or the column is wrong.

Letters: N examples, W windows of them, K classes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tables import open_table
from clozelab.datamodules.finetuning import FinetuningDataModule, Split, TaskArguments
from clozelab.files.digests import file_sha256
from clozelab.metrics import glue
from clozelab.tasks.baselines import BAG, Scores
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.label_kinds import Classes, LabelKind, Number, kind_of
from clozelab.tasks.labels import (
    ANY,
    CLASSES,
    NUMBERS,
    cell_text,
    refuse_one_class,
    warn_of_lacking_classes,
)
from clozelab.tasks.preview import Preview
from clozelab.tasks.sequences import (
    GroupedSequences,
    Ints,
    Sequences,
    TokenSequences,
    encode_examples,
    encode_windows,
    join_sequences,
    pool_windows,
)
from clozelab.tasks.splitting import pair_groups, quantiles_of
from clozelab.tasks.tables import TableFormat, TextExamples
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import JsonObject

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledSplit:
    """Examples of one split; `label_names` is empty for regression."""

    sequences: TokenSequences
    ids: NDArray[np.str_]
    # [N] indices into `label_names`, or the numbers themselves; -1 for a file without labels
    labels: np.ndarray
    label_names: list[str]
    num_available: int  # examples of the file before `max_examples` cut it
    num_bad_rows: int
    counts: dict[str, int] = field(default_factory=dict)  # what is unusual about those in use
    # further validation sets, scored beside this one
    extra: dict[str, LabelledSplit] = field(default_factory=dict)
    # [N + 1] where each example's windows begin; None: an example is one input
    window_offsets: Ints | None = None
    pooling: str = "mean"  # mean | max: of each logit over a text's windows
    # reads the texts of each example anew
    read_texts: Callable[[], list[tuple[str, ...]]] | None = None
    positive_label: str | None = None  # that F1 is of; None: as label_kinds.py says

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def kind(self) -> LabelKind:
        return kind_of(self.label_names, self.positive_label)

    @property
    def num_inputs(self) -> int:
        """Examples, or windows of them: as many as there are logits."""
        return len(self) if self.window_offsets is None else len(self.sequences)

    @property
    def input_labels(self) -> np.ndarray:
        """[num_inputs]: a window has the label of its text."""
        if self.window_offsets is None:
            return self.labels
        return np.repeat(self.labels, np.diff(self.window_offsets))

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pool the logits of each example's windows: [num_inputs, K] -> [N, K]."""
        if self.window_offsets is None:
            return logits
        return pool_windows(logits, self.window_offsets, self.pooling)


class LabelledDataModule(FinetuningDataModule):
    """Single texts or pairs with a class or a number each.

    Windows of a long text are training examples with its label; their logits are pooled into one
    prediction. Args: as conf/task/format/labelled.yaml says of each.
    """

    train: LabelledSplit
    validation: LabelledSplit

    def __init__(
        self,
        *,
        file_format: str,
        columns: Sequence[str] | None,
        text_columns: Sequence[str],
        label_column: str,
        id_column: str | None,
        labels: Sequence[str] | None,
        numeric_labels: bool,
        positive_label: object,
        extra_validation_files: Mapping[str, str] | None,
        test_id_column: str | None,
        pairs: str,
        long_documents: str,
        window_stride: int,
        window_pooling: str,
        **common: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**common)
        text_columns = list(text_columns)
        if columns:
            columns = list(columns)
        self.layout = TableFormat(text_columns, label_column, id_column, columns, file_format)
        self.test_layout = replace(self.layout, id_column=test_id_column)
        # The classes of a fine-tuned model go before those of the configuration.
        if self.inputs.label_names is not None and not numeric_labels:
            labels = self.inputs.label_names
        self.labels: list[str] | None = None
        if labels is not None:
            self.labels = [str(label) for label in labels]
        self.numeric_labels = numeric_labels
        self.positive_label: str | None = None
        if positive_label is not None:
            self.positive_label = cell_text(positive_label)
        _check_columns_and_labels(text_columns, self.labels, pairs)
        self.pairs = pairs
        if len(text_columns) == 2:
            self.grouping = "rows with the same first text, and a pair and its swap, stay together"
        self.window_stride: int | None = None
        if _reads_windows(long_documents, window_pooling, text_columns):
            self.window_stride = window_stride
        self.long_documents = long_documents
        self.window_pooling = window_pooling
        self.extra_paths = {
            name: self.require(file) for name, file in (extra_validation_files or {}).items()
        }

    def remembered(self) -> JsonObject:
        """The same of windows, and how many texts it reads at once, but for a pair's read apart."""
        remembered = super().remembered() | {
            "long_documents": self.long_documents,
            "window_stride": self.window_stride,
            "window_pooling": self.window_pooling,
        }
        if self.positive_label is not None:
            remembered["positive_label"] = self.positive_label
        if self.pairs != "apart":
            remembered["texts_per_example"] = len(self.layout.text_columns)
        return remembered

    @property
    def reading(self) -> JsonObject:
        extra = {}
        for name, path in self.extra_paths.items():
            extra[name] = file_sha256(path)
        layout = [asdict(self.layout), self.labels, self.numeric_labels]
        windows = None
        if self.window_stride is not None:
            windows = (self.window_stride, self.window_pooling)
        return {"layout": layout, "extra_validation": extra, "windows": windows}

    @property
    def tokenization(self) -> JsonObject:
        tokenization = super().tokenization
        # Joint pairs have no key: older fingerprints knew nothing else.
        if self.pairs != "joint":
            tokenization["pairs"] = self.pairs
        return tokenization

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training", self.labels)
        self._check_classes()
        assert self.train.kind  # refuses a positive label that is none
        names = self.train.label_names
        extra = {}
        for name, path in self.extra_paths.items():
            extra[name] = self._load(path, "validation", names)
        validation = self._load(self.validation_path, "validation", names)
        self.validation = replace(validation, extra=extra)
        self.train_targets = {"labels": self.train.input_labels}
        self.train_sequences = self._grouped(self.train.sequences)
        validation_splits = [self.validation, *extra.values()]
        joined = join_sequences([split.sequences for split in validation_splits])
        self.validation_sequences = self._grouped(joined)

    def _check_classes(self) -> None:
        """ValueError for a training file of one class; a warning for classes without an example."""
        if self.numeric_labels:
            if len(self.train) > 1 and np.ptp(self.train.labels) == 0:
                log.warning(
                    "%s: all rows have one label, %g", self.train_path, self.train.labels[0]
                )
            return
        refuse_one_class(self.train_path, self.train.label_names, "task.data.label_column")
        # A fine-tuned model brings its classes, and the file may lack some of those.
        if self.inputs.label_names is None:
            warn_of_lacking_classes(self.train_path, self.train.labels, self.train.label_names)

    def refuse_outside(self, number_range: Sequence[float] | None) -> None:
        """ValueError, with file and line, for a number beyond `number_range` (least, largest)."""
        if number_range is None or not self.numeric_labels:
            return
        # An error names the line, which only reading the file again can tell.
        least, largest = number_range
        for _, path, split in self.splits():
            assert isinstance(split, LabelledSplit)
            if len(split) and not least <= split.labels.min() <= split.labels.max() <= largest:
                self._refuse_outside(path, least, largest)

    def _refuse_outside(self, path: Path, least: float, largest: float) -> None:
        """The file is read again: splits know no lines."""
        layout = self.layout
        table = open_table(
            path, layout.file_format, header=layout.columns, required=layout.text_columns
        )
        for number, record in table.rows([layout.label_column]):
            if isinstance(record, str):
                continue
            label = cell_text(record.get(layout.label_column))
            if glue.is_number(label) and not least <= float(label) <= largest:
                raise ValueError(
                    f"{path}:{number}: label {label} lies outside of {least:g} to {largest:g} "
                    "(task.module.number_range): mend it, or widen the range"
                )

    def _grouped(self, sequences: TokenSequences) -> Sequences:
        """An example is one sequence, or the two of a pair that are read apart."""
        if self.pairs == "apart":
            return GroupedSequences(sequences, 2)
        return sequences

    def splits(self) -> list[tuple[str, Path, Split]]:
        extra = []
        for name, split in self.validation.extra.items():
            extra.append((name, self.extra_paths[name], split))
        return super().splits() + extra

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        split = self._load(path, "test", self.train.label_names)
        return self._grouped(split.sequences), split

    def _load(self, path: Path, role: str, names: Sequence[str] | None) -> LabelledSplit:
        """One split. `names` None: the sorted labels of the file.

        ValueError where two rows to predict have one id.
        """
        id_column = self._layout_of(role).id_column
        arrays, facts, _ = self.cached(path, role, self._encode, names=names, id_column=id_column)
        # An oversampled training file has rows twice, and no prediction carries their names.
        if role != "training":
            _refuse_ids_twice(path, arrays["ids"], id_column)
        split = LabelledSplit(
            sequences=TokenSequences.of(arrays),
            ids=arrays["ids"],
            labels=arrays["labels"],
            window_offsets=arrays.get("window_offsets"),
            pooling=self.window_pooling,
            positive_label=self.positive_label,
            **facts,
        )
        return replace(split, read_texts=lambda: self._read(path, role, names).texts)

    def _layout_of(self, role: str) -> TableFormat:
        if role == "test":
            return self.test_layout
        return self.layout

    def _encode(
        self,
        path: Path,
        role: str,
        names: Sequence[str] | None,
        id_column: str | None,  # noqa: ARG002  # of the layout, for the cache's key
    ) -> tuple[Arrays, Facts]:
        """What the cache holds of one split."""
        examples = self._read(path, role, names)
        label_names = []
        if not self.numeric_labels:
            label_names = list(names or sorted(set(examples.labels or [])))
        selected = examples.limited(self.limit(role))
        labels = selected.label_values(kind_of(label_names))
        # Of a regression: in the precision of the model's outputs.
        if labels.dtype.kind == "f":
            labels = labels.astype(np.float32)
        arrays: Arrays = {"ids": np.array(selected.ids, dtype=np.str_), "labels": labels}
        all_texts = list(itertools.chain.from_iterable(selected.texts))
        counts = {"empty_texts": sum(not text.strip() for text in all_texts)}
        tokenizer = self.inputs.tokenizer
        if self.window_stride is not None:
            sequences, offsets = encode_windows(
                tokenizer,
                all_texts,
                max_seq_length=self.max_seq_length,
                stride=self.window_stride,
            )
            counts["windows"] = len(sequences)
            arrays["window_offsets"] = offsets
        else:
            # [(a, b), (c, d)]: two sequences "a" and "b" of a pair that is read apart, one
            # sequence "a [SEP] b" of another
            if self.pairs == "apart":
                columns = [all_texts]
            else:
                columns = [list(column) for column in zip(*selected.texts, strict=True)]
            sequences = encode_examples(tokenizer, *columns, max_seq_length=self.max_seq_length)
        facts: Facts = {
            "label_names": label_names,
            "num_available": len(examples),
            "num_bad_rows": examples.num_bad_rows,
            "counts": sequences.cut_counts() | counts,
        }
        return arrays | examples.row_arrays() | sequences.arrays(), facts

    def _read(self, path: Path, role: str, names: Sequence[str] | None = None) -> TextExamples:
        """The examples of a file that are for a role, of any label unless `names` are given.

        Which of them belong there is for a preview's reader to say.
        """
        layout = self._layout_of(role)
        has_labels = role != "test"
        expected = CLASSES
        if self.numeric_labels:
            expected = NUMBERS
        elif names is None and self.labels is not None:
            expected = ANY  # the classes are named: the file's own set is not what is trained on
        examples = layout.read(
            path, has_labels, names=names, expected=expected, listed=self.labels or ()
        )
        return self._part_for(path, role, examples)

    def _part_for(self, path: Path, role: str, examples: TextExamples) -> TextExamples:
        """Those for a role, where validation is held out."""
        if self.held_out is None or examples.labels is None:
            return examples
        if self.numeric_labels:
            strata = quantiles_of(np.array(examples.labels, dtype=np.float64))
        else:
            _, strata = np.unique(examples.labels, return_inverse=True)
        return examples.select(self.rows_of(role, path, pair_groups(examples.texts), strata))

    def compute_baselines(self) -> Scores:
        """Bag of words."""
        label_kind = self.train.kind
        names = label_kind.names or None
        train = self._read(self.train_path, "training", names).limited(self.limit("training"))
        # Prefix of a score's name -> the validation set that it is of.
        paths = {"": self.validation_path}
        paths |= {f"{name}_": path for name, path in self.extra_paths.items()}
        validation = {}
        for prefix, path in paths.items():
            validation[prefix] = self._read(path, "validation", names)
        validation_pairs = []
        for examples in validation.values():
            validation_pairs += _pairs(examples)
        # All sets are guessed at once, behind each other: the words are learnt once.
        guesses = label_kind.guess(_pairs(train), train.label_values(label_kind), validation_pairs)
        scores: dict[str, float] = {}
        start = 0
        for prefix, examples in validation.items():
            end = start + len(examples)
            labels = examples.label_values(label_kind)
            set_scores = label_kind.score(label_kind.baseline_metrics, guesses[start:end], labels)
            scores |= {f"{prefix}{name}": value for name, value in set_scores.items()}
            start = end
        return {BAG: scores}

    def preview_facts(self, train: Preview) -> JsonObject:
        label_kind: LabelKind = Number()
        if not self.numeric_labels:
            names = self.labels or sorted(set(train.labels or ()))
            label_kind = Classes(names, self.positive_label)
        return {"kind": label_kind, "aligned": True}

    def preview_of(self, path: Path, role: str) -> Preview:
        examples = self._read(path, role)
        columns = zip(*examples.texts, strict=True)
        texts = dict(zip(self._layout_of(role).text_columns, columns, strict=True))
        counts = {"damaged rows": examples.num_bad_rows}
        return Preview(texts, examples.labels, len(examples), counts, examples.texts)


def _check_columns_and_labels(
    text_columns: Sequence[str], labels: Sequence[str] | None, pairs: str
) -> None:
    if len(text_columns) not in (1, 2):
        raise ValueError(f"text_columns must name one or two columns, not {list(text_columns)}")
    if labels is not None and len(set(labels)) < len(labels):
        raise ValueError(f"task.data.labels names a label twice: {labels}")
    if pairs not in ("joint", "apart") or (pairs == "apart" and len(text_columns) != 2):
        raise ValueError(
            f"pairs={pairs!r} of the columns {list(text_columns)}: joint, or of two columns apart"
        )


def _reads_windows(long_documents: str, window_pooling: str, text_columns: Sequence[str]) -> bool:
    """Whether long texts are read in windows; ValueError for settings that do not exist."""
    check_choice("long_documents", long_documents, ("truncate", "windows"))
    check_choice("window_pooling", window_pooling, ("mean", "max"))
    if long_documents == "windows" and len(text_columns) != 1:
        raise ValueError(
            f"long_documents=windows is for single texts; this task has pairs, {list(text_columns)}"
        )
    return long_documents == "windows"


def _refuse_ids_twice(path: Path, ids: NDArray[np.str_], column: str | None) -> None:
    """ValueError where two rows have one id, so that nobody could tell whose a prediction is."""
    distinct, first_rows, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = np.flatnonzero(counts > 1)
    if not len(repeated):
        return
    # `distinct` is sorted; the example is the one that comes first in the file
    example = distinct[repeated[first_rows[repeated].argmin()]]
    raise ValueError(
        f"{path}: {len(repeated)} ids of the column {column!r} stand there twice, the first"
        f" {str(example)!r}, so that predictions would share them; make them unique, or number the"
        " rows (task.data.id_column=null)"
    )


def _pairs(examples: TextExamples) -> list[tuple[str, str]]:
    """The texts as pairs, whose second side is empty for single texts."""
    pairs = []
    for texts in examples.texts:
        second = texts[1] if len(texts) == 2 else ""
        pairs.append((texts[0], second))
    return pairs
