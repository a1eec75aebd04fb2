"""Text to ids: a tokenizer.json, which the `tokenizers` library runs.

Unusual: encoding asks the library for words that are not in a cache only (words.py says where a
text may be cut), so the result is the library's, at six times its speed. Texts of tokenizers with
other rules go to the library whole.

A folder's own tokenizer.json runs as it is: "[MASK]" in a text is the mask, as AutoTokenizer has
it. In the tokenizers of tokenizers.py text never turns into a special token.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from tokenizers import Tokenizer as Library
from tokenizers.processors import TemplateProcessing

from clozelab.corpus import tokenizer_files as files
from clozelab.corpus.tokenizer_classes import GENERIC_FAST
from clozelab.corpus.tokenizer_json import Rules
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.corpus.words import (
    BATCH_CHARACTERS,
    WordCache,
    WordRules,
    arrow_numbers,
    batches,
    with_space_before,
    word_rules,
)
from clozelab.readers.lines import without_surrogates
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    import pyarrow

# below, asking the library for the whole texts takes no longer than Arrow takes to be imported
MIN_CUT_CHARACTERS = 50_000
TEXTS_PER_CALL = 1024
SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")  # half of a character, as bytes
# a vocabulary made for a text leaves far less than 1 % unknown
MAX_UNKNOWN_SHARE = 0.5
WARNED_UNKNOWN_SHARE = 0.01
# of tokenizer.json: decide ids
SECTIONS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
KEPT_KEYS = (  # of tokenizer_config.json, in an export
    "additional_special_tokens",
    "clean_up_tokenization_spaces",
    "padding_side",
    "truncation_side",
    "split_special_tokens",
)
MAX_LENGTH = 512  # of a text, in an export
# what a model with token types reads
TYPED_INPUTS = ("input_ids", "token_type_ids", "attention_mask")
CLS_TYPE = 2  # of a template that ends with [CLS]
PROBES = ("a", "the", "0", ".")  # some text with a token, to see what stands around it
MISSING: Mapping[str, str] = {  # attribute -> what cannot be done without it
    "pad_id": "padding token (pad_token), so sequences cannot be padded for pre-training",
    "mask_id": (
        "mask token (mask_token), so no token can be hidden: not for filling, scoring, or masked"
        " pre-training"
    ),
}
log = logging.getLogger(__name__)


def refuse_unknown(text: str, unknown: float, max_unknown_share: float) -> None:
    """Warn of a text whose share `unknown` of [UNK] is not small.

    ValueError where it is above the limit.
    """
    message = (
        f"{unknown:.1%} of the tokens of {text} are [UNK]: does the vocabulary fit its language and"
        " case, and has it spaces between its words?"
    )
    if unknown > max_unknown_share:
        raise ValueError(
            f"{message} Take text or a vocabulary that fit each other (more than"
            f" max_unknown_share={max_unknown_share:g} is refused; a larger share lets it pass)"
        )
    if unknown > WARNED_UNKNOWN_SHARE:
        log.warning(message)


class Tokenizer:
    """A tokenizer.json, and the roles of its special tokens.

    Ids never include special tokens unless the caller adds them.

    Args:
        path: the file, for messages.
        rules: its content (tokenizer_files.py: `resolve_settings`).
        config: tokenizer_config.json's content (`read_config`).
        released: the fingerprint of the tokenizer of tokenizers.py with the same vocabulary and
            rules, if there is one; a corpus or an encoder may have been made with that.
        finds_added: whether text is searched for added tokens before anything else.

    ValueError for a file that the library cannot read, and for a template that is not one token,
    text, one token; nor XLNet's, text and two tokens, of which the last stands first here.
    """

    # between the texts of a pair: [CLS] A [SEP] B [SEP], or <s> A </s></s> B </s>
    pair_separators: int
    no_pairs = ""  # why pairs cannot be read; then there are no `pair_separators`
    # Found in each text, as bytes, that `_cleaned` changes, and perhaps in others. Each begins with
    # a plain byte: `re` finds those fast.
    _unclean: tuple[re.Pattern[bytes], ...] = (SURROGATE,)
    cls_is_last: bool  # in its template, as in A [SEP] [CLS]
    trims_spaces = True  # at the ends of character ranges

    def __init__(
        self,
        path: Path,
        rules: Rules,
        config: PlainMapping,
        released: str | None = None,
        *,
        finds_added: bool = True,
    ) -> None:
        self.path = path
        self.released = released
        self._config = dict(config)
        self._rules = rules.copy()
        if not finds_added:
            self._rules["added_tokens"] = []
        # In this order: each step asks the library, or what the steps before it have set.
        self._library = self._open(self._rules)
        self._set_vocabulary()
        self._set_roles()
        self._set_template()
        self.lowercase = self._normalized("A") == "a"
        # wordpiece, byte_bpe, metaspace or other
        self.kind = files.kind_of(self._rules)
        self._word_rules = word_rules(self._rules)
        # With byte-level BPE words of running text have a space before them, and what is cut out of
        # a text brings its own.
        self._spaced = False
        self._caches: dict[bool, WordCache] = {}
        bare_words = None
        if self._word_rules is not None:
            bare_words = self._word_rules.bare
        cache = WordCache(self._library, bare_words)
        for value in (True, False):
            rules = files.with_prefix_space(self._rules, value)
            self._caches[value] = cache
            if rules != self._rules:
                self._caches[value] = WordCache(self._open(rules), bare_words)
                self._spaced |= not value

    def __getattr__(self, name: str) -> object:
        """A special token that is missing is missed where it is needed."""
        if name in MISSING:
            raise ValueError(f"{self.path.parent}: its tokenizer has no {MISSING[name]}")
        if name == "pair_separators":
            raise ValueError(self.no_pairs)
        raise AttributeError(name)

    # What it is made of

    def _open(self, rules: Rules) -> Library:
        library = files.open_library(self.path, rules)
        library.encode_special_tokens = bool(self._config.get("split_special_tokens"))
        return library

    def _set_vocabulary(self) -> None:
        self._ids = self._library.get_vocab(with_added_tokens=True)
        if not self._ids:
            raise ValueError(f"{self.path} has an empty vocabulary")
        self.vocab_size = max(self._ids.values()) + 1
        names = {index: token for token, index in self._ids.items()}
        # Ids without a token (some files have holes) get a name that no text has.
        vocabulary = [names.get(index, f"[no token {index}]") for index in range(self.vocab_size)]
        self.vocabulary = tuple(vocabulary)
        self._added = self._library.get_added_tokens_decoder()
        # what text is searched for before anything else
        self.added_tokens = tuple(token.content for token in self._added.values())
        # ids that masking never draws as a random token, ascending; BERT's may draw every id
        self.undrawn_ids: tuple[int, ...] = ()
        if files.type_of(self._rules["model"]) != "WordPiece":
            special = [index for index, token in self._added.items() if token.special]
            self.undrawn_ids = tuple(sorted(special))

    def _set_roles(self) -> None:
        """Names of the special tokens ("": there is none), and ids of those that may be missing."""
        self.special_tokens = tuple(map(self._token_of, files.ROLES))
        pad, unknown, _, _, mask = self.special_tokens
        self.unk_id = self._ids.get(unknown, -1)  # no token has the id -1
        if pad:
            self.pad_id = self._ids[pad]
        if mask:
            self.mask_id = self._ids[mask]

    def _token_of(self, role: str) -> str:
        """The token of a role: as tokenizer_config.json says, else by its usual name."""
        name = files.token_of_role(role, self._config, self.added_tokens)
        if role == "unk":
            # The model's own unknown token counts, not what the configuration calls so.
            name = files.unknown_token(self._rules["model"]) or name
        if name not in self._ids:
            return ""
        return name

    def _set_template(self) -> None:
        """What stands around a text and between the texts of a pair, by the library's example."""
        encode = self._library.encode
        probe = next((text for text in PROBES if encode(text, add_special_tokens=False).ids), None)
        if probe is None:
            raise ValueError(
                f"{self.path} gives no tokens for {', '.join(PROBES)}: it is not one for text",
            )
        single = encode(probe)
        before, _, after = _special_tokens_around(single, 1)
        # XLNet's: a [SEP] [CLS], of which [CLS] has type 2.
        self.cls_is_last = not before and single.type_ids[-1] == CLS_TYPE
        if self.cls_is_last:
            before = [after.pop()]
        if len(before) != 1 or len(after) != 1:
            example = " ".join(single.tokens)
            raise ValueError(
                f"{self.path}: its template makes {example!r} of {probe!r}; an encoder here needs"
                " one token before a text and one behind it, as in '[CLS] a [SEP]'"
                " (post_processor)"
            )
        self.cls_id = before[0]
        self.sep_id = after[0]
        # whether the rules know a token type 1 at all
        self.can_have_token_types = self._set_pair_template(probe)
        # an encoder may be trained without types though its template has them
        self.has_token_types = self.can_have_token_types and files.reads_token_types(self._config)
        self._require_types(self.has_token_types)
        names = self._config.get("model_input_names")
        if self.cls_is_last and not names:
            log.warning(
                "%s gives token types 0, 1 and 2, as its template says; transformers 5 leaves them"
                " out unless model_input_names in tokenizer_config.json has them",
                self.path,
            )

    def _require_types(self, has_types: bool) -> None:
        """ValueError where [CLS] is told by its type, and there are to be no types."""
        if self.cls_is_last and not has_types:
            raise ValueError(
                f"{self.path}: a template that ends with [CLS] needs token types 0, 1 and 2: leave"
                " token_types=one out, and have token_type_ids among the model_input_names of"
                " tokenizer_config.json"
            )

    def _set_pair_template(self, probe: str) -> bool:
        """Whether the second text of a pair has token type 1."""
        pair = self._library.encode(probe, probe)
        before, between, after = _special_tokens_around(pair, 2)
        types = np.array(pair.type_ids)
        # from the second text's first token to the end
        is_second = np.cumsum([owner == 1 for owner in pair.sequence_ids]) > 0
        if self.cls_is_last:
            before.append(after.pop())
            types[-1] -= 1
        has_types = bool(types.any())
        is_usual = before == [self.cls_id] and after == [self.sep_id] and bool(between)
        is_usual = is_usual and set(between) == {self.sep_id}
        if is_usual and np.array_equal(types, is_second * int(has_types)):
            self.pair_separators = len(between)
            return has_types
        example = " ".join(pair.tokens)
        numbers = " ".join(map(str, pair.type_ids))
        self.no_pairs = (
            f"{self.path}: its template makes {example!r} of a pair, with token types {numbers};"
            " pairs can be read as '[CLS] a [SEP] b [SEP]' alone, with type 1 or 0 from b on"
        )
        return False

    def with_token_types(self, number: str) -> Self:
        """The same for pairs of `one` token type, or of `two` where its kind has them.

        `auto` leaves it as it is.
        """
        self._require_types(number != "one")
        tokenizer = copy(self)
        if number != "auto":
            tokenizer.has_token_types = number == "two" and self.can_have_token_types
        return tokenizer

    def ending_with_cls(self) -> Tokenizer:
        """The same with XLNet's template: A [SEP] B [SEP] [CLS], of types 0, 1 and 2."""
        if self.cls_is_last:
            return self
        contents = self.files()
        rules = json.loads(contents[files.TOKENIZER_FILE])
        config = json.loads(contents[files.CONFIG_FILE])
        cls = self.vocabulary[self.cls_id]
        sep = self.vocabulary[self.sep_id]
        library = self._open(rules)
        library.post_processor = TemplateProcessing(
            single=f"$A:0 {sep}:0 {cls}:{CLS_TYPE}",
            pair=f"$A:0 {sep}:0 $B:1 {sep}:1 {cls}:{CLS_TYPE}",
            special_tokens=[(cls, self.cls_id), (sep, self.sep_id)],
        )
        rules = json.loads(library.to_str())
        config["model_input_names"] = ["token_type_ids"]
        return Tokenizer(self.path, rules, config, self.fingerprint)

    # Text to ids

    def _cleaned(self, texts: Sequence[str]) -> list[str]:
        """The texts as the library is to have them; each keeps its number of characters.

        It refuses halves of characters.
        """
        return without_surrogates(texts)

    def _cleaned_utf8(self, texts: Utf8Texts) -> Utf8Texts:
        """As `_cleaned`; strings are made of the few texts that may change."""
        is_unclean = np.zeros(len(texts), dtype=bool)
        for pattern in self._unclean:
            is_unclean |= texts.hold(pattern)
        if not is_unclean.any():
            return texts
        return texts.replaced(is_unclean, self._cleaned(texts.chosen(is_unclean).strings()))

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after the other, int32 [T], and of each text how many, int64 [N]."""
        return _joined(self._encode(self._cleaned(batch)) for batch in batches(texts))

    def encode_utf8(self, texts: Utf8Texts) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of many texts, which most tokenizers need no strings of."""
        rules = self._word_rules
        # Sizes are bytes here. Most characters are one byte, some are up to four.
        if rules is None or len(texts.data) < MIN_CUT_CHARACTERS:
            return self.encode_flat(texts.strings())
        parts = self._cleaned_utf8(texts).batches(2 * BATCH_CHARACTERS)
        return _joined(self._encode_array(rules, part.arrow()) for part in parts)

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of one batch: by words where that is possible."""
        rules = self._word_rules
        if rules is None or sum(map(len, texts)) < MIN_CUT_CHARACTERS:
            return self._encode_whole(texts)
        return self._encode_array(rules, Utf8Texts.of(texts).arrow())

    def _encode_array(
        self, rules: WordRules, texts: pyarrow.LargeStringArray
    ) -> tuple[np.ndarray, np.ndarray]:
        can_cut = rules.can_cut(texts)
        if can_cut.all():
            return self._encode_by_words(rules, texts)
        # The others go to the library as they are, and each text back to its place.
        cut = texts.take(arrow_numbers(np.flatnonzero(can_cut)))
        uncut = texts.take(arrow_numbers(np.flatnonzero(~can_cut)))
        encoded = {
            True: self._encode_by_words(rules, cut),
            False: self._encode_whole(uncut.to_pylist()),
        }
        lengths = np.empty(len(texts), dtype=np.int64)
        ids = np.empty(sum(len(part) for part, _ in encoded.values()), dtype=np.int32)
        for value, (_, part_lengths) in encoded.items():
            lengths[can_cut == value] = part_lengths
        is_of_words = np.repeat(can_cut, lengths)
        for value, (part_ids, _) in encoded.items():
            ids[is_of_words == value] = part_ids
        return ids, lengths

    def _encode_by_words(
        self, rules: WordRules, texts: pyarrow.LargeStringArray
    ) -> tuple[np.ndarray, np.ndarray]:
        if self._spaced:
            texts = with_space_before(texts)
        words, num_words = rules.cut(texts)
        ids, ends = self._caches[False].encode_array(words)
        # Tokens before each word, so before each text's first one.
        return ids, np.diff(ends[np.append(0, np.cumsum(num_words))])

    def _encode_whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, by the library alone."""
        pieces = [np.empty(0, dtype=np.int32)]
        for start in range(0, len(texts), TEXTS_PER_CALL):
            encodings = self._library.encode_batch_fast(
                texts[start : start + TEXTS_PER_CALL], add_special_tokens=False
            )
            pieces += [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]
        lengths = np.array([len(piece) for piece in pieces[1:]], dtype=np.int64)
        return np.concatenate(pieces), lengths

    def encode_words(
        self, words: Sequence[str], *, inside: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of the words of running text, each by itself.

        `inside`: they go on with a word instead.
        """
        cache = self._inner_cache if inside else self._caches[True]
        return cache.encode(self._cleaned(words))

    @cached_property
    def _inner_cache(self) -> WordCache:
        return WordCache(self._open(files.inside_words(self._rules)))

    def split(self, word: str) -> list[str]:
        """What the model reads of a word of running text: ["word"], of byte-level BPE ["Ġword"]."""
        return self._pre_tokenized(self._normalized(f" {word}"))

    def _normalized(self, text: str) -> str:
        if self._library.normalizer is None:
            return text
        return self._library.normalizer.normalize_str(text)

    def _pre_tokenized(self, text: str) -> list[str]:
        if self._library.pre_tokenizer is None:
            return [text]
        return [piece for piece, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [n]."""
        ids, lengths = self.encode_flat(texts)
        return np.split(ids, np.cumsum(lengths)[:-1])[: len(texts)]

    def encode_masked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode_batch`, of texts in which the mask token is the mask."""
        return self.encode_batch(texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids int32 [n] of each text, and their character ranges in it, int64 [n, 2].

        A range is (start, end), without spaces.
        """
        pairs = []
        encodings = self._library.encode_batch(self._cleaned(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            ids = np.array(encoding.ids, dtype=np.int32)
            offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            if self.trims_spaces:
                offsets = _without_spaces(text, offsets)
            pairs.append((ids, offsets))
        return pairs

    def word_numbers(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The word that each id of a text belongs to, int64 [n]; punctuation is a word."""
        encodings = self._library.encode_batch(self._cleaned(texts), add_special_tokens=False)
        return [np.array(encoding.word_ids, dtype=np.int64) for encoding in encodings]

    # What it says of itself

    def settings(self) -> dict[str, bool]:
        """What its rules do, by keys of tokenizer_config.json."""
        pieces = self._pre_tokenized("a,b")
        return {
            "do_lower_case": self.lowercase,
            "keep_accents": self._normalized("é") != "e",
            "split_by_punct": len(pieces) > 1,
            "add_prefix_space": pieces[0].startswith("▁"),
        }

    @property
    def mask_token(self) -> str:
        """How a text says that a token is to be filled in."""
        return self.vocabulary[self.mask_id]

    def has_mask(self, text: str) -> bool:
        mask = self.special_tokens[-1]
        return bool(mask) and self.mask_id in self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids; of byte-level BPE the very text that was encoded."""
        return self._library.decode([int(index) for index in ids])

    def shown(self, index: int) -> str:
        """What an id shows to a reader: its text, or its name where it has none by itself."""
        # The library shows an added token as the normaliser leaves it.
        if index in self._added:
            return self.vocabulary[index]
        return self.decode([index]).strip() or self.vocabulary[index]

    def continues(self) -> NDArray[np.bool_] | None:
        """[V]: whether an entry goes on with the word before it; None where entries do not say."""
        model = self._rules["model"]
        word_mark = files.WORD_MARKS.get(self.kind)
        prefix = model.get("continuing_subword_prefix")
        if word_mark:
            is_continuation = np.array([token[:1] != word_mark for token in self.vocabulary])
        elif prefix:
            is_continuation = np.array([token.startswith(prefix) for token in self.vocabulary])
        elif files.type_of(model) == "WordLevel":
            is_continuation = np.zeros(self.vocab_size, dtype=np.bool_)
        else:
            return None
        is_continuation[list(self._added)] = False  # an added token is a word
        return is_continuation

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over vocabulary and rules: equal fingerprints give equal ids."""
        identity = json.dumps(self._identity(), ensure_ascii=False)
        return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()

    def _identity(self) -> list[object]:
        sections = {name: self._rules.get(name) for name in SECTIONS}
        written = json.dumps(sections, sort_keys=True)
        identity: list[object] = ["tokenizer.json", written, self.special_tokens]
        # Only where it is set: older fingerprints knew nothing of it.
        if self._library.encode_special_tokens:
            identity.append("split_special_tokens")
        return identity

    def files(self) -> dict[str, bytes]:
        """The files by which `AutoTokenizer.from_pretrained(folder)` loads this tokenizer.

        They are tokenizer.json as it is, and a tokenizer_config.json by which AutoTokenizer takes
        it as it is.
        """
        return {
            files.TOKENIZER_FILE: files.json_bytes(self._rules),
            files.CONFIG_FILE: files.json_bytes(self._exported_config()),
        }

    def _input_names(self) -> list[str]:
        """What a model of its texts reads, as tokenizer_config.json says it."""
        if self.has_token_types:
            return list(TYPED_INPUTS)
        return ["input_ids", "attention_mask"]

    def _exported_config(self) -> PlainDict:
        config: PlainDict = {"tokenizer_class": GENERIC_FAST, "model_max_length": MAX_LENGTH}
        for role, token in zip(files.ROLES, self.special_tokens, strict=True):
            if token:
                config[f"{role}_token"] = token
        for key in ("bos_token", "eos_token"):
            name = files.content_of(self._config.get(key))
            if name in self._ids:
                config[key] = name
        config |= {key: self._config[key] for key in KEPT_KEYS if key in self._config}
        config["model_input_names"] = self._input_names()
        if self.cls_is_last:  # its classes pool the last token
            config["padding_side"] = "left"
        # Other programs and classes ask for these.
        normalizer = self._rules.get("normalizer") or {}
        if normalizer.get("type") == "BertNormalizer":
            config |= {key: normalizer[rule] for key, rule in files.BERT_RULES.items()}
        return config


def _special_tokens_around(
    encoding: Encoding, number: int
) -> tuple[list[int], list[int], list[int]]:
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


def _joined(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Ids and lengths of texts that were encoded in parts."""
    all_ids = [np.empty(0, dtype=np.int32)]
    all_lengths = [np.empty(0, dtype=np.int64)]
    for ids, lengths in parts:
        all_ids.append(ids)
        all_lengths.append(lengths)
    return np.concatenate(all_ids), np.concatenate(all_lengths)
