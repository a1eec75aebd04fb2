"""n-best answers: each rule that drops a candidate, original characters, and the gold spans of real data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.examples import subset
from clozelab.datamodules.squad_reading import (
    SquadExamples,
    SquadFeatures,
    SquadQuestion,
    WindowSettings,
    build_features,
    read_squad,
)
from clozelab.metrics.squad import score_v1
from clozelab.modules.spans import NBestSettings, predict_answers, window_candidates

PASSAGE = "The RED cat sat on the mat, the Blue-green dog ran on a hill."


@pytest.fixture
def examples() -> SquadExamples:
    return SquadExamples([PASSAGE], [SquadQuestion("q", "who ran?", 0, ("dog",), PASSAGE.find("dog"))])


@pytest.fixture
def features(examples: SquadExamples, tokenizer: WordPieceTokenizer) -> SquadFeatures:
    return build_features(examples, tokenizer, WindowSettings(14, 3, 4))[0]


def released_candidates(
    features: SquadFeatures, window: int, start: Any, end: Any, settings: NBestSettings
) -> set[Any]:
    """The loop of the released write_predictions."""
    low, high = features.rows.offsets[window], features.rows.offsets[window + 1]
    length, begin = high - low, features.passage_starts[window]
    best = [sorted(range(length), key=lambda i, x=x: -x[low + i])[: settings.n_best_size] for x in (start, end)]
    shift = features.window_starts[window] - begin
    found = set()
    for first in best[0]:
        for last in best[1]:
            inside = begin <= first < length - 1 and begin <= last < length - 1
            if not inside or not features.max_context[low + first]:
                continue
            if last < first or last - first + 1 > settings.max_answer_length:
                continue
            found.add((first + shift, last + shift))
    return found


def test_candidates_equal_the_released_loop(features: SquadFeatures) -> None:
    rng = np.random.default_rng(3)
    assert len(features.question) > 2
    for _ in range(50):
        start, end = rng.normal(size=(2, len(features.rows.input_ids))).astype(np.float32)
        settings = NBestSettings(int(rng.integers(1, 8)), int(rng.integers(1, 6)))
        for window in range(len(features.question)):
            found = window_candidates(features, window, start, end, settings)
            assert {(int(a), int(b)) for a, b in found[:, 2:]} == released_candidates(
                features, window, start, end, settings
            )


def test_text_is_cut_from_the_original_characters(examples: SquadExamples, features: SquadFeatures) -> None:
    start, end = np.zeros((2, len(features.rows.input_ids)), dtype=np.float32)
    # "Blue-green" is three tokens; lower case and spaces must not come back from them.
    for window in range(len(features.question)):
        low, begin = features.rows.offsets[window], features.passage_starts[window]
        spans = features.passage_spans[features.window_starts[window] :]
        for place in range(begin, features.rows.lengths[window] - 1):
            if spans[place - begin, 0] == PASSAGE.find("Blue"):
                start[low + place] = 9
            if spans[place - begin, 1] == PASSAGE.find("green") + 5:
                end[low + place] = 9
    answers = predict_answers(features, examples, start, end, NBestSettings(20, 4))
    predictions, nbest = answers.texts, answers.nbest
    assert not answers.null_odds
    assert predictions == {"q": "Blue-green"}
    assert 5 < len(nbest["q"]) <= 20
    assert len(nbest["q"]) == len({entry["text"] for entry in nbest["q"]})
    assert sum(entry["probability"] for entry in nbest["q"]) == pytest.approx(1.0)
    assert nbest["q"][0]["start_logit"] == 9


def test_question_without_candidates_answers_empty(tokenizer: WordPieceTokenizer) -> None:
    examples = SquadExamples([" "], [SquadQuestion("q", "who?", 0, ("x",), -1)])
    features, _ = build_features(examples, tokenizer, WindowSettings(14, 3, 4))
    nothing = np.zeros(0, dtype=np.float32)
    assert predict_answers(features, examples, nothing, nothing, NBestSettings(20, 30)).texts == {"q": "empty"}


def test_null_score_is_the_minimum_over_windows(examples: SquadExamples, features: SquadFeatures) -> None:
    """And null odds, n-best and probabilities are those of the released write_predictions."""
    rng = np.random.default_rng(4)
    settings = NBestSettings(5, 4, with_unanswerable=True)
    for _ in range(20):
        start, end = rng.normal(size=(2, len(features.rows.input_ids))).astype(np.float32)
        answers = predict_answers(features, examples, start, end, settings)
        cls = features.rows.offsets[:-1]
        null = min(float(start[row]) + float(end[row]) for row in cls)
        plain = predict_answers(features, examples, start, end, NBestSettings(5, 4))
        first = plain.nbest["q"][0]
        assert answers.texts == plain.texts
        assert answers.null_odds["q"] == pytest.approx(null - first["start_logit"] - first["end_logit"], abs=1e-5)
        nbest = answers.nbest["q"]
        assert [entry["text"] for entry in nbest if entry["text"]] == [entry["text"] for entry in plain.nbest["q"]]
        (nothing,) = [entry for entry in nbest if not entry["text"]]
        assert nothing["start_logit"] + nothing["end_logit"] == pytest.approx(null, abs=1e-5)
        assert sum(entry["probability"] for entry in nbest) == pytest.approx(1.0)
        assert nbest == sorted(nbest, key=lambda entry: -entry["probability"])


def test_empty_passage_is_surely_unanswerable(tokenizer: WordPieceTokenizer) -> None:
    examples = SquadExamples([" "], [SquadQuestion("q", "who?", 0, (), -1)])
    features, _ = build_features(examples, tokenizer, WindowSettings(14, 3, 4))
    nothing = np.zeros(0, dtype=np.float32)
    answers = predict_answers(features, examples, nothing, nothing, NBestSettings(20, 30, True))
    assert answers.null_odds["q"] > 1e5


@pytest.mark.shared
def test_gold_spans_of_real_data_score_nearly_everything(shared_dir: Path) -> None:
    """Windows, offsets and n-best in one: logits that point at the answer give its text back."""
    tokenizer = WordPieceTokenizer.from_vocab(shared_dir / "data/vocab/bert-base-uncased-vocab.txt", lowercase=True)
    path, settings = shared_dir / "data/squad/dev-v1.1.json", WindowSettings(384, 128, 64)
    examples = read_squad(path, for_training=False)
    examples = examples.select(subset(len(examples), 1500))
    features, _ = build_features(examples, tokenizer, settings)
    start, end = np.full((2, len(features.rows.input_ids)), -10, dtype=np.float32)
    has_answer = features.end_positions > 0
    offsets = features.rows.offsets[:-1]
    start[(offsets + features.start_positions)[has_answer]] = 10
    end[(offsets + features.end_positions)[has_answer]] = 10
    predictions = predict_answers(features, examples, start, end, NBestSettings(20, 1000)).texts
    scores = score_v1({q.id: q.answers for q in examples.questions}, predictions)
    assert scores["exact_match"] > 99.5
