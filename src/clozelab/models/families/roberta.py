"""RoBERTa (Liu et al. 2019): BERT's layers; positions begin behind the padding id.

There is one token type. Its classification head has a dense layer of its own, so that the pooler is
read by multiple choice alone.
"""

from __future__ import annotations

from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson
from clozelab.models.families.bert import Family
from clozelab.text.plain import PlainDict

POSITIONS = {"_target_": "clozelab.models.embeddings.LearnedPositions", "after_padding": True}


class Roberta(Family):
    model_type = "roberta"
    class_name = "Roberta"
    prefix = "roberta."
    head_names = {
        "lm": "lm_head",
        "lm.transform.dense": "lm_head.dense",
        "lm.transform.LayerNorm": "lm_head.layer_norm",
    }
    decoder = "lm_head.decoder"
    pretraining = ((frozenset({"lm"}), "ForMaskedLM"),)
    causal_lm = "ForCausalLM"
    parts = {"positions": POSITIONS}
    defaults = {**Family.defaults, "pad_token_id": 1}
    lm_act = "gelu"
    dense_heads = {"classification": "tanh"}

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        values = super().to_hf_keys(config)
        # Theirs counts the entries before the first position.
        values["max_position_embeddings"] += config.pad_token_id + 1
        return values

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        arguments = super().from_hf_keys(values)
        arguments["max_position_embeddings"] -= arguments["pad_token_id"] + 1
        return arguments


FAMILY = Roberta()
