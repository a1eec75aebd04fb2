"""Odd settings of model folders, and files beside the weights.

What is read is compared with transformers or sentence-transformers, on the folder itself where the
library can load it, else on a clean twin. Models are those of models.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, close, heard
from tests.fuzz.making import (
    SIZES,
    VOCABULARY,
    WEIGHTS,
    agrees_after,
    bert,
    classifier,
    configure,
    drawn,
    in_json,
    load,
    put,
    wordpiece,
)

CASES = Cases("folder settings")
TEXTS = ["the cat sat on the mat .", "a dog ran", "film"]
PAIRS = [("the cat sat", "a dog ran"), ("good film", "bad film"), ("a cat", "ada")]
MODULES = "sentence_transformers.models."
SIGMOID = "torch.nn.modules.activation.Sigmoid"


# Keys of config.json


@CASES.rows("load")
def keys_case(place: Path, says: str = "", **keys: Any) -> None:
    """A BERT whose config.json has these keys; `says`: what a warning holds."""
    agrees_after(place, in_json("config.json", **keys))
    check(not says or heard(says), f"nothing was said of {says}")


KEYS_READ: dict[str, dict[str, Any]] = {
    "keys of transformers 2: output_past, an empty pruned_heads, finetuning_task": (
        {"output_past": True, "pruned_heads": {}, "torchscript": False, "num_labels": 2}
        | {"finetuning_task": "mnli", "use_bfloat16": False}
    ),
    "keys of texts that a decoder writes": (
        {"max_length": 5, "num_beams": 4, "temperature": 0.1, "eos_token_ids": 0}
        | {"repetition_penalty": 2.0}
    ),
    "sizes of a pooler that no class has": (
        {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_fc_layers": 3}
        | {"pooler_type": "first_token_transform"}
    ),
    "keys of how a call computes, and of what it returns": (
        {"chunk_size_feed_forward": 4, "gradient_checkpointing": True, "return_dict": False}
        | {"output_hidden_states": True, "torch_dtype": "float16"}
    ),
    "features that are off, as null, false and empty": (
        {"quantization_config": None, "adapters": {}, "is_encoder_decoder": False}
        | {"add_cross_attention": None, "tie_encoder_decoder": None}
    ),
}
for _oddity, _keys in KEYS_READ.items():
    keys_case(_oddity, READ, **_keys)
keys_case("notes of somebody's training", READ, says="training_notes", training_notes={"lr": 1e-5})
keys_case("a part that no class of BERT has", READ, says="layer_scale", layer_scale=0.1)
keys_case("an activation of transformers", EITHER, names="hidden_act", hidden_act="gelu_fast")
REFUSED_KEYS: dict[str, Any] = {
    "position_embedding_type": "relative_key",
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "auto_map": {"AutoModel": "modeling_bert.MyBertModel"},
    "adapters": {"adapters": {"sst": "pfeiffer"}, "config_map": {}},
    "per_layer_config": {"0": {"intermediate_size": 8}},
    "pruned_heads": {"0": [1]},
    "add_cross_attention": True,
    "is_encoder_decoder": True,
    "pooler_type": "mean",
}
for key, value in REFUSED_KEYS.items():
    keys_case(f"{key} is {json.dumps(value)}", REFUSED, names=key, **{key: value})


def family_case(
    class_name: str, key: str, value: Any, settings: Mapping[str, Any] | None = None
) -> None:
    """A model of another family, one key of which says what is not here."""

    def act(place: Path) -> None:
        folder = place / "model"
        cls = getattr(transformers, class_name)
        config = cls.config_class(vocab_size=len(VOCABULARY), **(settings or SIZES))
        drawn(cls(config)).save_pretrained(folder)
        wordpiece().save_pretrained(folder)
        configure(folder, **{key: value})
        load(folder).embed(TEXTS)

    oddity = f"a {class_name} whose {key} is {value}"
    CASES.add("load", REFUSED, key, oddity=oddity)(act)


DISTILBERT = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
XLNET = {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}
MODERNBERT = {
    **SIZES,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
}
ROPE = {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
family_case("ElectraForMultipleChoice", "summary_activation", "tanh")
family_case("ElectraForMultipleChoice", "summary_type", "mean")
family_case("AlbertModel", "inner_group_num", 2)
family_case("AlbertModel", "net_structure_type", 1)
family_case("AlbertModel", "is_decoder", True)
family_case("BigBirdModel", "is_decoder", True)
family_case("BigBirdModel", "use_bias", False)
family_case("LongformerModel", "attention_mode", "sliding_chunks_no_overlap")
family_case("DistilBertModel", "num_attention_heads", 4, DISTILBERT)
family_case("XLNetModel", "untie_r", False, XLNET)
family_case("XLNetModel", "summary_type", "first", XLNET)
family_case("ModernBertModel", "sliding_window", 2, MODERNBERT)
family_case("ModernBertModel", "rope_parameters", ROPE, MODERNBERT)
family_case("MPNetModel", "relative_attention_num_buckets", 64)


# Files beside the weights


@CASES.rows("load")
def file_case(
    place: Path, change: Callable[[Path], object], says: str = "", is_quiet: bool = False
) -> None:
    agrees_after(place, change)
    check(not says or heard(says), f"nothing was said of {says}")
    check(not is_quiet or not heard("other weights"), "equal weights were called other ones")


def pickle_beside(change: float) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        tensors = {name: value + change for name, value in load_file(folder / WEIGHTS).items()}
        torch.save(tensors, folder / "pytorch_model.bin")

    return write


def adapter_alone(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


REFUSED_FILES = {
    "an adapter beside a whole model": ("adapter_config.json", '{"peft_type": "LORA", "r": 4}'),
    "an adapter's weights without its configuration": ("adapter_model.bin", "x"),
    "quantize_config.json of GPTQ": ("quantize_config.json", '{"bits": 4}'),
}
for _oddity, (_name, _content) in REFUSED_FILES.items():
    file_case(_oddity, REFUSED, put(_name, _content), names=_name)
file_case("an adapter without its model", REFUSED, adapter_alone, names="adapter alone")
file_case("generation_config.json", READ, put("generation_config.json", '{"temperature": 0.1}'))
file_case("preprocessor_config.json", READ, put("preprocessor_config.json", '{"image_size": 224}'))
file_case("model.onnx beside the weights", READ, put("model.onnx", b"onnx"))
file_case("pytorch_model.bin with the same weights", READ, pickle_beside(0.0), is_quiet=True)
other_weights = "pytorch_model.bin with other weights beside model.safetensors"
file_case(other_weights, READ, pickle_beside(0.5), says="holds other weights")


def as_onnx(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model.onnx")


file_case("model.onnx and no other weights", REFUSED, as_onnx, names="model.onnx")


# Folders of sentence-transformers


def sentence_folder(
    place: Path, files: Mapping[str, Any], more: tuple[str, ...] = (), pooling: str = "Pooling"
) -> Path:
    """A BERT with modules.json and these files; `more`: types of further modules."""
    folder = bert(place, "Model")
    modules = []
    for number, name in enumerate(("Transformer", pooling, *more)):
        path = f"{number}_{name}" if number else ""
        modules.append(
            {"idx": number, "name": str(number), "path": path, "type": f"{MODULES}{name}"}
        )
    mean = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    contents = {"modules.json": modules, "1_Pooling/config.json": mean, **files}
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


@CASES.rows("embed")
def sentence_case(
    place: Path, files: Mapping[str, Any], more: tuple[str, ...] = (), says: str = ""
) -> None:
    """Vectors are compared with the library's."""
    from sentence_transformers import SentenceTransformer

    folder = sentence_folder(place, files, more)
    vectors = load(folder).embed(TEXTS)
    theirs = SentenceTransformer(str(folder), device="cpu")
    close(vectors, theirs.encode(TEXTS), "vectors", 1e-5)
    check(not says or heard(says), f"nothing was said of {says}")


LIBRARY, TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING = "1_Pooling/config.json"
ALONE = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULES}Transformer"}]
sentence_case("truncate_dim keeps 5 of 16 columns", READ, {LIBRARY: {"truncate_dim": 5}})
sentence_case(
    "truncate_dim behind Normalize", READ, {LIBRARY: {"truncate_dim": 5}}, more=("Normalize",)
)
sentence_case("truncate_dim above the width", READ, {LIBRARY: {"truncate_dim": 99}})
sentence_case("a Transformer alone", REFUSED, {"modules.json": ALONE}, names="no Pooling")
prompts = {"prompts": {"q": "query: "}}
sentence_case("prompts that one may name", READ, {LIBRARY: prompts}, says="has prompts")
named = "default_prompt_name"
before_all = {LIBRARY: prompts | {named: "q"}}
sentence_case("a prompt before every text", REFUSED, before_all, names=named)
by_dot = {LIBRARY: {"similarity_fn_name": "dot"}}
sentence_case("vectors to be compared by dot products", READ, by_dot, says="similarity_fn_name")
for mode in ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"):
    key = f"pooling_mode_{mode}"
    oddity = f"a pooling of {mode}"
    content = {POOLING: {"word_embedding_dimension": 16, key: True}}
    sentence_case(oddity, REFUSED, content, names=mode.partition("_")[0])
two = {POOLING: {"pooling_mode": ["cls", "mean"], "embedding_dimension": 16}}
sentence_case("two poolings side by side", REFUSED, two, names="pooling")
for kind in ("Dense", "LayerNorm", "CNN", "LSTM", "WeightedLayerPooling", "Router", "BoW"):
    oddity = f"a {kind} module behind the pooling"
    sentence_case(oddity, REFUSED, {}, names=kind, more=(kind,))
older = {"sentence_roberta_config.json": {"max_seq_length": 32, "do_lower_case": True}}
oddity = "texts in lower case before a tokenizer that lower-cases, by an older file's name"
sentence_case(oddity, READ, older)
for _oddity, _key, _value in (
    ("a Transformer that gives logits", "transformer_task", "fill-mask"),
    ("the longest text as a word", "max_seq_length", "many"),
):
    sentence_case(_oddity, REFUSED, {TRANSFORMER: {_key: _value}}, names=_key)
sentence_case("modules.json that is no list", REFUSED, {"modules.json": {}}, names="modules")


@CASES.rows("classify")
def cross_encoder_case(place: Path, **keys: Any) -> None:
    """A score of two texts, compared with CrossEncoder.predict."""
    from sentence_transformers import CrossEncoder

    folder = classifier(place, ["score"], num_labels=1)
    configure(folder, **keys)
    numbers = [answer.value for answer in load(folder).classify(PAIRS)]
    close(numbers, CrossEncoder(str(folder), device="cpu").predict(PAIRS), "scores", 1e-5)


by_itself = {"activation_fn": SIGMOID, "version": "5.0.0"}
cross_encoder_case("a cross-encoder's sigmoid", READ, sentence_transformers=by_itself)
cross_encoder_case("the same by an older key", READ, sbert_ce_default_activation_function=SIGMOID)
identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
cross_encoder_case("a cross-encoder without activation", READ, sentence_transformers=identity)
tanh = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}
cross_encoder_case("a cross-encoder's Tanh", REFUSED, names="activation_fn", **tanh)


@CASES.add("classify", READ)
def saved_cross_encoder(place: Path) -> None:
    """A cross-encoder as its library saves it, with a list of one module"""
    from sentence_transformers import CrossEncoder

    folder = classifier(place, ["score"], num_labels=1)
    theirs = CrossEncoder(str(folder), device="cpu")
    theirs.save_pretrained(str(place / "saved"))
    shutil.rmtree(folder)
    numbers = [answer.value for answer in load(place / "saved").classify(PAIRS)]
    close(numbers, theirs.predict(PAIRS), "scores", 1e-5)
