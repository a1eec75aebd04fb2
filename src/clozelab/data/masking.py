"""Masking for the masked language model, a whole batch at once.

Each row gets exactly max(1, round(predict_prob * candidates)) predicted positions, drawn without replacement from all
slots but [CLS], [SEP] and padding: the slots with the smallest random keys. What happens to a chosen position is drawn
for each position by itself. The random replacement comes from the whole vocabulary list, special tokens included, as
in the released code (the paper does not say); it can therefore be the original token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozelab.data.packing import I64, PackedRows, SpecialIds
from clozelab.data.random import integers, uniform01, uniform_u64

Epoch = int | NDArray[np.int64]

_SLOT_BITS = 16
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Masking:
    """How many positions are predicted and what the encoder sees there; the three fractions sum to 1."""

    predict_prob: float
    mask_fraction: float
    random_fraction: float
    same_fraction: float

    def __post_init__(self) -> None:
        fractions = (self.mask_fraction, self.random_fraction, self.same_fraction)
        if not 0.0 < self.predict_prob <= 1.0:
            raise ValueError(f"predict_prob is {self.predict_prob}; it must lie in (0, 1].")
        if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
            raise ValueError(
                f"mask_fraction, random_fraction and same_fraction are {fractions}, sum {sum(fractions):g}; "
                "they must not be negative and must sum to 1."
            )

    def apply(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> tuple[I64, I64, I64]:
        """Returns (input_ids [T] as the encoder sees them, prediction_rows [P] ascending, prediction_labels [P])."""
        position = choose_positions(rows, self.predict_prob, seed, epoch)
        labels = rows.input_ids[position]
        row = rows.row_of_slot[position]
        name = (seed, epoch if isinstance(epoch, int) else epoch[row])
        slot = rows.position_ids[position]
        action = uniform01(*name, "mask action", rows.instance[row], slot)
        drawn = integers(*name, "mask token", rows.instance[row], slot, high=ids.vocab_size)
        seen = np.where(action < self.mask_fraction, ids.mask, drawn)
        seen = np.where(action < self.mask_fraction + self.random_fraction, seen, labels)
        input_ids = rows.input_ids.copy()
        input_ids[position] = seen
        return input_ids, position, labels


def choose_positions(rows: PackedRows, predict_prob: float, seed: int, epoch: Epoch) -> I64:
    """Stream positions [P] to predict, ascending.

    Keys carry the slot in their low bits, so no two are equal and the number is exact.
    """
    width = int(rows.slots.max())
    slot = np.arange(width, dtype=np.uint64)
    column = epoch if isinstance(epoch, int) else epoch[:, None]
    keys = uniform_u64(seed, column, "mask position", rows.instance[:, None], slot[None, :])
    keys &= ~np.uint64((1 << _SLOT_BITS) - 1)
    keys |= slot
    inside: NDArray[np.bool_] | None = None
    if rows.row_slots is None:
        inside = slot[None, :] < rows.lengths[:, None].astype(np.uint64)
        special = np.ones(keys.shape, dtype=bool)
        special[inside] = rows.special
    else:
        special = rows.special.reshape(keys.shape)
    keys[special] = _NEVER
    candidates = width - special.sum(1)
    count = np.minimum(candidates, np.maximum(1, np.rint(predict_prob * candidates).astype(np.int64)))
    threshold = np.sort(keys, axis=1)[np.arange(len(keys)), np.maximum(count - 1, 0)]
    chosen = (keys <= threshold[:, None]) & ~special
    return np.flatnonzero(chosen if inside is None else chosen[inside])
