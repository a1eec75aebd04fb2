"""Runs of words (n-grams) as numbers, for steps that compare texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np

from clozelab.corpus.documents import hash_of
from clozelab.text.words import SINGLE, runs_of

_LETTERS = rf"[^\W_{SINGLE}]"
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd: no bit of a word is lost
# the most frequent words of a large corpus; some 40 MB
_cached_hash = lru_cache(maxsize=2**18)(hash_of)


def words_of(text: str) -> list[str]:
    """Its words without upper case, punctuation and variants of characters."""
    return _word_pattern().findall(unicodedata.normalize("NFKC", text).casefold())


@cache
def _word_pattern() -> re.Pattern[str]:
    return re.compile(rf"[{SINGLE}]|{runs_of(_LETTERS)}")


def ngram_hashes(words: Sequence[str], size: int) -> np.ndarray:
    """[max(0, W - size + 1)] uint64: a hash of each run of `size` words."""
    if len(words) < size:
        return np.empty(0, dtype=np.uint64)
    hashes = np.fromiter(map(_cached_hash, words), dtype=np.uint64, count=len(words))
    num_ngrams = len(words) - size + 1
    result = np.zeros(num_ngrams, dtype=np.uint64)
    for offset in range(size):
        result = result * _FACTOR + hashes[offset : offset + num_ngrams]
    return result
