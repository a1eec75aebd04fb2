"""Tokenised examples as flat arrays: built once, stored in the cache, gathered into packed batches without padding.

A sequence is one model input with its special tokens: `[CLS] first [SEP]`, `[CLS] first [SEP] second [SEP]`, or what
the tokenizer has instead (`<s> first </s></s> second </s>`). All sequences lie behind each other in one array, so that
a batch of any of them is one gather.

Letters: N sequences, B sequences of a batch, T tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import uniform_u64
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


class Sequences(Protocol):
    """What batches are made of: N examples, each of one sequence or of several that belong together."""

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
class TokenSequences:
    """Sequences of unequal length."""

    input_ids: NDArray[np.int32]
    """[sum of lengths]."""
    offsets: Ints
    """[N + 1]."""
    second_starts: NDArray[np.int32]
    """[N] position inside the sequence from which token type 1 is used; the sequence's length where it is not."""
    cut_tokens: NDArray[np.int32] | None = None
    """[N] tokens that a sequence lost to the largest length; None where that was not counted."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the cache stores."""
        return {name: getattr(self, name) for name in ("input_ids", "offsets", "second_starts")}

    def cut_counts(self) -> dict[str, int]:
        """What was lost to the largest length."""
        assert self.cut_tokens is not None, "the encoder counted them"
        return {
            "truncated_sequences": int((self.cut_tokens > 0).sum()),
            "truncated_tokens": int(self.cut_tokens.sum()),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> TokenSequences:
        """The inverse of `arrays`."""
        return cls(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def num_targets(self) -> Ints:
        return np.ones(len(self), dtype=np.int64)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """The sequences at `index` [B] behind each other: input_ids, token_type_ids, position_ids [T], lengths [B]."""
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
class GroupedSequences:
    """Examples of `group_size` sequences each, such as one a choice: neighbours in the same batch."""

    sequences: TokenSequences
    """[N * group_size]."""
    group_size: int

    def __len__(self) -> int:
        return len(self.sequences) // self.group_size

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths.reshape(-1, self.group_size).sum(axis=1)

    @property
    def num_targets(self) -> Ints:
        return np.ones(len(self), dtype=np.int64)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        return self.sequences.gather((index[:, None] * self.group_size + np.arange(self.group_size)).reshape(-1))


POOLINGS = ("mean", "max")


@dataclass(frozen=True)
class WindowRule:
    """How texts longer than a sequence are divided, and how what is said of the parts becomes one answer."""

    stride: int
    """In tokens, from one window's beginning to the next one's."""
    pooling: str
    """mean | max: of each logit over a text's windows."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"window_pooling={self.pooling!r} is unknown; known: {', '.join(POOLINGS)}")


@dataclass(frozen=True)
class Windows:
    """Which sequences are whose: those from offsets[i] to offsets[i + 1] are windows of example i."""

    offsets: Ints
    """[N + 1]."""
    pooling: str

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[sequences, K] -> [N, K]."""
        if self.pooling == "max":
            return np.maximum.reduceat(logits, self.offsets[:-1], axis=0)
        sums = np.add.reduceat(logits, self.offsets[:-1], axis=0)
        return (sums / np.diff(self.offsets)[:, None]).astype(np.float32)


@dataclass(frozen=True)
class LabelledSplit:
    """Examples of one split.

    `labels` [N] are indices into `label_names`; the numbers themselves where `label_names` is empty (regression); -1
    for a file without labels.
    """

    sequences: TokenSequences
    ids: NDArray[np.str_]
    labels: NDArray[Any]
    label_names: list[str]
    num_available: int
    """Examples of the file before `max_examples` cut it."""
    num_bad_rows: int
    counts: dict[str, int] = field(default_factory=dict)
    """What is unusual about those in use: truncated_sequences, truncated_tokens, empty_texts, duplicate_ids; and of
    windows: windows, texts_in_windows."""
    extra: dict[str, LabelledSplit] = field(default_factory=dict)
    """Further validation sets of the same task by name, scored beside this one."""
    windows: Windows | None = None
    """None: an example is one input."""

    @property
    def num_inputs(self) -> int:
        """Examples, or windows of them: as many as there are logits."""
        return len(self) if self.windows is None else len(self.sequences)

    @property
    def input_labels(self) -> NDArray[Any]:
        """[num_inputs]: a window has the label of its text."""
        return self.labels if self.windows is None else np.repeat(self.labels, np.diff(self.windows.offsets))

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[num_inputs, K] -> [N, K]."""
        return logits if self.windows is None else self.windows.pool(logits)

    @property
    def is_regression(self) -> bool:
        return not self.label_names

    def __len__(self) -> int:
        return len(self.ids)


def subset(num_examples: int, max_examples: int | None) -> list[int]:
    """File positions of the examples to use: all, or a fixed pseudo-random choice in file order.

    The choice depends on nothing but both numbers, so every arm and every seed trains on the same examples; a smaller
    limit chooses a part of what a larger one does.
    """
    if max_examples is None or max_examples >= num_examples:
        return list(range(num_examples))
    draws = uniform_u64(0, 0, "task-subset", np.arange(num_examples))
    return sorted(np.argsort(draws, kind="stable")[:max_examples].tolist())


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


def join_sequences(parts: Sequence[TokenSequences]) -> TokenSequences:
    """The sequences of all parts behind each other."""
    starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
    return TokenSequences(
        np.concatenate([part.input_ids for part in parts]),
        np.concatenate([*offsets, starts[-1:]]),
        np.concatenate([part.second_starts for part in parts]),
    )


def encode_examples(
    tokenizer: Tokenizer, first: Sequence[str], second: Sequence[str] | None = None, *, max_seq_length: int
) -> TokenSequences:
    """Sequences of texts or pairs, at most `max_seq_length` long; a pair's longer text is cut first, at its end."""
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
) -> tuple[TokenSequences, Ints]:
    """Sequences of single texts of any length, several of a long one, and where each text's sequences begin [N + 1].

    The windows of a text begin `stride` tokens apart, which must be less than a sequence holds: nothing is left out.
    """
    room = max_seq_length - 2
    if not 1 <= stride <= room:
        raise ValueError(
            f"window_stride={stride} tokens: sequences of {max_seq_length} hold {room} beside the special tokens, so "
            f"give 1 to {max(1, room)} (half of a sequence is usual)"
        )
    pieces, counts = [], []
    for ids in tokenizer.encode_batch(list(texts)):
        ranges = window_ranges(len(ids), room, stride) or [(0, 0)]
        pieces += [ids[start : start + length] for start, length in ranges]
        counts.append(len(ranges))
    sequences = _assemble(tokenizer, pieces, None, [0] * len(pieces))
    return sequences, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


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
) -> TokenSequences:
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    if second is None:
        sequences = [np.concatenate([cls, ids, sep]) for ids in first]
    else:
        middle = np.repeat(sep, tokenizer.pair_separators)
        sequences = [np.concatenate([cls, a, middle, b, sep]) for a, b in zip(first, second, strict=True)]
    has_types = second is not None and tokenizer.has_token_types
    starts = [len(a) + 2 for a in first] if has_types else [len(sequence) for sequence in sequences]
    input_ids, offsets = concatenate(sequences)
    return TokenSequences(input_ids, offsets, np.array(starts, dtype=np.int32), np.array(cut, dtype=np.int32))
