"""Segment pairs as the released BERT code cuts them, leaks included: what `cuts: released` of
SegmentPairs means.

A document is walked in chunks of whole sentences, each as long as it has to be. A ends at one of
its boundaries. B is the rest or, half of the time and always where there is no rest, a run of
sentences from another document; what that replaces begins the next chunk. Then the longer side
loses tokens at its front or its end, until the pair fits.

Unusual: the released builder draws as it goes. Here what is drawn at a sentence is a pure function
of (builder_seed, copy, sentence). A walk begins a chunk at a sentence once at most, so the
distribution is the same, and an instance is known by its first sentence. All runs read the same
instances, as they would its files.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from clozelab.corpus.instances import BoundPairs, Pool, SegmentPairs, walk
from clozelab.corpus.packing import (
    I64,
    BoolArray,
    Epoch,
    PackedInstances,
    Spans,
    column_of,
    pack_pairs,
)
from clozelab.corpus.random import integers, uniform01


class ReleasedInstances(BoundPairs):
    """Instances of `SegmentPairs` with `cuts: released`; of each it stores copy * number of
    sentences + sentence.
    """

    def __init__(self, layout: SegmentPairs, *rest: Any) -> None:
        super().__init__(layout, *rest)
        number = len(self._sentences)
        starts = [copy * number + self._walk(copy) for copy in range(layout.copies)]
        self._starts = np.concatenate(starts).astype(np.min_scalar_type(layout.copies * number))
        self._pool = Pool(np.arange(len(self._documents) - 1), self._groups, self._lonely)

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:  # noqa: ARG002
        """Pairs do not depend on seed and epoch: only their order and their masks change."""
        index, sentences = np.asarray(index, dtype=np.int64), self._sentences
        copy, first = np.divmod(self._starts[index].astype(np.int64), len(sentences))
        document, target, split, end, is_random = self._chunk(copy, first)
        a_start, a_length = sentences[first], sentences[split] - sentences[first]
        drawn = self._random_next(copy, first, document, target - a_length)
        b_first, b_end = np.where(is_random, drawn, (split, end))
        b_start, b_length = sentences[b_first], sentences[b_end] - sentences[b_first]
        # The longer side loses a token, B where they are level, until both fit.
        a_kept = np.minimum(a_length, np.maximum(self._budget - b_length, -(-self._budget // 2)))
        b_kept = np.minimum(b_length, self._budget - a_kept)
        a_start = a_start + self._cut_in_front("trim A", copy, first, a_length - a_kept)
        b_start = b_start + self._cut_in_front("trim B", copy, first, b_length - b_kept)
        packed = pack_pairs(
            self._tokens, Spans(a_start, a_kept, b_start, b_kept), self.ids, self.seq_length, index
        )
        source, b_source = (
            self._sources[one].astype(np.int64) for one in (document, self._document_of(b_first))
        )
        return replace(
            packed, next_sentence_label=is_random.astype(np.int64), source=source, b_source=b_source
        )

    def _walk(self, copy: int) -> I64:
        """First sentences of one copy's instances."""

        def following(low: int, high: int) -> I64:
            *_, split, end, is_random = self._chunk(copy, np.arange(low, high))
            return np.where(is_random & self._layout.put_back_unused, split, end)

        starts = walk(len(self._sentences) - 1, following)
        return (
            starts
            if self._layout.lone_sentences == "random"
            else starts[self._chunk(copy, starts)[3] - starts > 1]
        )

    def _chunk(self, copy: Epoch, first: I64) -> tuple[I64, I64, I64, I64, BoolArray]:
        """Of chunks that begin with these sentences [B]: document, tokens wanted, B's first and
        end, is it random.
        """
        layout, document = self._layout, self._document_of(first)
        target = layout.budgets(copy, document, self._budget)
        reach = np.searchsorted(self._sentences, self._sentences[first] + target)
        end = np.minimum(reach, self._documents[document + 1])
        draw = uniform01(
            layout.builder_seed, column_of(copy), "chunk", first[:, None], np.arange(2)
        )
        split = first + 1 + (draw[:, 0] * (end - first - 1)).astype(np.int64)
        is_random = (end - first == 1) | (draw[:, 1] < layout.random_next_prob)
        return document, target, split, end, is_random

    def _random_next(self, copy: I64, first: I64, document: I64, wanted: I64) -> tuple[I64, I64]:
        """First sentence and end of random Bs [B]: at least one sentence, and then until `wanted`
        tokens are there.
        """
        seed = self._layout.builder_seed
        draw = uniform01(seed, column_of(copy), "other document", first[:, None], np.arange(10))
        other = self._pool.draw(draw, self._groups[document][:, None])
        is_other = self._origins[other] != self._origins[document][:, None]
        # or at last one's own
        other = other[np.arange(len(other)), np.where(is_other.any(1), is_other.argmax(1), -1)]
        begin, end = self._documents[other], self._documents[other + 1]
        start = begin + integers(seed, copy, "other sentence", first, high=end - begin)
        reach = np.searchsorted(self._sentences, self._sentences[start] + np.maximum(1, wanted))
        return start, np.minimum(reach, end)

    def _cut_in_front(self, stream: str, copy: I64, first: I64, removed: I64) -> I64:
        """How many of the `removed` [B] tokens go from the front: a coin for each."""
        number = np.arange(removed.max(initial=0))
        coins = uniform01(
            self._layout.builder_seed, column_of(copy), stream, first[:, None], number
        )
        return ((coins < 0.5) & (number < removed[:, None])).sum(axis=1)
