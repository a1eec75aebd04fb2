"""Means with intervals over seeds: of one cell, and of a contrast between cells.

Two kinds of seeds are never mixed. Scores of several fine-tuning seeds are averaged inside their
pre-training seed, and the interval is over pre-training seeds: that is the spread which a claim
about pre-training has to beat. With a single pre-training seed the interval is over fine-tuning
seeds, and its `basis` says so. docs/decisions/0006 says why nothing is borrowed from other cells.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

PRETRAINING_SEEDS = "pre-training seeds"
FINETUNING_SEEDS = "fine-tuning seeds only"
ONE_RUN = "one run"
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
# error of floating-point sums of scores, as a share of them
ROUNDING = 1e-9
# experiments without a difference, from which the p of repeated analyses is counted
DRAWN = 200_000

# (pre-training seed, fine-tuning seed); a pre-training run has (its seed, 0)
Seeds = tuple[int, int]
Scores = Mapping[Seeds, float]


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval, in the unit of the scores."""

    mean: float
    # ends of the interval; None where there is nothing to estimate a spread from
    low: float | None
    high: float | None
    # how many values the interval is over, and what they are: one of the three bases above
    count: int
    basis: str
    # standard deviation of the values; None where there is but one
    sd: float | None = None
    # every pre-training seed has equally many runs
    is_balanced: bool = True
    values: tuple[float, ...] = ()
    # the values are all alike at the best possible score, and `sd` is what single examples weigh
    is_at_ceiling: bool = False

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else self.high - self.mean

    @property
    def reach(self) -> float | None:
        """What is drawn to each side of the mean: of two values up to both, else the half-width."""
        if len(self.values) == 2:
            return abs(self.values[0] - self.mean)
        return self.half_width

    @property
    def has_no_spread(self) -> bool:
        """Whether all values agree but for rounding: Student's t has nothing to judge them by."""
        half_width = self.half_width
        if half_width is None:
            return False
        return half_width <= ROUNDING * max(1.0, abs(self.mean))

    def at_ceiling(self, resolution: float) -> Estimate:
        """The same mean with the spread of `resolution`, for values that have none of their own.

        Where every score is the best possible one, all that is unknown is smaller than what a
        score can show. docs/decisions/0024 has the reason.
        """
        half_width = t_quantile(self.count, CONFIDENCE) * resolution / math.sqrt(self.count)
        return replace(
            self,
            low=self.mean - half_width,
            high=self.mean + half_width,
            sd=resolution,
            is_at_ceiling=True,
        )

    def p_value(self, point: float = 0.0) -> float | None:
        """Two-sided p of the hypothesis that the true mean is `point`; None without a spread."""
        if not self.sd or self.count < 2:
            return None
        statistic = abs(self.mean - point) * math.sqrt(self.count) / self.sd
        return float(2.0 * special.stdtr(self.count - 1, -statistic))


def estimate(scores: Scores, *, of_one_encoder: bool = False) -> Estimate:
    """Mean and Student's interval of one cell.

    Every pre-training seed weighs the same, however many runs it has. All runs of one given encoder
    (`of_one_encoder`) are fine-tunings of it, whatever their seeds. ValueError: no score.
    """
    groups = defaultdict(list)
    for (pretrain_seed, _), score in sorted(scores.items()):
        groups[pretrain_seed].append(score)

    if len(groups) >= 2 and not of_one_encoder:
        values = [float(np.mean(group)) for group in groups.values()]
        basis = PRETRAINING_SEEDS
    else:
        values = list(scores.values())
        basis = FINETUNING_SEEDS
    if not values:
        raise ValueError("there is no score to average")
    if len(values) == 1:
        return Estimate(values[0], None, None, 1, ONE_RUN)

    mean = float(np.mean(values))
    sd = float(np.std(values, ddof=1))
    half_width = t_quantile(len(values), CONFIDENCE) * sd / math.sqrt(len(values))
    group_sizes = {len(group) for group in groups.values()}
    is_balanced = len(group_sizes) == 1 or of_one_encoder
    return Estimate(
        mean=mean,
        low=mean - half_width,
        high=mean + half_width,
        count=len(values),
        basis=basis,
        sd=sd,
        is_balanced=is_balanced,
        values=tuple(values),
    )


def estimate_contrast(
    terms: Sequence[tuple[float, Scores]], *, of_one_encoder: bool = False
) -> Estimate | None:
    """The sum of weight x score over the terms, paired by seed; None without a common seed.

    With two or more common pre-training seeds it is over their means over the common fine-tuning
    seeds, else over fine-tuning seeds. `of_one_encoder`: each term is of one given encoder.
    """
    _, first_scores = terms[0]
    common = set(first_scores)
    for _, scores in terms[1:]:
        common &= scores.keys()
    if not common:
        return None

    sums = {}
    for seeds in sorted(common):
        sums[seeds] = sum(weight * scores[seeds] for weight, scores in terms)
    return estimate(sums, of_one_encoder=of_one_encoder)


@lru_cache(maxsize=256)
def t_quantile(count: int, confidence: float) -> float:
    """Of Student's t for `count` values. A report asks for few again and again."""
    return float(special.stdtrit(count - 1, (1.0 + confidence) / 2.0))


# -- the same question again, at more seeds -------------------------------------------------------


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
