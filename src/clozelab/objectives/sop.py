"""Sentence-order prediction: were the two segments swapped? (Lan et al. 2020, ALBERT, section 3.1).
Label 1 = swapped.

Unusual: the pairs have an input format of their own. `SegmentPairs` begins and cuts its outer ends
anywhere, so the one segment that ends in the middle of a sentence would tell the order. Here both
segments are whole sentences; the boundary between them is drawn evenly; half of the documents are
cut from their end, as a front walk puts long sentences first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clozelab.corpus.instances import InputFormat, Instances, greedy_chunks
from clozelab.corpus.packing import I64, Epoch, PackedInstances, Spans, SpecialIds, pack_pairs
from clozelab.corpus.random import uniform01
from clozelab.objectives.objective import PairObjective


class SentenceOrderPrediction(PairObjective):
    """Half of the pairs are swapped, drawn anew in every epoch."""

    name = "sop"
    label = "sentence_order_label"
    is_of_other_document = False

    def check_input(self, input: InputFormat) -> None:
        if not isinstance(input, SentencePairs):
            said = f"Objective {self.name} needs pairs whose cuts do not tell the order"
            raise ValueError(
                f"{said}, but {type(input).__name__} makes others: choose"
                " objective/input=sentence_pairs."
            )

    def arrange(
        self, packed: PackedInstances, seed: int, epoch: Epoch
    ) -> tuple[PackedInstances, I64]:
        """[CLS] A [SEP] B [SEP], or, where the label is 1, [CLS] B [SEP] A [SEP]."""
        a_length, b_length = packed.a_length, packed.b_length
        assert a_length is not None and b_length is not None
        label = (uniform01(seed, epoch, "sentence order", packed.names) < 0.5).astype(np.int64)
        first, second = np.where(label == 1, (b_length, a_length), (a_length, b_length))
        separators = packed.lengths - a_length - b_length - 2
        # of the second segment
        begin, end = (first + 1 + separators)[:, None], (packed.lengths - 1)[:, None]
        slot = np.arange(packed.width)[None, :]
        # Slot by slot: where it stands in the text's order, in which the second segment of a
        # swapped pair is the first.
        swapped = np.where(slot >= begin, slot - begin + 1, slot + (second + separators)[:, None])
        swapped = np.where(
            (slot > first[:, None]) & (slot < begin), slot + (second - first)[:, None], swapped
        )
        where = np.where((label[:, None] == 1) & (slot > 0) & (slot < end), swapped, slot)
        where += packed.width * np.arange(packed.num_instances)[:, None]
        in_second = (slot >= begin) & (slot <= end) & packed.token_type_ids.any()
        return (
            replace(
                packed,
                input_ids=packed.input_ids[where.reshape(-1)],
                special=packed.special[where.reshape(-1)],
                token_type_ids=in_second.astype(np.int64).reshape(-1),
                a_length=first,
                b_length=second,
            ),
            label,
        )


class SentencePairInstances(Instances):
    """Instances of `SentencePairs`: at least two sentences each, as many as fit."""

    def __init__(
        self, layout: SentencePairs, shards: Any, ids: SpecialIds, seq_length: int
    ) -> None:
        super().__init__(layout, shards, ids, seq_length)
        number, budget = len(self._sentences) - 1, seq_length - 2 - ids.pair_separators
        first, end = _chunks(self._sentences, self._documents, budget)
        backwards = self._sentences[-1] - self._sentences[::-1], number - self._documents[::-1]
        last_end, last_first = _chunks(*backwards, budget)
        from_front = self._document_of(first) % 2 == 0
        from_end = self._document_of(number - last_first) % 2 == 1
        self._first = np.concatenate([first[from_front], number - last_first[from_end]])
        self._end = np.concatenate([end[from_front], number - last_end[from_end]])
        usable = self._end - self._first > 1
        self._first, self._end = self._first[usable], self._end[usable]
        if not len(self):
            more = (
                "raise the phase's seq_length (corpus.validation_fraction if this is the validation"
                " split)"
            )
            raise ValueError(
                f"no two sentences of a document fit into {seq_length} tokens: add text, or {more}."
            )

    def __len__(self) -> int:
        return len(self._first)

    def pack(self, seed: int, epoch: Epoch, index: I64) -> PackedInstances:
        """In the order of the text; every epoch draws another boundary between A and B."""
        index = np.asarray(index, dtype=np.int64)
        first, end = self._first[index], self._end[index]
        draw = uniform01(seed, epoch, "boundary", index)
        middle = self._sentences[first + 1 + (draw * (end - first - 1)).astype(np.int64)]
        start, stop = self._sentences[first], self._sentences[end]
        spans = Spans(start, middle - start, middle, stop - middle)
        packed = pack_pairs(self._tokens, spans, self.ids, self.seq_length, index)
        return replace(packed, source=self._sources[self._document_of(first)].astype(np.int64))


@dataclass(frozen=True)
class SentencePairs(InputFormat):
    """[CLS] A [SEP] B [SEP]: whole sentences that follow each other in one document."""

    instances = SentencePairInstances


def _chunks(sentences: I64, documents: I64, budget: int) -> tuple[I64, I64]:
    """First sentence and end of the greedy chunks of whole sentences, none across documents; longer
    ones are alone.
    """

    def following(low: int, high: int) -> I64:
        number = np.arange(low, high)
        reach = np.searchsorted(sentences, sentences[low:high] + budget, side="right") - 1
        ends = documents[np.searchsorted(documents, number, side="right")]
        return np.minimum(np.maximum(reach, number + 1), ends)

    first = greedy_chunks(len(sentences) - 1, following)
    return first, np.append(first[1:], len(sentences) - 1)
