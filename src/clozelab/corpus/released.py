"""Segment pairs as the released BERT code cuts them, leaks included.

They are what `cuts: released` of SegmentPairs means. A document is walked in chunks of whole
sentences, each as long as it has to be. A ends at one of its boundaries. B is the rest or, half of
the time and always where there is no rest, a run of sentences from another document; what that
replaces begins the next chunk. Then the longer side loses tokens at its front or its end, until the
pair fits.

Unusual: the released builder draws as it goes. Here what is drawn at a sentence is a pure function
of (builder_seed, copy, sentence). A walk begins a chunk at a sentence once at most, so the
distribution is the same, and an instance is known by its first sentence. All runs read the same
instances, as they would its files.

Letters: B instances of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from clozelab.corpus.instances import BoundPairs, NegativeSampler, SegmentPairs, greedy_chunks
from clozelab.corpus.packing import (
    I64,
    BoolArray,
    Epoch,
    PackedInstances,
    Spans,
    SpecialIds,
    column_of,
    pack_pairs,
)
from clozelab.corpus.random import integers, uniform01

if TYPE_CHECKING:
    from clozelab.corpus.shards import TokenShards


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

    def __init__(
        self, layout: SegmentPairs, shards: TokenShards, ids: SpecialIds, seq_length: int
    ) -> None:
        super().__init__(layout, shards, ids, seq_length)
        number = len(self._sentences)
        starts = [copy * number + self._find_starts(copy) for copy in range(layout.copies)]
        self._starts = np.concatenate(starts).astype(np.min_scalar_type(layout.copies * number))
        self._sampler = NegativeSampler(
            np.arange(len(self._documents) - 1), self._groups, self._single_document_groups
        )

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:  # noqa: ARG002
        """Pairs do not depend on seed and epoch: only their order and their masks change."""
        index = np.asarray(index, dtype=np.int64)
        sentences = self._sentences
        copy, first = np.divmod(self._starts[index].astype(np.int64), len(sentences))
        chunk = self._chunks(copy, first)
        a_start = sentences[first]
        a_length = sentences[chunk.split] - a_start
        # B is the rest of the chunk, or a run of sentences from another document.
        random_first, random_end = self._random_next(
            copy, first, chunk.document, chunk.target - a_length
        )
        b_first = np.where(chunk.is_random, random_first, chunk.split)
        b_end = np.where(chunk.is_random, random_end, chunk.end)
        b_start = sentences[b_first]
        b_length = sentences[b_end] - b_start
        # The longer side loses a token, B where they are level, until both fit.
        half = -(-self._budget // 2)
        a_kept = np.minimum(a_length, np.maximum(self._budget - b_length, half))
        b_kept = np.minimum(b_length, self._budget - a_kept)
        a_start = a_start + self._cut_in_front("trim A", copy, first, a_length - a_kept)
        b_start = b_start + self._cut_in_front("trim B", copy, first, b_length - b_kept)
        spans = Spans(a_start, a_kept, b_start, b_kept)
        packed = pack_pairs(self._tokens, spans, self.ids, self.seq_length, index)
        return replace(
            packed,
            next_sentence_label=chunk.is_random.astype(np.int64),
            source=self._sources[chunk.document].astype(np.int64),
            b_source=self._sources[self._document_of(b_first)].astype(np.int64),
        )

    def _find_starts(self, copy: int) -> I64:
        """First sentences of one copy's instances."""

        def following(low: int, high: int) -> I64:
            # What a random B replaces may begin the next chunk.
            chunk = self._chunks(copy, np.arange(low, high))
            is_put_back = chunk.is_random & self._layout.put_back_unused
            return np.where(is_put_back, chunk.split, chunk.end)

        starts = greedy_chunks(len(self._sentences) - 1, following)
        if self._layout.lone_sentences == "random":
            return starts
        num_sentences = self._chunks(copy, starts).end - starts
        return starts[num_sentences > 1]

    def _chunks(self, copy: Epoch, first: I64) -> _Chunks:
        """The chunks that begin with the sentences `first` [B]."""
        layout = self._layout
        document = self._document_of(first)
        target = layout.budgets(copy, document, self._budget)
        reach = np.searchsorted(self._sentences, self._sentences[first] + target)
        end = np.minimum(reach, self._documents[document + 1])
        draw = uniform01(
            layout.builder_seed, column_of(copy), "chunk", first[:, None], np.arange(2)
        )
        # A has one sentence at least, and leaves B one where there are two.
        split = first + 1 + (draw[:, 0] * (end - first - 1)).astype(np.int64)
        is_random = (end - first == 1) | (draw[:, 1] < layout.random_next_prob)
        return _Chunks(document, target, split, end, is_random)

    def _random_next(
        self, copy: I64, first: I64, document: I64, num_tokens: I64
    ) -> tuple[I64, I64]:
        """First sentence and end of random Bs [B].

        They have at least one sentence, and go on until `num_tokens` tokens are there.
        """
        seed = self._layout.builder_seed
        rows = np.arange(len(first))
        # Ten candidates for the other document [B, 10]: the first that is another one, or at last
        # one's own.
        draw = uniform01(seed, column_of(copy), "other document", first[:, None], np.arange(10))
        candidates = self._sampler.draw(draw, self._groups[document][:, None])
        is_other = self._origins[candidates] != self._origins[document][:, None]
        first_other = np.where(is_other.any(1), is_other.argmax(1), -1)
        other = candidates[rows, first_other]
        begin = self._documents[other]
        end = self._documents[other + 1]
        start = begin + integers(seed, copy, "other sentence", first, high=end - begin)
        reach = np.searchsorted(self._sentences, self._sentences[start] + np.maximum(1, num_tokens))
        return start, np.minimum(reach, end)

    def _cut_in_front(self, stream: str, copy: I64, first: I64, removed: I64) -> I64:
        """How many of the `removed` [B] tokens go from the front: a coin for each."""
        number = np.arange(removed.max(initial=0))  # [most removed]
        seed = self._layout.builder_seed
        coins = uniform01(seed, column_of(copy), stream, first[:, None], number)
        is_front = (coins < 0.5) & (number < removed[:, None])
        return is_front.sum(axis=1)
