"""What packing reads off a tokenizer (the layouts are tested with the input formats)."""

from __future__ import annotations

from clozelab.corpus.packing import SpecialIds


def test_special_ids_from_a_tokenizer() -> None:
    class Tokenizer:
        cls_id, sep_id, pad_id, mask_id, vocab_size = 101, 102, 0, 103, 30522
        pair_separators, has_token_types, undrawn_ids = 2, False, (0, 101)

    assert SpecialIds.of(Tokenizer()) == SpecialIds(101, 102, 0, 103, 30522, 2, False, (0, 101))
