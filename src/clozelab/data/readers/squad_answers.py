"""From start and end logits to answer texts: the released n-best rules, on the original characters.

A candidate is dropped when it starts or ends outside the passage, starts at a token that another window sees better,
ends before it starts, or is longer than `max_answer_length` tokens. Each window offers its `n_best_size` best starts
and ends; a question keeps its `n_best_size` best different texts over all windows. A question without any candidate
answers "empty", as released (it cannot score by accident on an empty gold text).

With unanswerable questions (2.0) the span [CLS]..[CLS] competes: a question's null score is its minimum over the
windows, as released, and "null odds" are null score minus the best text's score. Which odds mean "no answer" is the
caller's to say. Unusual: an n-best list is kept from the texts first, so a text always has a place beside the null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.readers.squad import SquadExamples
from clozelab.data.readers.squad_features import SquadFeatures

Floats = NDArray[np.float32]
SURELY_NULL = 1e6


@dataclass(frozen=True)
class NBestSettings:
    n_best_size: int
    max_answer_length: int
    with_unanswerable: bool = False


@dataclass(frozen=True)
class Answers:
    """Of all questions, by id. `texts`: the best text (never "no answer"); `null_odds` is empty without 2.0."""

    texts: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


def predict_answers(
    features: SquadFeatures, examples: SquadExamples, start_logits: Floats, end_logits: Floats, settings: NBestSettings
) -> Answers:
    """Texts, n-best lists (text, probability, start_logit, end_logit) and null odds.

    `start_logits` and `end_logits` are [T]: one number a token of all windows, in the order of `features.rows`.
    """
    windows_of = np.searchsorted(features.question, np.arange(len(examples) + 1))
    cls = features.rows.offsets[:-1]
    answers = Answers({}, {}, {})
    for index, question in enumerate(examples.questions):
        low, high = windows_of[index], windows_of[index + 1]
        found = [window_candidates(features, w, start_logits, end_logits, settings) for w in range(low, high)]
        candidates = np.concatenate(found) if found else np.zeros((0, 4))
        spans = features.passage_spans[features.passage_offsets[question.passage] :]
        best = _distinct_texts(candidates, examples.passages[question.passage], spans, settings.n_best_size)
        answers.texts[question.id] = next(iter(best))
        if settings.with_unanswerable:
            null = _null_logits(start_logits[cls[low:high]], end_logits[cls[low:high]])
            answers.null_odds[question.id] = sum(null) - sum(next(iter(best.values())))
            best[""] = null
        answers.nbest[question.id] = _with_probabilities(best)
    return answers


def _null_logits(start_logits: Floats, end_logits: Floats) -> tuple[float, float]:
    """Start and end logit of [CLS] in the window where their sum is smallest; nothing to answer from: surely null."""
    if not len(start_logits):
        return SURELY_NULL, SURELY_NULL
    window = int((start_logits + end_logits).argmin())
    return float(start_logits[window]), float(end_logits[window])


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
) -> dict[str, tuple[float, float]]:
    """The best different texts with their start and end logits, best first; "empty" where there is none."""
    order = np.argsort(-(candidates[:, 0] + candidates[:, 1]), kind="stable")
    best: dict[str, tuple[float, float]] = {}
    for start_logit, end_logit, first, last in candidates[order]:
        text = passage[spans[int(first), 0] : spans[int(last), 1]]
        best.setdefault(text, (float(start_logit), float(end_logit)))
        if len(best) == number:
            break
    return best or {"empty": (0.0, 0.0)}


def _with_probabilities(best: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """The n-best list, best first, with a softmax over its own entries."""
    ordered = sorted(best.items(), key=lambda item: -sum(item[1]))
    sums = np.array([sum(pair) for _, pair in ordered])
    weights = np.exp(sums - sums.max())
    probabilities = weights / weights.sum()
    return [
        {"text": text, "probability": float(p), "start_logit": pair[0], "end_logit": pair[1]}
        for (text, pair), p in zip(ordered, probabilities, strict=True)
    ]
