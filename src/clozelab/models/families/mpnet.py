"""MPNet (Song et al. 2020): RoBERTa's layers and heads, and a bias by distance in all scores.

There are no token types. Their classes take padding for the id 1, and the distances for 32 buckets,
whatever config.json says.
"""

from __future__ import annotations

from clozelab.models.config import EncoderConfig
from clozelab.models.families.roberta import Roberta
from clozelab.text.plain import JsonObject, ReadOnlyJson

BUCKETS = 32
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
    has_causal_mask = False

    def to_hf_keys(self, config: EncoderConfig) -> JsonObject:
        # What their classes take for granted, in the file as well.
        own = {"pad_token_id": config.pad_token_id, "relative_attention_num_buckets": BUCKETS}
        return super().to_hf_keys(config) | own

    def from_hf_keys(self, values: ReadOnlyJson) -> JsonObject:
        number = values.get("relative_attention_num_buckets", BUCKETS)
        if number != BUCKETS:
            raise ValueError(
                f"config.json: relative_attention_num_buckets is {number}; MPNet's distances fall"
                f" into {BUCKETS} buckets, so only that can be read"
            )
        return super().from_hf_keys(values)


FAMILY = Mpnet()
