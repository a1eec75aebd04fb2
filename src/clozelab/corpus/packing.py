"""Pre-training instances as one stream of tokens, and which of them a masked model predicts.

A batch is a rectangle of B instances with S slots each, T = B * S; real tokens come first. P
positions are predicted.

Masking: each instance gets exactly `Masking.number` predicted positions, drawn without replacement
from all slots but [CLS], [SEP] and padding: the slots with the smallest random priorities
(`choose_spans`: whole words and spans). What happens to a chosen position is drawn for each by
itself, or once a span. The random replacement of WordPiece comes from the whole vocabulary list,
special tokens included, as in the released code (the paper does not say); it can therefore be the
original token. Byte-level BPE leaves its special tokens out, as RoBERTa's code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import COLUMN, Draws
from clozelab.readers.lines import decoded_lines

if TYPE_CHECKING:
    from clozelab.corpus.shards import TokenStream
    from clozelab.corpus.tokenizers import Tokenizer

I64 = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Epoch = int | I64  # one for all instances, or [B]

_SLOT_BITS = 16
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class SpecialIds:
    """What building and masking instances need of a tokenizer.

    The tokenizer's attributes of these names say what they mean.
    """

    cls: int
    sep: int
    pad: int
    mask: int
    vocab_size: int
    pair_separators: int = 1  # 0 where `no_pairs` says why pairs cannot be read
    has_token_types: bool = True
    undrawn: tuple[int, ...] = ()  # `undrawn_ids`
    # [V] whether an entry goes on with a word; None: every token is a word
    continues: BoolArray | None = field(default=None, compare=False, repr=False)
    knows_words: bool = True  # False: `continues` cannot be known
    # texts -> the ids of each, for `Masking.units`; None: not at hand
    encode: Callable[[Sequence[str]], Sequence[np.ndarray]] | None = field(
        default=None, compare=False, repr=False
    )
    no_pairs: str = ""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> SpecialIds:
        ids = cls(
            cls=tokenizer.cls_id,
            sep=tokenizer.sep_id,
            pad=tokenizer.pad_id,
            mask=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            pair_separators=0 if tokenizer.no_pairs else tokenizer.pair_separators,
            has_token_types=tokenizer.has_token_types,
            no_pairs=tokenizer.no_pairs,
        )
        continues = tokenizer.continues()
        return replace(
            ids,
            undrawn=tokenizer.undrawn_ids,
            continues=continues,
            knows_words=continues is not None,
            encode=tokenizer.encode_batch,
        )


@dataclass(frozen=True)
class PackedInstances:
    """One batch, numpy, ready for an objective; what is not said otherwise is [T].

    T = B * S: slot s of instance b is b * S + s, and padding fills a row behind its real tokens.
    """

    input_ids: I64
    token_type_ids: I64
    lengths: I64  # [B] real tokens of each instance, CLS and SEP included
    width: int  # S
    ids: SpecialIds
    draws: Draws  # of the instances, in the epoch that they are of
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
    order: I64 | None = None  # [B] place among all instances of the phase; None: as they stand

    @property
    def position_ids(self) -> I64:
        """[T] the slot within the instance."""
        return np.tile(np.arange(self.width), self.num_instances)

    @property
    def num_instances(self) -> int:
        return len(self.lengths)

    @property
    def one_source(self) -> BoolArray | None:
        """[B] whether both segments are of one source; None where they always are."""
        if self.source is None or self.b_source is None:
            return None
        return self.source == self.b_source

    @property
    def is_real(self) -> BoolArray:
        """False on padding."""
        return self.position_ids < np.repeat(self.lengths, self.width)


@dataclass(frozen=True)
class SegmentSpans:
    """Where segments A and B of each instance lie in the token store: all [B], in tokens."""

    a_start: I64
    a_length: I64
    b_start: I64
    b_length: I64


def pack_pairs(
    tokens: TokenStream, spans: SegmentSpans, ids: SpecialIds, width: int, draws: Draws
) -> PackedInstances:
    """[CLS] A [SEP] B [SEP] [PAD]..., or <s> A </s></s> B </s>, in `width` slots each.

    They have to fit. With A of 2 tokens, B of 1 and one separator:

        slot         0     1  2  3     4  5     6
        token        [CLS] a  a  [SEP] b  [SEP] [PAD]
        first_sep 3, b_slot 4, last_sep 5
    """
    b_slot = spans.a_length + 1 + ids.pair_separators
    last_sep = b_slot + spans.b_length
    row_start = width * np.arange(len(b_slot))
    separators = [row_start + last_sep]
    for number in range(ids.pair_separators):
        separators.append(row_start + b_slot - 1 - number)
    # Numbers of few bits are compared many at once: 16 bits for a width of 512.
    slot = np.arange(width, dtype=np.min_scalar_type(width))
    is_b = slot >= b_slot.astype(slot.dtype)[:, None]
    is_padding = slot > last_sep.astype(slot.dtype)[:, None]
    # A window of tokens for each segment, which lies in it at its slots.
    starts = np.array([spans.a_start - 1, spans.b_start - b_slot])
    input_ids, b_window = tokens.windows(starts, width)
    np.copyto(input_ids, b_window, where=is_b)
    # Types 0 of A, 1 of B and its [SEP], 0 of padding.
    is_second = (is_b & ~is_padding) & ids.has_token_types
    token_type_ids = is_second.astype(np.int64)
    packed = _rectangle(
        input_ids, is_padding, np.concatenate(separators), last_sep + 1, token_type_ids, ids, draws
    )
    return replace(packed, a_length=spans.a_length, b_length=spans.b_length)


def pack_windows(
    tokens: TokenStream,
    start: I64,
    length: I64,
    separators: tuple[I64, I64],
    ids: SpecialIds,
    width: int,
    draws: Draws,
) -> PackedInstances:
    """[CLS] text [SEP] [PAD]... with extra [SEP] inside, all token types 0.

    `start` [B] and `length` [B] count text tokens only; `separators` = (instance [X], text offset
    [X]) puts one extra [SEP] before the text token with that offset in its instance, ascending in
    each. length + separators <= width - 2. With 3 tokens and a separator before offset 1:

        slot        0     1  2     3  4  5
        token       [CLS] a  [SEP] b  c  [SEP]
        inserted    0     0  1     0  0  0
    """
    sep_instance, sep_offset = separators
    # number of each separator inside its instance: it stands behind as many others
    sep_number = np.arange(len(sep_instance)) - np.searchsorted(sep_instance, sep_instance)
    inserted = np.zeros((len(start), width), dtype=np.int64)
    inserted[sep_instance, 1 + sep_offset + sep_number] = 1
    row_start = width * np.arange(len(start))
    last_sep = length + inserted.sum(1) + 1
    # From a slot of an instance to the place in the token store.
    shift = (start - 1)[:, None] - np.cumsum(inserted, axis=1)
    input_ids = tokens.take(np.arange(width) + shift)
    is_padding = np.arange(width) > last_sep[:, None]
    sep_slots = np.concatenate([np.flatnonzero(inserted), row_start + last_sep])
    token_type_ids = np.zeros(inserted.shape, dtype=np.int64)
    return _rectangle(input_ids, is_padding, sep_slots, last_sep + 1, token_type_ids, ids, draws)


def _rectangle(
    tokens: NDArray[np.integer],
    is_padding: BoolArray,
    separators: I64,
    lengths: I64,
    token_type_ids: I64,
    ids: SpecialIds,
    draws: Draws,
) -> PackedInstances:
    """The batch of these `lengths` [B], with [SEP] at the slots `separators` [X] of its stream.

    `tokens` [B, S] are right at the slots of text; at those of special tokens they are overwritten.
    """
    input_ids = tokens.astype(np.int64).reshape(-1)
    special = is_padding.reshape(-1)
    input_ids[special] = ids.pad
    input_ids[separators] = ids.sep
    width = tokens.shape[1]
    input_ids[::width] = ids.cls
    special[separators] = True
    special[::width] = True
    return PackedInstances(
        input_ids=input_ids,
        token_type_ids=token_type_ids.reshape(-1),
        lengths=lengths,
        width=width,
        ids=ids,
        draws=draws,
        special=special,
    )


@dataclass
class Masking:
    """How many positions are predicted, which, and what the encoder sees there.

    The three fractions are of the predicted positions, and sum to 1.
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
    # a text file with a phrase or a name a line: such a unit of the text is one word (ERNIE)
    units: str | None = None
    _unit_ids: dict[int, NDArray[np.int64]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        fractions = (self.mask_fraction, self.random_fraction, self.same_fraction)
        if not 0.0 < self.predict_prob <= 1.0:
            raise ValueError(f"predict_prob is {self.predict_prob}; it must lie in (0, 1].")
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            raise ValueError(
                f"mask_fraction, random_fraction and same_fraction are {fractions}, sum"
                f" {sum(fractions):g}; they must not be negative and must sum to 1."
            )
        weights = self.span_weights
        has_weights = isinstance(weights, Sequence) and sum(weights) > 0 and min(weights) >= 0
        if self.max_predictions_fraction <= 0 or not has_weights:
            raise ValueError(
                f"max_predictions_fraction is {self.max_predictions_fraction}, span_weights"
                f" {self.span_weights}: give a share above 0, and a number for each length from 1"
                " on, such as [1.0] or [6, 3, 2]."
            )
        self.unit_texts = [] if self.units is None else read_units(Path(self.units))

    def masks(self, packed: PackedInstances) -> BoolArray:
        """[B] the instances in which it hides anything."""
        return np.ones(packed.num_instances, dtype=bool)

    def number(self, lengths: I64, candidates: I64, width: int) -> I64:
        """How many positions are predicted in each instance [B].

        `lengths` [B] are its tokens, `candidates` [B] those that may be predicted, `width` its
        slots.
        """
        base = lengths if self.count_specials else candidates
        wanted = np.rint(self.predict_prob * base).astype(np.int64)
        largest = int(self.max_predictions_fraction * width)
        at_least_one = np.maximum(1, np.minimum(wanted, largest))
        return np.minimum(candidates, at_least_one)

    def apply(self, packed: PackedInstances) -> tuple[I64, I64, I64]:
        """Choose what is predicted, and hide it.

        Returns (input_ids [T] as the encoder sees them, prediction_positions [P] ascending, labels
        [P]).
        """
        if self.whole_words and not packed.ids.knows_words:
            raise ValueError(
                "whole_words=true needs a tokenizer whose entries say which of them go on with a"
                " word, and this one's do not: take whole_words=false"
            )
        num_special = packed.special.reshape(-1, packed.width).sum(1, dtype=np.int32)
        number = self.number(packed.lengths, packed.width - num_special, packed.width)
        if self.hides_words or len(self.span_weights) > 1:
            begins = self.begins(packed)
            position, first = choose_spans(packed, number, begins, self.span_weights)
        else:
            position = choose_positions(packed, number)
            first = position  # a position is a span of its own
        labels = packed.input_ids[position]
        replacement = self._replacements(packed, position, first, labels)
        input_ids = packed.input_ids.copy()
        input_ids[position] = replacement
        return input_ids, position, labels

    @property
    def hides_words(self) -> bool:
        """Whether tokens that belong together are predicted together."""
        return self.whole_words or bool(self.unit_texts)

    def begins(self, packed: PackedInstances) -> BoolArray:
        """[B, S] where what is predicted as a whole begins: a token, a word or a unit."""
        ids = packed.ids
        begins = begin_words(packed, ids.continues if self.whole_words else None)
        # A plan of a corpus that is not prepared has no tokenizer yet.
        if self.unit_texts and ids.encode is not None:
            # Encoded once; a worker process has its own copy.
            if self._unit_ids is None:
                self._unit_ids = encode_units(self.unit_texts, ids)
            # A token inside a unit no longer begins a word of its own.
            is_continuation = inside_units(packed.input_ids, self._unit_ids)
            begins = begins & ~is_continuation.reshape(begins.shape)
        return begins

    def _replacements(self, packed: PackedInstances, position: I64, first: I64, labels: I64) -> I64:
        """What the encoder sees at each `position` [P].

        `first` [P]: where its span begins; `labels` [P]: what stands there.
        """
        ids = packed.ids
        row = position // packed.width
        slot = position - row * packed.width
        # With one action a span, all positions of a span ask for the draw of its first slot.
        action_slot = slot
        if self.one_action_a_span:
            action_slot = first % packed.width
        action = packed.draws.uniform("mask action", action_slot, rows=row)
        # [0, mask) -> [MASK]; [mask, mask + random) -> a random token; else the token itself
        is_mask = action < self.mask_fraction
        is_hidden = action < self.mask_fraction + self.random_fraction
        seen = np.where(is_mask, ids.mask, labels)
        random = np.flatnonzero(is_hidden & ~is_mask)
        # A random token: the `undrawn` ids are skipped, in ascending order.
        num_drawn = ids.vocab_size - len(ids.undrawn)
        random_token = packed.draws.integers(
            "mask token", slot[random], rows=row[random], high=num_drawn
        )
        for index in ids.undrawn:
            random_token += random_token >= index
        seen[random] = random_token
        return seen


def choose_positions(packed: PackedInstances, number: I64) -> I64:
    """Stream positions to predict [P], ascending.

    `number` [B]: of each instance, at most as many as it has text slots.
    """
    # Half of the bits are sorted several times as fast, and two slots rarely agree in them.
    priorities = packed.draws.upper_bits("mask position", packed.width)
    # Their top bit is free: special slots come behind all others.
    priorities |= packed.special.reshape(priorities.shape).astype(np.uint32) << np.uint32(31)
    position = _smallest(priorities, number)
    if len(position) > number.sum():
        is_text = ~packed.special.reshape(priorities.shape)
        position = _smallest(np.where(is_text, _slot_priorities(packed), _NEVER), number)
        position = position[~packed.special[position]]
    return position


def _smallest(priorities: NDArray[np.unsignedinteger], number: I64) -> I64:
    """Stream positions up to the `number`-th smallest of the priorities [B, S] of an instance."""
    rows = np.arange(len(priorities))
    threshold = np.sort(priorities, axis=1)[rows, np.maximum(number - 1, 0)]
    return np.flatnonzero(priorities <= threshold[:, None])


def _slot_priorities(packed: PackedInstances) -> NDArray[np.uint64]:
    """The order in which slots are chosen [B, S]: smaller ones first.

    The slot stands in the low bits, so that no two of an instance are equal.
    """
    slot = np.arange(packed.width, dtype=np.uint64)
    priorities = packed.draws.bits("mask position", slot, rows=COLUMN)
    priorities &= ~np.uint64((1 << _SLOT_BITS) - 1)
    priorities |= slot
    return priorities


def begin_words(packed: PackedInstances, continues: BoolArray | None) -> BoolArray:
    """[B, S] where words begin; without `continues`, every token is a word.

    As in the released code, a B that begins inside a word goes on with A's last one.
    """
    is_text = ~packed.special.reshape(-1, packed.width)
    if continues is None:
        return is_text
    is_continuation = continues[packed.input_ids].reshape(is_text.shape)
    # The first token of a text begins a word, whatever it is.
    is_first = np.cumsum(is_text, axis=1) <= 1
    return is_text & (~is_continuation | is_first)


def read_units(path: Path) -> list[str]:
    """The lines of a file of units; ValueError for one that is missing or empty."""
    if not path.is_file():
        raise ValueError(
            f"objective.token.units: there is no file {path}; give a text file with a phrase or a"
            " name a line"
        )
    units = [line.strip() for _, line in decoded_lines(path)]
    if not units:
        raise ValueError(f"objective.token.units: {path} has no unit: write one a line")
    return units


def encode_units(texts: Sequence[str], ids: SpecialIds) -> dict[int, I64]:
    """Number of tokens -> the different units of so many, [units, tokens]; of two or more.

    A unit may stand at the beginning of a text or behind a blank, which byte-level BPE tells apart.
    """
    assert ids.encode is not None
    # By length, so that windows of one length are compared with an array of it.
    by_length: dict[int, set[tuple[int, ...]]] = {}
    for encoded in [*ids.encode(texts), *ids.encode([f" {text}" for text in texts])]:
        unit = tuple(int(token) for token in encoded)
        # One token is hidden whole in any case.
        if len(unit) > 1:
            by_length.setdefault(len(unit), set()).add(unit)
    return {length: np.array(sorted(units)) for length, units in by_length.items()}


def inside_units(input_ids: I64, units: Mapping[int, I64]) -> BoolArray:
    """[T] tokens of a unit behind its first one; of units that overlap the longest, then the first.

    token     [CLS] new york city is big [SEP]
    goes on   0     0   1    1    0  0   0
    """
    is_continuation = np.zeros(len(input_ids), dtype=bool)
    is_taken = np.zeros(len(input_ids), dtype=bool)
    for length in sorted(units, reverse=True):
        if length > len(input_ids):
            continue
        windows = np.lib.stride_tricks.sliding_window_view(input_ids, length)
        # Few windows begin as a unit does; those are compared as a whole.
        candidates = np.flatnonzero(np.isin(windows[:, 0], units[length][:, 0]))
        known = set(map(tuple, units[length].tolist()))
        for start in candidates.tolist():
            end = start + length
            if tuple(windows[start].tolist()) in known and not is_taken[start:end].any():
                is_taken[start:end] = True
                is_continuation[start + 1 : end] = True
    return is_continuation


def choose_spans(
    packed: PackedInstances, number: I64, begins: BoolArray, weights: Sequence[float]
) -> tuple[I64, I64]:
    """Stream positions to predict [P], ascending, and where their spans begin [P].

    There are at most `number` [B] positions of each instance. Words are tried in the order of their
    priorities. A span has as many words as are drawn, or ends before one that is taken, too long,
    or behind a separator. If not even its first word fits, the next is tried, as in the released
    code.
    """
    rows = np.arange(len(begins))[:, None]
    word_table = _Words.from_packed(packed, begins, len(weights))
    # [B, S] how many words a span that begins at a slot is to have
    draw = packed.draws.uniform("mask span", np.arange(packed.width), rows=COLUMN)
    cumulative = np.cumsum(weights[:-1]) / sum(weights)
    span_lengths = 1 + np.searchsorted(cumulative, draw, side="right")
    # [B, S] slots at which words begin, in the order in which they are tried
    priorities = np.where(begins, _slot_priorities(packed), _NEVER)
    order = np.argsort(priorities, axis=1)
    span = _grow_spans(word_table, order, begins.sum(1), span_lengths, number)
    # From words to slots.
    span_of_slot = np.where(word_table.is_text, span[rows, word_table.number], -1)
    position = np.flatnonzero(span_of_slot >= 0)
    first = (rows * packed.width + span_of_slot).reshape(-1)[position]
    return position, first


def _grow_spans(words: _Words, order: I64, num_words: I64, span_lengths: I64, number: I64) -> I64:
    """[B, words] the slot at which the span begins that has taken each word; -1: none has.

    `order` [B, S] are the slots to begin at, the first `num_words` [B] of each instance;
    `span_lengths` [B, S] the words of a span; `number` [B] the most tokens that may be taken.
    """
    span = np.full(words.first.shape, -1)
    left = number.copy()
    for turn in range(int(num_words.max(initial=0))):
        # One turn: every instance with predictions left tries its next word as a span's first.
        row = np.flatnonzero((left > 0) & (turn < num_words))
        if not len(row):
            break
        slot = order[row, turn]
        word = words.number[row, slot]
        length = span_lengths[row, slot]
        grows = np.ones(len(row), dtype=bool)
        for step in range(int(length.max())):
            grows &= step < length
            grows &= span[row, word] < 0
            grows &= words.size[row, word] <= left[row]
            if step > 0:
                grows &= words.joins_previous(row, word)
            span[row[grows], word[grows]] = slot[grows]
            left[row[grows]] -= words.size[row[grows], word[grows]]
            word = word + 1
    return span


@dataclass(frozen=True)
class _Words:
    """The words of a batch's instances, numbered in each instance from 0.

    slot      0     1  2     3    4
    token     [CLS] un ##fit cats [SEP]
    number          0  0     1
    first     1 3         size    2 1
    """

    is_text: BoolArray  # [B, S]
    number: I64  # [B, S] of each slot's word
    # [B, words] the slot at which each word begins; -1 where there is no such word
    first: I64
    size: I64  # [B, words] in tokens

    @classmethod
    def from_packed(cls, packed: PackedInstances, begins: BoolArray, longest_span: int) -> _Words:
        is_text = ~packed.special.reshape(begins.shape)
        number = np.cumsum(begins, axis=1) - 1
        # There are at most as many words as slots; a span may ask for some behind the last word.
        num_columns = packed.width + longest_span
        first = np.full((len(begins), num_columns), -1)
        row, slot = np.nonzero(begins)
        first[row, number[begins]] = slot
        # Count the tokens of (instance, word), as one flat number each.
        flat = np.arange(len(begins))[:, None] * num_columns + number
        size = np.bincount(flat[is_text], minlength=first.size).reshape(first.shape)
        return cls(is_text, number, first, size)

    def joins_previous(self, row: I64, word: I64) -> BoolArray:
        """Whether words begin where the one before them ends: no separator stands between."""
        previous_end = self.first[row, word - 1] + self.size[row, word - 1]
        return self.first[row, word] == previous_end
