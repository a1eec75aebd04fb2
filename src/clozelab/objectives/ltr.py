"""Left-to-right language model under a causal mask: the paper's "LTR" arm.

It reads the same instances as the masked model. Unusual: the loss stands at every position, so the
vocabulary projection is most of a small model's step.
"""

from __future__ import annotations

import numpy as np

from clozelab.corpus.packing import PackedInstances
from clozelab.objectives.objective import Arrays, TokenObjective


class LeftToRight(TokenObjective):
    """Each real token but an instance's last predicts its successor, [SEP] included.

    No padding does, and nothing across instances.
    """

    name = "ltr"
    is_causal = True
    label_offset = 1

    def arrays(self, packed: PackedInstances) -> Arrays:
        last = np.repeat(packed.lengths, packed.width) - 1  # [T]: of each slot's instance
        position = np.flatnonzero(packed.position_ids < last)
        text = packed.input_ids
        return {
            "input_ids": text,
            "prediction_positions": position,
            "prediction_labels": text[position + 1],
        }
