"""Budgets in words: after which steps an encoder is kept, and what a command line says."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.assembly.words import BABYLM_MARKS, steps_at_words
from clozelab.planning.budget import factor_within, parse_words

MILLION = 1_000_000


def test_babylm_asks_for_a_checkpoint_at_every_mark_that_is_reached() -> None:
    by_step = np.arange(1, 301) * 0.25 * MILLION  # 75 M words
    steps = steps_at_words("babylm", by_step)
    marks = [*range(1, 11), *range(20, 80, 10)]
    assert steps == [4 * mark for mark in marks]
    assert len(BABYLM_MARKS) == 28 and max(BABYLM_MARKS) == 1000 * MILLION


def test_a_step_is_the_first_that_has_read_the_words() -> None:
    by_step = np.array([3.0, 6.0, 9.0, 12.0])
    assert steps_at_words([1, 3, 3.5, 6.1], by_step) == [1, 2, 3]
    assert steps_at_words([12], by_step) == [], "the last encoder is kept anyway"


@pytest.mark.parametrize("marks", ["babylm", "all", [13.0], [-1], [], 5.0, ["a"], [True, "1"]])
def test_marks_that_are_not_reached_are_refused(marks: object) -> None:
    with pytest.raises(ValueError, match="the training reads 12 words; give numbers of words"):
        steps_at_words(marks, np.array([3.0, 6.0, 9.0, 12.0]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100Mwords", 1e8),
        ("10 M words", 1e7),
        ("50kwords", 5e4),
        ("1.5Gwords", 1.5e9),
        ("7words", 7),
        ("30min", None),
        ("Mwords", None),
        ("100M", None),
        ("-1Mwords", None),
    ],
)
def test_words_of_a_budget(text: str, words: float | None) -> None:
    assert parse_words(text) == words


@pytest.mark.parametrize("words", [98_700, 99_000, 123_400, 1_000_000, 4_378_000, 5e9])
def test_rounded_steps_stay_within_a_budget(words: float) -> None:
    """At 98,700 words both phases would round up: 82 steps, a step more than the budget."""
    phases = [(3000, 1216.0), (600, 1216.0)]
    factor = factor_within(words, phases)
    read = sum(round(steps * factor) * of_step for steps, of_step in phases)
    assert words * 0.998 - 2 * 1216 < read <= words
    assert factor == float(f"{factor:.4g}"), "what is printed is what was tried"


def test_a_budget_below_a_step_of_each_phase_is_the_least() -> None:
    factor = factor_within(1.0, [(3000, 1216.0), (600, 1216.0)])
    assert [max(1, round(steps * factor)) for steps in (3000, 600)] == [1, 1]
