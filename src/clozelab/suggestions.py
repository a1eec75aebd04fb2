"""Known names: where the files that ship with the project lie, and which known word an unknown one was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


def _shipped(name: str) -> Path:
    """A folder of YAML: inside the package in a wheel, at the top of the repository in an editable checkout."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parents[1] / name


CONF_DIR = _shipped("conf")
EXPERIMENTS_DIR = _shipped("experiments")


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that was probably meant; None where none is near.

    One in other letters' case, the only one that begins so (`table5` of `table5_pretraining_tasks`), or else the most
    alike of those that are at least `cutoff` alike (0 to 1, difflib's ratio).
    """
    words = list(known)
    said = word.casefold()
    if len(said) > 2:
        beginning = [one for one in words if one.casefold().startswith(said)]
        exactly = [one for one in beginning if one.casefold() == said]
        if exactly or len(beginning) == 1:
            return (exactly or beginning)[0]
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=cutoff)), None)


def hint(word: str, known: Iterable[str], *, cutoff: float = 0.6, prefix: str = "") -> str:
    """What to say after the refusal of a word: the nearest, else all that there are, each with `prefix` before it."""
    words = sorted(known)
    near = nearest(word, words, cutoff=cutoff)
    return f"did you mean '{prefix}{near}'?" if near else f"there are {', '.join(prefix + w for w in words) or 'none'}"
