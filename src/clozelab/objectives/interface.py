"""What an objective is: the contracts that weighted_sum.py composes.

A new objective is one file with one class; nobody lists it, a YAML names it. Losses come as sums with their counts,
never as means: only the module, which knows all devices and micro-batches of a step, can divide.

Letters: T slots in the stream, B rows, P predicted positions, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.data.packing import PackedRows, SpecialIds
from clozelab.models.config import BertConfig
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.heads import MaskedLMHead

Epoch = int | NDArray[np.int64]
Arrays = dict[str, Any]


@dataclass
class RowResults:
    """An objective with one prediction a row keeps them apart, so that they can be reported by source."""

    loss: Tensor
    """fp32 [B]."""
    correct: Tensor
    """bool [B]."""


@dataclass
class LossTerm:
    """One objective's loss on one micro-batch."""

    name: str
    loss_sum: Tensor
    """fp32 scalar, summed over `count` predictions, not weighted."""
    count: int
    num_correct: Tensor
    """int scalar."""
    rows: RowResults | None = None


class TokenObjective(ABC):
    """Predicts tokens of the vocabulary at some positions."""

    name: ClassVar[str]
    hf_prefix: ClassVar[str] = "cls.predictions"
    """Where the head's weights live in a Hugging Face file."""
    is_causal: ClassVar[bool]
    """The encoder's attention mask, remembered with its weights."""
    predicted_fraction: float
    """Share of slots that are predicted, for counting FLOPs."""
    weight: float

    @abstractmethod
    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        """Returns `input_ids` [T] as the encoder sees them, `prediction_rows` [P] and `prediction_labels` [P], int64.

        The hidden state of stream slot `prediction_rows[p]` predicts `prediction_labels[p]`.
        """

    def build_head(self, config: BertConfig, encoder: Encoder) -> nn.Module:
        """The masked-LM head, tied to the encoder's word embeddings."""
        weight = encoder.embeddings.word_embeddings.weight
        assert isinstance(weight, nn.Parameter)
        return MaskedLMHead(config, weight)

    def count(self, batch: dict[str, Any]) -> int:
        """Predictions in a batch, known before the forward; padding of their number is none."""
        return int(batch.get("num_predictions", len(batch["prediction_labels"])))

    def loss(self, head: nn.Module, output: EncoderOutput, batch: dict[str, Any]) -> LossTerm:
        """Cross-entropy summed over the predicted positions only."""
        assert isinstance(head, MaskedLMHead)
        hidden = output.sequence_output.index_select(0, batch["prediction_rows"])  # [P, H]
        result = head.loss(hidden, batch["prediction_labels"])
        return LossTerm(self.name, result.loss_sum, self.count(batch), result.num_correct)


class PairObjective(ABC):
    """Predicts something about a row's two segments from the pooled state."""

    name: ClassVar[str]
    hf_prefix: ClassVar[str]
    weight: float

    @abstractmethod
    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        """The labels this objective needs, [B] each."""

    @abstractmethod
    def build_head(self, config: BertConfig) -> nn.Module:
        """The head on the pooled state."""

    @abstractmethod
    def count(self, batch: dict[str, Any]) -> int:
        """Predictions in a batch, known before the forward."""

    @abstractmethod
    def loss(self, head: nn.Module, pooled: Tensor, batch: dict[str, Any]) -> LossTerm:
        """`pooled` [B, H] -> loss summed over the rows."""
