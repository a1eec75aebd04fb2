"""What belongs to a word beside its letters, and where writing has no blanks between words."""

from __future__ import annotations

import unicodedata
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
    numbers = set(range(1 << 16)).difference(*UNPARTED)
    combining = []
    for character in map(chr, sorted(numbers)):
        # Mn, Mc and Me are the kinds of marks.
        if unicodedata.category(character).startswith("M"):
            combining.append(character)
    return "".join(combining)
