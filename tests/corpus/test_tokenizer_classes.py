"""A folder is read by the rules of its tokenizer's class, or refused by the class's name."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.corpus.test_folder_tokenizers import TRAINING, albert, bert, roberta, xlm_roberta
from tests.screens import refuses, shows

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizer_classes import BERT_CLASSES, ROBERTA_CLASSES
from clozelab.corpus.tokenizers import ByteBpeTokenizer, MpnetTokenizer, WordPieceTokenizer
from clozelab.tasks.sequences import assemble

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The Old caT, sat on é mat.",
    "covid [E1] <e>x naïve Ünï",
    "the <mask> sat",
    "a [MASK] b [SEP] c </s>",
    "日本語 新冠",
    "  two  spaces ``quoted'' ",
    "ΜΑΣΣ Σ.",
    "x" * 120 + " y",
    "<s> a </s> <pad> [PAD] [UNK] <unk>",
    "hello\u00a0world\ttab\nnl",
]
ENDS = {"cls_token": "<s>", "sep_token": "</s>"}
COVID = {"content": "covid", "lstrip": False, "rstrip": False, "normalized": True}
SAT = {"__type": "AddedToken", **COVID, "content": "sat", "lstrip": True}


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@cache
def pieces_of(name: str) -> Sequence[str]:
    """A vocabulary; learnt in a test and not before, since learning starts threads."""
    if name == "mpnet":
        return MpnetTokenizer.train(TRAINING, 300, True).vocabulary
    wordpieces = WordPieceTokenizer.train(TRAINING, 300, True).vocabulary
    return (*wordpieces, "<s>", "</s>") if name == "both" else wordpieces


def vocab_txt(where: Path, pieces: str, config: Mapping[str, Any], model_type: str) -> Path:
    (where / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces_of(pieces)))
    write_json(where / "tokenizer_config.json", {"do_lower_case": True, **config})
    write_json(where / "config.json", {"model_type": model_type})
    return where


def vocab_json(where: Path, config: Mapping[str, Any], model_type: str) -> Path:
    made = ByteBpeTokenizer.train(TRAINING, 400, False, False)
    for name in ("vocab.json", "merges.txt"):
        (where / name).write_bytes(made.files()[name])
    write_json(where / "tokenizer_config.json", config)
    write_json(where / "config.json", {"model_type": model_type})
    return where


def compare(folder: Path) -> None:
    """Ids, pairs, token types and roles are AutoTokenizer's."""
    ours = read_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    for text in TEXTS:
        (ids,) = ours.encode_batch([text])
        assert assemble(ours, [ids]).input_ids.tolist() == theirs(text)["input_ids"], text
    pair = theirs("the cat", "sat")
    packed = assemble(ours, *([ids] for ids in ours.encode_batch(["the cat", "sat"])))
    assert packed.input_ids.tolist() == pair["input_ids"]
    assert ours.has_token_types == ("token_type_ids" in pair)
    roles = [ours.pad_id, ours.cls_id, ours.sep_id, ours.mask_id, ours.unk_id]
    names = ("pad", "cls", "sep", "mask", "unk")
    assert roles == [getattr(theirs, f"{name}_token_id") for name in names]


@pytest.mark.parametrize("name", sorted(BERT_CLASSES | {"BertTokenizerFast"}))
def test_classes_of_a_vocab_txt(tmp_path: Path, name: str) -> None:
    compare(vocab_txt(tmp_path, "bert", {"tokenizer_class": name}, "bert"))


@pytest.mark.parametrize("name", sorted(ROBERTA_CLASSES | {"RobertaTokenizerFast"}))
def test_classes_of_a_vocab_json(tmp_path: Path, name: str) -> None:
    compare(vocab_json(tmp_path, {"tokenizer_class": name}, "roberta"))


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "electra", "ernie", "mpnet"])
def test_the_model_says_the_class_where_no_file_names_it(tmp_path: Path, model_type: str) -> None:
    pieces = "mpnet" if model_type == "mpnet" else "bert"
    compare(vocab_txt(tmp_path, pieces, {}, model_type))


def test_config_json_names_the_class_where_tokenizer_config_json_does_not(tmp_path: Path) -> None:
    folder = vocab_txt(tmp_path, "mpnet", {}, "bert")
    write_json(folder / "config.json", {"model_type": "bert", "tokenizer_class": "MPNetTokenizer"})
    compare(folder)


@pytest.mark.parametrize(
    "config",
    [
        ENDS,
        {"unk_token": "the"},
        {"mask_token": "sat", "pad_token": "on"},
        {"sep_token": SAT},
        {"extra_special_tokens": ["covid"], "additional_special_tokens": ["naive"]},
        {"strip_accents": False, "tokenize_chinese_chars": False},
        {"do_lower_case": False, "strip_accents": True},
        {"split_special_tokens": True},
        {"do_basic_tokenize": False, "never_split": ["cat"], "wordpieces_prefix": "@@"},
        {"model_input_names": ["input_ids", "attention_mask"]},
    ],
    ids=lambda config: ",".join(config),
)
def test_settings_beside_a_vocab_txt(tmp_path: Path, config: dict[str, Any]) -> None:
    compare(vocab_txt(tmp_path, "both", config, "bert"))


def test_a_token_that_is_added_behind_a_vocab_txt(tmp_path: Path) -> None:
    next_id = str(len(pieces_of("both")))
    compare(vocab_txt(tmp_path, "both", {"added_tokens_decoder": {next_id: COVID}}, "bert"))


@pytest.mark.parametrize(
    "config",
    [{"cls_token": "</s>"}, {"sep_token": "<unk>"}, {"add_prefix_space": True}, {"pad_token": "A"}],
    ids=lambda config: ",".join(config),
)
def test_settings_beside_a_vocab_json(tmp_path: Path, config: dict[str, Any]) -> None:
    compare(vocab_json(tmp_path, config, "roberta"))


@pytest.mark.parametrize("has_decoder", [False, True], ids=["older files", "added_tokens_decoder"])
def test_which_file_names_the_roles(tmp_path: Path, has_decoder: bool) -> None:
    """special_tokens_map.json counts before tokenizer_config.json, but in today's folders."""
    config: dict[str, Any] = {"cls_token": "[CLS]"}
    if has_decoder:
        config["added_tokens_decoder"] = {}
    folder = vocab_txt(tmp_path, "both", config, "bert")
    write_json(folder / "special_tokens_map.json", ENDS)
    compare(folder)
    first = read_tokenizer(folder).special_tokens[2]
    assert first == ("[CLS]" if has_decoder else "<s>")


def test_only_the_same_roles_are_those_of_a_prepared_tokenizer(tmp_path: Path) -> None:
    """A corpus that was prepared with the vocabulary has [CLS] and [SEP]."""
    prepared = WordPieceTokenizer(pieces_of("both"), lowercase=True).fingerprint
    assert read_tokenizer(vocab_txt(tmp_path, "both", {}, "bert")).released == prepared
    assert read_tokenizer(vocab_txt(tmp_path, "both", ENDS, "bert")).released is None


def test_a_folder_of_googles_follows_the_released_code(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces_of("bert")))
    write_json(tmp_path / "bert_config.json", {})
    assert type(read_tokenizer(tmp_path)) is WordPieceTokenizer


# Other classes


@pytest.mark.parametrize(
    ("config", "model_type", "reason"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "bert", "are Python code of transformers"),
        ({"tokenizer_class": "FunnelTokenizer"}, "bert", "vocab.txt does not hold the rules"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "bert", "json, which is missing"),
        ({"tokenizer_class": "RobertaTokenizer"}, "bert", "RobertaTokenizer, reads vocab.json"),
        ({"cls_token": "nobody"}, "bert", "the vocabulary of 164 entries lacks nobody"),
        ({"auto_map": {"AutoTokenizer": ["mine.Slow", None]}}, "bert", "mine.Slow in auto_map"),
        ({"auto_map": ["mine.Slow", "mine.Fast"]}, "bert", "mine.Fast in auto_map"),
        ({}, "roberta", "its tokenizer, RobertaTokenizer, reads vocab.json"),
        ({}, "albert", "does not hold the rules of its tokenizer, AlbertTokenizer"),
        ({}, "modernbert", "PreTrainedTokenizerFast, reads tokenizer.json, which is missing"),
    ],
)
def test_a_vocab_txt_of_another_class_is_refused(
    tmp_path: Path, config: dict[str, Any], model_type: str, reason: str
) -> None:
    with refuses(reason):
        read_tokenizer(vocab_txt(tmp_path, "bert", config, model_type))


@pytest.mark.parametrize(
    "name",
    ["HerbertTokenizer", "CLIPTokenizer", "GPT2Tokenizer", "XLMTokenizer", "OpenAIGPTTokenizer"],
)
def test_a_vocab_json_of_another_class_is_refused(tmp_path: Path, name: str) -> None:
    with refuses(f"rules of its tokenizer, {name}"):
        read_tokenizer(vocab_json(tmp_path, {"tokenizer_class": name}, "bert"))


def test_the_way_on_for_another_class(tmp_path: Path) -> None:
    """HerBERT's, saved as the sentence says, has the pieces of AutoTokenizer."""
    folder = vocab_json(tmp_path, {"tokenizer_class": "HerbertTokenizer"}, "bert")
    with pytest.raises(ValueError, match="HerbertTokenizer"):
        read_tokenizer(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    theirs.save_pretrained(str(folder))
    ours = read_tokenizer(folder)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_batch([text])[0].tolist() == expected


# tokenizer.json, and what tokenizer_config.json says beside it


def changed(folder: Path, config: Mapping[str, Any]) -> Path:
    path = folder / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text()) | dict(config))
    return folder


@pytest.mark.parametrize(
    ("make", "config"),
    [
        pytest.param(bert, {"cls_token": "[SEP]"}, id="bert"),
        pytest.param(bert, {"unk_token": "the"}, id="bert unknown"),
        pytest.param(roberta, {"sep_token": "<s>"}, id="roberta"),
        pytest.param(albert, {"do_lower_case": False}, id="albert case"),
        pytest.param(albert, {"keep_accents": True}, id="albert accents"),
        pytest.param(albert, {"add_prefix_space": False}, id="albert space"),
        pytest.param(xlm_roberta, {"bos_token": "</s>"}, id="xlm-roberta"),
    ],
)
def test_a_setting_that_tokenizer_json_contradicts_is_refused(
    tmp_path: Path, make: Any, config: dict[str, Any]
) -> None:
    """AutoTokenizer follows tokenizer_config.json there; nobody knows which was trained with."""
    make(tmp_path / "m")
    before = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "m"))
    folder = changed(tmp_path / "m", config)
    after = transformers.AutoTokenizer.from_pretrained(str(folder))
    probe = "The nïce cat 🙂"
    assert before(probe)["input_ids"] != after(probe)["input_ids"]
    (key, value) = next(iter(config.items()))
    with refuses(f"tokenizer_config.json says {key} {json.dumps(value)}, which"):
        read_tokenizer(folder)


def test_a_class_that_takes_the_file_as_it_is_looks_at_none_of_them(tmp_path: Path) -> None:
    bert(tmp_path / "m")
    settings = {"cls_token": "[SEP]", "do_lower_case": False}
    compared = {"tokenizer_class": "PreTrainedTokenizerFast", **settings}
    folder = changed(tmp_path / "m", compared)
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    ours = read_tokenizer(folder)
    for text in TEXTS:
        (ids,) = ours.encode_batch([text])
        assert assemble(ours, [ids]).input_ids.tolist() == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("make", "config", "has_types"),
    [
        (bert, {}, True),
        (bert, {"tokenizer_class": "DistilBertTokenizer"}, False),
        (bert, {"tokenizer_class": "MyTokenizer"}, False),
        (bert, {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        (albert, {}, True),
    ],
)
def test_token_types_are_those_of_the_class(
    tmp_path: Path, make: Any, config: dict[str, Any], has_types: bool
) -> None:
    """ALBERT's are the paper's: its class of transformers 5 leaves them out."""
    make(tmp_path / "m")
    folder = changed(tmp_path / "m", config)
    assert read_tokenizer(folder).has_token_types == has_types
    theirs = transformers.AutoTokenizer.from_pretrained(str(folder))
    assert ("token_type_ids" in theirs("a", "b")) == (has_types and make is bert)


def test_python_rules_are_refused_beside_a_tokenizer_json(tmp_path: Path) -> None:
    """AutoTokenizer does not read it for such a class."""
    bert(tmp_path / "m")
    with refuses("the rules of its tokenizer, PhobertTokenizer, are Python code of"):
        read_tokenizer(changed(tmp_path / "m", {"tokenizer_class": "PhobertTokenizer"}))


def test_what_the_file_counts_before_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bert(tmp_path / "m")
    settings = {"tokenizer_class": "HerbertTokenizer", "auto_map": {"AutoTokenizer": "mine.Own"}}
    with caplog.at_level(logging.WARNING):
        read_tokenizer(changed(tmp_path / "m", settings))
    shows(
        caplog.text,
        "mine.Own of auto_map is not run; the file counts",
        "holds WordPiece, of whose entries HerbertTokenizer of transformers 5",
    )
