"""Sequence classification and regression data in the GLUE format; a task is a YAML (conf/task)."""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import Scores, of_labels
from clozelab.datamodules.examples import Preview, Rows, TaskPreview, join_rows
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import (
    LabelledRows,
    TextExamples,
    TsvFormat,
    WindowRule,
    load_labelled,
    read_tsv,
    subset,
)

log = logging.getLogger(__name__)
LONG_DOCUMENTS = ("truncate", "windows")


class GlueDataModule(FinetuningDataModule):
    """Single sentences or pairs from TSV files.

    Args:
        columns: names for files without a header; None: the first line names them.
        text_columns: one column, or two for pairs.
        label_column, id_column: by name; without an id column the row number is the id.
        labels: the classes in the order of their indices; None: the sorted labels of the training file.
        numeric_labels: the label is a number to be predicted; `labels` is not used.
        extra_validation_files: name -> file; further validation sets, scored beside the first (MNLI's mismatched one).
        test_id_column: as id_column, for the test files.
        long_documents: truncate | windows: what becomes of a (single) text that is longer than a row. Its windows are
            training examples of their own, with its label; their logits are pooled into one prediction.
        window_stride, window_pooling: of windows, see WindowRule.
        the others: as FinetuningDataModule's.
    """

    def __init__(
        self,
        *,
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
        self.layout = TsvFormat(list(text_columns), label_column, id_column, names, numeric_labels)
        # Test files have a header even where the others have none.
        self.test_layout = TsvFormat(list(text_columns), label_column, test_id_column, None, numeric_labels)
        self.labels = [str(label) for label in labels] if labels is not None else None
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
        layout = self.layout
        facts: dict[str, Any] = {
            "files": [file_sha256(path) for path in (self.train_path, self.validation_path)],
            "layout": [layout.text_columns, layout.label_column, layout.columns, self.labels],
        }
        if layout.numeric_labels or self.extra_paths:
            facts["numeric_labels"] = layout.numeric_labels
            facts["extra_validation"] = {name: file_sha256(path) for name, path in self.extra_paths.items()}
        if self.window_rule is not None:
            facts["windows"] = asdict(self.window_rule)
        return facts

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenise both splits; does nothing the second time."""
        if not hasattr(self, "train"):
            self.train = self._load(self.train_path, self.labels, self.plan.max_train_examples)
            names = self.train.label_names
            extra = {name: self._load(path, names, None) for name, path in self.extra_paths.items()}
            self.validation = replace(self._load(self.validation_path, names, None), extra=extra)
            self.train_rows, self.train_targets = self.train.rows, {"labels": self.train.input_labels}
            self.validation_rows = join_rows([self.validation.rows, *(split.rows for split in extra.values())])
            log.info("%s: %s", self.inputs.name, self.facts)
            read = [("training", self.train_path, self.train), ("validation", self.validation_path, self.validation)]
            read += [(name, self.extra_paths[name], split) for name, split in extra.items()]
            for name, path, split in read:
                self.say_what_is_left_out(path, split.num_bad_rows)
                self.say_what_is_cut(name, split.counts)

    def compute_baselines(self) -> Scores:
        paths = {"": self.validation_path, **{f"{name}_": path for name, path in self.extra_paths.items()}}
        train = self._read(self.train_path)
        train = train.select(subset(len(train), self.plan.max_train_examples))
        return of_labels(train, {name: self._read(path) for name, path in paths.items()}, self.train.label_names)

    def _read(self, path: Path) -> TextExamples:
        return read_tsv(path, self.layout, label_names=None, require_labels=True)

    def preview(self) -> TaskPreview:
        train, validation = (self._preview(path) for path in (self.train_path, self.validation_path))
        names = None if self.layout.numeric_labels else self.labels or sorted(set(train.labels or ()))
        return TaskPreview(train, validation, names, is_regression=self.layout.numeric_labels, aligned=True)

    def _preview(self, path: Path) -> Preview:
        # Any label is read: which of them belong there is for the reader of the preview to say.
        found = self._read(path)
        parts = (found.first, found.second) if found.second is not None else (found.first,)
        texts = dict(zip(self.layout.text_columns, parts, strict=True))
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

    def read_test(self, path: Path) -> tuple[Rows, LabelledRows]:
        split = self._load(path, self.train.label_names, None, False)
        self.refuse_damaged(path, split.num_bad_rows, "rows")
        return split.rows, split

    def _label_facts(self) -> dict[str, Any]:
        """How often each class occurs, or the range of the numbers."""
        labels = self.train.labels
        if self.train.is_regression:
            return {"least": float(labels.min()), "mean": float(labels.mean()), "largest": float(labels.max())}
        counts = np.bincount(labels, minlength=len(self.train.label_names))
        return dict(zip(self.train.label_names, counts.tolist(), strict=True))

    def _load(
        self, path: Path, labels: Sequence[str] | None, max_examples: int | None, require_labels: bool = True
    ) -> LabelledRows:
        return load_labelled(
            path,
            self.layout if require_labels else self.test_layout,
            self.inputs.tokenizer,
            name=self.inputs.name,
            cache_dir=self.inputs.cache_dir,
            label_names=labels,
            max_seq_length=self.max_seq_length,
            max_examples=max_examples,
            require_labels=require_labels,
            window_rule=self.window_rule,
        )
