"""Words of many texts, of which each different one is encoded once.

Texts are cut as bytes, by the kinds of two neighbours: a table says between which kinds a word
begins. It lists only places where the tokenizer's own rules cut whatever else the text holds, so
the ids are those of whole texts:

    BERT                cuts at white space and around every ASCII punctuation mark
    byte-level BPE      cuts before a space, and between an ASCII letter or digit and a mark

Arrow then numbers the words, which asks Python and the library for new ones only.
"""

from __future__ import annotations

import re
import string
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from clozelab.corpus.tokenizer_files import splits_as_roberta, type_of
from clozelab.corpus.tokenizer_json import Rules

if TYPE_CHECKING:
    import pyarrow

BATCH_CHARACTERS = 4_000_000
# of cached words, 100 MB; then anew (frequent words are back within a batch)
CACHED_CHARACTERS = 4_000_000
WORDS_AT_ONCE = 2**15
WORDS_PER_CALL = 512
MOST_ADDED = 1000  # added tokens that texts are searched for

# Kinds of bytes. OTHER is what is no ASCII, and control characters. No byte is EDGE: it stands
# before a text's first one.
SPACE, ALNUM, MARK, APOSTROPHE, OTHER, EDGE = range(6)
NUM_KINDS = 6
ANY = range(NUM_KINDS)
BERT_SPACES = b" \t\n\r"
# what a byte is in its word
INSIDE, BEGIN = range(2)
# Where a text holds one of these, byte-level BPE looks at runs of white space.
ODD_SPACES = (
    r"[\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}]|  | $"
)


def _kinds_of_bytes() -> bytes:
    kinds = np.full(256, OTHER, dtype=np.uint8)
    kinds[list(string.ascii_letters.encode() + string.digits.encode())] = ALNUM
    kinds[list(string.punctuation.encode())] = MARK
    kinds[list(b"'")] = APOSTROPHE
    kinds[list(BERT_SPACES)] = SPACE
    return kinds.tobytes()


def _places(*begins: tuple[Sequence[int], Sequence[int]]) -> bytes:
    """What a byte is by its own kind and the one before it, at NUM_KINDS * before + own.

    A word begins between one of the first kinds and one of the second, of any pair of `begins`.
    """
    outcomes = np.full((NUM_KINDS, NUM_KINDS), INSIDE, dtype=np.uint8)
    outcomes[EDGE] = BEGIN
    for before, after in begins:
        outcomes[np.ix_(before, after)] = BEGIN
    return outcomes.tobytes().ljust(256, b"\0")


KINDS = _kinds_of_bytes()
NOT_SPACE = [ALNUM, MARK, APOSTROPHE, OTHER]
AT_SPACES = _places(([SPACE], NOT_SPACE))
BERT = _places(([SPACE, MARK, APOSTROPHE], NOT_SPACE), (ANY, [MARK, APOSTROPHE]))
# An apostrophe may begin "'s", so what stands behind one may belong to it.
BYTE_LEVEL = _places((ANY, [SPACE]), ([ALNUM], [MARK, APOSTROPHE]), ([MARK], [ALNUM]))


@dataclass(frozen=True)
class WordRules:
    """How texts are cut into words that can be encoded by themselves.

    Args:
        places: as `_places` says.
        lowers: whether ASCII letters can be lower-cased before anything else.
        uncut: a pattern of Arrow's regular expressions; a text that holds it is not cut ("": none).
        bare: words that the model reads as they are, without normaliser and pre-tokeniser, when
            they match this as a whole (None: there are none).
    """

    places: bytes
    lowers: bool
    uncut: str
    bare: re.Pattern[str] | None

    def can_cut(self, texts: pyarrow.LargeStringArray) -> np.ndarray:
        """Whether each text can be cut, bool [N]."""
        import pyarrow.compute as arrow

        if not self.uncut:
            return np.ones(len(texts), dtype=np.bool_)
        bits = arrow.match_substring_regex(texts, self.uncut).buffers()[1]
        is_uncut = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(texts), bitorder="little")
        return is_uncut == 0

    def cut(self, texts: pyarrow.LargeStringArray) -> tuple[pyarrow.LargeStringArray, np.ndarray]:
        """All words of the texts one after the other, and of each text how many, int64 [N].

        White space stays: with BERT's rules behind a word, or at a text's start as a word by
        itself, with byte-level BPE before a word. Who asks for the different words takes what is
        behind them away (`without_space_behind`), three times as fast as from all words.
        """
        import pyarrow

        _, offsets, characters = texts.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
        data = characters.to_pybytes()[ends[0] : ends[-1]]
        ends = ends - ends[0]
        # Tables of bytes are the fastest way: one for kinds, one for pairs of kinds.
        kinds = np.frombuffer(data.translate(KINDS), dtype=np.uint8)
        pairs = kinds.copy()
        pairs[1:] += NUM_KINDS * kinds[:-1]
        firsts = ends[:-1][np.diff(ends) > 0]
        pairs[firsts] = NUM_KINDS * EDGE + kinds[firsts]
        outcomes = np.frombuffer(pairs.tobytes().translate(self.places), dtype=np.uint8)
        starts = np.flatnonzero(outcomes == BEGIN)
        num_words = np.diff(np.searchsorted(starts, ends))
        if self.lowers:
            data = data.lower()
        starts = np.append(starts, len(data))
        words = pyarrow.LargeStringArray.from_buffers(
            len(starts) - 1, pyarrow.py_buffer(starts), pyarrow.py_buffer(data)
        )
        return words, num_words


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of some BATCH_CHARACTERS."""
    batch = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def with_space_before(texts: pyarrow.LargeStringArray) -> pyarrow.LargeStringArray:
    """A space before each text that begins with something else."""
    import pyarrow.compute as arrow

    return arrow.replace_substring_regex(texts, r"^([^ ])", r" \1")


def without_space_behind(words: pyarrow.LargeStringArray) -> pyarrow.LargeStringArray:
    """The words that `WordRules.cut` gives, without white space at their ends."""
    import pyarrow.compute as arrow

    return arrow.utf8_rtrim(words, characters=BERT_SPACES.decode())


# Arrow's own ways from and to NumPy import pandas, which takes longer than a corpus of some MB.


def arrow_numbers(values: np.ndarray) -> pyarrow.Array:
    import pyarrow

    kind = pyarrow.from_numpy_dtype(values.dtype)
    return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(values)])


def _numbers_of(array: pyarrow.Array) -> np.ndarray:
    kind = array.type.to_pandas_dtype()
    return np.frombuffer(array.buffers()[1], dtype=kind)[array.offset : array.offset + len(array)]


class WordCache:
    """Words to ids: the library encodes each word that is not cached, once.

    Args:
        library: the tokenizer.
        bare_words: `WordRules.bare`; for these words the model alone is asked, without normaliser
            and pre-tokeniser, which cost more than it does.
    """

    def __init__(self, library: Library, bare_words: re.Pattern[str] | None = None) -> None:
        self._library = library
        # A tokenizer that puts a space before each word would not leave it as it is.
        if bare_words is None or library.pre_tokenizer.pre_tokenize_str("a") != [("a", (0, 1))]:
            bare_words = None
        self._bare_words = bare_words
        self._ids = {"": b""}  # int32 ids of each word
        self._characters = 0

    def encode(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all words one after the other, int32 [T], and of each how many, int64 [W]."""
        if self._characters > CACHED_CHARACTERS:
            self._ids = {"": b""}
            self._characters = 0
        data: list[Any] = list(map(self._ids.get, words))  # None: not known yet
        if None in data:
            missing = [number for number, known in enumerate(data) if known is None]
            self._learn({words[number] for number in missing})
            for number in missing:
                data[number] = self._ids[words[number]]
        lengths = np.fromiter(map(len, data), dtype=np.int64, count=len(data))
        return np.frombuffer(bytearray().join(data), dtype=np.int32), lengths // 4

    def encode_array(self, words: pyarrow.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all words, int32 [T], and how many stand before each and behind all, [W + 1]."""
        import pyarrow

        numbered = words.dictionary_encode()
        ids, lengths = self.encode(without_space_behind(numbered.dictionary).to_pylist())
        offsets = arrow_numbers(np.append(0, np.cumsum(lengths)))
        rows = pyarrow.LargeListArray.from_arrays(offsets, arrow_numbers(ids))
        rows = rows.take(numbered.indices)
        return _numbers_of(rows.values), _numbers_of(rows.offsets)

    def _learn(self, missing: set[str]) -> None:
        """Cache the ids of words that are not cached yet."""
        self._characters += sum(map(len, missing))
        if self._bare_words is not None:
            plain = list(filter(self._bare_words.fullmatch, missing))
            missing = missing.difference(plain)
            model = self._library.model
            for word in plain:
                # byte-level BPE's own letter for a space
                tokens = model.tokenize(word.replace(" ", "Ġ"))
                self._ids[word] = array("i", [token.id for token in tokens]).tobytes()
        self._ask(self._library, list(missing))

    def _ask(self, library: Library, missing: list[str]) -> None:
        # The library's encodings take a hundred times the memory of their ids.
        for start in range(0, len(missing), WORDS_AT_ONCE):
            words = missing[start : start + WORDS_AT_ONCE]
            starts = range(0, len(words), WORDS_PER_CALL)
            calls = [words[first : first + WORDS_PER_CALL] for first in starts]
            encodings = library.encode_batch(calls, is_pretokenized=True, add_special_tokens=False)
            for call, encoding in zip(calls, encodings, strict=True):
                self._keep(call, encoding)

    def _keep(self, words: list[str], encoding: Encoding) -> None:
        data = np.array(encoding.ids, dtype=np.int32).tobytes()
        word_ids = np.array(encoding.word_ids, dtype=np.int64)
        counts = np.bincount(word_ids, minlength=len(words))
        ends = (4 * np.cumsum(counts)).tolist()  # an int32 has four bytes
        for word, start, end in zip(words, [0, *ends], ends, strict=False):
            self._ids[word] = data[start:end]


def word_rules(rules: Rules) -> WordRules | None:
    """How texts of a tokenizer are cut; None where they cannot be."""
    splitter = rules.get("pre_tokenizer") or {}
    if splitter.get("type") == "BertPreTokenizer":
        return _bert_rules(rules)
    if type_of(rules["model"]) == "BPE" and splits_as_roberta(splitter):
        return _byte_level_rules(rules)
    return None


def _bert_rules(rules: Rules) -> WordRules | None:
    added = _added_tokens(rules)
    is_local = type_of(rules.get("normalizer")) in (None, "BertNormalizer", "Lowercase")
    if not is_local or any(map(re.compile(r"\s").search, added)):
        return None
    if not _is_searchable(rules):
        return WordRules(AT_SPACES, False, "", None)
    lowers = _lowers(rules)
    letters = "a-z" if lowers else "A-Za-z"
    bare = _bare_words(f"[{letters}0-9]+", added)
    return WordRules(BERT, lowers, "|".join(_added_patterns(rules)), bare)


def _byte_level_rules(rules: Rules) -> WordRules | None:
    added = _added_tokens(rules)
    normalizer = type_of(rules.get("normalizer"))
    is_plain = normalizer is None or (normalizer == "Lowercase" and _is_searchable(rules))
    if not is_plain or len(added) > MOST_ADDED:
        return None
    lowers = _lowers(rules)
    letters = "a-z" if lowers else "A-Za-z"
    bare = _bare_words(f" ?(?:[{letters}]+|[0-9]+)", added)
    return WordRules(BYTE_LEVEL, lowers, "|".join([ODD_SPACES, *_added_patterns(rules)]), bare)


def _added_tokens(rules: Rules) -> list[str]:
    return [token["content"] for token in rules.get("added_tokens", ())]


def _added_patterns(rules: Rules) -> list[str]:
    """A regular expression for each added token."""
    patterns = list(map(re.escape, _added_tokens(rules)))
    if _lowers(rules):
        # "Covid" becomes "covid" only here, and is not the added token of that name.
        return [f"(?i:{pattern})" for pattern in patterns]
    return patterns


def _lowers(rules: Rules) -> bool:
    normalizer = rules.get("normalizer") or {}
    return type_of(normalizer) == "Lowercase" or bool(normalizer.get("lowercase"))


def _is_searchable(rules: Rules) -> bool:
    """Whether texts that hold an added token can be told from others.

    They are searched for added tokens before anything else, so one with an added token is not cut.
    Of those that are normalised nobody can say which text holds them.
    """
    added = rules.get("added_tokens", ())
    return len(added) <= MOST_ADDED and not any(token["normalized"] for token in added)


def _bare_words(pattern: str, added: Sequence[str]) -> re.Pattern[str] | None:
    """The pattern, unless an added token could be part of what it matches."""
    if any(map(re.compile("[A-Za-z0-9 ]*").fullmatch, added)):
        return None
    return re.compile(pattern)
