"""What belongs to a word beside its letters."""

from __future__ import annotations

import unicodedata
from functools import cache

JOINERS = "\u200c\u200d"  # of no width, inside Persian and Indic words


@cache
def marks() -> str:
    r"""Characters that stand on or between letters, for a set in a pattern.

    Accents apart from their letter, vowels of Hindi, Thai and others, and joiners: Python's
    \w denies them.
    """
    # re is slow for a set with the few marks beyond the basic plane.
    characters = map(chr, range(1 << 16))
    combining = (one for one in characters if unicodedata.category(one).startswith("M"))
    return "".join(combining) + JOINERS
