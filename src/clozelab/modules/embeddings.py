"""Sentence embeddings (Sentence-BERT, Reimers and Gurevych 2019): one encoder reads both texts.

Classes are told from (u, v, |u - v|) by one matrix, as in natural language inference; numbers are
what the cosine of u and v should be. After training the matrix has done its work, and the vectors
are what is used: the folder remembers how they are pooled. A cosine needs no head, so a frozen
encoder is scored by the same module (measure=similarity). Texts that belong together need neither
classes nor numbers: each is told from all other texts of its batch.

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
from clozelab.modules.finetuning import in_fp32
from clozelab.text.did_you_mean import check_choice
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
        check_choice("pooling", settings["pooling"], ("auto", *SENTENCE_POOLINGS))

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]; of numbers the cosine [B, 1]."""
        states = self.encoder.sentence_states(self.encode(batch), batch["layout"], self.pooling)
        # The two texts of a pair are neighbours in the batch.
        u = states[0::2]
        v = states[1::2]
        if not self.kind.names:
            return F.cosine_similarity(u, v)[:, None]
        return in_fp32(self.classifier, torch.cat([u, v, (u - v).abs()], dim=1))

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


class ContrastiveEncoder(SiameseEncoder):
    """Cross-entropy of which text of the batch belongs to each (van den Oord et al. 2018).

    Every other example's text is a negative, as in Sentence-BERT's multiple negatives ranking loss
    (Henderson et al. 2017), and so are all texts of a third column; copies are not (`copies`).
    Where a text belongs to itself, dropout makes two vectors of it (SimCSE, Gao et al. 2021).
    Validation is of pairs with numbers. With several devices the negatives are those of one's own
    part of the batch.

    Args:
        temperature: cosines are divided by it.
        dropout: of the encoder while it trains; None: its own.
    """

    def __init__(self, *, temperature: float, dropout: float | None, **siamese: Any) -> None:
        super().__init__(**siamese)
        self.temperature = temperature
        if dropout is not None:
            self.encoder.set_dropout(dropout)

    @classmethod
    def check_settings(cls, settings: ReadOnlyJson) -> None:
        super().check_settings(settings)
        if not settings["temperature"] > 0:
            raise ValueError(f"temperature={settings['temperature']}: give a number above 0")
        if not 0 <= (settings["dropout"] or 0.0) < 1:
            raise ValueError(f"dropout={settings['dropout']}: give a number from 0 to below 1")

    def logits(self, batch: Batch) -> Tensor:
        """In training [B, B], or [B, 2 B] with negatives of one's own; else the cosine [B, 1].

        Of texts that are no negatives they are -inf.
        """
        if not self.training:
            return super().logits(batch)
        states = self.encoder.sentence_states(self.encode(batch), batch["layout"], self.pooling)
        # The two or three texts of an example are neighbours in the batch.
        vectors = F.normalize(states, dim=1).view(len(batch["example_index"]), -1, states.shape[1])
        # All texts that belong to one, then all that do not.
        candidates = vectors[:, 1:].transpose(0, 1).flatten(0, 1)
        logits = vectors[:, 0] @ candidates.T / self.temperature
        return logits.masked_fill(copies(batch["text_numbers"]), -torch.inf)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:  # noqa: ARG002
        own = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(logits, own, reduction="sum")


def copies(texts: Tensor) -> Tensor:
    """Which candidates are no negatives of a text, as they stand for what belongs to it.

    They are the same text as the anchor or as its positive, or the positive of the same anchor. A
    hard negative of the same anchor remains one.

    Args:
        texts: int64 [B, 2 or 3], numbers of the anchors, the positives and perhaps the hard
            negatives; the same number is the same text.

    Returns:
        bool [B, B or 2 B], False for each anchor's own positive.
    """
    anchors = texts[:, :1]
    positives = texts[:, 1:2]
    candidates = texts[:, 1:].T.flatten()
    is_copy = (candidates == anchors) | (candidates == positives)
    is_copy[:, : len(texts)] |= anchors == anchors.T
    return is_copy.fill_diagonal_(False)
