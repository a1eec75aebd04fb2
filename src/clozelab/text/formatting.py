"""Values and help texts as messages write them."""

from __future__ import annotations

import re
import shutil
import textwrap


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


def with_class(metric: str, positive_label: str | None) -> str:
    """Write `f1 of fraud`: a score with the class that it is of, where it is of one."""
    if positive_label is None:
        return metric
    return f"{metric} of {positive_label}"
