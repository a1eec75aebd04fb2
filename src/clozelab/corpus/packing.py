"""Rows of tokens as one stream, for the encoder that computes no padding.

Legend: T slots in the stream, B rows, S slots a row. Two shapes share one structure: a rectangle of B rows of S slots
(T = B * S, real tokens first; pre-training) and a ragged stream (T = sum of lengths; fine-tuning). Nothing here loops
over rows.

Masking for the masked language model, a whole batch at once.

Each row gets exactly max(1, round(predict_prob * candidates)) predicted positions, drawn without replacement from all
slots but [CLS], [SEP] and padding: the slots with the smallest random keys. What happens to a chosen position is drawn
for each position by itself. The random replacement of WordPiece comes from the whole vocabulary list, special tokens
included, as in the released code (the paper does not say); it can therefore be the original token. Byte-level BPE
leaves its special tokens out, as RoBERTa's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import integers, uniform01, uniform_u64

I64 = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class TokenSource(Protocol):
    """What packing needs of a token store: random access by global position."""

    def take(self, positions: I64) -> NDArray[Any]:
        """Tokens at `positions`: any shape, same shape back."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class SpecialIds:
    """The ids that building and masking rows need, and how the tokenizer writes a pair."""

    cls: int
    sep: int
    pad: int
    mask: int
    vocab_size: int
    pair_separators: int = 1
    """Separators between the two segments of a pair."""
    has_token_types: bool = True
    """Whether the second segment has token type 1; else all are 0."""
    undrawn: tuple[int, ...] = ()
    """Ids, ascending, that are never drawn as a random replacement."""

    @classmethod
    def of(cls, tokenizer: Any) -> SpecialIds:
        """Reads them off anything with the tokenizer's attributes."""
        return cls(
            cls=tokenizer.cls_id,
            sep=tokenizer.sep_id,
            pad=tokenizer.pad_id,
            mask=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            pair_separators=tokenizer.pair_separators,
            has_token_types=tokenizer.has_token_types,
            undrawn=tokenizer.undrawn_ids,
        )


@dataclass(frozen=True)
class PackedRows:
    """One batch of rows, numpy, ready for an objective."""

    input_ids: I64
    """[T]"""
    token_type_ids: I64
    """[T]"""
    position_ids: I64
    """[T] slot within the row."""
    lengths: I64
    """[B] real tokens of each row, CLS and SEP included."""
    row_slots: int | None
    """S where the stream is a rectangle, None where it is ragged."""
    instance: NDArray[np.uint64]
    """[B] name of each row for the random numbers."""
    special: BoolArray
    """[T] CLS, SEP and PAD slots: never candidates for masking."""
    next_sentence_label: I64 | None = None
    """[B] 1 = B comes from another document; None where the input format has no pairs."""
    source: I64 | None = None
    """[B] index of the (first) segment's source."""
    num_fallbacks: int = 0
    """Rows that should have had a random next segment but found none in the allowed tries, and stayed IsNext."""

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    @property
    def slots(self) -> I64:
        """[B] slots of each row in the stream (its length, or S)."""
        return self.lengths if self.row_slots is None else np.full_like(self.lengths, self.row_slots)

    @property
    def row_of_slot(self) -> I64:
        """[T] row of each slot."""
        return np.repeat(np.arange(self.num_rows), self.slots)


def pack_ragged(
    sequences: Sequence[Any],
    token_type_ids: Sequence[Any] | None = None,
    *,
    special_ids: Sequence[int] = (),
    instance: Any | None = None,
) -> PackedRows:
    """Finished sequences of ids (specials included) end to end: T = sum of lengths.

    `token_type_ids`, one array a sequence, default to zeros; `special_ids` are marked in `special`; `instance` names
    the rows (default 0..B-1). Raises ValueError for an empty batch, an empty sequence or unequal token types.
    """
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    if not len(lengths) or not lengths.all():
        raise ValueError(
            f"Cannot pack {len(lengths)} sequences of lengths {lengths[:8]}: each needs at least one token."
        )
    if token_type_ids is not None and [len(types) for types in token_type_ids] != lengths.tolist():
        raise ValueError("token_type_ids must have one entry for each token of each sequence.")
    input_ids = np.concatenate([np.asarray(sequence) for sequence in sequences]).astype(np.int64)
    if token_type_ids is None:
        types = np.zeros_like(input_ids)
    else:
        types = np.concatenate([np.asarray(part) for part in token_type_ids]).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    names = np.arange(len(lengths)) if instance is None else np.asarray(instance)
    return PackedRows(
        input_ids=input_ids,
        token_type_ids=types,
        position_ids=np.arange(len(input_ids)) - np.repeat(starts, lengths),
        lengths=lengths,
        row_slots=None,
        instance=names.astype(np.uint64),
        special=np.isin(input_ids, np.asarray(special_ids, dtype=np.int64)),
    )


@dataclass(frozen=True)
class Spans:
    """Where segments A and B of each row lie in the token store: all [B], in tokens."""

    a_start: I64
    a_length: I64
    b_start: I64
    b_length: I64


def pack_pairs(tokens: TokenSource, spans: Spans, ids: SpecialIds, row_slots: int, instance: I64) -> PackedRows:
    """[CLS] A [SEP] B [SEP] [PAD]...: a rectangle of `row_slots` slots a row; a + b fit beside the special tokens.

    With two `ids.pair_separators` it is <s> A </s></s> B </s>. One gather for the whole batch; special slots read a
    neighbouring token first and are overwritten.
    """
    slot = np.arange(row_slots)[None, :]
    first_sep = spans.a_length[:, None] + 1
    b_slot = first_sep + ids.pair_separators
    last_sep = b_slot + spans.b_length[:, None]
    in_b = slot >= b_slot
    input_ids = _take(tokens, slot + np.where(in_b, spans.b_start[:, None] - b_slot, spans.a_start[:, None] - 1))
    is_pad = slot > last_sep
    is_sep = (slot == last_sep) | ((slot >= first_sep) & ~in_b)
    input_ids[:, 0] = ids.cls
    input_ids[is_pad] = ids.pad
    input_ids[is_sep] = ids.sep
    special = is_pad | is_sep
    special[:, 0] = True
    token_type_ids = (in_b & ~is_pad & ids.has_token_types).astype(np.int64)
    return _rectangle(input_ids, token_type_ids, special, last_sep[:, 0] + 1, instance)


def pack_windows(
    tokens: TokenSource,
    start: I64,
    length: I64,
    separators: tuple[I64, I64],
    ids: SpecialIds,
    row_slots: int,
    instance: I64,
) -> PackedRows:
    """[CLS] text [SEP] [PAD]... with extra [SEP] inside, all token types 0.

    `start` [B] and `length` [B] count text tokens only; `separators` = (row [X], text offset [X]) puts one extra [SEP]
    before the text token with that offset in its row, ascending in each row. length + separators <= row_slots - 2.
    """
    sep_row, sep_offset = separators
    sep_number = np.arange(len(sep_row)) - np.searchsorted(sep_row, sep_row)
    sep_slot = 1 + sep_offset + sep_number
    inserted = np.zeros((len(start), row_slots + 1), dtype=np.int64)
    inserted[sep_row, sep_slot] = 1
    num_separators = inserted.sum(1)
    shift = np.cumsum(inserted[:, :-1], axis=1) if len(sep_row) else inserted[:, :-1]
    slot = np.arange(row_slots)[None, :]
    last_sep = length + num_separators + 1
    input_ids = _take(tokens, start[:, None] + slot - 1 - shift)
    special = inserted[:, :-1] > 0
    input_ids[special] = ids.sep
    is_pad = slot > last_sep[:, None]
    input_ids[is_pad] = ids.pad
    input_ids[:, 0] = ids.cls
    rows = np.arange(len(input_ids))
    input_ids[rows, last_sep] = ids.sep
    special |= is_pad
    special[:, 0] = True
    special[rows, last_sep] = True
    return _rectangle(input_ids, np.zeros_like(input_ids), special, last_sep + 1, instance)


def _take(tokens: TokenSource, positions: I64) -> I64:
    """int64, of the same shape; special slots at the ends of the store may point outside it."""
    np.maximum(positions, 0, out=positions)
    np.minimum(positions, len(tokens) - 1, out=positions)
    return np.asarray(tokens.take(positions)).astype(np.int64, copy=False)


def _rectangle(input_ids: I64, token_type_ids: I64, special: BoolArray, lengths: I64, instance: I64) -> PackedRows:
    num_rows, row_slots = input_ids.shape
    return PackedRows(
        input_ids=input_ids.reshape(-1),
        token_type_ids=token_type_ids.reshape(-1),
        position_ids=np.tile(np.arange(row_slots), num_rows),
        lengths=lengths,
        row_slots=row_slots,
        instance=np.asarray(instance).astype(np.uint64),
        special=special.reshape(-1),
    )


Epoch = int | NDArray[np.int64]

_SLOT_BITS = 16
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Masking:
    """How many positions are predicted and what the encoder sees there; the three fractions sum to 1."""

    predict_prob: float
    mask_fraction: float
    random_fraction: float
    same_fraction: float

    def __post_init__(self) -> None:
        fractions = (self.mask_fraction, self.random_fraction, self.same_fraction)
        if not 0.0 < self.predict_prob <= 1.0:
            raise ValueError(f"predict_prob is {self.predict_prob}; it must lie in (0, 1].")
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            raise ValueError(
                f"mask_fraction, random_fraction and same_fraction are {fractions}, sum {sum(fractions):g}; "
                "they must not be negative and must sum to 1."
            )

    def apply(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> tuple[I64, I64, I64]:
        """Returns (input_ids [T] as the encoder sees them, prediction_rows [P] ascending, prediction_labels [P])."""
        position = choose_positions(rows, self.predict_prob, seed, epoch)
        labels = rows.input_ids[position]
        row = rows.row_of_slot[position]
        name = (seed, epoch if isinstance(epoch, int) else epoch[row])
        slot = rows.position_ids[position]
        action = uniform01(*name, "mask action", rows.instance[row], slot)
        drawn = integers(*name, "mask token", rows.instance[row], slot, high=ids.vocab_size - len(ids.undrawn))
        for index in ids.undrawn:
            drawn += drawn >= index
        seen = np.where(action < self.mask_fraction, ids.mask, drawn)
        seen = np.where(action < self.mask_fraction + self.random_fraction, seen, labels)
        input_ids = rows.input_ids.copy()
        input_ids[position] = seen
        return input_ids, position, labels


def choose_positions(rows: PackedRows, predict_prob: float, seed: int, epoch: Epoch) -> I64:
    """Stream positions [P] to predict, ascending.

    Keys carry the slot in their low bits, so no two are equal and the number is exact.
    """
    width = int(rows.slots.max())
    slot = np.arange(width, dtype=np.uint64)
    column = epoch if isinstance(epoch, int) else epoch[:, None]
    keys = uniform_u64(seed, column, "mask position", rows.instance[:, None], slot[None, :])
    keys &= ~np.uint64((1 << _SLOT_BITS) - 1)
    keys |= slot
    inside: NDArray[np.bool_] | None = None
    if rows.row_slots is None:
        inside = slot[None, :] < rows.lengths[:, None].astype(np.uint64)
        special = np.ones(keys.shape, dtype=bool)
        special[inside] = rows.special
    else:
        special = rows.special.reshape(keys.shape)
    keys[special] = _NEVER
    candidates = width - special.sum(1)
    count = np.minimum(candidates, np.maximum(1, np.rint(predict_prob * candidates).astype(np.int64)))
    threshold = np.sort(keys, axis=1)[np.arange(len(keys)), np.maximum(count - 1, 0)]
    chosen = (keys <= threshold[:, None]) & ~special
    return np.flatnonzero(chosen if inside is None else chosen[inside])
