"""From start and end logits to answer texts: the released n-best rules, on the original characters.

A candidate is dropped when it starts or ends outside the passage, starts at a token that another window sees better,
ends before it starts, or is longer than `max_answer_length` tokens. Each window offers its `n_best_size` best starts
and ends; a question keeps its `n_best_size` best different texts over all windows. A question without any candidate
answers "empty", as released (it cannot score by accident on an empty gold text).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.readers.squad import SquadExamples
from clozelab.data.readers.squad_features import SquadFeatures

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class NBestSettings:
    n_best_size: int
    max_answer_length: int


def predict_answers(
    features: SquadFeatures, examples: SquadExamples, start_logits: Floats, end_logits: Floats, settings: NBestSettings
) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """(question id -> answer text, question id -> n-best list with text, probability, start_logit, end_logit).

    `start_logits` and `end_logits` are [T]: one number a token of all windows, in the order of `features.rows`.
    """
    windows_of = np.searchsorted(features.question, np.arange(len(examples) + 1))
    predictions: dict[str, str] = {}
    nbest: dict[str, list[dict[str, Any]]] = {}
    for index, question in enumerate(examples.questions):
        found = [
            window_candidates(features, window, start_logits, end_logits, settings)
            for window in range(windows_of[index], windows_of[index + 1])
        ]
        candidates = np.concatenate(found) if found else np.zeros((0, 4))
        spans = features.passage_spans[features.passage_offsets[question.passage] :]
        best = _distinct_texts(candidates, examples.passages[question.passage], spans, settings.n_best_size)
        nbest[question.id] = best
        predictions[question.id] = best[0]["text"]
    return predictions, nbest


def window_candidates(
    features: SquadFeatures, window: int, start_logits: Floats, end_logits: Floats, settings: NBestSettings
) -> NDArray[np.float64]:
    """Allowed spans of one window, [number, 4]: start logit, end logit, first and last token of the passage."""
    low, high = features.rows.offsets[window], features.rows.offsets[window + 1]
    begin = int(features.passage_starts[window])
    starts = _best_positions(start_logits[low:high], settings.n_best_size)
    ends = _best_positions(end_logits[low:high], settings.n_best_size)
    starts = starts[features.max_context[low + starts]]  # false outside the passage
    ends = ends[(ends >= begin) & (ends < high - low - 1)]
    length = ends[None, :] - starts[:, None] + 1
    row, column = np.nonzero((length >= 1) & (length <= settings.max_answer_length))
    first, last = starts[row], ends[column]
    shift = int(features.window_starts[window]) - begin
    return np.stack([start_logits[low + first], end_logits[low + last], first + shift, last + shift], axis=1).astype(
        np.float64
    )


def _best_positions(logits: Floats, number: int) -> NDArray[np.int64]:
    """Positions of the largest logits, best first; the earlier one wins a tie."""
    return np.argsort(-logits, kind="stable")[:number]


def _distinct_texts(
    candidates: NDArray[np.float64], passage: str, spans: NDArray[np.int32], number: int
) -> list[dict[str, Any]]:
    order = np.argsort(-(candidates[:, 0] + candidates[:, 1]), kind="stable")
    best: dict[str, tuple[float, float]] = {}
    for start_logit, end_logit, first, last in candidates[order]:
        text = passage[spans[int(first), 0] : spans[int(last), 1]]
        best.setdefault(text, (float(start_logit), float(end_logit)))
        if len(best) == number:
            break
    if not best:
        best["empty"] = (0.0, 0.0)
    sums = np.array([sum(pair) for pair in best.values()])
    weights = np.exp(sums - sums.max())
    probabilities = weights / weights.sum()
    return [
        {"text": text, "probability": float(p), "start_logit": pair[0], "end_logit": pair[1]}
        for (text, pair), p in zip(best.items(), probabilities, strict=True)
    ]
