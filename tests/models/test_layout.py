"""Tests of clozelab.models.layout."""

from __future__ import annotations

import pickle

import pytest
import torch

from clozelab.models.layout import Layout, from_padded, to_padded


def test_moves_and_pickles():
    visibility = torch.rand(2, 3, 3) < 0.5
    layout = Layout.rectangle([2, 3], 3, visibility=visibility)
    _ = layout.cu_seqlens
    for other in (layout.to("cpu", non_blocking=True), pickle.loads(pickle.dumps(layout))):
        assert other.last_rows.tolist() == [1, 5]
        assert torch.equal(other.visibility, visibility)


def test_slots_after_the_last_sequence_hold_nothing_and_widths_are_rounded():
    layout = Layout.ragged([3, 7, 1, 7, 4])
    extra = 5
    x = torch.randn(layout.num_slots + extra, 2, requires_grad=True)
    groups = layout.padded_groups(2, len(x), width_multiple=4)
    assert [rows.row_slots for _, rows in groups.groups] == [4, 8, 8]
    back = from_padded(to_padded(x, groups), groups)
    assert torch.equal(back[:-extra], x[:-extra])
    assert (back[-extra:] == 0).all()
    back.sum().backward()
    assert (x.grad[:-extra] == 1).all()
    assert (x.grad[-extra:] == 0).all()


def test_a_group_grows_by_sequences_of_its_width_alone():
    layout = Layout.ragged([1, 5, 6, 7, 8, 8, 8, 9, 16, 16])
    widths = lambda **options: [  # noqa: E731
        (rows.row_slots, rows.lengths_list)
        for _, rows in layout.padded_groups(2, width_multiple=8, **options).groups
    ]
    assert widths(largest_group=4) == [(8, [1, 5, 6, 7]), (8, [8, 8, 8]), (16, [9, 16, 16])]
    assert [width for width, _ in widths()] == [8, 8, 8, 16, 16]


@pytest.mark.parametrize(
    ("lengths", "row_slots", "reason"),
    [
        ([3, 0], None, "at least one"),
        ([], None, "at least one sequence"),
        ([9], 8, "does not fit"),
    ],
)
def test_impossible_lengths_are_refused(lengths, row_slots, reason):
    with pytest.raises(ValueError, match=reason):
        if row_slots is None:
            Layout.ragged(lengths)
        else:
            Layout.rectangle(lengths, row_slots=row_slots)
