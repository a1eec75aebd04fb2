"""Times and differences as a command line gives them."""

from __future__ import annotations

import re

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


def parse_difference(text: str) -> float:
    """Points. ValueError: they are no number between 0 and 100."""
    try:
        difference = float(text)
    except ValueError:
        difference = 0.0
    if not 0.0 < difference < 100.0:
        raise ValueError(f"difference={text}: give a true difference in points above 0, such as 2")
    return difference
