"""How text becomes instances: segment pairs for next-sentence prediction, or windows of full
sentences.

Unusual, and the reason for each rule of `SegmentPairs`: the next sentence must be learnt from the
text, not read off lengths and cuts (a random B that is cut while a true B is whole gives 83 %
without learning anything). So

* the split between A and B is the first sentence boundary after a drawn position: it depends on A's
text only, never
  on how B's sentences are cut (a uniform draw over the boundaries would prefer long first sentences
  in B);
* B's length follows from A alone (what A leaves of the budget), and B is that many tokens from a
sentence boundary on,
  wherever they end; both kinds of B start at the split of some instance and are cut by the same
  rule;
* where the document ends too early, B keeps a random half or more of what is left, and a random B
for such a short one
  is cut just as near the end of its own document, so that "ends with a whole sentence" is not a
  sign of a true B.

The released builder (corpus/released.py) keeps sentences whole and trims the longer side; B's end
betrays the label.

Instances are found by a greedy walk over whole sentences until the budget is reached; a document's
last one starts early enough to fill it. Only the number of an instance's first sentence is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.packing import (
    I64,
    Epoch,
    PackedInstances,
    Spans,
    SpecialIds,
    column_of,
    pack_pairs,
    pack_windows,
)
from clozelab.corpus.random import uniform01

if TYPE_CHECKING:
    from clozelab.corpus.shards import TokenShards

_BLOCK_SENTENCES = 1 << 20
_TRIES = (1, 3, 12, 48)
"""Candidates for a random next segment in each round, where there is still none. The released code
tries ten times; an instance that finds none stays IsNext, which would tie the label to its lengths,
so this tries longer."""
_THREE = np.arange(3)


class Instances(ABC):
    """An input format bound to a token store and a sequence length; `pack` is a pure function of
    its arguments.
    """

    shortest: ClassVar[int] = 8

    def __init__(self, layout: Any, shards: TokenShards, ids: SpecialIds, seq_length: int) -> None:
        if seq_length < self.shortest:
            raise ValueError(
                f"seq_length {seq_length} is too short for this format; use at least"
                f" {self.shortest}."
            )
        self._arguments = (layout, shards, ids, seq_length)
        self.ids, self.seq_length = ids, seq_length
        self._tokens = shards.tokens
        self._sentences = np.asarray(shards.sentence_offsets)
        self._documents = np.asarray(shards.document_offsets)
        self._sources = np.asarray(shards.document_source)
        whole = (
            np.arange(shards.num_documents)
            if shards.document_origin is None
            else shards.document_origin
        )
        # parts of one document: none of them is another's random next segment
        self._origins = np.asarray(whole)

    def __reduce__(self) -> tuple[Any, ...]:
        """Worker processes that are not forked find the instances again instead of copying memory
        maps.
        """
        return type(self), self._arguments

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:
        """The instances named by `index` [B]; `epoch` is one number or [B]."""

    def _document_of(self, sentence: I64) -> I64:
        return np.searchsorted(self._documents, sentence, side="right") - 1


class InputFormat:
    """How instances are laid out; `has_pairs`: they carry a next_sentence_label; `num_segments`, 1
    or 2: of each.
    """

    has_pairs: ClassVar[bool] = False
    num_segments: ClassVar[int] = 2
    copies: int = 1  # ways to cut the corpus that one epoch holds
    instances: ClassVar[type[Instances]]

    def bind(self, shards: TokenShards, ids: SpecialIds, seq_length: int) -> Instances:
        """Finds the instances. ValueError where there are none."""
        return self.instances(self, shards, ids, seq_length)


def walk(num_sentences: int, following: Callable[[int, int], I64]) -> I64:
    """Starts of the greedy chunks; `following(low, high)` gives each sentence's next one."""
    parts: list[I64] = [np.zeros(0, dtype=np.int64)]
    sentence = 0
    for low in range(0, num_sentences, _BLOCK_SENTENCES):
        high = min(low + _BLOCK_SENTENCES, num_sentences)
        jump = following(low, high).tolist()
        starts: list[int] = []
        while sentence < high:
            starts.append(sentence)
            sentence = jump[sentence - low]
        parts.append(np.array(starts, dtype=np.int64))
    return np.concatenate(parts)


@dataclass(frozen=True)
class _Split:
    """Where instances are split, before the other B is chosen; all [B]."""

    document: I64
    spans: Spans
    room: I64  # tokens that A leaves of the budget
    # tokens from the split to the document's end; below `room`, the instance is short
    available: I64


class Pool:
    """What random next segments are drawn from, by group; for a lonely group, from all."""

    def __init__(self, members: I64, group: NDArray[np.uint8], lonely: Sequence[int]) -> None:
        self._members = members[np.argsort(group, kind="stable")]
        ends = np.append(0, np.cumsum(np.bincount(group, minlength=256)))
        self._low, self._high = ends[:-1].copy(), ends[1:].copy()
        self._low[lonely], self._high[lonely] = 0, len(members)

    def draw(self, uniform: NDArray[np.float64], group: NDArray[np.uint8]) -> I64:
        """A member for each number in [0, 1) and group, which broadcast. Every group asked for has
        members.
        """
        low, high = self._low[group], self._high[group]
        return self._members[low + (uniform * (high - low)).astype(np.int64)]


class BoundPairs(Instances):
    """What both ways to cut segment pairs share: where a random next segment may come from."""

    _starts: I64

    def __init__(
        self, layout: SegmentPairs, shards: TokenShards, ids: SpecialIds, seq_length: int
    ) -> None:
        super().__init__(layout, shards, ids, seq_length)
        self._layout, self._budget = layout, seq_length - 2 - ids.pair_separators
        sizes, least = np.diff(self._documents), 1 if layout.lone_sentences == "random" else 2
        # of a single sentence: they have no place to split
        self.num_skipped_documents = int((sizes < least).sum())
        # Random next segments come from the same group of documents: a source, or all as one.
        self._groups = (
            self._sources if layout.negative_scope == "source" else np.zeros_like(self._sources)
        )
        self._lonely = self._lonely_groups(np.flatnonzero(sizes >= least))
        self.lonely_sources = [shards.source_names[index] for index in self._lonely]
        """Sources with a single document to make pairs of: their random next segments are other
        sources'.
        """

    def __len__(self) -> int:
        return len(self._starts)

    def _lonely_groups(self, documents: I64) -> list[int]:
        """Groups that draw next segments from all groups, for want of another document; ValueError:
        no pair at all.
        """
        if not len(documents):
            text = "add text (or raise corpus.validation_fraction if this is the validation split)"
            what = f"no segment pair can be made: {text}, or use objective/input=full_sentences."
            raise ValueError(f"there is no document with two sentences, so {what}")
        draws = self._layout.random_next_prob > 0 or self._layout.lone_sentences == "random"
        _, whole = np.unique(self._origins[documents], return_index=True)
        if draws and len(whole) < 2:
            said = "the split has a single document with two sentences or more, and no other one"
            instead = "objective.input.random_next_prob=0, or objective/input=full_sentences"
            raise ValueError(
                f"{said} to draw a random next segment from: add documents, or say {instead}",
            )
        groups, counts = np.unique(self._groups[documents[whole]], return_counts=True)
        return groups[counts < 2].tolist() if draws else []


class PairInstances(BoundPairs):
    """Instances of `SegmentPairs` by our cuts; stores one sentence number an instance."""

    def __init__(
        self, layout: SegmentPairs, shards: TokenShards, ids: SpecialIds, seq_length: int
    ) -> None:
        super().__init__(layout, shards, ids, seq_length)
        self._starts = self._find_starts()
        document = self._document_of(self._starts)
        group, tails = (
            self._groups[document],
            np.flatnonzero(np.append(document[1:] != document[:-1], True)),
        )
        self._all = Pool(np.arange(len(document)), group, self._lonely)
        self._tails = Pool(tails, group[tails], self._lonely)

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:
        index = np.asarray(index, dtype=np.int64)
        split = self._split(seed, epoch, index)
        wants_random = uniform01(seed, epoch, "random next", index) < self._layout.random_next_prob
        b_start, label = self._random_starts(seed, epoch, index, split, wants_random)
        packed = pack_pairs(
            self._tokens, replace(split.spans, b_start=b_start), self.ids, self.seq_length, index
        )
        b_document = self._document_of(np.searchsorted(self._sentences, b_start))
        return replace(
            packed,
            next_sentence_label=label,
            source=self._sources[split.document].astype(np.int64),
            b_source=self._sources[b_document].astype(np.int64),
            num_fallbacks=int(wants_random.sum() - label.sum()),
        )

    def _find_starts(self) -> I64:
        """First sentences of all instances; a document's last instance is moved back until it fills
        the budget.
        """
        sentences, documents = self._sentences, self._documents
        self._budgets = self._layout.budgets(0, np.arange(len(documents) - 1), self._budget)

        def following(low: int, high: int) -> I64:
            document = self._document_of(np.arange(low, high))
            reach = np.searchsorted(sentences, sentences[low:high] + self._budgets[document])
            return np.minimum(reach, documents[document + 1])

        starts = walk(len(sentences) - 1, following)
        document = self._document_of(starts)
        first, end = documents[document], documents[document + 1]
        is_last = np.append(document[1:] != document[:-1], True)[: len(starts)]
        fills = (
            np.searchsorted(sentences, sentences[end] - self._budgets[document], side="right") - 1
        )
        moved = np.maximum(first, np.minimum(np.minimum(starts, fills), end - 2))
        return np.where(is_last, moved, starts)[end - first > 1]

    def _split(self, seed: int, epoch: Epoch, index: I64) -> _Split:
        """A, and the true B, of each instance."""
        sentences = self._sentences
        # [B, 3] in [0, 1)
        draw = uniform01(seed, column_of(epoch), "split", index[:, None], _THREE)
        first = self._starts[index]
        document = self._document_of(first)
        budget = self._budgets[document]
        last_sentence = self._documents[document + 1] - 1
        last, end = sentences[last_sentence], sentences[last_sentence + 1]
        # A begins half of the time inside the first sentence, so that chunk ends are seen in some
        # epochs too. Not clipped to what fits: that would end instances exactly at their document's
        # end.
        start = sentences[first]
        skip = (np.maximum(2 * draw[:, 0] - 1, 0) * (sentences[first + 1] - start)).astype(np.int64)
        start = start + np.where(skip <= end - budget - start, skip, 0)
        reach = np.minimum(budget - np.maximum(1, budget // 8), last - start)
        wanted = 1 + (draw[:, 1] * reach).astype(np.int64)
        boundary = sentences[np.searchsorted(sentences, start + wanted)]
        a_full = boundary - start
        a_length = np.minimum(a_full, np.maximum(wanted, budget - budget // 2))
        room, available = budget - a_length, end - boundary
        cut = (draw[:, 2] * _cuts(available)).astype(np.int64)
        b_length = np.where(available < room, available - cut, room)
        a_length = np.minimum(a_full, budget - b_length)
        return _Split(
            document, Spans(boundary - a_length, a_length, boundary, b_length), room, available
        )

    def _random_starts(
        self, seed: int, epoch: Epoch, index: I64, split: _Split, wants_random: NDArray[np.bool_]
    ) -> tuple[I64, I64]:
        """B's first token [B] and next_sentence_label [B], from the splits of other instances.

        A full one takes any split with as much text behind it as B needs. A short one shows
        something of how near the document's end is, so its candidates must be as near: they are
        drawn among documents' last instances, and kept with the probability (up to a factor) that
        their own B would have been cut to this length.
        """
        b_start, label = split.spans.b_start.copy(), np.zeros(len(index), dtype=np.int64)
        still_open, tried = np.flatnonzero(wants_random), 0
        for width in _TRIES:
            if not still_open.size:
                break
            # One candidate C for each (instance, attempt).
            which, attempt = (
                np.repeat(still_open, width),
                np.tile(np.arange(tried, tried + width), len(still_open)),
            )
            at = epoch if isinstance(epoch, int) else epoch[which]
            sub = 2 * attempt[:, None] + _THREE[:2]
            draw = uniform01(seed, column_of(at), "negative", index[which][:, None], sub)
            group, b_length = self._groups[split.document[which]], split.spans.b_length[which]
            is_short = split.available[which] < split.room[which]
            candidate = np.where(
                is_short, self._tails.draw(draw[:, 0], group), self._all.draw(draw[:, 0], group)
            )
            other = self._split(seed, at, candidate)
            kept = other.available - b_length < _cuts(other.available)
            kept &= (other.available < split.room[which]) & (
                draw[:, 1] * _cuts(other.available) < _cuts(b_length)
            )
            is_other = self._origins[other.document] != self._origins[split.document[which]]
            good = (other.available >= b_length) & is_other & (kept | ~is_short)
            good, start = good.reshape(-1, width), other.spans.b_start.reshape(-1, width)
            found, first = good.any(1), good.argmax(1)
            b_start[still_open[found]] = start[found, first[found]]
            label[still_open[found]] = 1
            still_open, tried = still_open[~found], tried + width
        return b_start, label


def source_rule(label: I64, one_source: NDArray[np.bool_]) -> float:
    """Share of pairs that are told right by asking whether both segments are of one source, and
    nothing else.
    """
    counts = np.bincount(2 * one_source + label, minlength=4).reshape(2, 2)
    return float(counts.max(1).sum() / max(1, counts.sum()))


def _cuts(available: I64) -> I64:
    """In how many ways B is cut where only `available` tokens are left: it keeps at least half of
    them.
    """
    return available // 2 + 1


@dataclass(frozen=True)
class SegmentPairs(InputFormat):
    """[CLS] A [SEP] B [SEP]: B follows A in its document, or with `random_next_prob` comes from
    another one.

    `cuts`: ours, or those of the released builder (corpus/released.py), where lengths tell
    something of the label.
    `negative_scope`: "corpus" draws the other document over the whole corpus, "source" inside A's
    own source (over the corpus where that is a single document); in proportion to length, released
    cuts all alike. Over a corpus of unlike sources, the source tells half of the random segments:
    see `source_rule`.
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
    instances = PairInstances

    def __post_init__(self) -> None:
        for key in ("random_next_prob", "short_seq_prob"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ValueError(f"{key} is {getattr(self, key)}; it must lie in [0, 1].")
        known = {
            "negative_scope": "corpus source",
            "cuts": "ours released",
            "lone_sentences": "left_out random",
        }
        for key, choices in ((key, words.split()) for key, words in known.items()):
            if getattr(self, key) not in choices:
                raise ValueError(f"{key} is {getattr(self, key)!r}; choose {' or '.join(choices)}.")
        given, plain = (
            (self.put_back_unused, self.lone_sentences, self.copies),
            (False, "left_out", 1),
        )
        if self.copies < 1 or (self.cuts == "ours" and given != plain):
            raise ValueError(
                f"put_back_unused, lone_sentences, copies are {given}; cuts=ours has {plain}, none"
                " has 0."
            )

    def bind(self, shards: TokenShards, ids: SpecialIds, seq_length: int) -> Instances:
        from clozelab.corpus.released import ReleasedInstances  # here: it stands on this file

        return (ReleasedInstances if self.cuts == "released" else PairInstances)(
            self, shards, ids, seq_length
        )

    def budgets(self, copy: Epoch, document: I64, budget: int) -> I64:
        """Tokens of text that instances of each document [N] are to have: the budget or, in a short
        one, 2 to that.
        """
        draw = uniform01(self.builder_seed, column_of(copy), "short", document[:, None], _THREE[:2])
        return np.where(
            draw[:, 0] < self.short_seq_prob,
            2 + (draw[:, 1] * (budget - 1)).astype(np.int64),
            budget,
        )


class WindowInstances(Instances):
    """Instances of `FullSentences`."""

    shortest = 4

    def __init__(
        self, layout: FullSentences, shards: TokenShards, ids: SpecialIds, seq_length: int
    ) -> None:
        super().__init__(layout, shards, ids, seq_length)
        budget, offsets = seq_length - 2, self._sentences
        lengths = np.diff(offsets)
        long = np.flatnonzero(lengths > budget)
        # of the cuts inside longer sentences
        which, number = _numbered((lengths[long] - 1) // budget)
        offsets = np.sort(np.concatenate([offsets, offsets[long[which]] + (number + 1) * budget]))
        self._token_documents = self._sentences[self._documents]
        firsts = np.searchsorted(offsets, np.unique(self._token_documents[:-1]))
        self._document_firsts = firsts = firsts[firsts < len(offsets) - 1]
        # Greedy walk in slots: tokens, and one separator for each document that begins.
        begun = np.searchsorted(firsts, np.arange(len(offsets) - 1), side="right")
        slot_end = offsets[1:] + begun

        def following(low: int, high: int) -> I64:
            return np.searchsorted(
                slot_end, offsets[low:high] + begun[low:high] + budget, side="right"
            )

        self._offsets = offsets
        self._bounds = np.append(walk(len(offsets) - 1, following), len(offsets) - 1)
        if not len(self):
            raise ValueError(
                "there is no text: add documents, or raise corpus.validation_fraction."
            )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:  # noqa: ARG002
        """Windows do not depend on seed and epoch: only their order and their masks change."""
        index = np.asarray(index, dtype=np.int64)
        first, end = self._bounds[index], self._bounds[index + 1]
        start = self._offsets[first]
        # A separator stands before each document that begins inside a window.
        low = np.searchsorted(self._document_firsts, first, side="right")
        which, number = _numbered(np.searchsorted(self._document_firsts, end) - low)
        separators = which, self._offsets[self._document_firsts[low[which] + number]] - start[which]
        length = self._offsets[end] - start
        packed = pack_windows(
            self._tokens, start, length, separators, self.ids, self.seq_length, index
        )
        document = np.searchsorted(self._token_documents, start, side="right") - 1
        return replace(packed, source=self._sources[document].astype(np.int64))


@dataclass(frozen=True)
class FullSentences(InputFormat):
    """[CLS] text [SEP]: windows of whole sentences, over document ends with an extra [SEP]
    (RoBERTa, section 4.2). A sentence longer than the window is cut into windows of its own."""

    num_segments = 1
    instances = WindowInstances


def _numbered(count: I64) -> tuple[I64, I64]:
    """`count` [N] things of each of N owners: whose each is, and its number there; [3, 0, 2] ->
    00022, 01201.
    """
    which = np.repeat(np.arange(len(count)), count)
    return which, np.arange(count.sum()) - (np.cumsum(count) - count)[which]
