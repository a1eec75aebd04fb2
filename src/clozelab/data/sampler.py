"""Which instance stands where: an epoch's order without storing it.

A keyed Feistel network over Z_a x Z_b with a * b just above the size (Black and Rogaway 2002, "generalized Feistel")
permutes the instances; the few values at or above the size walk on along their cycle until they are inside. So the
order of an epoch is a bijection that costs O(1) memory, any position is addressable (resume = start counting
elsewhere), and a batch that runs over the end of an epoch goes on in the next one.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from clozelab.data.random import U64, extend, stream_state

_ROUNDS = 6
_WALKS = 10_000
"""Bound of the cycle walk; fewer than one value in sqrt(size) needs more than one step."""


def _feistel(states: list[U64], value: NDArray[np.int64], size_a: int, size_b: int) -> NDArray[np.int64]:
    left, right = np.divmod(value, size_b)
    for number, state in enumerate(states):
        if number % 2:
            left = (left + _round(state, right, size_a)) % size_a
        else:
            right = (right + _round(state, left, size_b)) % size_b
    return left * size_b + right


def _round(state: U64, half: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    return (extend(state, half) % np.uint64(modulus)).astype(np.int64)


def permute(seed: int, epoch: int | NDArray[np.int64], position: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Position in the epoch's order -> instance index; for each epoch a permutation of [0, size)."""
    if size < 1:
        raise ValueError(
            f"A permutation needs at least one instance, not {size}; is the corpus empty at this seq_length?"
        )
    size_a = isqrt(size - 1) + 1
    size_b = -(-size // size_a)
    states = [np.broadcast_to(stream_state(seed, epoch, f"permutation {k}"), position.shape) for k in range(_ROUNDS)]
    value = _feistel(states, np.asarray(position, dtype=np.int64), size_a, size_b)
    for _ in range(_WALKS):
        outside = np.flatnonzero(value >= size)
        if not outside.size:
            return value
        value[outside] = _feistel([state[outside] for state in states], value[outside], size_a, size_b)
    raise AssertionError("cycle walking did not end")


def instance_indices(seed: int, size: int, position: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions counted over all epochs -> (epoch, instance index), both shaped like `position`.

    Raises ValueError when there are no instances.
    """
    if size < 1:
        raise ValueError(f"There are {size} instances to sample from; is the corpus empty at this seq_length?")
    position = np.asarray(position, dtype=np.int64)
    epoch = position // size
    return epoch, permute(seed, epoch, position % size, size)


def batch_positions(step: int, global_batch_size: int, rank: int, world_size: int) -> NDArray[np.int64]:
    """Positions of one rank's share of optimizer step `step`; the shares of all ranks together are the global batch."""
    share = global_batch_size // world_size
    start = step * global_batch_size + rank * share
    return np.arange(start, start + share, dtype=np.int64)
