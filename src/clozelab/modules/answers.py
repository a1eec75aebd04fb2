"""What a predictor answers: small typed results, each with a `to_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from clozelab.metrics.entities import entities

SHOWN_PROBLEMS = 3  # of texts that were not answered


@dataclass(frozen=True)
class Result:
    """Base of all."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_columns(self) -> dict[str, Any]:
        """What stands beside a row of a table: plain values by the names of columns."""
        return self.to_dict()


@dataclass(frozen=True)
class Unanswered(Result):
    """Stands for the answer to a text that the model cannot read; `error` says why: "is empty:
    ..."."""

    error: str

    def __getattr__(self, name: str) -> Any:
        # Only names that it lacks come here; copying and pickling ask for some before it has any.
        if name.startswith("__") or name == "error":
            raise AttributeError(name)
        raise AttributeError(
            f"there is no {name}: this text was not answered, because it {self.error}",
        )


@dataclass(frozen=True)
class Token(Result):
    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Filled(Result):
    text: str
    masks: tuple[tuple[Token, ...], ...]  # of each mask in order, the best first

    def to_columns(self) -> dict[str, Any]:
        best = [mask[0].token for mask in self.masks]
        return {"prediction": best, "masks": self.to_dict()["masks"]}


@dataclass(frozen=True)
class Classified(Result):
    label: str
    probability: float
    probabilities: dict[str, float]

    def to_columns(self) -> dict[str, Any]:
        return {"prediction": self.label, "probability": self.probability} | _by_label(
            self.probabilities,
        )


@dataclass(frozen=True)
class Labelled(Result):
    """Of a model whose labels do not exclude each other: those more probable than the threshold,
    perhaps none."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]  # each label's own, so that they do not add up to 1

    def to_columns(self) -> dict[str, Any]:
        return {"prediction": list(self.labels)} | _by_label(self.probabilities)


@dataclass(frozen=True)
class Number(Result):
    value: float  # of a regression

    def to_columns(self) -> dict[str, Any]:
        return {"prediction": self.value}


@dataclass(frozen=True)
class Answer(Result):
    """`passages[passage][start:end]` is `text`; "no answer" is an empty text without a place."""

    text: str
    probability: float  # among the candidates
    passage: int | None
    start: int | None
    end: int | None
    others: tuple[Answer, ...] = ()  # the next best

    def to_columns(self) -> dict[str, Any]:
        place = {"passage": self.passage, "start": self.start, "end": self.end}
        return {"prediction": self.text, "probability": self.probability} | place


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

    def to_columns(self) -> dict[str, Any]:
        words = [word.text for word in self.words]
        tags = [word.label for word in self.words]
        return {"words": words, "tags": tags, "entities": self.to_dict()["entities"]}


@dataclass(frozen=True)
class Scored(Result):
    """Natural logarithms: of the whole text, and of each token."""

    log_probability: float
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    def to_columns(self) -> dict[str, Any]:
        tokens = {"tokens": list(self.tokens), "log_probabilities": list(self.log_probabilities)}
        return {"prediction": self.log_probability} | tokens


def columns_of(results: Sequence[Any], array_name: str = "embedding") -> dict[str, list[Any]]:
    """The columns that a table gets: name -> a value of each row, None where a row has none;
    `error` comes last.

    A result is a `Result`, or an array that stands in the column `array_name`."""
    rows: list[dict[str, Any]] = []
    for result in results:
        rows.append(result.to_columns() if isinstance(result, Result) else {array_name: result})
    names = dict.fromkeys(name for row in rows for name in row if name != "error")
    columns = {}
    for name in (*names, "error"):
        columns[name] = [row.get(name) for row in rows]
    return columns


def summary_of(problems: Sequence[tuple[str, str]], total: int) -> str:
    """`2 of 90 texts were not answered: text 7 is empty; text 9 has ...`; of (which text, why) the
    first three."""
    shown = "; ".join(f"{place} {reason}" for place, reason in problems[:SHOWN_PROBLEMS])
    others = len(problems) - SHOWN_PROBLEMS
    more = ""
    if others > 0:
        more = f"; and {others:,} more"
    return f"{len(problems):,} of {total:,} texts were not answered: {shown}{more}"


def _by_label(probabilities: dict[str, float]) -> dict[str, float]:
    return {f"probability_{name}": value for name, value in probabilities.items()}


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


def best_answer(
    found: list[tuple[float, Answer]], null: float, top_k: int, threshold: float | None
) -> Answer:
    """The best of a question's candidates (sum of logits, answer); with a threshold "no answer" is
    one of them.
    """
    ordered = sorted(found, key=lambda one: -one[0])
    if threshold is not None or not ordered:
        is_none = not ordered or null - ordered[0][0] > (threshold or 0.0)
        place = (
            0
            if is_none
            else next((i for i, one in enumerate(ordered) if i and one[0] < null), len(ordered))
        )
        ordered.insert(place, (null, Answer("", 0.0, None, None, None)))
    weights = np.exp(np.array([total for total, _ in ordered]) - max(total for total, _ in ordered))
    shares = (weights / weights.sum()).tolist()
    best = [replace(one, probability=p) for (_, one), p in zip(ordered, shares, strict=True)]
    return replace(best[0], others=tuple(best[1:top_k]))
