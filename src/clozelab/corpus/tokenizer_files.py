"""The files of a tokenizer: tokenizer.json, and what stands beside it.

Added tokens with their flags, normaliser, pre-tokeniser and template are tokenizer.json's.
`tokenizer_config.json` says which token plays which part; where it contradicts tokenizer.json, it
counts for what AutoTokenizer takes from it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from clozelab.corpus.tokenizer_classes import TYPED_CLASSES, class_name, is_generic
from clozelab.corpus.tokenizer_json import ModelPart, RulePart, Rules
from clozelab.text.plain import PlainDict, PlainMapping, read_json

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
ADDED_TOKENS = "added_tokens.json"
BertRule = Literal["lowercase", "strip_accents", "handle_chinese_chars"]
ROLES = ("pad", "unk", "cls", "sep", "mask")  # in the order of Tokenizer.special_tokens
DEFAULT_NAMES: Mapping[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
WORD_MARKS = {"byte_bpe": "Ġ", "metaspace": "▁"}  # kind -> before an entry that begins a word
# tokenizer_config.json -> the same in tokenizer.json's BertNormalizer
BERT_RULES: Mapping[str, BertRule] = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def read_text(path: Path, expected: str) -> str:
    if not path.is_file():
        raise ValueError(f"vocabulary file {path} does not exist; expected {expected}")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"vocabulary file {path} is not UTF-8 text: {error}") from None


def json_or_empty(path: Path) -> Any:
    try:
        content = read_json(path)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def json_bytes(content: PlainMapping) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def read_config(folder: Path) -> PlainDict:
    """tokenizer_config.json, with the content of older files beside it.

    Older versions of transformers wrote these. `tokenizer_class` is the class that AutoTokenizer
    chooses.
    """
    config = json_or_empty(folder / CONFIG_FILE)
    config["tokenizer_class"] = class_name(config, json_or_empty(folder / "config.json"))
    if "added_tokens_decoder" not in config:
        config |= json_or_empty(folder / "special_tokens_map.json")
        config[ADDED_TOKENS] = json_or_empty(folder / ADDED_TOKENS)
    return config


def reads_token_types(config: PlainMapping) -> bool:
    """Whether AutoTokenizer gives token types by a tokenizer_config.json.

    Where model_input_names does not say it, the class does.
    """
    names: Any = config.get("model_input_names")
    if names:
        return "token_type_ids" in names
    # Without a class they are the template's.
    return config.get("tokenizer_class", "") in ("", *TYPED_CLASSES)


def type_of(node: RulePart | ModelPart | None) -> str | None:
    """What kind of normaliser, pre-tokeniser or the like a node of tokenizer.json is."""
    return (node or {}).get("type")


def resolve_settings(path: Path, rules: Rules, config: PlainMapping) -> Rules:
    """tokenizer.json's content with what AutoTokenizer takes from tokenizer_config.json instead.

    These are: rules of a BertNormalizer, a ByteLevel's add_prefix_space, further added tokens and
    their flags, and a template where tokenizer.json has none. A class of transformers that takes
    tokenizer.json as it is has only the added tokens.
    """
    model = rules.get("model")
    if not isinstance(model, dict) or not model.get("vocab"):
        raise ValueError(
            f"{path} is no tokenizer of the tokenizers library: it has no model with a vocabulary",
        )
    if model.get("dropout"):
        raise ValueError(
            f"{path}: its model has dropout {model['dropout']}, so a text would have other ids"
            " each time; set it to null"
        )
    settled = rules.copy()
    if not is_generic(str(config["tokenizer_class"])):
        _settle_normalizer(settled, config)
        _settle_prefix_space(settled, config)
        _settle_template(settled, config)
    return _with_added_tokens(path, settled, config)


def _settle_normalizer(settled: Rules, config: PlainMapping) -> None:
    normalizer = settled.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return
    changed: RulePart = {"lowercase": None, "strip_accents": None, "handle_chinese_chars": None}
    changed.update(normalizer)
    given: Any = config
    for key, rule in BERT_RULES.items():
        if key in given:
            changed[rule] = given[key]
    if _effect_of(changed) != _effect_of(normalizer):
        settled["normalizer"] = changed


def _effect_of(normalizer: RulePart) -> Mapping[BertRule, object]:
    """BERT's rules without a null: null strips accents where text is lower-cased."""
    effect = {rule: normalizer.get(rule) for rule in BERT_RULES.values()}
    if effect["strip_accents"] is None:
        effect["strip_accents"] = effect["lowercase"]
    effect["strip_accents"] = bool(effect["strip_accents"])
    return effect


def _settle_prefix_space(settled: Rules, config: PlainMapping) -> None:
    splitter = settled.get("pre_tokenizer") or {}
    if splitter.get("type") != "ByteLevel" or config.get("add_prefix_space") is None:
        return
    value = bool(config["add_prefix_space"])
    if value == splitter.get("add_prefix_space", True):
        return
    settled["pre_tokenizer"] = {**splitter, "add_prefix_space": value}
    processor = settled.get("post_processor") or {}
    if "add_prefix_space" in processor:
        settled["post_processor"] = {**processor, "add_prefix_space": value}


def _settle_template(settled: Rules, config: PlainMapping) -> None:
    """BERT's or RoBERTa's template where the file has none."""
    processor = settled.get("post_processor") or {}
    if processor.get("type") not in (None, "ByteLevel"):
        return
    # Unigram lists entries with their scores.
    vocab = settled["model"]["vocab"]
    if isinstance(vocab, list):
        vocab = {entry[0]: index for index, entry in enumerate(vocab)}
    ids = dict(vocab)
    for token in settled.get("added_tokens", ()):
        ids[token["content"]] = token["id"]
    cls = token_of_role("cls", config, ids)
    sep = token_of_role("sep", config, ids)
    if cls not in ids or sep not in ids:
        return
    if processor:
        roberta: PlainDict = {**processor, "sep": [sep, ids[sep]], "cls": [cls, ids[cls]]}
        roberta["type"] = "RobertaProcessing"
        # A key of ByteLevel's that RobertaProcessing has not.
        roberta.pop("use_regex", None)
        settled["post_processor"] = roberta
        return
    first = [_special(cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, _special(sep, 0)]
    second = [{"Sequence": {"id": "B", "type_id": 1}}, _special(sep, 1)]
    special_tokens = {}
    for name in (cls, sep):
        special_tokens[name] = {"id": name, "ids": [ids[name]], "tokens": [name]}
    settled["post_processor"] = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *second],
        "special_tokens": special_tokens,
    }


def token_of_role(role: str, config: PlainMapping, tokens: Collection[str]) -> str:
    """The token of a role by tokenizer_config.json, else the usual one that is among `tokens`."""
    name = content_of(config.get(f"{role}_token"))
    if name:
        return name
    return next((usual for usual in DEFAULT_NAMES[role] if usual in tokens), "")


def _special(name: str, type_id: int) -> PlainDict:
    return {"SpecialToken": {"id": name, "type_id": type_id}}


def _with_added_tokens(path: Path, settled: Rules, config: PlainMapping) -> Rules:
    """The rules with the tokens and flags that AutoTokenizer adds by tokenizer_config.json."""
    library = open_library(path, settled)
    vocabulary = library.get_vocab(with_added_tokens=True)
    added = library.get_added_tokens_decoder().values()
    present = set(map(repr, added))
    names = {token.content for token in added}
    to_add = []
    by_id: Any = config.get("added_tokens_decoder") or {}
    for _, flags in sorted(by_id.items(), key=lambda item: int(item[0])):
        token = _added_token(flags)
        # A token with other flags counts as another one.
        if repr(token) not in present:
            to_add.append(token)
            names.add(token.content)
    for token in _named_tokens(config, vocabulary):
        if token.content not in names:
            to_add.append(token)
            names.add(token.content)
    if not to_add:
        return settled
    library.add_tokens(to_add)
    return {**settled, "added_tokens": json.loads(library.to_str())["added_tokens"]}


def _named_tokens(config: PlainMapping, vocabulary: Mapping[str, int]) -> Iterator[AddedToken]:
    """Special tokens by their part, then older files' added tokens, then further special ones."""
    for role in (*ROLES, "bos", "eos"):
        value = config.get(f"{role}_token")
        # One that the vocabulary lacks would be an id without an embedding.
        if content_of(value) in vocabulary:
            yield _added_token(value, special=True)
    extra: Any = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        extra = extra.values()
    special = [_added_token(value, special=True) for value in extra]
    special_names = [token.content for token in special]
    older: Any = config.get(ADDED_TOKENS) or {}
    for content in sorted(older, key=older.__getitem__):
        is_special = content in special_names
        yield AddedToken(content, normalized=not is_special, special=is_special)
    yield from special


def _added_token(value: object, special: bool | None = None) -> AddedToken:
    """From a name, or the node of a JSON file."""
    if not isinstance(value, dict):
        return AddedToken(str(value), special=True)
    flags = {}
    for key, flag in value.items():
        if key not in ("__type", "id", "content"):
            flags[key] = flag
    if special is not None:
        flags["special"] = special
    return AddedToken(value["content"], **flags)


def content_of(value: object) -> str:
    """The text of a special token, given as such or as a node; "" where none is given."""
    if isinstance(value, dict):
        value = value.get("content")
    if isinstance(value, str):
        return value
    return ""


def open_library(path: Path, rules: PlainMapping) -> Library:
    """The library's tokenizer, which neither cuts nor pads."""
    try:
        library = Library.from_str(json.dumps(rules))
    except Exception as error:  # the library's own is a bare one
        raise ValueError(f"{path} cannot be read by the tokenizers library: {error}") from None
    library.no_truncation()
    library.no_padding()
    return library


# What can be said of the rules


def kind_of(rules: Rules) -> str:
    """How an entry says that it begins a word, as Tokenizer.kind."""
    model = rules["model"]
    if type_of(model) == "WordPiece" and model.get("continuing_subword_prefix") == "##":
        return "wordpiece"
    splitters = _types_in(rules.get("pre_tokenizer"))
    if "ByteLevel" in splitters:
        return "byte_bpe"
    if "Metaspace" in splitters:
        return "metaspace"
    return "other"


def splits_as_roberta(splitter: PlainMapping) -> bool:
    """Whether a pre-tokeniser cuts text as RoBERTa's does, and writes it in bytes."""
    return splitter.get("type") == "ByteLevel" and bool(splitter.get("use_regex", True))


def _types_in(splitter: RulePart | None) -> set[str | None]:
    """The types of a pre-tokeniser, and of those that it is a sequence of."""
    types = {type_of(splitter)}
    for part in (splitter or {}).get("pretokenizers", ()):
        types |= _types_in(part)
    return types


def unknown_token(model: ModelPart) -> str:
    if type_of(model) == "Unigram":
        index = model.get("unk_id")
        if index is None:
            return ""
        return str(model["vocab"][index][0])
    return model.get("unk_token") or ""


def with_prefix_space(rules: Rules, value: bool) -> Rules:
    """The same rules with the add_prefix_space of a ByteLevel set."""
    splitter = rules.get("pre_tokenizer") or {}
    if splitter.get("type") == "ByteLevel" and kind_of(rules) == "byte_bpe":
        return {**rules, "pre_tokenizer": {**splitter, "add_prefix_space": value}}
    return rules.copy()


def inside_words(rules: Rules) -> Rules:
    """The same rules for what goes on with a word: "ing" is "##ing", and has no space before it."""
    inner = with_prefix_space(rules, False)
    inner["added_tokens"] = []
    if kind_of(rules) == "metaspace":
        inner["pre_tokenizer"] = None
    elif kind_of(rules) == "wordpiece":
        model = rules["model"]
        # An entry that goes on with a word takes the place of one that begins a word.
        entries = sorted(model["vocab"], key=lambda entry: entry.startswith("##"))
        vocab = {entry.removeprefix("##"): model["vocab"][entry] for entry in entries}
        inner["model"] = {**model, "vocab": vocab, "continuing_subword_prefix": ""}
    return inner
