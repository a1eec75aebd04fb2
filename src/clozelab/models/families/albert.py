"""ALBERT (Lan et al. 2020): narrow embeddings behind a matrix, and layers that share weights.

They share them in groups.
"""

from __future__ import annotations

from clozelab.models.config import EncoderConfig
from clozelab.models.families.bert import Family
from clozelab.text.plain import PlainDict


class Albert(Family):
    model_type = "albert"
    class_name = "Albert"
    prefix = "albert."
    layer_prefix = "encoder.albert_layer_groups.{}.albert_layers.0."
    layer_names = {
        "attention.output.dense": "attention.dense",
        "attention.output.LayerNorm": "attention.LayerNorm",
        "intermediate.dense": "ffn",
        "output.dense": "ffn_output",
        "output.LayerNorm": "full_layer_layer_norm",
    }
    encoder_names = {
        "embeddings_project": "encoder.embedding_hidden_mapping_in",
        "pooler.dense": "pooler",
    }
    head_names = {"lm": "predictions", "lm.transform": "predictions"}
    decoder = "predictions.decoder"
    pretraining = ((frozenset({"lm", "sop"}), "ForPreTraining"), (frozenset({"lm"}), "ForMaskedLM"))
    more_keys = ("embedding_size", "num_hidden_groups")
    parts = {"projects_embeddings": True}
    defaults = {
        **Family.defaults,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "embedding_size": 128,
        "num_hidden_groups": 1,
    }

    has_causal_mask = False
    # The last five are of Google's own code.
    fixed = {
        "is_decoder": False,
        "inner_group_num": 1,
        "down_scale_factor": 1,
        "gap_size": 0,
        "layers_to_keep": [],
        "net_structure_type": 0,
        "num_memory_blocks": 0,
    }

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        own = {"inner_group_num": 1, "classifier_dropout_prob": config.hidden_dropout_prob}
        return super().to_hf_keys(config) | own


FAMILY = Albert()
