"""The scores of classes against scikit-learn, those of entity types against seqeval."""

from __future__ import annotations

import numpy as np
import pytest
from seqeval.metrics import classification_report as entity_report
from sklearn import metrics as theirs

from clozelab.metrics.classes import ClassScores, confusion_matrix, macro_f1, weighted_f1
from clozelab.metrics.entities import scores_of_types


@pytest.mark.parametrize("num_classes", [2, 3, 40])
@pytest.mark.parametrize("seed", [0, 1])
def test_scores_are_scikit_learns(num_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, 60)
    # the last class is never answered, and with 40 some classes never occur at all
    answers = np.where(rng.random(60) < 0.6, labels, rng.integers(0, num_classes, 60))
    answers[answers == num_classes - 1] = 0
    matrix = confusion_matrix(answers, labels, num_classes)
    every = np.arange(num_classes)
    assert (matrix == theirs.confusion_matrix(labels, answers, labels=every)).all()
    scores = ClassScores.from_matrix(matrix)
    expected = theirs.precision_recall_fscore_support(
        labels, answers, labels=every, zero_division=0.0
    )
    for found, values in zip((scores.precision, scores.recall, scores.f1), expected, strict=False):
        assert found == pytest.approx(values)
    assert (scores.num_labels == expected[3]).all()
    for name, mean in (("macro", scores.macro), ("weighted", scores.weighted)):
        means = theirs.precision_recall_fscore_support(
            labels, answers, average=name, zero_division=0.0
        )
        found_means = [mean(values) for values in (scores.precision, scores.recall, scores.f1)]
        assert found_means == pytest.approx(means[:3])
    # numbers of classes are names: an offset changes nothing
    assert macro_f1(answers + 7, labels + 7) == pytest.approx(
        theirs.f1_score(labels, answers, average="macro")
    )
    assert weighted_f1(answers, labels) == pytest.approx(
        theirs.f1_score(labels, answers, average="weighted")
    )


def test_nothing_to_count_is_zero() -> None:
    scores = ClassScores.from_matrix(np.zeros((2, 2), dtype=np.int64))
    assert scores.f1.tolist() == [0.0, 0.0] and scores.macro(scores.f1) == 0.0
    assert scores.weighted(scores.f1) == 0.0


def test_types_are_seqevals() -> None:
    labels = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"], ["B-LOC", "O"]]
    answers = [["B-PER", "O", "O", "B-LOC"], ["B-MISC", "B-ORG"], ["B-LOC", "O"]]
    names, scores = scores_of_types(answers, labels)
    report = entity_report(labels, answers, output_dict=True, zero_division=0)
    assert names == ["LOC", "MISC", "ORG", "PER"]
    for number, name in enumerate(names):
        found = scores.precision[number], scores.recall[number], scores.f1[number]
        assert found == pytest.approx(
            [report[name][key] for key in ("precision", "recall", "f1-score")]
        )
        assert scores.num_labels[number] == report[name]["support"]
    assert scores.macro(scores.f1) == pytest.approx(report["macro avg"]["f1-score"])
    assert scores.weighted(scores.f1) == pytest.approx(report["weighted avg"]["f1-score"])
