"""Budgets in words, as BabyLM counts them: words between blanks, repeated ones as well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from claims.text.phrases import format_count

MILLION = 1_000_000
BABYLM = "babylm"
# 1, 2, ..., 10, 20, ..., 100, 200, ..., 1000 M words: a checkpoint at each that is reached
BABYLM_MARKS = [
    *range(MILLION, 10 * MILLION, MILLION),
    *range(10 * MILLION, 100 * MILLION, 10 * MILLION),
    *range(100 * MILLION, 1001 * MILLION, 100 * MILLION),
]


def marks_within(marks: object, num_words: float) -> Any:
    """The numbers of words that are meant: of babylm, those that so many words reach."""
    if marks == BABYLM:
        return [mark for mark in BABYLM_MARKS if mark <= num_words]
    return marks


def steps_at_words(marks: object, words_by_step: NDArray[np.float64]) -> list[int]:
    """The steps after which a training has read so many words (`keep_encoders_at_words`).

    Args:
        marks: a list of numbers of words, or "babylm": its marks that are reached.
        words_by_step: words that have been read after each step.

    Raises:
        ValueError: a mark is not reached, or none is, or it is no number of words.
    """
    total = words_by_step[-1]
    numbers = marks_within(marks, total)
    is_list = isinstance(numbers, list) and all(isinstance(mark, int | float) for mark in numbers)
    if not is_list or not numbers or not 0 < min(numbers) <= max(numbers) <= total:
        raise ValueError(
            f"keep_encoders_at_words={marks}: the training reads {format_count(total)} words; give"
            " numbers of words up to that, such as [1e6,2e6], or babylm from 1 M words on"
        )
    steps = np.searchsorted(words_by_step, numbers) + 1
    # The last step's encoder is there in any case.
    return sorted({int(step) for step in steps if step < len(words_by_step)})
