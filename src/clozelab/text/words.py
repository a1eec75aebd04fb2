"""What belongs to a word beside its letters, and where writing has no blanks between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

# For sets of characters in patterns, as `letters` below.
SINGLE = "\u3040-\u30ff\u3400-\u9fff"  # Kana and Chinese: each character is taken for a word
# Thai, Lao, Burmese and Khmer have no blanks either: their marks part what would be whole clauses.
UNPARTED = (range(0xE00, 0xF00), range(0x1000, 0x10A0), range(0x1780, 0x1800))
JOINERS = "\u200c\u200d"  # of no width, inside Persian and Indic words


def runs_of(letters: str, inside: str = "") -> str:
    """A pattern of words: runs of `letters`, with marks and characters of `inside` in them.

    `letters` is a set of a pattern, such as [a-z]; `inside` are characters of such a set.
    """
    return rf"{letters}+(?:[{marks()}{inside}]+{letters}*)*"


@cache
def marks() -> str:
    r"""Accents apart from their letter, vowels of Hindi and others: Python's \w denies them."""
    # re is slow for a set with the few marks beyond the basic plane.
    return _marks_among(set(range(1 << 16)).difference(*UNPARTED))


def _marks_among(numbers: Iterable[int]) -> str:
    # Mn, Mc and Me are the kinds of marks.
    return "".join(
        character
        for character in map(chr, sorted(numbers))
        if unicodedata.category(character).startswith("M")
    )


@cache
def parting_characters() -> str:
    """For a set: the characters that part a writing without blanks into words."""
    return SINGLE + _parting_marks()


def _parting_marks() -> str:
    return _marks_among(set().union(*UNPARTED))


@cache
def written_words() -> re.Pattern[str]:
    """What stands between blanks, or without any as `SINGLE` and `UNPARTED` have it.

    Nothing is left over: punctuation is a part of a word beside it, and a mark of the one before.
    """
    marks = _parting_marks()
    beside = rf"[^\w \t\n\r{marks}]*"
    return re.compile(
        rf"{beside}[{SINGLE}]{beside}|[^ \t\n\r{parting_characters()}]+[{marks}]*|[{marks}]+"
    )
