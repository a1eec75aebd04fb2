"""Instances as one stream, and masking: exact numbers, uniform positions, 80/10/10."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.packing import Masking, PackedInstances, SpecialIds, choose_positions
from clozelab.corpus.random import Draws

PAPER = Masking(0.15, 0.8, 0.1, 0.1)
TOKEN = 1000


def rectangle(lengths: list[int], width: int, ids: SpecialIds) -> PackedInstances:
    """[CLS] text [SEP] [PAD]... of ordinary tokens."""
    slot = np.arange(width)
    length = np.array(lengths)[:, None]
    input_ids = np.where(slot < length, TOKEN + slot, ids.pad)
    input_ids[:, 0] = ids.cls
    input_ids[np.arange(len(lengths)), length[:, 0] - 1] = ids.sep
    return PackedInstances(
        input_ids=input_ids.reshape(-1),
        token_type_ids=np.zeros(input_ids.size, dtype=np.int64),
        lengths=length[:, 0],
        width=width,
        ids=ids,
        draws=Draws(1, 0, np.arange(len(lengths))),
        special=(input_ids < TOKEN).reshape(-1),
    )


def drawn(rows: PackedInstances, seed: int, epoch: int | np.ndarray) -> PackedInstances:
    return replace(rows, draws=Draws(seed, epoch, rows.draws.names))


def chosen(rows: PackedInstances, prob: float, seed: int, epoch: int) -> np.ndarray:
    masking, candidates = (
        Masking(prob, 0.8, 0.1, 0.1),
        (~rows.special).reshape(-1, rows.width).sum(1),
    )
    number = masking.number(rows.lengths, candidates, rows.width)
    return choose_positions(drawn(rows, seed, epoch), number)


def test_exact_number_a_row(ids: SpecialIds) -> None:
    lengths = [3, 4, 5, 8, 12, 20, 33, 64]
    rows = rectangle(lengths, 64, ids)
    for prob in (0.05, 0.15, 0.5, 1.0):
        position = chosen(rows, prob, 1, 0)
        counts = np.bincount(position // 64, minlength=len(lengths))
        assert counts.tolist() == [max(1, round(prob * (length - 2))) for length in lengths]
        assert (np.diff(position) > 0).all() and not rows.special[position].any()


def test_slots_that_agree_in_half_of_their_bits(
    ids: SpecialIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other half decides: the smallest three of 8 7 6 ... are the last ones of the text."""
    rows = rectangle([10, 10], 12, ids)
    falling = (np.uint64(7) << np.uint64(32)) + (np.arange(12, 0, -1, dtype=np.uint64) << 16)
    both = np.stack([falling, falling << np.uint64(1)])
    monkeypatch.setattr(Draws, "bits", lambda *args, **kwargs: both.copy())
    upper = (both >> np.uint64(33)).astype(np.uint32)
    monkeypatch.setattr(Draws, "upper_bits", lambda *args: upper)
    assert choose_positions(rows, np.array([3, 2])).tolist() == [6, 7, 8, 19, 20]


def test_rows_without_candidates_have_no_predictions(ids: SpecialIds) -> None:
    rows = rectangle([2, 10], 16, ids)
    assert (chosen(rows, 0.15, 1, 0) // 16).tolist() == [1]


def test_only_predicted_positions_change_and_labels_are_the_originals(ids: SpecialIds) -> None:
    rows = rectangle([40, 64, 9], 64, ids)
    before = rows.input_ids.copy()
    input_ids, position, labels = PAPER.apply(drawn(rows, 5, 2))
    assert (rows.input_ids == before).all()
    assert (labels == before[position]).all()
    untouched = np.ones(len(before), dtype=bool)
    untouched[position] = False
    assert (input_ids[untouched] == before[untouched]).all()
    assert all(values.dtype == np.int64 for values in (input_ids, position, labels))


def test_positions_are_uniform_and_independent_of_the_slot(ids: SpecialIds) -> None:
    rows = rectangle([42] * 500, 48, ids)
    hits = np.zeros(48)
    for epoch in range(20):
        hits += np.bincount(chosen(rows, 0.15, 3, epoch) % 48, minlength=48)
    assert hits[0] == 0 and not hits[41:].any()
    expected = 10_000 * 6 / 40
    # Chi-square, about 39 degrees of freedom, p = 1e-4 (without replacement it is slightly
    # smaller).
    assert ((hits[1:41] - expected) ** 2 / expected).sum() < 80


def test_eighty_ten_ten(ids: SpecialIds) -> None:
    rows = rectangle([128] * 2000, 128, ids)
    input_ids, position, labels = PAPER.apply(rows)
    seen = input_ids[position]
    total = len(position)
    sigma = 4 * np.sqrt(0.8 * 0.2 / total)
    assert abs((seen == ids.mask).mean() - 0.8) < sigma
    same = seen == labels
    assert abs(same.mean() - (0.1 + 0.1 / ids.vocab_size)) < sigma
    drawn = seen[(seen != ids.mask) & ~same]
    assert abs(len(drawn) / total - 0.1) < sigma
    # The whole vocabulary list, special tokens included.
    tenths = np.bincount(drawn * 10 // ids.vocab_size, minlength=10)
    assert ((tenths - len(drawn) / 10) ** 2 / (len(drawn) / 10)).sum() < 33.7
    assert drawn.min() < 10 and drawn.max() > ids.vocab_size - 10
    # Per position, not a fixed share of each row.
    per_row = np.bincount((position // 128)[seen == ids.mask], minlength=2000)
    assert per_row.std() > 1.3


@pytest.mark.parametrize(
    "fractions", [(1, 0, 0), (0, 0, 1), (0, 1, 0), (0.8, 0, 0.2), (0.8, 0.2, 0)]
)
def test_table_8_arms(ids: SpecialIds, fractions: tuple[float, float, float]) -> None:
    rows = rectangle([64] * 400, 64, ids)
    input_ids, position, labels = Masking(0.15, *fractions).apply(rows)
    seen = input_ids[position]
    masked, same = (seen == ids.mask).mean(), (seen == labels).mean()
    assert abs(masked - fractions[0]) < 0.03 and abs(same - fractions[2]) < 0.03
    if fractions[1] == 0:
        assert ((seen == ids.mask) | (seen == labels)).all()
    if fractions[0] == 1:
        assert (seen == ids.mask).all()
    if fractions[2] == 1:
        assert (seen == labels).all()


def test_pure_function_of_seed_epoch_and_name(ids: SpecialIds) -> None:
    rows = rectangle([30, 50, 64], 64, ids)
    one = PAPER.apply(drawn(rows, 1, np.array([0, 1, 0])))
    again = PAPER.apply(rows)
    assert (one[0].reshape(3, 64)[[0, 2]] == again[0].reshape(3, 64)[[0, 2]]).all()
    assert (one[0].reshape(3, 64)[1] != again[0].reshape(3, 64)[1]).any()
    assert (PAPER.apply(drawn(rows, 2, 0))[0] != again[0]).any()


@pytest.mark.parametrize(
    "shares", [(0.15, 0.8, 0.1, 0.2), (0.15, 1.2, -0.1, -0.1), (0, 0.8, 0.1, 0.1), (1.5, 1, 0, 0)]
)
def test_shares_that_cannot_be(shares: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"sum to 1|predict_prob"):
        Masking(*shares)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_predictions_fraction", 0.0),
        ("span_weights", ()),
        ("span_weights", 3),
        ("span_weights", (0.0,)),
        ("span_weights", (1.0, -1.0)),
    ],
)
def test_settings_of_masking_that_cannot_be(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        Masking(0.15, 0.8, 0.1, 0.1, **{key: value})
