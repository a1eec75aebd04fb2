"""Bag of words: linear models over the words of each side, and over those that both share or only the second has.

So the overlap of two texts is part of it. Deterministic: full batches, zeros to begin with. Classes come from a
multinomial logistic regression (gradient descent with momentum), numbers from a ridge regression, and of several
endings the one wins that is most like a right one. A text is a pair whose second side may be empty.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsqr

from clozelab.data.baselines.words import words_of

Texts = Sequence[tuple[str, str]]
Choices = Sequence[tuple[str, Sequence[str]]]
"""(context, endings)."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STEPS, RATE, MOMENTUM, DECAY, RIDGE = 200, 0.5, 0.9, 1e-4, 10.0**0.5
LEAST_COUNT = 2
"""A feature of a single training example says nothing of others."""


def guess_classes(train: Texts, labels: Ints, asked: Texts, num_classes: int, *, balanced: bool = False) -> Ints:
    """Class of each asked text; `balanced` counts every class alike, however often it occurs in training."""
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
    x, x_asked = _matrices(_pairs(train), _pairs(asked))
    scores = (x_asked @ _logistic_regression(x, is_right, 2, False))[:, 1]
    return scores.reshape(-1, number).argmax(axis=1)


def overlap(first: str, second: str) -> float:
    """Share of the second text's different words that stand in the first."""
    return _share(set(words_of(first)), set(words_of(second)))


def _share(one: set[str], two: set[str]) -> float:
    return len(two & one) / max(len(two), 1)


def _pairs(choices: Choices) -> list[tuple[str, str]]:
    return [(context, ending) for context, endings in choices for ending in endings]


def _features(first: str, second: str) -> list[str]:
    one, two = set(words_of(first)), set(words_of(second))
    bag = [f"1:{word}" for word in sorted(one)] + [f"2:{word}" for word in sorted(two)]
    if two:
        bag += [f"both:{word}" for word in sorted(one & two)] + [f"only2:{word}" for word in sorted(two - one)]
        bag += [f"share:{round(10 * _share(one, two))}", f"missing:{len(two - one)}"]
    return bag


def _matrices(train: Texts, asked: Texts) -> tuple[csr_array, csr_array]:
    """[examples, features] of both: 1 where a text has the feature; the last column is 1 everywhere."""
    numbers: dict[str, int] = {}
    columns, starts = _columns((_features(*text) for text in train), numbers, grows=True)
    counts = np.bincount(columns[columns >= 0], minlength=len(numbers))
    kept = sorted(name for name, number in numbers.items() if counts[number] >= LEAST_COUNT)
    places = np.full(len(numbers) + 1, -1)
    places[[numbers[name] for name in kept]] = np.arange(len(kept))
    known = {name: place for place, name in enumerate(kept)}
    asked_columns, asked_starts = _columns((_features(*text) for text in asked), known, grows=False)
    return _matrix(places[columns], starts, len(kept)), _matrix(asked_columns, asked_starts, len(kept))


def _columns(bags: Iterable[list[str]], numbers: dict[str, int], *, grows: bool) -> tuple[Ints, Ints]:
    """Feature numbers of all bags behind each other and where each bag begins; -1: unknown. As numbers, not as texts:
    a hundred thousand pairs have millions of features."""
    flat, starts = array("q"), array("q", [0])
    for bag in bags:
        if grows:
            flat.extend([numbers.setdefault(name, len(numbers)) for name in bag])
        else:
            flat.extend([numbers.get(name, -1) for name in bag])
        starts.append(len(flat))
    return np.array(flat, dtype=np.int64), np.array(starts, dtype=np.int64)


def _matrix(columns: Ints, starts: Ints, num_features: int) -> csr_array:
    """Without what is unknown (-1), and with the last column that all examples have."""
    known = columns >= 0
    sizes = np.add.reduceat(np.append(known, False), starts[:-1]) * (np.diff(starts) > 0)
    ends = np.cumsum(sizes)
    columns = np.insert(columns[known], ends, num_features)
    starts = np.append(0, ends + np.arange(1, len(ends) + 1))
    return csr_array((np.ones(len(columns)), columns, starts), shape=(len(ends), num_features + 1))


def _logistic_regression(x: csr_array, labels: Ints, num_classes: int, balanced: bool) -> Floats:
    """Weights [features, classes] after full-batch gradient descent with momentum and a little weight decay."""
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
