"""A task's texts and labels as they stand in its files, untokenised: for looking at them before anything is trained.

Tokenised examples as flat arrays: built once, stored in the cache, gathered into packed batches without padding.

A row is one model input, `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, special tokens included, or what the
tokenizer has instead (`<s> first </s></s> second </s>`). All rows lie behind each other in one array, so that a batch
of any rows is one gather.

Letters: N rows, B rows of a batch, T tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer


@dataclass(frozen=True)
class Preview:
    """One split. `texts`: part (sentence1, question, ...) -> the distinct or aligned texts of that part."""

    texts: Mapping[str, Sequence[str]]
    labels: Sequence[str] | None
    """One an example, as written; None where the target is no label."""
    num_examples: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the reader repaired or skipped."""


@dataclass(frozen=True)
class TaskPreview:
    train: Preview
    validation: Preview
    label_names: Sequence[str] | None
    """Classes in the order of their indices; None: a number, or no label at all."""
    is_regression: bool = False
    aligned: bool = False
    """Text number i of every part, and label i, are of example i."""
    expects_unanswerable: bool | None = None
    """Of questions: whether some may have no answer."""


Ints = NDArray[np.int64]


class Rows(Protocol):
    """What batches are made of: N examples, each of one row or of several that belong together."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Ints:
        """[N] in tokens."""

    @property
    def num_targets(self) -> Ints:
        """[N]: how many predictions each example's loss sums over."""

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """The examples at `index` [B] as a batch's arrays; `lengths` are those of the stream's sequences."""


@dataclass(frozen=True)
class TokenRows:
    """Rows of unequal length."""

    input_ids: NDArray[np.int32]
    """[sum of lengths]."""
    offsets: Ints
    """[N + 1]."""
    second_starts: NDArray[np.int32]
    """[N] position inside the row from which token type 1 is used; the row's length where it is not."""
    cut_tokens: NDArray[np.int32] | None = None
    """[N] tokens that a row lost to the largest length; None where that was not counted."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def num_targets(self) -> Ints:
        return np.ones(len(self), dtype=np.int64)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """The rows at `index` [B] behind each other: input_ids, token_type_ids, position_ids [T], lengths [B]."""
        lengths = self.offsets[index + 1] - self.offsets[index]
        position_ids, flat = ragged_positions(self.offsets[index], lengths)
        token_type_ids = position_ids >= np.repeat(self.second_starts[index], lengths)
        return {
            "input_ids": self.input_ids[flat].astype(np.int64),
            "token_type_ids": token_type_ids.astype(np.int64),
            "position_ids": position_ids,
            "lengths": lengths,
        }


@dataclass(frozen=True)
class GroupedRows:
    """Examples of `group_size` rows each, such as one a choice: they meet in the same batch, one after the other."""

    rows: TokenRows
    """[N * group_size]."""
    group_size: int

    def __len__(self) -> int:
        return len(self.rows) // self.group_size

    @property
    def lengths(self) -> Ints:
        return self.rows.lengths.reshape(-1, self.group_size).sum(axis=1)

    @property
    def num_targets(self) -> Ints:
        return np.ones(len(self), dtype=np.int64)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        return self.rows.gather((index[:, None] * self.group_size + np.arange(self.group_size)).reshape(-1))


def ragged_positions(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """(position inside its own range, position in the flat array) of all elements of the ranges start..start+length."""
    ends = np.cumsum(lengths)
    inside = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64) - np.repeat(ends - lengths, lengths)
    return inside, inside + np.repeat(starts, lengths)


def concatenate(pieces: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], Ints]:
    """Pieces behind each other and their offsets [number of pieces + 1]."""
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    flat = np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)
    return flat.astype(np.int32, copy=False), offsets


def join_rows(parts: Sequence[TokenRows]) -> TokenRows:
    """The rows of all parts behind each other."""
    starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
    return TokenRows(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([*offsets, starts[-1:]]),
        np.concatenate([part.second_starts for part in parts]),
    )


def encode_examples(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None, *, max_seq_length: int
) -> TokenRows:
    """Rows of single texts or pairs, at most `max_seq_length` long; a pair's longer text is cut first, at its end."""
    budget = max_seq_length - 2 - (0 if second is None else tokenizer.pair_separators)
    if budget < 2:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for text beside the special tokens")
    first_ids = tokenizer.encode_batch(list(first))
    if second is None:
        cut = [max(0, len(ids) - budget) for ids in first_ids]
        return _assemble(tokenizer, [ids[:budget] for ids in first_ids], None, cut)
    second_ids = tokenizer.encode_batch(list(second))
    kept = [longest_first(len(a), len(b), budget) for a, b in zip(first_ids, second_ids, strict=True)]
    return _assemble(
        tokenizer,
        [ids[:a] for ids, (a, _) in zip(first_ids, kept, strict=True)],
        [ids[:b] for ids, (_, b) in zip(second_ids, kept, strict=True)],
        [len(a) + len(b) - sum(both) for a, b, both in zip(first_ids, second_ids, kept, strict=True)],
    )


def window_ranges(num_tokens: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(first token, number of tokens) of each window over a text; none for an empty one."""
    ranges: list[tuple[int, int]] = []
    start = 0
    while start < num_tokens:
        length = min(num_tokens - start, room)
        ranges.append((start, length))
        if start + length == num_tokens:
            break
        start += min(length, stride)
    return ranges


def encode_windows(
    tokenizer: Tokenizer, texts: Sequence[str], *, max_seq_length: int, stride: int
) -> tuple[TokenRows, Ints]:
    """Rows of single texts of any length, several of a long one, and where each text's rows begin [N + 1].

    The windows of a text begin `stride` tokens apart, which must be less than a row holds: nothing is left out.
    """
    room = max_seq_length - 2
    if not 1 <= stride <= room:
        raise ValueError(
            f"window_stride={stride} tokens: rows of {max_seq_length} hold {room} beside the special tokens, so give "
            f"1 to {max(1, room)} (half of a row is usual)"
        )
    pieces, counts = [], []
    for ids in tokenizer.encode_batch(list(texts)):
        ranges = window_ranges(len(ids), room, stride) or [(0, 0)]
        pieces += [ids[start : start + length] for start, length in ranges]
        counts.append(len(ranges))
    rows = _assemble(tokenizer, pieces, None, [0] * len(pieces))
    return rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def longest_first(first: int, second: int, budget: int) -> tuple[int, int]:
    """Lengths after taking tokens from the longer text, one by one, until both fit; of equals the second loses."""
    if first + second <= budget:
        return first, second
    kept = min(first, max(budget - budget // 2, budget - second))
    return kept, budget - kept


def _assemble(
    tokenizer: Tokenizer,
    first: list[NDArray[np.int32]],
    second: list[NDArray[np.int32]] | None,
    cut: list[int],
) -> TokenRows:
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    if second is None:
        rows = [np.concatenate([cls, ids, sep]) for ids in first]
    else:
        middle = np.repeat(sep, tokenizer.pair_separators)
        rows = [np.concatenate([cls, a, middle, b, sep]) for a, b in zip(first, second, strict=True)]
    has_types = second is not None and tokenizer.has_token_types
    starts = [len(a) + 2 for a in first] if has_types else [len(row) for row in rows]
    input_ids, offsets = concatenate(rows)
    return TokenRows(input_ids, offsets, np.array(starts, dtype=np.int32), np.array(cut, dtype=np.int32))
