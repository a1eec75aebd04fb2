"""Times and differences as a command line gives them."""

from __future__ import annotations

import re
from collections.abc import Sequence

PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}
WORDS = re.compile(r"(\d*\.?\d+) ?([kMG]?) ?words")


def parse_budget(text: str) -> float:
    """Seconds of "2h", "90min", "1.5 h", "1h30min".

    ValueError: it is not a time of a second or more.
    """
    from pandas import Timedelta

    number = text
    if text.startswith("."):
        number = f"0{text}"
    try:
        seconds = float(Timedelta(number).total_seconds())
    except ValueError:
        seconds = 0.0
    # 10 would be nanoseconds, 1,5h 15 hours
    if not seconds >= 1.0 or text.strip().isdigit() or "," in text:
        raise ValueError(f"budget={text}: give a time above zero, such as 2h, 90min or 1h30min")
    return seconds


def parse_words(text: str) -> float | None:
    """Words of "100Mwords", "10 M words", "50kwords"; None for another budget, a time."""
    match = WORDS.fullmatch(text.strip())
    if match is None:
        return None
    number, prefix = match.groups()
    return float(number) * PREFIXES[prefix]


def factor_within(words: float, phases: Sequence[tuple[float, float]]) -> float:
    """A multiple of the phases' steps, to four digits, that reads at most so many words.

    It aims a thousandth lower, and further where the steps, which are rounded, read more. One step
    of each phase is the least.

    Args:
        phases: steps of each, at a multiple of 1, and words that a step reads.
    """
    factor = 0.999 * words / sum(steps * of_step for steps, of_step in phases)
    while True:
        factor = float(f"{factor:.4g}")
        rounded = [max(1, round(steps * factor)) for steps, _ in phases]
        read = sum(steps * of_step for steps, (_, of_step) in zip(rounded, phases, strict=True))
        if read <= words or max(rounded) == 1:
            return factor
        factor *= 0.999


def parse_difference(text: str) -> float:
    """Points. ValueError: they are no number between 0 and 100."""
    try:
        difference = float(text)
    except ValueError:
        difference = 0.0
    if not 0.0 < difference < 100.0:
        raise ValueError(f"difference={text}: give a true difference in points above 0, such as 2")
    return difference
