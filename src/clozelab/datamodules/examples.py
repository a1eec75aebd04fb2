"""Tokenised examples as flat arrays: built once, stored in the cache, gathered into packed batches
without padding.

A sequence is one model input with its special tokens: `[CLS] first [SEP]`, `[CLS] first [SEP]
second [SEP]`, or what the tokenizer has instead. All lie behind each other in one array, so that a
batch of any of them is one gather.

Unusual: training batches hold examples of similar length, which on a CPU is worth a factor of two
to three; the price is that they are not uniform draws.

Letters: N sequences, B sequences of a batch, T tokens of a batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import uniform_u64
from clozelab.corpus.tokenizers import Tokenizer

Ints = NDArray[np.int64]
Int32s = NDArray[np.int32]
POOL_BATCHES = 50  # what is shuffled, sorted by length, cut into batches and shuffled again


class Sequences(ABC):
    """What batches are made of: N examples, each of one sequence or of several that belong
    together.
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
    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """The examples at `index` [B] as a batch's arrays; `lengths` are those of the stream's
        sequences.
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: getattr(self, name) for name in ("input_ids", "offsets", "second_starts")}

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> TokenSequences:
        return cls(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])

    def cut_counts(self) -> dict[str, int]:
        cut = np.zeros(0) if self.cut_tokens is None else self.cut_tokens
        return {"truncated_sequences": int((cut > 0).sum()), "truncated_tokens": int(cut.sum())}

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """The sequences at `index` [B] behind each other: input_ids, token_type_ids, position_ids
        [T], lengths [B].
        """
        lengths = self.offsets[index + 1] - self.offsets[index]
        position_ids, flat = ragged_positions(self.offsets[index], lengths)
        return {
            "input_ids": self.input_ids[flat].astype(np.int64),
            "token_type_ids": (
                (position_ids >= np.repeat(self.second_starts[index], lengths)).astype(np.int64)
            ),
            "position_ids": position_ids,
            "lengths": lengths,
        }


@dataclass(frozen=True)
class GroupedSequences(Sequences):
    """Examples of `group_size` sequences each, such as one a choice: neighbours in the same
    batch.
    """

    sequences: TokenSequences  # [N * group_size]
    group_size: int

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths.reshape(-1, self.group_size).sum(axis=1)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        return self.sequences.gather(
            (index[:, None] * self.group_size + np.arange(self.group_size)).reshape(-1)
        )


def subset(num_examples: int, max_examples: int | None) -> list[int]:
    """File positions of the examples to use: all, or a pseudo-random choice that every arm and
    every seed shares.

    They are in file order; a smaller limit chooses a part of what a larger one does."""
    if max_examples is None or max_examples >= num_examples:
        return list(range(num_examples))
    draws = uniform_u64(0, 0, "task-subset", np.arange(num_examples))
    return sorted(np.argsort(draws, kind="stable")[:max_examples].tolist())


def ragged_positions(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """(position inside its own range, position in the flat array) of all elements of the ranges
    start..start+length.
    """
    ends = np.cumsum(lengths)
    inside = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) - np.repeat(
        ends - lengths, lengths
    )
    return inside, inside + np.repeat(starts, lengths)


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """[N + 1]: where each of N pieces begins when they lie behind each other, and where the last
    one ends.
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def concatenate(pieces: Sequence[Int32s]) -> tuple[Int32s, Ints]:
    """Pieces behind each other and their offsets [number of pieces + 1]."""
    flat = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    return flat.astype(np.int32, copy=False), offsets_of([len(piece) for piece in pieces])


def join_sequences(parts: Sequence[TokenSequences]) -> TokenSequences:
    """The sequences of all parts behind each other."""
    offsets = offsets_of(np.concatenate([part.lengths for part in parts]))
    input_ids = np.concatenate([part.input_ids for part in parts])
    return TokenSequences(
        input_ids, offsets, np.concatenate([part.second_starts for part in parts])
    )


def encode_examples(
    tokenizer: Tokenizer,
    first: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    max_seq_length: int,
) -> TokenSequences:
    """Sequences of texts or pairs, at most `max_seq_length` long; a pair's longer text is cut
    first, at its end.
    """
    budget = max_seq_length - 2 - (0 if second is None else tokenizer.pair_separators)
    if budget < 2:
        raise ValueError(
            f"max_seq_length={max_seq_length} leaves no room for text beside the special tokens"
        )
    ids = tokenizer.encode_batch(list(first))
    if second is None:
        cut = [max(0, len(a) - budget) for a in ids]
        return assemble(tokenizer, [a[:budget] for a in ids], None, cut)
    firsts, seconds, cut = [], [], []
    for a, b in zip(ids, tokenizer.encode_batch(list(second)), strict=True):
        keep_a, keep_b = longest_first(len(a), len(b), budget)
        firsts.append(a[:keep_a])
        seconds.append(b[:keep_b])
        cut.append(len(a) + len(b) - keep_a - keep_b)
    return assemble(tokenizer, firsts, seconds, cut)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths after taking tokens from the longer text, one by one, until both fit; of equals the
    second loses.
    """
    if first + second <= budget:
        return first, second
    kept = min(first, max(budget - budget // 2, budget - second))
    return kept, budget - kept


def window_ranges(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first token, number of tokens) of each window over a text; none for an empty one."""
    step = min(room, stride)
    starts = range(0, max(1, num_tokens - room + step), step) if num_tokens else ()
    return [(start, min(room, num_tokens - start)) for start in starts]


def encode_windows(
    tokenizer: Tokenizer, texts: Sequence[str], *, max_seq_length: int, stride: int
) -> tuple[TokenSequences, Ints]:
    """Windows of texts of any length, `stride` tokens apart, and where each text's begin [N + 1];
    none is left out.
    """
    room = max_seq_length - 2
    if not 1 <= stride <= room:
        held = f"sequences of {max_seq_length} hold {room} beside the special tokens"
        usual = f"give 1 to {max(1, room)} (half of a sequence is usual)"
        raise ValueError(f"window_stride={stride} tokens: {held}, so {usual}")
    pieces, counts = [], []
    for ids in tokenizer.encode_batch(list(texts)):
        ranges = window_ranges(len(ids), room, stride) or [(0, 0)]
        pieces += [ids[start : start + length] for start, length in ranges]
        counts.append(len(ranges))
    return assemble(tokenizer, pieces, None, [0] * len(pieces)), offsets_of(counts)


def assemble(
    tokenizer: Tokenizer,
    first: Sequence[Int32s],
    second: Sequence[Int32s] | None = None,
    cut: Sequence[int] = (),
) -> TokenSequences:
    """Sequences of texts or pairs that are tokens already; `cut`: how many each has lost, or
    nothing.
    """
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    if second is None:
        sequences = [np.concatenate([cls, ids, sep]) for ids in first]
    else:
        middle = np.repeat(sep, tokenizer.pair_separators)
        sequences = [
            np.concatenate([cls, a, middle, b, sep]) for a, b in zip(first, second, strict=True)
        ]
    has_types = second is not None and tokenizer.has_token_types
    if has_types:
        starts = [1 + len(a) + tokenizer.pair_separators for a in first]
    else:
        starts = [len(sequence) for sequence in sequences]
    input_ids, offsets = concatenate(sequences)
    return TokenSequences(
        input_ids, offsets, *(np.array(one, dtype=np.int32) for one in (starts, cut))
    )


def bucketed_batches(lengths: Ints, *, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """All N examples once, in batches of `batch_size` (one is smaller where it does not divide N),
    shuffled.
    """
    number, pool = len(lengths), POOL_BATCHES * batch_size
    order = np.argsort(
        uniform_u64(seed, epoch, "finetune-examples", np.arange(number)), kind="stable"
    )
    batches: list[Ints] = []
    for chunk in (order[i : i + pool] for i in range(0, number, pool)):
        by_length = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [by_length[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    shuffled = np.argsort(
        uniform_u64(seed, epoch, "finetune-batches", np.arange(len(batches))), kind="stable"
    )
    return [batches[i] for i in shuffled]


def token_budget_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """All examples once, longest first, in batches of at most `max_tokens` tokens (a longer example
    has its own).
    """
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start, total = 0, 0
    for position, length in enumerate(lengths[order].tolist()):
        if position > start and total + length > max_tokens:
            batches.append(order[start:position])
            start, total = position, 0
        total += length
    return [*batches, order[start:]] if len(order) else batches
