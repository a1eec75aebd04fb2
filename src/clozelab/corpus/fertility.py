"""How a tokenizer copes with a text: tokens a word, and words that it does not know, by source.

A word is what stands between spaces, tabs and line ends. Where a script has no blanks, `text.words`
says what one is. A word is unknown if any of its tokens is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, compress

import numpy as np

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.corpus.words import BERT_SPACES
from clozelab.text.plain import PlainDict
from clozelab.text.words import parting_characters, written_words

# What a byte is, if it is anything that counts here: white space, or the first byte of a character
# that parts words. Other characters may begin with the same byte.
SPACE = 1
PARTING = 2
BETWEEN_BLANKS = re.compile("[^ \t\n\r]+")
FIGURES = ("words", "tokens", "unknown_words")


def count_words(
    tokenizer: Tokenizer,
    sentences: Utf8Texts,
    ids: np.ndarray,
    lengths: np.ndarray,
    sources: np.ndarray,
) -> list[list[int]]:
    """Of each source: its number, and its FIGURES in these sentences.

    Args:
        tokenizer: that has encoded the sentences.
        sentences: S texts.
        ids: their tokens, one sentence after the other.
        lengths: [S] how many each sentence has.
        sources: [S] the number of the source that each sentence is of.
    """
    has_unknown = _has_unknown(tokenizer, ids, lengths)
    counts = []
    for source in np.unique(sources).tolist():
        is_here = sources == source
        num_words = _num_words(sentences.chosen(is_here))
        # Only of a sentence with an unknown token it has to be found out which words have one.
        unknown = _num_unknown(tokenizer, sentences.chosen(is_here & has_unknown).strings())
        counts.append([source, num_words, int(lengths[is_here].sum()), unknown])
    return counts


def _num_words(sentences: Utf8Texts) -> int:
    """How many words some texts have."""
    kinds = np.frombuffer(sentences.data.translate(_kinds()), dtype=np.uint8)
    parting = np.flatnonzero(kinds == PARTING)
    if len(parting):
        may_lack = sentences.have_byte(parting)
        number = sum(map(_num_parted_words, sentences.chosen(may_lack).strings()))
        return number + _num_words(sentences.chosen(~may_lack))
    # A word begins behind white space, or at a text's start.
    is_space = kinds == SPACE
    is_behind = np.append(True, is_space[:-1])
    is_behind[sentences.ends[:-1][np.diff(sentences.ends) > 0]] = True
    return int(np.count_nonzero(is_behind & ~is_space))


def _num_parted_words(text: str) -> int:
    """How many words a text has that may lack blanks: its bytes alone do not tell."""
    words = BETWEEN_BLANKS
    if re.search(f"[{parting_characters()}]", text):
        words = written_words()
    return len(words.findall(text))


@cache
def _kinds() -> bytes:
    """What each byte is: SPACE, PARTING or neither, as a table for bytes.translate."""
    kinds = bytearray(256)
    # Characters that part words are all below the surrogates, which begin here.
    characters = "".join(map(chr, range(0xD800)))
    for character in re.findall(f"[{parting_characters()}]", characters):
        kinds[character.encode()[0]] = PARTING
    for byte in BERT_SPACES:
        kinds[byte] = SPACE
    return bytes(kinds)


def _num_unknown(tokenizer: Tokenizer, sentences: Sequence[str]) -> int:
    """How many words of some texts have an unknown token."""
    copies = Counter(BETWEEN_BLANKS.findall("\n".join(sentences)))
    words_of = {}
    for text in _unknown_among(tokenizer, list(copies)):
        words_of[text] = written_words().findall(text)
    distinct = dict.fromkeys(chain.from_iterable(words_of.values()))
    unknown = set(_unknown_among(tokenizer, list(distinct)))
    number = 0
    for text, words in words_of.items():
        # Words that are unknown by themselves, or all: then the text is one unknown token.
        num_unknown = sum(word in unknown for word in words)
        number += copies[text] * (num_unknown if num_unknown else len(words))
    return number


def _unknown_among(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """The texts that have an unknown token."""
    ids, lengths = tokenizer.encode_words(texts)
    return list(compress(texts, _has_unknown(tokenizer, ids, lengths).tolist()))


def _has_unknown(tokenizer: Tokenizer, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whether each of some encoded texts has an unknown token, bool [N]."""
    places = np.flatnonzero(ids == tokenizer.unk_id)
    has_unknown = np.zeros(len(lengths), dtype=bool)
    has_unknown[np.searchsorted(np.cumsum(lengths), places, side="right")] = True
    return has_unknown


def total_words(shards: Iterable[Sequence[Sequence[int]]], names: Sequence[str]) -> PlainDict:
    """Name of a source -> its FIGURES, from those of all shards."""
    totals = np.zeros((len(names), len(FIGURES)), dtype=np.int64)
    for counts in shards:
        for source, *figures in counts:
            totals[source] += figures
    return {
        name: dict(zip(FIGURES, figures, strict=True))
        for name, figures in zip(names, totals.tolist(), strict=True)
    }
