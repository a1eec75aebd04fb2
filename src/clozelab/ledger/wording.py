"""Numbers as a report writes them."""

from __future__ import annotations

from collections.abc import Iterable

from clozelab.metrics.statistics import Estimate

MINUS, PLUS_MINUS, DASH = "\u2212", "\u00b1", "\u2013"


def percent(estimate: Estimate | None) -> str:
    """`67.4 ± 1.7`, or the mean alone where there is no interval."""
    if estimate is None:
        return "missing"
    return f"{estimate.mean:.1f} {half_width(estimate)}".rstrip()


def signed(value: float | None) -> str:
    """A difference with its sign; a dash for none."""
    if value is None:
        return DASH
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else MINUS}{text}"


def rough(value: float) -> str:
    """A count to three digits: 1.53 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def half_width(estimate: Estimate | None) -> str:
    """`± 1.7`; empty where there is no interval."""
    return f"{PLUS_MINUS} {estimate.half_width:.1f}" if estimate and estimate.half_width is not None else ""


def distinct(values: Iterable[str]) -> str:
    """Every value once, in order; a dash for none."""
    return "; ".join(dict.fromkeys(value for value in values if value)) or DASH
