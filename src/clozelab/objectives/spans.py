"""Masked spans, and what the tokens at their boundaries know of them (Joshi et al. 2020, SpanBERT).

Which spans are masked is corpus/packing.py's. Here a second loss is added: each token of a span is
predicted from the states of the two tokens outside of it. Spans that touch are one, since the
token outside of either would be masked. At an edge of the text the boundary is [CLS] or [SEP].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozelab.corpus.packing import I64, PackedInstances
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import EncoderOutput
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import (
    Arrays,
    EncoderWithHeads,
    LossTerm,
    Models,
    TorchBatch,
)


@dataclass(eq=False)
class SpanBoundary(MaskedLanguageModel):
    """The terms are "mlm", with `weight`, and "sbo", with `boundary_weight`."""

    boundary_weight: float = field(kw_only=True)

    @property
    def weights(self) -> dict[str, float]:
        return super().weights | {"sbo": self.boundary_weight}

    def arrays(self, packed: PackedInstances) -> Arrays:
        arrays = super().arrays(packed)
        first, last = run_ends(arrays["prediction_positions"])
        return arrays | {
            "left_boundaries": first - 1,
            "right_boundaries": last + 1,
            "span_places": arrays["prediction_positions"] - first,
        }

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        super().build(models)
        models["encoder"].add_head("sbo")

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        return training_flops_per_token(config, seq_length, predicted_fraction, ("lm", "sbo"))

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        return super().counts(batch) | {"sbo": len(batch["span_places"])}

    def read_slots(self, batch: TorchBatch) -> Tensor | None:
        names = ("prediction_positions", "left_boundaries", "right_boundaries")
        return torch.cat([batch[name] for name in names])

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        output, terms = super().terms(models, batch)
        head: Any = models["encoder"].heads["sbo"]
        # Padding of the number of predictions stands behind the others.
        labels = batch["prediction_labels"][: len(batch["span_places"])]
        result = head.loss(_boundary_states(head, output, batch), labels)
        term = LossTerm("sbo", result.loss_sum, len(labels), result.num_correct)
        return output, [*terms, term]

    def predictions(self, models: Models, batch: TorchBatch) -> dict[str, Tensor]:
        """Both heads' side by side: neither may see what it predicts."""
        model = models["encoder"]
        output = model.states(batch["input_ids"], batch)
        usual = model.heads["lm"](model.predicted_states(output, batch))
        head: Any = model.heads["sbo"]
        return {"encoder": torch.cat([usual, head(_boundary_states(head, output, batch))], dim=1)}


def _boundary_states(head: Any, output: EncoderOutput, batch: TorchBatch) -> Tensor:
    names = ("left_boundaries", "right_boundaries", "span_places")
    return head.states(output.sequence_output, *(batch[name] for name in names))


def run_ends(positions: I64) -> tuple[I64, I64]:
    """The first and the last of the neighbours in a row that each position is one of.

    Positions 3 4 7 are of the runs 3-4, 3-4 and 7-7. Between two instances stands [CLS].
    """
    # A run begins where the slot before it is not asked for, and ends where the next one is not.
    begins = np.diff(positions, prepend=-2) > 1
    ends = np.diff(positions, append=np.iinfo(np.int64).max) > 1
    # Positions 3 4 7: begins 1 0 1, so runs 0 0 1.
    run = np.cumsum(begins) - 1
    firsts = positions[begins]
    lasts = positions[ends]
    return firsts[run], lasts[run]
