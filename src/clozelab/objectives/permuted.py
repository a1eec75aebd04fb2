"""Permuted language models: the predicted tokens have an order, and each sees those before it.

MPNet (Song et al. 2020) and the idea of XLNet (Yang et al. 2019). Two streams are one, of longer
rows: behind its text a row has slots that only predict, the queries, which no other slot sees. With
`sees_every_position` there are masks, too: a prediction sees one wherever it does not see the token
itself, so that it knows how long the text is. For example, d and then b are predicted of a b c d:

    slot       0 1 2 3   4 5   6 7
    token      a b c d   M M   M M
    position   0 1 2 3   3 1   3 1
               text      masks queries

    a, c, masks    see a, c, both masks
    d, query of b  see a, c, d, the mask of b
    query of d     sees a, c, both masks
    b              sees a, c, d, b

The order of a row's slots means nothing to an encoder that is told positions, so the text stands as
it is. What stands in masks and queries is drawn as for a masked language model (80/10/10).

Letters: T slots of the stream, B instances, W slots of a row, P predicted positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from clozelab.corpus.packing import I64, Epoch, PackedInstances, SpecialIds
from clozelab.corpus.random import uniform_u64
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Arrays, VisibilitySpec

_NEVER = np.int16(np.iinfo(np.int16).max)


@dataclass(eq=False)
class PermutedLanguageModel(MaskedLanguageModel):
    """Predicts as many tokens as a masked language model, in an order drawn for each instance."""

    sees_every_position: bool = field(kw_only=True)
    name = "permuted"
    predictions_help: ClassVar[bool] = True

    @property
    def _slots_each(self) -> int:
        """Slots of a row for each predicted token, behind the text."""
        return 2 if self.sees_every_position else 1

    def arrays(self, packed: PackedInstances, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        masked_ids, position, _ = self.apply(packed, ids, seed, epoch)
        position = _permuted(packed, position, seed, epoch)
        instance, slot = np.divmod(position, packed.width)
        rank, number = _ranks(instance, packed.num_instances)
        length = np.array([packed.width])
        # The most that an instance can have, so that all batches have one width.
        most = int(self.number(length, length - 2, packed.width)[0])
        width = packed.width + self._slots_each * most
        # Behind its text an instance has a block of masks, if any, then one of queries.
        begin = instance * width + packed.lengths[instance] + rank
        blocks = [begin + block * number[instance] for block in range(self._slots_each)]
        queries = blocks[-1]
        lengths = packed.lengths + self._slots_each * number

        def widened(values: I64, fill: int) -> I64:
            """The values of the text [B, S], and at masks and queries those of their tokens."""
            stream = np.full((packed.num_instances, width), fill)
            rows = values.reshape(packed.num_instances, packed.width)
            stream[:, : packed.width] = np.where(is_text, rows, fill)
            for slots in blocks:
                stream.reshape(-1)[slots] = values[position]
            return stream.reshape(-1)

        is_text = packed.is_real.reshape(packed.num_instances, packed.width)
        input_ids = widened(packed.input_ids, ids.pad)
        for slots in blocks:
            input_ids[slots] = masked_ids[position]
        told, known = _steps(len(input_ids), instance * width + slot, queries, rank)
        told[np.arange(len(told)) % width >= np.repeat(lengths, width)] = _NEVER
        hidden_from = np.full(len(input_ids), _NEVER)
        hidden_from[blocks[0]] = rank + 1
        told, known, hidden_from = (x.reshape(-1, width) for x in (told, known, hidden_from))
        step = known[:, :, None]
        return {
            "input_ids": input_ids,
            "token_type_ids": widened(packed.token_type_ids, 0),
            "position_ids": widened(packed.position_ids, 0),
            "lengths": lengths,
            "text_lengths": packed.lengths.tolist(),
            "width": width,
            "visibility": (told[:, None] <= step) & (step < hidden_from[:, None]),
            "prediction_positions": queries,
            "prediction_labels": packed.input_ids[position],
        }

    def visibility(self, packed: PackedInstances, arrays: Arrays) -> list[VisibilitySpec]:
        """A prediction sees the text, but of the predicted tokens only those before it."""
        queries = arrays["prediction_positions"]
        instance = queries // arrays["width"]
        slot = arrays["position_ids"][queries]
        rank, _ = _ranks(instance, packed.num_instances)
        text = instance * arrays["width"] + slot
        told, known = _steps(len(arrays["input_ids"]), text, queries, rank)

        def sees(query: I64, key: I64) -> np.ndarray:
            return (told[key] <= known[query]) | (query == key)

        about = instance * packed.width + slot
        return [VisibilitySpec(self.name, "encoder", queries, about, sees, self.own_share)]

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """Of the text's tokens; masks and queries are more work for each."""
        stream = seq_length + self._slots_each * round(predicted_fraction * seq_length)
        longer = stream / seq_length
        return longer * training_flops_per_token(config, stream, predicted_fraction / longer)


def _permuted(packed: PackedInstances, position: I64, seed: int, epoch: Epoch) -> I64:
    """Ascending positions [P] in a random order inside each instance."""
    instance, slot = np.divmod(position, packed.width)
    if not isinstance(epoch, int):
        epoch = epoch[instance]
    priority = uniform_u64(seed, epoch, "permutation", packed.names[instance], slot)
    return position[np.lexsort((priority, instance))]


def _ranks(instance: I64, num_instances: int) -> tuple[I64, I64]:
    """The place of each prediction in its instance's order [P], and how many there are [B]."""
    number = np.bincount(instance, minlength=num_instances)
    first = np.cumsum(number) - number
    return np.arange(len(instance)) - first[instance], number


def _steps(num_slots: int, text: I64, queries: I64, rank: I64) -> tuple[np.ndarray, np.ndarray]:
    """When each slot is told to others, and up to when it has been told; int16 [T].

    What is not predicted is told at step 0, and hears nothing after it. The predicted token of rank
    r is told at step r + 1, itself included, and its query hears all before that.
    """
    told = np.zeros(num_slots, dtype=np.int16)
    known = np.zeros(num_slots, dtype=np.int16)
    told[text] = rank + 1
    known[text] = rank + 1
    told[queries] = _NEVER
    known[queries] = rank
    return told, known
