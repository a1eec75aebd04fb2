"""The statistics of a comparison: means over seeds, Student-t intervals, paired contrasts, how many
seeds it takes.

Two kinds of seeds are never mixed: fine-tuning seeds are averaged inside a pre-training seed, and
the interval is over pre-training seeds, because that is the spread a claim about pre-training has
to beat. With a single pre-training seed the interval is over fine-tuning seeds and says so in its
`basis`. Why nothing is borrowed from other cells: docs/decisions/0006.

At the end: is the difference of two systems on the same examples more than chance? It says nothing
about other seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

PRETRAINING_SEEDS = "pre-training seeds"
FINETUNING_SEEDS = "fine-tuning seeds only"
ONE_RUN = "one run"
CONFIDENCE, POWER = 0.95, 0.8
ROUNDING = 1e-9  # of floating-point sums of scores, as a share of them
# nobody pre-trains more often than that to settle one difference: beyond it, no number is given
MOST_SEEDS = 50
# of the 5 %: what claims that are not primary have while a primary one is undecided
KEPT_FOR_OTHERS = 0.2
DRAWN = 200_000  # experiments without a difference, from which the p of repeated looks is counted
SIMULATED = 4000  # tables, for the power of a plan
# standard deviations; beyond it (no spread at all) the distribution's sums have no numbers
LARGEST_EFFECT = 1000.0

Scores = Mapping[tuple[int, int], float]  # (pre-training seed, fine-tuning seed) -> score


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float  # in the unit of the scores
    low: float | None  # None, as `high`, where there is nothing to estimate a spread from
    high: float | None
    count: int  # values the interval is over
    basis: str  # what those values are: PRETRAINING_SEEDS, FINETUNING_SEEDS or ONE_RUN
    sd: float | None = None  # standard deviation of the values; None where there is but one
    is_balanced: bool = True  # every pre-training seed has equally many runs
    values: tuple[float, ...] = ()  # that the interval is over

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else self.high - self.mean

    @property
    def reach(self) -> float | None:
        """What is drawn to each side of the mean: to both values where there are two, else the
        half-width.
        """
        return abs(self.values[0] - self.mean) if len(self.values) == 2 else self.half_width

    @property
    def has_no_spread(self) -> bool:
        """All values agree but for rounding: Student's t has nothing to judge them by."""
        half = self.half_width
        return half is not None and half <= ROUNDING * max(1.0, abs(self.mean))

    def p_value(self, point: float = 0.0) -> float | None:
        """Two-sided p of the hypothesis that the true mean is `point`; None without a spread."""
        if not self.sd or self.count < 2:
            return None
        statistic = abs(self.mean - point) * float(np.sqrt(self.count)) / self.sd
        return float(2.0 * special.stdtr(self.count - 1, -statistic))


def estimate(scores: Scores) -> Estimate:
    """Mean and Student's interval of one cell; every pre-training seed weighs the same, however
    many runs it has.
    """
    groups: dict[int, list[float]] = defaultdict(list)
    for (pretrain_seed, _), score in sorted(scores.items()):
        groups[pretrain_seed].append(score)
    if len(groups) >= 2:
        values, basis = [float(np.mean(group)) for group in groups.values()], PRETRAINING_SEEDS
    else:
        values, basis = list(scores.values()), FINETUNING_SEEDS
    if not values:
        raise ValueError("there is no score to average")
    if len(values) == 1:
        return Estimate(values[0], None, None, 1, ONE_RUN)
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    half = _quantile(len(values), CONFIDENCE) * sd / float(np.sqrt(len(values)))
    is_balanced = len(set(map(len, groups.values()))) == 1
    return Estimate(
        mean, mean - half, mean + half, len(values), basis, sd, is_balanced, tuple(values)
    )


def contrast(terms: Sequence[tuple[float, Scores]]) -> Estimate | None:
    """The sum of factor x score over the terms, paired by seed; None where they have none in
    common. With two or more common pre-training seeds of these' means over the common fine-tuning
    seeds, else of fine-tuning seeds."""
    common = reduce(lambda keys, term: keys & term[1].keys(), terms[1:], set(terms[0][1]))
    if not common:
        return None
    return estimate(
        {key: sum(factor * scores[key] for factor, scores in terms) for key in sorted(common)}
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down p-values: all below 0.05 together are false at most once in twenty families
    of tests, also of those that share a row. (scipy has Benjamini and Hochberg's, which bounds
    another error.)"""
    return _step_down(np.asarray(p_values, dtype=np.float64)).tolist()


def _step_down(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[..., tests] of one family each, likewise."""
    order = np.argsort(p_values, kind="stable")
    steps = np.take_along_axis(p_values, order, -1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.empty_like(steps)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, -1), -1)
    return np.minimum(1.0, adjusted)


def sequential_p(p_values: Sequence[float], first: int, most: int) -> float:
    """p of a difference that was looked at after every seed: below 0.05 by chance in one experiment
    of twenty.

    A test at 5 % that is repeated after each seed is wrong more often, since one of its looks may
    be lucky. This is the chance that the smallest of all looks' p-values, up to `most` seeds, is as
    small as the smallest so far: of t tests on the same growing sample, without any true difference
    (drawn, always the same). So one may stop at any look. Looks are over `first` seeds, one more,
    and so on; `first` and `most` are fixed before the first look."""
    smallest, drawn = min(p_values), _smallest_p_values(first, most)
    # where so few are smaller that their share is no measurement
    bound = (most - first + 1) * smallest
    return float(
        min(
            1.0,
            bound,
            max((1 + np.searchsorted(drawn, smallest, side="right")) / len(drawn), smallest),
        )
    )


@lru_cache(maxsize=256)
def look_level(p: float, first: int, most: int) -> float:
    """The plain p-value that one look has to have for a sequential_p of `p`."""
    return float(np.quantile(_smallest_p_values(first, most), p))


@lru_cache(maxsize=32)
def _smallest_p_values(first: int, most: int) -> NDArray[np.float64]:
    """Sorted, of DRAWN experiments without a difference: the smallest p of t tests over first,
    first + 1, ... seeds.
    """
    draw, total, squares = np.random.default_rng(0), np.zeros(DRAWN), np.zeros(DRAWN)
    smallest = np.ones(DRAWN)
    for count in range(1, most + 1):
        value = draw.normal(size=DRAWN)
        total, squares = total + value, squares + value**2
        if count >= first:
            error = np.sqrt((squares - total**2 / count) / (count - 1) / count)
            smallest = np.minimum(
                smallest, 2.0 * special.stdtr(count - 1, -np.abs(total / count) / error)
            )
    return np.sort(smallest)


def seeds_needed(
    effects: Sequence[float], confidence: float = CONFIDENCE, most: int = MOST_SEEDS
) -> int | None:
    """Seeds (in all, at least 2) with which all these intervals exclude their points in POWER of
    experiments.

    `effects`: true distances from those points, in standard deviations between seeds. None: over
    `most` seeds. That one of the tests fails is at most as likely as the sum of their chances to:
    they need not be independent."""
    seeds = np.arange(2, most + 1)
    quantiles = stats.t.ppf((1.0 + confidence) / 2.0, df=seeds - 1)
    # [effects, numbers of seeds]
    shifts = np.outer(np.minimum(effects, LARGEST_EFFECT), np.sqrt(seeds))
    enough = seeds[stats.nct.cdf(quantiles, seeds - 1, shifts).sum(axis=0) <= 1.0 - POWER]
    return int(enough[0]) if len(enough) else None


def zero_crossings(
    places: Sequence[float], differences: ArrayLike
) -> tuple[list[float], list[tuple[float, float]]]:
    """Where a mean difference changes sign, and all stretches where a t test over seeds does not
    exclude zero.

    Those stretches are the confidence set of the place: the true one is in them in so many of
    experiments. Between two places every seed's difference is a straight line, so the squared t is
    above its limit by the sign of a parabola.
    `places` ascend; `differences` [seeds, places] are of two seeds or more."""
    values, changes, stretches = (
        np.asarray(differences, dtype=np.float64),
        list[float](),
        list[tuple[float, float]](),
    )
    count, limit = len(values), _quantile(len(values), CONFIDENCE) ** 2
    for (left, right), (one, other) in zip(pairwise(places), pairwise(values.T), strict=True):
        begin, gain, spread = one.mean(), other.mean() - one.mean(), np.cov(one, other - one)
        if begin * other.mean() < 0.0 or (begin == 0.0 and gain):
            changes.append(float(left - (right - left) * begin / gain))
        spreads = np.array([spread[1, 1], 2.0 * spread[0, 1], spread[0, 0]])
        parabola = [count * gain**2, 2.0 * count * begin * gain, count * begin**2] - limit * spreads
        roots = sorted(
            float(root.real)
            for root in np.roots(parabola)
            if root.imag == 0.0 and 0.0 < root.real < 1.0
        )
        for low, high in pairwise([left, *(left + root * (right - left) for root in roots), right]):
            if np.polyval(parabola, ((low + high) / 2.0 - left) / (right - left)) <= 0.0:
                joins = bool(stretches) and stretches[-1][1] == low
                stretches[-1:] = (
                    [(stretches[-1][0], high)] if joins else [*stretches[-1:], (low, high)]
                )
    return changes, stretches


def simulate_decided(
    effects: Sequence[tuple[float, float]],
    families: Sequence[Sequence[int]],
    seeds: int,
    looks: tuple[int, int] | None,
) -> NDArray[np.bool_]:
    """[tables, tests]: which tests so many seeds decide, of independent differences whose truth is
    known.

    Args:
        effects: of each test the true mean and the margin that it is tested against, in standard
        deviations.
        families: places of tests, each family corrected by Holm's method: those of primary claims,
        which wait for
            those before them, and last all others, which have KEPT_FOR_OTHERS until those are
            decided.
        looks: the first and the last of a stopping rule that looks after every seed; None: one
        look."""
    shift, margin = np.transpose(np.asarray(effects, dtype=np.float64))
    values = np.random.default_rng(0).normal(size=(seeds, SIMULATED, len(effects))) + shift
    first, most = looks or (seeds, seeds)
    p, corrected = np.ones(values.shape[1:]), np.ones(values.shape[1:])
    for count in range(first, min(seeds, most) + 1):
        mean, sd = values[:count].mean(axis=0), values[:count].std(axis=0, ddof=1)
        size = np.abs(mean - np.copysign(margin, mean)) * np.sqrt(count) / sd
        p = np.minimum(p, 2.0 * special.stdtr(count - 1, -size))
    if most > first:
        p = (1.0 + np.searchsorted(_smallest_p_values(first, most), p, side="right")) / DRAWN
    *primary, others = map(list, families)
    largest = np.zeros((SIMULATED, 1))
    for family in primary:
        share = 1.0 - KEPT_FOR_OTHERS * bool(others)
        corrected[:, family] = np.maximum(_step_down(p[:, family]) / share, largest)
        largest = corrected[:, family].max(axis=1, keepdims=True)
    alone = _step_down(p[:, others])
    corrected[:, others] = np.minimum(alone / KEPT_FOR_OTHERS, np.maximum(alone, largest))
    return corrected < 1.0 - CONFIDENCE


def smallest_gap(sd: float, n: int, confidence: float = CONFIDENCE) -> float:
    """The true difference that `n` paired seeds (2 or more) show with probability POWER, in the
    unit of `sd`, which is the standard deviation of the difference between seeds."""
    quantile = _quantile(n, confidence)

    def lack(shift: float) -> float:
        """`shift` in standard errors; the chance of the wrong sign is left out, it is tiny at any
        useful power.
        """
        return float(stats.nct.sf(quantile, n - 1, shift)) - POWER

    return float(optimize.brentq(lack, 0.0, 20.0 * quantile)) * sd / float(np.sqrt(n))


@lru_cache(maxsize=256)
def _quantile(count: int, confidence: float) -> float:
    """Of Student's t. A report asks for the same few again and again, and scipy takes its time."""
    return float(stats.t.ppf((1.0 + confidence) / 2.0, df=count - 1))


RESAMPLES = 1000
RESAMPLED_AT_ONCE = 4_000_000  # examples of all resamples that are in memory together


@dataclass(frozen=True)
class McNemar:
    """Exact McNemar test."""

    only_first: int  # examples that only the one of the two got right
    only_second: int
    p_value: float  # two-sided, of a fair coin giving counts at least as uneven


@dataclass(frozen=True)
class Bootstrap:
    """Paired bootstrap: difference first - second with its 95 % percentile interval."""

    difference: float
    low: float
    high: float


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """`first`, `second` [N]: whether each system got each example right."""
    one, two = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    only_first, only_second = int((one & ~two).sum()), int((two & ~one).sum())
    count = only_first + only_second
    p_value = float(stats.binomtest(only_first, count, 0.5).pvalue) if count else 1.0
    return McNemar(only_first, only_second, p_value)


def bootstrap(score: Callable[[NDArray[np.int64], int], float], num_examples: int) -> Bootstrap:
    """Of any score of a set of examples (a mean, a correlation, an entity F1), of two systems on
    the same ones.

    `score`: (indices of a resample, below `num_examples`, system 0 or 1) -> score."""

    def difference(index: NDArray[np.int64]) -> float:
        return score(index, 0) - score(index, 1)

    everything = np.arange(num_examples)
    found = stats.bootstrap(
        (everything,),
        difference,
        vectorized=False,
        n_resamples=RESAMPLES,
        method="percentile",
        batch=max(1, RESAMPLED_AT_ONCE // num_examples),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Bootstrap(difference(everything), float(found.low), float(found.high))
