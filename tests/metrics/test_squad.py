"""SQuAD scorers: published predictions give the published figures; rules one by one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from clozelab.metrics import squad

PREDICTIONS = "data/oracles/squad_predictions"


def gold_answers(path: Path) -> dict[str, list[str]]:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    answers = {}
    for article in articles:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                texts = [answer["text"] for answer in question["answers"]]
                answers[question["id"]] = texts
    return answers


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "exact", "f1", "unanswered"),
    [
        ("v1.1_bert_ensemble", 86.2062, 92.1956, 0),
        ("v1.1_logistic_regression", 40.1419, 50.9815, 13),
    ],
)
def test_published_v1_predictions(
    shared_dir: Path, file: str, exact: float, f1: float, unanswered: int
) -> None:
    answers = gold_answers(shared_dir / "data/squad/dev-v1.1.json")
    predictions = json.loads(
        (shared_dir / PREDICTIONS / f"{file}.json").read_text(encoding="utf-8")
    )
    scores = squad.score_v1(answers, predictions)
    assert scores["exact_match"] == pytest.approx(exact, abs=1e-4)
    assert scores["f1"] == pytest.approx(f1, abs=1e-4)
    assert scores["unanswered"] == unanswered


@pytest.mark.shared
def test_published_v2_predictions(shared_dir: Path) -> None:
    answers = gold_answers(shared_dir / "data/squad/dev-v2.0.json")
    predictions = json.loads(
        (shared_dir / PREDICTIONS / "v2.0_bert_single.json").read_text(encoding="utf-8")
    )
    scores = squad.score_v2(answers, predictions)
    expected = {"exact": 78.7417, "f1": 81.7753, "HasAns_exact": 74.1059, "HasAns_f1": 80.1818}
    expected |= {"NoAns_exact": 83.3642, "NoAns_f1": 83.3642}
    assert {key: scores[key] for key in expected} == pytest.approx(expected, abs=1e-4)
    assert (scores["total"], scores["NoAns_total"]) == (11873, 5945)


def test_normalisation() -> None:
    assert squad.normalize_answer("  The  Quick-brown, fox's an den.") == "quickbrown foxs den"
    assert squad.exact_match("a  Café!", "café") == 1.0
    assert squad.normalize_answer("theatre") == "theatre"


def test_f1_counts_repeated_words_once_each() -> None:
    assert squad.f1("red red green", "red green green") == pytest.approx(2 / 3)
    assert squad.f1("", "") == 0.0
    assert squad.f1_or_both_empty("the", "") == 1.0
    assert squad.f1_or_both_empty("", "word") == 0.0


def test_v1_takes_the_best_gold_and_counts_missing_as_wrong() -> None:
    scores = squad.score_v1({"a": ["x y", "z"], "b": ["w"]}, {"a": "z"})
    assert scores == {"exact_match": 50.0, "f1": 50.0, "unanswered": 1.0}


def test_v2_no_answer_threshold_and_best_thresholds() -> None:
    answers = {"has": ["x"], "has_too": ["y"], "none": [], "none_too": []}
    predictions = {"has": "x", "has_too": "wrong", "none": "noise", "none_too": "noise"}
    null_scores = {"has": 0.1, "has_too": 0.9, "none": 0.6, "none_too": 0.7}
    always = squad.score_v2(answers, predictions, null_scores, threshold=1.0)
    assert (always["exact"], always["NoAns_exact"], always["HasAns_exact"]) == (25.0, 0.0, 50.0)
    # Answering "has" only: right there, and right on both without an answer.
    assert (always["best_exact"], always["best_exact_thresh"]) == (75.0, 0.1)
    chosen = squad.score_v2(answers, predictions, null_scores, threshold=0.1)
    assert chosen["exact"] == 75.0


def _random_v2(seed: int) -> tuple[dict[str, list[str]], dict[str, str], dict[str, float]]:
    rng = np.random.default_rng(seed)
    answers = {str(i): ["cat"] if rng.random() < 0.6 else [] for i in range(40)}
    predictions = {key: str(rng.choice(["cat", "dog", "cat dog"])) for key in answers}
    # with ties
    odds = {key: float(rng.integers(-5, 6)) / 2 - (1.0 if answers[key] else 0.0) for key in answers}
    return answers, predictions, odds


def test_tuned_threshold_is_the_best_there_is() -> None:
    for seed in range(20):
        answers, predictions, odds = _random_v2(seed)
        threshold, scores = squad.tuned_threshold(answers, predictions, odds)
        assert scores["f1"] == squad.score_v2(answers, predictions, odds, threshold)["f1"]
        tried = [min(odds.values()) - 1, *odds.values()]
        best = max(squad.score_v2(answers, predictions, odds, at)["f1"] for at in tried)
        assert scores["f1"] == pytest.approx(best)
    answers = {key: [] for key in answers}
    assert squad.tuned_threshold(answers, predictions, odds)[1]["f1"] == 100.0  # answer nothing


def test_average_precision_is_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    for seed in range(20):
        answers, predictions, odds = _random_v2(seed)
        found = squad.average_precisions(answers, predictions, odds)
        truth = [bool(texts) for texts in answers.values()]
        expected = metrics.average_precision_score(truth, [-odds[key] for key in answers])
        assert found["pr_oracle_ap"] == pytest.approx(100 * expected)
        assert found["pr_exact_ap"] <= found["pr_f1_ap"] <= found["pr_oracle_ap"]
    assert squad.average_precisions({key: [] for key in answers}, predictions, odds) == {}


def test_v2_refuses_missing_predictions() -> None:
    with pytest.raises(ValueError, match=r"1 are missing, e\.g\. b"):
        squad.score_v2({"a": ["x"], "b": []}, {"a": "x"})
