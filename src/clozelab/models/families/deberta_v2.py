"""DeBERTa v2 and v3 (He et al. 2021, 2023): disentangled attention on one table of distances.

The pooler stands beside the encoder, in the classes alone that read it. Published folders call the
masked-LM head `lm_predictions.lm_head`, and keep the positions of the enhanced mask decoder below
the encoder, which does not add them; transformers' own (`legacy`) call it `cls.predictions`. Both
are read. A head with the decoder is written as the published ones where the encoder adds no
positions, any other as theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from clozelab.models.config import ACTIVATIONS, DEFAULT_MODULES, EncoderConfig
from clozelab.models.config_keys import ConfigJson, require_values
from clozelab.models.families.bert import Family
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

POSITIONS = "clozelab.models.disentangled.DisentangledPositions"
BLOCK = "clozelab.models.disentangled.ConvolvedPostNorm"
POOLER = "clozelab.models.encoder.ContextPooler"
# Keys of config.json that are options of the positions, and what they are where it lacks them.
POSITION_KEYS: PlainMapping = {
    "pos_att_type": "",
    "position_buckets": -1,
    "max_relative_positions": -1,
    "norm_rel_ebd": "none",
    "position_biased_input": True,
}
# What a file without the keys has: attention without distances.
WITHOUT_KEY = {"relative_attention": False, "share_att_key": False}
# Names of the masked-LM head in a published file, and ours.
PUBLISHED = {
    "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
    "deberta.embeddings.position_embeddings.": "cls.predictions.position_embeddings.",
}
# Only the enhanced mask decoder has it.
DECODER_POSITIONS = "cls.predictions.position_embeddings.weight"
# What a published file calls them. An encoder that adds positions has its own at this name.
PUBLISHED_POSITIONS = "deberta.embeddings.position_embeddings.weight"


class DebertaV2(Family):
    model_type = "deberta-v2"
    class_name = "DebertaV2"
    prefix = "deberta."
    layer_names = {
        "attention.query": "attention.self.query_proj",
        "attention.key": "attention.self.key_proj",
        "attention.value": "attention.self.value_proj",
    }
    encoder_names = {
        "embeddings.position_embeddings.relative": "encoder.rel_embeddings",
        "embeddings.position_embeddings.LayerNorm": "encoder.LayerNorm",
        "embeddings.position_embeddings.absolute": "embeddings.position_embeddings",
    }
    pretraining = ((frozenset({"lm"}), "ForMaskedLM"),)
    defaults = {
        **Family.defaults,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    }
    more_read = (
        *POSITION_KEYS,
        *WITHOUT_KEY,
        "attention_head_size",
        "cls_dropout",
        "conv_act",
        "conv_kernel_size",
        "embedding_size",
        "pooler_dropout",
        "pooler_hidden_act",
        "pooler_hidden_size",
    )
    fixed = {"is_decoder": False, "conv_groups": 1}
    # Under which names transformers looks for the masked-LM head; here under all.
    harmless = ("legacy",)
    has_causal_mask = False
    needs_token_types = False
    pooler_is_apart = True

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        head = super().head(kind, encoder, **options)
        dropout = getattr(encoder.pooler, "head_dropout", None)
        if kind in ("classification", "choices") and dropout is not None:
            head.dropout_prob = dropout
        return head

    def encoder_name(self, name: str) -> str:
        convolution = "layer.0.conv."
        if name.startswith(convolution):
            return "encoder.conv." + name.removeprefix(convolution).replace("dense", "conv")
        return super().encoder_name(name)

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The convolution's matrix [outputs, inputs * window] has three dimensions in a file."""
        tensors = super().to_hf(state)
        name = f"{self.prefix}encoder.conv.conv.weight"
        if name in tensors:
            outputs = len(tensors[name])
            tensors[name] = tensors[name].view(outputs, outputs, -1)
        return tensors

    def from_hf(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        # Only the convolution has three dimensions.
        flat = {name: x.flatten(1) if x.ndim == 3 else x for name, x in tensors.items()}
        return super().from_hf(flat, names)

    def from_file(self, tensors: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
        """Under transformers' names; positions that the encoder does not add are the head's."""
        if any(name.startswith("cls.predictions.") for name in tensors):
            return tensors
        names = dict(PUBLISHED)
        if dict(config.positions.options).get("position_biased_input"):
            del names[PUBLISHED_POSITIONS.removesuffix("weight")]
        return {_renamed(name, names): value for name, value in tensors.items()}

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if DECODER_POSITIONS not in tensors or PUBLISHED_POSITIONS in tensors:
            return tensors
        names = {ours: theirs for theirs, ours in PUBLISHED.items()}
        return {_renamed(name, names): value for name, value in tensors.items()}

    # config.json

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        values = super().to_hf_keys(config)
        del values["position_embedding_type"]  # at which their classes would not look
        positions = {**POSITION_KEYS, **dict(config.positions.options)}
        positions["pos_att_type"] = positions["pos_att_type"].split("|")
        block = dict(config.block.options)
        pooler = dict(config.pooler.options) if config.pooler else {}
        values |= positions | {"relative_attention": True, "share_att_key": True}
        values["conv_kernel_size"] = block.get("conv_kernel_size", 0)
        values["conv_act"] = block.get("conv_act", "tanh")
        values["pooler_dropout"] = pooler.get("dropout", 0.0)
        values["pooler_hidden_act"] = pooler.get("hidden_act", "gelu")
        values["cls_dropout"] = pooler.get("head_dropout")
        return values

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        _refuse_other_parts(values)
        terms = values.get("pos_att_type") or ""
        if not isinstance(terms, str):
            terms = "|".join(terms)
        given = {name: values.get(name, lacking) for name, lacking in POSITION_KEYS.items()}
        # "P2C | c2p", or a list, is c2p|p2c: one spelling, so that equal encoders are equal.
        given["pos_att_type"] = "|".join(sorted(terms.lower().replace(" ", "").split("|")))
        block: object = DEFAULT_MODULES["block"]
        if values.get("conv_kernel_size", 0) > 0:
            act = values.get("conv_act", "tanh")
            size = values["conv_kernel_size"]
            block = {"_target_": BLOCK, "conv_kernel_size": size, "conv_act": act}
        pooler = {
            "_target_": POOLER,
            "dropout": values.get("pooler_dropout", 0.0),
            "hidden_act": values.get("pooler_hidden_act", "gelu"),
            "head_dropout": values.get("cls_dropout"),
        }
        return {
            **super().from_hf_keys(values),
            "positions": {"_target_": POSITIONS, **given},
            "block": block,
            "pooler": pooler,
        }


def _refuse_other_parts(values: ConfigJson) -> None:
    """ValueError names the key of a part that no class here has."""
    size = values["hidden_size"]
    expected = {
        "relative_attention": True,
        "share_att_key": True,
        "embedding_size": size,
        "pooler_hidden_size": size,
        "attention_head_size": size // values["num_attention_heads"],
    }
    require_values({**WITHOUT_KEY, **values}, expected)
    for key in ("conv_act", "pooler_hidden_act"):
        value = values.get(key, "tanh")
        if value not in (*ACTIVATIONS, "tanh"):
            raise ValueError(f"{key} is {value!r}; choose one of {', '.join(ACTIVATIONS)}, tanh")


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    for old, new in beginnings.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


FAMILY = DebertaV2()
