"""How Unigram's pieces are learnt (Kudo 2018, SentencePiece): too many at first, then fewer.

A word can be cut into pieces in many ways, and a way is as probable as the product of its pieces'
probabilities. Expectation maximisation estimates these; in turns with it, those pieces are dropped
without which the text would lose least likelihood.

Unusual: the trainer of the tokenizers library adds up in the order of threads and hash maps, so its
scores, and with them ties, differ between two processes. It also keeps every character, however
rare. Here one thread adds up in one order, and the characters are given.

Letters: C characters of all words, W words of one length, n characters of a word, K characters of
the longest piece, P pieces.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_PIECE_CHARACTERS = 16  # K
# A longer word is learnt from in parts: a text without spaces is one word, and the product of more
# probabilities would be too small for a number.
MAX_WORD_CHARACTERS = 32
# of different words, the most frequent ones; 100,000 English words
MAX_CHARACTERS = 1_000_000
MIN_PIECE_COUNT = 2
CANDIDATES_PER_PIECE = 10  # in the beginning, for each piece that is asked for
KEPT_SHARE = 0.75  # of the pieces, whenever some are dropped
SPARE_SHARE = 1.1  # of the pieces asked for; the last of these are chosen by their probability
ESTIMATIONS = 2  # before pieces are dropped
DISCOUNT = 0.5  # off every expected count, so that rare pieces vanish
WORDS_PER_BLOCK = 4096
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of the hashes of stretches


def learn_pieces(
    words: Mapping[str, int],
    characters: Sequence[str],
    num_pieces: int,
    *,
    reserved: Collection[str] = (),
) -> dict[str, float]:
    """At most `num_pieces` pieces with their log-probabilities, the most probable first.

    Args:
        words: how often each word occurs; words consist of `characters`.
        characters: these are all among the pieces; NUL is none of them.
        num_pieces: the most pieces, characters included.
        reserved: strings of several characters that never become pieces.
    """
    text = DistinctWords.of(_most_frequent(words))
    candidates = text.candidates(CANDIDATES_PER_PIECE * num_pieces)
    learnt = [candidate for candidate in candidates if candidate not in reserved]
    pieces = np.array([*characters, *learnt])
    is_character = np.arange(len(pieces)) < len(characters)
    lattices = text.lattices(pieces)
    probabilities = np.full(len(pieces), 1 / len(pieces))
    while True:
        for _ in range(ESTIMATIONS):
            expected = expected_counts(lattices, probabilities)
            expected[is_character] = np.maximum(expected[is_character], 2 * DISCOUNT)
            probabilities = np.maximum(expected - DISCOUNT, 0.0)
            probabilities /= probabilities.sum()
        is_last = len(pieces) <= SPARE_SHARE * num_pieces
        if is_last:
            worth = probabilities
            most = num_pieces
        else:
            # What the text's log-likelihood loses without a piece.
            worth = expected * log_ratios(pieces, probabilities)
            most = max(int(SPARE_SHARE * num_pieces), int(KEPT_SHARE * len(pieces)))
        worth = np.where(is_character, np.inf, worth)
        alive = np.flatnonzero(probabilities > 0)
        kept = np.sort(alive[np.lexsort((pieces[alive], -worth[alive]))][:most])
        new_numbers = np.full(len(pieces) + 1, len(kept), dtype=np.int32)
        new_numbers[kept] = np.arange(len(kept))
        lattices = [replace(lattice, pieces=new_numbers[lattice.pieces]) for lattice in lattices]
        pieces = pieces[kept]
        is_character = is_character[kept]
        probabilities = probabilities[kept] / probabilities[kept].sum()
        if is_last:
            scores = np.log(probabilities)
            ranked = np.lexsort((pieces, -scores))
            return dict(zip(pieces[ranked].tolist(), scores[ranked].tolist(), strict=True))


def _most_frequent(words: Mapping[str, int]) -> dict[str, int]:
    """The most frequent parts of words, as many as MAX_CHARACTERS allow."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(0, len(word), MAX_WORD_CHARACTERS):
            counts[word[start : start + MAX_WORD_CHARACTERS]] += count
    # Of equally frequent ones a hash chooses: the alphabet would prefer some pieces.
    ranked = sorted(counts, key=lambda part: (-counts[part], zlib.crc32(part.encode()), part))
    ends = np.cumsum([len(part) for part in ranked])
    number = int(np.searchsorted(ends, MAX_CHARACTERS, side="right"))
    return {part: counts[part] for part in ranked[:number]}


@dataclass(frozen=True)
class Lattice:
    """Words of one length, and which piece each stretch of them is."""

    # [W, n, K] the piece of k + 1 characters that begins at a character; P: that is no piece
    pieces: NDArray[np.int32]
    counts: Floats  # [W] of each word


@dataclass(frozen=True)
class DistinctWords:
    """Different words one after the other, the shorter ones first."""

    text: str
    lengths: Ints
    counts: Floats

    @classmethod
    def of(cls, words: Mapping[str, int]) -> DistinctWords:
        ordered = sorted(words, key=lambda word: (len(word), word))
        lengths = np.array([len(word) for word in ordered])
        counts = np.array([words[word] for word in ordered], dtype=np.float64)
        return cls("".join(ordered), lengths, counts)

    def stretches(self) -> Iterator[tuple[Ints, NDArray[np.uint64]]]:
        """Where all stretches of 1, 2, ... K characters begin, and a hash of each."""
        # UTF-32 has four bytes a character, and they are its code point.
        codes = np.frombuffer(self.text.encode("utf-32-le"), dtype="<u4").astype(np.uint64)
        ends = np.repeat(np.cumsum(self.lengths), self.lengths)
        hashes = np.zeros_like(codes)
        for length in range(1, MAX_PIECE_CHARACTERS + 1):
            starts = np.flatnonzero(ends - np.arange(len(codes)) >= length)
            # One character more than the stretch from the same start had before.
            hashes[starts] = hashes[starts] * _MULTIPLIER + codes[starts + length - 1]
            yield starts, hashes[starts]

    def candidates(self, number: int) -> list[str]:
        """Stretches of several characters that cover most of the text."""
        counts = np.repeat(self.counts, self.lengths)
        begins_by_length = []
        lengths = []
        covered = []
        for length, (starts, hashes) in enumerate(self.stretches(), start=1):
            _, first, member = np.unique(hashes, return_index=True, return_inverse=True)
            occurrences = np.bincount(member, counts[starts])
            is_frequent = (occurrences >= MIN_PIECE_COUNT) & (length > 1)
            begins_by_length.append(starts[first[is_frequent]])
            lengths.append(np.full(np.count_nonzero(is_frequent), length))
            covered.append(length * occurrences[is_frequent])
        begins = np.concatenate(begins_by_length)
        ends = begins + np.concatenate(lengths)
        best = np.lexsort((ends, begins, -np.concatenate(covered)))[:number]
        return [self.text[begins[index] : ends[index]] for index in best.tolist()]

    def lattices(self, pieces: NDArray[np.str_]) -> list[Lattice]:
        """The words by their length, in blocks."""
        hashes_of_pieces = np.array([_hash(piece) for piece in pieces.tolist()], dtype=np.uint64)
        order = np.argsort(hashes_of_pieces)
        # [C, K]
        table = np.full((len(self.text), MAX_PIECE_CHARACTERS), len(pieces), dtype=np.int32)
        for column, (starts, hashes) in enumerate(self.stretches()):
            rank = np.searchsorted(hashes_of_pieces, hashes, sorter=order)
            number = order[np.minimum(rank, len(pieces) - 1)]
            is_piece = hashes_of_pieces[number] == hashes
            table[starts[is_piece], column] = number[is_piece]
        # Words of one length stand together, so that their part of the table is a rectangle.
        lattices = []
        word = 0
        begin = 0
        for length, number_of_words in zip(
            *np.unique(self.lengths, return_counts=True), strict=True
        ):
            end = begin + length * number_of_words
            columns = min(length, MAX_PIECE_CHARACTERS)
            rows = table[begin:end, :columns].reshape(number_of_words, length, columns)
            counts = self.counts[word : word + number_of_words]
            for low in range(0, number_of_words, WORDS_PER_BLOCK):
                block = slice(low, low + WORDS_PER_BLOCK)
                lattices.append(Lattice(rows[block], counts[block]))
            begin = end
            word += number_of_words
        return lattices


def _hash(piece: str) -> int:
    """As DistinctWords.stretches has it."""
    value = 0
    for character in piece:
        value = (value * int(_MULTIPLIER) + ord(character)) % 2**64
    return value


def expected_counts(lattices: Sequence[Lattice], probabilities: Floats) -> Floats:
    """How often each piece is expected in the words [P], by the probabilities [P] of all ways."""
    probabilities = np.append(probabilities, 0.0)  # what is no piece
    total = np.zeros(len(probabilities))
    for lattice in lattices:
        num_words, length, longest = lattice.pieces.shape
        of_piece = probabilities[lattice.pieces]
        # Probability of everything before a character, and of everything from it on; the columns
        # behind the word stay 0.
        before = np.zeros((num_words, length + longest))
        before[:, 0] = 1.0
        for start in range(length):
            reached = before[:, start, None] * of_piece[:, start]
            before[:, start + 1 : start + longest + 1] += reached
        behind = np.zeros((num_words, length + longest))
        behind[:, length] = 1.0
        for start in reversed(range(length)):
            following = behind[:, start + 1 : start + longest + 1]
            behind[:, start] = (of_piece[:, start] * following).sum(axis=1)
        # [W, n, K] what stands behind the piece of k + 1 characters
        following = sliding_window_view(behind, longest, axis=1)[:, 1 : length + 1]
        share = before[:, :length, None] * of_piece * following
        share *= (lattice.counts / before[:, length])[:, None, None]
        total += np.bincount(lattice.pieces.ravel(), share.ravel(), minlength=len(total))
    return total[:-1]


def log_ratios(pieces: NDArray[np.str_], probabilities: Floats) -> Floats:
    """How much more probable each piece is than the best way to cut it into others: logs [P]."""
    # A piece that vanishes is as good as impossible, and what is no piece entirely so.
    scores = np.append(np.log(np.maximum(probabilities, 1e-300)), -np.inf)
    ratios = np.zeros(len(pieces))
    numbers = {piece: number for number, piece in enumerate(pieces.tolist())}
    for lattice in DistinctWords.of(numbers).lattices(pieces):
        _, length, longest = lattice.pieces.shape
        row_pieces = lattice.counts.astype(np.int64)  # each piece's number, see above
        of_piece = scores[lattice.pieces]
        of_piece[:, 0, length - 1] = -np.inf
        best = np.full((len(row_pieces), length + longest), -np.inf)
        best[:, 0] = 0.0
        for start in range(length):
            reached = best[:, start, None] + of_piece[:, start]
            ends = best[:, start + 1 : start + longest + 1]
            np.maximum(ends, reached, out=ends)
        ratios[row_pieces] = scores[row_pieces] - best[:, length]
    return ratios
