"""Pre-training instances as one stream of tokens, and which of them the masked language model
predicts.

A batch is a rectangle of B instances with S slots each, T = B * S; real tokens come first. P
positions are predicted.

Masking: each instance gets exactly `Masking.number` predicted positions, drawn without replacement
from all slots but [CLS], [SEP] and padding: the slots with the smallest random keys
(`choose_spans`: whole words and spans). What happens to a chosen position is drawn for each by
itself, or once a span. The random replacement of WordPiece comes from the whole vocabulary list,
special tokens included, as in the released code (the paper does not say); it can therefore be the
original token. Byte-level BPE leaves its special tokens out, as RoBERTa's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import integers, uniform01, uniform_u64

if TYPE_CHECKING:
    from clozelab.corpus.shards import TokenStream

I64 = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Epoch = int | I64  # one for all instances, or [B]

_SLOT_BITS = 16
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class SpecialIds:
    """What building and masking instances need of a tokenizer, whose attributes of these names say
    what they mean.
    """

    cls: int
    sep: int
    pad: int
    mask: int
    vocab_size: int
    pair_separators: int = 1
    has_token_types: bool = True
    undrawn: tuple[int, ...] = ()  # `undrawn_ids`
    # [V]; None: every token is a word
    continues: BoolArray | None = field(default=None, compare=False, repr=False)
    knows_words: bool = True  # False: `continues` cannot be known

    @classmethod
    def of(cls, tokenizer: Any) -> SpecialIds:
        ids = {name: getattr(tokenizer, f"{name}_id") for name in ("cls", "sep", "pad", "mask")}
        rules = {
            name: getattr(tokenizer, name)
            for name in ("vocab_size", "pair_separators", "has_token_types")
        }
        continues = tokenizer.continues()
        known = {"continues": continues, "knows_words": continues is not None}
        return cls(**ids, **rules, undrawn=tokenizer.undrawn_ids, **known)


@dataclass(frozen=True)
class PackedInstances:
    """One batch, numpy, ready for an objective; what is not said otherwise is [T]."""

    input_ids: I64
    token_type_ids: I64
    position_ids: I64  # slot within the instance
    lengths: I64  # [B] real tokens of each instance, CLS and SEP included
    width: int  # S
    names: NDArray[np.uint64]  # [B] what the random numbers know each instance by
    special: BoolArray  # CLS, SEP and PAD slots: never candidates for masking
    a_length: I64 | None = None
    # [B] tokens of each segment; None where the input format has no pairs
    b_length: I64 | None = None
    # [B] 1 = B is from another document; None where it is not drawn
    next_sentence_label: I64 | None = None
    source: I64 | None = None  # [B] index of the (first) segment's source
    b_source: I64 | None = None  # [B] of the second one's, where it may be another
    # instances that found no random next segment in the allowed tries, and stayed IsNext
    num_fallbacks: int = 0

    @property
    def num_instances(self) -> int:
        return len(self.lengths)

    @property
    def one_source(self) -> BoolArray | None:
        """[B] whether both segments are of one source; None where they always are."""
        return (
            None if self.source is None or self.b_source is None else self.source == self.b_source
        )

    @property
    def is_real(self) -> BoolArray:
        """False on padding."""
        return self.position_ids < np.repeat(self.lengths, self.width)


@dataclass(frozen=True)
class Spans:
    """Where segments A and B of each instance lie in the token store: all [B], in tokens."""

    a_start: I64
    a_length: I64
    b_start: I64
    b_length: I64


def pack_pairs(
    tokens: TokenStream, spans: Spans, ids: SpecialIds, width: int, names: I64
) -> PackedInstances:
    """[CLS] A [SEP] B [SEP] [PAD]..., or <s> A </s></s> B </s>, in `width` slots each, where they
    fit.
    """
    slot = np.arange(width)[None, :]
    first_sep = spans.a_length[:, None] + 1
    b_slot = first_sep + ids.pair_separators
    last_sep = b_slot + spans.b_length[:, None]
    in_b, is_pad = slot >= b_slot, slot > last_sep
    is_sep = (slot == last_sep) | ((slot >= first_sep) & ~in_b)
    positions = slot + np.where(in_b, spans.b_start[:, None] - b_slot, spans.a_start[:, None] - 1)
    token_type_ids = (in_b & ~is_pad & ids.has_token_types).astype(np.int64)
    packed = _rectangle(tokens, positions, is_sep, is_pad, token_type_ids, ids, names)
    return replace(packed, a_length=spans.a_length, b_length=spans.b_length)


def pack_windows(
    tokens: TokenStream,
    start: I64,
    length: I64,
    separators: tuple[I64, I64],
    ids: SpecialIds,
    width: int,
    names: I64,
) -> PackedInstances:
    """[CLS] text [SEP] [PAD]... with extra [SEP] inside, all token types 0.

    `start` [B] and `length` [B] count text tokens only; `separators` = (instance [X], text offset
    [X]) puts one extra [SEP] before the text token with that offset in its instance, ascending in
    each. length + separators <= width - 2.
    """
    sep_instance, sep_offset = separators
    sep_number = np.arange(len(sep_instance)) - np.searchsorted(sep_instance, sep_instance)
    inserted = np.zeros((len(start), width), dtype=np.int64)
    inserted[sep_instance, 1 + sep_offset + sep_number] = 1
    slot = np.arange(width)[None, :]
    last_sep = (length + inserted.sum(1) + 1)[:, None]
    positions = start[:, None] + slot - 1 - np.cumsum(inserted, axis=1)
    is_sep = (inserted > 0) | (slot == last_sep)
    return _rectangle(
        tokens, positions, is_sep, slot > last_sep, np.zeros_like(positions), ids, names
    )


def column_of(epoch: Epoch) -> Epoch:
    """As it broadcasts against [B, ...]."""
    return epoch if isinstance(epoch, int) else epoch[:, None]


def _rectangle(
    tokens: TokenStream,
    positions: I64,
    is_sep: BoolArray,
    is_pad: BoolArray,
    types: I64,
    ids: SpecialIds,
    names: I64,
) -> PackedInstances:
    """One gather for the whole batch, all [B, S]; special slots read a neighbouring token first, to
    be overwritten.
    """
    input_ids = tokens.take(np.clip(positions, 0, len(tokens) - 1, out=positions))
    input_ids[is_pad] = ids.pad
    input_ids[is_sep] = ids.sep
    input_ids[:, 0] = ids.cls
    special = is_pad | is_sep
    special[:, 0] = True
    number, width = input_ids.shape
    return PackedInstances(
        input_ids=input_ids.reshape(-1),
        token_type_ids=types.reshape(-1),
        position_ids=np.tile(np.arange(width), number),
        lengths=width - is_pad.sum(1),
        width=width,
        names=np.asarray(names).astype(np.uint64),
        special=special.reshape(-1),
    )


@dataclass
class Masking:
    """How many positions are predicted, which, and what the encoder sees there; the three fractions
    sum to 1.
    """

    predict_prob: float
    mask_fraction: float
    random_fraction: float
    same_fraction: float
    count_specials: bool = False  # predict_prob is of [CLS] and [SEP], too, as in the released code
    # of the slots, at most: its max_predictions_per_seq, 20 of 128
    max_predictions_fraction: float = 1.0
    whole_words: bool = False  # all pieces of a word are predicted, or none
    # how often spans of 1, 2, ... words (or tokens) begin, in proportion
    span_weights: Sequence[float] = (1.0,)
    one_action_a_span: bool = False  # of [MASK], random and same

    def __post_init__(self) -> None:
        fractions = (self.mask_fraction, self.random_fraction, self.same_fraction)
        if not 0.0 < self.predict_prob <= 1.0:
            raise ValueError(f"predict_prob is {self.predict_prob}; it must lie in (0, 1].")
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            said = (
                f"mask_fraction, random_fraction and same_fraction are {fractions}, sum"
                f" {sum(fractions):g}"
            )
            raise ValueError(f"{said}; they must not be negative and must sum to 1.")
        if (
            min(self.max_predictions_fraction, sum(self.span_weights)) <= 0
            or min(self.span_weights) < 0
        ):
            said = (
                f"max_predictions_fraction is {self.max_predictions_fraction}, span_weights"
                f" {self.span_weights}"
            )
            wanted = (
                "a share above 0, and a number for each length from 1 on, such as [1.0] or [6,"
                " 3, 2]"
            )
            raise ValueError(f"{said}: give {wanted}.")

    def number(self, lengths: I64, candidates: I64, width: int) -> I64:
        """Predictions of instances [B] of so many tokens, of which so many may be predicted, in
        `width` slots.
        """
        wanted = np.rint(
            self.predict_prob * (lengths if self.count_specials else candidates)
        ).astype(np.int64)
        return np.minimum(
            candidates,
            np.maximum(1, np.minimum(wanted, int(self.max_predictions_fraction * width))),
        )

    def apply(
        self, packed: PackedInstances, ids: SpecialIds, seed: int, epoch: Epoch
    ) -> tuple[I64, I64, I64]:
        """Returns (input_ids [T] as the encoder sees them, prediction_positions [P] ascending,
        labels [P]).
        """
        num_special = packed.special.reshape(-1, packed.width).sum(1)
        number = self.number(packed.lengths, packed.width - num_special, packed.width)
        if self.whole_words and not ids.knows_words:
            raise ValueError(
                "whole_words=true needs a tokenizer whose entries say which of them go on with a"
                " word, and this one's do not: take whole_words=false"
            )
        if self.whole_words or len(self.span_weights) > 1:
            begins = begin_words(packed, ids.continues if self.whole_words else None)
            position, first = choose_spans(packed, number, begins, self.span_weights, seed, epoch)
        else:
            position = first = choose_positions(packed, number, seed, epoch)
        labels = packed.input_ids[position]
        instance = position // packed.width
        draw = (seed, epoch if isinstance(epoch, int) else epoch[instance])
        slot = packed.position_ids[position]
        decides = packed.position_ids[first] if self.one_action_a_span else slot
        action = uniform01(*draw, "mask action", packed.names[instance], decides)
        drawn = integers(
            *draw,
            "mask token",
            packed.names[instance],
            slot,
            high=ids.vocab_size - len(ids.undrawn),
        )
        for index in ids.undrawn:
            drawn += drawn >= index
        seen = np.where(action < self.mask_fraction, ids.mask, drawn)
        seen = np.where(action < self.mask_fraction + self.random_fraction, seen, labels)
        input_ids = packed.input_ids.copy()
        input_ids[position] = seen
        return input_ids, position, labels


def choose_positions(packed: PackedInstances, number: I64, seed: int, epoch: Epoch) -> I64:
    """Stream positions to predict, ascending, `number` [B] of each instance; [P]."""
    keys, special = _keys(packed, seed, epoch), packed.special.reshape(-1, packed.width)
    keys[special] = _NEVER
    threshold = np.sort(keys, axis=1)[np.arange(len(keys)), np.maximum(number - 1, 0)]
    return np.flatnonzero((keys <= threshold[:, None]) & ~special)


def _keys(packed: PackedInstances, seed: int, epoch: Epoch) -> NDArray[np.uint64]:
    """The order in which slots are chosen [B, S]; the slot in the low bits, so that no two of an
    instance are equal.
    """
    slot = np.arange(packed.width, dtype=np.uint64)
    keys = uniform_u64(
        seed, column_of(epoch), "mask position", packed.names[:, None], slot[None, :]
    )
    keys &= ~np.uint64((1 << _SLOT_BITS) - 1)
    keys |= slot
    return keys


def begin_words(packed: PackedInstances, continues: BoolArray | None) -> BoolArray:
    """[B, S] where words begin. As in the released code, a B that begins inside a word goes on with
    A's last one.
    """
    text = ~packed.special.reshape(-1, packed.width)
    goes_on = False if continues is None else continues[packed.input_ids].reshape(text.shape)
    return text & ~(goes_on & (np.cumsum(text, axis=1) > 1))


def choose_spans(
    packed: PackedInstances,
    number: I64,
    begins: BoolArray,
    weights: Sequence[float],
    seed: int,
    epoch: Epoch,
) -> tuple[I64, I64]:
    """Stream positions to predict, ascending, at most `number` [B] of each instance, and where
    their spans begin; [P].

    Words are tried in the order of their keys. A span has as many as are drawn, or ends before one
    that is taken, too long, or behind a separator. If not even its first word fits, the next is
    tried, as in the released code."""
    rows, slots, most = (
        np.arange(len(begins))[:, None],
        np.arange(packed.width)[None, :],
        len(weights),
    )
    text, word = ~packed.special.reshape(begins.shape), np.cumsum(begins, axis=1) - 1
    first, span = np.full((2, len(begins), packed.width + most), -1)  # by word
    first[np.nonzero(begins)[0], word[begins]] = np.nonzero(begins)[1]
    size = np.bincount((rows * first.shape[1] + word)[text], minlength=first.size).reshape(
        first.shape
    )
    drawn = uniform01(seed, column_of(epoch), "mask span", packed.names[:, None], slots)
    reach = 1 + np.searchsorted(np.cumsum(weights[:-1]) / sum(weights), drawn, side="right")
    order = np.argsort(np.where(begins, _keys(packed, seed, epoch), _NEVER), axis=1)
    left, words = number.copy(), begins.sum(1)
    for turn in range(int(words.max(initial=0))):
        if not len(row := np.flatnonzero((left > 0) & (turn < words))):
            break
        slot = order[row, turn]
        at, grows = word[row, slot], np.ones(len(row), dtype=bool)
        for step in range(most):
            taken, joins = (
                span[row, at] >= 0,
                first[row, at] == first[row, at - 1] + size[row, at - 1],
            )
            grows &= (
                (step < reach[row, slot])
                & ~taken
                & (joins | (step == 0))
                & (size[row, at] <= left[row])
            )
            span[row[grows], at[grows]] = slot[grows]
            left[row[grows]] -= size[row[grows], at[grows]]
            at = at + 1
    begun = np.where(text, span[rows, word], -1)
    position = np.flatnonzero(begun >= 0)
    return position, (rows * packed.width + begun).reshape(-1)[position]
