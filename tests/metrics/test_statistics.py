"""Statistics of a comparison against scipy and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from clozelab.metrics.statistics import (
    FINETUNING_SEEDS,
    ONE_RUN,
    PRETRAINING_SEEDS,
    estimate,
    paired_difference,
    t_interval,
)


def test_interval_equals_scipys() -> None:
    values = [70.1, 68.3, 71.9, 69.0]
    mean, low, high = t_interval(values)
    expected = stats.t.interval(0.95, df=3, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(values))


def test_interval_of_two_values_by_hand() -> None:
    # t(0.975, 1) = 12.7062; sd = sqrt(2) for values 1 and 3, over sqrt(2): half width 12.7062
    assert t_interval([1.0, 3.0]) == pytest.approx((2.0, 2.0 - 12.7062, 2.0 + 12.7062), abs=1e-4)


def test_interval_needs_two_values() -> None:
    with pytest.raises(ValueError, match="at least two"):
        t_interval([1.0])


def test_finetuning_seeds_are_averaged_inside_pretraining_seeds() -> None:
    scores = {(1, 1): 60.0, (1, 2): 62.0, (2, 1): 70.0, (2, 2): 72.0}
    found = estimate(scores)
    assert (found.low, found.high) == pytest.approx(t_interval([61.0, 71.0])[1:])
    assert (found.mean, found.count, found.num_runs, found.basis) == (66.0, 2, 4, PRETRAINING_SEEDS)


def test_unequal_groups_do_not_weigh_more() -> None:
    assert estimate({(1, 1): 60.0, (1, 2): 60.0, (1, 3): 60.0, (2, 1): 70.0}).mean == 65.0


def test_one_pretraining_seed_says_so() -> None:
    found = estimate({(1, 1): 60.0, (1, 2): 62.0})
    assert (found.basis, found.count) == (FINETUNING_SEEDS, 2)
    alone = estimate({(1, 1): 60.0})
    assert (alone.basis, alone.low, alone.half_width) == (ONE_RUN, None, None)


def test_difference_is_paired() -> None:
    first = {(seed, 1): 60.0 + 5.0 * seed for seed in (1, 2, 3)}
    second = {(seed, 1): 58.0 + 5.0 * seed + 0.1 * seed for seed in (1, 2, 3)}
    found = paired_difference(first, second)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(t_interval([1.9, 1.8, 1.7])[1:])
    # unpaired, the spread between seeds would drown it
    assert found.low is not None and found.low > 1.0


def test_difference_uses_common_seeds_only() -> None:
    found = paired_difference({(1, 1): 5.0, (2, 1): 6.0, (3, 1): 90.0}, {(1, 1): 4.0, (2, 1): 4.5})
    assert found is not None and (found.mean, found.count) == (1.25, 2)
    assert paired_difference({(1, 1): 1.0}, {(2, 1): 1.0}) is None


def test_interval_covers_at_its_rate() -> None:
    generator = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        _, low, high = t_interval(generator.normal(1.0, 2.0, size=3).tolist())
        hits += low <= 1.0 <= high
    assert 0.935 < hits / 2000 < 0.965
