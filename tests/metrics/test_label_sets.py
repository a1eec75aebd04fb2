"""Scores of sets of labels against scikit-learn, and thresholds against trying all of them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as oracle

from clozelab.metrics import label_sets


@pytest.fixture(params=range(5))
def drawn(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties and labels, [40, 6]; every label is right somewhere."""
    rng = np.random.default_rng(request.param)
    scores = rng.integers(0, 9, size=(40, 6)) / 8.0
    labels = (rng.random((40, 6)) < 0.2 + 0.4 * scores).astype(int)
    labels[0] = 1
    return scores, labels


def test_f1_is_that_of_scikit_learn(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    predictions = scores > 0.5
    for name in ("micro", "macro"):
        expected = oracle.f1_score(labels, predictions, average=name, zero_division=0)
        found = label_sets.SCORERS[f"{name}_f1"](predictions, labels)
        assert found == pytest.approx(expected, abs=1e-12)
    # A label that nobody predicts, and that is never right, counts in both.
    labels[:, 2] = predictions[:, 2] = 0
    expected = oracle.f1_score(labels, predictions, average="macro", zero_division=0)
    assert label_sets.macro_f1(predictions, labels) == pytest.approx(expected, abs=1e-12)
    assert label_sets.micro_f1(0 * labels, 0 * labels) == 0.0


def test_average_precision_is_that_of_scikit_learn(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    expected = oracle.average_precision_score(labels, scores, average="macro")
    found = label_sets.mean_average_precision(scores, labels)
    assert found == pytest.approx(expected, abs=1e-12)
    # Negative control: without ties sharing a step the order of the file would count.
    order = np.random.default_rng(9).permutation(len(scores))
    again = label_sets.mean_average_precision(scores[order], labels[order])
    assert again == pytest.approx(expected, abs=1e-12)

    labels[:, 2] = 0
    others = [0, 1, 3, 4, 5]
    expected = oracle.average_precision_score(labels[:, others], scores[:, others])
    found = label_sets.mean_average_precision(scores, labels)
    assert found == pytest.approx(expected, abs=1e-12)


def test_no_threshold_is_better_than_the_best_one(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = drawn
    thresholds = label_sets.best_thresholds(scores, labels)
    for number, threshold in enumerate(thresholds):
        tried = []
        for candidate in np.linspace(-0.05, 1.05, 45):
            predicted = scores[:, number] > candidate
            tried.append(oracle.f1_score(labels[:, number], predicted, zero_division=0))
        predicted = scores[:, number] > threshold
        best = oracle.f1_score(labels[:, number], predicted, zero_division=0)
        assert best == pytest.approx(max(tried), abs=1e-12)
    labels[:, 2] = 0
    assert np.isinf(label_sets.best_thresholds(scores, labels)[2])


def test_where_every_example_has_a_label_all_are_predicted() -> None:
    scores = np.array([[0.1], [0.7], [0.4]])
    (threshold,) = label_sets.best_thresholds(scores, np.ones((3, 1)))
    assert (scores > threshold).all()


def test_a_threshold_parts_two_neighbouring_floats() -> None:
    low = 0.1
    scores = np.array([[low], [np.nextafter(low, 1.0)]])
    for labels in ([[0], [1]], [[1], [1]]):
        (threshold,) = label_sets.best_thresholds(scores, labels)
        assert (scores > threshold).astype(int).tolist() == labels


def test_what_is_no_set_of_labels_is_refused() -> None:
    ones = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"\(3, 2\) and labels \(3,\) must be equal"):
        label_sets.micro_f1(ones, np.ones(3))
    with pytest.raises(ValueError, match="no finite number"):
        label_sets.best_thresholds(np.nan * ones, ones)
    with pytest.raises(ValueError, match="matrices of 0 and 1"):
        label_sets.macro_f1(0.5 * ones, ones)
    with pytest.raises(ValueError, match="no example has a label"):
        label_sets.mean_average_precision(ones, 0 * ones)
    with pytest.raises(ValueError, match="never right has no average precision"):
        label_sets.average_precision([0.5, 0.2], [0, 0])
    with pytest.raises(ValueError, match="give two folds or more"):
        label_sets.predict_by_folds(ones, ones, [1, 1, 1])
    with pytest.raises(ValueError, match=r"folds \(2,\) must be one number an example"):
        label_sets.predict_by_folds(ones, ones, [1, 2])
