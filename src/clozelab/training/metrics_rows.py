"""The rows of a metrics.csv: their format, and how they are read while somebody may be writing them. No Lightning here:
commands that only look must start at once.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One logged number: `step` optimizer steps, `tokens` read and `seconds` trained when it was logged."""

    step: int
    tokens: int
    seconds: float
    key: str
    value: float


COLUMNS = Row._fields


def parse(line: str) -> Row | None:
    """A whole line as a row; None of the header, and of a line of other columns."""
    cells = next(csv.reader([line]), [])  # a source's name, and so a key, may hold a comma
    if len(cells) != len(COLUMNS) or not cells[0].isdigit():
        return None
    step, tokens, seconds, key, value = cells
    return Row(int(step), int(tokens), float(seconds), key, float(value))


def read_rows(path: Path, last_bytes: int | None = None) -> Iterator[Row]:
    """The whole rows of a metrics.csv, or those in its last bytes; none where there is no file.

    A last line without an end is being written, or its writer was killed: half of its number would be another number.
    """
    try:
        with path.open("rb") as file:
            if last_bytes is not None and path.stat().st_size > last_bytes:
                file.seek(-last_bytes, 2)
                file.readline()  # where the cut fell
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return
    yield from (row for line in text.split("\n")[:-1] if (row := parse(line)))
