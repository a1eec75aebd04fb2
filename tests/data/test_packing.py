"""Rows as one stream: the ragged packer (rectangles are tested with the input formats)."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.corpus.packing import SpecialIds, pack_ragged


def test_ragged_stream() -> None:
    rows = pack_ragged([[2, 10, 3], np.array([2, 3], dtype=np.int32)], [[0, 0, 1], [0, 1]], special_ids=[2, 3])
    assert rows.input_ids.tolist() == [2, 10, 3, 2, 3]
    assert rows.token_type_ids.tolist() == [0, 0, 1, 0, 1]
    assert rows.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert rows.lengths.tolist() == rows.slots.tolist() == [3, 2]
    assert rows.row_of_slot.tolist() == [0, 0, 0, 1, 1]
    assert rows.special.tolist() == [True, False, True, True, True]
    assert rows.row_slots is None and rows.instance.tolist() == [0, 1]
    assert rows.input_ids.dtype == rows.token_type_ids.dtype == rows.position_ids.dtype == np.int64


def test_ragged_defaults_and_names() -> None:
    rows = pack_ragged([[5, 6], [7]], instance=[40, 41])
    assert not rows.token_type_ids.any() and not rows.special.any()
    assert rows.instance.tolist() == [40, 41] and rows.instance.dtype == np.uint64


def test_clear_errors() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack_ragged([])
    with pytest.raises(ValueError, match="at least one token"):
        pack_ragged([[1], []])
    with pytest.raises(ValueError, match="token_type_ids"):
        pack_ragged([[1, 2]], [[0]])


def test_special_ids_from_a_tokenizer() -> None:
    class Tokenizer:
        cls_id, sep_id, pad_id, mask_id, vocab_size = 101, 102, 0, 103, 30522
        pair_separators, has_token_types, undrawn_ids = 2, False, (0, 101)

    assert SpecialIds.of(Tokenizer()) == SpecialIds(101, 102, 0, 103, 30522, 2, False, (0, 101))
