"""Tagging on a frozen encoder's features (table 7): a BiLSTM over the words of a sentence, and a linear layer.

Unusual: the encoder is here for its shape and for saving the model; training and evaluation never call it, the batches
bring what it said of every word (datamodules/features.py).

Letters: U words of the batch, C chosen layers, H hidden size, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from clozelab.models.encoder import Encoder
from clozelab.models.features import FeatureMix, check_features
from clozelab.modules.finetuning import Batch
from clozelab.modules.token_classification import TokenClassification


class FeatureBased(TokenClassification):
    """Arguments as TokenClassification's, and `features`: one of models/features.py. `head` must be bilstm."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        head: str,
        features: str,
        **tagging: Any,
    ) -> None:
        self.check_head(head)
        config = encoder.config
        mix = FeatureMix(features, config.num_hidden_layers, config.hidden_size)
        super().__init__(encoder=encoder, head=head, input_size=mix.output_size, **tagging)
        self.encoder.requires_grad_(False)
        self.feature_mix = mix

    @classmethod
    def check_head(cls, head: str) -> None:
        super().check_head(head)
        if head != "bilstm":
            raise ValueError(f"head={head}: feature-based tagging stands on a BiLSTM, as in table 7; set head=bilstm")

    @classmethod
    def check_settings(cls, settings: Mapping[str, Any]) -> None:
        super().check_settings(settings)
        check_features(settings["features"])

    def logits(self, batch: Batch) -> Tensor:
        """[U, K], from `features` [U, C, H]."""
        assert self.bilstm is not None
        states = self.bilstm(self.feature_mix(batch["features"]), batch["layout"])
        return self.in_fp32(self.classifier, states)
