"""Scores of classification and regression tasks as pure functions of arrays, and what a trivial predictor would reach.

Every function takes `predictions` and `labels` of shape [N] and returns a plain float in the scorer's own unit (a share
of one or a correlation, never percent). Unusual: a constant input has no correlation; where the official GLUE scripts
return nan for it, these return 0.0 (Matthews is 0.0 there by scikit-learn's convention too), so that a collapsed run
has a score that can be compared and is reported as collapsed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Share of equal entries."""
    predicted, expected = _paired(predictions, labels)
    return float((predicted == expected).mean())


def f1_binary(predictions: ArrayLike, labels: ArrayLike, positive: int = 1) -> float:
    """F1 of the class `positive` (GLUE: 1, the paraphrase); 0.0 when the class is neither predicted nor present."""
    predicted, expected = _paired(predictions, labels)
    predicted, expected = predicted == positive, expected == positive
    true_positives = int((predicted & expected).sum())
    denominator = int(predicted.sum()) + int(expected.sum())
    return 2.0 * true_positives / denominator if denominator else 0.0


def matthews_correlation(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004); 0.0 when one side is constant."""
    predicted, expected = _paired(predictions, labels)
    classes = np.unique(np.concatenate([predicted, expected]))
    predicted_counts = (predicted[:, None] == classes).sum(0).astype(np.float64)
    expected_counts = (expected[:, None] == classes).sum(0).astype(np.float64)
    total, correct = float(len(predicted)), float((predicted == expected).sum())
    covariance = correct * total - predicted_counts @ expected_counts
    spread = (total**2 - predicted_counts @ predicted_counts) * (total**2 - expected_counts @ expected_counts)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def pearson_correlation(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Linear correlation; 0.0 when one side is constant."""
    from scipy import stats  # scipy.stats takes half a second: only who needs it pays

    predicted, expected = _paired(predictions, labels)
    if _constant(predicted) or _constant(expected):
        return 0.0
    return float(stats.pearsonr(predicted, expected).statistic)


def spearman_correlation(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Rank correlation (ties share their mean rank); 0.0 when one side is constant."""
    from scipy import stats

    predicted, expected = _paired(predictions, labels)
    if _constant(predicted) or _constant(expected):
        return 0.0
    return float(stats.spearmanr(predicted, expected).statistic)


SCORERS: dict[str, Callable[..., float]] = {
    "accuracy": accuracy,
    "f1": f1_binary,
    "matthews": matthews_correlation,
    "pearson": pearson_correlation,
    "spearman": spearman_correlation,
}
"""What a task's YAML may list under `metrics`."""
CORRELATIONS = ("pearson", "spearman")
CONSTANT_RANGE = 1e-3
"""Predicted numbers that differ by less are one answer."""


def check_names(names: Sequence[str]) -> None:
    """ValueError naming a score that does not exist, before anything is trained."""
    unknown = [name for name in names if name not in SCORERS]
    if unknown or not names:
        raise ValueError(f"unknown metrics {unknown} in the task's config; known: {', '.join(SCORERS)}")


def check_kind(names: Sequence[str], *, is_regression: bool) -> None:
    """ValueError for a score that means nothing for classes, or for numbers."""
    wrong = [name for name in names if (name in CORRELATIONS) != is_regression]
    if wrong:
        kind = "predicts a number" if is_regression else "predicts a class"
        raise ValueError(f"metrics {wrong} do not fit a task that {kind}; {', '.join(CORRELATIONS)} are for numbers")


def score(names: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The named scores of one set of predictions."""
    check_names(names)
    return {name: SCORERS[name](predictions, labels) for name in names}


def majority_baseline(names: Sequence[str], labels: ArrayLike) -> dict[str, float]:
    """The scores of predicting the most frequent label everywhere (the lowest of equally frequent ones)."""
    values, counts = np.unique(np.asarray(labels), return_counts=True)
    return score(names, np.full(len(np.asarray(labels)), values[counts.argmax()]), labels)


def is_collapsed(predictions: ArrayLike, is_regression: bool = False) -> bool:
    """True when one class (or number) is predicted for every example: the known failure of small tasks."""
    values = np.asarray(predictions)
    if is_regression:
        return bool(np.ptp(values) < CONSTANT_RANGE)
    return len(np.unique(values)) <= 1


def _paired(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != expected.shape or predicted.ndim != 1 or not len(predicted):
        raise ValueError(f"predictions {predicted.shape} and labels {expected.shape} must be equal, non-empty [N]")
    return predicted, expected


def _constant(values: NDArray[Any]) -> bool:
    return bool((values == values[0]).all())
