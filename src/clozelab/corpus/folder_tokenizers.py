"""The tokenizer of a model's folder, as AutoTokenizer of transformers reads it.

`read_tokenizer` tells whether a folder has rules of its own, or a vocabulary with BERT's or
RoBERTa's (tokenizers.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import models

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.simple_tokenizers import WhitespaceTokenizer
from clozelab.corpus.tokenizer_classes import (
    BOS_CLASSES,
    BUILT_MODELS,
    BYTE_BPE_CLASSES,
    FOLLOWED,
    MPNET_CLASS,
    QWEN2_CLASS,
    QWEN2_PATTERN,
    is_generic,
    own_code,
    refuse_python_rules,
    vocabulary_file,
)
from clozelab.corpus.tokenizer_files import (
    CONFIG_FILE,
    ROLES,
    TOKENIZER_FILE,
    content_of,
    json_or_empty,
    open_library,
    read_config,
    read_text,
    reads_token_types,
    resolve_settings,
    splits_as_roberta,
    type_of,
    unknown_token,
)
from clozelab.corpus.tokenizer_json import ModelPart, Rules
from clozelab.corpus.tokenizers import (
    MAX_WORD_CHARACTERS,
    ByteBpeTokenizer,
    MpnetTokenizer,
    VocabularyTokenizer,
    WordPieceTokenizer,
    byte_bpe_rules,
    entries_of,
    ids_of,
    wordpiece_rules,
)
from clozelab.corpus.unigram import UnigramTokenizer
from clozelab.text.plain import PlainDict, PlainMapping

log = logging.getLogger(__name__)
# those that a corpus may have learnt; a tokenizer.json may be of one of them
VOCABULARY_CLASSES = (
    MpnetTokenizer,
    WordPieceTokenizer,
    ByteBpeTokenizer,
    UnigramTokenizer,
    WhitespaceTokenizer,
)
# RoBERTa's template, before it has its tokens
ROBERTA_PROCESSOR: PlainMapping = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def read_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer of a model's folder; ValueError where there is none that can be read.

    It is read from `tokenizer.json` as it is, unless one of the two kinds here wrote it. Without
    that file it is read from `vocab.txt`, or `vocab.json` and `merges.txt`, by the rules of its
    class (tokenizer_classes.py) and what tokenizer_config.json says.
    """
    folder = Path(folder)
    config = read_config(folder)
    refuse_python_rules(folder, str(config["tokenizer_class"]))
    if config.get("truncation_side") == "left":
        log.warning("%s: truncation_side left is not followed: a long text loses its end", folder)
    if (folder / TOKENIZER_FILE).is_file():
        return _from_tokenizer_json(folder, config)
    path = vocabulary_file(folder, config)
    if path is not None and path.suffix == ".txt":
        return _from_vocab_txt(path, config)
    if path is not None:
        return _from_vocab_json(path, config)
    advice = ""
    sentencepiece_files = sorted(folder.glob("*.model"))
    if sentencepiece_files:
        advice = (
            f"; of {sentencepiece_files[0].name} transformers makes one:"
            " AutoTokenizer.from_pretrained(F).save_pretrained(F)"
        )
    raise ValueError(
        f"{folder} holds no tokenizer: expected tokenizer.json, vocab.txt, or vocab.json with"
        f" merges.txt{advice}"
    )


def _from_tokenizer_json(folder: Path, config: PlainMapping) -> Tokenizer:
    path = folder / TOKENIZER_FILE
    content = json_or_empty(path)
    rules = resolve_settings(path, content, config)
    for section in ("normalizer", "pre_tokenizer"):
        if rules.get(section) != content.get(section):
            log.warning(
                "%s has the %s %s and tokenizer_config.json makes it %s, which counts, as in"
                " AutoTokenizer; put right the one that is wrong",
                path,
                section,
                json.dumps(content[section]),
                json.dumps(rules[section]),
            )
    _compare_vocabularies(folder, rules["model"])
    tokenizer = _read_by_rules(path, rules, config)
    _compare_settings(path, tokenizer, rules, config)
    return tokenizer


def _read_by_rules(path: Path, rules: Rules, config: PlainMapping) -> Tokenizer:
    """One of ours where it wrote the file, else the library's."""
    released = None
    for tokenizer_class in VOCABULARY_CLASSES:
        if released is None:
            released = tokenizer_class.from_rules(rules)
    if released is None:
        return Tokenizer(path, rules, config)
    num_types = _written_types(released, path, rules)
    if not num_types:
        return Tokenizer(path, rules, config, released.fingerprint)
    # A template of one type gives zeros, whatever else a model is said to read.
    if not reads_token_types(config):
        num_types = "one"
    return released.with_token_types(num_types)


def _compare_settings(path: Path, tokenizer: Tokenizer, rules: Rules, config: PlainMapping) -> None:
    """ValueError where tokenizer_config.json says what tokenizer.json does not do.

    Only what AutoTokenizer would do by tokenizer_config.json counts: a class that takes
    tokenizer.json as it is looks at none of it.
    """
    name = str(config["tokenizer_class"])
    if own_code(config):
        log.warning("%s: %s of auto_map is not run; the file counts", path, own_code(config))
    if is_generic(name):
        return
    _warn_of_rebuilt_rules(path, rules, name)
    first = tokenizer.vocabulary[tokenizer.cls_id]
    last = tokenizer.vocabulary[tokenizer.sep_id]
    does: PlainDict = {
        "cls_token": first,
        "sep_token": last,
        "unk_token": unknown_token(rules["model"]),
    }
    if name in BOS_CLASSES:
        does |= {"bos_token": first, "eos_token": last}
    for key, setting in tokenizer.settings().items():
        if name in FOLLOWED[key]:
            does[key] = setting
    for key, value in does.items():
        given = config.get(key)
        if isinstance(value, str):
            given = content_of(given)
        # A model without an unknown token contradicts nothing.
        if given not in (None, "", value) and value != "":
            raise ValueError(
                f"{path.parent}: {CONFIG_FILE} says {key} {json.dumps(given)}, which {name} of"
                f" transformers follows, and {TOKENIZER_FILE} has {json.dumps(value)}: put right"
                " the one that is wrong"
            )


def _warn_of_rebuilt_rules(path: Path, rules: Rules, name: str) -> None:
    """Warn of a class of transformers 5 that makes other rules of the file's entries."""
    model = rules["model"]
    model_kind = "BPE with </w>" if model.get("end_of_word_suffix") == "</w>" else type_of(model)
    built = BUILT_MODELS.get(name, model_kind)
    if built != model_kind:
        log.warning(
            "%s holds %s, of whose entries %s of transformers 5 builds %s; here the file counts",
            path,
            model_kind,
            name,
            built,
        )
    if _splits_otherwise(name, rules.get("pre_tokenizer") or {}):
        log.warning(
            "%s splits text otherwise than %s of transformers 5, which builds its own"
            " pre_tokenizer; here the file counts",
            path,
            name,
        )


def _splits_otherwise(name: str, splitter: PlainMapping) -> bool:
    """Whether a class of byte-level BPE has another pre-tokeniser than the file."""
    if name in BYTE_BPE_CLASSES:
        return not splits_as_roberta(splitter)
    parts: Any = splitter.get("pretokenizers", ())
    patterns = [part.get("pattern") for part in parts]
    return name == QWEN2_CLASS and patterns != [{"Regex": QWEN2_PATTERN}, None]


def _from_vocab_txt(path: Path, config: PlainMapping) -> Tokenizer:
    """BERT's rules, with what tokenizer_config.json says of case, accents and Chinese characters.

    A folder of Google's, which has none of transformers' files, is read by the rules of the
    released code.
    """
    entries = entries_of(path)
    lowercase = _is_lowercase(path.parent, entries, config)
    is_mpnet = config["tokenizer_class"] == MPNET_CLASS
    tokenizer_class = MpnetTokenizer if is_mpnet else WordPieceTokenizer
    if not any(path.with_name(name).is_file() for name in ("config.json", CONFIG_FILE)):
        return tokenizer_class.from_vocab(path, lowercase)
    plain = None
    if set(tokenizer_class.default_tokens) <= set(entries):
        plain = tokenizer_class.from_vocab(path, lowercase)
    config = _with_default_roles(config, tokenizer_class.default_tokens)
    if is_mpnet and isinstance(config["mask_token"], str):
        config["mask_token"] = {"content": config["mask_token"], "lstrip": True}
    rules = json.loads(wordpiece_rules(_ids_of_file(path, entries, config), lowercase).to_str())
    unknown = content_of(config["unk_token"])
    rules["model"] |= {"unk_token": unknown, "max_input_chars_per_word": 100}  # theirs
    if is_mpnet:
        rules["post_processor"] = ROBERTA_PROCESSOR
    return _rules_of_class(path.parent, rules, config, plain)


def _is_lowercase(folder: Path, entries: Sequence[str], config: PlainMapping) -> bool:
    """Whether text is lower-cased for a vocab.txt; ValueError where nothing says it."""
    lowercase = config.get("do_lower_case")
    if lowercase is not None:
        return bool(lowercase)
    if (folder / "bert_config.json").is_file():
        # Google's folders do not say it; a vocabulary of lower-cased text has no capital letter.
        return all(entry == entry.lower() for entry in entries if not entry.startswith("["))
    raise ValueError(
        f"{folder} does not say whether its vocabulary is lower-cased: put do_lower_case into"
        " tokenizer_config.json"
    )


def _from_vocab_json(path: Path, config: PlainMapping) -> Tokenizer:
    """RoBERTa's rules, with what tokenizer_config.json says of the space before a text."""
    prefix = bool(config.get("add_prefix_space"))
    plain = ByteBpeTokenizer.from_vocab(path.parent, False, prefix)
    config = _with_default_roles(config, plain.default_tokens)
    model = models.BPE(_ids_of_file(path, plain.vocabulary, config), plain.merges)
    rules = json.loads(byte_bpe_rules(model, False, prefix).to_str())
    rules["post_processor"] = {**ROBERTA_PROCESSOR, "add_prefix_space": prefix}
    return _rules_of_class(path.parent, rules, config, plain)


def _rules_of_class(
    folder: Path, rules: Rules, config: PlainMapping, plain: VocabularyTokenizer | None
) -> Tokenizer:
    """The tokenizer that AutoTokenizer makes of a vocabulary and these rules.

    `plain` has the same vocabulary, and may have the same rules.
    """
    path = folder / TOKENIZER_FILE  # which is not there
    complete = resolve_settings(path, rules, config)
    released = None
    if plain is not None and complete["normalizer"] == rules["normalizer"]:
        is_plain = _roles_in(config) == list(plain.default_tokens)
        released = plain.fingerprint if is_plain else None
    return Tokenizer(path, complete, config, released)


def _ids_of_file(path: Path, entries: Sequence[str], config: PlainMapping) -> dict[str, int]:
    """Entry -> id; ValueError names the file where a role is no entry."""
    try:
        return ids_of(entries, _roles_in(config))
    except ValueError as error:
        raise ValueError(f"vocabulary file {path}: {error}") from None


def _roles_in(config: PlainMapping) -> list[str]:
    """The names of the special tokens in a configuration that names them all."""
    return [content_of(config[f"{role}_token"]) for role in ROLES]


def _with_default_roles(config: PlainMapping, tokens: Sequence[str]) -> PlainDict:
    """tokenizer_config.json with the special tokens of the class where it names none."""
    complete = dict(config)
    # RoBERTa's classes have these beside the five.
    if "<s>" in tokens:
        complete = {"bos_token": "<s>", "eos_token": "</s>", **config}
    for role, token in zip(ROLES, tokens, strict=True):
        key = f"{role}_token"
        complete[key] = config.get(key) or token
    return complete


def _written_types(released: VocabularyTokenizer, path: Path, rules: Rules) -> str:
    """With how many token types, one or two, this very tokenizer wrote the file; "": it did not.

    In a file of its own, text never turns into a special token.
    """
    # transformers' tokenizers differ in these at the least, and the comparison of the whole takes a
    # while.
    model = rules["model"]
    longest_word = model.get("max_input_chars_per_word", MAX_WORD_CHARACTERS)
    if longest_word != MAX_WORD_CHARACTERS or model.get("end_of_word_suffix") is not None:
        return ""
    for number in ("two", "one"):
        written = json.loads(released.with_token_types(number).rules())
        # An older version of the library may have spelt it otherwise.
        if written == rules or written == json.loads(open_library(path, rules).to_str()):
            return number
    return ""


def _ids_in(path: Path) -> Mapping[str, int]:
    """Entry -> id of a vocab.json or a vocab.txt."""
    if path.suffix == ".json":
        return json_or_empty(path)
    lines = read_text(path, "one entry a line").removesuffix("\n").split("\n")
    return {line.removesuffix("\r"): number for number, line in enumerate(lines)}


def _compare_vocabularies(folder: Path, model: ModelPart) -> None:
    """ValueError where a vocabulary beside tokenizer.json gives an id to another entry.

    Nobody could tell which of them was trained.
    """
    path = folder / "vocab.json"
    if model.get("type") == "WordPiece":
        path = folder / "vocab.txt"
    if not path.is_file() or not isinstance(model["vocab"], dict):
        return
    beside = _ids_in(path)
    if beside == model["vocab"]:
        return
    names = {index: entry for entry, index in model["vocab"].items()}
    for entry, index in beside.items():
        if names.get(index, entry) != entry:
            raise ValueError(
                f"{path} has {entry!r} where {TOKENIZER_FILE} has {names[index]!r} (id {index});"
                f" AutoTokenizer reads {TOKENIZER_FILE} alone: take {path.name} away if that is"
                f" right, else make {TOKENIZER_FILE} anew"
            )
