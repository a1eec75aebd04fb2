"""How many seeds a difference takes, and how small a difference some seeds can show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from claims.analysis.multiplicity import (
    fallback_primary,
    fallback_secondary,
    holm,
    share_of_primary,
)
from claims.analysis.statistics import CONFIDENCE, DRAWN, smallest_p_values, t_quantile

POWER = 0.8
# nobody pre-trains more often than that to settle one difference: beyond it, no number is given
MOST_SEEDS = 50
# tables, for the power of a plan
SIMULATED = 4000
# standard deviations; beyond it (no spread at all) the distribution's sums have no numbers
LARGEST_EFFECT = 1000.0


def required_seeds(
    effects: Sequence[float], confidence: float = CONFIDENCE, most: int = MOST_SEEDS
) -> int | None:
    """Seeds (in all, at least 2) with which POWER of experiments exclude all points.

    That one of the tests fails is at most as likely as the sum of their chances to: they need not
    be independent.

    Args:
        effects: true distances from those points, in standard deviations between seeds.
        confidence: of the intervals that have to exclude the points.
        most: None is returned where it would take more.
    """
    seeds = np.arange(2, most + 1)
    quantiles = special.stdtrit(seeds - 1, (1.0 + confidence) / 2.0)
    # [effects, numbers of seeds]
    shifts = np.outer(np.minimum(effects, LARGEST_EFFECT), np.sqrt(seeds))
    chances_to_fail = special.nctdtr(seeds - 1, shifts, quantiles).sum(axis=0)
    enough = seeds[chances_to_fail <= 1.0 - POWER]
    return int(enough[0]) if len(enough) else None


def minimum_detectable_difference(sd: float, count: int, confidence: float) -> float:
    """The true difference that `count` paired seeds (2 or more) show with probability POWER.

    It is in the unit of `sd`, the standard deviation of the difference between seeds.
    """
    from scipy import optimize  # a tenth of a second, which no report needs

    quantile = t_quantile(count, confidence)

    def missing_power(shift: float) -> float:
        # `shift` is in standard errors. The chance of the wrong sign is left out: it is tiny at
        # any useful power.
        return 1.0 - float(special.nctdtr(count - 1, shift, quantile)) - POWER

    # So large a shift is always shown. Far beyond it the distribution's sums have no numbers.
    most = 2.0 * quantile + 2.0
    shift = float(optimize.brentq(missing_power, 0.0, most))
    return shift * sd / math.sqrt(count)


def simulate_decided(
    effects: Sequence[tuple[float, tuple[float, ...]]],
    families: Sequence[Sequence[int]],
    seeds: int,
    analyses: tuple[int, int] | None,
) -> NDArray[np.bool_]:
    """[tables, tests]: which tests so many seeds decide, of independent differences.

    Args:
        effects: of each test the true mean and the boundaries that it is tested against, in
            standard deviations.
        families: places of tests, each family corrected by Holm's method: those of primary
            claims, which wait for those before them, and last all others, which have
            SECONDARY_SHARE until those are decided.
        seeds: pre-training seeds of each table.
        analyses: seeds of the first and of the last interim analysis; None: one analysis.
    """
    p_values = _simulated_p_values(effects, seeds, analyses)
    corrected = np.ones(p_values.shape)
    *primary_families, secondary = [list(family) for family in families]

    share = share_of_primary(has_secondary=bool(secondary))
    largest = np.zeros((SIMULATED, 1))
    for family in primary_families:
        corrected[:, family] = fallback_primary(holm(p_values[:, family]), share, largest)
        largest = corrected[:, family].max(axis=1, keepdims=True)
    corrected[:, secondary] = fallback_secondary(holm(p_values[:, secondary]), largest)
    return corrected < 1.0 - CONFIDENCE


def _simulated_p_values(
    effects: Sequence[tuple[float, tuple[float, ...]]],
    seeds: int,
    analyses: tuple[int, int] | None,
) -> NDArray[np.float64]:
    """[tables, tests]: p of each test, under interim analyses with the price of all of them."""
    shift = np.array([mean for mean, _ in effects])
    # One boundary is the lowest and the highest.
    low = np.array([boundaries[0] for _, boundaries in effects])
    high = np.array([boundaries[-1] for _, boundaries in effects])
    # [seeds, tables, tests]
    values = np.random.default_rng(0).normal(size=(seeds, SIMULATED, len(effects))) + shift
    first, most = analyses if analyses else (seeds, seeds)
    p_values = np.ones(values.shape[1:])
    for count in range(first, min(seeds, most) + 1):
        mean = values[:count].mean(axis=0)
        sd = values[:count].std(axis=0, ddof=1)
        # The boundary that is nearest to the mean counts, as in a contrast.
        distance = np.minimum(np.abs(mean - low), np.abs(mean - high))
        statistic = distance * np.sqrt(count) / sd
        p_values = np.minimum(p_values, 2.0 * special.stdtr(count - 1, -statistic))
    if most > first:
        drawn = smallest_p_values(first, most)
        p_values = (1.0 + np.searchsorted(drawn, p_values, side="right")) / DRAWN
    return p_values
