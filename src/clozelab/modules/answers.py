"""What a predictor answers: small typed results, each with a `to_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clozelab.metrics.entities import entities


@dataclass(frozen=True)
class Result:
    """Base of all results."""

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
    """What a regression says."""

    value: float


@dataclass(frozen=True)
class Answer(Result):
    """`passage[start:end]` is `text`; "no answer" is an empty text without a place."""

    text: str
    probability: float  # among the candidates of the n-best list
    passage: int | None  # number of the passage
    start: int | None
    end: int | None
    others: tuple[Answer, ...] = ()  # the next best


@dataclass(frozen=True)
class Word(Result):
    """`start` and `end` are characters of the text."""

    text: str
    start: int
    end: int
    tag: str
    probability: float


@dataclass(frozen=True)
class Entity(Result):
    text: str
    type: str
    start: int
    end: int
    words: tuple[str, ...]
    probability: float  # mean over its words


@dataclass(frozen=True)
class Tagged(Result):
    text: str
    words: tuple[Word, ...]
    entities: tuple[Entity, ...]  # none where tags are no entities (parts of speech)


@dataclass(frozen=True)
class Scored(Result):
    log_probability: float  # natural logarithm: the sum over the tokens
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]


@dataclass(frozen=True)
class NextSentence(Result):
    is_next: bool
    probability: float  # that the second text follows the first


def entities_of(text: str, words: Sequence[Word]) -> tuple[Entity, ...]:
    """The entities that the tags of a text's words make; none of parts of speech."""
    try:
        found = entities([word.tag for word in words])
    except ValueError:
        return ()
    made = []
    for kind, first, end in found:
        own = words[first:end]
        start, stop = own[0].start, own[-1].end
        said = tuple(word.text for word in own)
        made.append(
            Entity(text[start:stop], kind, start, stop, said, float(np.mean([word.probability for word in own])))
        )
    return tuple(made)


def best_answer(found: list[tuple[float, Answer]], null: float, top_k: int, threshold: float | None) -> Answer:
    """The best of one question's candidates (sum of logits, answer); with a threshold "no answer" is one of them."""
    none = Answer("", 0.0, None, None, None)
    ordered = sorted(found, key=lambda one: -one[0])
    if threshold is not None or not ordered:
        is_none = not ordered or null - ordered[0][0] > (threshold or 0.0)
        place = 0 if is_none else next((i for i, one in enumerate(ordered) if i and one[0] < null), len(ordered))
        ordered.insert(place, (null, none))
    sums = np.array([total for total, _ in ordered])
    weights = np.exp(sums - sums.max())
    shares = (weights / weights.sum()).tolist()
    best = [replace(one, probability=p) for (_, one), p in zip(ordered, shares, strict=True)]
    return replace(best[0], others=tuple(best[1:top_k]))
