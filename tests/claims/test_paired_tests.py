"""Paired tests against counting by hand and against scipy, and their error rate where nothing
differs.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from claims.analysis.examples import Bootstrap, mcnemar, multi_bootstrap


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
    p_values = np.array(
        [mcnemar(rng.random(200) < 0.7, rng.random(200) < 0.7).p_value for _ in range(400)]
    )
    assert (p_values < 0.05).mean() < 0.06  # an exact test is conservative
    apart = [mcnemar(rng.random(200) < 0.8, rng.random(200) < 0.6).p_value for _ in range(100)]
    assert (np.array(apart) < 0.05).mean() > 0.8


def of_means(first: np.ndarray, second: np.ndarray) -> Bootstrap:
    return multi_bootstrap([(first - second)[None, :]])


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    rng = np.random.default_rng(1)
    first = rng.normal(60.0, 20.0, 2000)
    second = first + rng.normal(-1.0, 5.0, 2000)
    found = of_means(first, second)
    gaps = first - second
    half = stats.norm.ppf(0.975) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    assert found.difference == pytest.approx(gaps.mean())
    assert found.low == pytest.approx(gaps.mean() - half, abs=0.03)
    assert found.high == pytest.approx(gaps.mean() + half, abs=0.03)
    assert of_means(first, second) == found
    # Pairing counts: the interval of two independent means is far wider.
    apart = of_means(first, rng.permutation(second))
    assert found.high - found.low < 0.6 * (apart.high - apart.low)
