"""Text to ids: what every kind of tokenizer shares.

Unusual: encoding asks the `tokenizers` library for words that are not in a cache only. WordPiece
splits at whitespace before anything else, byte-level BPE before every single space, so the result
is the library's, at three times its speed. In the tokenizers of tokenizers.py text never turns into
a special token: "[MASK]" in a document is three words; only the exported `tokenizer.json` knows
them. A folder's own tokenizer.json (folder_tokenizer.py) runs as it is.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from clozelab.corpus.lines import SURROGATES

# of cached words, 100 MB; then anew (frequent words are back within a batch)
CACHED_CHARACTERS = 4_000_000
TEXTS_PER_BATCH = 8192
WORDS_PER_CALL = 512
# a vocabulary made for a text leaves far less than 1 % unknown
MAX_UNKNOWN_SHARE = 0.5
WARNED_UNKNOWN_SHARE = 0.01
log = logging.getLogger(__name__)


def refuse_unknown(text: str, unknown: float, max_unknown_share: float = MAX_UNKNOWN_SHARE) -> None:
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


class WordCache:
    """Words to ids: asks the library once for each word that is not remembered.

    `end`: stands behind each text in a list of words; no word equals it.
    """

    def __init__(self, library: Library, end: str) -> None:
        self._library = library
        self._end = end
        self._ids: dict[str, bytes] = {}  # int32 ids of each word
        self._characters = 0

    def encode(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all words one after the other, int32 [T], and of each text how many, int64 [N].

        The end of a text has the id -1 meanwhile: ids [5, 7, -1, 6, -1] are two texts of 2 and 1.
        """
        if self._characters > CACHED_CHARACTERS:
            self._ids = {}
            self._characters = 0
        self._ids[self._end] = np.int32(-1).tobytes()
        self._learn(list(set(words).difference(self._ids)))
        data = bytearray().join(map(self._ids.__getitem__, words))
        ids = np.frombuffer(data, dtype=np.int32)
        lengths = np.diff(np.flatnonzero(ids < 0), prepend=-1) - 1
        return ids[ids >= 0], lengths

    def _learn(self, missing: list[str]) -> None:
        """Remember the ids of words that are not remembered yet."""
        calls = [missing[i : i + WORDS_PER_CALL] for i in range(0, len(missing), WORDS_PER_CALL)]
        encodings = self._library.encode_batch(
            calls,
            is_pretokenized=True,
            add_special_tokens=False,
        )
        for call, encoding in zip(calls, encodings, strict=True):
            data = np.array(encoding.ids, dtype=np.int32).tobytes()
            word_ids = np.array(encoding.word_ids, dtype=np.int64)
            counts = np.bincount(word_ids, minlength=len(call))
            ends = (4 * np.cumsum(counts)).tolist()  # an int32 has four bytes
            for word, start, end in zip(call, [0, *ends], ends, strict=False):
                self._ids[word] = data[start:end]
        self._characters += sum(map(len, missing))


class Tokenizer(ABC):
    """A vocabulary and the rules of one kind.

    Ids never include special tokens unless the caller adds them.
    """

    kind: str  # wordpiece, byte_bpe; of a folder's own tokenizer.json also metaspace and other
    # padding, unknown, begin, separator, mask; "": there is none
    special_tokens: tuple[str, str, str, str, str]
    smallest: int  # entries without which no text can be encoded
    # between the texts of a pair: [CLS] A [SEP] B [SEP], or <s> A </s></s> B </s>
    pair_separators: int
    has_token_types: bool  # whether the second text of a pair has token type 1
    can_have_token_types: bool  # whether the rules know a token type 1 at all
    continuing: re.Pattern[str]  # how an entry begins that goes on with the word before it
    # stands behind each text in a batch's list of words; no word of this kind equals it
    _end_of_text: str

    def __init__(self, vocabulary: Sequence[str], *, lowercase: bool) -> None:
        self.vocabulary = tuple(vocabulary)
        self.vocab_size = len(vocabulary)
        self.lowercase = lowercase
        ids = {token: index for index, token in enumerate(vocabulary)}
        self._ids = ids
        missing = [token for token in self.special_tokens if token not in ids]
        if missing:
            raise ValueError(
                f"the vocabulary of {len(vocabulary)} entries lacks {', '.join(missing)}"
            )
        if len(ids) != len(vocabulary):
            double = next(token for index, token in enumerate(vocabulary) if ids[token] != index)
            raise ValueError(
                f"entry {double!r} stands twice in the vocabulary, so ids would be ambiguous"
            )
        if "" in ids:
            raise ValueError(f"entry {ids['']} of the vocabulary is empty")
        self.released: str | None = None
        """The fingerprint of the tokenizer of tokenizers.py whose vocabulary and rules a folder's
        own one shares."""
        self.added_tokens: tuple[str, ...] = ()  # that text is searched for before anything else
        # ids that masking never draws as a random token, ascending
        self.undrawn_ids: tuple[int, ...] = ()
        pad, unk, cls, sep, mask = self.special_tokens
        self.pad_id = ids[pad]
        self.unk_id = ids[unk]
        self.cls_id = ids[cls]
        self.sep_id = ids[sep]
        self.mask_id = ids[mask]
        self._library = self._rules()
        self._cache = WordCache(self._library, self._end_of_text)

    @property
    def fingerprint(self) -> str:
        """sha256 over vocabulary and rules: equal fingerprints give equal ids."""
        identity = json.dumps(self._identity(), ensure_ascii=False)
        return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()

    @abstractmethod
    def files(self) -> dict[str, bytes]:
        """The files by which `AutoTokenizer.from_pretrained(folder)` loads this tokenizer."""

    @abstractmethod
    def _identity(self) -> list[Any]:
        """Vocabulary and rules."""

    @abstractmethod
    def _rules(self) -> Library:
        """The rules in the library's terms for single words, without special tokens in text."""

    @abstractmethod
    def _words(self, texts: Sequence[str]) -> list[str]:
        """What can be encoded by itself, in order, `_end_of_text` behind each text."""

    def _aligned(self, texts: Sequence[str]) -> tuple[Library, list[str]]:
        """What gives character ranges, and the texts for it: as long as those given."""
        return self._library, [SURROGATES.sub("\ufffd", text) for text in texts]

    def with_token_types(self, number: str) -> Self:
        """The same for pairs of `one` token type, or of `two` where its kind has them.

        `auto` leaves it as it is.
        """
        tokenizer = copy(self)
        if number != "auto":
            tokenizer.has_token_types = number == "two" and self.can_have_token_types
        return tokenizer

    @property
    def mask_token(self) -> str:
        """How a text says that a token is to be filled in."""
        return self.special_tokens[-1]

    def has_mask(self, text: str) -> bool:
        return self.mask_token in text

    def continues(self) -> NDArray[np.bool_] | None:
        """[V]: whether an entry goes on with the word before it; None where entries do not say."""
        return np.array([bool(self.continuing.match(token)) for token in self.vocabulary])

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after the other, int32 [T], and of each text how many, int64 [N]."""
        if not len(texts):
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        all_ids = []
        all_lengths = []
        for start in range(0, len(texts), TEXTS_PER_BATCH):
            ids, lengths = self._encode(texts[start : start + TEXTS_PER_BATCH])
            all_ids.append(ids)
            all_lengths.append(lengths)
        return np.concatenate(all_ids), np.concatenate(all_lengths)

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of the words of running text, each by itself."""
        return self.encode_flat(words)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [n]."""
        ids, lengths = self.encode_flat(texts)
        if not len(texts):
            return []
        return np.split(ids, np.cumsum(lengths)[:-1])

    def encode_masked(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As `encode_batch`, of texts in which the mask token is the mask."""
        # RoBERTa's takes the blanks before it along.
        split = [re.sub(r"\s+<mask>", "<mask>", text).split(self.mask_token) for text in texts]
        encoded = iter(self.encode_batch(list(itertools.chain.from_iterable(split))))
        mask = np.array([self.mask_id], dtype=np.int32)
        rows = []
        for pieces in split:
            row = [next(encoded)]
            for _ in pieces[1:]:
                row += [mask, next(encoded)]
            rows.append(np.concatenate(row))
        return rows

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Ids int32 [n] of each text, and their character ranges in it, int64 [n, 2].

        A range is (start, end), without spaces.
        """
        library, cleaned = self._aligned(texts)
        pairs = []
        for encoding in library.encode_batch(cleaned, add_special_tokens=False):
            ids = np.array(encoding.ids, dtype=np.int32)
            offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
            pairs.append((ids, offsets))
        return pairs

    def word_numbers(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The word that each id of a text belongs to, int64 [n]; punctuation is a word."""
        library, cleaned = self._aligned(texts)
        encodings = library.encode_batch(cleaned, add_special_tokens=False)
        return [np.array(encoding.word_ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of some ids; of byte-level BPE the very text that was encoded."""
        return self._library.decode([int(index) for index in ids])

    def shown(self, index: int) -> str:
        """What an id shows to a reader: its text, or its name where it has none by itself."""
        text = self.decode([index]).strip()
        if text:
            return text
        return self.vocabulary[index]

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, of one batch."""
        return self._cache.encode(self._words(texts))

    def _exported(self, library: Library, processor: Any, **config: Any) -> dict[str, bytes]:
        """tokenizer.json, which knows the special tokens, and tokenizer_config.json."""
        added = []
        for token in sorted(self.special_tokens, key=self._ids.__getitem__):
            # RoBERTa's <mask> takes the space before it along.
            takes_space = token == "<mask>"
            added.append(AddedToken(token, special=True, normalized=False, lstrip=takes_space))
        library.add_special_tokens(added)
        library.post_processor = processor
        config["model_max_length"] = 512
        roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        config |= dict(zip(roles, self.special_tokens, strict=True))
        return {
            "tokenizer.json": (library.to_str(pretty=True) + "\n").encode(),
            "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        }


def read_text(path: Path, expected: str) -> str:
    if not path.is_file():
        raise ValueError(f"vocabulary file {path} does not exist; expected {expected}")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"vocabulary file {path} is not UTF-8 text: {error}") from None


def json_or_empty(path: Path) -> dict:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content
