"""Classification and regression scores against scikit-learn and scipy on random cases, and the degenerate inputs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from clozelab.metrics import glue

CASES = 1000


def random_labels(rng: np.random.Generator, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    size = int(rng.integers(1, 40))
    labels = rng.integers(0, num_classes, size)
    predictions = np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_classes, size))
    return predictions, labels


@pytest.mark.parametrize(
    ("name", "oracle", "num_classes"),
    [("accuracy", "accuracy_score", 3), ("f1", "f1_score", 2), ("matthews", "matthews_corrcoef", 3)],
)
def test_equals_scikit_learn(name: str, oracle: str, num_classes: int) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    extra = {"zero_division": 0.0, "labels": [1], "average": "macro"} if name == "f1" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about single-class cases, which are meant here
        for _ in range(CASES):
            predictions, labels = random_labels(rng, num_classes)
            expected = getattr(sklearn_metrics, oracle)(labels, predictions, **extra)
            assert glue.SCORERS[name](predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("name", "oracle"), [("pearson", "pearsonr"), ("spearman", "spearmanr")])
def test_correlations_equal_scipy(name: str, oracle: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        labels = rng.integers(0, 6, int(rng.integers(5, 30))) / 5.0
        predictions = labels + rng.normal(size=len(labels)).round(1)
        if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            continue
        expected = getattr(stats, oracle)(predictions, labels).statistic
        assert glue.SCORERS[name](predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_constant_predictions_have_no_correlation(name: str) -> None:
    assert glue.SCORERS[name]([1, 1, 1, 1], [0, 1, 2, 1]) == 0.0


def test_majority_baseline_and_collapse() -> None:
    labels = [1, 1, 0, 1]
    assert glue.majority_baseline(["accuracy", "matthews"], labels) == {"accuracy": 0.75, "matthews": 0.0}
    assert glue.is_collapsed([2, 2, 2])
    assert not glue.is_collapsed([2, 2, 0])


@pytest.mark.parametrize("names", [["accuracy", "acuracy"], []])
def test_unknown_metric_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"unknown metrics .*known: accuracy"):
        glue.score(names, [1], [1])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        glue.accuracy([1, 2], [1])


def test_scores_fit_the_kind_of_task() -> None:
    glue.check_kind(["accuracy", "f1"], is_regression=False)
    glue.check_kind(["pearson", "spearman"], is_regression=True)
    with pytest.raises(ValueError, match=r"\['accuracy'\] do not fit a task that predicts a number"):
        glue.check_kind(["spearman", "accuracy"], is_regression=True)
    assert glue.is_collapsed([2.50001, 2.50002], is_regression=True)
    assert not glue.is_collapsed([2.5, 2.6], is_regression=True)
