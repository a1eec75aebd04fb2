"""The order of an epoch: a bijection, addressable anywhere, different each epoch and seed."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.corpus.random import batch_positions, instance_indices, permute


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 10_007])
def test_each_epoch_is_a_permutation(size: int) -> None:
    for epoch in (0, 1, 5):
        assert sorted(permute(9, epoch, np.arange(size), size)) == list(range(size))


def test_epochs_and_seeds_order_differently() -> None:
    orders = [permute(seed, epoch, np.arange(1000), 1000) for seed in (1, 2) for epoch in (0, 1)]
    for first in range(4):
        assert (orders[first] != np.arange(1000)).mean() > 0.98
        for second in range(first):
            assert (orders[first] == orders[second]).mean() < 0.02


def test_positions_are_uniform_over_epochs() -> None:
    size, epochs = 13, 6500
    first = np.array([permute(1, epoch, np.array([0]), size)[0] for epoch in range(epochs)])
    counts = np.bincount(first, minlength=size)
    assert ((counts - epochs / size) ** 2 / (epochs / size)).sum() < 39.1  # 12 degrees of freedom, p = 1e-4


def test_neighbours_are_not_correlated() -> None:
    order = permute(1, 0, np.arange(20_000), 20_000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03


def test_positions_run_over_the_end_of_an_epoch() -> None:
    epoch, index = instance_indices(4, 10, np.arange(7, 33))
    assert epoch.tolist() == [0] * 3 + [1] * 10 + [2] * 10 + [3] * 3
    assert index[3:13].tolist() == permute(4, 1, np.arange(10), 10).tolist()
    assert index[:3].tolist() == permute(4, 0, np.array([7, 8, 9]), 10).tolist()


def test_huge_corpus_needs_no_memory() -> None:
    size = 10**12
    _, index = instance_indices(1, size, np.arange(10**11, 10**11 + 1000))
    assert len(set(index.tolist())) == 1000
    assert index.max() < size and index.min() >= 0


def test_ranks_share_the_global_batch() -> None:
    for world_size in (1, 2, 4):
        shares = [batch_positions(5, 16, rank, world_size) for rank in range(world_size)]
        assert np.concatenate(shares).tolist() == list(range(80, 96))


def test_no_instances_is_a_clear_error() -> None:
    with pytest.raises(ValueError, match="0 instances"):
        instance_indices(1, 0, np.arange(3))
    with pytest.raises(ValueError, match="at least one instance"):
        permute(1, 0, np.arange(3), 0)
