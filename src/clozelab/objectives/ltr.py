"""Left-to-right language model under a causal mask: the paper's "LTR" arm, on the same rows as the masked model.

Unusual: the loss stands at every position, so the vocabulary projection is most of a small model's step.
"""

from __future__ import annotations

import numpy as np

from clozelab.corpus.packing import PackedRows, SpecialIds
from clozelab.objectives.objective import Arrays, Epoch, TokenObjective


class LeftToRight(TokenObjective):
    """Each real token but a row's last predicts its successor, [SEP] included; nothing crosses rows or predicts
    padding."""

    name = "ltr"
    is_causal = True
    predicted_fraction = 1.0

    def __init__(self, *, weight: float) -> None:
        self.weight = weight

    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:  # noqa: ARG002
        length_of_slot = np.repeat(rows.lengths, rows.slots)
        position = np.flatnonzero(rows.position_ids < length_of_slot - 1)
        return {
            "input_ids": rows.input_ids,
            "prediction_rows": position,
            "prediction_labels": rows.input_ids[position + 1],
        }
