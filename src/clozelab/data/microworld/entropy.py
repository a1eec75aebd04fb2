"""The best loss anybody can reach on the world's text, from the generator itself.

A document is told again with one decision changed (everything else kept) and its probability compared with the
original's: the result is one alternative reading, different at a known set of positions. A masked word's posterior is
the sum over the alternatives that differ only where the reader cannot see (masked words, and words outside the reader's
window). Two approximations, both in one direction: alternatives that need two or more changed decisions are left out,
and the reader is given the structure of what it does see. Leaving alternatives out makes the true word likelier, so
every `masked_*` figure is a **lower bound** of the reachable loss; the test compares it with all pairs of changes on
short documents. The left-to-right figure is the exact entropy of the decisions: no decision is hidden, so it is the
text's own (an average over documents, hence the error bar).
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clozelab.data.microworld.choices import Choices, Unreachable
from clozelab.data.microworld.grammar import Sentence

WORD = re.compile(r"\w+|[^\w\s]")
"""What BERT's basic tokeniser makes of the world's text; nearly every word is one WordPiece."""
Teller = Callable[[Choices], Sequence[Sentence]]


def words_of(text: str) -> list[str]:
    return WORD.findall(text.lower())


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
            for position in alternative.positions if alternative else ():
                by_position.setdefault(position, []).append(alternative)  # type: ignore[arg-type]
    return Reading(text, choices.log_probability, by_position)


def retell(tell: Teller, forced: dict[Hashable, Any], text: list[str], log_probability: float) -> Alternative | None:
    """The document under `forced` decisions, against `text`; None where it cannot be or has another length."""
    choices = Choices("", forced=forced, record=True)
    try:
        other = _tell(tell, choices)
    except Unreachable:
        return None
    if len(other) != len(text) or len(choices.decisions) != len(forced):
        return None
    words = {index: new for index, (old, new) in enumerate(zip(text, other, strict=True)) if old != new}
    return Alternative(frozenset(words), words, math.exp(choices.log_probability - log_probability)) if words else None


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


def _losses(reading: Reading, targets: Iterable[int], hidden: set[int]) -> list[tuple[float, float]]:
    """(loss in nats, expected accuracy of the best guess) of each target."""
    posteriors = [(reading.words[position], word_posterior(reading, position, hidden)) for position in targets]
    return [(-math.log(posterior[word]), max(posterior.values())) for word, posterior in posteriors]


def _masked(
    reading: Reading, masked_fraction: float, window: int | None, draws: int, seed: int
) -> list[tuple[float, float]]:
    """Losses under random masks, the reader seeing a random stretch of `window` words (None: the whole document)."""
    random_01 = random.Random(f"{seed}/{reading.words[:20]}").random
    count, result = len(reading.words), []
    for _ in range(draws):
        width = min(window or count, count)
        start = int(random_01() * (count - width + 1))
        inside = range(start, start + width)
        masked = {position for position in inside if random_01() < masked_fraction}
        result += _losses(reading, masked, masked | (set(range(count)) - set(inside)))
    return result


def known_entropy(
    tell: Teller, seed: str, num_documents: int, masked_fraction: float = 0.15, window: int = 58, draws: int = 8
) -> dict[str, float]:
    """Best reachable losses in nats per word, on `num_documents` documents that are not in the corpus.

    `masked_one_*`: a single masked word, all else visible. `masked_*`: `masked_fraction` masked at once, in a window of
    `window` words (a row of 64 tokens less its specials) and in the whole document. With BERT's 80/10/10 corruption a
    tenth of the predicted words stands in view: multiply by 0.9 (still a lower bound). `left_to_right_loss`: next word
    given all before it.
    """
    readings = [read_document(tell, f"{seed}/{index}") for index in range(num_documents)]
    every = [_losses(r, [position], {position})[0] for r in readings for position in range(len(r.words))]
    short = [loss for r in readings for loss in _masked(r, masked_fraction, window, draws, 1)]
    whole = [loss for r in readings for loss in _masked(r, masked_fraction, None, draws, 2)]
    per_document = np.array([-r.log_probability / len(r.words) for r in readings])
    words = sum(len(r.words) for r in readings)
    return {
        "left_to_right_loss": -sum(r.log_probability for r in readings) / words,
        "left_to_right_standard_error": float(per_document.std() / math.sqrt(num_documents)),
        "masked_one_loss": float(np.mean([loss for loss, _ in every])),
        "masked_one_accuracy": float(np.mean([right for _, right in every])),
        "masked_window_loss": float(np.mean([loss for loss, _ in short])),
        "masked_window_accuracy": float(np.mean([right for _, right in short])),
        "masked_document_loss": float(np.mean([loss for loss, _ in whole])),
        "masked_document_accuracy": float(np.mean([right for _, right in whole])),
        "words": float(words),
    }


def unigram_entropy(texts: Iterable[str]) -> float:
    """Entropy of the words alone, in nats: the plateau a model sits on before it has learnt anything but
    frequencies."""
    counts = Counter(word for text in texts for word in words_of(text))
    frequencies = np.array(list(counts.values())) / sum(counts.values())
    return float(-(frequencies * np.log(frequencies)).sum())
