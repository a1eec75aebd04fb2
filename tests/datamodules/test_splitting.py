"""Which rows stand in both files, and which are held out of one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from clozelab.tasks.splitting import (
    Fold,
    HeldOut,
    Overlap,
    pair_groups,
    quantiles_of,
    text_hashes,
)


def rows(number: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    texts = [f"text {number}" for number in rng.integers(0, number // 2, number)]
    return texts, rng.choice(4, number, p=[0.6, 0.3, 0.09, 0.01])


def test_overlap_is_a_set_of_texts() -> None:
    train = [("a", "b"), ("ab", ""), ("c", "d"), ("a", "b")]
    validation = [("ab", "x"), ("a", "b"), ("", "ab"), ("c", "d"), ("c", "d")]
    overlap = Overlap.between(text_hashes(train), text_hashes(validation))
    assert overlap == Overlap(3, 5, validation_row=1, training_row=0)
    assert overlap.is_large
    # one in a hundred is what benchmarks have
    hashes = np.arange(200, dtype=np.uint64)
    assert not Overlap.between(hashes[:2], hashes).is_large
    assert Overlap.between(hashes[:3], hashes).is_large


def test_a_pair_and_its_swap_are_one_group() -> None:
    rows = [("b", "a"), ("a", "b"), ("b", "c"), ("c", "x"), ("d", "e"), ("e", "f"), ("f", "e")]
    expected = ["a", "a", "a", "c", "d", "e", "e"]
    assert pair_groups(rows) == expected
    order = np.random.default_rng(0).permutation(len(rows))
    assert pair_groups([rows[i] for i in order]) == [expected[i] for i in order]
    # a long chain of swaps is one group, of its first text; single texts are groups of themselves
    chain = [(f"{i:02}", f"{i + 1:02}") for i in range(50)]
    swaps = [(second, first) for first, second in chain]
    assert set(pair_groups(chain + swaps)) == {"00"}
    assert pair_groups([("b",), ("a",), ("b",)]) == ["b", "a", "b"]


def test_no_held_out_pair_is_trained_on_in_the_other_order() -> None:
    pairs = [(f"q{i}", f"q{i + 1}") for i in range(0, 398, 2)]
    every = pairs + [(second, first) for first, second in pairs]
    labels = np.arange(len(every)) % 2

    def leaks(groups: list[str]) -> int:
        held_out = HeldOut(0.1, seed=1).stratified(groups, labels)
        assert held_out.mean() == pytest.approx(0.1, abs=0.02)
        trained = {every[i] for i in np.flatnonzero(~held_out)}
        return sum(every[i][::-1] in trained for i in np.flatnonzero(held_out))

    assert leaks(pair_groups(every)) == 0
    assert leaks([first for first, _ in every]) > 20, "what first texts alone keep together"


def test_texts_stay_together_and_classes_keep_their_shares() -> None:
    texts, labels = rows(2000)
    held_out = HeldOut(0.2, seed=1).stratified(texts, labels)
    inside = {text for text, is_out in zip(texts, held_out, strict=True) if is_out}
    outside = {text for text, is_out in zip(texts, held_out, strict=True) if not is_out}
    assert not inside & outside
    assert held_out.mean() == pytest.approx(0.2, abs=0.02)
    for label in range(4):
        assert held_out[labels == label].any() and not held_out[labels == label].all()
    # without the classes a fifth of the rarest would be a matter of luck
    assert held_out[labels == 0].mean() == pytest.approx(0.2, abs=0.04)


def test_a_split_does_not_depend_on_the_order_but_on_the_seed() -> None:
    texts, labels = rows(500)
    held_out = HeldOut(0.1, seed=1).stratified(texts, labels)
    order = np.random.default_rng(5).permutation(500)
    again = HeldOut(0.1, seed=1).stratified([texts[i] for i in order], labels[order])
    assert (again == held_out[order]).all()
    assert (HeldOut(0.1, seed=2).stratified(texts, labels) != held_out).any()
    drawn = HeldOut(0.1, seed=1).drawn(texts)
    assert len({(text, bool(out)) for text, out in zip(texts, drawn, strict=True)}) == len(
        set(texts)
    )


def test_small_classes() -> None:
    labels = np.array([0] * 20 + [1, 1, 2])
    texts = [f"text {number}" for number in range(23)]
    held_out = HeldOut(0.1, seed=1).stratified(texts, labels)
    counts = Counter(labels[held_out].tolist())
    assert counts == {0: 2, 1: 1}, "of two rows one, of a single one none"


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, 2.0])
def test_a_share_is_between_0_and_1(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"validation_fraction=.*give a share between 0 and 1"):
        HeldOut(fraction, 1)


def test_numbers_are_held_out_by_tenths() -> None:
    values = np.random.default_rng(0).exponential(size=1000)
    tenths = quantiles_of(values)
    assert np.bincount(tenths).tolist() == [100] * 10
    held_out = HeldOut(0.1, seed=1).stratified([str(value) for value in values], tenths)
    assert np.bincount(tenths[held_out]).tolist() == [10] * 10


def test_folds_are_those_of_a_stratified_k_fold() -> None:
    """Every row is validated once; classes have scikit-learn's counts in every fold."""
    model_selection = pytest.importorskip("sklearn.model_selection")
    _, labels = rows(1003)
    texts = [f"text {number}" for number in range(len(labels))]
    folds = [Fold(5, 1, number).stratified(texts, labels) for number in range(5)]
    assert (np.sum(folds, axis=0) == 1).all()
    counts = np.array([np.bincount(labels[fold], minlength=4) for fold in folds])
    oracle = model_selection.StratifiedKFold(5, shuffle=True, random_state=0)
    expected = [np.bincount(labels[part], minlength=4) for _, part in oracle.split(labels, labels)]
    assert (np.sort(counts, axis=0) == np.sort(expected, axis=0)).all()
    assert np.ptp(counts.sum(axis=1)) <= 1, "whole folds are of one size, too"
    # a function of seed and row, whatever the order
    order = np.random.default_rng(0).permutation(len(texts))
    again = Fold(5, 1, 3).stratified([texts[i] for i in order], labels[order])
    assert (again == folds[3][order]).all()
    assert np.mean(Fold(5, 2, 3).stratified(texts, labels) == folds[3]) < 0.9


def test_rows_of_one_text_share_a_fold() -> None:
    texts, labels = rows(2000)
    folds = [Fold(4, 1, number).stratified(texts, labels) for number in range(4)]
    seen = [set(np.array(texts)[fold].tolist()) for fold in folds]
    assert sum(map(len, seen)) == len(set(texts))
    assert np.ptp([fold.sum() for fold in folds]) <= 5
    sizes = [Fold(3, 1, number).drawn(list("abcdefg")).sum() for number in range(3)]
    assert sorted(sizes) == [2, 2, 3]
    with pytest.raises(ValueError, match="validation_folds=1: give 2 or more"):
        Fold(1, 1, 0)


def patients(number: int) -> tuple[list[str], np.ndarray]:
    """Groups of 1 to 9 rows, each of mostly one of three classes, and the classes of all rows."""
    draws = np.random.default_rng(7)
    groups: list[str] = []
    classes: list[int] = []
    for patient in range(number):
        usual = draws.choice(3, p=[0.7, 0.25, 0.05])
        for _ in range(draws.integers(1, 10)):
            groups.append(f"patient {patient}")
            classes.append(usual if draws.random() < 0.8 else draws.integers(3))
    return groups, np.array(classes)


def test_groups_of_several_classes_are_held_out_in_their_shares() -> None:
    groups, classes = patients(200)
    ideal = 0.1 * np.bincount(classes)
    order = np.random.default_rng(1).permutation(len(groups))

    def error(is_held_out: np.ndarray) -> float:
        counts = np.bincount(classes[is_held_out], minlength=3)
        return float(((counts - ideal) ** 2 / ideal).sum())

    parts = []
    errors = []
    plain_errors = []
    for seed in range(8):
        held_out = HeldOut(0.1, seed)
        part = held_out.balanced(groups, classes)
        assert set(np.array(groups)[part]).isdisjoint(np.array(groups)[~part])
        again = held_out.balanced([groups[i] for i in order], classes[order])
        assert (again == part[order]).all()
        parts.append(part)
        errors.append(error(part))
        # a group counted as one of a single class
        plain_errors.append(error(held_out.stratified(groups, classes)))
    assert (parts[0] != parts[1]).any()
    assert np.mean(errors) < 1 < 3 * np.mean(errors) < np.mean(plain_errors)


def test_folds_of_groups_have_the_shares_of_a_stratified_group_k_fold() -> None:
    """Rows of a class are spread as evenly as scikit-learn spreads them."""
    groups, classes = patients(200)
    parts = [Fold(5, 3, number).balanced(groups, classes) for number in range(5)]
    assert (np.sum(parts, axis=0) == 1).all()
    counts = np.array([np.bincount(classes[part], minlength=3) for part in parts])
    for part in parts:
        assert set(np.array(groups)[part]).isdisjoint(np.array(groups)[~part])
    theirs = []
    model_selection = pytest.importorskip("sklearn.model_selection")
    splitter = model_selection.StratifiedGroupKFold(5, shuffle=True, random_state=0)
    for _, rows_of_fold in splitter.split(classes, classes, groups):
        theirs.append(np.bincount(classes[rows_of_fold], minlength=3))
    assert (np.ptp(counts, axis=0) <= np.ptp(theirs, axis=0)).all()
