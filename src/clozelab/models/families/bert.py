"""BERT, and what a family of models is: its heads, its names, its config.json.

A family says which parts its encoders have (`parts`), how it spells a configuration (`to_hf_keys`,
`from_hf_keys`), and how it stores tensors: `to_hf` and `from_hf`, by names and tables of names
unless it overrides them (for a sum, another shape). A further one is a subclass in a file named as
its model_type in config.json.

Unusual: what Hugging Face's classes of the family would compute otherwise (rotary positions, a
causal ALBERT, a pooled head on a causal encoder, a BiLSTM) is written with model_type and
architecture of ours, so that no library loads it as something else; what differs stands beside it.

Heads by kind: lm, nsp, sop (sentence order), rtd (replaced tokens), classification, tags, choices,
spans, siamese (of sentence embeddings: what told classes in their training) and sbo (span
boundaries); other libraries read past the last two.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from clozelab.models import heads
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import (
    ABSENT,
    ConfigJson,
    require_one_spelling,
    require_values,
    unknown_keys,
)
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping, ReadOnlyJson

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

# Before the model_type and the architecture that others would misread.
CUSTOM_MODEL_TYPE_PREFIX = "clozelab_"
CUSTOM_CLASS_PREFIX = "Clozelab"
# Holds the fields of the configuration that the family's config.json has no key for.
EXTRA_CONFIG_KEY = "clozelab_encoder"
# Spelt alike here and there; `position_embedding_init` is known to us alone, and others keep it.
PLAIN_KEYS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "position_embedding_init",
    "pad_token_id",
)
TASKS = (
    (frozenset({"choices"}), "ForMultipleChoice"),
    (frozenset({"tags"}), "ForTokenClassification"),
    (frozenset({"classification"}), "ForSequenceClassification"),
    (frozenset({"spans"}), "ForQuestionAnswering"),
)
POOLED_KINDS = frozenset({"nsp", "sop", "classification", "choices"})


def reads_pooler(kind: str, head: nn.Module, *, has_bilstm: bool) -> bool:
    """Whether a head of this kind stands on the pooler; on a BiLSTM it reads token states."""
    reads_states = has_bilstm or getattr(head, "reads_token_states", False)
    return kind in POOLED_KINDS and not reads_states


class Family:
    """BERT's answers; other families override what differs."""

    model_type: ClassVar[str] = "bert"
    class_name: ClassVar[str] = "Bert"
    prefix: ClassVar[str] = "bert."  # before the encoder's tensors in a file that holds heads too
    class_prefix: ClassVar[str] = ""  # the same in its class, where a file has another one
    layer_prefix: ClassVar[str] = "encoder.layer.{}."
    # Names inside a layer, ours -> theirs; what is not here is called alike. Query, key and value
    # are three tensors there, or one with a name of its own for `attention.qkv`.
    layer_names: ClassVar[Mapping[str, str]] = {
        "attention.query": "attention.self.query",
        "attention.key": "attention.self.key",
        "attention.value": "attention.self.value",
    }
    encoder_names: ClassVar[Mapping[str, str]] = {}  # the same outside of the layers
    # The same of heads; the longest beginning counts, then COMMON_HEADS.
    head_names: ClassVar[Mapping[str, str]] = {}
    # The vocabulary projection, and whether it is the word embeddings.
    decoder: ClassVar[str] = "cls.predictions.decoder"
    ties_vocabulary: ClassVar[bool] = True
    # Kinds of heads -> their class; the first fits.
    pretraining: ClassVar[tuple[tuple[frozenset[str], str], ...]] = (
        (frozenset({"lm", "nsp"}), "ForPreTraining"),
        (frozenset({"lm"}), "ForMaskedLM"),
        (frozenset({"nsp"}), "ForNextSentencePrediction"),
    )
    causal_lm: ClassVar[str] = "LMHeadModel"  # instead of ForMaskedLM, for a causal encoder
    # Fields of EncoderConfig that its config.json spells alike: BERT's and `more_keys`, less those
    # that are renamed, converted, or parts.
    keys: ClassVar[tuple[str, ...]] = PLAIN_KEYS
    more_keys: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[Mapping[str, str]] = {}  # ours -> theirs
    converted: ClassVar[tuple[str, ...]] = ()  # whose values are other ones there
    # Fields of EncoderConfig that its config.json does not name.
    parts: ClassVar[ReadOnlyJson] = {}
    defaults: ClassVar[PlainMapping] = {  # of keys that a config.json leaves out
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "position_embedding_init": "normal",
        "pad_token_id": 0,
    }
    # Further keys that `from_hf_keys` reads.
    more_read: ClassVar[tuple[str, ...]] = ()
    # Keys of features that are not here -> the one value that can be read.
    fixed: ClassVar[PlainMapping] = {}
    # Keys of its classes that no number of a trained model depends on.
    harmless: ClassVar[tuple[str, ...]] = ()
    lm_act: ClassVar[str | None] = None  # activation before the vocabulary; None: the encoder's
    # Heads with a dense layer instead of the pooler's -> its activation.
    dense_heads: ClassVar[Mapping[str, str]] = {}
    # Whether its classes know a causal mask, and a key for it.
    has_causal_mask: ClassVar[bool] = True
    # Whether the classes' encoder cannot do without token types.
    needs_token_types: ClassVar[bool] = True
    # Whether the pooler stands beside the encoder, in the classes alone that read it.
    pooler_is_apart: ClassVar[bool] = False
    # Whether its heads read the states of two directions side by side.
    reads_two_directions: ClassVar[bool] = True
    dense_head: ClassVar[type[nn.Module]] = heads.DenseClassificationHead
    tasks: ClassVar[tuple[tuple[frozenset[str], str], ...]] = TASKS
    # Heads whose classes find a question or a choice by config.json's `sep_token_id`.
    separated_kinds: ClassVar[frozenset[str]] = frozenset()
    # That these classes ask for between a question and its text; None: any number.
    pair_separators: ClassVar[int | None] = None
    # Ends of classes that give a second text type 1 where a tokenizer gives no types.
    typing_classes: ClassVar[tuple[str, ...]] = ()
    has_class: ClassVar[bool] = True  # in transformers
    cls_is_last: ClassVar[bool] = False  # in texts, as in A [SEP] [CLS]
    num_heads = 1

    def __init_subclass__(cls) -> None:
        apart = {*cls.renamed, *cls.converted, *cls.parts}
        cls.keys = (*(key for key in PLAIN_KEYS if key not in apart), *cls.more_keys)

    def of(self, config: EncoderConfig) -> Family:
        """The family as it stores an encoder of these sizes."""
        # Some files order or shape tensors by heads, whose number no tensor tells.
        family = copy.copy(self)
        family.num_heads = config.num_attention_heads
        return family

    # Heads

    def head(
        self,
        kind: str,
        encoder: Encoder,
        *,
        num_labels: int = 2,
        input_size: int | None = None,
        generator: torch.Generator | None = None,
        stored: Collection[str] = (),
    ) -> nn.Module:
        """A fresh head on `encoder`; ValueError for a kind that is not named above.

        `num_labels` is of classification and tags (1: a regression), `input_size` of what stands
        between head and encoder. `stored`: the tensors of the file that will fill it, which may
        tell its class.
        """
        config = encoder.config
        if kind == "rtd":
            return heads.ReplacedTokenHead(config, generator)
        if kind == "lm":
            if self.has_position_queries(stored):
                from clozelab.models.disentangled import EnhancedMaskDecoder  # torch code

                return EnhancedMaskDecoder(encoder, generator)
            weight: Any = encoder.embeddings.word_embeddings.weight
            lm_head = heads.MaskedLMHead
            if config.num_directions == 2:
                lm_head = heads.OneDirectionLMHead
            return lm_head(config, weight, generator, self.lm_act)
        if kind == "sbo":
            words: Any = encoder.embeddings.word_embeddings.weight
            return heads.SpanBoundaryHead(config, words, generator)
        if kind in ("nsp", "spans"):
            return heads.LinearHead(config, 2, input_size, generator)
        if kind == "siamese":
            return heads.LinearHead(config, num_labels, 3 * config.output_size, generator)
        if kind == "sop":  # with dropout, as ALBERT's
            return heads.SequenceClassificationHead(config, 2, generator=generator)
        if kind not in ("classification", "tags", "choices"):
            raise ValueError(f"there is no head of kind {kind!r}; known: {', '.join(COMMON_HEADS)}")
        if kind == "choices":
            num_labels = 1
        if kind in self.dense_heads and input_size is None:
            return self.dense_head(config, num_labels, self.dense_heads[kind], generator)
        return heads.SequenceClassificationHead(config, num_labels, input_size, generator)

    def lm_activation(self, config: EncoderConfig) -> str:
        """What stands before the vocabulary."""
        return config.hidden_act if self.lm_act is None else self.lm_act

    def architecture(self, kinds: Collection[str], is_causal: bool = False) -> str:
        """The class of transformers that holds these heads."""
        suffix = "Model"
        for needed, name in (*self.tasks, *self.pretraining):
            if needed <= set(kinds):
                suffix = name
                break
        if is_causal and suffix == "ForMaskedLM":
            suffix = self.causal_lm
        return self.class_name + suffix

    def kinds(self, architecture: str) -> frozenset[str]:
        """The heads of a class of transformers, or of ours; ValueError lists the known ones."""
        suffixes = {suffix: kinds for kinds, suffix in (*self.tasks, *self.pretraining)}
        suffixes |= {"Model": frozenset(), self.causal_lm: frozenset({"lm"})}
        classes = {self.class_name + suffix: kinds for suffix, kinds in suffixes.items()}
        class_name = architecture.removeprefix(CUSTOM_CLASS_PREFIX)
        if class_name not in classes:
            raise ValueError(
                f"config.json: the architecture is {architecture}; supported:"
                f" {', '.join(sorted(classes))}"
            )
        return classes[class_name]

    def reads_pooler(self, kinds: Collection[str]) -> bool:
        """Whether the class that holds these heads has the pooler."""
        if not self.parts.get("pooler", True):
            return False
        readers = POOLED_KINDS & set(kinds) - set(self.dense_heads)
        return bool(readers) or not (kinds or self.pooler_is_apart)

    def require_masks(self, values: ConfigJson) -> None:
        """ValueError where a model of this config.json tells nothing of a mask in a text."""

    def require_template(self, cls_is_last: bool, where: str | Path) -> None:
        """ValueError where a tokenizer has [CLS] where the family does not look for it."""
        if cls_is_last != self.cls_is_last:
            raise ValueError(
                f"{where}: the tokenizer's template (post_processor) does not put [CLS] where"
                f" {self.class_name} reads it, at the end for XLNet alone: take the model's own"
            )

    def require_separator(
        self, values: PlainMapping, kinds: Collection[str], sep_id: int, where: str | Path
    ) -> None:
        """ValueError where a head here and its class would find questions by other separators."""
        given = values.get("sep_token_id", self.defaults.get("sep_token_id"))
        if self.separated_kinds & set(kinds) and given != sep_id:
            raise ValueError(
                f"{where}: sep_token_id is {given} in config.json and {sep_id} for the tokenizer,"
                f" and a {self.class_name} finds a question by it: write {sep_id} in config.json"
            )

    def makes_token_types(self, architecture: str) -> bool:
        """Whether this class of transformers reads two types where a tokenizer gives none."""
        return architecture.removeprefix(self.class_name) in self.typing_classes

    # Names of tensors

    def from_file(
        self,
        tensors: dict[str, Tensor],
        config: EncoderConfig,  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """A file's tensors under the names that `file_names` gives."""
        return tensors

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `from_file` reads as `tensors`."""
        return tensors

    def to_hf(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's tensors as a file holds them: views where one is several there.

        `state` are the encoder's, as `encoder.NAME`, and those of heads, as `KIND.NAME`.
        """
        tensors: dict[str, Tensor] = {}
        for name, value in state.items():
            file_names = self.file_names(name)
            tensors.update(zip(file_names, value.chunk(len(file_names)), strict=True))
        return tensors

    def from_hf(self, tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
        """What `to_hf` made `tensors` of: the tensors of these names of ours."""
        state = {}
        for name in names:
            chunks = [tensors[file_name] for file_name in self.file_names(name)]
            state[name] = torch.cat(chunks) if len(chunks) > 1 else chunks[0]
        return state

    def file_names(self, name: str) -> list[str]:
        """What a file calls a tensor; query, key and value may be three there."""
        head_kind, _, inner = name.partition(".")
        if name == "lm.word_embedding_weight":
            return [f"{self.decoder}.weight"]
        if head_kind != "encoder":
            return [self.head_name(head_kind, inner)]
        if ".attention.qkv" not in inner or "attention.qkv" in self.layer_names:
            return [self.with_prefix(self.encoder_name(inner))]
        names = []
        for projection in ("query", "key", "value"):
            apart = inner.replace(".qkv", f".{projection}")
            names.append(self.prefix + self.encoder_name(apart))
        return names

    def with_prefix(self, name: str) -> str:
        """What a file with heads calls an encoder's tensor, of a name with or without prefix."""
        if self.pooler_is_apart and name.startswith("pooler."):
            return name
        return self.prefix + name.removeprefix(self.prefix)

    def encoder_name(self, name: str) -> str:
        """The name of an encoder's tensor in a file, without the family's prefix."""
        module, _, leaf = name.rpartition(".")
        if module.startswith("layer."):
            _, number, inner = module.split(".", 2)
            layer = self.layer_prefix.format(number)
            return f"{layer}{self.layer_names.get(inner, inner)}.{leaf}"
        return f"{self.encoder_names.get(module, module)}.{leaf}"

    def has_position_queries(self, stored: Collection[str]) -> bool:
        """Whether the tensors of a file are those of an enhanced mask decoder."""
        return self.head_name("lm", "position_embeddings.weight") in stored

    def head_name(self, kind: str, name: str) -> str:
        """The name of a head's tensor in a file."""
        names = {**COMMON_HEADS, **self.head_names}
        path = f"{kind}.{name}".split(".")
        # The longest beginning that has a name of its own.
        for length in range(len(path), 0, -1):
            beginning = ".".join(path[:length])
            if beginning in names:
                return ".".join([names[beginning], *path[length:]])
        return f"{kind}.{name}"

    def is_head(self, name: str) -> bool:
        """Whether a tensor of a file without prefixes belongs to a head."""
        names = {"bilstm", "cls", self.decoder, *COMMON_HEADS.values(), *self.head_names.values()}
        first = name.partition(".")[0]
        return first != name and first in {known.partition(".")[0] for known in names}

    # config.json

    def to_hf_config(self, config: EncoderConfig, kinds: Collection[str] = ()) -> PlainDict:
        """The content of config.json for an encoder with heads of these kinds.

        transformers keeps unknown keys.
        """
        values: Any = self.to_hf_keys(config)
        architecture = self.architecture(kinds, config.is_causal)
        # What a reader of these keys would not know of the encoder.
        read_back = EncoderConfig(
            **self.from_hf_keys(values), pools_first_token=config.pools_first_token
        ).to_dict()
        extra = {}
        for name, value in config.to_dict().items():
            if value != read_back[name]:
                extra[name] = value
        # Where a token is predicted from is of the head that predicts tokens.
        if "lm" not in kinds:
            extra.pop("predicts_next", None)
        # Their classes have token types where they have a key for them, leave out a BiLSTM, and
        # pool the first token, which sees only itself under a causal mask.
        is_misread = (
            (
                self.needs_token_types
                and "type_vocab_size" in self.keys
                and not config.type_vocab_size
            )
            or not set(kinds) <= set(COMMON_HEADS)
            or (config.pools_last_token and POOLED_KINDS & set(kinds))
        )
        if extra or is_misread:
            architecture = CUSTOM_CLASS_PREFIX + architecture
            values["model_type"] = CUSTOM_MODEL_TYPE_PREFIX + self.model_type
            values[EXTRA_CONFIG_KEY] = extra
        return values | {"architectures": [architecture]}

    def is_in_transformers(self, config: EncoderConfig, kinds: Collection[str]) -> bool:
        """Whether transformers loads the folder of an encoder with heads of these kinds."""
        model_type = str(self.to_hf_config(config, kinds)["model_type"])
        return self.has_class and not model_type.startswith(CUSTOM_MODEL_TYPE_PREFIX)

    def from_hf_config(self, values: ConfigJson) -> EncoderConfig:
        """Reads config.json's content; ValueError for a feature that the family does not have."""
        extra = values.get("clozelab_encoder", {})
        # What a family reads is not fixed, nor is a causal mask that their classes do not have.
        read = set(self.more_read)
        if "is_causal" in extra:
            read.add("is_decoder")
        fixed = {**ABSENT, **self.fixed}
        require_values(values, {key: fixed[key] for key in fixed.keys() - read})
        require_one_spelling(values, self.renamed)
        given = {key: value for key, value in values.items() if value is not None}
        complete: Any = {**self.defaults, **given}
        missing = [key for key in (*self.keys, *self.renamed.values()) if key not in complete]
        if missing:
            model = self.class_name.upper()
            raise ValueError(f"it lacks {', '.join(missing)}: not a complete {model} configuration")
        try:
            return EncoderConfig(**self.from_hf_keys(complete) | extra)
        except ValueError as error:
            message = str(error)
            for name, key in self.renamed.items():
                message = message.replace(f"model.{name} is", f"{key} is")
            raise ValueError(message) from None

    def unknown_keys(self, values: PlainMapping) -> tuple[str, ...]:
        """Keys of a config.json that say something, and that nobody knows (config_keys.py)."""
        own = (*self.keys, *self.renamed, *self.renamed.values(), *self.defaults)
        stated = ("is_decoder", *self.more_read, *self.fixed, *self.harmless, *ABSENT)
        return unknown_keys(values, frozenset((*own, *stated)))

    def to_hf_keys(self, config: EncoderConfig) -> JsonObject:
        """config.json of a configuration, as far as the family has keys for it."""
        values = {"position_embedding_type": "absolute", "tie_word_embeddings": True}
        if self.has_causal_mask:
            values |= {"is_decoder": config.is_causal, "use_cache": False}
        return {**values, **self.own_keys(config)}

    def from_hf_keys(self, values: ConfigJson) -> JsonObject:
        """Arguments of EncoderConfig, from a complete config.json."""
        is_causal = self.has_causal_mask and bool(values.get("is_decoder", False))
        return {**self.own_fields(values), "is_causal": is_causal}

    def own_keys(self, config: EncoderConfig) -> PlainDict:
        """Fields whose values are the same there, under their names."""
        values: PlainDict = {name: getattr(config, name) for name in self.keys}
        for name, key in self.renamed.items():
            values[key] = getattr(config, name)
        return {**values, "model_type": self.model_type}

    def own_fields(self, values: PlainMapping) -> PlainDict:
        """The same back, and the family's parts."""
        fields: PlainDict = {name: values[name] for name in self.keys}
        for name, key in self.renamed.items():
            fields[name] = values[key]
        return {**self.parts, **fields, "model_type": self.model_type}


# kind -> the beginning of its tensors' names, where a family says nothing else
COMMON_HEADS: Mapping[str, str] = {
    "lm": "cls.predictions",
    "nsp": "cls.seq_relationship",
    "sop": "sop_classifier.classifier",
    "rtd": "discriminator_predictions",
    "sbo": "span_boundary",
    "classification": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
    "siamese": "siamese",
}
FAMILY = Family()
