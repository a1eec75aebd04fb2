"""The statistics of a comparison: means over seeds, Student-t intervals, paired differences.

Two kinds of seeds are never mixed: fine-tuning seeds are averaged inside a pre-training seed, and the interval is over
pre-training seeds, because that is the spread a claim about pre-training has to beat. With a single pre-training seed
the interval is over fine-tuning seeds and says so in its `basis`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

PRETRAINING_SEEDS = "pre-training seeds"
FINETUNING_SEEDS = "fine-tuning seeds only"
ONE_RUN = "one run"

Scores = Mapping[tuple[int, int], float]
"""(pre-training seed, fine-tuning seed) -> score."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        mean: in the unit of the scores.
        low, high: ends of the interval; None where there is nothing to estimate a spread from.
        count: values the interval is over.
        basis: what those values are (PRETRAINING_SEEDS, FINETUNING_SEEDS or ONE_RUN).
        num_runs: runs that went into it.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    basis: str
    num_runs: int

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else self.high - self.mean


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high) by Student's t with n - 1 degrees of freedom.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(values)}")
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    quantile = float(stats.t.ppf((1.0 + confidence) / 2.0, df=array.size - 1))
    half = quantile * float(array.std(ddof=1)) / float(np.sqrt(array.size))
    return mean, mean - half, mean + half


def estimate(scores: Scores, confidence: float = 0.95) -> Estimate:
    """Mean and interval of one cell.

    Raises:
        ValueError: no score at all.
    """
    groups = _by_pretraining_seed(scores)
    if len(groups) >= 2:
        means = [float(np.mean(list(group.values()))) for group in groups.values()]
        return _estimate(means, PRETRAINING_SEEDS, len(scores), confidence)
    return _estimate(list(scores.values()), FINETUNING_SEEDS, len(scores), confidence)


def paired_difference(first: Scores, second: Scores, confidence: float = 0.95) -> Estimate | None:
    """first - second, paired by seed; None where they have no seed in common.

    With two or more common pre-training seeds the pairs are those seeds' means over the common fine-tuning seeds; with
    one, the pairs are its fine-tuning seeds.
    """
    common = first.keys() & second.keys()
    if not common:
        return None
    differences = {key: first[key] - second[key] for key in sorted(common)}
    return estimate(differences, confidence)


def _by_pretraining_seed(scores: Scores) -> dict[int, dict[int, float]]:
    groups: dict[int, dict[int, float]] = defaultdict(dict)
    for (pretrain_seed, seed), score in sorted(scores.items()):
        groups[pretrain_seed][seed] = score
    return dict(groups)


def _estimate(values: list[float], basis: str, num_runs: int, confidence: float) -> Estimate:
    if not values:
        raise ValueError("there is no score to average")
    if len(values) == 1:
        return Estimate(values[0], None, None, 1, ONE_RUN, num_runs)
    mean, low, high = t_interval(values, confidence)
    return Estimate(mean, low, high, len(values), basis, num_runs)
