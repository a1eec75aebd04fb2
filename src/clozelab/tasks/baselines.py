"""Simple methods that need nothing but words: what a task's surface gives away.

They learn from a run's own examples. Bag of words: linear models over the words of each side, and
over those that both share or only the second has. Classes come from a multinomial logistic
regression (full batches, zeros to begin with), numbers from a ridge regression, and of several
endings the one wins that is most like a right one. A text is a pair whose second side may be empty.
For questions there are phrases of the most similar sentence, for words their most frequent tag.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import lsqr
from scipy.special import softmax

from clozelab.text.words import SINGLE, runs_of

# as a run's record and the report say
BAG = "bag of words"
OVERLAP = "longest overlap"
TAGS = "most frequent tag"
BM25 = "BM25"
RANDOM = "random order"
LETTERS = rf"[^\W{SINGLE}]"
ARTICLES = ("a", "an", "the")
LONGEST_PHRASE = 2
# of gradient descent with momentum, on all examples at once
STEPS = 200
RATE = 0.5
MOMENTUM = 0.9
DECAY = 1e-4
# lsqr squares it: a ridge penalty of 10
RIDGE = 10.0**0.5
# of BM25, as Lucene has them
K1 = 1.2
B = 0.75
LEAST_COUNT = 2  # a feature of a single training example says nothing of others

Scores = dict[str, dict[str, float]]  # baseline -> score's name -> value
Texts = Sequence[tuple[str, str]]
Choices = Sequence[tuple[str, Sequence[str]]]  # (context, endings)
# (bare word, where it begins, where it ends) of every word that counts
Places = list[tuple[str, int, int]]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def score_each_set(
    guesses: NDArray[Any],
    labels: Mapping[str, NDArray[Any]],
    score: Callable[[NDArray[Any], NDArray[Any]], Mapping[str, float]],
) -> dict[str, float]:
    """The scores of guesses for several sets behind each other; "NAME_accuracy" of a named set."""
    scores = {}
    ends = np.cumsum([len(of_set) for of_set in labels.values()])[:-1]
    for (name, of_set), part in zip(labels.items(), np.split(guesses, ends), strict=True):
        prefix = f"{name}_" if name else ""
        for metric, value in score(part, of_set).items():
            scores[prefix + metric] = value
    return scores


def guess_classes(
    train: Texts, labels: Ints, test: Texts, num_classes: int, *, balanced: bool = False
) -> Ints:
    """Class of each test text.

    `balanced` counts every class alike, however often it occurs in training.
    """
    x, x_test = _matrices(train, test)
    weights = _logistic_regression(x, labels, num_classes, balanced)
    return (x_test @ weights).argmax(axis=1)


def guess_label_sets(train: Texts, labels: Ints, test: Texts) -> Floats:
    """Probability of each label for each test text, one regression a label.

    `labels` are 0 and 1, [training texts, labels].
    """
    x, x_test = _matrices(train, test)
    columns = []
    for of_label in labels.T:
        weights = _logistic_regression(x, of_label, 2, False)
        columns.append(softmax(x_test @ weights, axis=1)[:, 1])
    return np.stack(columns, axis=1)


def guess_numbers(train: Texts, numbers: Floats, test: Texts) -> Floats:
    """A number for each test text."""
    x, x_test = _matrices(train, test)
    mean = numbers.mean()
    weights, *_ = lsqr(x, numbers - mean, damp=RIDGE, atol=1e-8, btol=1e-8)
    return x_test @ weights + mean


def guess_choices(train: Choices, labels: Ints, test: Choices) -> Ints:
    """Number of the ending that looks most like a right one; all examples have as many endings."""
    num_endings = len(test[0][1])
    # labels [1, 0] of two endings: is_right 0 1, 1 0
    is_right = (np.arange(num_endings) == labels[:, None]).reshape(-1).astype(np.int64)
    x, x_test = _matrices(_ending_pairs(train), _ending_pairs(test))
    scores = (x_test @ _logistic_regression(x, is_right, 2, False))[:, 1]
    return scores.reshape(-1, num_endings).argmax(axis=1)


def _ending_pairs(choices: Choices) -> list[tuple[str, str]]:
    """Each ending with its context."""
    pairs = []
    for context, endings in choices:
        pairs += [(context, ending) for ending in endings]
    return pairs


def text_pairs(rows: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    """The texts of each example as a pair, whose second side is empty for single texts."""
    pairs = []
    for texts in rows:
        second = texts[1] if len(texts) == 2 else ""
        pairs.append((texts[0], second))
    return pairs


def words_of(text: str) -> list[str]:
    """What BERT's basic tokeniser makes of plain text, nearly."""
    return word_pattern(r"|[^\w\s]").findall(text.lower())


@cache
def word_pattern(others: str = "") -> re.Pattern[str]:
    """Words of letters and digits, each character of Chinese, and what else `others` says."""
    return re.compile(rf"[{SINGLE}]|{runs_of(LETTERS)}{others}")


def overlap(first: str, second: str) -> float:
    """Share of the second text's different words that stand in the first."""
    first_words = set(words_of(first))
    second_words = set(words_of(second))
    return len(first_words & second_words) / max(len(second_words), 1)


def bm25(queries: Sequence[str], documents: Sequence[str]) -> Iterator[Floats]:
    """The scores [documents] of each query, one after the other (Robertson and Zaragoza 2009).

    The weight of a word is that of Lucene, log(1 + (N - n + 0.5) / (n + 0.5)), which is positive.
    """
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    bags = []
    for text in documents:
        bags.append([numbers[word] for word in words_of(text)])
    counts = _matrix(bags, numbers)
    counts.sum_duplicates()
    lengths = counts.sum(axis=1)
    relative = lengths / max(lengths.mean(), 1.0)
    # Of each stored count: how long its document is beside the mean.
    of_entry = np.repeat(relative, np.diff(counts.indptr))
    num_with = np.bincount(counts.indices, minlength=len(numbers))
    rarity = np.log(1 + (len(documents) - num_with + 0.5) / (num_with + 0.5))
    saturated = counts.data * (K1 + 1) / (counts.data + K1 * (1 - B + B * of_entry))
    counts.data = saturated * rarity[counts.indices]
    by_word = counts.tocsc()
    for query in queries:
        known = [numbers[word] for word in words_of(query) if word in numbers]
        yield np.asarray(by_word[:, known].sum(axis=1)).ravel()


def _features(first: str, second: str) -> list[str]:
    """Names of a pair's features, such as "1:cat", "both:cat", "share:5"."""
    first_words = set(words_of(first))
    second_words = set(words_of(second))
    sides = {"1": first_words, "2": second_words}
    if second_words:
        sides["both"] = first_words & second_words
        sides["only2"] = second_words - first_words
    names = []
    for side, words in sides.items():
        names += [f"{side}:{word}" for word in sorted(words)]
    if second_words:
        # In tenths: a feature is there or not.
        names.append(f"share:{round(10 * overlap(first, second))}")
        names.append(f"missing:{len(sides['only2'])}")
    return names


def _matrices(train: Texts, test: Texts) -> tuple[sparse.csr_array, sparse.csr_array]:
    """[examples, features] of both: 1 where a text has the feature.

    The last column is 1 everywhere. A feature is one of the training texts', of two at least.
    """
    # A feature gets its number when it is first read. Bags are numbers at once: there may be
    # millions of names.
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))

    def learn(text: tuple[str, str]) -> list[int]:
        return [numbers[name] for name in _features(*text)]

    def look_up(text: tuple[str, str]) -> list[int]:
        return [numbers[name] for name in _features(*text) if name in numbers]

    x = _matrix(map(learn, train), numbers)
    x_test = _matrix(map(look_up, test), numbers)
    counts = np.bincount(x.indices, minlength=len(numbers))
    kept = []
    for name in sorted(numbers):
        if counts[numbers[name]] >= LEAST_COUNT:
            kept.append(numbers[name])
    return _with_constant(x[:, kept]), _with_constant(x_test[:, kept])


def _with_constant(x: sparse.csr_array) -> sparse.csr_array:
    constant = sparse.csr_array(np.ones((x.shape[0], 1)))
    return sparse.hstack([x, constant], "csr")


def _matrix(bags: Iterable[list[int]], numbers: dict[str, int]) -> sparse.csr_array:
    columns = array("q")
    starts = array("q", [0])
    for bag in bags:
        columns.extend(bag)
        starts.append(len(columns))
    # Row i has its ones in columns[starts[i] : starts[i + 1]].
    shape = (len(starts) - 1, len(numbers))
    return sparse.csr_array((np.ones(len(columns)), columns, starts), shape=shape)


def _logistic_regression(
    x: sparse.csr_array, labels: Ints, num_classes: int, balanced: bool
) -> Floats:
    """Weights [features, classes] of a multinomial regression with a little weight decay.

    They come from full-batch gradient descent with momentum.
    """
    weights = np.zeros((x.shape[1], num_classes))
    velocity = np.zeros_like(weights)
    target = np.eye(num_classes)[labels]  # [examples, classes], one-hot
    transposed = x.T.tocsr()
    example_weights: Floats | float = 1.0
    if balanced:
        # N / (K * count): each class weighs the same in all.
        counts = np.bincount(labels, minlength=num_classes)
        example_weights = len(labels) / (num_classes * np.maximum(counts, 1))[labels, None]
    for _ in range(STEPS):
        error = (softmax(x @ weights, axis=1) - target) * example_weights
        gradient = transposed @ error / len(labels) + DECAY * weights
        velocity = MOMENTUM * velocity - RATE * gradient
        weights += velocity
    return weights


class PhraseGuesser:
    """Guesses a known phrase of the sentence that is most like the question.

    A phrase is known for questions of a beginning ("how many") where it answered such a one in
    training.
    """

    def __init__(self, questions: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        self.phrases: dict[str, set[str]] = defaultdict(set)  # of each beginning
        for question, texts in zip(questions, answers, strict=True):
            self.phrases[_beginning(question)].update(" ".join(bare_words(text)) for text in texts)

    def guess(self, passage: str, question: str) -> str:
        """A piece of the passage; empty where no phrase is known."""
        question_words = set(bare_words(question))
        phrases = self.phrases.get(_beginning(question), set())
        by_similarity = sorted(
            _sentences(passage), key=lambda sentence: -len(question_words & sentence.words)
        )
        for sentence in by_similarity:
            for width in range(LONGEST_PHRASE, 0, -1):
                span = _known_span(sentence.places, width, phrases, question_words)
                if span is not None:
                    return sentence.text[slice(*span)]
        return ""


@dataclass(frozen=True)
class _Sentence:
    text: str
    places: Places
    words: set[str]


def _known_span(
    places: Places, width: int, phrases: set[str], question_words: set[str]
) -> tuple[int, int] | None:
    """Characters of the first phrase of `width` words that is known and not in the question."""
    for first in range(len(places) - width + 1):
        window = places[first : first + width]
        words = [word for word, _, _ in window]
        if " ".join(words) in phrases and not question_words.intersection(words):
            return window[0][1], window[-1][2]
    return None


@lru_cache(maxsize=1)  # a passage's questions come one after the other
def _sentences(passage: str) -> list[_Sentence]:
    sentences = []
    for text in passage.split(". "):
        places = _places(text)
        sentences.append(_Sentence(text, places, {word for word, _, _ in places}))
    return sentences


def bare_words(text: str) -> list[str]:
    """Words without articles and punctuation, as SQuAD's official scorer compares them."""
    return [word for word, _, _ in _places(text)]


def _places(text: str) -> Places:
    words = ((match.group().lower(), *match.span()) for match in word_pattern().finditer(text))
    return [place for place in words if place[0] not in ARTICLES]


def _beginning(question: str) -> str:
    return " ".join(question.split(" ")[:2])


def most_frequent_tags(
    train: Iterable[tuple[Sequence[str], Sequence[str]]],
    test: Iterable[Sequence[str]],
    unknown: str,
) -> list[list[str]]:
    """Each test word's most frequent tag in training, whatever its case.

    `train` has (words, tags) of each sentence. A word that is not there gets `unknown`.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in train:
        for word, tag in zip(words, tags, strict=True):
            counts[word.lower()][tag] += 1
    best = {}
    for word, tag_counts in counts.items():
        tag, _ = tag_counts.most_common(1)[0]
        best[word] = tag
    guesses = []
    for words in test:
        guesses.append([best.get(word.lower(), unknown) for word in words])
    return guesses
