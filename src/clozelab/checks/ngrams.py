"""Which stretches of tokens stand in a corpus: 64-bit hashes of n-grams, looked for in one pass over its shards.

Memory is one block and one entry a wanted n-gram, whatever the corpus. A bit table lets through few positions; those
are compared with the sorted hashes. A false match needs equal 64-bit hashes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clozelab.corpus.shards import TokenShards

NGRAM = 8
"""Tokens: five or six words."""
BLOCK_TOKENS = 1 << 15
MAX_SEARCHED_TOKENS = 400_000_000
"""About five seconds of one core; of a larger corpus evenly spread blocks are searched."""
_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_FILTER_BITS = 22


def ngram_hashes(ids: np.ndarray) -> np.ndarray:
    """uint64 [..., n - NGRAM + 1]: one hash of each n-gram along the last axis; a polynomial in the ids, mod 2^64."""
    hashes = ids.astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        for width in (1, 2, 4):
            power = np.uint64(pow(_MULTIPLIER, width, 1 << 64))
            hashes = hashes[..., :-width] * power + hashes[..., width:]
    return hashes


@dataclass(frozen=True)
class NgramIndex:
    """What a pass over a corpus found, and what it met on the way."""

    hashes: np.ndarray
    """uint64 [U], sorted: the n-grams that were wanted."""
    counts: np.ndarray
    """int64 [U]: how often each stands in the part that was searched."""
    positions: np.ndarray
    """int64 [U]: first place of each; -1 for none."""
    num_searched: int
    num_tokens: int
    largest_id: int
    num_unknown: int
    """Tokens that are [UNK]."""

    @property
    def searched_fraction(self) -> float:
        return self.num_searched / max(1, self.num_tokens)

    def is_found(self, hashes: np.ndarray) -> np.ndarray:
        """bool, of any shape; only for hashes that were wanted."""
        return self.counts[np.searchsorted(self.hashes, hashes)] > 0

    def only_position(self, hashes: np.ndarray) -> np.ndarray:
        """Where an n-gram stands that stands there once; -1 for any other, and for hash 0 (none)."""
        place = np.searchsorted(self.hashes, hashes)
        return np.where((self.counts[place] == 1) & (hashes != 0), self.positions[place], -1)


def search(shards: TokenShards, wanted: np.ndarray, unk_id: int) -> NgramIndex:
    """One pass over the tokens of a split. `wanted` uint64 of any length, in any order."""
    hashes = np.unique(np.append(wanted, np.uint64(0)))
    counts, positions = np.zeros(len(hashes), dtype=np.int64), np.full(len(hashes), -1, dtype=np.int64)
    bits = max(_FILTER_BITS, len(hashes).bit_length() + 6)
    shift = np.uint64(64 - bits)
    table = np.zeros(1 << bits, dtype=bool)
    table[_spread(hashes) >> shift] = True
    stride = -(-shards.num_tokens // MAX_SEARCHED_TOKENS)
    searched = largest = unknown = 0
    for number, (start, block) in enumerate(shards.tokens.blocks(BLOCK_TOKENS, NGRAM - 1)):
        if number % stride or not len(block):
            continue
        own = block[:BLOCK_TOKENS]
        searched += len(own)
        largest = max(largest, int(own.max()))
        unknown += int(np.count_nonzero(own == unk_id))
        if len(block) < NGRAM:
            continue
        found = ngram_hashes(block)
        near = np.flatnonzero(table[_spread(found) >> shift])
        place = np.searchsorted(hashes, found[near])
        hit = hashes[np.minimum(place, len(hashes) - 1)] == found[near]
        place, near = place[hit], near[hit]
        np.add.at(counts, place, 1)
        first, at = np.unique(place, return_index=True)
        new = positions[first] < 0
        positions[first[new]] = start + near[at[new]]
    return NgramIndex(hashes, counts, positions, searched, shards.num_tokens, largest, unknown)


def _spread(hashes: np.ndarray) -> np.ndarray:
    """The same hashes with all bits' influence in the high ones."""
    with np.errstate(over="ignore"):
        return (hashes ^ (hashes >> np.uint64(32))) * np.uint64(_MULTIPLIER)
