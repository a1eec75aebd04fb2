"""Which known word somebody meant, for the messages that refuse an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHORTEST_BEGINNING = 3
"""Characters: a word that is shorter begins too many known words to mean one of them."""


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word that was probably meant, or None.

    That is the same word in other letters' case, the only one that begins so (`table5` of
    `table5_pretraining_tasks`), or the most alike of those at least `cutoff` alike (0 to 1,
    difflib's ratio).
    """
    candidates = list(known)
    typed = word.casefold()
    if len(typed) >= SHORTEST_BEGINNING:
        continuations = [name for name in candidates if name.casefold().startswith(typed)]
        for name in continuations:
            if name.casefold() == typed:
                return name
        if len(continuations) == 1:
            return continuations[0]
    alike = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    return alike[0] if alike else None


def hint(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Return what to say after the refusal of a word: the nearest one, else all that there are.

    Each is shown with `prefix` before it.
    """
    candidates = sorted(known)
    near = nearest(word, candidates)
    if near:
        return f"did you mean '{prefix}{near}'?"
    listed = ", ".join(prefix + name for name in candidates)
    return f"there are {listed or 'none'}"
