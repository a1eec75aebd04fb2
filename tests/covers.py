"""Few cases in the place of all: those that together have every part that any case has."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import pytest

Case = TypeVar("Case")


def few(parts: Mapping[Case, AbstractSet[Any]]) -> list[Case]:
    """Cases whose parts are those of all: at each step the one that has most of what is left."""
    left = set().union(*parts.values())
    chosen = []
    while left:
        best = max(parts, key=lambda case: (len(parts[case] & left), -len(parts[case])))
        left -= parts[best]
        chosen.append(best)
    return chosen


def marked(parts: Mapping[Any, AbstractSet[Any]]) -> list[Any]:
    """All cases as parameters of a test; what `few` leaves out is slow."""
    chosen = few(parts)
    cases = []
    for case in parts:
        values = case if isinstance(case, tuple) else (case,)
        marks = [] if case in chosen else [pytest.mark.slow]
        cases.append(pytest.param(*values, marks=marks))
    return cases
