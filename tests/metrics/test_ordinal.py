"""Scores of ranks against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as oracle

from clozelab.metrics import ordinal

KAPPA = ordinal.SCORERS["quadratic_kappa"]


@pytest.mark.parametrize("seed", range(5))
def test_both_are_those_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(5, size=60)
    predictions = np.clip(labels + rng.integers(-2, 3, size=60), 0, 4)
    expected = oracle.cohen_kappa_score(labels, predictions, labels=range(5), weights="quadratic")
    assert KAPPA(predictions, labels) == pytest.approx(expected, abs=1e-12)
    # Negative control: linear weights give another number.
    linear = oracle.cohen_kappa_score(labels, predictions, labels=range(5), weights="linear")
    assert KAPPA(predictions, labels) != pytest.approx(linear, abs=1e-3)
    error = oracle.mean_absolute_error(labels, predictions)
    assert ordinal.SCORERS["rank_mae"](predictions, labels) == pytest.approx(error, abs=1e-12)


def test_a_rank_that_does_not_occur_is_a_rank() -> None:
    """Of the ranks 0, 2 and 3 scikit-learn takes 0 and 2 for neighbours, unless it is told."""
    predictions = [0, 2, 3, 0, 2]
    labels = [0, 3, 3, 2, 2]
    expected = oracle.cohen_kappa_score(labels, predictions, labels=range(4), weights="quadratic")
    assert KAPPA(predictions, labels) == pytest.approx(expected, abs=1e-12)
    untold = oracle.cohen_kappa_score(labels, predictions, weights="quadratic")
    assert KAPPA(predictions, labels) != pytest.approx(untold, abs=1e-3)


def test_one_rank_throughout_has_no_agreement_beyond_chance() -> None:
    assert KAPPA([1, 1], [1, 1]) == 0.0
    assert KAPPA([1, 1], [0, 2]) == 0.0
    with pytest.raises(ValueError, match=r"\(2,\) and labels \(3,\) must be equal"):
        KAPPA([1, 1], [1, 1, 1])
