"""Scores of sets of labels: any number of labels may be right for an example.

Shares of one. Unlike a choice of one class, a label that is neither predicted nor right counts in
the macro F1, with 0.0, as scikit-learn has it. A label that is never right has no average
precision, and is left out of the mean. Letters: N examples, K labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clozelab.metrics.classes import ClassScores
from clozelab.metrics.metric import Metric, Scorer, by_name

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def scores_of_labels(predictions: ArrayLike, labels: ArrayLike) -> ClassScores:
    """Return precision, recall and F1 of each label; both are [N, K] of 0 and 1.

    ValueError where they are no such matrices of one shape.
    """
    predicted, expected = _matrices(predictions, labels)
    return ClassScores(
        num_correct=(predicted & expected).sum(axis=0),
        num_labels=expected.sum(axis=0),
        num_predicted=predicted.sum(axis=0),
    )


def matrix_of(sets: Sequence[Iterable[str]], names: Sequence[str]) -> Bools:
    """Return the sets of N examples as [N, K]: whether each has each of the names."""
    place_of = {name: place for place, name in enumerate(names)}
    matrix = np.zeros((len(sets), len(names)), dtype=bool)
    for number, labels in enumerate(sets):
        for label in labels:
            matrix[number, place_of[label]] = True
    return matrix


def micro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the F1 over all labels of all examples; 0.0 where there is none."""
    predicted, expected = _matrices(predictions, labels)
    count = int(predicted.sum()) + int(expected.sum())
    return 2.0 * int((predicted & expected).sum()) / count if count else 0.0


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of the labels' F1."""
    return float(scores_of_labels(predictions, labels).f1.mean())


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the steps of precision by recall of one label.

    Args:
        scores: [N], larger where the label is more likely; equal ones share a step.
        labels: [N] of 0 and 1.

    Raises:
        ValueError: the label is never right.
    """
    values = np.asarray(scores, dtype=np.float64)
    expected = np.asarray(labels).astype(bool)
    if not expected.any():
        raise ValueError("a label that is never right has no average precision")
    correct, predicted = _counts_by_threshold(values, expected)
    precision = correct / predicted
    recall = correct / correct[-1]
    return float(np.diff(recall, prepend=0.0) @ precision)


def mean_average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of the average precisions of the labels that are right somewhere.

    Args:
        scores: [N, K].
        labels: [N, K] of 0 and 1.

    Raises:
        ValueError: no label is right anywhere, or the shapes differ.
    """
    values, expected = _scores_and_labels(scores, labels)
    occurs = expected.any(axis=0)
    if not occurs.any():
        raise ValueError("no example has a label: there is no average precision")
    precisions = []
    for number in np.flatnonzero(occurs):
        precisions.append(average_precision(values[:, number], expected[:, number]))
    return float(np.mean(precisions))


SCORERS = by_name(
    Scorer.share("micro_f1", micro_f1),
    Scorer.share("macro_f1", macro_f1),
)
# of a model's scores, which the others have no use for
MEAN_AVERAGE_PRECISION = Scorer(Metric.share("mean_average_precision"), mean_average_precision)


# -- thresholds ------------------------------------------------------------------------------------


def best_thresholds(scores: ArrayLike, labels: ArrayLike) -> Floats:
    """Return for each label the threshold with the highest F1: [K].

    A label is predicted where its score is above the threshold, which lies midway between two
    scores; of equally good ones it is the highest. It is infinite for a label that is never right.
    """
    values, expected = _scores_and_labels(scores, labels)
    thresholds = np.full(values.shape[1], np.inf)
    for number in np.flatnonzero(expected.any(axis=0)):
        thresholds[number] = _best_threshold(values[:, number], expected[:, number])
    return thresholds


def predict_by_folds(scores: ArrayLike, labels: ArrayLike, folds: ArrayLike) -> Bools:
    """Return predictions [N, K] with thresholds that no example has helped to choose.

    Those of a fold are the best ones of all other folds.

    Args:
        scores: [N, K].
        labels: [N, K] of 0 and 1.
        folds: [N], the number of each example's fold.

    Raises:
        ValueError: there are less than two folds, or the shapes differ.
    """
    values, expected = _scores_and_labels(scores, labels)
    fold_of_example = np.asarray(folds)
    if fold_of_example.shape != (len(values),):
        raise ValueError(f"folds {fold_of_example.shape} must be one number an example")
    names = np.unique(fold_of_example)
    if len(names) < 2:
        raise ValueError("thresholds are chosen on other folds: give two folds or more")
    predictions = np.zeros(values.shape, dtype=bool)
    for name in names:
        is_inside = fold_of_example == name
        thresholds = best_thresholds(values[~is_inside], expected[~is_inside])
        predictions[is_inside] = values[is_inside] > thresholds
    return predictions


def _best_threshold(scores: Floats, labels: Bools) -> float:
    correct, predicted = _counts_by_threshold(scores, labels)
    f1 = 2.0 * correct / (predicted + correct[-1])
    best = int(f1.argmax())
    distinct = np.unique(scores)[::-1]
    # Below all scores there is nothing to be midway to.
    if best == len(distinct) - 1:
        return float(np.nextafter(distinct[best], -np.inf))
    midway = (distinct[best] + distinct[best + 1]) / 2.0
    # Between two neighbouring floats there is no third.
    return float(min(midway, np.nextafter(distinct[best], -np.inf)))


def _counts_by_threshold(scores: Floats, labels: Bools) -> tuple[Floats, Floats]:
    """(right ones, predicted ones) at each distinct score, from the highest down.

    Scores [3, 1, 3] and labels [1, 0, 0]: at 3 there are 1 of 2, at 1 there are 1 of 3.
    """
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    correct = np.cumsum(labels[order])[is_last]
    predicted = np.flatnonzero(is_last) + 1
    return correct.astype(np.float64), predicted.astype(np.float64)


def _matrices(predictions: ArrayLike, labels: ArrayLike) -> tuple[Bools, Bools]:
    predicted = np.asarray(predictions)
    expected = np.asarray(labels)
    _require_matrices(predicted, expected)
    for matrix in (predicted, expected):
        if not np.isin(matrix, (0, 1)).all():
            raise ValueError("sets of labels are matrices of 0 and 1")
    return predicted.astype(bool), expected.astype(bool)


def _scores_and_labels(scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, Bools]:
    values = np.asarray(scores, dtype=np.float64)
    expected = np.asarray(labels).astype(bool)
    _require_matrices(values, expected)
    return values, expected


def _require_matrices(first: NDArray[np.generic], second: NDArray[np.generic]) -> None:
    if first.shape != second.shape or first.ndim != 2 or not first.size:
        raise ValueError(
            f"predictions {first.shape} and labels {second.shape} must be equal, non-empty [N, K]"
        )
    if not np.isfinite(first).all():
        raise ValueError("a score of a label is no finite number")
