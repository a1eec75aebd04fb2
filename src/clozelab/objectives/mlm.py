"""Masked language model: 15 % of the tokens are predicted from both sides.

Devlin et al. 2019, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from clozelab.corpus.packing import Masking, PackedInstances
from clozelab.objectives.objective import Arrays, TokenObjective, TorchBatch


@dataclass(eq=False)
class MaskedLanguageModel(TokenObjective, Masking):
    """Predicts `predict_prob` of each instance's tokens.

    The encoder sees [MASK] there, a random token or the token.
    """

    weight: float = field(kw_only=True)
    name = "mlm"
    is_causal = False

    @property
    def own_share(self) -> float:
        return self.same_fraction

    def files(self) -> dict[str, Path]:
        return {} if self.units is None else {"units": Path(self.units)}

    def read_slots(self, batch: TorchBatch) -> Tensor | None:
        positions: Tensor = batch["prediction_positions"]
        return positions

    def predicted_share(self, seq_length: int) -> float:
        length = np.array([seq_length])
        # Of a pair, which has three special tokens.
        return float(self.number(length, length - 3, seq_length)[0]) / seq_length

    def arrays(self, packed: PackedInstances) -> Arrays:
        input_ids, position, labels = self.apply(packed)
        return {
            "input_ids": input_ids,
            "prediction_positions": position,
            "prediction_labels": labels,
        }
