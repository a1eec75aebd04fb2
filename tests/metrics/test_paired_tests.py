"""Paired tests against counting by hand and against scipy, and their error rate where nothing differs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from clozelab.metrics.statistics import bootstrap_mean, bootstrap_score, mcnemar


def test_mcnemar_by_hand() -> None:
    first = [True] * 8 + [False] * 1 + [True] * 50 + [False] * 41
    second = [False] * 8 + [True] * 1 + [True] * 50 + [False] * 41
    found = mcnemar(first, second)
    assert (found.only_first, found.only_second) == (8, 1)
    # Two-sided: 2 * (C(9,0) + C(9,1)) / 2^9.
    assert found.p_value == pytest.approx(2 * 10 / 512)
    assert mcnemar(second, first).p_value == pytest.approx(found.p_value)
    assert mcnemar([True, False], [True, False]).p_value == 1.0


def test_mcnemar_keeps_its_level() -> None:
    rng = np.random.default_rng(0)
    p_values = np.array([mcnemar(rng.random(200) < 0.7, rng.random(200) < 0.7).p_value for _ in range(400)])
    assert (p_values < 0.05).mean() < 0.06  # an exact test is conservative
    apart = [mcnemar(rng.random(200) < 0.8, rng.random(200) < 0.6).p_value for _ in range(100)]
    assert (np.array(apart) < 0.05).mean() > 0.8


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(60.0, 20.0, 2000)
    second = first + rng.normal(-1.0, 5.0, 2000)
    found = bootstrap_mean(first, second, seed=3)
    gaps = first - second
    half = stats.norm.ppf(0.975) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert found.difference == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half, abs=0.03)
    assert found.high == pytest.approx(gaps.mean() + half, abs=0.03)
    assert bootstrap_mean(first, second, seed=3) == found
    # Pairing counts: the interval of two independent means is far wider.
    assert found.high - found.low < 0.6 * bootstrap_width(first, rng.permutation(second))


def bootstrap_width(first: np.ndarray, second: np.ndarray) -> float:
    found = bootstrap_mean(first, second, seed=3)
    return found.high - found.low


def test_bootstrap_of_a_score_equals_that_of_the_mean() -> None:
    rng = np.random.default_rng(2)
    values = rng.random((2, 300))
    found = bootstrap_score(lambda index, which: float(values[which][index].mean()), 300, seed=1, resamples=2000)
    mean = bootstrap_mean(values[0], values[1], seed=1)
    assert found.difference == pytest.approx(mean.difference)
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high), abs=0.01)


def test_unequal_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="the same examples, got 2 and 3"):
        mcnemar([True, False], [True, False, True])
    with pytest.raises(ValueError, match="at least one example"):
        bootstrap_mean([], [])
