"""Numbers, lists and units as tables, reports and messages write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

DASH = "\u2013"
MINUS = "\u2212"
SHOWN = 3  # of several names or differences
# what a spreadsheet takes for the beginning of a formula: reports write an apostrophe before it
FORMULA = "=+-@\t\r"


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


def signed(value: float | None, decimals: int = 1) -> str:
    """Write a difference with its sign, and a dash for none."""
    if value is None:
        return DASH
    text = f"{abs(value):.{decimals}f}"
    # -0.04 is written 0.0, which has no sign.
    if float(text) == 0.0:
        return text
    sign = "+" if value > 0 else MINUS
    return f"{sign}{text}"


def count_noun(number: int, noun: str) -> str:
    """Write a count with its noun: `1 job`, `2 jobs`."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def distinct(values: Iterable[str]) -> str:
    """Join every value once, in order; a dash for none."""
    return "; ".join(dict.fromkeys(filter(None, values))) or DASH


def in_units(common: str, units: Mapping[str, str]) -> str:
    """Write the unit of most columns and that of each other column (name -> unit).

    An example: `percent (LM perplexity: perplexity)`.
    """
    exceptions = {name: unit for name, unit in units.items() if unit != common}
    if not exceptions:
        return common
    if len(exceptions) == len(units):
        return distinct(exceptions.values())
    named = "; ".join(f"{name}: {unit}" for name, unit in exceptions.items())
    return f"{common} ({named})"


def with_direction(text: str, *, falls: bool) -> str:
    """Write a metric's name or unit, and where less of it is better, that too."""
    return ", ".join(filter(None, (text, "lower is better"))) if falls else text
