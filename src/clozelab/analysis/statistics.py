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
from scipy import special, stats

PRETRAINING_SEEDS = "pre-training seeds"
FINETUNING_SEEDS = "fine-tuning seeds only"
ONE_RUN = "one run"
CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
# error of floating-point sums of scores, as a share of them
ROUNDING = 1e-9

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


def estimate(scores: Scores) -> Estimate:
    """Mean and Student's interval of one cell.

    Every pre-training seed weighs the same, however many runs it has. ValueError: no score.
    """
    groups: dict[int, list[float]] = defaultdict(list)
    for (pretrain_seed, _), score in sorted(scores.items()):
        groups[pretrain_seed].append(score)

    if len(groups) >= 2:
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
    return Estimate(
        mean=mean,
        low=mean - half_width,
        high=mean + half_width,
        count=len(values),
        basis=basis,
        sd=sd,
        is_balanced=len(group_sizes) == 1,
        values=tuple(values),
    )


def estimate_contrast(terms: Sequence[tuple[float, Scores]]) -> Estimate | None:
    """The sum of weight x score over the terms, paired by seed; None without a common seed.

    With two or more common pre-training seeds it is over their means over the common fine-tuning
    seeds, else over fine-tuning seeds.
    """
    _, first_scores = terms[0]
    common = set(first_scores)
    for _, scores in terms[1:]:
        common &= scores.keys()
    if not common:
        return None

    sums: dict[Seeds, float] = {}
    for seeds in sorted(common):
        sums[seeds] = sum(weight * scores[seeds] for weight, scores in terms)
    return estimate(sums)


@lru_cache(maxsize=256)
def t_quantile(count: int, confidence: float) -> float:
    """Of Student's t for `count` values. A report asks for few again and again; scipy is slow."""
    return float(stats.t.ppf((1.0 + confidence) / 2.0, df=count - 1))
