"""Where one learning curve overtakes another, with the confidence set of that place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from claims.analysis.contrasts import LearningCurve
from claims.analysis.hypotheses import ResolvedClaim
from claims.analysis.scores import DataColumn, ScoreTable
from claims.analysis.statistics import CONFIDENCE, Scores, Seeds, t_quantile

Interval = tuple[float, float]


@dataclass(frozen=True)
class SignChanges:
    """Where a mean difference changes sign, and where a t test does not exclude zero."""

    points: list[float]
    # The confidence set of the crossing: the true one is in it in 95 % of experiments.
    level_stretches: list[Interval]


def find_sign_changes(places: Sequence[float], differences: ArrayLike) -> SignChanges:
    """Follow paired differences along their places.

    Args:
        places: ascending, such as logarithms of tokens.
        differences: [seeds, places], of two seeds or more; straight lines between the places.
    """
    values = np.asarray(differences, dtype=np.float64)
    points = []
    stretches: list[Interval] = []
    for index, (left, right) in enumerate(pairwise(places)):
        begin = values[:, index]
        end = values[:, index + 1]
        mean = begin.mean()
        gain = end.mean() - mean
        if mean * end.mean() < 0.0 or (mean == 0.0 and gain):
            points.append(float(left - (right - left) * mean / gain))
        _add_level_stretches(stretches, left, right, _excess_over_limit(begin, end))
    return SignChanges(points, stretches)


def _excess_over_limit(begin: NDArray[np.float64], end: NDArray[np.float64]) -> list[float]:
    """Coefficients of a parabola in x in [0, 1] that is positive where the t test excludes zero.

    Between two places every seed's difference is a straight line, begin + x (end - begin). So both
    the squared mean and the variance are parabolas in x, and t squared is above its limit where
    count * mean^2 - limit * variance is above zero.
    """
    count = len(begin)
    limit = t_quantile(count, CONFIDENCE) ** 2
    mean = begin.mean()
    gain = end.mean() - mean
    spread = np.cov(begin, end - begin)
    variances = np.array([spread[1, 1], 2.0 * spread[0, 1], spread[0, 0]])
    squared_mean = [count * gain**2, 2.0 * count * mean * gain, count * mean**2]
    return list(squared_mean - limit * variances)


def _add_level_stretches(
    stretches: list[Interval], left: float, right: float, parabola: list[float]
) -> None:
    """Add what of [left, right] the parabola leaves at or below zero, joined to what ends there."""
    roots = [
        float(root.real)
        for root in np.roots(parabola)
        if root.imag == 0.0 and 0.0 < root.real < 1.0
    ]
    bounds = [left]
    for root in sorted(roots):
        bounds.append(left + root * (right - left))
    bounds.append(right)

    for low, high in pairwise(bounds):
        middle = ((low + high) / 2.0 - left) / (right - left)
        if np.polyval(parabola, middle) > 0.0:
            continue
        if stretches and stretches[-1][1] == low:
            earlier_low, _ = stretches.pop()
            low = earlier_low
        stretches.append((low, high))


@dataclass(frozen=True)
class Crossover:
    """Where one line overtakes another, in the unit of the lines."""

    first: str
    second: str
    # "tokens", "flops", "seconds"; empty for shares of the steps
    unit: str
    # the stretch that both lines have
    start: float
    end: float
    # where the mean difference turns to the first line's favour for the last time
    point: float | None
    # where a test does not exclude that both are level; empty with fewer than two seeds
    level_stretches: tuple[Interval, ...]
    # the line that leads everywhere, where one does
    leader: str | None


def find_crossover(resolved: ResolvedClaim, table: ScoreTable) -> Crossover | None:
    """Where the first of two lines crosses the second; None for a claim without two lines.

    Scores are straight between points, over the logarithm of tokens (FLOPs, seconds). The interval
    is every place at which a t test over pre-training seeds does not exclude that both are level.
    """
    if not resolved.curves or resolved.column is None:
        return None
    first, second = resolved.curves
    start = max(first.start, second.start)
    end = min(first.end, second.end)
    points = {amount for amount, _ in (*first.points, *second.points)}
    amounts = sorted(amount for amount in points if start <= amount <= end)
    leads = _leads(resolved.curves, resolved.column, amounts, table)
    if not len(leads):
        return None

    log_amounts = np.log(amounts)
    means = leads.mean(axis=0)
    is_tested = len(leads) > 1 and all(contrast.is_tested for contrast in resolved.contrasts)
    if len(leads) == 1:
        # A single seed has sign changes, and no test.
        leads = leads.repeat(2, axis=0)
    changes = find_sign_changes(log_amounts.tolist(), leads)
    point = _last_rise(changes.points, log_amounts, means)
    stretches = []
    if is_tested:
        # The ends are the lines' own numbers, not those that come back from a logarithm.
        ends = {float(log_amounts[0]): start, float(log_amounts[-1]): end}
        for low, high in changes.level_stretches:
            low_amount = ends.get(low, float(np.exp(low)))
            stretches.append((low_amount, ends.get(high, float(np.exp(high)))))
    leader = None
    if np.all(means > 0.0):
        leader = first.name
    elif np.all(means < 0.0):
        leader = second.name
    return Crossover(
        first=first.name,
        second=second.name,
        unit=first.unit,
        start=start,
        end=end,
        point=point,
        level_stretches=tuple(stretches),
        leader=leader,
    )


def _leads(
    curves: Sequence[LearningCurve],
    column: DataColumn,
    amounts: Sequence[float],
    table: ScoreTable,
) -> NDArray[np.float64]:
    """[seeds, amounts]: what the first line is ahead of the second, by pre-training seed."""
    # [lines][points]: scores by seeds
    scores = []
    for curve in curves:
        scores.append([table.cells[row, column.key].scores for _, row in curve.points])
    seeds = sorted(set.intersection(*map(set, scores[0] + scores[1])))

    def line(number: int, pretrain_seed: int) -> NDArray[np.float64]:
        of_seed = [key for key in seeds if key[0] == pretrain_seed]
        means = [_mean_over(point_scores, of_seed) for point_scores in scores[number]]
        places = np.log([amount for amount, _ in curves[number].points])
        return np.interp(np.log(amounts), places, means)

    # Of losses the smaller one is ahead.
    sign = column.sign
    pretrain_seeds = sorted({pretrain_seed for pretrain_seed, _ in seeds})
    leads = [line(0, seed) - line(1, seed) for seed in pretrain_seeds]
    return sign * np.array(leads)


def _mean_over(scores: Scores, seeds: Sequence[Seeds]) -> float:
    return float(np.mean([scores[key] for key in seeds]))


def _last_rise(
    changes: Sequence[float], log_amounts: NDArray[np.float64], means: NDArray[np.float64]
) -> float | None:
    """The last place where the mean goes from below zero to above it, as an amount."""
    rises = []
    for log_amount in changes:
        before = np.interp(log_amount - 1e-9, log_amounts, means)
        after = np.interp(log_amount + 1e-9, log_amounts, means)
        if before < 0.0 < after:
            rises.append(log_amount)
    return float(np.exp(rises[-1])) if rises else None
