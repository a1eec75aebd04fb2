"""Odd tokenizers and tensors of other people's folders: classes, vocabulary files, roles, added
tokens, padding, and tensors that no head of ours has.

The answers are those of transformers, from the same folder or from its clean twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.making import (
    JSON,
    LINES,
    RULES_FILE,
    SIZES,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    Change,
    Tensors,
    agrees,
    bert,
    byte_level,
    classifier,
    configure,
    copy_of,
    ids_of,
    in_json,
    load,
    nothing,
    put,
    reweight,
    same_classes,
    same_ids,
    same_masks,
    same_states,
    theirs,
    wordpiece,
)

from clozelab.stages.export import main as export

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


@CASES.rows("load")
def vocabulary_case(
    place: Path, config: Config, more: tuple[str, ...] = (), mask: str = "[MASK]"
) -> None:
    """Read as transformers reads it."""
    folder = vocabulary_alone(place, config, more)
    predictor = load(folder)
    same_ids(predictor, folder, MARKED)
    same_states(predictor, folder, MARKED[:-1])
    if mask:
        same_masks(predictor, folder, text=f"the {mask} cat on the mat .")


@CASES.rows("load")
def class_case(place: Path, config: Config) -> None:
    """A class whose rules vocab.txt does not hold."""
    load(vocabulary_alone(place, config))


for _class in ("DistilBertTokenizer", "ElectraTokenizerFast", "ConvBertTokenizer"):
    vocabulary_case(f"vocab.txt of the class {_class}", READ, {"tokenizer_class": _class})
SLOW = {"do_basic_tokenize": False, "never_split": ["cat"], "wordpieces_prefix": "@@"}
SPECIAL = {"extra_special_tokens": ["ada"], "additional_special_tokens": ["bob"]}
for _oddity, _config in {
    "vocab.txt, and no file names a class": {},
    "settings of slow tokenizers beside vocab.txt": SLOW,
    "unk_token is a word of the vocabulary": {"unk_token": "the"},
    "pad_token is another entry": {"pad_token": "cat"},
    "extra_special_tokens and additional_special_tokens differ": SPECIAL,
    "strip_accents is false": {"strip_accents": False},
}.items():
    vocabulary_case(_oddity, READ, _config)
vocabulary_case("cls_token and sep_token are <s> and </s>", READ, ENDS, ("<s>", "</s>"))
vocabulary_case("mask_token is a word of the vocabulary", READ, {"mask_token": "on"}, mask="on")
vocabulary_case("split_special_tokens is true", READ, {"split_special_tokens": True}, mask="")

OTHERS = ["BertJapanese", "Phobert", "Bertweet", "Tapas", "Nezha", "Funnel", "Roberta", "Albert"]
for _class in (*(f"{name}Tokenizer" for name in OTHERS), "PreTrainedTokenizerFast"):
    named = {"tokenizer_class": _class}
    class_case(f"vocab.txt of the class {_class}", REFUSED, named, names=_class)
own_code = {"auto_map": {"AutoTokenizer": ["mine.Slow", None]}}
class_case("own code", REFUSED, own_code, names="auto_map")
class_case("cls_token is no entry", REFUSED, {"cls_token": "<cls>"}, names="<cls>")


@CASES.add("load", REFUSED, "BertJapaneseTokenizer")
def class_in_config_json(place: Path) -> None:
    """config.json names the class, and tokenizer_config.json does not"""
    folder = vocabulary_alone(place, {})
    configure(folder, tokenizer_class="BertJapaneseTokenizer")
    load(folder)


@CASES.rows("load")
def older_file_case(place: Path, config: Config, first: int) -> None:
    """special_tokens_map.json beside tokenizer_config.json; `first`: the id that a text begins
    with.
    """
    folder = vocabulary_alone(place, config, ("<s>", "</s>"))
    (folder / "special_tokens_map.json").write_text(json.dumps(ENDS))
    predictor = load(folder)
    same_ids(predictor, folder, MARKED)
    equal(ids_of(predictor, ["the cat"])[0][0], first, "first id")


names_other = "special_tokens_map.json names other roles than tokenizer_config.json"
older_file_case(names_other, READ, {"cls_token": "[CLS]"}, len(VOCABULARY))
beside = "special_tokens_map.json beside an added_tokens_decoder, where it does not count"
older_file_case(beside, READ, {"added_tokens_decoder": {}}, 2)


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


@CASES.rows("load", "Tokenizer")
def merges_case(place: Path, change: Change) -> None:
    """RoBERTa's vocab.json and merges.txt alone."""
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


merges_case("vocab.json with merges.txt, no class named", READ, nothing)
for _name in ("Longformer", "Herbert", "CLIP", "GPT2", "XLM"):
    expected = READ if _name == "Longformer" else REFUSED
    named = put(RULES_FILE, json.dumps({"tokenizer_class": f"{_name}Tokenizer"}))
    merges_case(f"vocab.json with merges.txt, the class {_name}Tokenizer", expected, named)
of_bert = in_json("config.json", model_type="bert", architectures=["BertForMaskedLM"])
merges_case("vocab.json with merges.txt, in the folder of a BERT", REFUSED, of_bert)


# tokenizer.json, and what stands beside it


@CASES.rows("load")
def beside_case(place: Path, config: Config) -> None:
    folder = bert(place)
    in_json(RULES_FILE, **config)(folder)
    predictor = load(folder)
    same_ids(predictor, folder)
    same_states(predictor, folder)


beside_case("tokenizer.json has another cls_token", EITHER, {"cls_token": "the"})
beside_case("tokenizer.json has another unk_token", EITHER, {"unk_token": "a"})
beside_case("auto_map names own code beside tokenizer.json", READ, own_code)
of_python = {"tokenizer_class": "BertweetTokenizer"}
beside_case(
    "a class of Python code beside tokenizer.json", REFUSED, of_python, names="BertweetTokenizer"
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
    rules = {"tokenizer_class": "HerbertTokenizer", **named_roles}
    (folder / RULES_FILE).write_text(json.dumps(rules))
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    predictor = load(folder)
    same_ids(predictor, folder, ["a . ,", "b 1 ? !"])
    same_states(predictor, folder, ["a . ,", "b 1 ? !"])


# Padding


@CASES.add("load", EITHER, "pad")
def mpnet_padding(place: Path) -> None:
    """An MPNet whose tokenizer pads with the id 0; its class takes 1 for padding"""
    folder = place / "model"
    sizes = SIZES | {"max_position_embeddings": 66}
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


@CASES.rows("predict")
def head_case(place: Path, change: Callable[[Tensors], Tensors]) -> None:
    """A classifier whose tensors are changed; answers are those of the clean one."""
    folder = classifier(place)
    twin = copy_of(folder)
    reweight(folder, change)
    same_classes(load(folder), twin)


def more(name: str, tensor: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda stored: {**stored, name: tensor}


LEFT = "classifier.modules_to_save.default.weight"
ON_HEAD = "classifier.lora_A.weight"
IN_ENCODER = "query.lora_A.weight"
QUERY = f"bert.encoder.layer.0.attention.self.{IN_ENCODER}"
for _oddity, _name, _named in (
    ("a head that an adapter's training has left beside the first", LEFT, LEFT),
    ("a head of two layers in sequence", "classifier.2.weight", "classifier.2.weight"),
    ("an adapter on the head that was not merged", ON_HEAD, ON_HEAD),
    ("an adapter in the encoder that was not merged", QUERY, IN_ENCODER),
):
    head_case(_oddity, REFUSED, more(_name, torch.ones(3, 16)), names=_named)
of_loss = more("loss_fct.weight", torch.ones(3))
head_case("the weights of classes in a loss were saved", READ, of_loss)
positions = more("bert.embeddings.position_ids", torch.arange(64)[None])
head_case("a buffer of position numbers was saved", READ, positions)


def wrapped(stored: Tensors) -> Tensors:
    inner = "classifier.original_module."
    return {name.replace("classifier.", inner): tensor for name, tensor in stored.items()}


in_wrapper = "a head inside an adapter's wrapper alone"
head_case(in_wrapper, REFUSED, wrapped, names="classifier.original_module")


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
