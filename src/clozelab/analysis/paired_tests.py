"""Is the difference of two systems on the same examples more than chance?

It says nothing about other seeds, so it decides no verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

RESAMPLES = 1000
# examples of all resamples that are in memory together
RESAMPLED_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class McNemar:
    """Exact McNemar test."""

    # examples that only one of the two got right
    only_first: int
    only_second: int
    # two-sided, of a fair coin giving counts at least as uneven
    p_value: float


@dataclass(frozen=True)
class Bootstrap:
    """Paired bootstrap: difference first - second with its 95 % percentile interval."""

    difference: float
    low: float
    high: float


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """`first`, `second` [N]: whether each system got each example right."""
    first_right = np.asarray(first, dtype=bool)
    second_right = np.asarray(second, dtype=bool)
    only_first = int((first_right & ~second_right).sum())
    only_second = int((second_right & ~first_right).sum())
    count = only_first + only_second
    if not count:
        return McNemar(0, 0, 1.0)
    p_value = float(stats.binomtest(only_first, count, 0.5).pvalue)
    return McNemar(only_first, only_second, p_value)


def bootstrap(score: Callable[[NDArray[np.int64], int], float], num_examples: int) -> Bootstrap:
    """Of any score of a set of examples: a mean, a correlation, an entity F1.

    Args:
        score: (indices of a resample, below `num_examples`; system 0 or 1) -> score.
        num_examples: that both systems answered.
    """

    def difference(index: NDArray[np.int64]) -> float:
        return score(index, 0) - score(index, 1)

    every_example = np.arange(num_examples)
    interval = stats.bootstrap(
        (every_example,),
        difference,
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        batch=max(1, RESAMPLED_AT_ONCE // num_examples),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Bootstrap(difference(every_example), float(interval.low), float(interval.high))
