"""BigBird (Zaheer et al. 2020): BERT's layers on blocks of tokens, of which each sees a few.

Unusual: first block, last block and whether all is seen are by each text's own length, in
transformers by the padded batch's. No block is drawn, not even in training. Their class for answers
also takes 1e6 from the question's logits, and the embeddings' dropout stands before the norm there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson
from clozelab.models.encoder import Intermediate, ResidualOutput
from clozelab.models.families.bert import Family
from clozelab.models.families.modernbert import FULL_ATTENTION
from clozelab.models.heads import DenseClassificationHead, LinearHead
from clozelab.models.layers import Dropout, initialise_
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

BLOCKS = {"block_size": 64, "num_random_blocks": 3}
ATTENTION = {"_target_": "clozelab.models.attention.BlockAttention", **BLOCKS}


class AnswerHead(nn.Module):
    """A feed-forward half of a layer, then the ends of an answer."""

    def __init__(self, config: EncoderConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.intermediate = Intermediate(config, gated=False)
        self.output = ResidualOutput(config.intermediate_size, config, norm_last=True)
        initialise_(self, config.initializer_range, generator)
        self.qa_outputs = LinearHead(config, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, 2]."""
        return self.qa_outputs(self.output(self.intermediate(self.dropout(hidden)), hidden))


class BigBird(Family):
    model_type = "big_bird"
    class_name = "BigBird"
    encoder_names = {"pooler.dense": "pooler"}
    head_names = {"spans": "qa_classifier"}
    pretraining = Family.pretraining[:2]
    causal_lm = "ForCausalLM"
    parts = {"attention": ATTENTION}
    defaults = {
        **Family.defaults,
        **BLOCKS,
        "hidden_act": "gelu_new",
        "attention_type": "block_sparse",
        "sep_token_id": 66,
    }
    separated_kinds = frozenset({"spans"})
    typing_classes = ("ForQuestionAnswering",)
    fixed = {"is_decoder": False, "use_bias": True, "rescale_embeddings": False}
    reads_two_directions = False

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        config = encoder.config
        generator = options.get("generator")
        if options.get("input_size") is None and kind == "spans":
            return AnswerHead(config, generator)
        if options.get("input_size") is None and kind == "classification":
            num_labels = options.get("num_labels", 2)
            return DenseClassificationHead(config, num_labels, config.hidden_act, generator)
        return super().head(kind, encoder, **options)

    def reads_pooler(self, kinds: Collection[str]) -> bool:
        """All of their classes have a pooler, read or not; that for answers has none."""
        return "spans" not in kinds

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        values = super().to_hf_keys(config)
        blocks = dict(config.attention.options)
        values["attention_type"] = "block_sparse" if blocks else "original_full"
        return {**values, **blocks}

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        attention: PlainDict = {"_target_": FULL_ATTENTION}
        if values["attention_type"] != "original_full":
            plain: PlainMapping = values
            attention = ATTENTION | {key: plain[key] for key in BLOCKS}
        arguments = super().from_hf_keys({**values, "is_decoder": False})
        return {**arguments, "attention": attention}


FAMILY = BigBird()
