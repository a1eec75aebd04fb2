"""Windows, max-context and answer positions against the released code's rules, written out plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.examples import window_ranges
from clozelab.datamodules.squad_reading import (
    SquadExamples,
    SquadFeatures,
    SquadQuestion,
    WindowSettings,
    answer_tokens,
    build_features,
    max_context_flags,
)


def released_max_context(ranges: list[tuple[int, int]], window: int, position: int) -> bool:
    """`_check_is_max_context` of the released run_squad."""
    best_score, best_index = None, None
    for index, (start, length) in enumerate(ranges):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_index = score, index
    return window == best_index


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 8, 9, 13, 30])
@pytest.mark.parametrize("stride", [1, 3, 8, 20])
def test_windows_cover_and_max_context_is_the_released_rule(num_tokens: int, stride: int) -> None:
    ranges = window_ranges(num_tokens, 8, stride)
    assert {token for start, length in ranges for token in range(start, start + length)} == set(range(num_tokens))
    for window, flags in enumerate(max_context_flags(ranges, num_tokens)):
        start, length = ranges[window]
        expected = [released_max_context(ranges, window, start + i) for i in range(length)]
        assert flags.tolist() == expected


@pytest.mark.parametrize(
    ("characters", "expected"),
    [((0, 3), (0, 0)), ((4, 7), (1, 1)), ((1, 6), (0, 1)), ((3, 4), (-1, -1)), ((8, 9), (2, 2)), ((-1, 4), (-1, -1))],
)
def test_answer_tokens(characters: tuple[int, int], expected: tuple[int, int]) -> None:
    spans = np.array([[0, 3], [4, 7], [7, 12]])
    assert answer_tokens(spans, *characters) == expected


def features_of(tokenizer: WordPieceTokenizer, passage: str, answer: str, **settings: int) -> tuple[Any, Any]:
    start = passage.find(answer)
    examples = SquadExamples([passage], [SquadQuestion("q", "who ran?", 0, (answer,), start)])
    lengths = {"max_seq_length": 14, "doc_stride": 3, "max_query_length": 4} | settings
    return build_features(examples, tokenizer, WindowSettings(**lengths))


def test_every_window_that_holds_the_answer_points_at_it(tokenizer: WordPieceTokenizer) -> None:
    passage = "The red  cat sat on the mat, the Blue dog ran on a hill."
    features, counts = features_of(tokenizer, passage, "Blue dog")
    spans = features.passage_spans
    found = 0
    for window in range(len(features.question)):
        row = features.rows.input_ids[features.rows.offsets[window] : features.rows.offsets[window + 1]]
        assert len(row) <= 14
        assert row[features.passage_starts[window] - 1] == tokenizer.sep_id == row[-1]
        first, last = features.start_positions[window], features.end_positions[window]
        if last:
            found += 1
            shift = features.window_starts[window] - features.passage_starts[window]
            assert passage[spans[first + shift, 0] : spans[last + shift, 1]] == "Blue dog"
    assert 0 < found < len(features.question) == counts["windows"]
    assert counts["windows_without_answer"] == counts["windows"] - found


def test_question_is_cut_and_a_short_passage_has_one_window(tokenizer: WordPieceTokenizer) -> None:
    features, counts = features_of(tokenizer, "a cat", "cat", max_query_length=2)
    tokens = [tokenizer.vocabulary[i] for i in features.rows.input_ids]
    assert " ".join(tokens) == "[CLS] who ran [SEP] a cat [SEP]"
    assert features.rows.gather(np.array([0]))["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert features.max_context.tolist() == [False] * 4 + [True, True, False]
    assert counts["windows"] == counts["questions_cut"] == 1


def test_passage_without_tokens_has_no_window(tokenizer: WordPieceTokenizer) -> None:
    features, counts = features_of(tokenizer, "  ", "x")
    assert (len(features.question), counts["question_of_empty_passage"]) == (0, 1)


def test_arrays_round_trip(tokenizer: WordPieceTokenizer) -> None:
    features, _ = features_of(tokenizer, "the cat sat on the mat " * 3, "mat")
    again = SquadFeatures.from_arrays(features.to_arrays())
    for name, array in features.to_arrays().items():
        assert np.array_equal(array, again.to_arrays()[name]), name


def test_settings_that_leave_no_room() -> None:
    with pytest.raises(ValueError, match=r"must be at least max_query_length=64 \+ 4"):
        WindowSettings(max_seq_length=64, doc_stride=16, max_query_length=64)


@pytest.mark.parametrize("length", [8, 9, 16, 33, 64, 67, 128, 256, 384, 512])
def test_settings_follow_the_length_of_rows(length: int) -> None:
    fitted = WindowSettings.fitted(length, 128, 64)
    assert fitted.max_seq_length == length
    assert length - fitted.max_query_length - 3 >= length / 2  # the passage has half of the row, at least
    assert 1 <= fitted.doc_stride <= length / 2
    if length >= 256:
        assert (fitted.doc_stride, fitted.max_query_length) == (128, 64)  # the released settings, where there is room


def test_rows_too_short_for_any_question() -> None:
    with pytest.raises(ValueError, match=r"rows of 7 tokens are too short.*trained on longer rows"):
        WindowSettings.fitted(7, 128, 64)
