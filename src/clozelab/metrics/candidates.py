"""Scores of candidate answers, which belong to questions: those of MultiRC and ReCoRD in SuperGLUE.

Shares of one. N candidates; `questions` [N] name the question of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clozelab.metrics import glue, squad
from clozelab.metrics.metric import Metric

Bools = NDArray[np.bool_]
SET_METRICS = (Metric.share("f1a"), Metric.share("em"))
CHOICE_METRICS = (Metric.share("f1"), Metric.share("em"))


def set_scores(questions: Sequence[str], predictions: Bools, labels: Bools) -> dict[str, float]:
    """MultiRC's scores, where any number of a question's candidates may be right.

    `f1a` is the F1 of right candidates over all questions, `em` the share of questions of which
    each candidate [N] is predicted as it is labelled, right or not.
    """
    _, numbers = np.unique(questions, return_inverse=True)
    num_wrong = np.bincount(numbers, weights=predictions != labels)
    return {"f1a": glue.f1_binary(predictions, labels), "em": float((num_wrong == 0).mean())}


def choice_scores(
    questions: Sequence[str], texts: Sequence[str], scores: NDArray[np.floating], labels: Bools
) -> dict[str, float]:
    """ReCoRD's scores: each question is answered by its candidate of the highest score [N].

    `em` and `f1` compare texts as SQuAD's scorer does, and count the best of the right candidates.
    """
    right: dict[str, list[str]] = {}
    for question, text, label in zip(questions, texts, labels, strict=True):
        right.setdefault(question, []).extend([text] * int(label))
    total = {"f1": 0.0, "em": 0.0}
    for question, number in best_candidates(questions, scores).items():
        for name, score in (("f1", squad.f1), ("em", squad.exact_match)):
            total[name] += max((score(texts[number], gold) for gold in right[question]), default=0)
    return {name: value / len(right) for name, value in total.items()}


def best_candidates(questions: Sequence[str], scores: NDArray[np.floating]) -> dict[str, int]:
    """Question -> the number of its candidate of the highest score, the first of equal ones."""
    best: dict[str, int] = {}
    for number, question in enumerate(questions):
        if question not in best or scores[number] > scores[best[question]]:
            best[question] = number
    return best
