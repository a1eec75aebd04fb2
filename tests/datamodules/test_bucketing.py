"""Batches as pure functions of lengths, seed and epoch."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.datamodules.loading import bucketed_batches, token_budget_batches

LENGTHS = np.random.default_rng(0).integers(3, 100, 5003)


def test_each_example_once_and_one_smaller_batch() -> None:
    batches = bucketed_batches(LENGTHS, batch_size=32, seed=1, epoch=0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    assert sorted({len(batch) for batch in batches}) == [len(LENGTHS) % 32, 32]


def test_pure_function_of_seed_and_epoch() -> None:
    def order(**where: int) -> list[int]:
        return np.concatenate(bucketed_batches(LENGTHS, batch_size=32, **where)).tolist()

    assert order(seed=1, epoch=0) == order(seed=1, epoch=0)
    assert order(seed=1, epoch=0) != order(seed=1, epoch=1)
    assert order(seed=1, epoch=0) != order(seed=2, epoch=0)


def test_lengths_are_similar_inside_a_batch_but_mixed_over_time() -> None:
    batches = bucketed_batches(LENGTHS, batch_size=32, seed=1, epoch=0)
    padded = sum(LENGTHS[batch].max() * len(batch) for batch in batches)
    assert padded < 1.05 * LENGTHS.sum()
    means = np.array([LENGTHS[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.25  # short ones do not come first


@pytest.mark.parametrize("budget", [1, 150, 10**6])
def test_token_budget(budget: int) -> None:
    batches = token_budget_batches(LENGTHS, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    assert all(LENGTHS[batch].sum() <= budget or len(batch) == 1 for batch in batches)
    assert token_budget_batches(LENGTHS[:0], budget) == []
