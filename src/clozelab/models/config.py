"""What an encoder is: its sizes, and the modules it is made of.

Sizes are in Hugging Face's spelling. A module is a class below `clozelab.models`, named by its
address; so a new one is a class and a line of YAML, and nobody lists it. How a family of models
spells all this in its config.json is in families/.

Unusual: a causal encoder pools its last token, because under a causal mask the first one sees only
itself. A pooled head that transformers' classes have trained on such an encoder read the first one
all the same (`pools_first_token`). `max_position_embeddings` are the positions that a text can
have; RoBERTa's two unused ones are not among them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from clozelab.text.plain import PlainDict, PlainMapping

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
# Of all modules: a strange folder's config.json names some, and must run nothing else.
PART_PACKAGE = "clozelab.models."
AT_LEAST_ZERO = (
    "type_vocab_size",
    "task_type_vocab_size",
    "attention_adapter",
    "feed_forward_adapter",
)


@dataclass(frozen=True)
class ModuleSpec:
    """A class below `clozelab.models` and its options."""

    target: str
    options: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_node(cls, node: ModuleSpec | PlainMapping, where: str) -> ModuleSpec:
        """From `{_target_: address, option: value}`, as YAML and config.json say it."""
        if isinstance(node, ModuleSpec):
            return node
        target = node.get("_target_")
        if not isinstance(target, str) or not target.startswith(PART_PACKAGE):
            raise ValueError(
                f"{where}._target_ is {target!r}: a part is a class below"
                f" {PART_PACKAGE.rstrip('.')}"
            )
        options = []
        for name, value in node.items():
            if name != "_target_":
                # A list has no hash.
                options.append((str(name), tuple(value) if isinstance(value, list) else value))
        return cls(target, tuple(sorted(options)))

    def node(self) -> PlainDict:
        """As YAML and config.json say it."""
        return {"_target_": self.target, **dict(self.options)}

    def build(self, config: EncoderConfig, *arguments: object) -> Any:
        """The module, with further `arguments`; ValueError where there is no such class."""
        module, _, name = self.target.rpartition(".")
        try:
            module_class = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            module_class = None
        # A function is none, nor is a class that the module has imported.
        if not isinstance(module_class, type) or module_class.__module__ != module:
            raise ValueError(f"there is no part {self.target!r} in this version of clozelab")
        return module_class(config, *arguments, **dict(self.options))


# BERT's; a pooler may be None, and None for a norm stands for this one.
DEFAULT_MODULES: Mapping[str, ModuleSpec] = {
    "positions": ModuleSpec("clozelab.models.embeddings.LearnedPositions"),
    "block": ModuleSpec("clozelab.models.encoder.PostNorm"),
    "attention": ModuleSpec("clozelab.models.attention.FullAttention"),
    "pooler": ModuleSpec("clozelab.models.encoder.Pooler"),
    "norm": ModuleSpec("clozelab.models.encoder.LayerNorm"),
}
# Null where they follow from another size.
FOLLOWING_NUMBERS = ("embedding_size", "num_hidden_groups")
AT_LEAST_ONE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "embedding_size",
    "num_hidden_groups",
)


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes, probabilities and modules of an encoder.

    ValueError, naming the field, when a value is impossible.
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
    # of an encoder that sees both sides: its `lm` head says of a state which token stands behind it
    predicts_next: bool = False
    pad_token_id: int = 0
    embedding_size: int = 0  # width of the embeddings; 0: the hidden size
    # sets of weights that the layers share among them; 0: each layer has its own
    num_hidden_groups: int = 0
    # a matrix between embeddings and layers even where their widths are equal
    projects_embeddings: bool = False
    model_type: str = "bert"  # the family (families/), whose names its folders have
    # Modules, given as such or as the node of a YAML.
    positions: ModuleSpec = DEFAULT_MODULES["positions"]
    block: ModuleSpec = DEFAULT_MODULES["block"]
    attention: ModuleSpec = DEFAULT_MODULES["attention"]
    pooler: ModuleSpec | None = DEFAULT_MODULES["pooler"]
    norm: ModuleSpec = DEFAULT_MODULES["norm"]
    task_type_vocab_size: int = 0  # of ERNIE; every text is of task 0. 0: no embeddings of tasks
    # 2: one stack of layers reads from left to right, another one from right to left
    num_directions: int = 1
    use_bias: bool = True  # of the matrices of layers and pooler, and before the vocabulary
    # widths of adapters (models/adaptation.py) in the two halves of each layer; 0: none
    attention_adapter: int = 0
    feed_forward_adapter: int = 0

    def __post_init__(self) -> None:
        for name in DEFAULT_MODULES:
            node = getattr(self, name)
            if node is None and name == "pooler":
                continue
            if node is None and name == "norm":
                node = DEFAULT_MODULES["norm"]
            spec = ModuleSpec.from_node(node or {}, f"architecture.{name}")
            object.__setattr__(self, name, spec)
        self._refuse_other_types()
        # YAML says null for what follows from another size.
        embedding_size = self.embedding_size or self.hidden_size
        num_hidden_groups = self.num_hidden_groups or self.num_hidden_layers
        object.__setattr__(self, "embedding_size", embedding_size)
        object.__setattr__(self, "num_hidden_groups", num_hidden_groups)
        self._check_ranges()

    def _check_ranges(self) -> None:
        """ValueError for a number out of its range, or a choice that does not exist."""
        for name in AT_LEAST_ONE:
            self._require(name, getattr(self, name) >= 1, "it must be at least 1")
        for name in AT_LEAST_ZERO:
            self._require(name, getattr(self, name) >= 0, "it must be at least 0")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            is_prob = 0.0 <= getattr(self, name) < 1.0
            self._require(name, is_prob, "it must be at least 0 and below 1")
        for name in ("initializer_range", "layer_norm_eps"):
            self._require(name, getattr(self, name) > 0.0, "it must be above 0")
        choices = {"hidden_act": ACTIVATIONS, "position_embedding_init": ("normal", "sinusoidal")}
        for name, values in choices.items():
            is_known = getattr(self, name) in values
            self._require(name, is_known, f"choose one of {', '.join(values)}")
        self._require("num_directions", self.num_directions in (1, 2), "it must be 1 or 2")
        heads = self.num_attention_heads
        is_divided = self.hidden_size % heads == 0
        self._require(
            "hidden_size", is_divided, f"model.num_attention_heads {heads} must divide it"
        )
        layers = self.num_hidden_layers
        are_enough = self.num_hidden_groups <= layers
        self._require(
            "num_hidden_groups", are_enough, f"there are only {layers} layers to share them"
        )

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"model.{name} is {getattr(self, name)!r}; {rule}")

    def _refuse_other_types(self) -> None:
        """ValueError for a number written as text, or a count with a fraction: `"16"`, `1.0`."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name in FOLLOWING_NUMBERS:
                continue
            is_bool = isinstance(value, bool)
            if field.type == "int" and (is_bool or not isinstance(value, Integral)):
                raise ValueError(
                    f"model.{field.name} is {value!r}; it must be a whole number, without quotes"
                    " or a fraction"
                )
            if field.type == "float" and (is_bool or not isinstance(value, Real)):
                raise ValueError(
                    f"model.{field.name} is {value!r}; it must be a number, without quotes"
                )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def output_size(self) -> int:
        """Width of the states; of two directions those of both stand side by side."""
        return self.hidden_size * self.num_directions

    @property
    def pools_last_token(self) -> bool:
        return self.is_causal and not self.pools_first_token

    @property
    def prediction_shift(self) -> int:
        """How many slots before a token the state stands that predicts it: 0 or 1."""
        return int(self.is_causal or self.predicts_next)

    @property
    def has_projection(self) -> bool:
        """Whether a matrix stands between embeddings and layers."""
        return self.projects_embeddings or self.embedding_size != self.hidden_size

    def to_dict(self) -> PlainDict:
        """Plain values for JSON; `EncoderConfig(**values)` is the same again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, ModuleSpec):
                values[name] = value.node()
        return values
