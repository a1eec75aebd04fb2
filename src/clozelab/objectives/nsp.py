"""Next-sentence prediction: does B follow A in the text? Label 1 = B is random, as in the released code."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.packing import PackedRows, SpecialIds
from clozelab.models.config import EncoderConfig
from clozelab.models.heads import NextSentenceHead
from clozelab.objectives.objective import Arrays, Epoch, LossTerm, PairObjective, RowResults


class NextSentencePrediction(PairObjective):
    """Two classes on the pooled state; the input format decides how pairs are made."""

    name = "nsp"
    hf_prefix = "nsp"

    def __init__(self, *, weight: float) -> None:
        self.weight = weight

    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:  # noqa: ARG002
        assert rows.next_sentence_label is not None
        return {"next_sentence_label": rows.next_sentence_label}

    def build_head(self, config: EncoderConfig) -> nn.Module:
        return NextSentenceHead(config)

    def count(self, batch: dict[str, Any]) -> int:
        return len(batch["next_sentence_label"])

    def loss(self, head: nn.Module, pooled: Tensor, batch: dict[str, Any]) -> LossTerm:
        labels = batch["next_sentence_label"]
        logits = head(pooled).float()  # [B, 2]
        rows = RowResults(F.cross_entropy(logits, labels, reduction="none"), logits.argmax(-1) == labels)
        return LossTerm(self.name, rows.loss.sum(), len(labels), rows.correct.sum(), rows)
