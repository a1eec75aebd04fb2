"""Which examples meet in a batch: pure functions of lengths, seed and epoch.

Unusual: training batches hold examples of similar length. Attention and recurrent heads pad inside a batch, so on a CPU
this is worth a factor of two to three; the price is that batches are not uniform draws. Examples are shuffled first,
sorted only inside pools of `POOL_BATCHES` batches, and the batches are shuffled again.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clozelab.data.random import uniform_u64

Ints = NDArray[np.int64]
POOL_BATCHES = 50


def bucketed_batches(lengths: Ints, *, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """All N examples once, in batches of `batch_size` (one is smaller where it does not divide N), shuffled."""
    number = len(lengths)
    order = np.argsort(uniform_u64(seed, epoch, "finetune-examples", np.arange(number)), kind="stable")
    pool = POOL_BATCHES * batch_size
    sorted_pools = [
        chunk[np.argsort(lengths[chunk], kind="stable")]
        for chunk in (order[i : i + pool] for i in range(0, number, pool))
    ]
    batches = [chunk[i : i + batch_size] for chunk in sorted_pools for i in range(0, len(chunk), batch_size)]
    shuffled = np.argsort(uniform_u64(seed, epoch, "finetune-batches", np.arange(len(batches))), kind="stable")
    return [batches[i] for i in shuffled]


def token_budget_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """All examples once, longest first, in batches of at most `max_tokens` tokens (a longer example has its own)."""
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start, total = 0, 0
    for position, length in enumerate(lengths[order].tolist()):
        if position > start and total + length > max_tokens:
            batches.append(order[start:position])
            start, total = position, 0
        total += length
    return [*batches, order[start:]] if len(order) else batches
