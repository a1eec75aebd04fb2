"""Cells of a row: which hold nothing, and what the others are as text."""

from __future__ import annotations

import json
import math

from clozelab.text.formatting import shortened

SHOWN_CHARACTERS = 40  # of a wrong value


def is_missing(value: object) -> bool:
    """Whether a cell holds nothing: null, NaN, or pandas' NA or NaT."""
    # Pandas' two by their names: it need not be installed.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and math.isnan(value)


def cell_text(value: object) -> str:
    """A cell as text: a number or a truth as JSON writes it, a date as ISO does.

    ValueError for a list or the like.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple | dict | bytes):
        raise ValueError(f"{_kind_of(value)} ({shortened(repr(value), SHOWN_CHARACTERS)})")
    return str(value)


def _kind_of(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bytes):
        return "bytes"
    return "a list"
