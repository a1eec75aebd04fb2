"""Sentence embeddings (Sentence-BERT, Reimers and Gurevych 2019): one encoder reads both texts.

Classes are told from (u, v, |u - v|) by one matrix, as in natural language inference; numbers are
what the cosine of u and v should be. After training the matrix has done its work, and the vectors
are what is used: the folder remembers how they are pooled. A cosine needs no head, so a frozen
encoder is scored by the same module (measure=similarity).

Letters: B pairs, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.datamodules.finetuning import Batch
from clozelab.models.encoder import SENTENCE_POOLINGS
from clozelab.modules.classification import SequenceClassification
from clozelab.text.plain import JsonObject, ReadOnlyJson


class SiameseEncoder(SequenceClassification):
    """Cross-entropy of the class, or the squared error of the cosine.

    Args: as SequenceClassification has them. Numbers of `number_range` (None: 0 to 1) stand for
    cosines of 0 to 1.
    """

    head_kind = "siamese"

    def __init__(
        self, *, pooling: str, number_range: Sequence[float] | None, **classification: Any
    ) -> None:
        super().__init__(number_range=number_range or (0.0, 1.0), **classification)
        self.pooling = pooling
        least, largest = self.number_range
        labels = self.validation.labels
        if not self.kind.names and not least <= labels.min() <= labels.max() <= largest:
            raise ValueError(
                f"labels run from {labels.min():g} to {labels.max():g}, and a cosine of 0 to 1"
                f" stands for {least:g} to {largest:g}: say"
                f" task.module.number_range=[{labels.min():g},{labels.max():g}], or what they"
                " can be"
            )

    def put_head(
        self,
        kind: str,  # noqa: ARG002
        num_labels: int = 2,
        name: str = "classifier",  # noqa: ARG002
    ) -> None:
        """The matrix of the classes; a cosine needs none. The pooler is not read."""
        self.encoder.pooler.requires_grad_(False)
        if self.kind.names:
            super().put_head(self.head_kind, num_labels)

    @classmethod
    def check_head(cls, head: str) -> None:
        if head != "linear":
            raise ValueError(
                f"head={head}: sentence embeddings are the encoder's own; take head=linear"
            )

    @classmethod
    def check_settings(cls, settings: ReadOnlyJson) -> None:
        if settings["pooling"] not in SENTENCE_POOLINGS:
            raise ValueError(
                f"pooling={settings['pooling']}: choose one of {', '.join(SENTENCE_POOLINGS)}"
            )

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]; of numbers the cosine [B, 1]."""
        states = self.encoder.sentence_states(self.encode(batch), batch["layout"], self.pooling)
        # The two texts of a pair are neighbours in the batch.
        u = states[0::2]
        v = states[1::2]
        if not self.kind.names:
            return F.cosine_similarity(u, v)[:, None]
        return self.in_fp32(self.classifier, torch.cat([u, v, (u - v).abs()], dim=1))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.kind.names:
            return super().loss(logits, batch)
        least, largest = self.number_range
        cosines = (batch["labels"] - least) / (largest - least)
        return F.mse_loss(logits[:, 0], cosines, reduction="sum")

    def remembered(self) -> JsonObject:
        return {"pooling": self.pooling}

    def _predicted(self, logits: np.ndarray) -> np.ndarray:
        predicted = super()._predicted(logits)
        if self.kind.names:
            return predicted
        least, largest = self.number_range
        return least + predicted * (largest - least)
