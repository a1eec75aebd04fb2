"""Tables for terminals of any width: what does not fit is left out by importance.

A pipe gets every column.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2  # characters between two columns
LEAST_NAME = 8  # characters: a name is cut to no fewer
FOLDED = 20  # characters: a column that folds is no narrower, if its text is not
# characters: no line that anybody prints is longer, so none is folded where a program reads it
PIPE_WIDTH = 10_000
STYLES = {
    "complete": "green",
    "ok": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "warning": "yellow",
    "killed": "red",
    "failed": "bold red",
    "damaged": "bold red",
    "error": "bold red",
}


def make_console() -> Console:
    """Return a console as wide as the terminal.

    In a pipe it is as wide as its longest line: one row is one line there.
    """
    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_WIDTH if is_pipe else None, highlight=False)


@dataclass(frozen=True)
class Heading:
    """A column: its name, how it is set, and how soon it is left out."""

    name: str
    is_number: bool = False
    drop: int = 0  # 0: never; the highest goes first
    folds: bool = False  # may break over several lines rather than push others out


def make_table(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table of plain strings that fits in `width` characters.

    Words that are a status get their colour.
    """
    columns = fitting(headings, rows, width)
    widths = _widths(headings, rows, columns, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP, 0, 0))
    for index in columns:
        heading = headings[index]
        table.add_column(
            heading.name,
            justify="right" if heading.is_number else "left",
            overflow="fold" if heading.folds else "ellipsis",
            no_wrap=not heading.folds,
            min_width=widths[index] if heading.is_number else None,
            max_width=widths[index],
        )
    for row in rows:
        cells = [row[index] for index in columns]
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return table


def fitting(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the indices of the columns that stand side by side in `width` characters.

    The less important ones are left out, empty ones first.
    """
    needed = []
    is_empty = []
    for index, heading in enumerate(headings):
        cells = [row[index] for row in rows]
        needed.append(_needed_width(heading, cells))
        is_empty.append(not any(cells))

    columns = list(range(len(headings)))
    # rich draws a blank beside each
    while sum(needed[index] + GAP + 1 for index in columns) - 1 > width:
        droppable = [index for index in columns if headings[index].drop]
        if not droppable:
            break
        columns.remove(max(droppable, key=lambda index: (is_empty[index], headings[index].drop)))
    return columns


def _widths(
    headings: Sequence[Heading], rows: Sequence[Sequence[str]], columns: Sequence[int], width: int
) -> dict[int, int]:
    """Return index -> width of each column; numbers and words stay whole."""
    widths = {}
    whole_words = {}
    names = {}
    for index in columns:
        heading = headings[index]
        lines = [*heading.name.split("\n"), *(row[index] for row in rows)]
        widths[index] = max(map(len, lines))
        if heading.folds:
            whole_words[index] = _longest_word(lines)
        elif not heading.is_number:
            names[index] = LEAST_NAME
    # What folds loses nothing when it becomes narrower; then names are cut.
    for least in (whole_words, names):
        _shrink(widths, least, width)
    return widths


def _shrink(widths: dict[int, int], least: Mapping[int, int], width: int) -> None:
    """Make columns narrower, a character of the widest at a time, until all fit in `width`.

    `least` says which, and how narrow they may be.
    """
    while sum(widths.values()) + (GAP + 1) * len(widths) - 1 > width:
        loose = [index for index in least if widths[index] > least[index]]
        if not loose:
            break
        widths[max(loose, key=lambda index: widths[index])] -= 1


def _needed_width(heading: Heading, cells: Sequence[str]) -> int:
    """Return the characters of a column's longest line; of one that folds, of its longest word."""
    lines = [*heading.name.split("\n"), *cells]
    longest = max(map(len, lines))
    if heading.folds:
        return max(min(longest, FOLDED), _longest_word(lines))
    return longest


def _longest_word(lines: Sequence[str]) -> int:
    return max(map(len, " ".join(lines).split()), default=0)
