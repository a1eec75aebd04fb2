"""Left to right and right to left: two causal stacks, the states of both side by side.

Devlin et al. 2019 (section 5.1) name it as the alternative to a masked model, and do not try it. As
in ELMo (Peters et al. 2018) both directions share the embeddings and the layer before the
vocabulary, and nothing else. The pair of states at slot i has seen token i twice, so token i is
predicted apart: by the left-to-right state at i - 1, and by the right-to-left one at i + 1.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.corpus.packing import I64, PackedInstances
from clozelab.models.encoder import EncoderOutput
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.objective import (
    Arrays,
    EncoderWithHeads,
    Models,
    TokenObjective,
    TorchBatch,
    VisibilitySpec,
    sees_past,
)
from clozelab.objectives.parts import ObjectiveOfParts, join, part_of


def sees_future(query: I64, key: I64) -> NDArray[np.bool_]:
    return key >= query


class RightToLeft(TokenObjective):
    """Each real token but an instance's first two predicts the one before it: no [CLS]."""

    name = "rtl"
    is_causal = True
    label_offset = -1

    def arrays(self, packed: PackedInstances) -> Arrays:
        # [CLS] a b [SEP]: b predicts a, [SEP] predicts b.
        position = np.flatnonzero(packed.is_real & (packed.position_ids >= 2))
        text = packed.input_ids
        return {
            "input_ids": text,
            "prediction_positions": position,
            "prediction_labels": text[position - 1],
        }


class BothDirections(ObjectiveOfParts):
    """The terms are "ltr" and "rtl", of the same weight."""

    is_causal = True
    num_directions = 2
    name = "ltr"

    def __init__(self, *, weight: float) -> None:
        super().__init__(weight=weight)
        self.parts = {"ltr": LeftToRight(weight=weight), "rtl": RightToLeft(weight=weight)}

    def predicted_share(self, seq_length: int) -> float:
        """All but the first token twice, but once the [SEP] that stands last."""
        return 2.0 - 1.0 / (seq_length - 1)

    def arrays(self, packed: PackedInstances) -> Arrays:
        predictions = {}
        for name, part in self.parts.items():
            arrays = part.arrays(packed)
            predictions[name] = (arrays["prediction_positions"], arrays["prediction_labels"])
        return {"input_ids": packed.input_ids} | join(predictions, packed.width)

    def visibility(
        self,
        packed: PackedInstances,  # noqa: ARG002
        arrays: Arrays,
    ) -> list[VisibilitySpec]:
        specs = []
        rules = (("ltr", sees_past), ("rtl", sees_future))
        for direction, (name, sees) in enumerate(rules):
            numbers = arrays[f"{name}_numbers"]
            positions = arrays["prediction_positions"][numbers]
            about = positions + self.parts[name].label_offset
            specs.append(
                VisibilitySpec(name, "encoder", positions, about, sees, 0.0, numbers, direction)
            )
        return specs

    def part_states(
        self, name: str, model: EncoderWithHeads, output: EncoderOutput, batch: TorchBatch
    ) -> Tensor:
        # Only one half: the other one has read the token that is asked for.
        direction = list(self.parts).index(name)
        states = model.predicted_states(output, batch)  # [P, 2 H]
        return states.chunk(2, dim=-1)[direction]

    def predictions(self, models: Models, batch: TorchBatch) -> dict[str, Tensor]:
        model = models["encoder"]
        output = model.states(batch["input_ids"], batch)
        vocab_size = model.encoder.config.vocab_size
        logits = torch.zeros(len(batch["prediction_labels"]), vocab_size)
        # Each part's rows stand where its predictions do among all.
        for name in self.parts:
            states = self.part_states(name, model, output, part_of(batch, name))
            logits[batch[f"{name}_numbers"]] = model.heads["lm"](states)
        return {"encoder": logits}
