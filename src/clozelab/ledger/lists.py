"""Tables for terminals of any width: what does not fit is left out by importance, and a pipe gets every column."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 10_000
"""Characters: no line that anybody prints is longer, so none is folded where a program reads it."""
GAP = 2
STYLES = {
    "complete": "green",
    "running": "cyan",
    "killed": "red",
    "interrupted": "yellow",
    "failed": "bold red",
    "damaged": "bold red",
}


@dataclass(frozen=True)
class Heading:
    """A column: its name, how it is set, and how soon it is left out (0: never; the highest goes first)."""

    name: str
    is_number: bool = False
    drop: int = 0
    folds: bool = False
    """May break over several lines rather than push others out."""


def make_console() -> Console:
    """A console as wide as the terminal; in a pipe as wide as its longest line: one row is one line there."""
    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_WIDTH if is_pipe else None, highlight=False)


def make_table(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of plain strings that fits in `width`; words that are a status get their colour."""
    shown = fitting(headings, rows, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP, 0, 0))
    for index in shown:
        heading = headings[index]
        table.add_column(
            heading.name,
            justify="right" if heading.is_number else "left",
            no_wrap=not heading.folds,
            overflow="fold" if heading.folds else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(row[index], style=STYLES.get(row[index], "")) for index in shown))
    return table


def fitting(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Indices of the columns that stand side by side in `width` characters, the less important ones left out.

    A column that folds needs room for its longest word only.
    """
    needed = []
    for index, heading in enumerate(headings):
        cells = [heading.name, *(row[index] for row in rows)]
        words = [word for cell in cells for word in cell.split()] if heading.folds else cells
        needed.append(max((len(word) for word in words), default=0))
    shown = list(range(len(headings)))
    while sum(needed[index] + GAP for index in shown) > width:
        droppable = [index for index in shown if headings[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: headings[index].drop))
    return shown


def say(console: Console, text: str, style: str = "") -> None:
    """A line of plain text that is never wrapped in a pipe or cut: paths and commands stay whole."""
    console.print(Text(text, style=style), soft_wrap=True)
