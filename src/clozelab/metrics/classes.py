"""Where a classification fails: precision, recall and F1 of each class, and the confusion matrix.

A share is 0.0 where nothing is to count, as scikit-learn has it with zero_division=0. Means are
over the classes that occur among labels or predictions. Letters: N examples, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
# what stands before the means in a table of classes
MACRO = "(macro mean)"
WEIGHTED = "(weighted mean)"


@dataclass(frozen=True)
class ClassScores:
    """Shares of one, [K] each, and how many labels and predictions there are of each class."""

    num_correct: NDArray[np.int64]
    num_labels: NDArray[np.int64]
    num_predicted: NDArray[np.int64]

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.int64]) -> ClassScores:
        """From a confusion matrix [K, K]: rows are labels, columns predictions."""
        return cls(matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0))

    @cached_property
    def precision(self) -> Floats:
        return _shares(self.num_correct, self.num_predicted)

    @cached_property
    def recall(self) -> Floats:
        return _shares(self.num_correct, self.num_labels)

    @cached_property
    def f1(self) -> Floats:
        return _shares(2 * self.num_correct, self.num_labels + self.num_predicted)

    def macro(self, values: Floats) -> float:
        """The plain mean over the classes that occur."""
        occurs = self.num_labels + self.num_predicted > 0
        return float(values[occurs].mean()) if occurs.any() else 0.0

    def weighted(self, values: Floats) -> float:
        """The mean over labels: a class counts as often as it is one."""
        return float(_shares(values @ self.num_labels, self.num_labels.sum()))


def confusion_matrix(
    predictions: ArrayLike, labels: ArrayLike, num_classes: int
) -> NDArray[np.int64]:
    """Count [label, prediction] of class indices [N] each: [K, K]."""
    matrix = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(matrix, (np.asarray(labels), np.asarray(predictions)), 1)
    return matrix


def f1_scores(predictions: ArrayLike, labels: ArrayLike) -> ClassScores:
    """Return the scores of the classes that occur, by rising index; both of shape [N]."""
    classes, numbers = np.unique(np.stack([predictions, labels]), return_inverse=True)
    predicted, expected = numbers.reshape(2, -1)
    return ClassScores.from_matrix(confusion_matrix(predicted, expected, len(classes)))


def macro_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of the classes' F1."""
    scores = f1_scores(predictions, labels)
    return scores.macro(scores.f1)


def weighted_f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean of the classes' F1, each weighted by its number of labels."""
    scores = f1_scores(predictions, labels)
    return scores.weighted(scores.f1)


def _shares(part: ArrayLike, whole: ArrayLike) -> Floats:
    counts = np.asarray(whole, dtype=np.float64)
    return np.asarray(part) / np.where(counts > 0, counts, 1.0)
