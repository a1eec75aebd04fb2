"""Words of a text, and answers that need nothing but them: phrases for questions, tags for words.

Bag of words: linear models over the words of each side, and over those that both share or only the second has.

So the overlap of two texts is part of it. Deterministic: full batches, zeros to begin with. Classes come from a
multinomial logistic regression (gradient descent with momentum), numbers from a ridge regression, and of several
endings the one wins that is most like a right one. A text is a pair whose second side may be empty.

At the end: what these methods score on a task's validation split, learnt from the very examples that a run is trained
on. Scores have the names and the unit of the task's own scorer (shares of one, SQuAD's in percent).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsqr

from clozelab.datamodules.files import Scores, TextExamples
from clozelab.metrics import glue
from clozelab.metrics.entities import OUTSIDE, entity_scores, tag_scores
from clozelab.metrics.squad import score_v1, score_v2

WORD = re.compile(r"\w+|[^\w\s]")
"""What BERT's basic tokeniser makes of plain text, nearly."""
BAG, OVERLAP, TAGS = "bag of words", "longest overlap", "most frequent tag"
"""Names of the baselines, as a run's record and the report have them."""
_ARTICLES = ("a", "an", "the")
_LONGEST_PHRASE = 2


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


def bare_words(text: str) -> list[str]:
    """Words without articles and punctuation, as SQuAD's official scorer compares them."""
    return [word for word, _, _ in _places(text)]


def _places(text: str) -> list[tuple[str, int, int]]:
    """(bare word, where it begins, where it ends) of every word that counts."""
    found = ((match.group().lower(), *match.span()) for match in re.finditer(r"\w+", text))
    return [place for place in found if place[0] not in _ARTICLES]


class PhraseGuesser:
    """For a question: the sentence that shares most words with it, and in it the first phrase (of two words or one)
    that answered a question of such a beginning in training."""

    def __init__(self, questions: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        self.known: dict[str, set[str]] = defaultdict(set)
        for question, texts in zip(questions, answers, strict=True):
            self.known[_beginning(question)].update(" ".join(bare_words(text)) for text in texts)
        self._sentences: tuple[str, list[tuple[str, list[tuple[str, int, int]], set[str]]]] = ("", [])

    def guess(self, passage: str, question: str) -> str:
        """A piece of the passage; empty where no phrase is known."""
        asked, known = set(bare_words(question)), self.known.get(_beginning(question), set())
        for sentence, places, _ in sorted(self._split(passage), key=lambda one: -len(asked & one[2])):
            for width in range(_LONGEST_PHRASE, 0, -1):
                for first in range(len(places) - width + 1):
                    phrase = [word for word, _, _ in places[first : first + width]]
                    if " ".join(phrase) in known and not asked.intersection(phrase):
                        return sentence[places[first][1] : places[first + width - 1][2]]
        return ""

    def _split(self, passage: str) -> list[tuple[str, list[tuple[str, int, int]], set[str]]]:
        """(text, places of its words, the words) of each sentence; a passage's questions come one after the other."""
        if self._sentences[0] != passage:
            parts = [(text, _places(text)) for text in passage.split(". ")]
            self._sentences = passage, [(text, places, {word for word, _, _ in places}) for text, places in parts]
        return self._sentences[1]


def _beginning(question: str) -> str:
    return " ".join(question.split(" ")[:2])


def most_frequent_tags(
    train: Iterable[tuple[Sequence[str], Sequence[str]]], asked: Iterable[Sequence[str]], unknown: str
) -> list[list[str]]:
    """Each asked word's most frequent tag in the (words, tags) of training, whatever its case; `unknown` for a word
    that is not there."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for words, names in train:
        for word, name in zip(words, names, strict=True):
            counts[word.lower()][name] += 1
    best = {word: counted.most_common(1)[0][0] for word, counted in counts.items()}
    return [[best.get(word.lower(), unknown) for word in words] for words in asked]


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


Sentence = tuple[Sequence[str], Sequence[str]]
"""(words, tags)."""


def of_labels(train: TextExamples, asked: Mapping[str, TextExamples], names: Sequence[str]) -> Scores:
    """Bag of words. `asked`: prefix of the scores' names -> examples; `names` of the classes, none for numbers."""

    index = {name: number for number, name in enumerate(names)}

    def values(examples: TextExamples) -> np.ndarray:
        labels = examples.labels or []
        return np.array([index[label] for label in labels] if names else [float(label) for label in labels])

    def pairs(examples: TextExamples) -> list[tuple[str, str]]:
        return [(texts[0], texts[1] if len(texts) == 2 else "") for texts in examples.texts]

    texts = [pair for examples in asked.values() for pair in pairs(examples)]
    guesses: np.ndarray
    if names:
        metrics = ["accuracy", "f1", "matthews"] if len(names) == 2 else ["accuracy"]
        guesses = guess_classes(pairs(train), values(train), texts, len(names))
    else:
        metrics = ["spearman", "pearson"]
        guesses = guess_numbers(pairs(train), values(train), texts)
    scores: dict[str, float] = {}
    for prefix, examples in asked.items():
        mine, guesses = guesses[: len(examples)], guesses[len(examples) :]
        scores |= {f"{prefix}{name}": value for name, value in glue.score(metrics, mine, values(examples)).items()}
    return {BAG: scores}


def of_choices(train: TextExamples, asked: TextExamples) -> Scores:
    """Bag of words: the ending that looks most like a right one."""
    pairs, asked_pairs = ([(context, endings) for context, *endings in one.texts] for one in (train, asked))
    labels, truth = (np.array(one.labels, dtype=np.int64) for one in (train, asked))
    return {BAG: glue.score(["accuracy"], guess_choices(pairs, labels, asked_pairs), truth)}


def of_spans(
    train: Sequence[tuple[str, Sequence[str]]],
    asked: Mapping[str, tuple[str, str, Sequence[str]]],
    *,
    with_unanswerable: bool,
) -> Scores:
    """Longest overlap; a question for which no phrase is known gets no answer, in 2.0 as well.

    Args:
        train: (question, answers).
        asked: question's id -> (passage, question, answers).
    """
    guesser = PhraseGuesser([question for question, _ in train], [answers for _, answers in train])
    guesses = {key: guesser.guess(passage, question) for key, (passage, question, _) in asked.items()}
    answers = {key: known for key, (_, _, known) in asked.items()}
    scores = score_v2(answers, guesses) if with_unanswerable else score_v1(answers, guesses)
    kept = ("exact", "f1") if with_unanswerable else ("exact_match", "f1")
    return {OVERLAP: {name: scores[name] for name in kept}}


def of_tags(train: Sequence[Sentence], asked: Sequence[Sentence], *, entity_tags: bool) -> Scores:
    """Each word's most frequent tag; an unknown word is no entity, or has the most frequent tag of all."""
    counts = Counter(name for _, names in train for name in names)
    unknown = OUTSIDE if entity_tags else counts.most_common(1)[0][0]
    guesses = most_frequent_tags(train, [words for words, _ in asked], unknown)
    return {TAGS: (entity_scores if entity_tags else tag_scores)(guesses, [names for _, names in asked])}
