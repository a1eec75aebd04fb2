"""NeoBERT (Le Breton et al. 2025): deep and narrow, RMS norms first, rotary positions, SwiGLU.

transformers has no such class, so nobody but its own code (and we) reads a folder. Its query, key
and value stand head by head in one matrix, and it turns neighbouring numbers of a query where ours
turns number i with i + D / 2: rows are put in order when a file is read or written.

Unusual: fresh weights are BERT's truncated normal, where the release draws evenly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson, require_values
from clozelab.models.families.bert import Family
from clozelab.models.families.ultrabert import BLOCK
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

QKV = ".attention.qkv.weight"


class Neobert(Family):
    model_type = "neobert"
    class_name = "NeoBERT"
    has_class = False
    prefix = "model."
    layer_prefix = "transformer_encoder.{}."
    layer_names = {
        "attention.qkv": "qkv",
        "attention.output.dense": "wo",
        "feed_forward_norm": "ffn_norm",
        "intermediate.dense": "ffn.w12",
        "output.dense": "ffn.w3",
    }
    encoder_names = {
        "embeddings.word_embeddings": "encoder",
        "final_norm": "layer_norm",
    }
    head_names = {
        "lm": "decoder",
        "classification.dense": "dense",
        "classification.out_proj": "classifier",
    }
    decoder = "decoder"
    ties_vocabulary = False
    pretraining = ((frozenset({"lm"}), "LMHead"),)
    renamed = {
        "layer_norm_eps": "norm_eps",
        "initializer_range": "embedding_init_range",
        "max_position_embeddings": "max_length",
    }
    parts = {
        "type_vocab_size": 0,
        "hidden_act": "silu",
        "block": BLOCK,
        "positions": {"_target_": "clozelab.models.embeddings.RotaryPositions"},
        "norm": {"_target_": "clozelab.models.encoder.RMSNorm"},
        "pooler": None,
        "use_bias": False,
    }
    defaults = {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "position_embedding_init": "normal",
        "embedding_init_range": 0.02,
        "norm_eps": 1e-6,
        "pad_token_id": 0,
    }
    # The release has code of its own, whose classes these are.
    more_read = ("auto_map", "dim_head", "hidden_act", "rms_norm", "rope")
    fixed = {"is_decoder": False, "ngpt": False, "qk_norm": False}
    harmless = (
        "attn_backend",
        "base_scale",
        "classifier_init_range",
        "decoder_init_range",
        "dropout",
        "flash_attention",
        "kernel_backend",
        "kwargs",
        "trust_remote_code",
    )
    dense_heads = {"classification": "tanh"}
    reads_two_directions = False

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        if kind == "lm":
            generator = options.get("generator")
            return heads.UntiedLMHead(encoder.config, nn.Identity(), True, generator)
        return super().head(kind, encoder, **options)

    def architecture(self, kinds: Collection[str], is_causal: bool = False) -> str:
        # Theirs is called NeoBERT, not NeoBERTModel.
        return super().architecture(kinds, is_causal).removesuffix("Model")

    def kinds(self, architecture: str) -> frozenset[str]:
        if architecture.endswith(self.class_name):
            return frozenset()
        return super().kinds(architecture)

    # Tensors

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ordered = {}
        for name, value in state.items():
            ordered[name] = self._by_head(value) if name.endswith(QKV) else value
        return super().to_hf(ordered)

    def from_hf(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        state = super().from_hf(tensors, names)
        for name, value in state.items():
            if name.endswith(QKV):
                state[name] = self._by_projection(value)
        return state

    def _by_head(self, weight: Tensor) -> Tensor:
        """Rows [3, N, 2, D / 2] of query, key and value -> [N, 3, D], query and key in pairs."""
        # Rows of a head of four: x0 x1 y0 y1 here, where x0 turns with y0; x0 y0 x1 y1 there.
        width = weight.shape[1]
        parts = weight.view(3, self.num_heads, 2, -1, width)
        pairs = parts[:2].transpose(2, 3).reshape(2, self.num_heads, -1, width)
        # Nothing turns values.
        value = parts[2].reshape(1, self.num_heads, -1, width)
        return torch.cat([pairs, value]).transpose(0, 1).reshape(weight.shape)

    def _by_projection(self, weight: Tensor) -> Tensor:
        """The same back."""
        width = weight.shape[1]
        parts = weight.view(self.num_heads, 3, -1, width).transpose(0, 1)  # [3, N, D, H]
        pairs = parts[:2].reshape(2, self.num_heads, -1, 2, width).transpose(2, 3)
        halves = pairs.reshape(2, self.num_heads, -1, width)
        return torch.cat([halves, parts[2:]]).reshape(weight.shape)

    # config.json

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        return {
            **self.own_keys(config),
            # Theirs says what a plain layer would have; two thirds of it are used.
            "intermediate_size": -(-3 * config.intermediate_size // 2),
            "hidden_act": "SwiGLU",
            "rope": True,
            "rms_norm": True,
        }

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        require_values(values, {"dim_head": values["hidden_size"] // values["num_attention_heads"]})
        plain: PlainMapping = values
        for key, value in {"hidden_act": "SwiGLU", "rope": True, "rms_norm": True}.items():
            if str(plain.get(key, value)).lower() != str(value).lower():
                raise ValueError(f"{key} is {plain[key]!r}; only {value!r} can be read")
        size = int(2 * values["intermediate_size"] / 3)
        # A multiple of eight.
        return {**self.own_fields(values), "intermediate_size": -(-size // 8) * 8}


FAMILY = Neobert()
