"""What a prepared corpus holds, and what a model reads of it in pre-training: for a person to see.

The instances are those of the training itself, of the same seed and step.

Letters: B instances, T slots of the stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.packing import PackedInstances
from clozelab.corpus.random import one_or_all
from clozelab.corpus.shards import TokenShards
from clozelab.datamodules.corpus import SAMPLED_INSTANCES, BoundPhase
from clozelab.objectives.objective import Arrays, Objective, PairObjective

SHOWN_SENTENCES = 20  # of a document
TEXT = "text"
SPECIAL = "special"
MASKED = "masked"  # predicted, and the encoder reads [MASK]
RANDOM = "random"  # predicted, and the encoder reads another token
KEPT = "kept"  # predicted, and the encoder reads the token itself
ONE_SIDED = "one-sided"  # predicted from what stands on one side; the text is whole


@dataclass(frozen=True)
class Histogram:
    """How often values lie in each of some ranges."""

    title: str
    counts: dict[str, int]  # range -> values, from the first range that has some to the last one
    mean: float
    largest: int


@dataclass(frozen=True)
class ShownDocument:
    """A document, or the part of one that lies on this side of the split."""

    number: int
    source: str
    num_tokens: int
    num_sentences: int
    sentences: list[str]  # the first ones


@dataclass(frozen=True)
class InstancePart:
    """A piece of an instance: a stretch of text, or one token of another kind."""

    kind: str
    text: str  # that the encoder reads
    label: str  # what is predicted here; "" for text and special tokens
    space: str  # before it: none where it goes on with a word


@dataclass(frozen=True)
class Segment:
    """What stands before a separator, and that separator."""

    token_type: int
    parts: list[InstancePart]


@dataclass(frozen=True)
class ShownInstance:
    """An instance as the encoder reads it."""

    number: int  # in the order of training, from 0
    source: str
    num_tokens: int
    num_slots: int
    predictions: Counter[str]  # by kind
    pair: str  # the pair objective's label and what it means; "" without one
    segments: list[Segment]

    @property
    def padding(self) -> float:
        """The share of its slots without a token."""
        return 1 - self.num_tokens / self.num_slots


@dataclass(frozen=True)
class Inspection:
    """All that is shown of a corpus."""

    title: str
    facts: Sequence[str]  # sentences: sizes, what was left out
    words: Mapping[
        str, Mapping[str, int]
    ]  # the manifest's, by source; empty where they were not counted
    histograms: Sequence[Histogram]
    documents: Sequence[ShownDocument]
    phase: str  # which the instances are of
    instances: Sequence[ShownInstance]


def length_histogram(title: str, lengths: NDArray[np.int64]) -> Histogram:
    """Of lengths from 1 on; each range is twice as wide as the one before it."""
    powers = np.log2(lengths).astype(np.int64)
    counts = {}
    for power in range(powers.min(), powers.max() + 1):
        label = f"{2**power:,}"
        if power:
            label += f"\u2013{2 ** (power + 1) - 1:,}"
        counts[label] = int((powers == power).sum())
    return Histogram(title, counts, float(lengths.mean()), int(lengths.max()))


def instance_lengths(bound: BoundPhase) -> NDArray[np.int64]:
    """How many slots hold a token in each of some instances of a phase."""
    count = min(len(bound.instances), SAMPLED_INSTANCES)
    epoch, index = bound.places(np.arange(count))
    return bound.instances.pack(bound.seed, one_or_all(epoch), index).lengths


def show_document(shards: TokenShards, tokenizer: Tokenizer, number: int) -> ShownDocument:
    """One document of a split, decoded sentence by sentence."""
    first, end = shards.document_offsets[number : number + 2].tolist()
    offsets = shards.sentence_offsets[first : end + 1].tolist()
    sentences = []
    for start, stop in pairwise(offsets[: SHOWN_SENTENCES + 1]):
        sentences.append(tokenizer.decode(shards.tokens[start:stop]).strip())
    source = shards.source_names[shards.document_source[number]]
    return ShownDocument(number, source, offsets[-1] - offsets[0], end - first, sentences)


def show_instances(
    bound: BoundPhase, tokenizer: Tokenizer, source_names: Sequence[str], step: int, number: int
) -> list[ShownInstance]:
    """The first instances of an optimizer step, counted from 0, which lies in this phase."""
    if not number:
        return []
    order = (step - bound.first_step) * bound.phase.global_batch_size + np.arange(number)
    epoch, index = bound.places(order)
    objective = bound.objective
    drawn = objective.draw(bound.instances, bound.seed, epoch, index)
    packed, labels = objective.arranged(drawn, order)
    kinds, read = predicted_kinds(objective, packed, objective.arrays_of(packed))
    writer = TokenWriter(tokenizer)
    instances = []
    for row in range(number):
        first_slot = row * packed.width
        num_tokens = int(packed.lengths[row])
        slots = slice(first_slot, first_slot + num_tokens)
        predictions = Counter(kinds[slots].tolist())
        del predictions[TEXT]
        pair = ""
        if objective.pair is not None:
            pair = _pair_text(objective.pair, int(labels[objective.pair.label][row]))
        source = ""
        if packed.source is not None:
            source = source_names[packed.source[row]]
        segments = writer.segments(packed, kinds, read, slots)
        instance = ShownInstance(
            number=int(order[row]),
            source=source,
            num_tokens=num_tokens,
            num_slots=packed.width,
            predictions=predictions,
            pair=pair,
            segments=segments,
        )
        instances.append(instance)
    return instances


def predicted_kinds(
    objective: Objective, packed: PackedInstances, arrays: Arrays
) -> tuple[NDArray[np.object_], NDArray[np.int64]]:
    """How each token of the text is predicted [T], TEXT for not at all, and what is read there."""
    kinds = np.full(len(packed.input_ids), TEXT, dtype=object)
    read = packed.input_ids.copy()
    is_longer = arrays["width"] != packed.width
    for spec in objective.token.visibility(packed, arrays):
        # Rows may be longer than their text: a slot behind it then stands for the token.
        slots = spec.positions if is_longer else spec.about
        read[spec.about] = arrays["input_ids"][slots]
        is_mask = read[spec.about] == packed.ids.mask
        is_other = read[spec.about] != packed.input_ids[spec.about]
        is_seen = spec.sees(spec.positions, slots)
        kinds[spec.about] = np.select(
            [is_mask, is_other, is_seen], [MASKED, RANDOM, KEPT], ONE_SIDED
        )
    return kinds, read


def _pair_text(pair: PairObjective, label: int) -> str:
    """A pair's label and what it means."""
    meaning = "the second segment follows the first"
    if label == 1:
        meaning = "the two segments are swapped"
        if pair.is_of_other_document:
            meaning = "the second segment is of another document"
    return f"{pair.label} {label}: {meaning}"


class TokenWriter:
    """Writes tokens as text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._continues = tokenizer.continues()

    def segments(
        self,
        packed: PackedInstances,
        kinds: NDArray[np.object_],
        read: NDArray[np.int64],
        slots: slice,
    ) -> list[Segment]:
        """The segments of the instance in these slots; `kinds` and `read` as `predicted_kinds`."""
        text = packed.input_ids[slots]
        is_special = packed.special[slots]
        # Text that is predicted from one side stands as it is.
        is_text = ~is_special & np.isin(kinds[slots], (TEXT, ONE_SIDED))
        # A segment begins behind separators, but not behind [CLS].
        begins_segment = np.zeros(len(text), dtype=bool)
        begins_segment[2:] = is_special[1:-1] & ~is_special[2:]
        begins_segment[0] = True
        # Each token but those of a stretch of text is a part of its own.
        begins_part = begins_segment | ~is_text
        begins_part[1:] |= ~is_text[:-1]
        # Behind a special token a word has a space before it, even where it goes on.
        joins = np.zeros(len(text), dtype=bool)
        if self._continues is not None:
            joins[1:] = self._continues[text[1:]] & ~is_special[1:] & ~is_special[:-1]
        segments: list[Segment] = []
        for start, end in pairwise([*np.flatnonzero(begins_part).tolist(), len(text)]):
            if begins_segment[start]:
                segments.append(Segment(int(packed.token_type_ids[slots][start]), []))
            space = "" if joins[start] else " "
            if is_text[start]:
                stretch = self._tokenizer.decode(text[start:end]).strip()
                segments[-1].parts.append(InstancePart(TEXT, stretch, "", space))
            elif is_special[start]:
                name = self.name(text[start])
                segments[-1].parts.append(InstancePart(SPECIAL, name, "", space))
            else:
                name = self.name(read[slots][start])
                label = self.name(text[start])
                segments[-1].parts.append(InstancePart(kinds[slots][start], name, label, space))
        return segments

    def name(self, index: np.int64) -> str:
        """A token's text; its name where that is a part of a character, or nothing."""
        shown = self._tokenizer.shown(int(index))
        if "\ufffd" in shown:
            return self._tokenizer.vocabulary[index]
        return shown
