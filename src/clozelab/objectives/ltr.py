"""Left-to-right language model under a causal mask: the paper's "LTR" arm, on the same instances as
the masked model.

Unusual: the loss stands at every position, so the vocabulary projection is most of a small model's
step.
"""

from __future__ import annotations

import numpy as np

from clozelab.corpus.packing import Epoch, PackedInstances, SpecialIds
from clozelab.objectives.objective import Arrays, Sight, TokenObjective


class LeftToRight(TokenObjective):
    """Each real token but an instance's last predicts its successor, [SEP] included; no padding,
    nothing across.
    """

    name = "ltr"
    is_causal = True

    def arrays(self, packed: PackedInstances, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:  # noqa: ARG002
        position = np.flatnonzero(packed.position_ids < np.repeat(packed.lengths, packed.width) - 1)
        text = packed.input_ids
        return {
            "input_ids": text,
            "prediction_positions": position,
            "prediction_labels": text[position + 1],
        }

    def allowed(self, packed: PackedInstances, arrays: Arrays) -> list[Sight]:  # noqa: ARG002
        position = arrays["prediction_positions"]
        return [Sight(self.name, "encoder", position, position + 1, past_only=True, own_share=0.0)]
