"""Counter-based random numbers, and the order of an epoch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from clozelab.corpus.random import (
    COLUMN,
    Draws,
    derive_seed,
    instance_indices,
    permute,
)

INDEX = np.arange(20_000)
FROZEN = [14314444440902024211, 3458556988731951363]


def test_values_are_frozen() -> None:
    """Other numbers than these would silently change every run's data."""
    assert Draws(1, 2, np.array([3, 4])).bits("split", 5).tolist() == FROZEN


def test_a_draw_depends_on_its_name_only() -> None:
    whole = Draws(7, 3, INDEX[:100, None]).bits("mask", np.arange(8))
    alone = Draws(7, 3, np.array([42])).bits("mask", 5)
    assert whole.shape == (100, 8)
    assert whole[42, 5] == alone[0]


def test_upper_bits_are_those_of_the_bits() -> None:
    """Of several blocks, and with an epoch each."""
    draws = Draws(7, INDEX % 3, INDEX)
    whole = draws.bits("mask", np.arange(9), rows=COLUMN)
    assert (draws.upper_bits("mask", 9) == whole >> np.uint64(33)).all()


def test_every_coordinate_matters() -> None:
    base = Draws(1, 1, INDEX).bits("a", 1)
    others = [
        Draws(2, 1, INDEX).bits("a", 1),
        Draws(1, 2, INDEX).bits("a", 1),
        Draws(1, 1, INDEX).bits("b", 1),
        Draws(1, 1, INDEX + 1).bits("a", 1),
        Draws(1, 1, INDEX).bits("a", 2),
    ]
    for other in others:
        assert (base != other).all()


def test_epoch_may_be_an_array() -> None:
    epochs = np.repeat([4, 5], 10)
    drawn = Draws(1, epochs, INDEX[:20]).bits("a")
    assert (drawn[:10] == Draws(1, 4, INDEX[:10]).bits("a")).all()
    assert (drawn[10:] == Draws(1, 5, INDEX[10:20]).bits("a")).all()


def test_scalars_and_large_values_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Draws(2**63, 2**40, np.array([2**62])).bits("x", -1).shape == (1,)
        assert Draws(-5, 0, INDEX[:1]).integers("x", high=10)[0] in range(10)


def test_moments_and_independence_of_neighbours() -> None:
    draws = Draws(11, 0, INDEX).uniform("x")
    size = len(INDEX)
    assert draws.min() >= 0 and draws.max() < 1
    assert abs(draws.mean() - 0.5) < 4 * np.sqrt(1 / 12 / size)
    assert abs(draws.var() - 1 / 12) < 0.003
    for lag in (1, 2, 256):
        assert abs(np.corrcoef(draws[:-lag], draws[lag:])[0, 1]) < 4 / np.sqrt(size)
    by_sub = Draws(11, 0, INDEX[:, None]).uniform("x", np.arange(2))
    assert abs(np.corrcoef(by_sub.T)[0, 1]) < 4 / np.sqrt(size)


def test_every_bit_is_fair() -> None:
    bits = (Draws(5, 1, INDEX).bits("x")[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / np.sqrt(len(INDEX))


def test_integers_are_uniform_and_respect_an_array_of_bounds() -> None:
    counts = np.bincount(Draws(3, 0, INDEX).integers("x", high=10), minlength=10)
    expected = len(INDEX) / 10
    # chi-square, 9 degrees of freedom, p = 1e-4
    assert ((counts - expected) ** 2 / expected).sum() < 33.7
    high = 1 + INDEX % 7
    drawn = Draws(3, 0, INDEX).integers("x", high=high)
    assert (drawn < high).all() and (drawn >= 0).all() and (drawn[high == 1] == 0).all()


def test_derived_seeds_differ_and_fit_63_bits() -> None:
    seeds = set()
    for seed in range(20):
        for name in ("phase 0", "phase 1"):
            seeds.add(derive_seed(seed, name))
    assert len(seeds) == 40
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1023, 10_007])
def test_each_epoch_is_a_permutation(size: int) -> None:
    for epoch in (0, 1, 5):
        assert sorted(permute(9, epoch, np.arange(size), size)) == list(range(size))


def test_epochs_and_seeds_order_differently() -> None:
    orders = []
    for seed in (1, 2):
        for epoch in (0, 1):
            orders.append(permute(seed, epoch, np.arange(1000), 1000))
    for first in range(4):
        assert (orders[first] != np.arange(1000)).mean() > 0.98
        for second in range(first):
            assert (orders[first] == orders[second]).mean() < 0.02


def test_positions_are_uniform_over_epochs() -> None:
    size, epochs = 13, 6500
    first = np.array([permute(1, epoch, np.array([0]), size)[0] for epoch in range(epochs)])
    counts = np.bincount(first, minlength=size)
    # 12 degrees of freedom, p = 1e-4
    assert ((counts - epochs / size) ** 2 / (epochs / size)).sum() < 39.1


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


def test_no_instances() -> None:
    with pytest.raises(ValueError, match="0 instances"):
        instance_indices(1, 0, np.arange(3))
