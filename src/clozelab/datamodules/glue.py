"""Sequence classification data in the GLUE format; a task is a YAML (conf/task)."""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.data.readers.files import file_sha256, require_file
from clozelab.data.readers.glue import TsvFormat
from clozelab.data.readers.labelled import LabelledRows, load_labelled
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs, TrainingPlan, fingerprint_of

log = logging.getLogger(__name__)


class GlueDataModule(FinetuningDataModule):
    """Single sentences or pairs from TSV files.

    Args:
        inputs, plan: from the stage.
        train_file, validation_file: below data_dir.
        columns: names for files without a header; None: the first line names them.
        text_columns: one column, or two for pairs.
        label_column, id_column: by name; without an id column the row number is the id.
        labels: the classes in the order of their indices; None: the sorted labels of the training file.
        how_to_get: said when a file is missing.
        max_seq_length: in tokens, cut further to what the encoder can take.
        evaluation_tokens: size of an evaluation batch.
    """

    def __init__(
        self,
        *,
        inputs: TaskInputs,
        plan: TrainingPlan,
        train_file: str,
        validation_file: str,
        columns: Sequence[str] | None,
        text_columns: Sequence[str],
        label_column: str,
        id_column: str | None,
        labels: Sequence[str] | None,
        how_to_get: str,
        max_seq_length: int,
        evaluation_tokens: int,
    ) -> None:
        super().__init__(inputs, plan, max_seq_length, evaluation_tokens)
        self.layout = TsvFormat(list(text_columns), label_column, id_column, list(columns) if columns else None)
        self.labels = [str(label) for label in labels] if labels is not None else None
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"task.data.labels names a label twice: {self.labels}")
        self.train_path = require_file(inputs.data_dir, train_file, how_to_get)
        self.validation_path = require_file(inputs.data_dir, validation_file, how_to_get)

    @cached_property
    def fingerprint(self) -> str:
        layout = self.layout
        return fingerprint_of(
            {
                "files": [file_sha256(path) for path in (self.train_path, self.validation_path)],
                "layout": [layout.text_columns, layout.label_column, layout.columns, self.labels],
                "tokenizer": self.inputs.tokenizer.fingerprint,
                "max_seq_length": self.max_seq_length,
            }
        )

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenise both splits; does nothing the second time."""
        if not hasattr(self, "train"):
            self.train = self._load(self.train_path, self.labels, self.plan.max_train_examples)
            self.validation = self._load(self.validation_path, self.train.label_names, None)
            self.train_rows, self.train_targets = self.train.rows, {"labels": self.train.labels}
            self.validation_rows = self.validation.rows
            log.info("%s: %s", self.inputs.name, self.facts)

    @property
    def facts(self) -> dict[str, Any]:
        counts = np.bincount(self.train.labels, minlength=len(self.train.label_names))
        return {
            "train_examples": len(self.train),
            "train_examples_available": self.train.num_available,
            "train_labels": dict(zip(self.train.label_names, counts.tolist(), strict=True)),
            "validation_examples": len(self.validation),
            "bad_rows": self.train.num_bad_rows + self.validation.num_bad_rows,
            "max_seq_length": self.max_seq_length,
        }

    def _load(self, path: Path, labels: Sequence[str] | None, max_examples: int | None) -> LabelledRows:
        return load_labelled(
            path,
            self.layout,
            self.inputs.tokenizer,
            name=self.inputs.name,
            cache_dir=self.inputs.cache_dir,
            label_names=labels,
            max_seq_length=self.max_seq_length,
            max_examples=max_examples,
        )
