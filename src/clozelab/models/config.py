"""What an encoder is: its sizes, and the parts it is made of.

Sizes are in Hugging Face's spelling. A part is a class below `clozelab.models`, named by its
address; so a new part is a class and a line of YAML, and nobody lists it. How a family of models
spells all this in its config.json is in families/.

Unusual: a causal encoder pools its last token, because under a causal mask the first one sees only
itself. A pooled head that transformers' classes have trained on such an encoder read the first one
all the same (`pools_first_token`). `max_position_embeddings` are the positions that a text can
have; RoBERTa's two unused ones are not among them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozelab.models.families.bert import Family

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
# of all parts: a strange folder's config.json names some, and must run nothing else
PART_PACKAGE = "clozelab.models."


@dataclass(frozen=True)
class Part:
    """A class below `clozelab.models` and the options it is built with; built as `class(config,
    **options)`.
    """

    target: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, node: Part | Mapping[str, Any], where: str) -> Part:
        """From `{_target_: address, option: value}`, as YAML and config.json say it."""
        if isinstance(node, Part):
            return node
        target = node.get("_target_")
        if not isinstance(target, str) or not target.startswith(PART_PACKAGE):
            raise ValueError(
                f"{where}._target_ is {target!r}: a part is a class below"
                f" {PART_PACKAGE.rstrip('.')}"
            )
        return cls(
            target, tuple(sorted((str(k), value) for k, value in node.items() if k != "_target_"))
        )

    def node(self) -> dict[str, Any]:
        return {"_target_": self.target, **dict(self.options)}

    def build(self, config: EncoderConfig) -> Any:
        module, _, name = self.target.rpartition(".")
        try:
            made = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            made = None
        # a function, or what the module has imported
        if not isinstance(made, type) or made.__module__ != module:
            raise ValueError(f"there is no part {self.target!r} in this version of clozelab")
        return made(config, **dict(self.options))


PARTS: Mapping[str, Part | None] = {  # slot -> BERT's part; a pooler may be None
    "positions": Part("clozelab.models.embeddings.LearnedPositions"),
    "block": Part("clozelab.models.encoder.PostNorm"),
    "attention": Part("clozelab.models.attention.FullAttention"),
    "pooler": Part("clozelab.models.encoder.Pooler"),
}


WHOLE_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
    "embedding_size",
    "num_hidden_groups",
)
# null where they follow from another size
FOLLOWING_NUMBERS = ("embedding_size", "num_hidden_groups")
NUMBERS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "layer_norm_eps",
)


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes, probabilities and parts of an encoder. ValueError, naming the field, when a value is
    impossible.
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
    type_vocab_size: int  # 1: every token has the same type, whatever a batch says; 0: none
    initializer_range: float
    layer_norm_eps: float
    position_embedding_init: str
    is_causal: bool = False
    # of a causal encoder, as transformers' classes do; others always do
    pools_first_token: bool = False
    pad_token_id: int = 0
    embedding_size: int = 0  # width of the embeddings; 0: the hidden size
    # sets of weights that the layers share among them; 0: each layer has its own
    num_hidden_groups: int = 0
    # a matrix between embeddings and layers even where their widths are equal
    projects_embeddings: bool = False
    model_type: str = "bert"  # the family (families/), whose names its folders have
    # Parts, given as such or as the node of a YAML.
    positions: Part = PARTS["positions"]  # type: ignore[assignment]
    block: Part = PARTS["block"]  # type: ignore[assignment]
    attention: Part = PARTS["attention"]  # type: ignore[assignment]
    pooler: Part | None = PARTS["pooler"]

    def __post_init__(self) -> None:
        for slot in PARTS:
            node = getattr(self, slot)
            if node is not None or slot != "pooler":
                object.__setattr__(self, slot, Part.of(node or {}, f"architecture.{slot}"))
        self._refuse_other_types()
        # YAML says null for what follows from another size.
        object.__setattr__(self, "embedding_size", self.embedding_size or self.hidden_size)
        object.__setattr__(
            self, "num_hidden_groups", self.num_hidden_groups or self.num_hidden_layers
        )
        counts = (
            *(
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            ),
            *("max_position_embeddings", "embedding_size", "num_hidden_groups"),
        )
        probs = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        choices = {"hidden_act": ACTIVATIONS, "position_embedding_init": ("normal", "sinusoidal")}
        heads, layers = self.num_attention_heads, self.num_hidden_layers
        positive = ("initializer_range", "layer_norm_eps")
        for name, holds, rule in (
            *((name, getattr(self, name) >= 1, "it must be at least 1") for name in counts),
            ("type_vocab_size", self.type_vocab_size >= 0, "it must be at least 0"),
            *(
                (name, 0.0 <= getattr(self, name) < 1.0, "it must be at least 0 and below 1")
                for name in probs
            ),
            *((name, getattr(self, name) > 0.0, "it must be above 0") for name in positive),
            *(
                (name, getattr(self, name) in of, f"choose one of {', '.join(of)}")
                for name, of in choices.items()
            ),
            (
                "hidden_size",
                self.hidden_size % max(1, heads) == 0,
                f"model.num_attention_heads {heads} must divide it",
            ),
            (
                "num_hidden_groups",
                self.num_hidden_groups <= layers,
                f"there are only {layers} layers to share them",
            ),
        ):
            if not holds:
                raise ValueError(f"model.{name} is {getattr(self, name)!r}; {rule}")

    def _refuse_other_types(self) -> None:
        """ValueError for a number written as text, or a count written with a fraction: `"16"`,
        `1.0`.
        """
        for name in WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is None and name in FOLLOWING_NUMBERS:
                continue
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise ValueError(
                    f"model.{name} is {value!r}; it must be a whole number, without quotes or a"
                    " fraction"
                )
        for name in NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"model.{name} is {value!r}; it must be a number, without quotes")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def pools_last_token(self) -> bool:
        return self.is_causal and not self.pools_first_token

    @property
    def has_projection(self) -> bool:
        """Whether a matrix stands between embeddings and layers."""
        return self.projects_embeddings or self.embedding_size != self.hidden_size

    @property
    def family(self) -> Family:
        """Whose heads the encoder has and whose names its folders."""
        return family_of(self.model_type)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `EncoderConfig(**values)` is the same again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.node() if isinstance(value, Part) else value
            for name, value in values.items()
        }


def family_of(model_type: str) -> Family:
    """The family of a name, each one a module of families/; ValueError lists them where there is
    none.
    """
    # here, because a family builds heads, which know this file
    from clozelab.models import families

    known = sorted(module.name for module in pkgutil.iter_modules(families.__path__))
    if model_type not in known:
        raise ValueError(f"model_type is {model_type!r}; known families: {', '.join(known)}")
    return importlib.import_module(f"clozelab.models.families.{model_type}").FAMILY
