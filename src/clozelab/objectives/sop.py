"""Sentence-order prediction: were the two segments swapped? Label 1 = swapped.

It is ALBERT's (Lan et al. 2020, section 3.1). Unusual: the pairs have an input format of their own.
`SegmentPairs` begins and cuts its outer ends anywhere, so the one segment that ends in the middle
of a sentence would tell the order. Here both segments are whole sentences; the boundary between
them is drawn evenly; half of the documents are cut from their end, as a front walk puts long
sentences first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.instances import DrawnInstances, InputFormat, Instances, greedy_chunks
from clozelab.corpus.packing import I64, PackedInstances, SegmentSpans, pack_pairs
from clozelab.objectives.objective import PairObjective


class SentenceOrderPrediction(PairObjective):
    """Half of the pairs are swapped, drawn anew in every epoch."""

    name = "sop"
    label = "sentence_order_label"
    is_of_other_document = False

    def check_input(self, input: InputFormat) -> None:
        if not isinstance(input, SentencePairs):
            raise ValueError(
                f"Objective {self.name} needs pairs whose cuts do not tell the order, but"
                f" {type(input).__name__} makes others: choose objective/input=sentence_pairs."
            )

    def arrange(self, packed: PackedInstances) -> tuple[PackedInstances, I64]:
        """[CLS] A [SEP] B [SEP], or, where the label is 1, [CLS] B [SEP] A [SEP]."""
        a_length = packed.a_length
        b_length = packed.b_length
        assert a_length is not None and b_length is not None
        label = (packed.draws.uniform("sentence order") < 0.5).astype(np.int64)
        first, second = np.where(label == 1, (b_length, a_length), (a_length, b_length))
        separators = packed.lengths - a_length - b_length - 2
        # The second segment's first slot, and the last [SEP]: [B, 1]; slots [1, S].
        begin = (first + 1 + separators)[:, None]
        end = (packed.lengths - 1)[:, None]
        slot = np.arange(packed.width)[None, :]
        # Slot by slot: where it stands in the text's order, in which the second segment of a
        # swapped pair is the first.
        swapped = np.where(slot >= begin, slot - begin + 1, slot + (second + separators)[:, None])
        is_separator = (slot > first[:, None]) & (slot < begin)
        swapped = np.where(is_separator, slot + (second - first)[:, None], swapped)
        is_swapped = (label[:, None] == 1) & (slot > 0) & (slot < end)
        source = np.where(is_swapped, swapped, slot)
        # From slots of an instance to slots of the stream.
        source += packed.width * np.arange(packed.num_instances)[:, None]
        source = source.reshape(-1)
        in_second = (slot >= begin) & (slot <= end) & packed.token_type_ids.any()
        arranged = replace(
            packed,
            input_ids=packed.input_ids[source],
            special=packed.special[source],
            token_type_ids=in_second.astype(np.int64).reshape(-1),
            a_length=first,
            b_length=second,
        )
        return arranged, label


class SentencePairInstances(Instances):
    """Instances of `SentencePairs`: at least two sentences each, as many as fit."""

    def _find(self) -> None:
        number = len(self._sentences) - 1
        budget = self.seq_length - 2 - self.ids.pair_separators
        first, end = _chunks(self._sentences, self._documents, budget)
        # From the end: the same walk over the mirrored text.
        mirrored_sentences = self._sentences[-1] - self._sentences[::-1]
        mirrored_documents = number - self._documents[::-1]
        mirrored_end, mirrored_first = _chunks(mirrored_sentences, mirrored_documents, budget)
        last_first = number - mirrored_first
        last_end = number - mirrored_end
        # Every second document is cut from its end.
        from_front = self._document_of(first) % 2 == 0
        from_end = self._document_of(last_first) % 2 == 1
        firsts = np.concatenate([first[from_front], last_first[from_end]])
        ends = np.concatenate([end[from_front], last_end[from_end]])
        has_two = ends - firsts > 1
        self._first = firsts[has_two]
        self._end = ends[has_two]
        if not len(self):
            raise ValueError(
                f"no two sentences of a document fit into {self.seq_length} tokens: add text, or"
                " raise the phase's seq_length (corpus.validation_fraction if this is the"
                " validation split)."
            )

    def __len__(self) -> int:
        return len(self._first)

    def sources(self) -> NDArray[np.uint8]:
        return self._sources[self._document_of(self._first)]

    def pack_drawn(self, drawn: DrawnInstances) -> PackedInstances:
        """In the order of the text; every epoch draws another boundary between A and B."""
        draws = drawn.draws
        first = self._first[draws.names]
        end = self._end[draws.names]
        draw = draws.uniform("boundary")
        middle = self._sentences[first + 1 + (draw * (end - first - 1)).astype(np.int64)]
        start = self._sentences[first]
        stop = self._sentences[end]
        spans = SegmentSpans(start, middle - start, middle, stop - middle)
        packed = pack_pairs(self._tokens, spans, self.ids, self.seq_length, draws)
        return replace(packed, source=self._sources[self._document_of(first)].astype(np.int64))


@dataclass(frozen=True)
class SentencePairs(InputFormat):
    """[CLS] A [SEP] B [SEP]: whole sentences that follow each other in one document."""

    instances = SentencePairInstances


def _chunks(sentences: I64, documents: I64, budget: int) -> tuple[I64, I64]:
    """First sentence and end of the greedy chunks of whole sentences, none across documents.

    A sentence that is longer than `budget` is alone.
    """

    def following(low: int, high: int) -> I64:
        number = np.arange(low, high)
        # As many sentences as fit, at least one, none of the next document.
        fitting = np.searchsorted(sentences, sentences[low:high] + budget, side="right") - 1
        document_ends = documents[np.searchsorted(documents, number, side="right")]
        return np.minimum(np.maximum(fitting, number + 1), document_ends)

    first = greedy_chunks(len(sentences) - 1, following)
    return first, np.append(first[1:], len(sentences) - 1)
