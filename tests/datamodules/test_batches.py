"""What meets in a batch: rows, buckets, prefetching, and byte-level BPE's inputs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.corpus.test_tokenizers import ours as ours
from tests.corpus.test_tokenizers import theirs as theirs

from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer
from clozelab.models.layout import Layout
from clozelab.readers.conll import TaggedSentences
from clozelab.readers.squad import SquadExamples, SquadQuestion
from clozelab.tasks.passages import WindowSettings, build_features
from clozelab.tasks.sequences import (
    TokenSequences,
    bucketed_batches,
    concatenate,
    encode_examples,
    encode_windows,
    longest_first,
    token_budget_batches,
)
from clozelab.tasks.words import build_sequences
from clozelab.training.runtime import DEPTH, Prefetched, batch_loader, pinned


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
    rows = encode_examples(
        tokenizer, ["the cat", "dog"], ["sat on the mat", "ran"], max_seq_length=8
    )
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
    batch = TokenSequences(flat, offsets, starts).gather(index)
    assert batch["input_ids"].tolist() == [*chain.from_iterable(pieces[i] for i in index)]
    positions = [range(len(pieces[i])) for i in index]
    assert batch["position_ids"].tolist() == [*chain.from_iterable(positions)]
    token_types = []
    for i in index:
        token_types += [int(position >= starts[i]) for position in range(len(pieces[i]))]
    assert batch["token_type_ids"].tolist() == token_types
    assert batch["lengths"].tolist() == [len(pieces[i]) for i in index]


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_hold_the_whole_text(tokenizer: WordPieceTokenizer, stride: int) -> None:
    texts = ["the cat sat on the mat the dog ran", "", "dog", "the dog ran"]
    rows, offsets = encode_windows(tokenizer, texts, max_seq_length=5, stride=stride)
    assert offsets.tolist() == [0, 1 + -(-6 // stride), *(offsets[1] + np.array([1, 2, 3]))]
    assert rows.lengths.max() == 5 and rows.lengths[offsets[1]] == 2
    assert rows.cut_tokens is not None and not rows.cut_tokens.any()
    windows = [rows.input_ids[a:b] for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)][
        : offsets[1]
    ]
    assert all(w[0] == tokenizer.cls_id and w[-1] == tokenizer.sep_id for w in windows)
    ids = tokenizer.encode_batch(texts[:1])[0]
    for number, window in enumerate(windows):
        assert window[1:-1].tolist() == ids[number * stride :][:3].tolist()
    assert windows[-1][-2] == ids[-1]


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
    # short ones do not come first
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.25


@pytest.mark.parametrize("budget", [1, 150, 10**6])
def test_token_budget(budget: int) -> None:
    batches = token_budget_batches(LENGTHS, budget)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(LENGTHS)))
    assert all(LENGTHS[batch].sum() <= budget or len(batch) == 1 for batch in batches)
    assert token_budget_batches(LENGTHS[:0], budget) == []


def test_order_and_preparation():
    assert list(Prefetched(range(20), lambda n: n * n)) == [n * n for n in range(20)]


def test_it_runs_ahead_but_not_away():
    made = []

    def batches():
        for number in range(100):
            made.append(number)
            yield number

    reader = iter(Prefetched(batches(), lambda n: n))
    assert next(reader) == 0
    deadline = time.monotonic() + 20
    while len(made) < 1 + DEPTH and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert 1 + DEPTH <= len(made) <= 2 + DEPTH
    reader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


class Pinnable:
    def pin_memory(self):
        return "pinned"


def test_every_tensor_of_a_step_is_pinned_and_plain_values_stay():
    step = [
        {"input_ids": Pinnable(), "num_predictions": 3, "source_names": ("a",)},
        {"layout": Pinnable()},
    ]
    assert pinned(step) == [
        {"input_ids": "pinned", "num_predictions": 3, "source_names": ("a",)},
        {"layout": "pinned"},
    ]
    assert hasattr(torch.zeros(1), "pin_memory") and hasattr(Layout.ragged([1]), "pin_memory")


def test_only_a_gpu_has_it():
    for kind, prefetched in (("cpu", False), ("cuda", True), ("xla", False)):
        trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=SimpleNamespace(type=kind)))
        assert isinstance(batch_loader([1, 2], 0, trainer), Prefetched) is prefetched
    assert list(batch_loader([1, 2])) == [1, 2]


# Byte-level BPE, against transformers

FIRST = ["The cat sat on the  mat.", "Naïve café \U0001f600", "", "a b c d e f g h i j k l m"]
SECOND = [
    "A dog?",
    "It's a dog's life, isn't it, all of it and more?",
    "x",
    "one two three four five",
]
PASSAGE = (
    "The café's cat \U0001f600  sat on 3.5 mats. A dog, naïve as it was, ran. The end of it all"
    " came soon after."
)


def rows_of(rows: TokenSequences) -> list[list[int]]:
    return [part.tolist() for part in np.split(rows.input_ids, rows.offsets[1:-1])]


@pytest.mark.parametrize("length", [12, 64])
def test_pairs(ours: ByteBpeTokenizer, theirs: Any, length: int) -> None:
    """The longer text is cut first; token types are all 0."""
    rows = encode_examples(ours, FIRST, SECOND, max_seq_length=length)
    for found, *pair in zip(rows_of(rows), FIRST, SECOND, strict=True):
        assert found == theirs(*pair, truncation="longest_first", max_length=length)["input_ids"]
    assert not rows.gather(np.arange(len(rows)))["token_type_ids"].any()


def test_single_texts(ours: ByteBpeTokenizer, theirs: Any) -> None:
    rows = encode_examples(ours, FIRST, None, max_seq_length=16)
    assert rows_of(rows) == [
        theirs(text, truncation=True, max_length=16)["input_ids"] for text in FIRST
    ]


@pytest.mark.parametrize(
    "answer", ["café", "\U0001f600", "cat \U0001f600  sat", "3.5 mats", "naïve as it was"]
)
def test_windows_of_a_passage_and_its_answer(
    ours: ByteBpeTokenizer, theirs: Any, answer: str
) -> None:
    query, settings = (
        "Who sat?",
        WindowSettings(max_seq_length=40, doc_stride=9, max_query_length=20),
    )
    start = PASSAGE.index(answer)
    question = SquadQuestion("q", query, 0, (answer,), start)
    features, _ = build_features(SquadExamples([PASSAGE], [question]), ours, settings)
    room = 40 - len(ours.encode_batch([query])[0]) - 4
    expected = theirs(
        query,
        PASSAGE,
        truncation="only_second",
        max_length=40,
        stride=room - 9,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert rows_of(features.sequences) == expected["input_ids"]
    assert not features.sequences.gather(np.arange(len(features.sequences)))["token_type_ids"].any()
    spans, shift = features.passage_spans, features.window_starts - features.passage_starts
    seen = 0
    for window, pairs in enumerate(expected["offset_mapping"]):
        first, last = features.start_positions[window], features.end_positions[window]
        begin, end = features.passage_starts[window], len(pairs) - 1
        here = [list(pair) for pair in pairs[begin:end]]
        assert spans[begin + shift[window] : end + shift[window]].tolist() == here
        if first:
            seen += 1
            assert PASSAGE[pairs[first][0] : pairs[last][1]] == answer
    assert seen


def test_tags_stand_on_the_first_piece_of_a_word(ours: ByteBpeTokenizer, theirs: Any) -> None:
    words = [["The", "naïve", "dog", "'s", "café", ",", "\U0001f600"], ["It", "ran"]]
    sentences = TaggedSentences(words, [["O"] * len(line) for line in words], [0, 1], [1, 9])
    arrays, _ = build_sequences(sentences, [0, 1], ours, 64, False)
    rows = [part.tolist() for part in np.split(arrays["input_ids"], arrays["offsets"][1:-1])]
    places = [
        part.tolist() for part in np.split(arrays["word_positions"], arrays["word_offsets"][1:-1])
    ]
    assert [ours.decode(row[1:-1]) for row in rows] == [f" {' '.join(line)}" for line in words]
    if ours.add_prefix_space:  # transformers refuses words otherwise
        for line, row, place in zip(words, rows, places, strict=True):
            expected = theirs(line, is_split_into_words=True)
            assert row == expected["input_ids"]
            assert place == [expected.word_ids().index(word) for word in range(len(line))]


# What is refused


def test_no_room_for_text(tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(ValueError, match="max_seq_length=4 leaves no room"):
        encode_examples(tokenizer, ["a"], ["b"], max_seq_length=4)


def test_a_stride_that_leaves_words_out(tokenizer: WordPieceTokenizer) -> None:
    sentence = "window_stride=4 tokens: sequences of 5 hold 3 beside the special tokens"
    with pytest.raises(ValueError, match=sentence):
        encode_windows(tokenizer, ["the cat"], max_seq_length=5, stride=4)


def test_an_error_reaches_the_reader_after_the_batches_before_it() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise ValueError("row 2 is bad")

    read = iter(Prefetched(batches(), lambda number: number))
    assert next(read) == 1
    with pytest.raises(ValueError, match="row 2 is bad"):
        next(read)
