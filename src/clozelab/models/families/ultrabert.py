"""UltraBERT (transformers' `ultrabert`): ModernBERT's layers with RMS norms and SwiGLU.

The window is a radius, every third layer from the third sees everything, and the embeddings have no
norm. The vocabulary has two layers before it and a matrix of its own; a task has one matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson, require_values
from clozelab.models.families.bert import Family
from clozelab.models.families.modernbert import (
    FRESH,
    GLOBAL,
    LOCAL,
    LOCAL_ATTENTION,
    attention_part,
    layer_fields,
    layer_keys,
    layer_types,
)
from clozelab.models.layers import Linear
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

CLASS_DECODER = "head.decoder."  # the vocabulary's matrix, in the class
HEAD_SIZE = 768  # between the two layers before the vocabulary
BASES = {"global_base": 2_560_000.0, "local_base": 10_000.0}
POSITIONS = {
    "_target_": "clozelab.models.embeddings.RotaryPositions",
    "base": BASES["global_base"],
    "window_base": BASES["local_base"],
}
BLOCK = {
    "_target_": "clozelab.models.encoder.PreNorm",
    "gated": True,
    "embedding_norm": False,
}
ATTENTION = {"_target_": LOCAL_ATTENTION, "window": 128, "global_every": 3, "first_global": 2}
PATTERN = (3, 2)  # the same, as layer_types takes it


class Ultrabert(Family):
    model_type = "ultrabert"
    class_name = "Ultrabert"
    prefix = "ultrabert."
    class_prefix = "model."
    layer_prefix = "layers.{}."
    layer_names = {
        "attention_norm": "input_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output.dense": "self_attn.o_proj",
        "feed_forward_norm": "post_attention_layernorm",
        "intermediate.gate": "mlp.gate_proj",
        "intermediate.up": "mlp.up_proj",
        "output.dense": "mlp.down_proj",
    }
    encoder_names = {
        "embeddings.word_embeddings": "embed_tokens",
        "final_norm": "norm",
    }
    head_names = {
        "lm": "cls",
        "lm.transform.0": "head.linear1",
        "lm.transform.2": "head.linear2",
    }
    decoder = "cls"
    ties_vocabulary = False
    pretraining = ((frozenset({"lm"}), "ForMaskedLM"),)
    renamed = {
        "layer_norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    parts = {
        "type_vocab_size": 0,
        "block": BLOCK,
        "positions": POSITIONS,
        "attention": ATTENTION,
        "norm": {"_target_": "clozelab.models.encoder.RMSNorm"},
        "pooler": None,
        "use_bias": False,
    }
    defaults = {
        **BASES,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-6,
        **FRESH,
        "pad_token_id": 0,
        "sliding_window": 128,
        "classifier_pooling": "cls",
        "attention_bias": False,
        "mlp_bias": False,
    }
    more_read = (
        "attention_windows",
        "head_dim",
        "layer_types",
        "num_key_value_heads",
        "prediction_head_size",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
    )
    fixed = {"is_decoder": False}
    reads_two_directions = False

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        if kind != "lm":
            return super().head(kind, encoder, **options)
        width = encoder.config.hidden_size
        transform = nn.Sequential(
            Linear(width, HEAD_SIZE, bias=False),
            nn.GELU("tanh"),
            Linear(HEAD_SIZE, width, bias=False),
            nn.GELU("tanh"),
        )
        return heads.UntiedLMHead(encoder.config, transform, False, options.get("generator"))

    def file_names(self, name: str) -> list[str]:
        # Gate and up are one matrix here, two there.
        if ".intermediate.dense." in name:
            inner = name.removeprefix("encoder.")
            halves = [inner.replace(".dense.", f".{half}.") for half in ("gate", "up")]
            return [self.prefix + self.encoder_name(half) for half in halves]
        return super().file_names(name)

    def from_file(
        self,
        tensors: dict[str, Tensor],
        config: EncoderConfig,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """As save_pretrained names them; a state_dict has the names of the class."""
        named = {}
        for name, value in tensors.items():
            if name.startswith(self.class_prefix):
                name = self.prefix + name.removeprefix(self.class_prefix)
            elif name.startswith(CLASS_DECODER):
                name = f"{self.decoder}." + name.removeprefix(CLASS_DECODER)
            named[name] = value
        return named

    # config.json

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        attention = {**ATTENTION, **dict(config.attention.options)}
        values = self.own_keys(config) | layer_keys(config, POSITIONS)
        values["classifier_dropout"] = config.hidden_dropout_prob
        values["attention_bias"] = config.use_bias
        values["mlp_bias"] = config.use_bias
        values["num_key_value_heads"] = config.num_attention_heads
        values["prediction_head_size"] = HEAD_SIZE
        values["sliding_window"] = attention["window"]
        return values

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        values = with_layer_types(values)
        heads_count = values["num_attention_heads"]
        # Fewer heads of keys than of queries (grouped attention) are not here.
        expected = {
            "num_key_value_heads": heads_count,
            "head_dim": values["hidden_size"] // heads_count,
            "prediction_head_size": HEAD_SIZE,
        }
        require_values(values, expected)
        if values["mlp_bias"] != values["attention_bias"]:
            raise ValueError(
                "attention_bias and mlp_bias differ; all matrices have a bias here, or none"
            )
        fields = self.own_fields(values) | layer_fields(values, POSITIONS, tuple(BASES))
        fields["use_bias"] = values["attention_bias"]
        fields["attention"] = attention_part(values, values["sliding_window"], PATTERN)
        return fields


def with_layer_types(values: ConfigJson) -> ConfigJson:
    """Older files list each layer's window (0: none) and base, instead of kinds of layers."""
    values = values.copy()
    types = layer_types(values["num_hidden_layers"], *PATTERN)
    used = set()
    if "attention_windows" in values:
        # Windows 128 128 0 are sliding, sliding, full.
        types = [LOCAL if window else GLOBAL for window in values["attention_windows"]]
        used = {window for window in values["attention_windows"] if window}
    types = values.setdefault("layer_types", types)
    values["sliding_window"] = max(used, default=values["sliding_window"])
    # What newer files say of the bases counts.
    bases = [] if "rope_parameters" in values else values.get("rope_theta", [])
    if not isinstance(bases, list):
        raise ValueError(f"rope_theta is {bases!r}; it is a list with a base for each layer")
    kinds = set(zip(types, bases, strict=False))
    if len(used) > 1 or len(kinds) > len(set(types)):
        raise ValueError(
            "attention_windows or rope_theta has several numbers for layers of one"
            " kind; only one can be read"
        )
    values.setdefault("rope_parameters", {kind: {"rope_theta": base} for kind, base in kinds})
    return values


FAMILY = Ultrabert()
