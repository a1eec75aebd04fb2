"""Scores of classes with an order: how many ranks a prediction is away counts.

A class is its rank, 0, 1, ...; both arguments are of shape [N]. Unlike scikit-learn's, the kappa
counts ranks that do not occur, so that 0 against 2 is two ranks in every file.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from clozelab.metrics.glue import mean_absolute_error, paired
from clozelab.metrics.metric import Metric, Scorer, by_name


def quadratic_weighted_kappa(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return Cohen's kappa with squared distances of ranks (Cohen 1968).

    It is 1 less the mean squared distance over the one that is expected if predictions and labels
    were drawn apart. It is 0.0 where both are one and the same rank throughout.
    """
    predicted, expected = np.array(paired(predictions, labels), dtype=np.float64)
    # N**2 times the means, sums of whole numbers: no rounding makes a constant prediction's 0.0
    # anything else. By chance it is (p - l)**2 of all pairs of a prediction and a label.
    squares = np.square(predicted).sum() + np.square(expected).sum()
    by_chance = len(predicted) * squares - 2.0 * predicted.sum() * expected.sum()
    observed = len(predicted) * np.square(predicted - expected).sum()
    return float((by_chance - observed) / by_chance) if by_chance > 0 else 0.0


SCORERS = by_name(
    Scorer(Metric("rank_mae", "points", higher_is_better=False), mean_absolute_error),
    Scorer.share("quadratic_kappa", quadratic_weighted_kappa),
)
