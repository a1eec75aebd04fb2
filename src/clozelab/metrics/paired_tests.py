"""Two systems on the same examples: is the difference more than these examples' chance?

Both say something about two fixed systems and one sample of examples, and nothing about other seeds of the same
recipe: for a claim about a recipe see statistics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 10_000


@dataclass(frozen=True)
class McNemar:
    """Exact McNemar test.

    Attributes:
        only_first, only_second: examples that only one of the two got right.
        p_value: two-sided, of a fair coin giving counts at least as uneven.
    """

    only_first: int
    only_second: int
    p_value: float


@dataclass(frozen=True)
class Bootstrap:
    """Paired bootstrap: difference first - second with its percentile interval, and how it was resampled."""

    difference: float
    low: float
    high: float
    num_resamples: int
    num_examples: int


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """`first`, `second` [N]: whether each system got each example right.

    Raises:
        ValueError: unequal lengths.
    """
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    _check(one, two)
    only_first, only_second = int((one & ~two).sum()), int((two & ~one).sum())
    count = only_first + only_second
    p_value = float(stats.binomtest(only_first, count, 0.5).pvalue) if count else 1.0
    return McNemar(only_first, only_second, p_value)


def bootstrap_mean(
    first: ArrayLike, second: ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, confidence: float = 0.95
) -> Bootstrap:
    """Of the mean of first - second, both [N] scores of the same examples.

    Raises:
        ValueError: unequal lengths, or no example.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check(one, two)
    gaps = one - two
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    for start in range(0, resamples, block := max(1, 4_000_000 // len(gaps))):
        stop = min(start + block, resamples)
        means[start:stop] = gaps[rng.integers(0, len(gaps), (stop - start, len(gaps)))].mean(axis=1)
    return _bootstrap(float(gaps.mean()), means, len(gaps), confidence)


def bootstrap_score(
    score: Callable[[NDArray[np.int64], int], float],
    num_examples: int,
    *,
    seed: int = 0,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> Bootstrap:
    """Of a score that is no mean over examples (a correlation, an entity F1).

    Args:
        score: (indices of a resample, system 0 or 1) -> score.
        num_examples: indices are below it.
    """
    rng = np.random.default_rng(seed)
    everything = np.arange(num_examples)
    gaps = []
    for _ in range(resamples):
        index = rng.integers(0, num_examples, num_examples)
        gaps.append(score(index, 0) - score(index, 1))
    return _bootstrap(score(everything, 0) - score(everything, 1), np.array(gaps), num_examples, confidence)


def _bootstrap(difference: float, means: NDArray[np.float64], num_examples: int, confidence: float) -> Bootstrap:
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return Bootstrap(difference, float(low), float(high), len(means), num_examples)


def _check(one: Sequence[object] | NDArray[np.generic], two: Sequence[object] | NDArray[np.generic]) -> None:
    if len(one) != len(two):
        raise ValueError(f"a paired test needs the same examples, got {len(one)} and {len(two)}")
    if not len(one):
        raise ValueError("a paired test needs at least one example")
