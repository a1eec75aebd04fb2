"""Several losses at tokens in one forward: each part of the predictions has a mean of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from clozelab.corpus.packing import I64
from clozelab.models.encoder import EncoderOutput
from clozelab.objectives.objective import (
    Arrays,
    EncoderWithHeads,
    LossTerm,
    Models,
    TokenObjective,
    TorchBatch,
)


class ObjectiveOfParts(TokenObjective):
    """A sum of `parts`, whose first one is what the held-out loss stands for.

    Its batches have, beside all predictions, the numbers of each part's among them, as
    "mlm_numbers" (`join`).
    """

    parts: Mapping[str, TokenObjective]

    @property
    def weights(self) -> dict[str, float]:
        return {name: part.weight for name, part in self.parts.items()}

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        return {name: len(batch[f"{name}_numbers"]) for name in self.parts}

    def num_predictions(self, batch: TorchBatch) -> int:
        return sum(self.counts(batch).values())

    def read_slots(self, batch: TorchBatch) -> Tensor | None:
        positions: Tensor = batch["prediction_positions"]
        return positions

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        model = models["encoder"]
        output = model.states(batch["input_ids"], batch, self.slots_to_read(batch))
        # One forward for all parts. Each has its own mean, so a part of few predictions weighs what
        # its weight says.
        terms = []
        for name, part in self.parts.items():
            part_batch = part_of(batch, name)
            states = self.part_states(name, model, output, part_batch)
            terms.append(part.prediction_term(model, states, part_batch))
        return output, terms

    def part_states(
        self,
        name: str,  # noqa: ARG002
        model: EncoderWithHeads,
        output: EncoderOutput,
        batch: TorchBatch,
    ) -> Tensor:
        """[P, H]: what a part's predictions are made from; `batch` has no others."""
        return model.predicted_states(output, batch)


def join(parts: Mapping[str, tuple[I64, I64]], width: int) -> Arrays:
    """The predictions of all parts, in the order of their instances, and each part's numbers.

    `parts`: name -> slots whose states predict, and labels; `width`: slots of an instance. For
    example slots 1 and 9 of part a and 5 of part b, of instances of 8 slots, are 1, 5, 9: part a
    has the numbers 0 and 2, part b has 1.
    """
    positions = np.concatenate([positions for positions, _ in parts.values()])
    labels = np.concatenate([labels for _, labels in parts.values()])
    sizes = [len(positions) for positions, _ in parts.values()]
    # Stable: inside an instance the parts stay in their order.
    order = np.argsort(positions // width, kind="stable")
    # [P]: which part each prediction is of.
    owner = np.repeat(np.arange(len(parts)), sizes)[order]
    arrays: Arrays = {
        "prediction_positions": positions[order],
        "prediction_labels": labels[order],
    }
    for number, name in enumerate(parts):
        arrays[f"{name}_numbers"] = np.flatnonzero(owner == number)
    return arrays


def part_of(batch: TorchBatch, name: str) -> TorchBatch:
    """The batch with the predictions of one part alone."""
    numbers = batch[f"{name}_numbers"]
    part_batch: dict[str, object] = dict(batch)
    # It counted all parts, and padding of their number.
    part_batch.pop("num_predictions", None)
    for key in ("prediction_positions", "prediction_labels"):
        part_batch[key] = batch[key].index_select(0, numbers)
    return part_batch
