"""Interim analyses: what a p-value is worth after the same question was asked at fewer seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

# experiments without a difference, from which the p of repeated analyses is counted
DRAWN = 200_000


def sequential_p(p_values: Sequence[float], first: int, most: int) -> float:
    """p of a difference that was tested after every seed.

    A test at 5 % that is repeated after each seed is wrong more often, since one of its analyses
    may be lucky. This is the chance that the smallest p-value of all analyses, up to `most` seeds,
    is as small as the smallest so far: of t tests on the same growing sample, without any true
    difference (drawn, always the same). It is below 0.05 by chance in one experiment of twenty, so
    one may stop at any analysis.

    Args:
        p_values: of the analyses so far: over `first` seeds, over one more, and so on.
        first: seeds of the first analysis, fixed before it.
        most: seeds of the last one, likewise.
    """
    smallest = min(p_values)
    drawn = smallest_p_values(first, most)
    share = (1 + np.searchsorted(drawn, smallest, side="right")) / len(drawn)
    # Where so few are smaller that their share is no measurement, the sum of all chances bounds it.
    bound = (most - first + 1) * smallest
    return float(min(1.0, bound, max(share, smallest)))


@lru_cache(maxsize=256)
def nominal_level(p: float, first: int, most: int) -> float:
    """The plain p-value that one analysis has to have for a sequential_p of `p`."""
    return float(np.quantile(smallest_p_values(first, most), p))


@lru_cache(maxsize=32)
def smallest_p_values(first: int, most: int) -> NDArray[np.float64]:
    """[DRAWN], sorted: of each experiment without a difference the smallest p of its t tests.

    The tests are over first, first + 1, ... most seeds of one growing sample.
    """
    draw = np.random.default_rng(0)
    total = np.zeros(DRAWN)
    squares = np.zeros(DRAWN)
    smallest = np.ones(DRAWN)
    for count in range(1, most + 1):
        value = draw.normal(size=DRAWN)
        total = total + value
        squares = squares + value**2
        if count < first:
            continue
        # The standard error of the mean from running sums: no sample is kept.
        error = np.sqrt((squares - total**2 / count) / (count - 1) / count)
        p_value = 2.0 * special.stdtr(count - 1, -np.abs(total / count) / error)
        smallest = np.minimum(smallest, p_value)
    return np.sort(smallest)
