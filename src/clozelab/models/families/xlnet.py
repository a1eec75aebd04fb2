"""XLNet (Yang et al. 2019): scores of distances and segments, predictions from queries.

A file's matrices have three dimensions, inputs first: [H, N, D]; only that of the attention's
output has its outputs first. A layer's three biases are tensors of their own.

Unusual: its config.json has one probability of dropout, and no longest text; ours is written as
`max_sequence_length`. There is no memory of earlier texts (`mem_len`): theirs reads without it, too,
unless it is handed one. The head of XLNetForQuestionAnswering, which searches with a beam, is
refused; that of XLNetForQuestionAnsweringSimple is read.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.families.bert import Family, require_values
from clozelab.models.families.distilbert import PreClassifier
from clozelab.models.families.modernbert import RenamedFamily
from clozelab.models.segmented import PARTS
from clozelab.text.plain import JsonObject, ReadOnlyJson

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

# What its classes could have and our parts do not -> the one value that is read.
FIXED: Mapping[str, Any] = {
    "attn_type": "bi",
    "bi_data": False,
    "clamp_len": -1,
    "summary_type": "last",
    "summary_use_proj": True,
    "summary_activation": "tanh",
}
# What a text without memory has.
UNUSED: Mapping[str, Any] = {"mem_len": None, "reuse_len": None, "use_mems_eval": False}
UNSAID_IDS = ("bos_token_id", "eos_token_id")
BIASES = ("r_w_bias", "r_r_bias", "r_s_bias")
QUERY = "mask_emb"
SUMMARY = {"dense": "sequence_summary.summary", "out_proj": "logits_proj"}
QUESTIONS = "ForQuestionAnswering"


class Xlnet(RenamedFamily):
    model_type = "xlnet"
    class_name = "XLNet"
    prefix = "transformer."
    layer_prefix = "layer.{}."
    layer_names: ClassVar[Mapping[str, str]] = {
        "attention.query": "rel_attn.q",
        "attention.key": "rel_attn.k",
        "attention.value": "rel_attn.v",
        "attention.distance": "rel_attn.r",
        "attention.segments": "rel_attn.seg_embed",
        "attention.output.dense": "rel_attn.o",
        "attention.output.LayerNorm": "rel_attn.layer_norm",
        "intermediate.dense": "ff.layer_1",
        "output.dense": "ff.layer_2",
        "output.LayerNorm": "ff.layer_norm",
    }
    encoder_names: ClassVar[Mapping[str, str]] = {
        "embeddings.word_embeddings": "word_embedding",
        "embeddings.position_embeddings.query": QUERY,
    }
    head_names: ClassVar[Mapping[str, str]] = {
        "lm": "lm_loss",
        **{f"classification.{name}": theirs for name, theirs in SUMMARY.items()},
        **{f"choices.{name}": theirs for name, theirs in SUMMARY.items()},
    }
    decoder = "lm_loss"
    pretraining = ((frozenset({"lm"}), "LMHeadModel"),)
    renamed: ClassVar[Mapping[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
        "max_position_embeddings": "max_sequence_length",
    }
    converted = ("attention_probs_dropout_prob",)
    parts: ClassVar[Mapping[str, Any]] = {
        **{name: {"_target_": target} for name, target in PARTS.items()},
        "type_vocab_size": 0,
        "pooler": None,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Family.defaults,
        "ff_activation": "gelu",
        "dropout": 0.1,
        "max_sequence_length": 512,
        "pad_token_id": 5,
    }
    dense_heads: ClassVar[Mapping[str, str]] = {"classification": "tanh", "choices": "tanh"}
    dense_head: ClassVar[type[nn.Module]] = PreClassifier
    cls_is_last = True
    num_heads = 1

    def of(self, config: EncoderConfig) -> Xlnet:
        # A file's matrices have a dimension of heads.
        family = copy.copy(self)
        family.num_heads = config.num_attention_heads
        return family

    # Heads

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        # The encoder has dropped of its states already.
        if kind == "tags":
            options.pop("stored", None)
            return heads.LinearHead(encoder.config, **options)
        head = super().head(kind, encoder, **options)
        # A narrower vocabulary, which theirs has not, needs a matrix before it.
        if kind == "lm" and not encoder.config.has_projection:
            head.transform = nn.Identity()
        return head

    def architecture(self, kinds: Collection[str], is_causal: bool = False) -> str:
        name = super().architecture(kinds, is_causal)
        return f"{name}Simple" if name.endswith(QUESTIONS) else name

    def kinds(self, architecture: str) -> frozenset[str]:
        if architecture.endswith(QUESTIONS):
            raise ValueError(
                f"config.json: {architecture} searches for answers with a beam, which is not read"
                f" here; {architecture}Simple is, or the encoder alone (XLNetModel)"
            )
        return super().kinds(architecture.removesuffix("Simple"))

    def require_masks(self, values: ReadOnlyJson) -> None:
        made_by = values.get("clozelab", {}).get("objective", {}).get("token", {})
        if not str(made_by.get("_target_")).endswith(".MaskedLanguageModel"):
            raise ValueError(
                "an XLNet predicts tokens from queries, not from masks in a text; one that"
                " objective=mlm has trained can be asked so, and objective=permuted measures others"
            )

    # Tensors

    def file_names(self, name: str) -> list[str]:
        if name.endswith(".attention.biases.weight"):
            module = name.removeprefix("encoder.").removesuffix("attention.biases.weight")
            layer = self.layer_prefix.format(module.split(".")[1])
            return [f"{self.prefix}{layer}rel_attn.{bias}" for bias in BIASES]
        names = []
        for file_name in super().file_names(name):
            # Parameters that are no module's have no `.weight`.
            bare = file_name.removesuffix(".weight")
            names.append(bare if self._is_bare(bare) else file_name)
        return names

    @staticmethod
    def _is_bare(name: str) -> bool:
        module, _, leaf = name.rpartition(".")
        return leaf == QUERY or (module.endswith("rel_attn") and leaf != "layer_norm")

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = super().to_hf(state)
        for name, value in tensors.items():
            leaf = name.rpartition(".")[2]
            if leaf == QUERY:
                tensors[name] = value[None]
            elif self._is_bare(name):
                matrix = value.T if leaf in "qkvr" else value
                by_head = matrix.unflatten(1, (self.num_heads, -1))
                tensors[name] = by_head[0] if leaf in BIASES else by_head
        return tensors

    def from_hf(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        flat = dict(tensors)
        for name, value in tensors.items():
            leaf = name.rpartition(".")[2]
            if leaf == QUERY:
                flat[name] = value[0]
            elif self._is_bare(name):
                matrix = value.reshape(1, -1) if leaf in BIASES else value.flatten(1)
                flat[name] = matrix.T if leaf in "qkvr" else matrix
        return super().from_hf(flat, names)

    # config.json

    def to_hf_keys(self, config: EncoderConfig) -> JsonObject:
        values = {**self.own_keys(config), **FIXED, **UNUSED, **dict.fromkeys(UNSAID_IDS)}
        return values | {"summary_last_dropout": config.hidden_dropout_prob}

    def from_hf_keys(self, values: ReadOnlyJson) -> JsonObject:
        head_dim = values["d_model"] // values["n_head"]
        require_values(values, {**FIXED, "d_head": head_dim})
        fields = self.own_fields(values)
        return fields | {"attention_probs_dropout_prob": values["dropout"]}


FAMILY = Xlnet()
