"""The smallest difference that a number of pre-training seeds can be expected to show."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from clozelab.ledger.collect import Collected
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.reporting.table import build_table
from clozelab.metrics import statistics

ASSUMED_SD = 1.0
"""Points, of the difference of two arms over pre-training seeds, where no finished run says more."""
POWER = 0.8


def smallest_detectable(deviation: float, count: int) -> float | None:
    """Points that a paired t test at 5 % finds in four of five experiments of `count` seeds; None below two seeds.

    `deviation`: of the paired difference over seeds. The one place to change when statistics.py has it.
    """
    if count < 2:
        return None
    given: Callable[[float, int], float] | None = getattr(statistics, "smallest_detectable_difference", None)
    if given is not None:
        return float(given(deviation, count))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power_of(middle, count) < POWER else (low, middle)
    return deviation * high


def power_of(effect: float, count: int) -> float:
    """How often a paired t test at 5 % on `count` differences finds a mean of `effect` deviations.

    Averages over the observed deviation; scipy's noncentral t loses all digits at one degree of freedom.
    """
    critical, shift = float(stats.t.ppf(0.975, count - 1)), effect * math.sqrt(count)
    ranks = (np.arange(4000) + 0.5) / 4000
    limits = critical * np.sqrt(stats.chi2.ppf(ranks, count - 1) / (count - 1))
    return float(np.mean(stats.norm.sf(limits - shift) + stats.norm.cdf(-limits - shift)))


def known_deviation(experiment: Experiment, collected: Collected) -> tuple[float, int]:
    """(median deviation of the claims' paired differences over pre-training seeds, how many it is from).

    ASSUMED_SD and 0 where no claim has two pre-training seeds yet.
    """
    table = build_table(experiment, collected)
    found = []
    for claim in experiment.claims:
        for column in table.with_results:
            first, second = table.cells[claim.first, column.key].scores, table.cells[claim.second, column.key].scores
            seeds = sorted({pair[0] for pair in first.keys() & second.keys()})
            gaps = [
                np.mean([first[pair] - second[pair] for pair in first.keys() & second.keys() if pair[0] == seed])
                for seed in seeds
            ]
            if len(gaps) >= 2:
                found.append(float(np.std(gaps, ddof=1)))
    return (float(np.median(found)), len(found)) if found else (ASSUMED_SD, 0)


def describe(experiment: Experiment, collected: Collected, seeds: int) -> str:
    """The smallest difference that so many pre-training seeds can show, in words."""
    deviation, number = known_deviation(experiment, collected)
    least = smallest_detectable(deviation, seeds)
    if least is None:
        return "smallest detectable difference: none; one pre-training seed cannot tell an arm from its luck"
    basis = f"median of {number} comparisons so far" if number else "assumed: no two seeds have finished"
    return (
        f"smallest detectable difference: {least:.1f} points between two arms with {seeds} pre-training seeds "
        f"(found in 4 of 5 experiments), if it varies by {deviation:.1f} points from seed to seed ({basis})"
    )
