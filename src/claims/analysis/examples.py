"""Tests over single examples, and intervals by resampling runs and examples.

McNemar's test of the examples of two runs says nothing about other seeds. The
multi-bootstrap resamples seeds, too (Sellam et al. 2022, The MultiBERTs, section 3); with few seeds
it is too narrow. So no verdict rests on any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from claims.analysis.contrasts import Contrast
from claims.analysis.grouping import group_by
from claims.analysis.scores import ScoreTable

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
    from scipy import stats  # takes half a second: only who needs it pays

    p_value = float(stats.binomtest(only_first, count, 0.5).pvalue)
    return McNemar(only_first, only_second, p_value)


def paired_differences(contrast: Contrast, table: ScoreTable) -> list[NDArray[np.float64]]:
    """The differences behind a contrast, an array for each common pre-training seed.

    Each is [fine-tuning seeds, examples], or [fine-tuning seeds, 1] where only the scores of whole
    runs are known. A contrast of several data sets has none.
    """
    if len({term.column.key for term in contrast.terms}) > 1:
        return []
    cells = [table.cells[term.row, term.column.key] for term in contrast.terms]
    common = set(cells[0].scores).intersection(*(cell.scores for cell in cells))
    arrays = []
    for group in group_by(sorted(common), lambda seeds: seeds[0]).values():
        runs = []
        for seeds in group:
            terms = zip(contrast.terms, cells, strict=True)
            runs.append(sum(term.weight * cell.example_scores(seeds) for term, cell in terms))
        arrays.append(np.array(runs, dtype=np.float64))
    return arrays


def multi_bootstrap(differences: Sequence[NDArray[np.float64]]) -> Bootstrap:
    """Over pre-training seeds, the fine-tuning seeds inside each, and examples.

    All three are drawn with replacement. The examples of a resample are the same for all its runs;
    the fine-tunings of a seed that is drawn twice are drawn twice. With one run it is the paired
    bootstrap over examples.

    Args:
        differences: of each pre-training seed [fine-tuning seeds, examples].
    """
    generator = np.random.default_rng(0)
    runs = np.concatenate(differences)
    weights = _run_weights(tuple(map(len, differences)))
    batch = max(1, RESAMPLED_AT_ONCE // runs.shape[1])
    means = []
    for start in range(0, RESAMPLES, batch):
        of_examples = weights[start : start + batch] @ runs
        drawn = generator.integers(runs.shape[1], size=of_examples.shape)
        means.append(np.take_along_axis(of_examples, drawn, axis=1).mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975])
    mean = np.mean([of_seed.mean() for of_seed in differences])
    return Bootstrap(float(mean), float(low), float(high))


@lru_cache(maxsize=32)
def _run_weights(counts: tuple[int, ...]) -> NDArray[np.float64]:
    """[RESAMPLES, runs]: what each run weighs in each resample, always the same draws.

    Args:
        counts: fine-tuning seeds of each pre-training seed.
    """
    generator = np.random.default_rng(1)
    first_run = np.cumsum([0, *counts])
    weights = np.zeros((RESAMPLES, first_run[-1]))
    for resample in weights:
        for seed in generator.integers(len(counts), size=len(counts)):
            drawn = generator.integers(counts[seed], size=counts[seed])
            share = np.bincount(drawn, minlength=counts[seed]) / counts[seed]
            resample[first_run[seed] : first_run[seed + 1]] += share / len(counts)
    return weights
