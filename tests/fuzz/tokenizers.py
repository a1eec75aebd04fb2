"""Odd tokenizers and tensors of other people's folders: classes, vocabulary files, roles, added
tokens, padding, and tensors that no head of ours has.

The answers are those of transformers, from the same folder or from its clean twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from clozelab.stages.export import main as export
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.making import (
    JSON,
    LINES,
    RULES_FILE,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    agrees,
    bert,
    byte_level,
    classifier,
    configure,
    copy_of,
    edit,
    ids_of,
    load,
    reweight,
    same_classes,
    same_ids,
    same_masks,
    same_states,
    theirs,
    wordpiece,
)

CASES = Cases("tokenizers and tensors of others")

ENDS = {"cls_token": "<s>", "sep_token": "</s>"}
MARKED = [*TEXTS, "the [MASK] sat [SEP] on [CLS] mat", "<s> the cat </s>", "a" * 120 + " cat"]
Config = dict[str, Any]


# Vocabulary files without tokenizer.json


def vocabulary_alone(place: Path, config: Config, more: tuple[str, ...] = ()) -> Path:
    """A masked BERT with vocab.txt, and with what tokenizer_config.json says."""
    folder = bert(place, rows=len(VOCABULARY) + len(more))
    (folder / JSON).unlink()
    (folder / "vocab.txt").write_text(LINES + "".join(f"{entry}\n" for entry in more))
    (folder / RULES_FILE).write_text(json.dumps({"do_lower_case": True, **config}))
    return folder


def vocabulary_case(
    oddity: str, config: Config, more: tuple[str, ...] = (), mask: str = "[MASK]"
) -> None:
    """Read as transformers reads it."""

    def act(place: Path) -> None:
        folder = vocabulary_alone(place, config, more)
        predictor = load(folder)
        same_ids(predictor, folder, MARKED)
        same_states(predictor, folder, MARKED[:-1])
        if mask:
            same_masks(predictor, folder, text=f"the {mask} cat on the mat .")

    CASES.add("load", READ, oddity=oddity)(act)


def refused_case(config: Config, *names: str, oddity: str = "") -> None:
    """A class whose rules vocab.txt does not hold."""
    said = oddity or f"vocab.txt of the class {config.get('tokenizer_class')}"

    def act(place: Path) -> None:
        load(vocabulary_alone(place, config))

    CASES.add("load", REFUSED, "|".join(names), oddity=said)(act)


for class_name in ("DistilBertTokenizer", "ElectraTokenizerFast", "ConvBertTokenizer"):
    vocabulary_case(f"vocab.txt of the class {class_name}", {"tokenizer_class": class_name})
vocabulary_case("vocab.txt, and no file names a class", {})
vocabulary_case(
    "settings of slow tokenizers beside vocab.txt",
    {"do_basic_tokenize": False, "never_split": ["cat"], "wordpieces_prefix": "@@"},
)
vocabulary_case("cls_token and sep_token are <s> and </s>", ENDS, ("<s>", "</s>"))
vocabulary_case("unk_token is a word of the vocabulary", {"unk_token": "the"})
vocabulary_case("mask_token is a word of the vocabulary", {"mask_token": "on"}, mask="on")
vocabulary_case("pad_token is another entry", {"pad_token": "cat"})
vocabulary_case(
    "extra_special_tokens and additional_special_tokens differ",
    {"extra_special_tokens": ["ada"], "additional_special_tokens": ["bob"]},
)
vocabulary_case("split_special_tokens is true", {"split_special_tokens": True}, mask="")
vocabulary_case("strip_accents is false", {"strip_accents": False})

for class_name in (
    "BertJapaneseTokenizer",
    "PhobertTokenizer",
    "BertweetTokenizer",
    "TapasTokenizer",
):
    refused_case(f"python_{class_name}", {"tokenizer_class": class_name}, class_name)
for class_name in ("NezhaTokenizer", "FunnelTokenizer", "RobertaTokenizer", "AlbertTokenizer"):
    refused_case(f"class_{class_name}", {"tokenizer_class": class_name}, class_name)
refused_case(
    "generic_without_file",
    {"tokenizer_class": "PreTrainedTokenizerFast"},
    "PreTrainedTokenizerFast",
)
refused_case(
    "own_code", {"auto_map": {"AutoTokenizer": ["mine.Slow", None]}}, "auto_map", oddity="own code"
)
refused_case("no_such_role", {"cls_token": "<cls>"}, "<cls>", oddity="cls_token is no entry")


@CASES.add("load", REFUSED, "BertJapaneseTokenizer")
def class_in_config_json(place: Path) -> None:
    """config.json names the class, and tokenizer_config.json does not"""
    folder = vocabulary_alone(place, {})
    configure(folder, tokenizer_class="BertJapaneseTokenizer")
    load(folder)


@CASES.add("load", READ)
def roles_in_the_older_file(place: Path) -> None:
    """special_tokens_map.json names other roles than tokenizer_config.json"""
    folder = vocabulary_alone(place, {"cls_token": "[CLS]"}, ("<s>", "</s>"))
    (folder / "special_tokens_map.json").write_text(json.dumps(ENDS))
    same_ids(load(folder), folder, MARKED)
    equal(ids_of(load(folder), ["the cat"])[0][0], len(VOCABULARY), "first id")


@CASES.add("load", READ)
def older_file_beside_a_new_one(place: Path) -> None:
    """special_tokens_map.json beside an added_tokens_decoder, where it does not count"""
    folder = vocabulary_alone(place, {"added_tokens_decoder": {}}, ("<s>", "</s>"))
    (folder / "special_tokens_map.json").write_text(json.dumps(ENDS))
    same_ids(load(folder), folder, MARKED)
    equal(ids_of(load(folder), ["the cat"])[0][0], 2, "first id")


@CASES.add("load", READ)
def added_beside_a_vocabulary(place: Path) -> None:
    """added_tokens.json beside vocab.txt, with embeddings for them"""
    folder = vocabulary_alone(place, {}, ())
    added = {"covid": len(VOCABULARY), "[E1]": len(VOCABULARY) + 1}
    (folder / "added_tokens.json").write_text(json.dumps(added))
    model = theirs(folder, "ForMaskedLM")
    model.resize_token_embeddings(len(VOCABULARY) + 2)
    model.save_pretrained(folder)
    same_ids(load(folder), folder, [*MARKED, "covid [E1]x covids"])


# byte-level BPE, and vocabularies that look like one


def merges_case(oddity: str, expected: str, change: Callable[[Path], object]) -> None:
    """RoBERTa's vocab.json and merges.txt alone."""

    def act(place: Path) -> None:
        folder = byte_level(place)
        content = json.loads((folder / JSON).read_text())["model"]
        merges = [" ".join(pair) for pair in content["merges"]]
        (folder / "vocab.json").write_text(json.dumps(content["vocab"]))
        (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
        (folder / JSON).unlink()
        (folder / RULES_FILE).write_text("{}")
        change(folder)
        predictor = load(folder)
        same_ids(predictor, folder, ["the cat sat", "a <mask> ran </s> on", "wörld"])
        same_masks(predictor, folder, text="the<mask> sat")

    CASES.add("load", expected, "Tokenizer", oddity=oddity)(act)


def named(class_name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / RULES_FILE).write_text(
        json.dumps({"tokenizer_class": class_name})
    )


merges_case("vocab.json with merges.txt, no class named", READ, lambda _: None)
merges_case("the class LongformerTokenizer", READ, named("LongformerTokenizer"))
for class_name in ("HerbertTokenizer", "CLIPTokenizer", "GPT2Tokenizer", "XLMTokenizer"):
    merges_case(f"the class {class_name}", REFUSED, named(class_name))
merges_case(
    "vocab.json with merges.txt in the folder of a BERT",
    REFUSED,
    lambda folder: configure(folder, model_type="bert", architectures=["BertForMaskedLM"]),
)


# tokenizer.json, and what stands beside it


def beside_case(oddity: str, expected: str, config: Mapping[str, Any], *names: str) -> None:
    def act(place: Path) -> None:
        folder = bert(place)
        edit(folder / RULES_FILE, lambda values: values.update(config))
        predictor = load(folder)
        same_ids(predictor, folder)
        same_states(predictor, folder)

    CASES.add("load", expected, "|".join(names), oddity=oddity)(act)


beside_case("tokenizer.json has another cls_token", EITHER, {"cls_token": "the"})
beside_case("tokenizer.json has another unk_token", EITHER, {"unk_token": "a"})
beside_case(
    "auto_map names own code beside tokenizer.json",
    READ,
    {"auto_map": {"AutoTokenizer": ["mine.Slow", None]}},
)
beside_case(
    "a class of Python code beside tokenizer.json",
    REFUSED,
    {"tokenizer_class": "BertweetTokenizer"},
    "BertweetTokenizer",
)
beside_case("a class of nobody's", READ, {"tokenizer_class": "MyTokenizerFast"})


@CASES.add("load", READ)
def the_way_on(place: Path) -> None:
    """A folder of HerbertTokenizer, saved again as the refusal says"""
    folder = bert(place)
    (folder / JSON).unlink()
    # Its class takes the ids 0 and 2 for the ends of a text.
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [f"{word}</w>" if len(word) == 1 else word for word in VOCABULARY[5:]]
    entries = {word: number for number, word in enumerate([*names, *pieces])}
    roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), names, strict=True))
    named_roles = {f"{role}_token": name for role, name in roles.items()}
    (folder / "vocab.json").write_text(json.dumps(entries))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / RULES_FILE).write_text(
        json.dumps({"tokenizer_class": "HerbertTokenizer", **named_roles})
    )
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    predictor = load(folder)
    same_ids(predictor, folder, ["a . ,", "b 1 ? !"])
    same_states(predictor, folder, ["a . ,", "b 1 ? !"])


# Padding


@CASES.add("load", EITHER, "pad")
def mpnet_padding(place: Path) -> None:
    """An MPNet whose tokenizer pads with the id 0; its class takes 1 for padding"""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 66,
    }
    folder = place / "model"
    config = transformers.MPNetConfig(vocab_size=len(VOCABULARY), **sizes)
    transformers.MPNetForMaskedLM(config).save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    same_states(load(folder), folder, ["the cat sat", "zebra £ mat"])


# Tensors


def with_tensors(folder: Path, **tensors: torch.Tensor) -> Path:
    reweight(folder, lambda stored: {**stored, **tensors})
    return folder


def tagger(place: Path) -> Path:
    return with_tensors(
        bert(place, "ForTokenClassification", num_labels=5), **{"crf.transitions": torch.ones(5, 5)}
    )


@CASES.add("predict", REFUSED, "crf.transitions")
def crf_predicts(place: Path) -> None:
    """A tagger with the transitions of a CRF"""
    load(tagger(place)).tag("the cat sat")


@CASES.add("embed", READ)
def crf_embeds(place: Path) -> None:
    """The encoder of a tagger with a CRF"""
    folder = tagger(place)
    same_states(load(folder), folder)
    check(heard("crf.transitions"), "the log does not name the tensor")


@CASES.add("export", REFUSED, "crf.transitions")
def crf_exports(place: Path) -> None:
    """A tagger with a CRF is exported"""
    export([str(tagger(place)), f"to={place / 'out'}"])


@CASES.add("export", READ)
def crf_exports_its_encoder(place: Path) -> None:
    """The encoder alone of a tagger with a CRF is exported"""
    folder = tagger(place)
    export([str(folder), f"to={place / 'out'}", "head=false"])
    same_states(load(place / "out"), folder)


def head_case(oddity: str, expected: str, change: Callable[..., Any], *names: str) -> None:
    """A classifier whose tensors are changed; answers are those of the clean one."""

    def act(place: Path) -> None:
        folder = classifier(place)
        twin = copy_of(folder)
        reweight(folder, change)
        same_classes(load(folder), twin)

    CASES.add("predict", expected, "|".join(names), oddity=oddity)(act)


SECOND = "classifier.modules_to_save.default.weight"
head_case(
    "a head that an adapter's training has left beside the first",
    REFUSED,
    lambda stored: {**stored, SECOND: torch.ones(3, 16)},
    SECOND,
)
head_case(
    "a head inside an adapter's wrapper alone",
    REFUSED,
    lambda stored: {
        name.replace("classifier.", "classifier.original_module."): value
        for name, value in stored.items()
    },
    "classifier.original_module",
)
head_case(
    "a head of two layers in sequence",
    REFUSED,
    lambda stored: {**stored, "classifier.2.weight": torch.ones(3, 3)},
    "classifier.2.weight",
)
head_case(
    "an adapter on the head that was not merged",
    REFUSED,
    lambda stored: {**stored, "classifier.lora_A.weight": torch.ones(2, 16)},
    "classifier.lora_A.weight",
)
head_case(
    "an adapter in the encoder that was not merged",
    REFUSED,
    lambda stored: {
        **stored,
        "bert.encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(2, 16),
    },
    "lora_A",
)
head_case(
    "the weights of classes in a loss were saved",
    READ,
    lambda stored: {**stored, "loss_fct.weight": torch.ones(3)},
)
head_case(
    "a buffer of position numbers was saved",
    READ,
    lambda stored: {**stored, "bert.embeddings.position_ids": torch.arange(64)[None]},
)


@CASES.add("predict", READ)
def head_of_another_task(place: Path) -> None:
    """A classifier's tensors beside a masked model's"""
    folder = bert(place)
    twin = copy_of(folder)
    with_tensors(folder, **{"classifier.weight": torch.ones(3, 16)})
    agrees(folder, twin)
    check(heard("classifier.weight"), "the log does not name the tensor")


@CASES.add("predict", READ)
def masked_head_beside_a_classifier(place: Path) -> None:
    """A masked model's head beside a classifier"""
    folder = classifier(place)
    twin = copy_of(folder)
    other = load_file(bert(place / "other") / WEIGHTS)
    head = {name: value for name, value in other.items() if name.startswith("cls.")}
    same_classes(load(with_tensors(folder, **head)), twin)
