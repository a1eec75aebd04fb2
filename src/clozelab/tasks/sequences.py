"""Tokenised examples as flat arrays.

They are built once, stored in the cache, and gathered into packed batches without padding.

A sequence is one model input with its special tokens: `[CLS] first [SEP]`, `[CLS] first [SEP]
second [SEP]`, or what the tokenizer has instead. All lie behind each other in one array, so that a
batch of any of them is one gather:

    input_ids    [CLS] a b [SEP] [CLS] c [SEP] [CLS] d e f [SEP]
    offsets      0               4             7                 12

Unusual: training batches hold examples of similar length, which on a CPU is worth a factor of two
to three; the price is that they are not uniform draws. Where examples are each other's negatives,
batches are drawn without regard to length.

Letters: N sequences, B sequences of a batch, T tokens of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import Draws
from clozelab.corpus.tokenizers import Tokenizer

Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
POOL_BATCHES = 50  # what is shuffled, sorted by length, cut into batches and shuffled again


class Sequences(ABC):
    """What batches are made of.

    It is N examples, each of one sequence or of several that belong together.
    """

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    @abstractmethod
    def lengths(self) -> Ints:
        """[N] in tokens."""

    @property
    def num_targets(self) -> Ints:
        """[N]: how many predictions each example's loss sums over."""
        return np.ones(len(self), dtype=np.int64)

    @abstractmethod
    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The examples at `index` [B] as a batch's arrays.

        `lengths` are those of the stream's sequences.
        """


@dataclass(frozen=True)
class TokenSequences(Sequences):
    """Sequences of unequal length."""

    input_ids: Int32s  # [sum of lengths]
    offsets: Ints  # [N + 1]
    # [N] position from which token type 1 is used; the sequence's length where it is not
    second_starts: Int32s
    # [N] tokens lost to the largest length; None where that was not counted
    cut_tokens: Int32s | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("input_ids", "offsets", "second_starts")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TokenSequences:
        return cls(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])

    def content_numbers(self) -> Ints:
        """[N]: a number for each sequence; those of the same tokens have the same one."""
        numbers: dict[bytes, int] = {}
        pieces = np.split(self.input_ids, self.offsets[1:-1])
        return np.array([numbers.setdefault(piece.tobytes(), len(numbers)) for piece in pieces])

    def cut_counts(self) -> dict[str, int]:
        if self.cut_tokens is None:
            return {"truncated_sequences": 0, "truncated_tokens": 0}
        cut = self.cut_tokens
        return {"truncated_sequences": int((cut > 0).sum()), "truncated_tokens": int(cut.sum())}

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The sequences at `index` [B] behind each other.

        The arrays are input_ids, token_type_ids and position_ids [T], and lengths [B].
        """
        lengths = self.offsets[index + 1] - self.offsets[index]
        position_ids, flat = ragged_positions(self.offsets[index], lengths)
        is_second = position_ids >= np.repeat(self.second_starts[index], lengths)
        return {
            "input_ids": self.input_ids[flat].astype(np.int64),
            "token_type_ids": is_second.astype(np.int64),
            "position_ids": position_ids,
            "lengths": lengths,
        }


@dataclass(frozen=True)
class GroupedSequences(Sequences):
    """Examples of `group_size` sequences each, such as one a choice.

    The sequences of an example are neighbours in one batch.
    """

    sequences: TokenSequences  # [N * group_size]
    group_size: int

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths.reshape(-1, self.group_size).sum(axis=1)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        # examples [3, 0] of two sequences each are sequences [6, 7, 0, 1]
        members = index[:, None] * self.group_size + np.arange(self.group_size)
        return self.sequences.gather(members.reshape(-1))


def subset(num_examples: int, max_examples: int | None) -> list[int]:
    """File positions of the examples to use, in file order.

    They are all, or a pseudo-random choice that every arm and every seed shares. A smaller limit
    chooses a part of what a larger one does.
    """
    if max_examples is None or max_examples >= num_examples:
        return list(range(num_examples))
    # the examples of the smallest draws: seed 0 for all
    draws = Draws(0, 0, np.arange(num_examples)).bits("task-subset")
    smallest = np.argsort(draws, kind="stable")[:max_examples]
    return sorted(smallest.tolist())


def balanced_subset(
    num_examples: int, max_examples: int | None, seed: int, classes: Ints | None
) -> list[int]:
    """As `subset`, but drawn by `seed`, with as many examples of each class as of any other.

    Where a class has too few, or the number cannot be divided, some have one or more less. Without
    `classes` [N] the draw is one of all examples.
    """
    draws = Draws(seed, 0, np.arange(num_examples)).bits("few-shot")
    if classes is None:
        classes = np.zeros(num_examples, dtype=np.int64)
    # Place of each example within its class: the firsts of all classes go before the seconds.
    by_class = np.lexsort((draws, classes))
    _, counts = np.unique(classes, return_counts=True)
    places = np.empty(num_examples, dtype=np.int64)
    places[by_class], _ = ragged_positions(np.zeros_like(counts), counts)
    chosen = np.lexsort((draws, places))[:max_examples]
    return sorted(chosen.tolist())


def ragged_positions(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The elements of all ranges start..start+length, one range behind the other.

    The first array is each element's position inside its own range, the second its position in the
    flat array. For starts [4, 9] and lengths [3, 2]:

        inside    0 1 2 0 1
        flat      4 5 6 9 10
    """
    ends = np.cumsum(lengths)
    total = ends[-1] if len(ends) else 0
    inside = np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)
    return inside, inside + np.repeat(starts, lengths)


def marked_tokens(
    offsets: Ints, positions: NDArray[np.integer], index: Ints, lengths: Ints
) -> tuple[Ints, Ints]:
    """The marked tokens of a batch: their numbers among all, and their slots in its stream.

    Args:
        offsets: [N + 1], where the marked tokens of each sequence begin.
        positions: of each in its own sequence.
        index: [B], the sequences of the batch.
        lengths: [B], of these.
    """
    counts = offsets[index + 1] - offsets[index]
    _, numbers = ragged_positions(offsets[index], counts)
    # lengths [3, 4, 2] -> sequences start at slots [0, 3, 7]
    starts = np.cumsum(lengths) - lengths
    return numbers, np.repeat(starts, counts) + positions[numbers]


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """Where each of N pieces begins when they lie behind each other [N + 1].

    The last offset is where the last piece ends: lengths [3, 2] have the offsets [0, 3, 5].
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def concatenate(pieces: Sequence[Int32s]) -> tuple[Int32s, Ints]:
    """Pieces behind each other and their offsets [number of pieces + 1]."""
    flat = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    return flat.astype(np.int32, copy=False), offsets_of([len(piece) for piece in pieces])


def join_sequences(splits: Sequence[TokenSequences]) -> TokenSequences:
    """The sequences of all splits behind each other."""
    offsets = offsets_of(np.concatenate([split.lengths for split in splits]))
    input_ids = np.concatenate([split.input_ids for split in splits])
    second_starts = np.concatenate([split.second_starts for split in splits])
    return TokenSequences(input_ids, offsets, second_starts)


def encode_examples(
    tokenizer: Tokenizer,
    first: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    max_seq_length: int,
) -> TokenSequences:
    """Sequences of texts or pairs, at most `max_seq_length` long.

    A pair's longer text is cut first, at its end.
    """
    budget = max_seq_length - 2  # beside [CLS] and the last [SEP]
    if second is not None:
        budget -= tokenizer.pair_separators
    if budget < 2:
        raise ValueError(
            f"max_seq_length={max_seq_length} leaves no room for text beside the special tokens"
        )
    ids = tokenizer.encode_batch(list(first))
    if second is None:
        cut = [max(0, len(a) - budget) for a in ids]
        return assemble(tokenizer, [a[:budget] for a in ids], None, cut)
    firsts: list[Int32s] = []
    seconds: list[Int32s] = []
    cut = []
    for a, b in zip(ids, tokenizer.encode_batch(list(second)), strict=True):
        keep_a, keep_b = longest_first(len(a), len(b), budget)
        firsts.append(a[:keep_a])
        seconds.append(b[:keep_b])
        cut.append(len(a) + len(b) - keep_a - keep_b)
    return assemble(tokenizer, firsts, seconds, cut)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths after taking tokens from the longer text, one by one, until both fit.

    Of texts of equal length the second loses: 5 and 9 tokens in a budget of 8 become 4 and 4.
    """
    if first + second <= budget:
        return first, second
    # The first keeps half, rounded up, or what the second does not need.
    kept = min(first, max(budget - budget // 2, budget - second))
    return kept, budget - kept


def window_ranges(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first token, number of tokens) of each window over a text; none for an empty one."""
    if not num_tokens:
        return []
    step = min(room, stride)
    # The last window is the first one that reaches the text's end.
    starts = range(0, max(1, num_tokens - room + step), step)
    return [(start, min(room, num_tokens - start)) for start in starts]


def encode_windows(
    tokenizer: Tokenizer, texts: Sequence[str], *, max_seq_length: int, stride: int
) -> tuple[TokenSequences, Ints]:
    """Windows of texts of any length, `stride` tokens apart; no text is left out.

    The second array is where each text's windows begin [N + 1].
    """
    room = max_seq_length - 2
    if not 1 <= stride <= room:
        raise ValueError(
            f"window_stride={stride} tokens: sequences of {max_seq_length} hold {room} beside the"
            f" special tokens, so give 1 to {max(1, room)} (half of a sequence is usual)"
        )
    return assemble_windows(tokenizer, tokenizer.encode_batch(list(texts)), room, stride)


def assemble_windows(
    tokenizer: Tokenizer, texts: Sequence[Int32s], room: int, stride: int
) -> tuple[TokenSequences, Ints]:
    """As `encode_windows`, of texts that are tokens already; an empty one is one empty window."""
    windows: list[Int32s] = []
    num_windows = []
    for ids in texts:
        ranges = window_ranges(len(ids), room, stride)
        if not ranges:
            ranges = [(0, 0)]
        windows += [ids[start : start + length] for start, length in ranges]
        num_windows.append(len(ranges))
    return assemble(tokenizer, windows, None, [0] * len(windows)), offsets_of(num_windows)


def pool_windows(values: np.ndarray, offsets: Ints, pooling: str = "mean") -> np.ndarray:
    """[windows, ...] -> [N, ...], their `mean` or `max`; those of text n begin at offsets[n]."""
    if len(offsets) == len(values) + 1:
        return values  # one window a text
    # `reduceat` reduces from each start to the next one: starts [0, 3] of five windows give rows 0
    # to 2 and rows 3 to 4.
    if pooling == "max":
        return np.maximum.reduceat(values, offsets[:-1], axis=0)
    sums = np.add.reduceat(values, offsets[:-1], axis=0)
    return sums / np.diff(offsets)[:, None].astype(values.dtype)


def assemble(
    tokenizer: Tokenizer,
    first: Sequence[Int32s],
    second: Sequence[Int32s] | None = None,
    cut: Sequence[int] = (),
) -> TokenSequences:
    """Sequences of texts or pairs that are tokens already.

    `cut` is how many tokens each has lost, or nothing.
    """
    cls = np.array([tokenizer.cls_id], dtype=np.int32)
    sep = np.array([tokenizer.sep_id], dtype=np.int32)
    if second is None:
        sequences = [np.concatenate([cls, ids, sep]) for ids in first]
    else:
        middle = np.repeat(sep, tokenizer.pair_separators)
        sequences = []
        for a, b in zip(first, second, strict=True):
            sequences.append(np.concatenate([cls, a, middle, b, sep]))
    # Without token types the second text begins behind the sequence: it has no token of type 1.
    starts = [len(sequence) for sequence in sequences]
    if second is not None and tokenizer.has_token_types:
        starts = [1 + len(a) + tokenizer.pair_separators for a in first]
    input_ids, offsets = concatenate(sequences)
    second_starts = np.array(starts, dtype=np.int32)
    return TokenSequences(input_ids, offsets, second_starts, np.array(cut, dtype=np.int32))


def bucketed_batches(lengths: Ints, *, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """All N examples once, shuffled, in batches of `batch_size`.

    One batch is smaller where the size does not divide N. A pool of examples is sorted by length
    and cut into batches, so that a batch is of similar lengths; then the batches are shuffled.
    """
    num_examples = len(lengths)
    pool_size = POOL_BATCHES * batch_size
    draws = Draws(seed, epoch, np.arange(num_examples)).bits("finetune-examples")
    order = np.argsort(draws, kind="stable")
    batches: list[Ints] = []
    for pool_start in range(0, num_examples, pool_size):
        pool = order[pool_start : pool_start + pool_size]
        # Like lengths share a batch; which examples share a pool is drawn anew each epoch.
        by_length = pool[np.argsort(lengths[pool], kind="stable")]
        for start in range(0, len(pool), batch_size):
            batches.append(by_length[start : start + batch_size])
    draws = Draws(seed, epoch, np.arange(len(batches))).bits("finetune-batches")
    return [batches[number] for number in np.argsort(draws, kind="stable")]


def token_budget_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """All examples once, longest first, in batches of at most `max_tokens` tokens.

    An example of more tokens is a batch of its own.
    """
    if not len(lengths):
        return []
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start = total = 0
    for position, length in enumerate(lengths[order].tolist()):
        if position > start and total + length > max_tokens:
            batches.append(order[start:position])
            start = position
            total = 0
        total += length
    batches.append(order[start:])
    return batches
