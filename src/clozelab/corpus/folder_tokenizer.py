"""A model folder's own tokenizer.json, run by the `tokenizers` library as it is.

Added tokens with their flags, normaliser, pre-tokeniser and template are the file's. So "[MASK]" in
a text is the mask, as `AutoTokenizer` has it. `tokenizer_config.json` says which token plays which
part; where it contradicts tokenizer.json, it counts for what AutoTokenizer takes from it, with a
warning.

Words are remembered (encoding.WordCache) where the rules let each be encoded by itself: where text
is cut at spaces before anything else, and for RoBERTa's rules. Texts of other tokenizers go to the
library whole, three times as slowly.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from clozelab.corpus.encoding import Tokenizer, WordCache, json_or_empty
from clozelab.corpus.lines import SURROGATES

log = logging.getLogger(__name__)

ROLES = ("pad", "unk", "cls", "sep", "mask")  # in the order of Tokenizer.special_tokens
USUAL_NAMES: Mapping[str, tuple[str, str]] = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
MISSING: Mapping[str, str] = {  # attribute -> what cannot be done without it
    "pad_id": "padding token (pad_token), so sequences cannot be padded for pre-training",
    "mask_id": (
        "mask token (mask_token), so no token can be hidden: not for filling, scoring, or masked"
        " pre-training"
    ),
}
# of transformers; they take tokenizer.json as it is
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
PROBES = ("a", "the", "0", ".")  # some text with a token, to see what stands around it
# of tokenizer.json: decide ids
SECTIONS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
KEPT_KEYS = (  # of tokenizer_config.json, in an export
    "additional_special_tokens",
    "clean_up_tokenization_spaces",
    "padding_side",
    "truncation_side",
    "split_special_tokens",
)
LOCAL_NORMALIZERS = frozenset(  # normalise two words as they do each by itself
    (
        "BertNormalizer",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "StripAccents",
        "Strip",
        "Nmt",
        "Precompiled",
    ),
)
SPACE_SPLITTERS = frozenset(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"))
PIECE_SPLITTERS = SPACE_SPLITTERS | {
    "Punctuation",
    "Digits",
    "Split",
    "ByteLevel",
    "UnicodeScripts",
}

_WORD = re.compile("[^ \t\n\r]+")
_SAFE_SPACE = re.compile(r"(?<=[!-~\w])[ \t\n\r]+(?=[!-~\w])")
"""Between two plain characters.

A mark behind a space makes one cluster with it, which a character map may look up.
"""
_BYTE_CHUNK = re.compile(" ?[^ ]+")
# no cut before each space: byte-level BPE looks at runs of them
_ODD_SPACE = r"[^\S ]|\u180e|\s\s|\s$"


class FolderTokenizer(Tokenizer):
    """The tokenizer of a tokenizer.json.

    Args:
        path: the file, for messages.
        rules: its content, `settled`.
        config: tokenizer_config.json's content (`read_config`).
        released: the fingerprint of the tokenizer of tokenizers.py with the same vocabulary and
            rules, if there is one; a corpus or an encoder may have been made with that.

    ValueError for a file that the library cannot read, and for a template that is not one token,
    text, one token.
    """

    smallest = 0
    _end_of_text = ""  # a word has at least one character

    def __init__(
        self,
        path: Path,
        rules: Mapping[str, Any],
        config: Mapping[str, Any],
        released: str | None = None,
    ) -> None:
        self.path = path
        self.released = released
        self._config = dict(config)
        self._json = dict(rules)
        # In this order: each step asks the library, or what the steps before it have set.
        self._library = self._open(self._json)
        self._set_vocabulary()
        self._set_roles()
        self._set_template()
        normalizer = self._library.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str("A") == "a"
        self.kind = _kind(self._json)
        self._set_words()
        self._fingerprint: str | None = None

    def __getattr__(self, name: str) -> Any:
        """A special token that is missing is missed where it is needed."""
        if name in MISSING:
            raise ValueError(f"{self.path.parent}: its tokenizer has no {MISSING[name]}")
        if name == "pair_separators":
            raise ValueError(f"{self.path}: {self._no_pairs}")
        raise AttributeError(name)

    # What it is made of

    def _open(self, rules: Mapping[str, Any]) -> Library:
        library = open_library(self.path, rules)
        library.encode_special_tokens = bool(self._config.get("split_special_tokens"))
        return library

    def _set_vocabulary(self) -> None:
        ids = self._library.get_vocab(with_added_tokens=True)
        if not ids:
            raise ValueError(f"{self.path} has an empty vocabulary")
        self.vocab_size = max(ids.values()) + 1
        names = {index: token for token, index in ids.items()}
        # Ids without a token (some files have holes) get a name that no text has.
        vocabulary = [names.get(index, f"[no token {index}]") for index in range(self.vocab_size)]
        self.vocabulary = tuple(vocabulary)
        self._ids = ids
        added = self._library.get_added_tokens_decoder()
        self._added = {int(index): token for index, token in added.items()}
        self.added_tokens = tuple(token.content for token in self._added.values())
        self.undrawn_ids = ()
        if self._json["model"].get("type") != "WordPiece":  # BERT's may draw every id
            special = [index for index, token in self._added.items() if token.special]
            self.undrawn_ids = tuple(sorted(special))

    def _set_roles(self) -> None:
        """Names of the special tokens, and ids of those that text cannot do without."""
        roles = {role: self._role(role) for role in ROLES}
        # The model's own unknown token counts, not what the configuration calls so.
        roles["unk"] = _unknown_token(self._json["model"]) or roles["unk"]
        if roles["unk"] not in self._ids:
            roles["unk"] = ""
        self.special_tokens = (
            roles["pad"],
            roles["unk"],
            roles["cls"],
            roles["sep"],
            roles["mask"],
        )
        self.unk_id = self._ids.get(roles["unk"], -1)  # no token has the id -1
        if roles["pad"]:
            self.pad_id = self._ids[roles["pad"]]
        if roles["mask"]:
            self.mask_id = self._ids[roles["mask"]]

    def _role(self, role: str) -> str:
        """The token of a role: as tokenizer_config.json says, else by its usual name.

        It is "" where there is none.
        """
        name = _content(self._config.get(f"{role}_token"))
        if name:
            if name in self._ids:
                return name
            return ""
        for usual in USUAL_NAMES[role]:
            if usual in self.added_tokens:
                return usual
        return ""

    def _set_template(self) -> None:
        """What stands around a text and between the texts of a pair, by the library's example."""
        probe = self._probe()
        if probe is None:
            raise ValueError(
                f"{self.path} gives no tokens for {', '.join(PROBES)}: it is not one for text",
            )
        single = self._library.encode(probe)
        before, _, behind = _special_tokens_around(single, 1)
        if len(before) != 1 or len(behind) != 1:
            example = " ".join(single.tokens)
            raise ValueError(
                f"{self.path}: its template makes {example!r} of {probe!r}; an encoder here needs"
                " one token before a text and one behind it, as in '[CLS] a [SEP]'"
                " (post_processor)"
            )
        self.cls_id = before[0]
        self.sep_id = behind[0]
        self.can_have_token_types = self._set_pair_template(probe)
        # an encoder may be trained without types though its template has them
        self.has_token_types = self.can_have_token_types and reads_token_types(self._config)

    def _probe(self) -> str | None:
        """A text with a token."""
        for text in PROBES:
            if self._library.encode(text, add_special_tokens=False).ids:
                return text
        return None

    def _set_pair_template(self, probe: str) -> bool:
        """Whether the second text of a pair has token type 1."""
        pair = self._library.encode(probe, probe)
        before, between, behind = _special_tokens_around(pair, 2)
        types = np.array(pair.type_ids)
        # from the second text's first token to the end
        is_second = np.cumsum([owner == 1 for owner in pair.sequence_ids]) > 0
        has_types = bool(types.any())
        is_usual = before == [self.cls_id] and behind == [self.sep_id] and bool(between)
        is_usual = is_usual and set(between) == {self.sep_id}
        if is_usual and np.array_equal(types, is_second * int(has_types)):
            self.pair_separators = len(between)
            return has_types
        example = " ".join(pair.tokens)
        numbers = " ".join(map(str, pair.type_ids))
        self._no_pairs = (
            f"its template makes {example!r} of a pair, with token types {numbers}; pairs can be"
            " read as '[CLS] a [SEP] b [SEP]' alone, with type 1 or 0 from b on"
        )
        return False

    def _set_words(self) -> None:
        """How a text is cut into what can be encoded by itself, if it can be."""
        self._cut, self._whole = _word_splitter(self._json, self.added_tokens)
        word_rules = cached_rules = self._json
        if self.kind == "byte_bpe":
            # Words of running text have their space; what is cut out of a text brings its own.
            word_rules = _with_prefix_space(self._json, True)
            cached_rules = _with_prefix_space(self._json, False)
        self._spaced = cached_rules != self._json
        self._word_cache = WordCache(self._open(word_rules), self._end_of_text)
        self._cache = self._word_cache
        if cached_rules != word_rules:
            self._cache = WordCache(self._open(cached_rules), self._end_of_text)
        if self._cut is None:
            log.info("%s: texts are encoded whole, without a cache over words", self.path)

    # Text to ids

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        cleaned = [SURROGATES.sub("\ufffd", word) for word in words]
        words_and_ends: list[str] = []
        for word in cleaned:
            if word:
                words_and_ends.append(word)
            words_and_ends.append(self._end_of_text)
        return self._word_cache.encode(words_and_ends)

    def encode_masked(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self.encode_batch(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        encoded = super().encode_with_offsets(texts)
        pairs = []
        for text, (ids, offsets) in zip(texts, encoded, strict=True):
            pairs.append((ids, _without_spaces(text, offsets)))
        return pairs

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of one batch: by words where that is possible."""
        texts = [SURROGATES.sub("\ufffd", text) for text in texts]
        plain = [index for index, text in enumerate(texts) if self._is_plain(text)]
        plain_ids, plain_lengths = self._cache.encode(
            self._words([texts[index] for index in plain])
        )
        if len(plain) == len(texts):
            return plain_ids, plain_lengths
        # The others go to the library as they are, and each text back to its place.
        pieces: list[np.ndarray] = [np.empty(0, dtype=np.int32)] * len(texts)
        ids_of_plain = np.split(plain_ids, np.cumsum(plain_lengths)[:-1])
        for index, ids in zip(plain, ids_of_plain, strict=False):
            pieces[index] = ids
        whole = sorted(set(range(len(texts))).difference(plain))
        encodings = self._library.encode_batch_fast(
            [texts[index] for index in whole],
            add_special_tokens=False,
        )
        for index, encoding in zip(whole, encodings, strict=True):
            pieces[index] = np.array(encoding.ids, dtype=np.int32)
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], dtype=np.int64)

    def _is_plain(self, text: str) -> bool:
        """Whether a text can be cut."""
        if self._cut is None:
            return False
        return self._whole is None or self._whole.search(text) is None

    def _words(self, texts: Sequence[str]) -> list[str]:
        assert self._cut is not None or not texts
        words: list[str] = []
        for text in texts:
            if self._spaced and text and text[0] != " ":
                text = f" {text}"
            if self._cut is not None:
                words += self._cut(text)
            words.append(self._end_of_text)
        return words

    # What it says of itself

    @property
    def mask_token(self) -> str:
        if not self.special_tokens[-1]:
            raise ValueError(f"{self.path.parent}: its tokenizer has no {MISSING['mask_id']}")
        return self.special_tokens[-1]

    def has_mask(self, text: str) -> bool:
        mask = self.special_tokens[-1]
        return bool(mask) and self.mask_id in self.encode_batch([text])[0]

    def shown(self, index: int) -> str:
        # The library shows an added token as the normaliser leaves it.
        if index in self._added:
            return self.vocabulary[index]
        return super().shown(index)

    def continues(self) -> NDArray[np.bool_] | None:
        """As every tokenizer's; an added token is a word."""
        model = self._json["model"]
        if self.kind == "byte_bpe":
            goes_on = np.array([token[:1] != "Ġ" for token in self.vocabulary])
        elif self.kind == "metaspace":
            goes_on = np.array([token[:1] != "▁" for token in self.vocabulary])
        elif prefix := model.get("continuing_subword_prefix"):
            goes_on = np.array([token.startswith(prefix) for token in self.vocabulary])
        elif model.get("type") == "WordLevel":
            goes_on = np.zeros(self.vocab_size, dtype=np.bool_)
        else:
            return None
        goes_on[list(self._added)] = False
        return goes_on

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            self._fingerprint = super().fingerprint
        return self._fingerprint

    def files(self) -> dict[str, bytes]:
        """tokenizer.json as it is, and a tokenizer_config.json for `AutoTokenizer`.

        By the latter AutoTokenizer takes the former as it is.
        """
        return {
            "tokenizer.json": _json_bytes(self._json),
            "tokenizer_config.json": _json_bytes(self._exported_config()),
        }

    def _exported_config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 512,
        }
        for role, token in zip(ROLES, self.special_tokens, strict=True):
            if token:
                config[f"{role}_token"] = token
        for key in ("bos_token", "eos_token"):
            name = _content(self._config.get(key))
            if name in self._ids:
                config[key] = name
        config |= {key: self._config[key] for key in KEPT_KEYS if key in self._config}
        types = []
        if self.has_token_types:
            types = ["token_type_ids"]
        config["model_input_names"] = ["input_ids", *types, "attention_mask"]
        # Other programs and classes ask for these.
        normalizer = self._json.get("normalizer") or {}
        if normalizer.get("type") == "BertNormalizer":
            config |= {key: normalizer[rule] for key, rule in BERT_RULES.items()}
        return config

    def _identity(self) -> list[Any]:
        sections = {name: self._json.get(name) for name in SECTIONS}
        identity = ["tokenizer.json", json.dumps(sections, sort_keys=True), self.special_tokens]
        # Only where it is set: older fingerprints knew nothing of it.
        if self._library.encode_special_tokens:
            identity.append("split_special_tokens")
        return identity

    def _rules(self) -> Library:
        return self._library


# tokenizer.json and what stands beside it


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


BERT_RULES = {  # tokenizer_config.json -> the same in tokenizer.json's BertNormalizer
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


ADDED_TOKENS = "added_tokens.json"


def read_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the content of older files beside it.

    Older versions of transformers wrote these.
    """
    config = json_or_empty(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= json_or_empty(folder / "special_tokens_map.json")
        config[ADDED_TOKENS] = json_or_empty(folder / ADDED_TOKENS)
    return config


def reads_token_types(config: Mapping[str, Any]) -> bool:
    """Whether AutoTokenizer gives token types by a tokenizer_config.json.

    A class that takes tokenizer.json as it is does so only where model_input_names says it.
    """
    names = config.get("model_input_names")
    if names:
        return "token_type_ids" in names
    return not _is_generic(config)


def _is_generic(config: Mapping[str, Any]) -> bool:
    return str(config.get("tokenizer_class", "")).startswith(GENERIC_CLASSES)


def settled(path: Path, rules: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """tokenizer.json's content with what AutoTokenizer takes from tokenizer_config.json instead.

    These are: rules of a BertNormalizer, a ByteLevel's add_prefix_space, further added tokens and
    their flags, and a template where tokenizer.json has none. A class of transformers that takes
    tokenizer.json as it is has only the added tokens.
    """
    _check(path, rules)
    settled = {**rules}
    if not _is_generic(config):
        _settle_normalizer(path, settled, config)
        _settle_prefix_space(path, settled, config)
        _settle_template(settled, config)
    return _with_added_tokens(path, settled, config)


def _check(path: Path, rules: Mapping[str, Any]) -> None:
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


def _settle_normalizer(path: Path, settled: dict[str, Any], config: Mapping[str, Any]) -> None:
    normalizer = settled.get("normalizer") or {}
    if normalizer.get("type") != "BertNormalizer":
        return
    normalizer = {**dict.fromkeys(BERT_RULES.values()), **normalizer}
    changed = {**normalizer}
    for key, rule in BERT_RULES.items():
        if key in config:
            changed[rule] = config[key]
    # null strips accents where text is lower-cased
    effect_before = {**normalizer, "strip_accents": _strips(normalizer)}
    effect_after = {**changed, "strip_accents": _strips(changed)}
    for key, rule in BERT_RULES.items():
        if effect_before[rule] != effect_after[rule]:
            log.warning(
                "%s says %s=%s and tokenizer_config.json %s=%s, which counts, as in AutoTokenizer;"
                " put right the one that is wrong",
                path,
                rule,
                json.dumps(normalizer[rule]),
                key,
                json.dumps(changed[rule]),
            )
    if effect_before != effect_after:
        settled["normalizer"] = changed


def _strips(normalizer: Mapping[str, Any]) -> bool:
    strips = normalizer.get("strip_accents")
    if strips is None:
        strips = normalizer.get("lowercase")
    return bool(strips)


def _settle_prefix_space(path: Path, settled: dict[str, Any], config: Mapping[str, Any]) -> None:
    splitter = settled.get("pre_tokenizer") or {}
    if splitter.get("type") != "ByteLevel" or config.get("add_prefix_space") is None:
        return
    value_in_file = splitter.get("add_prefix_space", True)
    value = bool(config["add_prefix_space"])
    if value == value_in_file:
        return
    log.warning(
        "%s says add_prefix_space=%s and tokenizer_config.json %s, which counts, as in"
        " AutoTokenizer; put right the one that is wrong",
        path,
        json.dumps(value_in_file),
        json.dumps(value),
    )
    settled["pre_tokenizer"] = {**splitter, "add_prefix_space": value}
    processor = settled.get("post_processor") or {}
    if "add_prefix_space" in processor:
        settled["post_processor"] = {**processor, "add_prefix_space": value}


def _settle_template(settled: dict[str, Any], config: Mapping[str, Any]) -> None:
    """BERT's or RoBERTa's template where the file has none."""
    processor = settled.get("post_processor") or {}
    if processor.get("type") not in (None, "ByteLevel"):
        return
    ids = _model_ids(settled["model"])
    for token in settled.get("added_tokens", ()):
        ids[token["content"]] = token["id"]
    cls = _template_token("cls", ids, config)
    sep = _template_token("sep", ids, config)
    if cls not in ids or sep not in ids:
        return
    if processor:
        roberta = {**processor, "sep": [sep, ids[sep]], "cls": [cls, ids[cls]]}
        roberta["type"] = "RobertaProcessing"
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


def _template_token(role: str, ids: Mapping[str, int], config: Mapping[str, Any]) -> str:
    """The token of a role by tokenizer_config.json, else the usual one that there is."""
    name = _content(config.get(f"{role}_token"))
    if name:
        return name
    return next((usual for usual in USUAL_NAMES[role] if usual in ids), "")


def _special(name: str, type_id: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": type_id}}


def _model_ids(model: Mapping[str, Any]) -> dict[str, int]:
    """A model's entries and their ids; Unigram lists entries with their scores."""
    vocab = model["vocab"]
    if isinstance(vocab, list):
        return {entry[0]: index for index, entry in enumerate(vocab)}
    return dict(vocab)


def _with_added_tokens(
    path: Path,
    settled: dict[str, Any],
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """The rules with the tokens and flags that AutoTokenizer adds by tokenizer_config.json."""
    library = open_library(path, settled)
    # A token with other flags counts as another one.
    present = {repr(token) for token in library.get_added_tokens_decoder().values()}
    names = {token.content for token in library.get_added_tokens_decoder().values()}
    vocabulary = library.get_vocab(with_added_tokens=True)
    to_add: list[AddedToken] = []

    def add(token: AddedToken) -> None:
        to_add.append(token)
        names.add(token.content)

    by_id = config.get("added_tokens_decoder") or {}
    for _, flags in sorted(by_id.items(), key=lambda item: int(item[0])):
        token = _added_token(flags)
        if repr(token) not in present:
            add(token)
    # Special tokens by their part; one that the vocabulary lacks would be an id without an
    # embedding.
    for role in (*ROLES, "bos", "eos"):
        value = config.get(f"{role}_token")
        if _content(value) in vocabulary and _content(value) not in names:
            add(_added_token(value, special=True))
    extra = _extra_tokens(config)
    older = config.get(ADDED_TOKENS) or {}
    for content in sorted(older, key=older.__getitem__):
        if content not in names:
            is_special = content in map(_content, extra)
            add(AddedToken(content, normalized=not is_special, special=is_special))
    for value in extra:
        if _content(value) not in names:
            add(_added_token(value, special=True))
    if not to_add:
        return settled
    library.add_tokens(to_add)
    return {**settled, "added_tokens": json.loads(library.to_str())["added_tokens"]}


def _extra_tokens(config: Mapping[str, Any]) -> list[Any]:
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    if isinstance(extra, dict):
        return list(extra.values())
    return list(extra)


def _added_token(value: Any, special: bool | None = None) -> AddedToken:
    """From a name, or the node of a JSON file."""
    if not isinstance(value, dict):
        return AddedToken(value, special=True)
    flags = {key: flag for key, flag in value.items() if key not in ("__type", "id", "content")}
    if special is not None:
        flags["special"] = special
    return AddedToken(value["content"], **flags)


def _content(value: Any) -> str:
    """The text of a special token, given as such or as a node; "" where none is given."""
    if isinstance(value, dict):
        value = value.get("content")
    if isinstance(value, str):
        return value
    return ""


def open_library(path: Path, rules: Mapping[str, Any]) -> Library:
    """The library's tokenizer, which neither cuts nor pads."""
    try:
        library = Library.from_str(json.dumps(rules))
    except Exception as error:  # the library's own is a bare one
        raise ValueError(f"{path} cannot be read by the tokenizers library: {error}") from None
    library.no_truncation()
    library.no_padding()
    return library


# What can be said of the rules


def _parts(node: Mapping[str, Any] | None, inner: str) -> list[Mapping[str, Any]]:
    """The parts of a normaliser or pre-tokeniser, those of a Sequence one by one."""
    if not node:
        return []
    if node.get("type") != "Sequence":
        return [node]
    parts: list[Mapping[str, Any]] = []
    for part in node[inner]:
        parts += _parts(part, inner)
    return parts


def _kind(rules: Mapping[str, Any]) -> str:
    """How an entry says that it begins a word, as Tokenizer.kind."""
    model = rules["model"]
    types = {part["type"] for part in _parts(rules.get("pre_tokenizer"), "pretokenizers")}
    if model.get("type") == "WordPiece" and model.get("continuing_subword_prefix") == "##":
        return "wordpiece"
    if "ByteLevel" in types:
        return "byte_bpe"
    if "Metaspace" in types:
        return "metaspace"
    return "other"


def _unknown_token(model: Mapping[str, Any]) -> str:
    if model.get("type") == "Unigram":
        index = model.get("unk_id")
        if index is None:
            return ""
        return model["vocab"][index][0]
    return model.get("unk_token") or ""


def _word_splitter(
    rules: Mapping[str, Any], added: Sequence[str]
) -> tuple[Callable[[str], list[str]] | None, re.Pattern[str] | None]:
    """How a text is cut into what can be encoded by itself (None: it cannot be).

    The pattern is what no such text has.
    """
    normalizers = _parts(rules.get("normalizer"), "normalizers")
    splitters = _parts(rules.get("pre_tokenizer"), "pretokenizers")
    if _is_local(normalizers) and _cuts_at_spaces(splitters) and not any(map(_has_space, added)):
        if any(part["type"] == "Precompiled" for part in normalizers):
            return _safe_pieces, None
        return _WORD.findall, None
    if not _is_robertas(rules, normalizers, splitters):
        return None, None
    return _BYTE_CHUNK.findall, re.compile("|".join([_ODD_SPACE, *map(re.escape, added)]))


def _safe_pieces(text: str) -> list[str]:
    return [piece for piece in _SAFE_SPACE.split(text) if piece]


def _is_local(normalizers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether words can be normalised one by one."""
    for part in normalizers:
        if part["type"] == "Replace":
            pattern = part["pattern"].get("String")
            if pattern is None or _has_space(pattern):
                return False
        elif part["type"] not in LOCAL_NORMALIZERS:
            return False
    return True


def _cuts_at_spaces(splitters: Sequence[Mapping[str, Any]]) -> bool:
    """Whether text is cut at spaces first, and what comes then looks at each piece by itself."""
    if not splitters or splitters[0]["type"] not in SPACE_SPLITTERS:
        return False
    for part in splitters[1:]:
        is_always = part["type"] == "Metaspace" and part.get("prepend_scheme", "always") == "always"
        if not is_always and part["type"] not in PIECE_SPLITTERS:
            return False
    return True


def _is_robertas(
    rules: Mapping[str, Any],
    normalizers: Sequence[Mapping[str, Any]],
    splitters: Sequence[Mapping[str, Any]],
) -> bool:
    """Whether a word can be encoded with the space before it, in a text without added tokens."""
    if rules["model"].get("type") != "BPE":
        return False
    if [part["type"] for part in splitters] != ["ByteLevel"]:
        return False
    if not splitters[0].get("use_regex", True):
        return False
    if normalizers and any(token["normalized"] for token in rules.get("added_tokens", ())):
        return False  # they are looked for in normalised text
    return all(part["type"] == "Lowercase" for part in normalizers)


def _has_space(text: str) -> bool:
    return any(character.isspace() for character in text)


def _with_prefix_space(rules: Mapping[str, Any], value: bool) -> dict[str, Any]:
    """The same rules with the first ByteLevel's add_prefix_space set."""
    splitter = rules["pre_tokenizer"]
    if splitter["type"] == "ByteLevel":
        return {**rules, "pre_tokenizer": {**splitter, "add_prefix_space": value}}
    return dict(rules)


def _special_tokens_around(encoding: Any, number: int) -> tuple[list[int], list[int], list[int]]:
    """Special tokens before the first text, between the texts, and behind the last of `number`."""
    owners = encoding.sequence_ids
    first = [index for index, owner in enumerate(owners) if owner == 0]
    last = [index for index, owner in enumerate(owners) if owner == number - 1]
    between = []
    if number > 1:
        between = encoding.ids[first[-1] + 1 : last[0]]
    return encoding.ids[: first[0]], between, encoding.ids[last[-1] + 1 :]


def _without_spaces(text: str, offsets: np.ndarray) -> np.ndarray:
    """Character ranges without the spaces at their ends."""
    trimmed = offsets.copy()
    for number, (start, end) in enumerate(offsets.tolist()):
        piece = text[start:end]
        if piece and (piece[0].isspace() or piece[-1].isspace()):
            start += len(piece) - len(piece.lstrip())
            end -= len(piece) - len(piece.rstrip())
            trimmed[number] = start, max(start, end)
    return trimmed
