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

import numpy as np

from clozelab.corpus.packing import I64, PackedInstances
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Arrays, EncoderWithHeads, VisibilitySpec

_NEVER = np.int16(np.iinfo(np.int16).max)


@dataclass(eq=False)
class PermutedLanguageModel(MaskedLanguageModel):
    """Predicts as many tokens as a masked language model, in an order drawn for each instance."""

    sees_every_position: bool = field(kw_only=True)
    name = "permuted"
    predictions_help = True
    moves_slots = True

    @property
    def hides_neighbours(self) -> bool:
        return True

    @property
    def _slots_per_prediction(self) -> int:
        """Slots of a row for each predicted token, behind the text."""
        return 2 if self.sees_every_position else 1

    def _width(self, text_width: int) -> int:
        """Slots of a row: enough for the most predictions, so that all batches have one width."""
        length = np.array([text_width])
        most = int(self.number(length, length - 2, text_width)[0])
        return text_width + self._slots_per_prediction * most

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        super().build(models)
        # An XLNet's queries start from a vector that nobody else reads.
        models["encoder"].encoder.embeddings.position_embeddings.requires_grad_(True)

    def arrays(self, packed: PackedInstances) -> Arrays:
        masked_ids, position, _ = self.apply(packed)
        position = _permuted(packed, position)
        instance, slot = np.divmod(position, packed.width)
        rank, number = _ranks(instance, packed.num_instances)
        # Rank 0 is what an instance predicts first. Behind its text stand its masks, if any, and
        # then its queries.
        width = self._width(packed.width)
        begin = instance * width + packed.lengths[instance] + rank
        blocks = [begin + block * number[instance] for block in range(self._slots_per_prediction)]
        queries = blocks[-1]
        lengths = packed.lengths + self._slots_per_prediction * number
        input_ids = _in_wider_rows(packed, packed.input_ids, width, packed.ids.pad)
        token_type_ids = _in_wider_rows(packed, packed.token_type_ids, width, 0)
        position_ids = _in_wider_rows(packed, packed.position_ids, width, 0)
        # A mask or a query has its token's position, so the encoder knows what it is asked for.
        for slots in blocks:
            input_ids[slots] = masked_ids[position]
            token_type_ids[slots] = packed.token_type_ids[position]
            position_ids[slots] = slot
        visible_from, sees_until = _reveal_steps(
            len(input_ids), instance * width + slot, queries, rank
        )
        visible_from[np.arange(len(visible_from)) % width >= np.repeat(lengths, width)] = _NEVER
        # A mask stands for its token until that is visible; without masks this is of the queries.
        hidden_from = np.full(len(input_ids), _NEVER)
        hidden_from[blocks[0]] = rank + 1
        # [B, W, W]: a row for each slot that looks, a column for each that is looked at.
        step = sees_until.reshape(-1, width, 1)
        is_visible = visible_from.reshape(-1, 1, width) <= step
        is_visible &= step < hidden_from.reshape(-1, 1, width)
        return {
            "input_ids": input_ids,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "lengths": lengths,
            "text_lengths": packed.lengths.tolist(),
            "width": width,
            "visibility": is_visible,
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
        visible_from, sees_until = _reveal_steps(len(arrays["input_ids"]), text, queries, rank)

        def sees(query: I64, key: I64) -> np.ndarray:
            return (visible_from[key] <= sees_until[query]) | (query == key)

        about = instance * packed.width + slot
        return [VisibilitySpec(self.name, "encoder", queries, about, sees, self.own_share)]

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """Of the text's tokens; masks and queries are more work for each."""
        # A vocabulary projection for each prediction, as before, though of a longer stream.
        stream = self.stream_length(seq_length, predicted_fraction)
        longer = stream / seq_length
        return longer * training_flops_per_token(config, stream, predicted_fraction / longer)

    def stream_length(self, seq_length: int, predicted_fraction: float) -> int:
        return seq_length + self._slots_per_prediction * round(predicted_fraction * seq_length)


def _permuted(packed: PackedInstances, position: I64) -> I64:
    """Ascending positions [P] in a random order inside each instance."""
    instance, slot = np.divmod(position, packed.width)
    # A random number for each token, by name and slot: the same in any batch and worker.
    priority = packed.draws.of(instance).bits("permutation", slot)
    return position[np.lexsort((priority, instance))]


def _ranks(instance: I64, num_instances: int) -> tuple[I64, I64]:
    """The place of each prediction in its instance's order [P], and how many there are [B]."""
    number = np.bincount(instance, minlength=num_instances)
    first = np.cumsum(number) - number
    return np.arange(len(instance)) - first[instance], number


def _reveal_steps(
    num_slots: int, text: I64, queries: I64, rank: I64
) -> tuple[np.ndarray, np.ndarray]:
    """The step from which each slot is seen, and up to which it sees others; int16 [T].

    What is not predicted is visible from step 0, and sees nothing later. The predicted token of
    rank r is visible from step r + 1, to itself as well; its query sees what is visible until r.
    """
    # The example above, where d has rank 0 and b rank 1; - is never:
    #
    #     slot          a b c d   query of d, of b
    #     visible from  0 2 0 1   - -
    #     sees until    0 2 0 1   0 1
    visible_from = np.zeros(num_slots, dtype=np.int16)
    sees_until = np.zeros(num_slots, dtype=np.int16)
    visible_from[text] = rank + 1
    sees_until[text] = rank + 1
    visible_from[queries] = _NEVER
    sees_until[queries] = rank
    return visible_from, sees_until


def _in_wider_rows(packed: PackedInstances, values: I64, width: int, fill: int) -> I64:
    """The values of the text [T] in rows of `width` slots, and `fill` behind it."""
    stream = np.full((packed.num_instances, width), fill)
    real = packed.is_real.reshape(packed.num_instances, packed.width)
    stream[:, : packed.width][real] = values.reshape(real.shape)[real]
    return stream.reshape(-1)
