"""XLNet (Yang et al. 2019): scores of distances and segments, predictions from queries.

In a file the matrices of attention have three dimensions, [H, N, D], with inputs first. That of
attention's output alone has its outputs first.

Unusual: its config.json has one probability of dropout, and no longest text; ours is written as
`max_sequence_length`. There is no memory of earlier texts (`mem_len`): theirs has none either,
unless it is handed one. The head of XLNetForQuestionAnswering, which searches with a beam, is
refused; that of XLNetForQuestionAnsweringSimple is read. Fresh biases are zero, where the release
draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import ConfigJson, require_values
from clozelab.models.families.bert import TASKS, Family
from clozelab.models.families.distilbert import PreClassifier
from clozelab.models.families.modernbert import UNSAID_IDS
from clozelab.models.segmented import PARTS
from clozelab.text.plain import PlainDict

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
# Last parts of names: of tensors with inputs first, and of those with a dimension of heads.
TRANSPOSED = ("q", "k", "v", "r")
BY_HEAD = (*TRANSPOSED, "o", "seg_embed", "r_w_bias", "r_r_bias", "r_s_bias")
QUERY = "mask_emb"


class Xlnet(Family):
    model_type = "xlnet"
    class_name = "XLNet"
    prefix = "transformer."
    layer_prefix = "layer.{}."
    layer_names = {
        "attention": "rel_attn",
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
    encoder_names = {
        "embeddings.word_embeddings": "word_embedding",
        "embeddings.position_embeddings.query": QUERY,
    }
    head_names = {
        "lm": "lm_loss",
        "classification.dense": "sequence_summary.summary",
        "classification.out_proj": "logits_proj",
        "choices.dense": "sequence_summary.summary",
        "choices.out_proj": "logits_proj",
    }
    decoder = "lm_loss"
    pretraining = ((frozenset({"lm"}), "LMHeadModel"),)
    tasks = (*TASKS[:-1], (frozenset({"spans"}), "ForQuestionAnsweringSimple"))
    renamed = {
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout_prob": "dropout",
        "max_position_embeddings": "max_sequence_length",
    }
    converted = ("attention_probs_dropout_prob",)
    parts = {
        **{name: {"_target_": target} for name, target in PARTS.items()},
        "type_vocab_size": 0,
        "pooler": None,
    }
    defaults = {
        **Family.defaults,
        "ff_activation": "gelu",
        "dropout": 0.1,
        "max_sequence_length": 512,
        "pad_token_id": 5,
    }
    more_read = ("d_head",)
    # `untie_r` is of older files.
    fixed = {**FIXED, "is_decoder": False, "summary_proj_to_labels": False, "untie_r": True}
    # There is no memory of earlier texts, and no beam.
    harmless = (
        "end_n_top",
        "mem_len",
        "reuse_len",
        "same_length",
        "start_n_top",
        "use_mems",
        "use_mems_eval",
        "use_mems_train",
    )
    dense_heads = {"classification": "tanh", "choices": "tanh"}
    dense_head = PreClassifier
    reads_two_directions = False
    cls_is_last = True

    def head(self, kind: str, encoder: Encoder, **options: Any) -> nn.Module:
        # The encoder ends with dropout, so this head has none.
        if kind == "tags":
            options.pop("stored", None)
            return heads.LinearHead(encoder.config, **options)
        head = super().head(kind, encoder, **options)
        # Word embeddings narrower than the layers, which theirs never are, need a matrix here.
        if kind == "lm" and not encoder.config.has_projection:
            head.transform = nn.Identity()
        return head

    def require_masks(self, values: ConfigJson) -> None:
        objective = values.get("clozelab", {}).get("objective", {"token": {"_target_": ""}})
        if not str(objective["token"]["_target_"]).endswith(".MaskedLanguageModel"):
            raise ValueError(
                "an XLNet predicts tokens from queries, not from masks in a text; one that"
                " objective=mlm has trained can be asked so, and objective=permuted measures others"
            )

    # Tensors

    def encoder_name(self, name: str) -> str:
        name = super().encoder_name(name)
        # Parameters that are no module's have no `.weight`.
        bare = name.removesuffix(".weight")
        return bare if bare.rpartition(".")[2] in (*BY_HEAD, QUERY) else name

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tensors = super().to_hf(state)
        for name, value in tensors.items():
            leaf = name.rpartition(".")[2]
            if leaf in TRANSPOSED:
                value = value.T
            if leaf in BY_HEAD:
                tensors[name] = value.unflatten(-1, (self.num_heads, -1))
            elif leaf == QUERY:
                tensors[name] = value[None]
        return tensors

    def from_hf(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        flat = dict(tensors)
        for name, value in tensors.items():
            leaf = name.rpartition(".")[2]
            if leaf in BY_HEAD:
                flat[name] = value.flatten(-2)
            elif leaf == QUERY:
                flat[name] = value[0]
            if leaf in TRANSPOSED:
                flat[name] = flat[name].T
        return super().from_hf(flat, names)

    # config.json

    def to_hf_keys(self, config: EncoderConfig) -> PlainDict:
        values = {**self.own_keys(config), **FIXED, **dict.fromkeys(UNSAID_IDS)}
        return values | {"summary_last_dropout": config.hidden_dropout_prob}

    def from_hf_keys(self, values: ConfigJson) -> PlainDict:
        require_values(values, {"d_head": values["d_model"] // values["n_head"]})
        fields = self.own_fields(values)
        return fields | {"attention_probs_dropout_prob": values["dropout"]}


FAMILY = Xlnet()
