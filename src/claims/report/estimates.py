"""Means, intervals and p-values as tables and sentences write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING

from claims.analysis.statistics import SIGNIFICANCE
from claims.text.phrases import format_count, signed

if TYPE_CHECKING:
    from claims.analysis.scores import Cell
    from claims.analysis.statistics import Estimate

PLUS_MINUS = "\u00b1"
MOST_DECIMALS = 5  # of an interval, however near its end is to zero or a margin


def percent(estimate: Estimate | None, decimals: int) -> str:
    """Write an estimate as `67.4 ± 1.7`, or its mean alone where there is no interval."""
    if estimate is None:
        return "missing"
    return f"{estimate.mean:.{decimals}f} {half_width(estimate, decimals)}".rstrip()


def half_width(estimate: Estimate | None, decimals: int) -> str:
    """Write half of an interval as `± 1.7`, and two seeds as `(65.7, 69.1)`.

    It is empty where there is but one seed, and `(equal)` where all seeds happen to agree.
    """
    if estimate is None or estimate.half_width is None:
        return ""
    if estimate.has_no_spread:
        return "(equal)"
    if len(estimate.values) == 2:
        first, second = estimate.values
        return f"({first:.{decimals}f}, {second:.{decimals}f})"
    return f"{PLUS_MINUS} {estimate.half_width:.{decimals}f}"


def interval(estimate: Estimate | None, decimals: int = 1, boundaries: Sequence[float] = ()) -> str:
    """Write an interval as `[−1.2, +0.4]`.

    It is empty where there is none, and in words where there is no spread to make one of.
    `boundaries` are the margins of its claim: an end has as many decimals as show its side of each.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    if estimate.has_no_spread:
        return "no spread"
    ends = (estimate.low, estimate.high)
    told_apart = list(product(ends, filter(None, boundaries)))
    # [0.0, +1.2] would not say that zero is outside.
    if estimate.low * estimate.high > 0.0:
        told_apart.append((min(ends, key=abs), 0.0))
    for end, boundary in told_apart:
        while decimals < MOST_DECIMALS and _changes_side(end, boundary, decimals):
            decimals += 1
    return f"[{signed(estimate.low, decimals)}, {signed(estimate.high, decimals)}]"


def _changes_side(end: float, boundary: float, decimals: int) -> bool:
    """Whether a number, written with so many decimals, is no longer on its side of another one."""
    written = float(f"{end:.{decimals}f}")
    return (written > boundary, written < boundary) != (end > boundary, end < boundary)


def scores_by_seed(cell: Cell, decimals: int) -> str:
    """Write `1/1: 65.7, 1/2: 69.1`, by pre-training and fine-tuning seed.

    The seed of an encoder that is not fine-tuned is `seed 1: 4.40`.
    """
    scores = {}
    for (pretrain_seed, finetune_seed), score in cell.scores.items():
        name = f"{pretrain_seed}/{finetune_seed}" if finetune_seed else f"seed {pretrain_seed}"
        scores[name] = score
    return ", ".join(f"{name}: {score:.{decimals}f}" for name, score in sorted(scores.items()))


def probability(p_value: float | None) -> str:
    """Write a p-value as `p = 0.012`; empty for none."""
    if p_value is None:
        return ""
    if p_value < 0.001:
        return "p < 0.001"
    # 0.0496 is below the level, which 0.050 is not.
    decimals = 3
    while p_value < SIGNIFICANCE <= float(f"{p_value:.{decimals}f}"):
        decimals += 1
    return f"p = {p_value:.{decimals}f}"


def span(values: Iterable[float], show: Callable[[float], str] = format_count) -> str:
    """Write the range of several values as `957 k to 2.72 M`.

    One value, or what looks alike, is `1.53 M`; no value is empty.
    """
    ordered = sorted(values)
    if not ordered:
        return ""
    low = show(ordered[0])
    high = show(ordered[-1])
    return low if low == high else f"{low} to {high}"
