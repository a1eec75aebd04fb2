"""Randomness as a function of where we are, so that a checkpoint needs no generator state.

Dropout in micro-batch m of step s on rank r draws from torch's global generator seeded by (seed, s, r, m): stopping
anywhere and going on gives the same bits, and so does the same seed twice.
"""

from __future__ import annotations

from functools import cache

import torch

_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """64 well-mixed bits of a sequence of integers (splitmix64 finaliser after each)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state = ((state ^ (state >> 31)) + 0x9E3779B97F4A7C15) & _MASK
    return state


def seed_forward(seed: int, step: int, rank: int, micro_index: int) -> None:
    """Seed torch's generators (CPU and every accelerator) for one forward and backward."""
    _seed_generators(mix(seed, step, rank, micro_index) >> 1)


def seed_initialisation(seed: int) -> None:
    """Seed torch's generators before weights are drawn; the same on every rank."""
    _seed_generators(mix(seed, -1) >> 1)


def _seed_generators(value: int) -> None:
    """torch.manual_seed, without what it does for accelerators that are not there.

    For each kind of them it notes the seed and formats a stack trace, again at every call: 1 to 2 ms, as much as a
    tenth of a small model's step.
    """
    if _has_accelerator():
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()
