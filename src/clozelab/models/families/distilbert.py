"""DistilBERT (Sanh et al. 2019): BERT's layers without token types and pooler.

Its heads on sequences have a dense layer of their own with ReLU. Its config.json has names of its
own, no `layer_norm_eps` (it is 1e-12) and no causal mask.
"""

from __future__ import annotations

from torch import Tensor

from clozelab.models.config import EncoderConfig
from clozelab.models.families.bert import Family
from clozelab.models.heads import DenseClassificationHead
from clozelab.text.plain import PlainDict, PlainMapping


class PreClassifier(DenseClassificationHead):
    """Unlike RoBERTa's, it drops nothing of the encoder's state."""

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels]."""
        return self.out_proj(self.dropout(self.activation(self.dense(token_states))))


class DistilBert(Family):
    model_type = "distilbert"
    class_name = "DistilBert"
    prefix = "distilbert."
    layer_prefix = "transformer.layer.{}."
    layer_names = {
        "attention.query": "attention.q_lin",
        "attention.key": "attention.k_lin",
        "attention.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2",
        "output.LayerNorm": "output_layer_norm",
    }
    head_names = {
        "lm": "vocab_projector",
        "lm.transform.dense": "vocab_transform",
        "lm.transform.LayerNorm": "vocab_layer_norm",
        "classification.dense": "pre_classifier",
        "classification.out_proj": "classifier",
        "choices.dense": "pre_classifier",
        "choices.out_proj": "classifier",
    }
    decoder = "vocab_projector"
    pretraining = ((frozenset({"lm"}), "ForMaskedLM"),)
    renamed = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    converted = ("position_embedding_init",)
    parts = {
        "type_vocab_size": 0,
        "pooler": None,
        "layer_norm_eps": 1e-12,
    }
    defaults = {
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
        "pad_token_id": 0,
    }
    more_read = ("sinusoidal_pos_embds",)
    fixed = {"is_decoder": False}
    dense_heads = {"classification": "relu", "choices": "relu"}
    dense_head = PreClassifier

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        return {
            **self.own_keys(config),
            "tie_word_embeddings": True,
            # Only a start: the positions are learned in any case.
            "sinusoidal_pos_embds": config.position_embedding_init == "sinusoidal",
            "qa_dropout": config.hidden_dropout_prob,
            "seq_classif_dropout": config.hidden_dropout_prob,
        }

    def from_hf_keys(self, values: PlainMapping) -> PlainDict:
        # Fresh positions only; a trained table is in the file.
        start = "sinusoidal" if values.get("sinusoidal_pos_embds") else "normal"
        return {**self.own_fields(values), "position_embedding_init": start}


FAMILY = DistilBert()
