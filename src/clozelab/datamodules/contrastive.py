"""Texts that belong together, from tables without labels; pairs with a score to validate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from clozelab.datamodules.baselines import words_of
from clozelab.datamodules.examples import GroupedSequences
from clozelab.datamodules.files import Preview, Scores
from clozelab.datamodules.label_kinds import Number
from clozelab.datamodules.labelled import LabelledDataModule, TableFormat, TextExamples
from clozelab.models.config import EncoderConfig
from clozelab.text.plain import JsonObject

COMMON = "share of common words"


class ContrastiveDataModule(LabelledDataModule):
    """A training row is a text, one that belongs to it, and perhaps one that does not.

    The texts of a batch are each other's negatives. So a batch is a uniform draw of the examples,
    not one of similar lengths. Its `text_numbers` [B, 2 or 3] say which texts are the same.

    Args:
        train_columns: the two or three columns of the training file. The same one twice is a text
            that belongs to itself.
    """

    groups_by_length: ClassVar[bool] = False

    def __init__(self, *, train_columns: Sequence[str], **labelled: Any) -> None:
        super().__init__(**labelled)
        if self.held_out is not None:
            raise ValueError(
                "task.data.validation_file is null: training has no numbers to be validated with;"
                " name a file of pairs with numbers"
            )
        if len(train_columns) not in (2, 3) or self.pairs != "apart" or not self.numeric_labels:
            raise ValueError(
                f"train_columns={list(train_columns)}: name two columns (text, and what belongs to"
                " it) or three (and what does not), of a task with pairs=apart and numeric_labels"
            )
        self.train_layout = replace(self.layout, text_columns=list(train_columns), id_column=None)

    @property
    def reading(self) -> JsonObject:
        return super().reading | {"train_columns": self.train_layout.text_columns}

    def read_splits(self) -> None:
        super().read_splits()
        group_size = len(self.train_layout.text_columns)
        sequences = self.train.sequences
        self.train_sequences = GroupedSequences(sequences, group_size)
        self.train_targets["text_numbers"] = sequences.content_numbers().reshape(-1, group_size)

    def refuse_without_dropout(self, config: EncoderConfig, dropout: float | None) -> None:
        """ValueError where a text belongs to itself, and nothing makes two vectors of it.

        `dropout` is that of the training; None: the encoder's own.
        """
        first, second = self.train_layout.text_columns[:2]
        if dropout is None:
            dropout = max(config.hidden_dropout_prob, config.attention_probs_dropout_prob)
        if first == second and dropout == 0.0:
            raise ValueError(
                f"train_columns names {first} twice, and the encoder trains without dropout: a"
                " text's two vectors would be one and the same; say task.module.dropout=0.1"
            )

    def refuse_outside(self, number_range: Sequence[float] | None) -> None:
        """Nothing: training has no numbers, and the module looks at those of validation."""

    def _check_classes(self) -> None:
        """Nothing: there are none."""

    def _layout_of(self, role: str) -> TableFormat:
        if role == "training":
            return self.train_layout
        return super()._layout_of(role)

    def _read(self, path: Path, role: str, names: Sequence[str] | None = None) -> TextExamples:
        if role == "training":
            return self.train_layout.read(path, has_labels=False)
        return super()._read(path, role, names)

    def compute_baselines(self) -> Scores:
        """The share of a pair's words that both texts have, as a score.

        No rule can be learnt from the training file, which has no scores.
        """
        examples = self._read(self.validation_path, "validation")
        shares = []
        for texts in examples.texts:
            first, second = (set(words_of(text)) for text in texts)
            shares.append(len(first & second) / max(1, len(first | second)))
        kind = Number()
        labels = examples.label_values(kind)
        return {COMMON: kind.score(kind.baseline_metrics, np.array(shares), labels)}

    def preview_facts(self, train: Preview) -> JsonObject:  # noqa: ARG002
        return {"kind": Number(), "aligned": False}
