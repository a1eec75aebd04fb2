"""Token rows: assembling, cutting and gathering, against the plain way of doing each."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.examples import TokenRows, concatenate, encode_examples, encode_windows, longest_first


def released_truncation(first: int, second: int, budget: int) -> tuple[int, int]:
    """`_truncate_seq_pair` of the released run_classifier."""
    while first + second > budget:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_longest_first_equals_the_released_loop() -> None:
    for first in range(14):
        for second in range(14):
            for budget in range(2, 14):
                expected = released_truncation(first, second, budget)
                assert longest_first(first, second, budget) == expected, (first, second, budget)


def test_pair_rows(tokenizer: WordPieceTokenizer) -> None:
    rows = encode_examples(tokenizer, ["the cat", "dog"], ["sat on the mat", "ran"], max_seq_length=8)
    tokens = [tokenizer.vocabulary[i] for i in rows.input_ids]
    assert " ".join(tokens) == "[CLS] the cat [SEP] sat on the [SEP] [CLS] dog [SEP] ran [SEP]"
    assert rows.lengths.tolist() == [8, 5]
    assert rows.second_starts.tolist() == [4, 3]


def test_single_rows_have_one_token_type(tokenizer: WordPieceTokenizer) -> None:
    rows = encode_examples(tokenizer, ["the cat sat", ""], None, max_seq_length=4)
    assert rows.lengths.tolist() == [4, 2]
    assert rows.gather(np.array([0, 1]))["token_type_ids"].tolist() == [0] * 6


def test_gather_equals_one_by_one() -> None:
    rng = np.random.default_rng(0)
    pieces = [rng.integers(0, 99, rng.integers(1, 9)).astype(np.int32) for _ in range(20)]
    flat, offsets = concatenate(pieces)
    starts = np.array([rng.integers(0, len(piece) + 1) for piece in pieces], dtype=np.int32)
    index = rng.permutation(20)[:7]
    batch = TokenRows(flat, offsets, starts).gather(index)
    assert batch["input_ids"].tolist() == [token for i in index for token in pieces[i]]
    assert batch["position_ids"].tolist() == [place for i in index for place in range(len(pieces[i]))]
    assert batch["token_type_ids"].tolist() == [int(p >= starts[i]) for i in index for p in range(len(pieces[i]))]
    assert batch["lengths"].tolist() == [len(pieces[i]) for i in index]


def test_no_room_for_text(tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(ValueError, match="max_seq_length=4 leaves no room"):
        encode_examples(tokenizer, ["a"], ["b"], max_seq_length=4)


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_hold_the_whole_text(tokenizer: WordPieceTokenizer, stride: int) -> None:
    texts = ["the cat sat on the mat the dog ran", "", "dog", "the dog ran"]
    rows, offsets = encode_windows(tokenizer, texts, max_seq_length=5, stride=stride)
    assert offsets.tolist() == [0, 1 + -(-6 // stride), *(offsets[1] + np.array([1, 2, 3]))]
    assert rows.lengths.max() == 5 and rows.lengths[offsets[1]] == 2
    assert rows.cut_tokens is not None and not rows.cut_tokens.any()
    windows = [rows.input_ids[a:b] for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)][: offsets[1]]
    assert all(w[0] == tokenizer.cls_id and w[-1] == tokenizer.sep_id for w in windows)
    ids = tokenizer.encode_batch(texts[:1])[0]
    for number, window in enumerate(windows):
        assert window[1:-1].tolist() == ids[number * stride :][:3].tolist()
    assert windows[-1][-2] == ids[-1]
    with pytest.raises(ValueError, match="window_stride=4 tokens: rows of 5 hold 3 beside the special tokens"):
        encode_windows(tokenizer, texts, max_seq_length=5, stride=4)
