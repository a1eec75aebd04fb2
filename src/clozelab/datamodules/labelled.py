"""Labelled texts and pairs from tables: the official GLUE files, and anybody's tsv, csv or jsonl; a task is a YAML.

GLUE's format is tab-separated but not CSV: a quotation mark is a character like any other. Some files begin with a byte
order mark, some end their lines with CRLF, CoLA has no header, test files have no labels. A rare damaged row is skipped
and counted. A label outside the list is never skipped: it means that the list or the column is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import of_labels
from clozelab.datamodules.cache import Arrays, Facts
from clozelab.datamodules.examples import (
    LabelledSplit,
    Preview,
    Sequences,
    TaskPreview,
    TokenSequences,
    WindowRule,
    Windows,
    encode_examples,
    encode_windows,
    join_sequences,
    subset,
)
from clozelab.datamodules.files import Scores, TableFormat, TextExamples
from clozelab.datamodules.finetuning import FinetuningDataModule

LONG_DOCUMENTS = ("truncate", "windows")


class LabelledDataModule(FinetuningDataModule):
    """Single texts or pairs with a class or a number each.

    Args:
        file_format: auto | tsv | csv | jsonl (a .gz or .zst of it as well); auto: by each file's name.
        columns: names for files without a header; None: the first line, or a jsonl file's first object, names them.
        text_columns: one column, or two for pairs.
        label_column, id_column: by name; without an id column the row number is the id.
        labels: the classes in the order of their indices; None: the sorted labels of the training file.
        numeric_labels: the label is a number to be predicted; `labels` is not used.
        extra_validation_files: name -> file; further validation sets, scored beside the first (MNLI's mismatched one).
        test_id_column: as id_column, for the test files.
        long_documents: truncate | windows: what becomes of a (single) text that is longer than a sequence. Its windows
            are training examples of their own, with its label; their logits are pooled into one prediction.
        window_stride, window_pooling: of windows, see WindowRule.
        the others: as FinetuningDataModule's.
    """

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
        extra_validation_files: Mapping[str, str] | None,
        test_id_column: str | None,
        long_documents: str,
        window_stride: int,
        window_pooling: str,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        names = list(columns) if columns else None
        self.layout = TableFormat(list(text_columns), label_column, id_column, names, file_format)
        # Test files have a header even where the others have none.
        self.test_layout = replace(self.layout, id_column=test_id_column, columns=None)
        self.labels = [str(label) for label in labels] if labels is not None else None
        self.numeric_labels = numeric_labels
        if len(text_columns) not in (1, 2):
            raise ValueError(f"text_columns must name one or two columns, not {list(text_columns)}")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"task.data.labels names a label twice: {self.labels}")
        if long_documents not in LONG_DOCUMENTS:
            raise ValueError(f"long_documents={long_documents!r} is unknown; known: {', '.join(LONG_DOCUMENTS)}")
        if long_documents == "windows" and len(text_columns) != 1:
            raise ValueError(f"long_documents=windows is for single texts; this task has pairs, {list(text_columns)}")
        self.window_rule = WindowRule(window_stride, window_pooling) if long_documents == "windows" else None
        self.extra_paths = {name: self.require(file) for name, file in (extra_validation_files or {}).items()}

    @property
    def sources(self) -> dict[str, Any]:
        return {
            "files": [file_sha256(path) for path in (self.train_path, self.validation_path)],
            "layout": [asdict(self.layout), self.labels, self.numeric_labels],
            "extra_validation": {name: file_sha256(path) for name, path in self.extra_paths.items()},
            "windows": self.window_rule and asdict(self.window_rule),
        }

    def read_splits(self) -> Iterable[tuple[str, Path, LabelledSplit]]:
        self.train = self._load(self.train_path, self.labels, self.plan.max_train_examples)
        names = self.train.label_names
        extra = {name: self._load(path, names, None) for name, path in self.extra_paths.items()}
        self.validation = replace(self._load(self.validation_path, names, None), extra=extra)
        self.train_sequences, self.train_targets = self.train.sequences, {"labels": self.train.input_labels}
        self.validation_sequences = join_sequences(
            [self.validation.sequences, *(split.sequences for split in extra.values())]
        )
        yield "training", self.train_path, self.train
        yield "validation", self.validation_path, self.validation
        yield from ((name, self.extra_paths[name], split) for name, split in extra.items())

    def compute_baselines(self) -> Scores:
        paths = {"": self.validation_path, **{f"{name}_": path for name, path in self.extra_paths.items()}}
        train = self._read(self.train_path)
        train = train.select(subset(len(train), self.plan.max_train_examples))
        return of_labels(train, {name: self._read(path) for name, path in paths.items()}, self.train.label_names)

    def _read(self, path: Path, names: Sequence[str] | None = None, for_prediction: bool = False) -> TextExamples:
        """Of any label unless `names` are given: which of them belong there is for a preview's reader to say."""
        layout, labels = (self.test_layout, "optional") if for_prediction else (self.layout, "required")
        check = partial(what_is_wrong, names=names, is_number=self.numeric_labels)
        return layout.read(path, check_label=check, labels=labels)

    def preview(self) -> TaskPreview:
        train, validation = (self._preview(path) for path in (self.train_path, self.validation_path))
        names = None if self.numeric_labels else self.labels or sorted(set(train.labels or ()))
        return TaskPreview(train, validation, names, is_regression=self.numeric_labels, aligned=True)

    def _preview(self, path: Path) -> Preview:
        found = self._read(path)
        texts = dict(zip(self.layout.text_columns, zip(*found.texts, strict=True), strict=True))
        return Preview(texts, found.labels, len(found), {"damaged rows": found.num_bad_rows})

    @property
    def facts(self) -> dict[str, Any]:
        splits = {"train": self.train, "validation": self.validation}
        splits |= {f"validation_{name}": split for name, split in self.validation.extra.items()}
        return {
            "train_examples": len(self.train),
            "train_examples_available": self.train.num_available,
            "train_labels": self._label_facts(),
            "validation_examples": len(self.validation),
            "bad_rows": sum(split.num_bad_rows for split in splits.values()),
            "max_seq_length": self.max_seq_length,
            "unusual": {name: {key: n for key, n in split.counts.items() if n} for name, split in splits.items()},
        }

    def _label_facts(self) -> dict[str, Any]:
        """How often each class occurs, or the range of the numbers."""
        labels = self.train.labels
        if self.train.is_regression:
            return {"least": float(labels.min()), "mean": float(labels.mean()), "largest": float(labels.max())}
        counts = np.bincount(labels, minlength=len(self.train.label_names))
        return dict(zip(self.train.label_names, counts.tolist(), strict=True))

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        split = self._load(path, self.train.label_names, None, for_prediction=True)
        self.refuse_damaged(path, split.num_bad_rows, "rows")
        return split.sequences, split

    def _load(
        self, path: Path, names: Sequence[str] | None, max_examples: int | None, for_prediction: bool = False
    ) -> LabelledSplit:
        """One split. `names` None: the sorted labels of the file; `for_prediction`: it may come without labels."""
        layout, rule = self.test_layout if for_prediction else self.layout, self.window_rule
        settings = {
            "layout": [asdict(layout), self.numeric_labels],
            "labels": names and list(names),
            "max_examples": max_examples,
            "for_prediction": for_prediction,
            "window_stride": rule and rule.stride,
        }

        def build() -> tuple[Arrays, Facts]:
            examples = self._read(path, names, for_prediction)
            known = [] if self.numeric_labels else list(names or sorted(set(examples.labels or [])))
            return self._tokenise(examples, known, max_examples)

        arrays, facts, _ = self.cached(path, settings, build)
        windows = Windows(arrays["window_offsets"], rule.pooling) if rule else None
        sequences = TokenSequences.of(arrays)
        return LabelledSplit(sequences=sequences, ids=arrays["ids"], labels=arrays["labels"], windows=windows, **facts)

    def _tokenise(self, examples: TextExamples, names: list[str], max_examples: int | None) -> tuple[Arrays, Facts]:
        chosen = examples.select(subset(len(examples), max_examples))
        texts = [list(part) for part in zip(*chosen.texts, strict=True)]
        tokenizer, length = self.inputs.tokenizer, self.max_seq_length
        offsets = None
        if self.window_rule is None:
            sequences = encode_examples(tokenizer, *texts, max_seq_length=length)
        else:
            stride = self.window_rule.stride
            sequences, offsets = encode_windows(tokenizer, texts[0], max_seq_length=length, stride=stride)
        counts = sequences.cut_counts() | {
            "empty_texts": sum(not text.strip() for part in texts for text in part),
            "duplicate_ids": len(chosen) - len(set(chosen.ids)),
        }
        arrays = sequences.arrays() | {
            "ids": np.array(chosen.ids, dtype=np.str_),
            "labels": label_values(chosen, names),
        }
        if offsets is not None:
            counts |= {"windows": len(sequences), "texts_in_windows": int((np.diff(offsets) > 1).sum())}
            arrays["window_offsets"] = offsets
        facts = {"label_names": names, "num_available": len(examples), "num_bad_rows": examples.num_bad_rows}
        return arrays, facts | {"counts": counts}


def what_is_wrong(label: str, names: Sequence[str] | None, is_number: bool) -> str | None:
    """With a label that is to be a number, or one of some names (None: any)."""
    if is_number:
        return None if _is_number(label) else "is not a number; this task predicts one"
    return None if names is None or label in names else f"is not one of the known labels {list(names)}"


def label_values(examples: TextExamples, names: Sequence[str]) -> NDArray[Any]:
    """[N]: indices into `names`, or the numbers themselves where there are none; -1 for a file without labels."""
    if examples.labels is None:
        return np.full(len(examples), -1, dtype=np.int64)
    if not names:
        return np.array([float(label) for label in examples.labels], dtype=np.float32)
    index = {label: number for number, label in enumerate(names)}
    return np.array([index[label] for label in examples.labels], dtype=np.int64)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
