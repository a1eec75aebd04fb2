"""Every random decision of the world goes through one object, by name; from that follows the best
reachable loss.

A document is a deterministic function of its decisions. So it can be told again with one decision
changed, and the probability of every telling is the product of its decisions' probabilities. Only
`random.Random.random` is used, whose sequence Python guarantees across versions; so bytes are the
same everywhere.

**Left to right** the loss is exact: no decision is hidden, so the decisions' entropy is the text's
own (a mean over documents, hence the error bar), for a reader who sees the document from its
beginning. An instance that begins inside a document shows less, so no model gets below it on
average.

**Masked** it is a lower bound. A document told again with one decision changed is one alternative
reading, which and it differs at known positions. A masked word's posterior is the sum over the
alternatives that differ only where the reader cannot see: at masked words, and outside the reader's
window. Two things make the bound low: alternatives with two or more changed decisions are left out
(the test counts pairs of them), and the reader is given the structure of what it sees.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from microworld.grammar import Sentence
from microworld.lexicon import words_of

T = TypeVar("T", bound=Hashable)


class Unreachable(Exception):
    """The forced decisions cannot be made here: such a document has probability zero, or another
    structure.
    """


@dataclass(frozen=True)
class Decision:
    options: tuple[Any, ...]
    probabilities: tuple[float, ...]
    value: Any


class Choices:
    """Random decisions, each under an address that is unique in its document.

    `seed` names the stream. With `forced` (address -> value) nothing is random: every decision
    takes its forced value, and `Unreachable` is raised where that value is not on offer.
    `record=True` keeps the decisions in `decisions`.
    """

    def __init__(
        self, seed: str, forced: Mapping[Hashable, Any] | None = None, record: bool = False
    ) -> None:
        self._random = random.Random(seed).random
        self._forced = forced
        self._record = record
        self.decisions: dict[Hashable, Decision] = {}
        self.log_probability = 0.0

    def pick(
        self, address: Hashable, options: Sequence[T], weights: Sequence[float] | None = None
    ) -> T:
        """One of `options`, uniformly or by `weights` (positive, any scale)."""
        if self._forced is not None:
            value = self._take_forced(address, options)
        elif weights is None:
            value = options[int(self._random() * len(options))]
        else:
            value = self._draw(options, weights)
        if self._record:
            self._note(address, options, weights, value)
        return value

    def chance(self, address: Hashable, probability: float) -> bool:
        return self.pick(address, (True, False), (probability, 1.0 - probability))

    def shuffled(self, address: Hashable, items: Sequence[T]) -> list[T]:
        left, result = list(items), []
        while left:
            index = self.pick((address, len(left)), range(len(left)))
            result.append(left.pop(index))
        return result

    def _draw(self, options: Sequence[T], weights: Sequence[float]) -> T:
        point = self._random() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            point -= weight
            if point < 0:
                return option
        return options[-1]

    def _take_forced(self, address: Hashable, options: Sequence[T]) -> T:
        assert self._forced is not None
        value = self._forced.get(address, Unreachable)
        if value is Unreachable or value not in options:
            raise Unreachable(address)
        return value

    def _note(
        self, address: Hashable, options: Sequence[Any], weights: Sequence[float] | None, value: Any
    ) -> None:
        assert address not in self.decisions, f"decision {address} is made twice"
        if weights is None:
            weights = [1.0] * len(options)
        total = sum(weights)
        probabilities = tuple(weight / total for weight in weights)
        self.decisions[address] = Decision(tuple(options), probabilities, value)
        self.log_probability += math.log(probabilities[options.index(value)])


# ---- the best reachable loss
# -----------------------------------------------------------------------------------------

WINDOW = 62
"""Words that a row of 64 tokens can show of one document: no more, with [CLS] and one [SEP]."""
HIDDEN_FRACTION = 0.135
"""Of 15 % of the words that are predicted, a tenth stands in view with BERT's 80/10/10
corruption.
"""
DRAWS = 8
"""Random masks a document."""
LEFT_TO_RIGHT_DOCUMENTS = 50
"""No alternative has to be told for that figure, so a sample as large as this costs little."""
Teller = Callable[[Choices], Sequence[Sentence]]


@dataclass(frozen=True)
class Alternative:
    positions: frozenset[int]
    """Where it differs from the document."""
    words: dict[int, str]
    weight: float
    """Its probability over the document's."""


@dataclass(frozen=True)
class Reading:
    """One document with its alternatives, grouped by each position they touch."""

    words: list[str]
    log_probability: float
    by_position: dict[int, list[Alternative]]


def read_document(tell: Teller, seed: str) -> Reading:
    """Tells the document `seed` and all its tellings with one decision changed."""
    choices = Choices(seed, record=True)
    text = _tell(tell, choices)
    values = {address: decision.value for address, decision in choices.decisions.items()}
    by_position: dict[int, list[Alternative]] = {}
    for address, decision in choices.decisions.items():
        for option in decision.options:
            if option == decision.value:
                continue
            alternative = retell(tell, {**values, address: option}, text, choices.log_probability)
            if alternative is None:
                continue
            for position in alternative.positions:
                by_position.setdefault(position, []).append(alternative)
    return Reading(text, choices.log_probability, by_position)


def retell(
    tell: Teller, forced: dict[Hashable, Any], text: list[str], log_probability: float
) -> Alternative | None:
    """The document under `forced` decisions, against `text`; None where it cannot be, has another
    length or the same words.
    """
    choices = Choices("", forced=forced, record=True)
    try:
        retold = _tell(tell, choices)
    except Unreachable:
        return None
    if len(retold) != len(text) or len(choices.decisions) != len(forced):
        return None
    words = {}
    for position, (old, new) in enumerate(zip(text, retold, strict=True)):
        if old != new:
            words[position] = new
    if not words:
        return None
    weight = math.exp(choices.log_probability - log_probability)
    return Alternative(frozenset(words), words, weight)


def _tell(tell: Teller, choices: Choices) -> list[str]:
    return words_of(" ".join(sentence.text for sentence in tell(choices)))


def word_posterior(reading: Reading, position: int, hidden: Iterable[int]) -> dict[str, float]:
    """Probability of each word at a hidden position, for a reader who sees all but `hidden`."""
    hidden = set(hidden)
    weights = {reading.words[position]: 1.0}
    for alternative in reading.by_position.get(position, ()):
        if alternative.positions <= hidden:
            word = alternative.words[position]
            weights[word] = weights.get(word, 0.0) + alternative.weight
    total = sum(weights.values())
    return {word: weight / total for word, weight in weights.items()}


def _losses(
    reading: Reading, targets: Iterable[int], hidden: set[int]
) -> list[tuple[float, float]]:
    """(loss in nats, expected accuracy of the best guess) of each target."""
    losses = []
    for position in targets:
        posterior = word_posterior(reading, position, hidden)
        word = reading.words[position]
        losses.append((-math.log(posterior[word]), max(posterior.values())))
    return losses


def _masked(
    reading: Reading, hidden_fraction: float, window: int, draws: int
) -> list[tuple[float, float]]:
    """Losses of hidden words, the reader seeing `window` words on end (fewer where the document is
    shorter).

    Windows are laid side by side from a random beginning, so every word is a target equally often;
    one that would reach over an end of the document is moved inside, and only its own words count.
    """
    random_01 = random.Random(f"{window}/{reading.words[:20]}").random
    count = len(reading.words)
    width = min(window, count)
    losses = []
    for _ in range(draws):
        for first in range(-int(random_01() * width), count, width):
            start = min(max(first, 0), count - width)
            inside = range(start, start + width)
            hidden = {position for position in inside if random_01() < hidden_fraction}
            targets = [position for position in sorted(hidden) if first <= position < first + width]
            outside = set(range(count)) - set(inside)
            losses += _losses(reading, targets, hidden | outside)
    return losses


def left_to_right(tell: Teller, seed: str, num_documents: int) -> dict[str, float]:
    """Nats a word of the next word given all before it, exact but for the sample of documents.

    How long the document gets is left out: nobody is asked to predict where it ends.
    """
    nats = np.zeros(num_documents)
    words = np.zeros(num_documents)
    for index in range(num_documents):
        choices = Choices(f"{seed}/{index}", record=True)
        words[index] = len(_tell(tell, choices))
        length = choices.decisions["length"]
        probability = length.probabilities[length.options.index(length.value)]
        nats[index] = -choices.log_probability + math.log(probability)
    return {
        "left_to_right_loss": float(nats.sum() / words.sum()),
        "left_to_right_standard_error": _standard_error(nats / words),
        "left_to_right_words": float(words.sum()),
    }


def _standard_error(of_documents: np.ndarray) -> float:
    count = len(of_documents)
    deviation = of_documents.std(ddof=min(1, count - 1))
    return float(deviation / math.sqrt(count))


def known_entropy(tell: Teller, seed: str, num_documents: int) -> dict[str, float]:
    """Best reachable losses in nats a word, on documents that are not in the corpus.

    `left_to_right_*`: see there, on `LEFT_TO_RIGHT_DOCUMENTS` times as many documents. Of a hidden
    word, and the share of them that the best guess gets right: `masked_one_*`, a single one, all
    else visible; `masked_document_*`, a fraction of `HIDDEN_FRACTION` hidden at once, the whole
    document in view; `masked_window_*`, the same in windows of `WINDOW` words.
    """
    entropy = left_to_right(tell, seed, LEFT_TO_RIGHT_DOCUMENTS * num_documents)
    masked_one = []
    masked_document = []
    masked_window = []
    num_words = 0
    for index in range(num_documents):
        reading = read_document(tell, f"{seed}/{index}")
        length = len(reading.words)
        num_words += length
        masked_one.append([_losses(reading, [hidden], {hidden})[0] for hidden in range(length)])
        masked_document.append(_masked(reading, HIDDEN_FRACTION, length, DRAWS))
        masked_window.append(_masked(reading, HIDDEN_FRACTION, WINDOW, DRAWS))
    return {
        **entropy,
        **_mean_losses("masked_one", masked_one),
        **_mean_losses("masked_document", masked_document),
        **_mean_losses("masked_window", masked_window),
        "words": float(num_words),
    }


def _mean_losses(name: str, of_documents: list[list[tuple[float, float]]]) -> dict[str, float]:
    """Means over all words of all documents; the error is that of the documents' means."""
    loss, accuracy = np.array([*chain.from_iterable(of_documents)]).mean(axis=0)
    means = [np.mean(losses, axis=0)[0] for losses in of_documents if losses]
    return {
        f"{name}_loss": float(loss),
        f"{name}_accuracy": float(accuracy),
        f"{name}_standard_error": _standard_error(np.array(means)),
    }


def unigram_entropy(texts: Iterable[str]) -> float:
    """Entropy of the words alone, in nats: the plateau a model sits on before it has learnt
    anything but frequencies."""
    counts = Counter(chain.from_iterable(map(words_of, texts)))
    frequencies = np.array(list(counts.values())) / sum(counts.values())
    return float(-(frequencies * np.log(frequencies)).sum())
