"""The corpus: its token ids, unknown tokens and duplicates, and where text stands in it.

Stretches of tokens are found by 64-bit hashes of n-grams in one pass over the shards. Memory is one
block and one entry a wanted n-gram. A bit table lets through few positions; those are compared with
the sorted hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from clozelab.checks.subject import ERROR, WARNING, Case, Finding, first_finding, share
from clozelab.corpus.encoding import WARNED_UNKNOWN_SHARE
from clozelab.corpus.shards import TokenShards
from clozelab.planning.arms import Corpus

NGRAM = 8  # tokens: five or six words
BLOCK_TOKENS = 1 << 15
# five seconds of one core; of a larger corpus evenly spread blocks are searched
MAX_SEARCHED_TOKENS = 400_000_000
_MULTIPLIER = 0x9E3779B97F4A7C15
_FILTER_BITS = 22
# the share of [UNK] that is an error here, before anybody has waited for anything
MANY_UNKNOWN = 0.2
MAX_DUPLICATE_DOCUMENTS = 0.01
MANY_DUPLICATE_DOCUMENTS = 0.2
MAX_DUPLICATE_SENTENCES = 0.3
# of held-out sentences, trained on word for word: a warning and an error
MAX_OVERLAP = 0.05
MANY_OVERLAP = 0.5
LONG_SENTENCE_TOKENS = 12  # shorter sentences repeat in any text
MAX_HASHED_TOKENS = 200_000_000
_BLOCK_SENTENCES = 1 << 17


def check_vocabulary(corpus: Corpus, index: NgramIndex) -> Iterator[Finding]:
    """Every id in the shards belongs to the vocabulary, and few tokens are unknown."""
    size = corpus.ids.vocab_size
    sizes_of_shards = {corpus.train.vocab_size, corpus.validation.vocab_size}
    remedy = (
        f"delete the prepared corpus {corpus.name} and prepare it again with its own vocabulary"
    )
    yield first_finding(
        "vocabulary",
        corpus.name,
        "all ids are the vocabulary's",
        f"largest id {index.largest_id:,}, {size:,} entries; shards made with"
        f" {', '.join(map(str, sizes_of_shards))}",
        Case(index.largest_id >= size, ERROR, "the shards hold ids beyond the vocabulary", remedy),
        Case(
            sizes_of_shards != {size},
            ERROR,
            "shards were made with another vocabulary than the tokenizer's",
            remedy,
        ),
    )
    yield unknown_tokens(corpus.name, index.num_unknown, index.num_searched)


def unknown_tokens(name: str, unknown: int, tokens: int) -> Finding:
    """Of a corpus, or of a task's text."""
    unknown_share = unknown / max(1, tokens)
    level = WARNING
    if unknown_share > MANY_UNKNOWN:
        level = ERROR
    case = Case(
        unknown_share > WARNED_UNKNOWN_SHARE,
        level,
        "many tokens are [UNK]",
        "does the vocabulary fit language and case? See tokenizer.lowercase and"
        " tokenizer.vocab_file",
    )
    figure = f"{share(unknown, tokens)} [UNK]"
    return first_finding("unknown tokens", name, "the vocabulary covers the text", figure, case)


def check_duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Text that stands twice in training, and held-out sentences that are trained on."""
    train = hash_split(corpus.train)
    yield _check_repetitions(corpus.name, train)
    yield _check_held_out(corpus.name, train, hash_split(corpus.validation))


def _check_repetitions(name: str, train: SplitHashes) -> Finding:
    long_sentences = train.sentences[train.is_long]
    documents = _count_copies(train.documents)
    sentences = _count_copies(long_sentences)
    num_documents = len(train.documents)
    num_sentences = len(long_sentences)
    level = WARNING
    if documents > MANY_DUPLICATE_DOCUMENTS * num_documents:
        level = ERROR
    of_documents = share(documents, num_documents)
    of_sentences = share(sentences, num_sentences)
    return first_finding(
        "duplicates",
        name,
        "few repetitions",
        f"documents {of_documents}, sentences {of_sentences}",
        Case(
            documents > MAX_DUPLICATE_DOCUMENTS * num_documents,
            level,
            "whole documents are repeated",
            "remove the copies (prepare drops exact ones): they weigh double, and an epoch is"
            " shorter than it seems",
        ),
        Case(
            sentences > MAX_DUPLICATE_SENTENCES * num_sentences,
            WARNING,
            "sentences are repeated",
            "boilerplate? Remove it, or documents that differ in little",
        ),
    )


def _count_copies(hashes: np.ndarray) -> int:
    # Sorted, since numpy's hash table misses the cache at every entry.
    ordered = np.sort(hashes)
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def _check_held_out(name: str, train: SplitHashes, held_out: SplitHashes) -> Finding:
    is_trained_on = np.isin(held_out.sentences[held_out.is_long], train.sentences)
    overlap = 0.0
    if len(is_trained_on):
        overlap = float(is_trained_on.mean())
    level = WARNING
    if overlap > MANY_OVERLAP:
        level = ERROR
    case = Case(
        overlap > MAX_OVERLAP,
        level,
        "held-out text is trained on, word for word",
        "the held-out loss flatters the model: remove near-copies of documents, or hold out"
        " another source",
    )
    figure = f"{share(is_trained_on.sum(), len(is_trained_on))} sentences"
    return first_finding("held out", name, "held-out text is not trained on", figure, case)


class SplitHashes(NamedTuple):
    """64 bits of each sentence and document of a split."""

    sentences: np.ndarray  # uint64
    documents: np.ndarray  # uint64
    is_long: np.ndarray  # bool, of each sentence


def hash_split(shards: TokenShards) -> SplitHashes:
    """Hash a split; of one that is too large its first documents."""
    offsets = np.asarray(shards.sentence_offsets)
    bounds = np.asarray(shards.document_offsets)
    num_hashed = int(np.searchsorted(offsets[bounds], MAX_HASHED_TOKENS, side="right")) - 1
    # The first documents, one at least, and the sentences in them.
    bounds = bounds[: max(1, num_hashed) + 1]
    offsets = offsets[: bounds[-1] + 1]
    blocks = []
    for low in range(0, len(offsets) - 1, _BLOCK_SENTENCES):
        cut = offsets[low : low + _BLOCK_SENTENCES + 1]
        ids = shards.tokens[int(cut[0]) : int(cut[-1])].astype(np.uint64)
        blocks.append(_range_hashes(ids, cut - cut[0]))
    sentences = np.concatenate(blocks)
    documents = _range_hashes(sentences, bounds)
    return SplitHashes(sentences, documents, np.diff(offsets) >= LONG_SENTENCE_TOKENS)


def _range_hashes(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Hash each range of some values, uint64 [len(offsets) - 1].

    It is a polynomial in the values, mod 2^64.
    """
    # offsets [0, 3, 5]: places 0 1 2 0 1
    place = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets))
    powers = np.cumprod(np.full(place.max() + 1, _MULTIPLIER, dtype=np.uint64))
    return np.add.reduceat((values + np.uint64(1)) * powers[place], offsets[:-1])


def ngram_hashes(ids: np.ndarray) -> np.ndarray:
    """One hash of each n-gram along the last axis, uint64 [..., n - NGRAM + 1].

    It is a polynomial in the ids, mod 2^64.
    """
    hashes = ids.astype(np.uint64) + np.uint64(1)
    # Hashes of 1 token make those of 2, these of 4, these of 8.
    for width in (1, 2, 4):
        power = np.uint64(pow(_MULTIPLIER, width, 1 << 64))
        hashes = hashes[..., :-width] * power + hashes[..., width:]
    return hashes


class NgramIndex:
    """How often wanted n-grams stand in a corpus and where first, and what a pass over it counts.

    Attributes:
        hashes: uint64 [U], sorted: the n-grams that are wanted.
        counts: int64 [U]: how often each stands in the part that was searched.
        positions: int64 [U]: first place of each; -1 for none.
        num_unknown: tokens that are [UNK].
    """

    def __init__(self, wanted_hashes: Sequence[np.ndarray]) -> None:
        self.hashes = np.unique(np.concatenate([np.zeros(1, dtype=np.uint64), *wanted_hashes]))
        self.counts = np.zeros(len(self.hashes), dtype=np.int64)
        self.positions = np.full(len(self.hashes), -1, dtype=np.int64)
        self.num_tokens = 0
        self.num_searched = 0
        self.num_unknown = 0
        self.largest_id = 0
        # By its first bits, a hash that is not in this table is none of the wanted ones.
        bits = max(_FILTER_BITS, len(self.hashes).bit_length() + 6)
        self._shift = np.uint64(64 - bits)
        self._filter = np.zeros(1 << bits, dtype=bool)
        self._filter[self._first_bits(self.hashes)] = True

    def _first_bits(self, hashes: np.ndarray) -> np.ndarray:
        # all bits of a hash have influence on the high ones of the product
        return ((hashes ^ (hashes >> np.uint64(32))) * np.uint64(_MULTIPLIER)) >> self._shift

    def add(self, hashes: np.ndarray, start: int) -> None:
        """Count the n-grams that begin at the positions from `start` on."""
        near = np.flatnonzero(self._filter[self._first_bits(hashes)])
        # Few are left to be looked up: `entry` is the place of each in the sorted hashes.
        entry = np.searchsorted(self.hashes, hashes[near])
        is_hit = self.hashes[np.minimum(entry, len(self.hashes) - 1)] == hashes[near]
        entry = entry[is_hit]
        near = near[is_hit]
        np.add.at(self.counts, entry, 1)  # an n-gram may stand in a block several times
        # Of n-grams that are new, the first position in this block.
        hit, first = np.unique(entry, return_index=True)
        is_new = self.positions[hit] < 0
        self.positions[hit[is_new]] = start + near[first[is_new]]

    @property
    def searched_fraction(self) -> float:
        return self.num_searched / max(1, self.num_tokens)

    def is_found(self, hashes: np.ndarray) -> np.ndarray:
        """bool, of any shape; only for hashes that were wanted."""
        return self.counts[np.searchsorted(self.hashes, hashes)] > 0

    def only_position(self, hashes: np.ndarray) -> np.ndarray:
        """Where an n-gram stands that stands there once.

        It is -1 for any other, and for hash 0 (none).
        """
        place = np.searchsorted(self.hashes, hashes)
        return np.where((self.counts[place] == 1) & (hashes != 0), self.positions[place], -1)


def search(shards: TokenShards, wanted_hashes: Sequence[np.ndarray], unk_id: int) -> NgramIndex:
    """One pass over the tokens of a split.

    Args:
        shards: of the split; of a very large one every second, third, ... block is searched.
        wanted_hashes: of n-grams, uint64 arrays of any length, in any order.
        unk_id: of [UNK].
    """
    index = NgramIndex(wanted_hashes)
    index.num_tokens = shards.num_tokens
    stride = -(-shards.num_tokens // MAX_SEARCHED_TOKENS)
    # A block ends with the first tokens of the next one, which are counted there.
    for number, (start, block) in enumerate(shards.tokens.blocks(BLOCK_TOKENS, NGRAM - 1)):
        if number % stride or not len(block):
            continue
        tokens = block[:BLOCK_TOKENS]
        index.num_searched += len(tokens)
        index.largest_id = max(index.largest_id, int(tokens.max()))
        index.num_unknown += int(np.count_nonzero(tokens == unk_id))
        if len(block) >= NGRAM:
            index.add(ngram_hashes(block), start)
    return index
