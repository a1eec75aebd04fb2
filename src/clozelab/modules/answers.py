"""What a predictor answers: small typed results, each with a `to_dict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from clozelab.metrics.entities import entities
from clozelab.text.plain import PlainDict

SHOWN_PROBLEMS = 3  # of texts that were not answered


@dataclass(frozen=True)
class Result:
    """Base of all results."""

    def to_dict(self) -> PlainDict:
        return asdict(self)

    def to_columns(self) -> PlainDict:
        """What stands beside a row of a table: plain values by the names of columns."""
        return self.to_dict()


@dataclass(frozen=True)
class Unanswered(Result):
    """Stands for the answer to a text that the model cannot read.

    `error` says why: "is empty: ...".
    """

    error: str

    def __getattr__(self, name: str) -> object:
        # Only names that it lacks come here; copying and pickling ask for some before it has any.
        if name.startswith("__") or name == "error":
            raise AttributeError(name)
        raise AttributeError(
            f"there is no {name}: this text was not answered, because it {self.error}",
        )


@dataclass(frozen=True)
class Cut:
    """The answer to the beginning of a text: the rest was not read, as in the fine-tuning."""

    answer: object


@dataclass(frozen=True)
class Token(Result):
    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Filled(Result):
    text: str
    masks: tuple[tuple[Token, ...], ...]  # of each mask in order, the best first

    def to_columns(self) -> PlainDict:
        best = [mask[0].token for mask in self.masks]
        return {"prediction": best, "masks": self.to_dict()["masks"]}


@dataclass(frozen=True)
class Classified(Result):
    label: str
    probability: float
    probabilities: dict[str, float]

    def to_columns(self) -> PlainDict:
        columns = {"prediction": self.label, "probability": self.probability}
        return columns | _by_label(self.probabilities)


@dataclass(frozen=True)
class Labelled(Result):
    """The labels more probable than the threshold, perhaps none.

    Of a model whose labels do not exclude each other.
    """

    labels: tuple[str, ...]
    probabilities: dict[str, float]  # each label's own, so that they do not add up to 1

    def to_columns(self) -> PlainDict:
        return {"prediction": list(self.labels), **_by_label(self.probabilities)}


@dataclass(frozen=True)
class Number(Result):
    value: float  # of a regression

    def to_columns(self) -> PlainDict:
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

    def to_columns(self) -> PlainDict:
        return {
            "prediction": self.text,
            "probability": self.probability,
            "passage_number": self.passage,  # a table's own `passage` is a text
            "start": self.start,
            "end": self.end,
        }


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

    def to_columns(self) -> PlainDict:
        words = [word.text for word in self.words]
        tags = [word.label for word in self.words]
        return {"words": words, "tags": tags, "entities": self.to_dict()["entities"]}


@dataclass(frozen=True)
class WordNumber(Result):
    """A word at the characters start to end, and the number that is predicted for it."""

    text: str
    start: int
    end: int
    number: float


@dataclass(frozen=True)
class NumberedWords(Result):
    """Of a model that predicts a number for each word."""

    text: str
    words: tuple[WordNumber, ...]

    def to_columns(self) -> PlainDict:
        words = [word.text for word in self.words]
        return {"words": words, "numbers": [word.number for word in self.words]}


@dataclass(frozen=True)
class Scored(Result):
    """Natural logarithms: of the whole text, and of each token."""

    log_probability: float
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    def to_columns(self) -> PlainDict:
        tokens = {"tokens": list(self.tokens), "log_probabilities": list(self.log_probabilities)}
        return {"prediction": self.log_probability} | tokens


def columns_of(results: Sequence[object], array_name: str = "embedding") -> dict[str, list[object]]:
    """The columns that a table gets: name -> a value of each row, None where a row has none.

    A result is a `Result`, or an array that stands in the column `array_name`. `error` comes last.
    """
    rows: list[PlainDict] = []
    names: dict[str, None] = {}  # a set that keeps its order
    for result in results:
        if isinstance(result, Result):
            row = result.to_columns()
        else:
            row = {array_name: result}
        rows.append(row)
        names.update(dict.fromkeys(row))
    names.pop("error", None)
    columns = {}
    for name in (*names, "error"):
        columns[name] = [row.get(name) for row in rows]
    return columns


def summary_of(problems: Sequence[tuple[str, str]], total: int) -> str:
    """How many texts were not answered, and of the first three which and why.

    For example `2 of 90 texts were not answered: text 7 is empty; text 9 has ...`.
    """
    phrases = list[str]()
    # from the last on: what to do about it ("...: shorten it") is said once, behind all
    for text, reason in reversed(problems[:SHOWN_PROBLEMS]):
        fact, _, advice = reason.partition(": ")
        is_told = any(phrase.endswith(advice) for phrase in phrases)
        phrases.append(f"{text} {fact if advice and is_told else reason}")
    reasons = "; ".join(reversed(phrases))
    hidden = len(problems) - SHOWN_PROBLEMS
    if hidden > 0:
        reasons += f"; and {hidden:,} more"
    return f"{len(problems):,} of {total:,} texts were not answered: {reasons}"


def _by_label(probabilities: dict[str, float]) -> dict[str, float]:
    return {f"probability_{name}": value for name, value in probabilities.items()}


def entities_of(text: str, words: Sequence[Span]) -> tuple[Span, ...]:
    """The entities that the tags of a text's words make."""
    spans = []
    for label, first, end in entities([word.label for word in words]):
        members = words[first:end]
        begin = members[0].start
        finish = members[-1].end
        probability = float(np.mean([word.probability for word in members]))
        texts = tuple(word.text for word in members)
        spans.append(Span(text[begin:finish], begin, finish, label, probability, texts))
    return tuple(spans)
