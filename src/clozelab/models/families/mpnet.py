"""MPNet (Song et al. 2020): RoBERTa's layers and heads, and a bias by distance in all scores.

There are no token types. Their classes take padding for the id 1, and the distances for 32 buckets,
whatever config.json says.
"""

from __future__ import annotations

from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import NUM_BUCKETS
from clozelab.models.families.roberta import Roberta
from clozelab.text.plain import PlainDict

POSITIONS = {
    "_target_": "clozelab.models.embeddings.BucketedPositions",
    "after_padding": True,
}


class Mpnet(Roberta):
    model_type = "mpnet"
    class_name = "MPNet"
    prefix = "mpnet."
    layer_names = {
        "attention.query": "attention.attn.q",
        "attention.key": "attention.attn.k",
        "attention.value": "attention.attn.v",
        "attention.output.dense": "attention.attn.o",
        "attention.output.LayerNorm": "attention.LayerNorm",
    }
    encoder_names = {
        "embeddings.position_embeddings.relative_attention_bias": "encoder.relative_attention_bias"
    }
    parts = {
        "positions": POSITIONS,
        "type_vocab_size": 0,
        "pad_token_id": 1,
    }
    # Their classes take distances for these buckets, whatever the number is.
    fixed = {"is_decoder": False, "relative_attention_num_buckets": NUM_BUCKETS}
    harmless = ("type_vocab_size",)
    has_causal_mask = False

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        # What their classes take for granted, in the file as well.
        own = {"pad_token_id": config.pad_token_id, "relative_attention_num_buckets": NUM_BUCKETS}
        return super().to_hf_keys(config) | own


FAMILY = Mpnet()
