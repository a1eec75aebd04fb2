"""Sentence embeddings (Sentence-BERT, Reimers and Gurevych 2019): one encoder reads both texts.

Classes are told from (u, v, |u - v|) by one matrix, as in natural language inference; numbers are
what the cosine of u and v should be. After training the matrix has done its work, and the vectors
are what is used: the folder remembers how they are pooled. A cosine needs no head, so a frozen
encoder is scored by the same target (measure=similarity).

Letters: B pairs, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.tasks.batches import Batch, apply_head_fp32
from clozelab.tasks.classes import ClassTarget, by_labels
from clozelab.tasks.numbers import NumberTarget
from clozelab.tasks.unit import Split


class VectorClassTarget(ClassTarget):
    """A class, predicted from (u, v, |u - v|)."""

    units = ("VectorUnit",)
    head_kinds = ("siamese",)

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """[B, number of classes] of vectors [B, 2, H]."""
        u = states[:, 0]
        v = states[:, 1]
        return apply_head_fp32(head, torch.cat([u, v, (u - v).abs()], dim=1))


class CosineTarget(NumberTarget):
    """The cosine of both vectors; numbers of `number_range` (None: 0 to 1) stand for 0 to 1."""

    units = ("VectorUnit",)
    head_kinds = ()

    def __init__(
        self, *, metrics: Sequence[str] = ("spearman",), number_range: Sequence[float] | None = None
    ) -> None:
        super().__init__(metrics=metrics, number_range=number_range)
        self.least, self.largest = number_range or (0.0, 1.0)

    def check_validation(self, split: Split) -> None:
        super().check_validation(split)
        low = split.labels.min()
        high = split.labels.max()
        if not self.least <= low <= high <= self.largest:
            raise ValueError(
                f"labels run from {low:g} to {high:g}, and a cosine of 0 to 1"
                f" stands for {self.least:g} to {self.largest:g}: say"
                f" task.module.number_range=[{low:g},{high:g}], or what they can be"
            )

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """[B, 1] of vectors [B, 2, H]."""
        return F.cosine_similarity(states[:, 0], states[:, 1])[:, None]

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        cosines = (batch["labels"] - self.least) / (self.largest - self.least)
        return F.mse_loss(logits[:, 0], cosines, reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return self.least + super().predict(outputs) * (self.largest - self.least)


similarity = by_labels(VectorClassTarget, CosineTarget)
