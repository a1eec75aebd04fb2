"""What a predictor answers: small typed results, each with a `to_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clozelab.metrics.entities import entities


@dataclass(frozen=True)
class Result:
    """Base of all."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Token(Result):
    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Filled(Result):
    text: str
    masks: tuple[tuple[Token, ...], ...]  # of each mask in order, the best first


@dataclass(frozen=True)
class Classified(Result):
    label: str
    probability: float
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Number(Result):
    value: float  # of a regression


@dataclass(frozen=True)
class Answer(Result):
    """`passages[passage][start:end]` is `text`; "no answer" is an empty text without a place."""

    text: str
    probability: float  # among the candidates
    passage: int | None
    start: int | None
    end: int | None
    others: tuple[Answer, ...] = ()  # the next best


@dataclass(frozen=True)
class Span(Result):
    """A word, or an entity with its `words`: characters start to end, and what it is tagged as."""

    text: str
    start: int
    end: int
    label: str
    probability: float  # of an entity: the mean over its words
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tagged(Result):
    text: str
    words: tuple[Span, ...]
    entities: tuple[Span, ...]  # none where tags are no entities (parts of speech)


@dataclass(frozen=True)
class Scored(Result):
    """Natural logarithms: of the whole text, and of each token."""

    log_probability: float
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]


def entities_of(text: str, words: Sequence[Span]) -> tuple[Span, ...]:
    """The entities that the tags of a text's words make; none of parts of speech."""
    try:
        found = entities([word.label for word in words])
    except ValueError:
        return ()
    made = []
    for kind, first, end in found:
        own = words[first:end]
        a, b, mean = own[0].start, own[-1].end, float(np.mean([word.probability for word in own]))
        made.append(Span(text[a:b], a, b, kind, mean, tuple(word.text for word in own)))
    return tuple(made)


def best_answer(found: list[tuple[float, Answer]], null: float, top_k: int, threshold: float | None) -> Answer:
    """The best of a question's candidates (sum of logits, answer); with a threshold "no answer" is one of them."""
    ordered = sorted(found, key=lambda one: -one[0])
    if threshold is not None or not ordered:
        is_none = not ordered or null - ordered[0][0] > (threshold or 0.0)
        place = 0 if is_none else next((i for i, one in enumerate(ordered) if i and one[0] < null), len(ordered))
        ordered.insert(place, (null, Answer("", 0.0, None, None, None)))
    weights = np.exp(np.array([total for total, _ in ordered]) - max(total for total, _ in ordered))
    shares = (weights / weights.sum()).tolist()
    best = [replace(one, probability=p) for (_, one), p in zip(ordered, shares, strict=True)]
    return replace(best[0], others=tuple(best[1:top_k]))
