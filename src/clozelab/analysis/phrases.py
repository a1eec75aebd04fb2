"""Numbers and lists in the sentences of a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MINUS = "\u2212"
SHOWN = 3  # of several names or differences


def format_count(value: float) -> str:
    """Write a count to three digits: 1.53 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def join_list(names: Iterable[str]) -> str:
    """Join names as `1, 2 and 3`."""
    *most, last = names
    if not most:
        return last
    return f"{', '.join(most)} and {last}"


def truncate_list(names: Sequence[str], between: str = ", ") -> str:
    """Join the first names, and say how many more there are."""
    text = between.join(names[:SHOWN])
    if len(names) > SHOWN:
        text += f" and {len(names) - SHOWN} more"
    return text
