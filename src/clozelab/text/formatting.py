"""Numbers, lists and help texts as tables, reports and messages write them."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping

STAGE_NAMES = {"pretrain": "pre-training", "finetune": "fine-tuning", "evaluate": "evaluation"}
DASH = "\u2013"
MINUS = "\u2212"


def shortened(text: str, most_characters: int) -> str:
    """Return a value for a message: its beginning and dots where it is longer."""
    if len(text) <= most_characters:
        return text
    return f"{text[:most_characters]}..."


def visible(text: str) -> str:
    """Write what a terminal or a page would obey, such as an escape sequence, as `\\x1b`."""
    characters = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape", "surrogatepass").decode()
        characters.append(character)
    return "".join(characters)


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


# a line end within a paragraph: what follows goes on with it, as a continued explanation of a key
# (eight blanks or more) or as plain text; an own key, a blank line and a command begin a new line
CONTINUED_LINE = re.compile(r"(?<!\n)\n(?: {8,}|(?! |\n|clozelab ))")
# a key and the blanks before its explanation: "  seed=1            which run is drawn"
KEY_COLUMN = re.compile(r" {2}\S.*?  +")


def fitted(text: str) -> str:
    """Fill a help text into the terminal's columns, at most 100.

    Paragraphs are filled, and what a key means stays beside the key.
    """
    width = min(shutil.get_terminal_size().columns, 100) - 1
    lines = []
    for line in CONTINUED_LINE.sub(" ", text).split("\n"):
        indent = ""
        key = KEY_COLUMN.match(line)
        if key:
            indent = " " * min(key.end(), width // 2)
        elif line.startswith("clozelab "):
            indent = " " * 4
        lines.append(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))
    return "\n".join(lines)


def distinct(values: Iterable[str]) -> str:
    """Join every value once, in order; a dash for none."""
    return "; ".join(dict.fromkeys(filter(None, values))) or DASH


def with_class(metric: str, positive_label: str | None) -> str:
    """Write `f1 of fraud`: a score with the class that it is of, where it is of one."""
    if positive_label is None:
        return metric
    return f"{metric} of {positive_label}"


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
    return f"{text}, lower is better" if falls else text
