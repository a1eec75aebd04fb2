"""The bag of words against a second, plain computation; and what it must not be able to do."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.datamodules.baselines import guess_choices, guess_classes, guess_numbers

WORDS = ["red", "blue", "old", "new", "cat", "dog", "runs", "sits", "here", "there", "fast", "slow"]


def texts(number: int, seed: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(seed)
    return [(" ".join(rng.choice(WORDS, 5)), " ".join(rng.choice(WORDS, 3))) for _ in range(number)]


def plain_features(first: str, second: str) -> set[str]:
    """What the module says of a pair, in other words."""
    one, two = set(first.split()), set(second.split())
    named = {"1": one, "2": two, "both": one & two, "only2": two - one}
    return {f"{name} {word}" for name, words in named.items() for word in words} | {
        f"share {round(10 * len(one & two) / len(two))}",
        f"missing {len(two - one)}",
        "always",
    }


def dense(train: list[tuple[str, str]], asked: list[tuple[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    bags = [plain_features(*text) for text in train]
    names = sorted({name for bag in bags for name in bag})
    names = [name for name in names if sum(name in bag for bag in bags) >= 2]
    return tuple(  # type: ignore[return-value]
        np.array([[float(name in plain_features(*text)) for name in names] for text in part]) for part in (train, asked)
    )


def label_of(text: tuple[str, str]) -> int:
    first, second = (set(part.split()) for part in text)
    return 2 if first & second else int("red" in first)


@pytest.mark.parametrize("balanced", [False, True])
def test_classes_are_those_of_a_plain_logistic_regression(balanced: bool) -> None:
    train, asked = texts(80, 0), texts(300, 1)
    noise = np.random.default_rng(11).random(len(train)) < 0.5  # so that how often a class occurs decides as well
    labels = np.where(noise, 2, [label_of(text) for text in train])
    x, x_asked = dense(train, asked)
    weights = speed = np.zeros((x.shape[1], 3))
    for _ in range(200):
        odds = np.exp(x @ weights)
        gradient = np.zeros_like(weights)
        for row, probabilities, label in zip(x, odds / odds.sum(1, keepdims=True), labels, strict=True):
            share = len(labels) / (3 * np.count_nonzero(labels == label)) if balanced else 1.0
            gradient += share * np.outer(row, probabilities - (np.arange(3) == label)) / len(labels)
        speed = 0.9 * speed - 0.5 * (gradient + 1e-4 * weights)
        weights = weights + speed
    scores = x_asked @ weights
    first, second = np.sort(scores, axis=1)[:, -1], np.sort(scores, axis=1)[:, -2]
    clear = first - second > 1e-6
    assert clear.all()
    np.testing.assert_array_equal(guess_classes(train, labels, asked, 3, balanced=balanced), scores.argmax(1))


def test_numbers_are_those_of_a_closed_form_ridge_regression() -> None:
    train, asked = texts(60, 2), texts(20, 3)
    numbers = np.array([5.0 * len(set(a.split()) & set(b.split())) / len(set(b.split())) for a, b in train])
    x, x_asked = dense(train, asked)
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ (numbers - numbers.mean()))
    expected = x_asked @ weights + numbers.mean()
    np.testing.assert_allclose(guess_numbers(train, numbers, asked), expected, atol=1e-5)


def test_it_learns_labels_and_nothing_from_shuffled_ones() -> None:
    train, asked = texts(2000, 4), texts(2000, 5)
    labels, truth = (np.array(["red" in first for first, _ in part]).astype(int) for part in (train, asked))
    assert (guess_classes(train, labels, asked, 2) == truth).mean() > 0.99
    shuffled = np.random.default_rng(6).permutation(labels)
    chance = max(truth.mean(), 1 - truth.mean())
    assert (guess_classes(train, shuffled, asked, 2) == truth).mean() < chance + 3 * 0.5 / 2000**0.5


def test_a_frequent_class_is_not_guessed_for_being_frequent() -> None:
    train, asked = texts(1000, 7), texts(400, 8)
    labels = (np.random.default_rng(9).random(1000) < 0.9).astype(int)
    assert guess_classes(train, labels, asked, 2).mean() > 0.99
    assert 0.3 < guess_classes(train, labels, asked, 2, balanced=True).mean() < 0.7


def test_the_ending_that_looks_right_wins() -> None:
    rng = np.random.default_rng(10)
    labels = rng.integers(0, 4, 300)
    endings = [["dog sits"] * 4 for _ in labels]
    for ending, label in zip(endings, labels, strict=True):
        ending[label] = "cat runs"
    choices = list(zip(["old new here"] * 300, endings, strict=True))
    np.testing.assert_array_equal(guess_choices(choices[:200], labels[:200], choices[200:]), labels[200:])


def test_texts_without_a_word_are_guessed_as_well() -> None:
    train, labels = [("red", ""), ("", ""), ("red", ""), ("blue", ""), ("blue", "")], np.array([1, 0, 1, 0, 0])
    np.testing.assert_array_equal(guess_classes(train, labels, [("", ""), ("red", ""), ("", "")], 2), [0, 1, 0])
