"""ModernBERT (Warner et al. 2024), and Ettin's encoders (Weller et al. 2025), which are the same.

Norms come first, positions turn query and key, two of three layers see a window, nothing but the
vocabulary and a task's last matrix has a bias. Every task's head begins as the vocabulary's.

Unusual: a config.json is written with the keys of transformers 5 (layer_types, rope_parameters) and
those of 4 (global_attn_every_n_layers, global_rope_theta, local_rope_theta). Dropout of the
embeddings and of the feed-forward half is one number; ours falls on a half's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson, require_values
from clozelab.models.encoder import residual_scale
from clozelab.models.families.bert import Family
from clozelab.models.layers import initialise_
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping, ReadOnlyJson

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

GLOBAL = "full_attention"
LOCAL = "sliding_attention"
GLOBAL_EVERY = 3
# A name of positions that only turn query and key.
NOTHING_ADDED = "sans_pos"
MEAN_POOLER = {"_target_": "clozelab.models.encoder.MeanPooler"}
FULL_ATTENTION = "clozelab.models.attention.FullAttention"
LOCAL_ATTENTION = "clozelab.models.attention.LocalAttention"
POSITIONS = {
    "_target_": "clozelab.models.embeddings.RotaryPositions",
    "base": 160_000.0,
    "window_base": 10_000.0,
}
BLOCK = {
    "_target_": "clozelab.models.encoder.PreNorm",
    "gated": True,
    "first_norm": False,
    "scaled_outputs": True,
}
ATTENTION = {"_target_": LOCAL_ATTENTION, "window": 64, "global_every": GLOBAL_EVERY}
NORM = {"_target_": "clozelab.models.encoder.LayerNorm", "bias": False}
# How weights begin, where a file does not say it.
FRESH = {"initializer_range": 0.02, "position_embedding_init": "normal"}
# transformers 4 has a key for each base.
OLD_BASES = {"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0}
# Theirs would be numbers behind a small vocabulary; the tokenizer's files name them.
UNSAID_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
# What its classes could have and our parts do not -> the one value that is read.
FIXED: PlainMapping = {
    "decoder_bias": True,
    "classifier_activation": "gelu",
    "tie_word_embeddings": True,
    "initializer_cutoff_factor": 2.0,
}
# Kinds of layers in rope_parameters, and what is said of each.
ROPE_KEYS = (GLOBAL, LOCAL, "rope_type", "rope_theta")
BIASES = ("attention_bias", "mlp_bias", "classifier_bias")
# Heads on the encoder -> their outputs; None: as many as there are labels.
TASK_HEADS: Mapping[str, int | None] = {
    "classification": None,
    "tags": None,
    "choices": 1,
    "spans": 2,
}


def task_head_names() -> dict[str, str]:
    """All tasks have the very same names."""
    names = {}
    for kind in TASK_HEADS:
        names[f"{kind}.transform.dense"] = "head.dense"
        names[f"{kind}.transform.LayerNorm"] = "head.norm"
        names[f"{kind}.out_proj"] = "classifier"
    return names


# What a file may leave out.
RELEASED = {**FIXED, **OLD_BASES, **dict.fromkeys(BIASES, False), **FRESH}


class Modernbert(Family):
    model_type = "modernbert"
    class_name = "ModernBert"
    prefix = "model."
    layer_prefix = "layers.{}."
    layer_names = {
        "attention_norm": "attn_norm",
        "attention.qkv": "attn.Wqkv",
        "attention.output.dense": "attn.Wo",
        "feed_forward_norm": "mlp_norm",
        "intermediate.dense": "mlp.Wi",
        "output.dense": "mlp.Wo",
    }
    encoder_names = {
        "embeddings.word_embeddings": "embeddings.tok_embeddings",
        "embeddings.LayerNorm": "embeddings.norm",
    }
    head_names = {
        "lm": "decoder",
        "lm.transform.dense": "head.dense",
        "lm.transform.LayerNorm": "head.norm",
        **task_head_names(),
    }
    decoder = "decoder"
    pretraining = ((frozenset({"lm"}), "ForMaskedLM"),)
    renamed = {
        "hidden_act": "hidden_activation",
        "hidden_dropout_prob": "mlp_dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_eps",
    }
    parts = {
        "type_vocab_size": 0,
        "block": BLOCK,
        "positions": POSITIONS,
        "attention": ATTENTION,
        "norm": NORM,
        "pooler": None,
        "use_bias": False,
    }
    defaults = {
        **RELEASED,
        "hidden_activation": "gelu",
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "pad_token_id": 50283,
        "local_attention": 128,
        "classifier_pooling": "cls",
    }
    more_read = (
        "global_attn_every_n_layers",
        "head_dim",
        "layer_types",
        "rope_parameters",
        "rope_scaling",
        "sliding_window",
    )
    fixed = {**FIXED, "is_decoder": False}
    harmless = (
        "deterministic_flash_attn",
        "reference_compile",
        "repad_logits_with_grad",
        "sparse_pred_ignore_index",
        "sparse_prediction",
    )
    lm_act = "gelu"
    reads_two_directions = False

    # Heads

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        config = encoder.config
        generator = options.get("generator")
        # Of the dense matrix before a decoder.
        dense_range = config.initializer_range * residual_scale(config)
        # A BiLSTM before a head takes the place of what stands before the vocabulary.
        if kind in TASK_HEADS and options.get("input_size") is None:
            num_outputs = TASK_HEADS[kind] or options.get("num_labels", 2)
            return heads.TransformedHead(config, num_outputs, "gelu", dense_range, generator)
        head = super().head(kind, encoder, **options)
        if isinstance(head, heads.MaskedLMHead):
            initialise_(head.transform, dense_range, generator)
        return head

    # config.json

    def from_hf_config(self, values: ConfigJson) -> EncoderConfig:
        # Files of Ettin and mmBERT say so that nothing is added, as here. No class reads the key.
        if values.get("position_embedding_type") == NOTHING_ADDED:
            values = {**values, "position_embedding_type": "absolute"}
        # Of transformers 4: null stands for the global layers' base.
        if values.get("local_rope_theta", 0) is None:
            base: Any = values.get("global_rope_theta", self.defaults["global_rope_theta"])
            values = {**values, "local_rope_theta": base}
        return super().from_hf_config(values)

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        attention = {**ATTENTION, **dict(config.attention.options)}
        every, first = attention_pattern(config)
        values = {**self.own_keys(config), **FIXED, **layer_keys(config, POSITIONS)}
        values |= dict.fromkeys(UNSAID_IDS)
        values |= dict.fromkeys(BIASES, config.use_bias)
        values["embedding_dropout"] = config.hidden_dropout_prob
        values["norm_bias"] = dict(config.norm.options).get("bias", True)
        # Theirs is the whole window, ours the tokens on each side.
        values["local_attention"] = 2 * attention["window"]
        # Of transformers 4.
        # It has no word for a pattern that begins later.
        values["global_attn_every_n_layers"] = None if first else every
        values["global_rope_theta"] = values["rope_parameters"][GLOBAL]["rope_theta"]
        values["local_rope_theta"] = values["rope_parameters"][LOCAL]["rope_theta"]
        return values

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        heads_count = values["num_attention_heads"]
        # The window a second time, and what rotary positions turn: their classes read both.
        expected = {
            "sliding_window": values["local_attention"] // 2,
            "head_dim": values["hidden_size"] // heads_count,
        }
        require_values(values, expected)
        plain: PlainMapping = values
        biases = {plain[key] for key in BIASES}
        if len(biases) > 1:
            raise ValueError(f"{', '.join(BIASES)} differ; all matrices have a bias here, or none")
        # The pattern of transformers 4, which newer files list as layer_types; it may be null.
        every = values.get("global_attn_every_n_layers")
        pattern = (GLOBAL_EVERY if every is None else every, 0)
        fields = self.own_fields(values) | layer_fields(values, POSITIONS, tuple(OLD_BASES))
        fields["use_bias"] = biases.pop()
        fields["norm"] = NORM | {"bias": values["norm_bias"]}
        fields["attention"] = attention_part(values, values["local_attention"] // 2, pattern)
        return fields


def layer_keys(config: EncoderConfig, usual: PlainMapping) -> JsonObject:
    """What config.json says of kinds of layers; `usual`: the family's positions."""
    positions = {**usual, **dict(config.positions.options)}
    rope = {}
    for layer_type, option in ((GLOBAL, "base"), (LOCAL, "window_base")):
        rope[layer_type] = {"rope_type": "default", "rope_theta": positions[option]}
    return {
        "layer_types": layer_types(config.num_hidden_layers, *attention_pattern(config)),
        "rope_parameters": rope,
        "classifier_pooling": classifier_pooling(config),
    }


def layer_fields(values: PlainMapping, usual: PlainMapping, old_keys: tuple[str, ...]) -> PlainDict:
    """Positions and pooler of a config.json; `old_keys` name the bases where nothing newer does."""
    positions = dict(usual)
    positions["base"] = rope_base(values, GLOBAL, old_keys[0])
    positions["window_base"] = rope_base(values, LOCAL, old_keys[1])
    pools_mean = values["classifier_pooling"] == "mean"
    return {"positions": positions, "pooler": MEAN_POOLER if pools_mean else None}


def classifier_pooling(config: EncoderConfig) -> str:
    means = config.pooler is not None and config.pooler.node() == MEAN_POOLER
    return "mean" if means else "cls"


def attention_pattern(config: EncoderConfig) -> tuple[int, int]:
    """Every which layer sees everything (0: none, 1: all), and the first that does."""
    options = dict(config.attention.options)
    if config.attention.target == FULL_ATTENTION:
        return 1, 0
    return options.get("global_every", 0), options.get("first_global", 0)


def layer_types(num_layers: int, every: int, first: int) -> list[str]:
    """Layers `first`, `first` + n, ... see everything; n = 0: none does."""
    # (3, 0) of six: full, sliding, sliding, full, sliding, sliding.
    types = []
    for layer in range(num_layers):
        is_global = every > 0 and layer % every == first
        types.append(GLOBAL if is_global else LOCAL)
    return types


def attention_part(values: ConfigJson, window: int, usual: tuple[int, int]) -> PlainDict:
    """The part of a config.json; `usual`: the pattern (n, first) where layer_types fits several.

    ValueError for layer_types that no pattern gives.
    """
    num_layers = values["num_hidden_layers"]
    given = values.get("layer_types", layer_types(num_layers, *usual))
    # A shallow model fits several patterns, and the usual one is preferred: of two layers that are
    # full and sliding, every second is full, or every third.
    patterns = [usual, (0, 0)]
    for every in range(1, num_layers + 1):
        patterns += [(every, first) for first in range(every)]
    for every, first in patterns:
        if layer_types(num_layers, every, first) != given:
            continue
        if every == 1:
            return {"_target_": FULL_ATTENTION}
        part = {"_target_": LOCAL_ATTENTION, "window": window, "global_every": every}
        return part | ({"first_global": first} if first else {})
    raise ValueError(
        f"layer_types is {', '.join(given)}; only {GLOBAL} at every n-th layer can be read"
    )


def rope_base(values: ReadOnlyJson, layer_type: str, old_key: str) -> float:
    """The wavelengths' base of a kind of layers; ValueError where they are stretched."""
    all_ropes = values.get("rope_parameters") or {}
    rope = all_ropes.get(layer_type) or {}
    kind = rope.get("rope_type", "default")
    if kind != "default" or values.get("rope_scaling"):
        raise ValueError(
            f"the rotary positions of {layer_type} are stretched (rope_type {kind!r});"
            " only 'default' can be read"
        )
    for name in (*all_ropes, *rope):
        if name not in ROPE_KEYS:
            raise ValueError(
                f"rope_parameters of {layer_type} have {name!r}, and only"
                f" {', '.join(ROPE_KEYS)} can be read; take another model"
            )
    theta = rope.get("rope_theta")
    return float(values[old_key] if theta is None else theta)


FAMILY = Modernbert()
