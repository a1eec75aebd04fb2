"""Causal and masked examples in one batch (Charpentier and Samuel 2024, GPT-BERT).

The share `causal_fraction` of a batch's instances is read from left to right, the rest from both
sides with tokens masked. In both, the state at slot k - 1 predicts the token at k, so that one
encoder with one head learns both. The loss is that of the paper: (1 - f) times the mean over masked
tokens plus f times the mean over causal ones, whatever their numbers.

Which instances are causal follows from their place in the training's order, for example every
sixteenth with 1/16: each step has its share, however it is cut into micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.packing import I64, BoolArray, PackedInstances
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Arrays, PairObjective, TokenObjective, VisibilitySpec
from clozelab.objectives.parts import ObjectiveOfParts, join


class Hybrid(ObjectiveOfParts, MaskedLanguageModel):
    """The terms are "mlm" and "ltr"; with a fraction of 0 or 1 there is only one of them.

    With 1 the encoder is a causal one, as objective=ltr makes it. Args: see
    conf/objective/token/hybrid.yaml.
    """

    def __init__(
        self, *, causal_fraction: float, shift: int, weight: float, **masking: Any
    ) -> None:
        super().__init__(weight=weight, **masking)
        if not 0.0 <= causal_fraction <= 1.0:
            raise ValueError(f"causal_fraction is {causal_fraction}; it must lie in [0, 1].")
        if shift not in (0, 1):
            raise ValueError(f"shift is {shift}; a masked token is predicted 0 or 1 slots before.")
        self.causal_fraction = causal_fraction
        self.shift = shift
        self.masked = MaskedLanguageModel(weight=weight * (1 - causal_fraction), **masking)
        self.masked.label_offset = shift
        self.causal = LeftToRight(weight=weight * causal_fraction)
        terms = (self.masked, self.causal)
        self.parts: Mapping[str, TokenObjective] = {
            term.name: term for term in terms if term.weight > 0
        }
        # What a run is known by, and its held-out loss: masked where anything is masked.
        self.name = next(iter(self.parts))
        self.is_causal = causal_fraction == 1
        self.predicts_next = bool(shift) and not self.is_causal

    @property
    def hides_neighbours(self) -> bool:
        return self.causal_fraction > 0

    def check_pair(self, pair: PairObjective) -> None:
        if self.causal_fraction:
            raise ValueError(
                f"Objective hybrid has causal instances, whose first token sees only itself, so"
                f" {pair.name} cannot be learnt there: leave the pair objective out, or say"
                " causal_fraction=0."
            )

    def check_batch(self, global_batch_size: int) -> None:
        # 1/16: a batch below 16 would have steps without a causal instance.
        smallest = min(part.weight for part in self.parts.values()) / self.weight
        if global_batch_size * smallest < 1:
            raise ValueError(
                f"global_batch_size is {global_batch_size} and causal_fraction"
                f" {self.causal_fraction:g}, so some steps have no instance of one kind: choose"
                f" a global_batch_size of {int(np.ceil(1 / smallest))} or more."
            )

    def predicted_share(self, seq_length: int) -> float:
        shares = 0.0
        for part in self.parts.values():
            shares += part.weight / self.weight * part.predicted_share(seq_length)
        return shares

    def masks(self, packed: PackedInstances) -> BoolArray:
        return ~self.is_causal_instance(packed)

    def is_causal_instance(self, packed: PackedInstances) -> BoolArray:
        """[B] which instances are read from left to right."""
        order = packed.order
        if order is None:
            order = np.arange(packed.num_instances)
        # 1/4: 0 0 0 1 0 0 0 1, where the whole number of quarters grows.
        return np.floor((order + 1) * self.causal_fraction) > np.floor(order * self.causal_fraction)

    def arrays(self, packed: PackedInstances) -> Arrays:
        is_causal = self.is_causal_instance(packed)
        masked = self.masked.arrays(packed)
        causal = self.causal.arrays(packed)
        predictions = {}
        if self.masked.name in self.parts:
            predictions[self.masked.name] = predictions_of(masked, ~is_causal, self.shift)
        if self.causal.name in self.parts:
            predictions[self.causal.name] = predictions_of(causal, is_causal, 0)
        # Causal instances keep their text; the others have what the masks left.
        is_causal_slot = np.repeat(is_causal, packed.width)
        batch = {"input_ids": np.where(is_causal_slot, packed.input_ids, masked["input_ids"])}
        # A causal row sees slots 0 ... k at slot k; a masked one sees them all. An encoder that is
        # causal itself needs no word of it in the batch.
        if len(self.parts) > 1:
            slots = np.arange(packed.width)
            past = slots[None, :] <= slots[:, None]  # [S, S]
            batch["visibility"] = past | ~is_causal[:, None, None]
        return batch | join(predictions, packed.width)

    def visibility(self, packed: PackedInstances, arrays: Arrays) -> list[VisibilitySpec]:
        """Of each part its own predictions; a causal instance shows the past alone."""
        is_causal = self.is_causal_instance(packed)

        def sees(query: I64, key: I64) -> NDArray[np.bool_]:
            return (key <= query) | ~is_causal[query // packed.width]

        specs = []
        for name, objective in self.parts.items():
            numbers = arrays[f"{name}_numbers"]
            positions = arrays["prediction_positions"][numbers]
            specs.append(
                VisibilitySpec(
                    name,
                    "encoder",
                    positions,
                    positions + objective.label_offset,
                    sees,
                    objective.own_share,
                    numbers,
                )
            )
        return specs


def predictions_of(arrays: Arrays, is_asked: BoolArray, shift: int) -> tuple[I64, I64]:
    """Slots and labels of the predictions in some instances; the slots `shift` earlier.

    `is_asked` [B] says which instances.
    """
    positions = arrays["prediction_positions"]
    width = len(arrays["input_ids"]) // len(is_asked)
    is_kept = is_asked[positions // width]
    return positions[is_kept] - shift, arrays["prediction_labels"][is_kept]
