"""How text becomes instances: pairs of segments, or windows of full sentences.

Unusual, and the reason for each rule of `SegmentPairs`: the next sentence must be learnt from the
text, not read off lengths and cuts (a random B that is cut while a true B is whole gives 83 %
without learning anything). So

* the split between A and B is the first sentence boundary after a drawn position. It depends on A's
  text only, never on how B's sentences are cut (a uniform draw over the boundaries would prefer
  long first sentences in B);
* B's length follows from A alone (what A leaves of the budget). B is that many tokens from a
  sentence boundary on, wherever they end. Both kinds of B start at the split of some instance and
  are cut by the same rule;
* where the document ends too early, B keeps a random half or more of what is left. A random B for
  such a short one is cut just as near the end of its own document, so that "ends with a whole
  sentence" is not a sign of a true B.

The released builder (`cuts: released`) cuts otherwise, leaks included. A document is walked in
chunks of whole sentences, each as long as it has to be. A ends at one of its boundaries. B is the
rest or, half of the time and always where there is no rest, a run of sentences from another
document; what that replaces begins the next chunk. Then the longer side loses tokens at its front
or its end, until the pair fits; B's end betrays the label. That builder draws as it goes. Here what
is drawn at a sentence is a pure function of (builder_seed, copy, sentence). A walk begins a chunk
at a sentence once at most, so the distribution is the same, and an instance is known by its first
sentence. All runs read the same instances, as they would its files.

Instances are found by a greedy walk over whole sentences until the budget is reached; a document's
last one starts early enough to fill it. Only the number of an instance's first sentence is stored.

Letters: B instances of a batch, N documents or owners, C candidates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.packing import (
    I64,
    BoolArray,
    Epoch,
    PackedInstances,
    SegmentSpans,
    SpecialIds,
    pack_pairs,
    pack_windows,
)
from clozelab.corpus.random import COLUMN, Draws
from clozelab.text.did_you_mean import check_choice

if TYPE_CHECKING:
    from clozelab.corpus.shards import TokenShards

_BLOCK_SENTENCES = 1 << 20
_TRIES = (1, 3, 12, 48)
"""Candidates for a random next segment in each round, where there is still none.

Of full ones, nine in ten have one after the first; the rounds change only how fast it is found.
The released code tries ten times; an instance that finds none stays IsNext, which would tie the
label to its lengths, so this tries longer.
"""
_STEPS = 16
"""Sentences that are walked over before the rest is searched for; 128 tokens have about five."""
SAMPLED_FOR_LENGTH = 8192
"""Of each source: their mean length is within one per cent of that of all."""
_TWO = np.arange(2)
_THREE = np.arange(3)


class Instances(ABC):
    """An input format bound to a token store and a sequence length.

    `pack` and `draw` are pure functions of their arguments. `weights` are those by which a phase
    reads its sources, of every name; None: without.
    """

    shortest = 8

    def __init__(
        self,
        layout: object,
        shards: TokenShards,
        ids: SpecialIds,
        seq_length: int,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        if seq_length < self.shortest:
            raise ValueError(
                f"seq_length {seq_length} is too short for this format; use at least"
                f" {self.shortest}."
            )
        self._arguments = (layout, shards, ids, seq_length, weights)
        self.ids = ids
        self.seq_length = seq_length
        self._tokens = shards.tokens
        self._sentences = np.asarray(shards.sentence_offsets)
        self._documents = np.asarray(shards.document_offsets)
        self._sources = np.asarray(shards.document_source)
        self._source_names = shards.source_names
        self._weights: NDArray[np.float64] | None = None  # [sources]
        if weights is not None:
            self._weights = np.array([weights[name] for name in shards.source_names], np.float64)
        # [documents] number of the whole document that each is a part of: no part of a document is
        # another's random next segment.
        self._origins = np.arange(shards.num_documents)
        if shards.document_origin is not None:
            self._origins = np.asarray(shards.document_origin)
        self._layout = layout
        self._find()

    @abstractmethod
    def _find(self) -> None:
        """Find the instances; ValueError where there are none."""

    def __reduce__(self) -> tuple[object, ...]:
        """A worker process that is not forked finds the instances again.

        So no memory map is copied.
        """
        return type(self), self._arguments

    @abstractmethod
    def __len__(self) -> int: ...

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:
        """The instances named by `index` [B]; `epoch` is one number or [B]."""
        return self.draw(seed, epoch, index).pack()

    def draw(self, seed: int, epoch: Epoch, index: I64) -> DrawnInstances:
        """The same ones, to be packed later and in parts: for many at once it is cheaper."""
        return DrawnInstances(self, Draws(seed, epoch, index), np.empty((0, len(index)), np.int64))

    @abstractmethod
    def pack_drawn(self, drawn: DrawnInstances) -> PackedInstances:
        """`DrawnInstances.pack` of this format."""

    @abstractmethod
    def sources(self) -> NDArray[np.uint8]:
        """[instances] index of the source in which each begins."""

    @cached_property
    def mean_tokens(self) -> NDArray[np.float64]:
        """Tokens of text that an instance of each source has [sources]; 0 of one without any.

        They are a sample's mean. Pairs leave out a document of one sentence, and cut a long
        sentence off, so the size of a source does not say it.
        """
        sources = self.sources()
        means = np.zeros(len(self._source_names))
        for number in np.unique(sources):
            members = np.flatnonzero(sources == number)
            count = min(len(members), SAMPLED_FOR_LENGTH)
            sample = members[np.linspace(0, len(members) - 1, count).astype(np.int64)]
            means[number] = (~self.pack(0, 0, sample).special).sum() / count
        return means

    @property
    def tokens_read(self) -> NDArray[np.float64]:
        """Tokens of each source that some instance has [sources], by `mean_tokens`."""
        counts = np.bincount(self.sources(), minlength=len(self._source_names))
        return counts * self.mean_tokens

    @property
    def left_out_fraction(self) -> float:
        """Share of the tokens that no instance has."""
        return 1.0 - float(self.tokens_read.sum()) / max(1, len(self._tokens))

    def _document_of(self, sentence: I64) -> I64:
        """Number of the document that each sentence is in."""
        return np.searchsorted(self._documents, sentence, side="right") - 1


@dataclass(frozen=True)
class DrawnInstances:
    """Some instances [B] whose tokens are not read yet."""

    instances: Instances
    draws: Draws
    choices: I64  # [..., B]: what a format draws before it reads tokens

    def part(self, rows: slice) -> DrawnInstances:
        return DrawnInstances(self.instances, self.draws.of(rows), self.choices[:, rows])

    def pack(self) -> PackedInstances:
        return self.instances.pack_drawn(self)


class InputFormat(ABC):
    """How instances are laid out.

    With `has_pairs` they carry a next_sentence_label; each has `num_segments`, 1 or 2.
    """

    has_pairs = False
    num_segments = 2
    copies: int = 1  # ways to cut the corpus that one epoch holds

    @property
    @abstractmethod
    def instances(self) -> type[Instances]:
        """The class of its instances."""

    def bind(
        self,
        shards: TokenShards,
        ids: SpecialIds,
        seq_length: int,
        weights: Mapping[str, float] | None = None,
    ) -> Instances:
        """Find the instances. See `Instances` for `weights`.

        ValueError where there are none, and for pairs that the tokenizer has no template for.
        """
        if self.num_segments > 1 and ids.no_pairs:
            raise ValueError(
                f"{ids.no_pairs}; give it such a post_processor, or choose"
                " objective/input=full_sentences"
            )
        return self.instances(self, shards, ids, seq_length, weights)


def greedy_chunks(num_sentences: int, following: Callable[[int, int], I64]) -> I64:
    """First sentences of the chunks that a walk over all sentences makes.

    `following(low, high)` gives, for each sentence of low..high, the one that begins the next chunk
    if a chunk begins at this one.
    """
    blocks = [np.zeros(0, dtype=np.int64)]
    sentence = 0
    # In blocks, so that a large corpus does not become one list of Python numbers.
    for low in range(0, num_sentences, _BLOCK_SENTENCES):
        high = min(low + _BLOCK_SENTENCES, num_sentences)
        next_start = following(low, high).tolist()
        starts = []
        while sentence < high:
            starts.append(sentence)
            sentence = next_start[sentence - low]
        blocks.append(np.array(starts, dtype=np.int64))
    return np.concatenate(blocks)


@dataclass(frozen=True)
class _Split:
    """Where instances are split, before the other B is chosen; all [B]."""

    document: I64
    spans: SegmentSpans
    room: I64  # tokens that A leaves of the budget
    # tokens from the split to the document's end; below `room`, the instance is short
    available: I64


class WeightedSampler:
    """Draws members of all sources, from each in proportion to its weight; never from one with 0.

    `source` [members] is each one's; some source with a weight [sources] has members.
    """

    def __init__(
        self, members: I64, source: NDArray[np.uint8], weights: NDArray[np.float64]
    ) -> None:
        self._members = members[np.argsort(source, kind="stable")]
        counts = np.bincount(source, minlength=len(weights))
        is_read = weights * counts > 0
        self._counts = counts[is_read]
        self._low = (np.cumsum(counts) - counts)[is_read]
        # The sources that are read share [0, 1) between them: 0.25 and 1 are the ends of 1 and 3.
        ends = np.cumsum(weights[is_read])
        self._ends = ends / ends[-1]
        self._begins = np.append(0.0, self._ends[:-1])

    def draw(self, uniform: NDArray[np.float64]) -> I64:
        """A member for each number in [0, 1)."""
        source = np.searchsorted(self._ends, uniform, side="right")
        begin = self._begins[source]
        count = self._counts[source]
        inside = (uniform - begin) / (self._ends[source] - begin)
        number = np.minimum((inside * count).astype(np.int64), count - 1)
        return self._members[self._low[source] + number]


class NegativeSampler:
    """Draws members for random next segments, each from its own group.

    For a wide group it draws from all members, `by_weight` where a phase has weights. Members lie
    sorted by group: group g has those from low[g] to high[g].
    """

    def __init__(
        self,
        members: I64,
        group: NDArray[np.uint8],
        wide_groups: Sequence[int],
        by_weight: WeightedSampler | None,
    ) -> None:
        self._members = members[np.argsort(group, kind="stable")]
        ends = np.append(0, np.cumsum(np.bincount(group, minlength=256)))
        self._low = ends[:-1].copy()
        self._high = ends[1:].copy()
        self._low[wide_groups] = 0
        self._high[wide_groups] = len(members)
        self._wide_groups = wide_groups
        self._by_weight = by_weight

    def draw(self, uniform: NDArray[np.float64], group: NDArray[np.uint8]) -> I64:
        """A member for each number in [0, 1) and group, which broadcast.

        Every group asked for has members.
        """
        low = self._low[group]
        high = self._high[group]
        drawn = self._members[low + (uniform * (high - low)).astype(np.int64)]
        if self._by_weight is None:
            return drawn
        is_wide = np.isin(group, self._wide_groups)
        return np.where(is_wide, self._by_weight.draw(uniform), drawn)


class BoundPairs(Instances):
    """What both ways to cut segment pairs share: where a random next segment may come from."""

    _layout: SegmentPairs
    _starts: I64

    def _find(self) -> None:
        layout = self._layout
        self._budget = self.seq_length - 2 - self.ids.pair_separators
        sizes = np.diff(self._documents)
        is_skipped = sizes < layout.fewest_sentences
        self.num_skipped_documents = int(is_skipped.sum())
        tokens = np.where(is_skipped, 0, np.diff(self._sentences[self._documents]))
        read = np.bincount(self._sources, tokens, len(self._source_names))
        self._tokens_read = read.astype(np.float64)
        # Random next segments come from the same group of documents: a source, or all as one.
        self._groups = np.zeros_like(self._sources)
        if layout.negative_scope == "source":
            self._groups = self._sources
        documents = np.flatnonzero(~is_skipped)
        if self._weights is not None:
            documents = documents[self._weights[self._sources[documents]] > 0]
        single_document_groups = self._find_single_document_groups(documents)
        # Their random next segments are other sources'.
        self.single_document_sources = [
            self._source_names[number] for number in single_document_groups
        ]
        self._wide_groups = [0]
        if layout.negative_scope == "source":
            self._wide_groups = single_document_groups

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def tokens_read(self) -> NDArray[np.float64]:
        """Those of documents with a place to split; all of their text is read in some epoch."""
        return self._tokens_read

    def sources(self) -> NDArray[np.uint8]:
        return self._sources[self._document_of(self._starts)]

    def _sampler(self, members: I64, document: I64) -> NegativeSampler:
        """Of members that stand in these documents, both [members]."""
        by_weight = None
        if self._weights is not None:
            by_weight = WeightedSampler(members, self._sources[document], self._weights)
        return NegativeSampler(members, self._groups[document], self._wide_groups, by_weight)

    def _find_single_document_groups(self, documents: I64) -> list[int]:
        """Groups that draw next segments from all groups, for want of another document.

        `documents` are those to make pairs of. ValueError where no pair can be made at all.
        """
        if not len(documents):
            raise ValueError(
                "there is no document with two sentences, so no segment pair can be made: add text"
                " (or raise corpus.validation_fraction if this is the validation split), or use"
                " objective/input=full_sentences."
            )
        layout = self._layout
        draws_random = layout.random_next_prob > 0 or layout.lone_sentences == "random"
        if not draws_random:
            return []
        # The first part of each whole document speaks for it.
        _, first_parts = np.unique(self._origins[documents], return_index=True)
        if len(first_parts) < 2:
            raise ValueError(
                "the split has a single document with two sentences or more (of the sources that"
                " are read), and no other one to draw a random next segment from: add documents, or"
                " say"
                " objective.input.random_next_prob=0, or objective/input=full_sentences",
            )
        groups, counts = np.unique(self._groups[documents[first_parts]], return_counts=True)
        return groups[counts < 2].tolist()


class PairInstances(BoundPairs):
    """Instances of `SegmentPairs` by our cuts; stores one sentence number an instance."""

    def _find(self) -> None:
        super()._find()
        self._starts = self._find_starts()
        document = self._document_of(self._starts)
        self._document_of_start = document
        # the last instance of each document
        tails = np.flatnonzero(np.append(document[1:] != document[:-1], True))
        self._all = self._sampler(np.arange(len(document)), document)
        self._tails = self._sampler(tails, document[tails])

    def pack_drawn(self, drawn: DrawnInstances) -> PackedInstances:
        *spans, source, b_source, label, wants_random = drawn.choices
        packed = pack_pairs(
            self._tokens, SegmentSpans(*spans), self.ids, self.seq_length, drawn.draws
        )
        return replace(
            packed,
            next_sentence_label=label,
            source=source,
            b_source=b_source,
            num_fallbacks=int(wants_random.sum() - label.sum()),
        )

    def draw(self, seed: int, epoch: Epoch, index: I64) -> DrawnInstances:
        """With [8, B]: spans, sources, next_sentence_label, and whether it was to be 1."""
        draws = Draws(seed, epoch, index)
        split = self._split(draws)
        wants_random = draws.uniform("random next") < self._layout.random_next_prob
        b_start, b_document, label = self._random_starts(draws, split, wants_random)
        spans = split.spans
        sources = (self._sources[split.document], self._sources[b_document])
        columns = (spans.a_start, spans.a_length, b_start, spans.b_length, *sources, label)
        choices = np.stack([*columns, wants_random]).astype(np.int64, copy=False)
        return DrawnInstances(self, draws, choices)

    def _find_starts(self) -> I64:
        """First sentences of all instances.

        A document's last instance is moved back until it fills the budget.
        """
        sentences = self._sentences
        documents = self._documents
        self._budgets = self._layout.budgets(0, np.arange(len(documents) - 1), self._budget)

        def following(low: int, high: int) -> I64:
            # the first sentence that begins a budget of tokens later, or the document's end
            document = self._document_of(np.arange(low, high))
            budget_end = sentences[low:high] + self._budgets[document]
            return np.minimum(np.searchsorted(sentences, budget_end), documents[document + 1])

        starts = greedy_chunks(len(sentences) - 1, following)
        document = self._document_of(starts)
        first = documents[document]
        end = documents[document + 1]
        is_last = np.append(document[1:] != document[:-1], True)[: len(starts)]
        # The latest sentence from which the document's end is a budget of tokens away.
        budget_start = sentences[end] - self._budgets[document]
        fills = np.searchsorted(sentences, budget_start, side="right") - 1
        # Back to it, but not before the document, and with two sentences at least.
        moved = np.minimum(np.minimum(starts, fills), end - 2)
        moved = np.maximum(first, moved)
        starts = np.where(is_last, moved, starts)
        return starts[end - first > 1]

    def _split(self, draws: Draws) -> _Split:
        """A, and the true B, of each instance.

        All numbers are token positions:

            document    | first sentence | second | third           | fourth      |
            drawn               start......wanted                                 end
            instance            [       A         ][ B              ]
                                                   boundary
        """
        sentences = self._sentences
        # [B, 3] in [0, 1): where A begins, where it is split, how a short B is cut.
        draw = draws.uniform("split", _THREE, rows=COLUMN)
        first = self._starts[draws.names]
        document = self._document_of_start[draws.names]
        budget = self._budgets[document]
        last_sentence = self._documents[document + 1] - 1
        last = sentences[last_sentence]
        end = sentences[last_sentence + 1]

        # A begins half of the time inside the first sentence, so that chunk ends are seen in some
        # epochs too. Not clipped to what fits: that would end instances exactly at their document's
        # end.
        start = sentences[first]
        inside = np.maximum(2 * draw[:, 0] - 1, 0)
        skip = (inside * (sentences[first + 1] - start)).astype(np.int64)
        start = start + np.where(skip <= end - budget - start, skip, 0)

        # A is split at the first boundary behind a drawn position, which leaves B an eighth of the
        # budget and the document's last sentence. A long sentence there may make A longer than what
        # was drawn: then A loses tokens at its front, down to half of the budget.
        reach = np.minimum(budget - np.maximum(1, budget // 8), last - start)
        wanted = 1 + (draw[:, 1] * reach).astype(np.int64)
        boundary = sentences[_walk_to(sentences, first, start + wanted)]
        a_full = boundary - start
        a_length = np.minimum(a_full, np.maximum(wanted, budget - budget // 2))

        # B has what A leaves. Where the document ends earlier, B is cut at random; A gets back what
        # B does not use.
        room = budget - a_length
        available = end - boundary
        cut = (draw[:, 2] * _cuts(available)).astype(np.int64)
        b_length = np.where(available < room, available - cut, room)
        a_length = np.minimum(a_full, budget - b_length)
        spans = SegmentSpans(boundary - a_length, a_length, boundary, b_length)
        return _Split(document, spans, room, available)

    def _random_starts(
        self, draws: Draws, split: _Split, wants_random: NDArray[np.bool_]
    ) -> tuple[I64, I64, I64]:
        """B's first token, its document and next_sentence_label, all [B].

        Random ones are from the splits of other instances.

        It is rejection sampling: each round draws some candidates for every instance that has none
        yet, and takes the first good one.
        """
        b_start = split.spans.b_start.copy()
        b_document = split.document.copy()
        label = np.zeros(len(b_start), dtype=np.int64)
        still_open = np.flatnonzero(wants_random)
        num_tried = 0
        for width in _TRIES:
            if not still_open.size:
                break
            # C = open * width candidates: `row` is the instance in the batch that each is for.
            row = np.repeat(still_open, width)
            attempt = np.tile(np.arange(num_tried, num_tried + width), len(still_open))
            is_good, drawn = self._draw_candidates(draws.of(row), attempt, _rows_of(split, row))
            # [open, width]: the first good one of each row, where there is any.
            is_good = is_good.reshape(-1, width)
            has_good = is_good.any(1)
            first_good = (np.arange(len(is_good)) * width + is_good.argmax(1))[has_good]
            found = still_open[has_good]
            b_start[found] = drawn.spans.b_start[first_good]
            b_document[found] = drawn.document[first_good]
            label[found] = 1
            still_open = still_open[~has_good]
            num_tried += width
        return b_start, b_document, label

    def _draw_candidates(
        self, draws: Draws, attempt: I64, split: _Split
    ) -> tuple[BoolArray, _Split]:
        """Whether each candidate [C] is good, and the splits [C] at which B would begin.

        The arguments are of the instances that ask.

        A full B takes any split with as much text behind it as B needs. A short one shows something
        of how near the document's end is, so its candidates must be as near: they are drawn among
        documents' last instances, and kept with the probability (up to a factor) that their own B
        would have been cut to this length.
        """
        # [C, 2] in [0, 1): which candidate, and whether one for a short B is kept.
        sub = 2 * attempt[:, None] + _TWO
        draw = draws.uniform("negative", sub, rows=COLUMN)
        group = self._groups[split.document]
        is_short = split.available < split.room
        candidate = np.where(
            is_short, self._tails.draw(draw[:, 0], group), self._all.draw(draw[:, 0], group)
        )
        # Each candidate's own split in this epoch says where B would begin.
        drawn = self._split(replace(draws, names=candidate))
        b_length = split.spans.b_length
        is_long_enough = drawn.available >= b_length
        is_other_document = self._origins[drawn.document] != self._origins[split.document]
        # For a short B: the candidate's own B might have been cut to this length ...
        num_cuts = _cuts(drawn.available)
        is_kept = drawn.available - b_length < num_cuts
        is_kept &= drawn.available < split.room
        # ... and of those that might, one with more possible cuts is kept less often.
        is_kept &= draw[:, 1] * num_cuts < _cuts(b_length)
        is_good = is_long_enough & is_other_document & (is_kept | ~is_short)
        return is_good, drawn


def _rows_of(split: _Split, row: I64) -> _Split:
    """The splits of some instances of the batch, in this order."""
    spans = split.spans
    row_spans = SegmentSpans(
        spans.a_start[row], spans.a_length[row], spans.b_start[row], spans.b_length[row]
    )
    return _Split(split.document[row], row_spans, split.room[row], split.available[row])


@dataclass(frozen=True)
class _Chunks:
    """Chunks that begin with some sentences, all [B]."""

    document: I64
    target: I64  # tokens of text that are wanted
    split: I64  # sentence at which A ends
    end: I64  # sentence at which the chunk ends
    is_random: BoolArray  # whether B comes from another document


class ReleasedInstances(BoundPairs):
    """Instances of `SegmentPairs` with `cuts: released`.

    Of each it stores copy * number of sentences + sentence.
    """

    def _find(self) -> None:
        super()._find()
        layout = self._layout
        number = len(self._sentences)
        starts = []
        for copy in range(layout.copies):
            starts.append(copy * number + self._find_starts(copy))
        self._starts = np.concatenate(starts).astype(np.min_scalar_type(layout.copies * number))
        documents = np.arange(len(self._sources))
        self._other_documents = self._sampler(documents, documents)

    def sources(self) -> NDArray[np.uint8]:
        first = self._starts.astype(np.int64) % len(self._sentences)
        return self._sources[self._document_of(first)]

    def pack_drawn(self, drawn: DrawnInstances) -> PackedInstances:
        """Pairs do not depend on seed and epoch: only their order and their masks change."""
        sentences = self._sentences
        starts = self._starts[drawn.draws.names]
        copy, first = np.divmod(starts.astype(np.int64), len(sentences))
        draws = self._draws(copy, first)
        chunk = self._chunks(draws)
        a_start = sentences[first]
        a_length = sentences[chunk.split] - a_start
        # B is the rest of the chunk, or a run of sentences from another document.
        random_first, random_end = self._random_next(draws, chunk.document, chunk.target - a_length)
        b_first = np.where(chunk.is_random, random_first, chunk.split)
        b_end = np.where(chunk.is_random, random_end, chunk.end)
        b_start = sentences[b_first]
        b_length = sentences[b_end] - b_start
        # The longer side loses a token, B where they are level, until both fit.
        half = -(-self._budget // 2)
        a_kept = np.minimum(a_length, np.maximum(self._budget - b_length, half))
        b_kept = np.minimum(b_length, self._budget - a_kept)
        a_start = a_start + _cut_in_front(draws, "trim A", a_length - a_kept)
        b_start = b_start + _cut_in_front(draws, "trim B", b_length - b_kept)
        spans = SegmentSpans(a_start, a_kept, b_start, b_kept)
        packed = pack_pairs(self._tokens, spans, self.ids, self.seq_length, drawn.draws)
        return replace(
            packed,
            next_sentence_label=chunk.is_random.astype(np.int64),
            source=self._sources[chunk.document].astype(np.int64),
            b_source=self._sources[self._document_of(b_first)].astype(np.int64),
        )

    def _draws(self, copy: Epoch, first: I64) -> Draws:
        """Of the chunks that begin with the sentences `first` [B]; a copy is as an epoch."""
        return Draws(self._layout.builder_seed, copy, first)

    def _find_starts(self, copy: int) -> I64:
        """First sentences of one copy's instances."""

        def following(low: int, high: int) -> I64:
            # What a random B replaces may begin the next chunk.
            chunk = self._chunks(self._draws(copy, np.arange(low, high)))
            is_put_back = chunk.is_random & self._layout.put_back_unused
            return np.where(is_put_back, chunk.split, chunk.end)

        starts = greedy_chunks(len(self._sentences) - 1, following)
        if self._layout.lone_sentences == "random":
            return starts
        num_sentences = self._chunks(self._draws(copy, starts)).end - starts
        return starts[num_sentences > 1]

    def _chunks(self, draws: Draws) -> _Chunks:
        layout = self._layout
        first = draws.names
        document = self._document_of(first)
        target = layout.budgets(draws.epoch, document, self._budget)
        reach = np.searchsorted(self._sentences, self._sentences[first] + target)
        end = np.minimum(reach, self._documents[document + 1])
        draw = draws.uniform("chunk", _TWO, rows=COLUMN)
        # A has one sentence at least, and leaves B one where there are two.
        split = first + 1 + (draw[:, 0] * (end - first - 1)).astype(np.int64)
        is_random = (end - first == 1) | (draw[:, 1] < layout.random_next_prob)
        return _Chunks(document, target, split, end, is_random)

    def _random_next(self, draws: Draws, document: I64, num_tokens: I64) -> tuple[I64, I64]:
        """First sentence and end of random Bs [B].

        They have at least one sentence, and go on until `num_tokens` tokens are there.
        """
        rows = np.arange(len(document))
        # Ten candidates for the other document [B, 10]: the first that is another one, or at last
        # one's own.
        draw = draws.uniform("other document", np.arange(10), rows=COLUMN)
        candidates = self._other_documents.draw(draw, self._groups[document][:, None])
        is_other = self._origins[candidates] != self._origins[document][:, None]
        first_other = np.where(is_other.any(1), is_other.argmax(1), -1)
        other = candidates[rows, first_other]
        begin = self._documents[other]
        end = self._documents[other + 1]
        start = begin + draws.integers("other sentence", high=end - begin)
        reach = np.searchsorted(self._sentences, self._sentences[start] + np.maximum(1, num_tokens))
        return start, np.minimum(reach, end)


def _cut_in_front(draws: Draws, stream: str, removed: I64) -> I64:
    """How many of the `removed` [B] tokens go from the front: a coin for each."""
    number = np.arange(removed.max(initial=0))  # [most removed]
    coins = draws.uniform(stream, number, rows=COLUMN)
    is_front = (coins < 0.5) & (number < removed[:, None])
    return is_front.sum(axis=1)


def source_rule(label: I64, one_source: NDArray[np.bool_]) -> float:
    """Share of pairs that are told right by their sources alone.

    The rule asks whether both segments are of one source, and answers with the label that is more
    frequent there.
    """
    counts = np.bincount(2 * one_source + label, minlength=4).reshape(2, 2)
    return float(counts.max(1).sum() / max(1, counts.sum()))


def _walk_to(sentences: I64, first: I64, token: I64) -> I64:
    """The number of the first sentence that begins at `token` [B] or behind it.

    Each `token` lies behind the beginning of the sentence `first` [B] and a few sentences on, so
    steps from there read memory that is at hand. A binary search reads all over the corpus.
    """
    number = first + 1
    walking = np.arange(len(first))
    for _ in range(_STEPS):
        walking = walking[sentences[number[walking]] < token[walking]]
        if not walking.size:
            return number
        number[walking] += 1
    number[walking] = np.searchsorted(sentences, token[walking])
    return number


def _cuts(available: I64) -> I64:
    """In how many ways B is cut where only `available` tokens are left.

    It keeps at least half of them.
    """
    return available // 2 + 1


@dataclass(frozen=True)
class SegmentPairs(InputFormat):
    """[CLS] A [SEP] B [SEP]: B follows A, or is a random next segment of another document.

    Random ones come with `random_next_prob`. `cuts`: ours, or those of the released builder
    (`ReleasedInstances`), where lengths tell something of the label. `negative_scope`: "corpus"
    draws the other document over the whole corpus, "source" inside A's own source (over the corpus
    where that is a single document); in a phase with weights, over its sources in proportion to
    their weights. Ours draws in proportion to length, the released builder draws
    all documents alike. Over a corpus of unlike sources, the source tells half of the random
    segments: see `source_rule`.
    """

    random_next_prob: float
    negative_scope: str
    cuts: str = "ours"
    # share of the documents whose instances are shorter, by a length drawn for each
    short_seq_prob: float = 0.0
    # cuts=released alone, as the next two: what a random B replaces is used again
    put_back_unused: bool = False
    # of chunks with one sentence; or random: they get a random B in any case
    lone_sentences: str = "left_out"
    copies: int = 1  # the corpus is cut in so many ways
    builder_seed: int = 12345  # of what is drawn once for all runs
    has_pairs = True

    def __post_init__(self) -> None:
        for key in ("random_next_prob", "short_seq_prob"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ValueError(f"{key} is {getattr(self, key)}; it must lie in [0, 1].")
        check_choice("negative_scope", self.negative_scope, ("corpus", "source"))
        check_choice("cuts", self.cuts, ("ours", "released"))
        check_choice("lone_sentences", self.lone_sentences, ("left_out", "random"))
        released_only = (self.put_back_unused, self.lone_sentences, self.copies)
        plain = (False, "left_out", 1)
        if self.copies < 1 or (self.cuts == "ours" and released_only != plain):
            raise ValueError(
                f"put_back_unused, lone_sentences, copies are {released_only}; cuts=ours has"
                f" {plain}, none has 0."
            )

    @property
    def fewest_sentences(self) -> int:
        """Of a document that is read: two, for a place to split, unless B is random."""
        return 1 if self.lone_sentences == "random" else 2

    @property
    def instances(self) -> type[BoundPairs]:
        return ReleasedInstances if self.cuts == "released" else PairInstances

    def budgets(self, copy: Epoch, document: I64, budget: int) -> I64:
        """Tokens of text that instances of each document [N] are to have.

        It is the budget or, in a document of short instances, 2 to that.
        """
        draw = Draws(self.builder_seed, copy, document).uniform("short", _TWO, rows=COLUMN)
        is_short = draw[:, 0] < self.short_seq_prob
        short_budget = 2 + (draw[:, 1] * (budget - 1)).astype(np.int64)
        return np.where(is_short, short_budget, budget)


class WindowInstances(Instances):
    """Instances of `FullSentences`."""

    shortest = 4

    def _find(self) -> None:
        budget = self.seq_length - 2
        # A sentence that is longer than a window is cut into pieces of a window each: the cuts are
        # further offsets between those of the sentences.
        lengths = np.diff(self._sentences)
        long = np.flatnonzero(lengths > budget)
        owner, number = _numbered((lengths[long] - 1) // budget)
        cuts = self._sentences[long[owner]] + (number + 1) * budget
        offsets = np.sort(np.concatenate([self._sentences, cuts]))
        num_pieces = len(offsets) - 1

        # The pieces that begin a document.
        self._token_documents = self._sentences[self._documents]
        firsts = np.searchsorted(offsets, np.unique(self._token_documents[:-1]))
        self._document_firsts = firsts[firsts < num_pieces]
        # A greedy walk in slots: tokens, and one separator for each document that begins.
        begun = np.searchsorted(self._document_firsts, np.arange(num_pieces), side="right")
        slot_end = offsets[1:] + begun

        def following(low: int, high: int) -> I64:
            # the first piece that does not end within a budget of slots
            window_end = offsets[low:high] + begun[low:high] + budget
            return np.searchsorted(slot_end, window_end, side="right")

        self._offsets = offsets
        self._bounds = np.append(greedy_chunks(num_pieces, following), num_pieces)
        if not len(self):
            raise ValueError(
                "there is no text: add documents, or raise corpus.validation_fraction."
            )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def sources(self) -> NDArray[np.uint8]:
        return self._sources[self._document_at(self._offsets[self._bounds[:-1]])]

    @property
    def tokens_read(self) -> NDArray[np.float64]:
        """All: windows hold each token of a source once."""
        tokens = np.diff(self._token_documents)
        read = np.bincount(self._sources, tokens, len(self._source_names))
        return read.astype(np.float64)

    @cached_property
    def mean_tokens(self) -> NDArray[np.float64]:
        """As of all instances."""
        counts = np.bincount(self.sources(), minlength=len(self._source_names))
        return self.tokens_read / np.maximum(counts, 1)

    def pack_drawn(self, drawn: DrawnInstances) -> PackedInstances:
        """Windows do not depend on seed and epoch: only their order and their masks change."""
        index = drawn.draws.names
        first = self._bounds[index]
        end = self._bounds[index + 1]
        start = self._offsets[first]
        # A separator stands before each document that begins inside a window.
        low = np.searchsorted(self._document_firsts, first, side="right")
        window, number = _numbered(np.searchsorted(self._document_firsts, end) - low)
        document_first = self._document_firsts[low[window] + number]
        separators = (window, self._offsets[document_first] - start[window])
        length = self._offsets[end] - start
        packed = pack_windows(
            self._tokens, start, length, separators, self.ids, self.seq_length, drawn.draws
        )
        return replace(packed, source=self._sources[self._document_at(start)].astype(np.int64))

    def _document_at(self, token: I64) -> I64:
        """Number of the document that each token position is in."""
        return np.searchsorted(self._token_documents, token, side="right") - 1


@dataclass(frozen=True)
class FullSentences(InputFormat):
    """[CLS] text [SEP]: windows of whole sentences (RoBERTa, section 4.2).

    They go over document ends with an extra [SEP]. A sentence longer than the window is cut into
    windows of its own.
    """

    num_segments = 1
    instances = WindowInstances


def _numbered(count: I64) -> tuple[I64, I64]:
    """The owner of each of `count` [N] things, and its number among its owner's.

    [3, 0, 2] -> owners 0 0 0 2 2, numbers 0 1 2 0 1.
    """
    owner = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return owner, np.arange(count.sum()) - first[owner]
