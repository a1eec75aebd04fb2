"""Counter-based random numbers, and the order of an epoch.

Every draw is a pure function of (seed, epoch, stream, ...). Unusual: there is no state. An
instance's randomness depends on its name alone, so resuming, worker count, batch size and world
size change nothing. A batch takes a handful of array operations: the finaliser of splitmix64
(Steele, Lea, Flood 2014) once per coordinate. `epoch` may be an array as long as `index`, for a
batch that straddles two epochs.

The order of an epoch is not stored either. A keyed Feistel network over Z_a x Z_b with a * b just
above the size (Black and Rogaway 2002, "generalized Feistel") permutes the instances; the few
values at or above the size walk on along their cycle until they are inside. So it is a bijection
that costs O(1) memory, any position is addressable (resume = start counting elsewhere), and a batch
that runs over the end of an epoch goes on in the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
Ints = int | NDArray[np.integer]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF
_ROUNDS = 6
_BLOCK = 1 << 14  # numbers that are drawn at once, where it matters
# Of splitmix64. They are 0-d arrays: numpy makes one of each scalar that it is given.
_SHIFTS = [np.array(bits, np.uint64) for bits in (30, 27, 31)]
_FACTORS = [np.array(factor, np.uint64) for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)]
_ONE = np.array(1, np.uint64)
_GOLDEN_FACTOR = np.array(_GOLDEN, np.uint64)
COLUMN = np.s_[:, None]  # `rows` for several numbers of each thing


def _mix(value: U64) -> U64:
    """Splitmix64's finaliser, in place (the callers own the array)."""
    _mix_upper(value)
    value ^= value >> _SHIFTS[2]
    return value


def _mix_upper(value: U64) -> U64:
    """The same without its last step, which leaves the upper 31 bits as they are."""
    shifted = value >> _SHIFTS[0]
    value ^= shifted
    value *= _FACTORS[0]
    np.right_shift(value, _SHIFTS[1], out=shifted)
    value ^= shifted
    value *= _FACTORS[1]
    return value


def _as_u64(value: Ints) -> U64:
    """At least one-dimensional: numpy warns when a scalar wraps around, never for arrays."""
    if isinstance(value, (int, np.integer)):
        return np.array([int(value) & _MASK], dtype=np.uint64)
    value = np.atleast_1d(value)
    if value.dtype == np.int64:
        return value.view(np.uint64)
    return value.astype(np.uint64, copy=False)


def _step(state: U64, coordinate: Ints, mix: Callable[[U64], U64] = _mix) -> U64:
    """Mixes one more coordinate into the state; broadcasts; always returns a fresh array."""
    # splitmix64: a multiple of the golden ratio for each coordinate, then mixed
    if isinstance(coordinate, int):
        return mix(state + np.uint64((coordinate + 1) * _GOLDEN & _MASK))
    counter = _as_u64(coordinate) + _ONE
    counter *= _GOLDEN_FACTOR
    return mix(state + counter)


@lru_cache(maxsize=1024)
def _stream_key(seed: int, stream: str) -> int:
    name = int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
    first = int(_mix(_as_u64(seed + _GOLDEN))[0])
    return int(_mix(_as_u64(first + name * _GOLDEN))[0])


@lru_cache(maxsize=1024)
def _epoch_key(seed: int, stream: str, epoch: int) -> int:
    return int(_step(_as_u64(_stream_key(seed, stream)), epoch)[0])


def _epoch_state(seed: int, stream: str, epoch: Ints) -> U64:
    """[1], or [B] for as many epochs."""
    if isinstance(epoch, int):
        return _as_u64(_epoch_key(seed, stream, epoch))
    return _step(_as_u64(_stream_key(seed, stream)), epoch)


def derive_seed(seed: int, name: str) -> int:
    """A seed of its own for a named part (a phase, a split), 63 bits."""
    return _stream_key(seed, name) >> 1


@dataclass(frozen=True)
class Draws:
    """Random numbers of some things [B], each known by its name; `epoch` is one number or [B].

    A stream has a number for each thing and each `sub`, which broadcast against each other. The
    result is never a 0-d array. `rows` are the things that numbers are drawn for, as numpy indexes.
    """

    seed: int
    epoch: int | NDArray[np.int64]
    names: NDArray[Any]  # of whole numbers

    def of(self, rows: Any) -> Draws:
        """The same of those at `rows`, as numpy indexes."""
        epoch = self.epoch if isinstance(self.epoch, int) else self.epoch[rows]
        return Draws(self.seed, epoch, self.names[rows])

    def bits(self, stream: str, sub: Ints = 0, *, rows: Any = np.s_[:]) -> U64:
        """64 random bits each."""
        state = _step(_epoch_state(self.seed, stream, self.epoch), self.names)
        return _step(state[rows], sub)

    def upper_bits(self, stream: str, number: int) -> NDArray[np.uint32]:
        """The upper 31 of the `bits` of each thing for so many subs, [B, number]."""
        state = _step(_epoch_state(self.seed, stream, self.epoch), self.names)[COLUMN]
        upper = np.empty((len(state), number), np.uint32)
        # In blocks: the less memory is used on the way, the more of it stays in the cache.
        block = max(1, _BLOCK // number)
        for low in range(0, len(state), block):
            bits = _step(state[low : low + block], np.arange(number), _mix_upper)
            upper[low : low + block] = bits >> np.uint64(33)
        return upper

    def uniform(self, stream: str, sub: Ints = 0, *, rows: Any = np.s_[:]) -> NDArray[np.float64]:
        """Uniform in [0, 1), 53 random bits: a float64 has so many of mantissa."""
        bits = self.bits(stream, sub, rows=rows)
        return (bits >> np.uint64(11)) * np.float64(2.0**-53)

    def integers(
        self, stream: str, sub: Ints = 0, *, rows: Any = np.s_[:], high: Ints
    ) -> NDArray[np.int64]:
        """Uniform integers in [0, high), int64; `high` broadcasts and is at least 1.

        The bias is below high / 2**53.
        """
        return (self.uniform(stream, sub, rows=rows) * np.asarray(high)).astype(np.int64)


def _feistel(
    states: list[U64], value: NDArray[np.int64], size_a: int, size_b: int
) -> NDArray[np.int64]:
    """Permutes value in [0, size_a * size_b): each round adds a hash of one half to the other."""
    left, right = np.divmod(value, size_b)
    for number, state in enumerate(states):
        if number % 2:
            shift = _step(state, right) % np.uint64(size_a)
            left = (left + shift.astype(np.int64)) % size_a
        else:
            shift = _step(state, left) % np.uint64(size_b)
            right = (right + shift.astype(np.int64)) % size_b
    return left * size_b + right


def permute(
    seed: int, epoch: int | NDArray[np.int64], position: NDArray[np.int64], size: int
) -> NDArray[np.int64]:
    """Position in the epoch's order -> instance index.

    For each epoch it is a permutation of [0, size).
    """
    # The rectangle a * b that holds `size`, nearly a square.
    size_a = isqrt(size - 1) + 1
    size_b = -(-size // size_a)
    states = []
    for number in range(_ROUNDS):
        state = _epoch_state(int(seed), f"permutation {number}", epoch)
        states.append(np.broadcast_to(state, position.shape))
    value = _feistel(states, np.asarray(position, dtype=np.int64), size_a, size_b)
    # Values outside walk on along their cycle, which leads inside at last.
    outside = np.flatnonzero(value >= size)
    while outside.size:
        outside_states = [state[outside] for state in states]
        value[outside] = _feistel(outside_states, value[outside], size_a, size_b)
        outside = np.flatnonzero(value >= size)
    return value


def instance_indices(
    seed: int, size: int, position: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions counted over all epochs -> (epoch, instance index), shaped like `position`.

    ValueError where there are no instances.
    """
    if size < 1:
        raise ValueError(
            f"There are {size} instances to sample from; is the corpus empty at this seq_length?"
        )
    position = np.asarray(position, dtype=np.int64)
    epoch = position // size
    return epoch, permute(seed, one_or_all(epoch), position % size, size)


def one_or_all(epoch: NDArray[np.int64]) -> int | NDArray[np.int64]:
    """One number where all are of one epoch, which is nearly always and cheaper."""
    if epoch.size and (epoch == epoch.flat[0]).all():
        return int(epoch.flat[0])
    return epoch
