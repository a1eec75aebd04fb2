"""Simple methods that need nothing but words: what a task's surface gives away, learnt from a run's
own examples.

Bag of words: linear models over the words of each side, and over those that both share or only the
second has. Classes come from a multinomial logistic regression (full batches, zeros to begin with),
numbers from a ridge regression, and of several endings the one wins that is most like a right one.
A text is a pair whose second side may be empty. For questions there are phrases of the most similar
sentence, for words their most frequent tag.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr

# as a run's record and the report say
BAG, OVERLAP, TAGS = "bag of words", "longest overlap", "most frequent tag"
WORD = re.compile(r"\w+|[^\w\s]")  # what BERT's basic tokeniser makes of plain text, nearly
ARTICLES = ("a", "an", "the")
LONGEST_PHRASE = 2
STEPS, RATE, MOMENTUM, DECAY, RIDGE = 200, 0.5, 0.9, 1e-4, 10.0**0.5
LEAST_COUNT = 2  # a feature of a single training example says nothing of others

Texts = Sequence[tuple[str, str]]
Choices = Sequence[tuple[str, Sequence[str]]]  # (context, endings)
# (bare word, where it begins, where it ends) of every word that counts
Places = list[tuple[str, int, int]]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def guess_classes(
    train: Texts, labels: Ints, asked: Texts, num_classes: int, *, balanced: bool = False
) -> Ints:
    """Class of each asked text; `balanced` counts every class alike, however often it occurs in
    training.
    """
    x, x_asked = _matrices(train, asked)
    return (x_asked @ _logistic_regression(x, labels, num_classes, balanced)).argmax(axis=1)


def guess_numbers(train: Texts, numbers: Floats, asked: Texts) -> Floats:
    """A number for each asked text."""
    x, x_asked = _matrices(train, asked)
    middle = numbers.mean()
    return x_asked @ lsqr(x, numbers - middle, damp=RIDGE, atol=1e-8, btol=1e-8)[0] + middle


def guess_choices(train: Choices, labels: Ints, asked: Choices) -> Ints:
    """Number of the ending that looks most like a right one; all examples have as many endings."""
    number = len(asked[0][1])
    is_right = (np.arange(number) == labels[:, None]).reshape(-1).astype(np.int64)
    pairs, asked_pairs = (
        [(context, one) for context, endings in part for one in endings] for part in (train, asked)
    )
    x, x_asked = _matrices(pairs, asked_pairs)
    scores = (x_asked @ _logistic_regression(x, is_right, 2, False))[:, 1]
    return scores.reshape(-1, number).argmax(axis=1)


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def overlap(first: str, second: str) -> float:
    """Share of the second text's different words that stand in the first."""
    one, two = set(words_of(first)), set(words_of(second))
    return len(one & two) / max(len(two), 1)


def _features(first: str, second: str) -> list[str]:
    one, two = set(words_of(first)), set(words_of(second))
    sides = {"1": one, "2": two} | ({"both": one & two, "only2": two - one} if two else {})
    bag = [f"{side}:{word}" for side, words in sides.items() for word in sorted(words)]
    return bag + (
        [f"share:{round(10 * overlap(first, second))}", f"missing:{len(two - one)}"] if two else []
    )


def _matrices(train: Texts, asked: Texts) -> tuple[sparse.csr_array, sparse.csr_array]:
    """[examples, features] of both: 1 where a text has the feature; the last column is 1
    everywhere.
    """
    # while they are read: there may be millions
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    x = _matrix(([numbers[name] for name in _features(*text)] for text in train), numbers)
    counts = np.bincount(x.indices, minlength=len(numbers))
    kept = [numbers[name] for name in sorted(numbers) if counts[numbers[name]] >= LEAST_COUNT]
    x_asked = _matrix(
        ([numbers[name] for name in _features(*text) if name in numbers] for text in asked), numbers
    )

    def with_constant(one: sparse.csr_array) -> sparse.csr_array:
        return sparse.hstack([one[:, kept], sparse.csr_array(np.ones((one.shape[0], 1)))], "csr")

    return with_constant(x), with_constant(x_asked)


def _matrix(bags: Iterable[list[int]], numbers: dict[str, int]) -> sparse.csr_array:
    columns, starts = array("q"), array("q", [0])
    for bag in bags:
        columns.extend(bag)
        starts.append(len(columns))
    return sparse.csr_array(
        (np.ones(len(columns)), columns, starts), shape=(len(starts) - 1, len(numbers))
    )


def _logistic_regression(
    x: sparse.csr_array, labels: Ints, num_classes: int, balanced: bool
) -> Floats:
    """Weights [features, classes] after full-batch gradient descent with momentum and a little
    weight decay.
    """
    weights = np.zeros((x.shape[1], num_classes))
    speed = np.zeros_like(weights)
    target, transposed = np.eye(num_classes)[labels], x.T.tocsr()
    counts = np.bincount(labels, minlength=num_classes)
    share = len(labels) / (num_classes * np.maximum(counts, 1))[labels, None] if balanced else 1.0
    for _ in range(STEPS):
        scores = x @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (scores / scores.sum(axis=1, keepdims=True) - target) * share
        speed = MOMENTUM * speed - RATE * (transposed @ error / len(labels) + DECAY * weights)
        weights += speed
    return weights


class PhraseGuesser:
    """In the sentence most like the question, the first phrase that answered one of such a
    beginning in training.
    """

    def __init__(self, questions: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        self.known: dict[str, set[str]] = defaultdict(set)
        for question, texts in zip(questions, answers, strict=True):
            self.known[_beginning(question)].update(" ".join(bare_words(text)) for text in texts)

    def guess(self, passage: str, question: str) -> str:
        """A piece of the passage; empty where no phrase is known."""
        asked, known = set(bare_words(question)), self.known.get(_beginning(question), set())
        for sentence, places, _ in sorted(
            _sentences(passage), key=lambda one: -len(asked & one[2])
        ):
            for width in range(LONGEST_PHRASE, 0, -1):
                for first in range(len(places) - width + 1):
                    phrase = [word for word, _, _ in places[first : first + width]]
                    if " ".join(phrase) in known and not asked.intersection(phrase):
                        return sentence[places[first][1] : places[first + width - 1][2]]
        return ""


@lru_cache(maxsize=1)
def _sentences(passage: str) -> list[tuple[str, Places, set[str]]]:
    """A passage's questions come one after the other."""
    parts = [(text, _places(text)) for text in passage.split(". ")]
    return [(text, places, {word for word, _, _ in places}) for text, places in parts]


def bare_words(text: str) -> list[str]:
    """Words without articles and punctuation, as SQuAD's official scorer compares them."""
    return [word for word, _, _ in _places(text)]


def _places(text: str) -> Places:
    found = ((match.group().lower(), *match.span()) for match in re.finditer(r"\w+", text))
    return [place for place in found if place[0] not in ARTICLES]


def _beginning(question: str) -> str:
    return " ".join(question.split(" ")[:2])


def most_frequent_tags(
    train: Iterable[tuple[Sequence[str], Sequence[str]]],
    asked: Iterable[Sequence[str]],
    unknown: str,
) -> list[list[str]]:
    """Each asked word's most frequent tag in the (words, tags) of training, whatever its case;
    `unknown` for others.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for words, names in train:
        for word, name in zip(words, names, strict=True):
            counts[word.lower()][name] += 1
    best = {word: counted.most_common(1)[0][0] for word, counted in counts.items()}
    return [[best.get(word.lower(), unknown) for word in words] for words in asked]
