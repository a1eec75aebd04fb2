"""Span extraction: n-best answers on the original characters, and learning the spans."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.parts import span_extraction
from torch.nn import functional as F

from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer
from clozelab.metrics.squad import score_v1
from clozelab.readers.squad import SquadExamples, SquadQuestion, read_squad
from clozelab.tasks.batches import make_batch
from clozelab.tasks.passages import SquadFeatures, WindowSettings, build_features
from clozelab.tasks.sequences import subset
from clozelab.tasks.spans import (
    NBestSettings,
    SpanTarget,
    predict_answers,
    softmax,
    window_candidates,
)

SENTENCE = "The RED cat sat on the mat, the Blue-green dog ran on a hill."


@pytest.fixture
def asked() -> SquadExamples:
    return SquadExamples(
        [SENTENCE], [SquadQuestion("q", "who ran?", 0, ("dog",), SENTENCE.find("dog"))]
    )


@pytest.fixture
def windows(asked: SquadExamples, tokenizer: WordPieceTokenizer) -> SquadFeatures:
    return build_features(asked, tokenizer, WindowSettings(14, 3, 4))[0]


def test_a_lone_blank_is_no_text() -> None:
    """Byte-level BPE has a token for it, whose characters are none; it stood in for "no answer"."""
    tokenizer = ByteBpeTokenizer.train(["red cat"], 270, False, False)
    given = SquadExamples(["red  cat"], [SquadQuestion("q", "who", 0, (), -1)])
    features, _ = build_features(given, tokenizer, WindowSettings.fitted(32, 8, 8))
    blanks = np.flatnonzero(features.passage_spans[:, 0] == features.passage_spans[:, 1])
    logits = np.zeros(len(features.sequences.input_ids), dtype=np.float32)
    logits[features.passage_starts[0] + blanks] = 9
    found = predict_answers(
        features, given, logits, logits, NBestSettings(20, 30, with_unanswerable=True)
    )
    assert found.texts["q"].strip() and found.null_odds["q"] == -found.nbest["q"][0].logit
    assert [entry.characters for entry in found.nbest["q"] if not entry.text] == [None]


@pytest.mark.parametrize("passage", ["red  cat", "red \n\ncat  sat"])
def test_blanks_around_an_answer_are_none_of_it(passage: str) -> None:
    """The official score is the same, and the characters are those of the text."""
    tokenizer = ByteBpeTokenizer.train(["red cat sat"], 270, False, False)
    given = SquadExamples([passage], [SquadQuestion("q", "who", 0, ("cat",), passage.find("cat"))])
    features, _ = build_features(given, tokenizer, WindowSettings.fitted(32, 8, 8))
    spans = features.passage_spans
    first = int(np.searchsorted(spans[:, 1], passage.find("cat"), side="right")) - 1
    last = int(np.flatnonzero(spans[:, 1] <= passage.find("cat") + 3)[-1])
    logits = np.zeros((2, len(features.sequences.input_ids)), dtype=np.float32)
    logits[[0, 1], features.passage_starts[0] + np.array([first, last])] = 9
    found = predict_answers(features, given, *logits, NBestSettings(20, 30))
    assert found.texts == {"q": "cat"}
    assert score_v1({"q": ("cat",)}, found.texts)["exact_match"] == 100.0
    for candidate in found.nbest["q"]:
        assert candidate.characters is not None
        assert candidate.text == passage[slice(*candidate.characters)] == candidate.text.strip()


def released_candidates(
    windows: SquadFeatures, window: int, start: Any, end: Any, settings: NBestSettings
) -> set[Any]:
    """The loop of the released write_predictions."""
    low = windows.sequences.offsets[window]
    high = windows.sequences.offsets[window + 1]
    length = high - low
    begin = windows.passage_starts[window]
    best = [
        sorted(range(length), key=lambda i, x=x: -x[low + i])[: settings.n_best_size]
        for x in (start, end)
    ]
    shift = windows.window_starts[window] - begin
    found = set()
    for first in best[0]:
        for last in best[1]:
            inside = begin <= first < length - 1 and begin <= last < length - 1
            if not inside or not windows.max_context[low + first]:
                continue
            if last < first or last - first + 1 > settings.max_answer_length:
                continue
            found.add((first + shift, last + shift))
    return found


def test_candidates_equal_the_released_loop(windows: SquadFeatures) -> None:
    rng = np.random.default_rng(3)
    assert len(windows.question) > 2
    for _ in range(50):
        start, end = rng.normal(size=(2, len(windows.sequences.input_ids))).astype(np.float32)
        settings = NBestSettings(int(rng.integers(1, 8)), int(rng.integers(1, 6)))
        for window in range(len(windows.question)):
            found = window_candidates(windows, window, start, end, settings)
            assert {(int(a), int(b)) for a, b in found[:, 2:]} == released_candidates(
                windows, window, start, end, settings
            )


def test_text_is_cut_from_the_original_characters(
    asked: SquadExamples, windows: SquadFeatures
) -> None:
    start, end = np.zeros((2, len(windows.sequences.input_ids)), dtype=np.float32)
    # "Blue-green" is three tokens; lower case and spaces must not come back from them.
    for window in range(len(windows.question)):
        low = windows.sequences.offsets[window]
        begin = windows.passage_starts[window]
        spans = windows.passage_spans[windows.window_starts[window] :]
        for place in range(begin, windows.sequences.lengths[window] - 1):
            if spans[place - begin, 0] == SENTENCE.find("Blue"):
                start[low + place] = 9
            if spans[place - begin, 1] == SENTENCE.find("green") + 5:
                end[low + place] = 9
    answers = predict_answers(windows, asked, start, end, NBestSettings(20, 4))
    predictions = answers.texts
    nbest = answers.nbest
    assert not answers.null_odds
    assert predictions == {"q": "Blue-green"}
    assert 5 < len(nbest["q"]) <= 20
    assert len(nbest["q"]) == len({entry.text for entry in nbest["q"]})
    assert sum(softmax([entry.logit for entry in nbest["q"]])) == pytest.approx(1.0)
    assert nbest["q"][0].start_logit == 9


@pytest.mark.parametrize("with_unanswerable", [False, True])
def test_a_question_without_candidates_has_no_answer(
    tokenizer: WordPieceTokenizer, with_unanswerable: bool
) -> None:
    asked = SquadExamples([" "], [SquadQuestion("q", "who?", 0, (), -1)])
    windows, _ = build_features(asked, tokenizer, WindowSettings(14, 3, 4))
    nothing = np.zeros(0, dtype=np.float32)
    settings = NBestSettings(20, 30, with_unanswerable)
    answers = predict_answers(windows, asked, nothing, nothing, settings)
    assert answers.texts == {"q": "empty"}
    if with_unanswerable:
        assert answers.null_odds["q"] > 1e5


def test_null_score_is_the_minimum_over_windows(
    asked: SquadExamples, windows: SquadFeatures
) -> None:
    """And null odds, n-best and probabilities are those of the released write_predictions."""
    rng = np.random.default_rng(4)
    settings = NBestSettings(5, 4, with_unanswerable=True)
    for _ in range(20):
        start, end = rng.normal(size=(2, len(windows.sequences.input_ids))).astype(np.float32)
        answers = predict_answers(windows, asked, start, end, settings)
        cls = windows.sequences.offsets[:-1]
        null = min(float(start[row]) + float(end[row]) for row in cls)
        plain = predict_answers(windows, asked, start, end, NBestSettings(5, 4))
        first = plain.nbest["q"][0]
        assert answers.texts == plain.texts
        assert answers.null_odds["q"] == pytest.approx(null - first.logit, abs=1e-5)
        nbest = answers.nbest["q"]
        texts = [entry.text for entry in nbest if entry.text]
        assert texts == [entry.text for entry in plain.nbest["q"]]
        (nothing,) = [entry for entry in nbest if not entry.text]
        assert nothing.logit == pytest.approx(null, abs=1e-5)
        assert nbest == sorted(nbest, key=lambda entry: -entry.logit)


@pytest.mark.shared
def test_gold_spans_of_real_data_score_nearly_everything(shared_dir: Path) -> None:
    """Windows, offsets and n-best in one: logits that point at the answer give its text back."""
    tokenizer = WordPieceTokenizer.from_vocab(
        shared_dir / "data/vocab/bert-base-uncased-vocab.txt", lowercase=True
    )
    path = shared_dir / "data/squad/dev-v1.1.json"
    settings = WindowSettings(384, 128, 64)
    asked = read_squad(path, for_training=False)
    asked = asked.select(subset(len(asked), 1500))
    windows, _ = build_features(asked, tokenizer, settings)
    start, end = np.full((2, len(windows.sequences.input_ids)), -10, dtype=np.float32)
    has_answer = windows.end_positions > 0
    offsets = windows.sequences.offsets[:-1]
    start[(offsets + windows.start_positions)[has_answer]] = 10
    end[(offsets + windows.end_positions)[has_answer]] = 10
    predictions = predict_answers(windows, asked, start, end, NBestSettings(20, 1000)).texts
    scores = score_v1({q.id: q.answers for q in asked.questions}, predictions)
    assert scores["exact_match"] > 99.5


def test_loss_is_each_windows_own_softmax(windows: SquadFeatures, tiny_module: Any) -> None:
    nothing = SimpleNamespace(extra={})
    rules = {"n_best_size": 20, "max_answer_length": 30, "with_unanswerable": False}
    module = tiny_module(span_extraction, validation=nothing, metric="validation/f1", **rules)
    targets = {
        "start_positions": windows.start_positions.astype(np.int64),
        "end_positions": windows.end_positions.astype(np.int64) + 1,
    }
    batch = make_batch(windows.sequences, np.array([1, 0, 2]), targets)
    logits = torch.randn(batch["layout"].num_tokens, 2)
    expected = 0.0
    start = 0
    for row, length in enumerate(batch["layout"].lengths_list):
        own = logits[start : start + length]
        for side, name in enumerate(("start_positions", "end_positions")):
            expected += F.cross_entropy(own[:, side], batch[name][row]) / 2
        start += length
    torch.testing.assert_close(module.loss(logits, batch), torch.as_tensor(expected))


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("f1", 25.0),
        ("exact_untuned", 25.0),
        ("best_f1", 25.0),
        ("HasAns_f1", 0.0),
        ("NoAns_exact", 100.0),
        ("pr_f1_ap", None),
    ],
)
def test_no_answer_everywhere_is_scored_by_the_metric(metric: str, score: float | None) -> None:
    questions = []
    for number in range(4):
        answers = ["cat"] if number else []
        questions.append(SimpleNamespace(id=str(number), answers=answers))
    split: Any = SimpleNamespace(examples=SimpleNamespace(questions=questions))
    target = SpanTarget(n_best_size=20, max_answer_length=30, with_unanswerable=True)
    assert target.majority_score(metric, split) == score
