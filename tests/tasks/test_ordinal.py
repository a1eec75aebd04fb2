"""Classes with an order: read, trained on, scored, predicted, and read by transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, cohen_kappa_score, mean_absolute_error
from tests.tasks.labelled_files import (
    evaluate,
    finetune,
    module_on,
    read_task,
    records_of,
    write_rows,
)
from tests.tasks.test_targets import split_of

from clozelab.metrics.ordinal import quadratic_weighted_kappa
from clozelab.modules.predictor import load
from clozelab.tasks.baselines import BAG
from clozelab.tasks.batches import make_batch
from clozelab.tasks.ordinal import FREQUENT, MEDIAN, OrdinalTarget, rank_probabilities

RANKS = ["low", "fair", "good", "best"]
TEXTS = {
    "the small red car": "low",
    "the red car": "fair",
    "the big red car": "good",
    "the big blue house": "best",
    "a big blue house": "best",
}
ROWS = list(TEXTS.items())


def random_outputs(seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.append(generator.integers(0, 4, 36), np.arange(4))
    steps = labels[:, None] > np.arange(3)
    logits = generator.normal(size=(40, 3)) + 2 * steps - 1
    return logits.astype(np.float32), labels


def test_the_loss_is_the_likelihood_of_a_plain_loop(tmp_path: Path, tiny_module: Any) -> None:
    data = read_task(tmp_path, OrdinalTarget, ROWS, ROWS, labels=RANKS)
    assert data.train.labels.tolist() == [0, 1, 2, 3, 3]
    module = module_on(data, tiny_module, "rank_mae").eval()
    batch = make_batch(data.train_sequences, np.arange(5), data.train_targets)
    logits = module.logits(batch)
    assert logits.shape == (5, 3)
    expected = 0.0
    for row, rank in zip(logits.tolist(), batch["labels"].tolist(), strict=True):
        for threshold, output in enumerate(row):
            above = 1 / (1 + math.exp(-output))
            expected -= math.log(above if rank > threshold else 1 - above) / 3
    assert module.loss(logits, batch).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_scikit_learns(seed: int) -> None:
    logits, labels = random_outputs(seed)
    outcome = OrdinalTarget(labels=RANKS).evaluate(logits, split_of(labels))
    # how many thresholds are passed
    predicted = (logits > 0).sum(axis=1).tolist()
    assert [record["prediction"] for record in outcome.records] == [RANKS[k] for k in predicted]
    scores = outcome.scores
    assert scores["rank_mae"] == pytest.approx(mean_absolute_error(labels, predicted))
    kappa = cohen_kappa_score(labels, predicted, weights="quadratic")
    assert scores["quadratic_kappa"] == pytest.approx(kappa)
    assert scores["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    turned = OrdinalTarget(labels=RANKS).evaluate(-logits, split_of(labels)).scores
    assert turned["quadratic_kappa"] < 0 < kappa  # negative control: the order the other way


def test_a_constant_prediction_has_no_kappa() -> None:
    """Not 1e-16, which would be better than another one's 0.0."""
    for counts in product((5, 15, 20, 25), repeat=3):
        labels = np.repeat([0, 1, 2], counts)
        assert quadratic_weighted_kappa(np.ones_like(labels), labels) == 0.0
        assert quadratic_weighted_kappa(labels, labels) == 1.0


def test_probabilities_are_of_classes() -> None:
    """They sum to 1; outputs that do not fall keep the number of passed thresholds."""
    found = rank_probabilities(np.array([[2.0, 0.5, -1.0], [-1.0, 2.0, -3.0]]))
    first, second, third = 1 / (1 + np.exp(-np.array([2.0, 0.5, -1.0])))
    expected = [1 - first, first - second, second - third, third]
    np.testing.assert_allclose(found[0], expected, rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert (found >= 0).all() and found[1, 0] < 0.5 < found[1, :2].sum()


def test_the_simple_rules(tmp_path: Path) -> None:
    rows = ROWS * 6
    data = read_task(tmp_path, OrdinalTarget, rows, rows, labels=RANKS)
    found = data.compute_baselines()
    ranks = np.array([0, 1, 2, 3, 3] * 6)
    assert found[MEDIAN]["rank_mae"] == pytest.approx(np.abs(ranks - 2).mean())
    assert found[FREQUENT]["rank_mae"] == pytest.approx(np.abs(ranks - 3).mean())
    assert found[FREQUENT]["accuracy"] == pytest.approx(0.4)
    assert found[BAG]["rank_mae"] < found[MEDIAN]["rank_mae"]


@pytest.mark.parametrize("labels", [None, ["low", "high"]])
def test_an_order_has_to_be_given(labels: Any) -> None:
    with pytest.raises(ValueError, match="list three classes or more in their order, the lowest"):
        OrdinalTarget(labels=labels)


def test_a_label_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    for train, validation in ((ROWS, [("a", "great")]), ([("a", "great")], ROWS)):
        with pytest.raises(ValueError, match=r":1: label 'great' is not one of the known labels"):
            read_task(tmp_path, OrdinalTarget, train, validation, labels=RANKS)


TASK = """\
defaults:
  - format/ordinal@_here_
  - _self_
name: mine
title: Grades
data:
  train_file: train.jsonl
  validation_file: dev.jsonl
  test_files: {dev: dev.jsonl}
  text_columns: [text]
  label_column: label
  labels: [low, fair, good, best]
"""


def test_a_task_is_one_yaml(
    tmp_path: Path, save_encoder: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The lowest error of ranks is best; no reader takes an output for a class."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data/train.jsonl", ROWS * 8)
    write_rows(tmp_path / "data/dev.jsonl", ROWS)
    run = finetune(tmp_path, TASK, save_encoder)
    scores = json.loads((run / "run.json").read_text())["scores"]
    mae = scores["validation/rank_mae"]
    assert (mae["unit"], mae["higher_is_better"]) == ("points", False) and mae["value"] < 1
    assert (run / "errors.csv").is_file() and (run / "confusion.csv").is_file()
    history = json.loads((run / "scores.json").read_text())["evaluations"]
    assert mae["value"] == min(evaluation["validation/rank_mae"] for evaluation in history)

    records = records_of(run)
    answers = load(run / "model", device="cpu", precision="32-true").classify(list(TEXTS))
    assert [answer.label for answer in answers] == [record["prediction"] for record in records]
    for answer, record in zip(answers, records, strict=True):
        assert list(answer.probabilities) == RANKS
        expected = rank_probabilities(np.array([record["logits"]]))[0]
        np.testing.assert_allclose([*answer.probabilities.values()], expected, atol=2e-5)
        assert answer.probability == answer.probabilities[answer.label]
    lines = (run / "test_predictions/dev.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == [answer.label for answer in answers]

    other = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    assert other.config.id2label == {0: "above low", 1: "above fair", 2: "above good"}
    assert other.config.problem_type == "multi_label_classification"
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = other(**batch).logits
    expected = torch.tensor([record["logits"] for record in records])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=2e-5)

    words = ["measure.task.data.validation_file=dev.jsonl"]
    evaluated = evaluate(tmp_path, *words)
    assert [record["prediction"] for record in records_of(evaluated)] == [
        answer.label for answer in answers
    ]
    # neither one class a text nor several are what this model has learnt
    capsys.readouterr()
    for name in ("labelled", "several_labels"):
        text = TASK.replace("ordinal", name).replace("mine", name)
        (tmp_path / f"conf/task/{name}.yaml").write_text(text)
        assert evaluate(tmp_path, *words, task=name) is None
        assert (
            "problem_type is multi_label_classification with 3 outputs" in capsys.readouterr().err
        )
