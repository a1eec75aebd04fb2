"""The corpus: token ids, unknown tokens, duplicates, held-out text that is trained on; and where
text stands in it.

Stretches of tokens are found by 64-bit hashes of n-grams in one pass over the shards. Memory is one
block and one entry a wanted n-gram. A bit table lets through few positions; those are compared with
the sorted hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clozelab.checks.subject import ERROR, WARNING, Finding, finding, share
from clozelab.corpus.encoding import WARNED_UNKNOWN_SHARE
from clozelab.corpus.shards import TokenShards
from clozelab.planning.jobs import Corpus

NGRAM = 8  # tokens: five or six words
BLOCK_TOKENS = 1 << 15
# five seconds of one core; of a larger corpus evenly spread blocks are searched
MAX_SEARCHED_TOKENS = 400_000_000
_MULTIPLIER = 0x9E3779B97F4A7C15
_FILTER_BITS = 22
# the share of [UNK] that is an error here, before anybody has waited for anything
MANY_UNKNOWN = 0.2
MAX_DUPLICATE_DOCUMENTS, MANY_DUPLICATE_DOCUMENTS = 0.01, 0.2
MAX_DUPLICATE_SENTENCES = 0.3
# of held-out sentences, trained on word for word: a warning and an error
MAX_OVERLAP, MANY_OVERLAP = 0.05, 0.5
LONG_SENTENCE_TOKENS = 12  # shorter sentences repeat in any text
MAX_HASHED_TOKENS = 200_000_000
_BLOCK_SENTENCES = 1 << 17
_PLACES = 4096


def check_vocabulary(corpus: Corpus, index: NgramIndex) -> Iterator[Finding]:
    """Every id in the shards belongs to the vocabulary, and few tokens are unknown."""
    size, sizes = corpus.ids.vocab_size, {corpus.train.vocab_size, corpus.validation.vocab_size}
    figure = (
        f"largest id {index.largest_id:,}, {size:,} entries; shards made with"
        f" {', '.join(map(str, sizes))}"
    )
    again = f"delete the prepared corpus {corpus.name} and prepare it again with its own vocabulary"
    yield finding(
        "vocabulary",
        corpus.name,
        "all ids are the vocabulary's",
        figure,
        (index.largest_id >= size, ERROR, "the shards hold ids beyond the vocabulary", again),
        (
            sizes != {size},
            ERROR,
            "shards were made with another vocabulary than the tokenizer's",
            again,
        ),
    )
    yield unknown_tokens(corpus.name, index.num_unknown, index.num_searched)


def unknown_tokens(name: str, unknown: int, tokens: int) -> Finding:
    """Of a corpus, or of a task's text."""
    part, figure = unknown / max(1, tokens), share(unknown, tokens) + " [UNK]"
    level = ERROR if part > MANY_UNKNOWN else WARNING
    remedy = (
        "does the vocabulary fit language and case? See tokenizer.lowercase and"
        " tokenizer.vocab_file"
    )
    many = (part > WARNED_UNKNOWN_SHARE, level, "many tokens are [UNK]", remedy)
    return finding("unknown tokens", name, "the vocabulary knows the text", figure, many)


def check_duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Documents and sentences that stand twice in training; held-out sentences that are trained
    on.
    """
    known_sentences, known_documents, is_long = hash_split(corpus.train)
    # Sorted, since numpy's hash table misses the cache at every entry.
    ordered = [np.sort(hashes) for hashes in (known_documents, known_sentences[is_long])]
    documents, sentences = (int(np.count_nonzero(one[1:] == one[:-1])) for one in ordered)
    num_documents, num_long = len(known_documents), int(is_long.sum())
    level = ERROR if documents > MANY_DUPLICATE_DOCUMENTS * num_documents else WARNING
    copies = (
        "remove the copies (prepare drops exact ones): they weigh double, and an epoch is shorter"
        " than it seems"
    )
    boilerplate = "boilerplate? Remove it, or documents that differ in little"
    yield finding(
        "duplicates",
        corpus.name,
        "few repetitions",
        f"documents {share(documents, num_documents)}, sentences {share(sentences, num_long)}",
        (
            documents > MAX_DUPLICATE_DOCUMENTS * num_documents,
            level,
            "whole documents are repeated",
            copies,
        ),
        (
            sentences > MAX_DUPLICATE_SENTENCES * num_long,
            WARNING,
            "sentences are repeated",
            boilerplate,
        ),
    )
    held_out, _, is_long = hash_split(corpus.validation)
    known = np.isin(held_out[is_long], known_sentences)
    part = float(known.mean()) if len(known) else 0.0
    remedy = (
        "the held-out loss flatters the model: remove near-copies of documents, or hold out another"
        " source"
    )
    level = ERROR if part > MANY_OVERLAP else WARNING
    yield finding(
        "held out",
        corpus.name,
        "held-out text is not trained on",
        share(known.sum(), len(known)) + " sentences",
        (part > MAX_OVERLAP, level, "held-out text is trained on, word for word", remedy),
    )


def hash_split(shards: TokenShards) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """64 bits of each sentence and document, and which sentences are long; of a corpus that is too
    large its first.
    """
    offsets, bounds = np.asarray(shards.sentence_offsets), np.asarray(shards.document_offsets)
    num_documents = max(
        1, int(np.searchsorted(offsets[bounds], MAX_HASHED_TOKENS, side="right")) - 1
    )
    bounds = bounds[: num_documents + 1]
    offsets = offsets[: bounds[-1] + 1]
    odd = np.random.default_rng(0).integers(0, 1 << 63, _PLACES, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    parts = []
    for low in range(0, len(offsets) - 1, _BLOCK_SENTENCES):
        cut = offsets[low : low + _BLOCK_SENTENCES + 1]
        ids = shards.tokens[int(cut[0]) : int(cut[-1])].astype(np.uint64)
        parts.append(_sums(ids + np.uint64(1), cut - cut[0], odd))
    sentences = np.concatenate(parts)
    return sentences, _sums(sentences, bounds, odd), np.diff(offsets) >= LONG_SENTENCE_TOKENS


def _sums(values: np.ndarray, offsets: np.ndarray, odd: np.ndarray) -> np.ndarray:
    """uint64 [len(offsets) - 1]: of each range, the sum of value times a multiplier for its place
    in the range.
    """
    lengths = np.diff(offsets)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(29))) * odd[place % _PLACES]
        sums = np.add.reduceat(mixed, offsets[:-1])
        return (sums ^ (sums >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93) + lengths.astype(
            np.uint64
        )


def ngram_hashes(ids: np.ndarray) -> np.ndarray:
    """uint64 [..., n - NGRAM + 1]: one hash of each n-gram along the last axis; a polynomial in the
    ids, mod 2^64.
    """
    hashes = ids.astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        for width in (1, 2, 4):
            power = np.uint64(pow(_MULTIPLIER, width, 1 << 64))
            hashes = hashes[..., :-width] * power + hashes[..., width:]
    return hashes


@dataclass(frozen=True)
class NgramIndex:
    """What a pass over a corpus found."""

    hashes: np.ndarray  # uint64 [U], sorted: the n-grams that were wanted
    counts: np.ndarray  # int64 [U]: how often each stands in the part that was searched
    positions: np.ndarray  # int64 [U]: first place of each; -1 for none
    num_searched: int
    num_tokens: int
    largest_id: int
    num_unknown: int  # tokens that are [UNK]

    @property
    def searched_fraction(self) -> float:
        return self.num_searched / max(1, self.num_tokens)

    def is_found(self, hashes: np.ndarray) -> np.ndarray:
        """bool, of any shape; only for hashes that were wanted."""
        return self.counts[np.searchsorted(self.hashes, hashes)] > 0

    def only_position(self, hashes: np.ndarray) -> np.ndarray:
        """Where an n-gram stands that stands there once; -1 for any other, and for hash 0
        (none).
        """
        place = np.searchsorted(self.hashes, hashes)
        return np.where((self.counts[place] == 1) & (hashes != 0), self.positions[place], -1)


def search(shards: TokenShards, wanted: Sequence[np.ndarray], unk_id: int) -> NgramIndex:
    """One pass over the tokens of a split. `wanted` uint64 each, of any length, in any order."""
    hashes = np.unique(np.concatenate([np.zeros(1, dtype=np.uint64), *wanted]))
    counts, positions = (
        np.zeros(len(hashes), dtype=np.int64),
        np.full(len(hashes), -1, dtype=np.int64),
    )
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
        searched, largest = searched + len(own), max(largest, int(own.max()))
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
