"""The known entropy: posteriors that sum to one, bounds in their order, and how tight they are."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable

import pytest

from clozelab.datamodules.baselines import words_of
from microworld.choices import Choices, Decision, Unreachable
from microworld.documents import tell_document
from microworld.entropy import (
    known_entropy,
    left_to_right,
    read_document,
    retell,
    unigram_entropy,
    word_posterior,
)

SEED = "entropy test"


def _decisions(seed: str) -> tuple[dict[Hashable, Decision], list[str], float]:
    choices = Choices(seed, record=True)
    words = words_of(" ".join(sentence.text for sentence in tell_document(choices)))
    return choices.decisions, words, choices.log_probability


def test_log_probability_is_the_product_of_the_decisions() -> None:
    choices = Choices("p", record=True)
    choices.pick("a", (1, 2, 3, 4))
    first = choices.pick("b", ("x", "y"), (3, 1))
    assert choices.log_probability == pytest.approx(math.log(0.25) + math.log(0.75 if first == "x" else 0.25))


def test_no_decision_is_hidden() -> None:
    """Every other decision that can be made gives other words; so the decisions' entropy is the text's."""
    decisions, words, _ = _decisions(SEED)
    values = {address: decision.value for address, decision in decisions.items()}
    tried = 0
    for address, decision in decisions.items():
        for option in decision.options:
            choices = Choices("", forced={**values, address: option}, record=True)
            if option == decision.value:
                continue
            try:
                other = words_of(" ".join(sentence.text for sentence in tell_document(choices)))
            except Unreachable:
                continue
            tried += 1
            assert other != words, address
    assert tried > 100


def test_posterior_sums_to_one_and_knows_what_is_certain() -> None:
    reading = read_document(tell_document, SEED)
    for position, word in enumerate(reading.words):
        posterior = word_posterior(reading, position, [position])
        assert sum(posterior.values()) == pytest.approx(1.0)
        if word in (".", "the", "of", "was"):
            assert posterior[word] > 0.5


def test_a_repeated_fact_decides_its_word() -> None:
    """With both mentions hidden a word is open, with one in view it is certain."""
    for number in range(30):
        reading = read_document(tell_document, f"{SEED} {number}")
        for alternatives in reading.by_position.values():
            for alternative in alternatives:
                if len(alternative.positions) == 2 and alternative.weight > 0.5:
                    position = min(alternative.positions)
                    closed = word_posterior(reading, position, [position])
                    opened = word_posterior(reading, position, alternative.positions)
                    assert alternative.words[position] in opened
                    assert opened[reading.words[position]] < closed[reading.words[position]]
                    return
    pytest.fail("no fact was told twice in 30 documents")


def test_losses_stand_in_their_order() -> None:
    entropy = known_entropy(tell_document, SEED, 2)
    unigram = unigram_entropy(s.text for number in range(300) for s in tell_document(Choices(f"unigram {number}")))
    assert 0 < entropy["masked_one_loss"] <= entropy["masked_document_loss"] * 1.15
    assert entropy["masked_document_loss"] < entropy["masked_window_loss"]
    assert entropy["masked_one_loss"] < entropy["masked_window_loss"] * 1.15
    assert entropy["masked_window_loss"] < entropy["left_to_right_loss"] < unigram < 5.5
    assert 0.5 < entropy["masked_one_accuracy"] < 1.0


def test_left_to_right_is_the_mean_over_documents_without_their_length() -> None:
    entropy = left_to_right(tell_document, SEED, 20)
    nats, words = [], []
    for number in range(20):
        choices = Choices(f"{SEED}/{number}", record=True)
        words.append(len(words_of(" ".join(sentence.text for sentence in tell_document(choices)))))
        nats.append(-choices.log_probability - math.log(6))  # MIN_FACTS to MAX_FACTS, evenly
    assert entropy["left_to_right_loss"] == pytest.approx(sum(nats) / sum(words))
    assert entropy["left_to_right_words"] == sum(words)
    assert 0.005 < entropy["left_to_right_standard_error"] < 0.1


def test_pairs_of_changes_add_next_to_nothing() -> None:
    """The bound leaves out alternatives that need two changed decisions. All pairs within a sentence among those that
    decide how it is told: they raise the loss of one masked word by less than 0.02 nats."""
    decisions, words, log_probability = _decisions(SEED)
    values = {address: decision.value for address, decision in decisions.items()}
    names = {"subject", "other", "mention", "template", "frame", "with adjective"}
    tellings = [a for a, d in decisions.items() if isinstance(a, tuple) and a[1] in names and len(d.options) > 1]
    added: dict[int, float] = {}
    for one, two in itertools.combinations(tellings, 2):
        if one[0] != two[0]:
            continue
        for first, second in itertools.product(decisions[one].options, decisions[two].options):
            if first == values[one] or second == values[two]:
                continue
            found = retell(tell_document, {**values, one: first, two: second}, words, log_probability)
            if found and len(found.positions) == 1:
                position = min(found.positions)
                added[position] = added.get(position, 0.0) + found.weight
    reading = read_document(tell_document, SEED)
    more = 0.0
    for position, weight in added.items():
        single = 1.0 / word_posterior(reading, position, [position])[words[position]]
        more += math.log(single + weight) - math.log(single)
    assert more / len(words) < 0.02
