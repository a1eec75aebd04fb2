"""The shape of an encoder, and its translation from and to Hugging Face's config.json.

Unusual: `is_causal` is Hugging Face's `is_decoder`. A causal encoder pools its last token, because under a causal mask
the first one sees only itself; Hugging Face's classes would pool the first one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
POSITION_EMBEDDING_INITS = ("normal", "sinusoidal")
_HF_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "position_embedding_init": "normal",
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes and probabilities of an encoder, in Hugging Face's spelling.

    Raises ValueError, naming the field, when a value is impossible.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float
    position_embedding_init: str
    is_causal: bool = False
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        self._check_sizes()
        _check_choice("hidden_act", self.hidden_act, ACTIVATIONS)
        _check_choice("position_embedding_init", self.position_embedding_init, POSITION_EMBEDDING_INITS)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"model.{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if not (self.initializer_range > 0.0 and self.layer_norm_eps > 0.0):
            raise ValueError(
                "model.initializer_range and model.layer_norm_eps must be above 0, "
                f"got {self.initializer_range} and {self.layer_norm_eps}"
            )

    def _check_sizes(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} is {getattr(self, name)}; it must be at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is not a multiple of model.num_attention_heads "
                f"{self.num_attention_heads}: choose a number of heads that divides it"
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def pool_position(self) -> str:
        """Which real token of a sequence stands for the whole: "first" or, for a causal encoder, "last"."""
        return "last" if self.is_causal else "first"

    def to_hf_dict(self) -> dict[str, Any]:
        """The content of config.json, as transformers' EncoderConfig reads it (unknown keys are kept there)."""
        values = asdict(self)
        is_causal = values.pop("is_causal")
        return {
            "model_type": "bert",
            "is_decoder": is_causal,
            "use_cache": False,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            **values,
        }

    @classmethod
    def from_hf_dict(cls, values: Mapping[str, Any]) -> EncoderConfig:
        """Reads config.json's content; ValueError for another architecture or a feature BERT does not have."""
        model_type = values.get("model_type", "bert")
        if model_type != "bert":
            raise ValueError(f"config.json: model_type is {model_type!r}; only 'bert' folders can be read")
        position_type = values.get("position_embedding_type", "absolute")
        if position_type != "absolute":
            raise ValueError(f"config.json: position_embedding_type is {position_type!r}; only 'absolute' is supported")
        if values.get("add_cross_attention"):
            raise ValueError("config.json: add_cross_attention is true; an encoder has no cross-attention")
        known = {**_HF_DEFAULTS, **{key: value for key, value in values.items() if value is not None}}
        known["is_causal"] = bool(values.get("is_decoder", False))
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in known]
        if missing:
            raise ValueError(f"config.json lacks {', '.join(missing)}: not a complete BERT configuration")
        return cls(**{name: known[name] for name in names})


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"model.{name} is {value!r}; choose one of {', '.join(choices)}")
