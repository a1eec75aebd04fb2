"""Objects of JSON: one a line (jsonl), or all in a list (a file called .json).

A line of blanks is no row.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

from clozelab.readers.lines import (
    Advance,
    Line,
    beginning_of,
    file_suffix,
    ignore,
    parse_json,
    text_lines,
)
from clozelab.readers.records import NOT_UTF8, DamagedRow, Record, Rows, Table
from clozelab.readers.remote import FilePath, file_size
from clozelab.text.plain import PlainDict

JSON_BEGINNING = re.compile(rb'\s*(\{\s*"[^"\n]*"\s*:|\[\s*\{\s*")')  # {"text":, [{"
SUFFIXES = (".jsonl", ".ndjson")
ADVICE = "write an object a line, or a list of objects into a file called .json"


def open_objects(path: FilePath) -> Table:
    """Open a file of an object a line, or a list of objects under another name than .jsonl.

    ValueError for a file without an object, and for a list that is called .jsonl.
    """
    if file_suffix(path) in SUFFIXES:
        refuse_list(path)
    elif is_list(path):
        return _open_list(path)

    def rows(_: list[str] | None, advance: Advance, removed: Counter[str] | None) -> Rows:
        return rows_of_objects(text_lines(path, advance, removed=removed))

    return Table(path, "jsonl", first_keys(path, rows(None, ignore, Counter())), rows)


def begins_as_json(beginning: bytes) -> bool:
    """Whether a text is objects or a list of them: no sentence, and no word, begins so."""
    return JSON_BEGINNING.match(beginning) is not None


def is_list(path: FilePath) -> bool:
    """Whether the file begins as a list of JSON."""
    return beginning_of(path).lstrip().startswith(b"[")


def refuse_list(path: FilePath) -> None:
    """ValueError for one list of all objects, whose lines are none."""
    if is_list(path):
        raise ValueError(f"{path}:1 begins a JSON array: {ADVICE}")


def rows_of_objects(lines: Iterable[Line]) -> Rows:
    """The objects of numbered lines."""
    for number, line in lines:
        if line is None or line.strip():
            yield number, object_of(line)


def object_of(line: str | None) -> Record:
    """The object that a line holds; None stands for a line that is not UTF-8 text."""
    if line is None:
        return DamagedRow(NOT_UTF8)
    content = None
    with suppress(ValueError, RecursionError):
        content = parse_json(line)
    return _checked(content, {"line": line})


def first_keys(name: object, rows: Rows) -> list[str]:
    """Keys of the first object; ValueError where there is none."""
    first = None
    for number, record in rows:
        if not isinstance(record, DamagedRow):
            return list(record)
        if first is None:
            first = number
    if first is None:
        raise ValueError(f"{name} has no examples")
    raise ValueError(f"{name}:{first}: no JSON object, nor is any line below it: {ADVICE}")


def begun_list(beginning: str) -> Iterator[tuple[int, PlainDict]]:
    """The objects of a list that is cut off, as far as they are whole, and where each ends."""
    decoder = json.JSONDecoder(strict=False)  # a stray NUL is forgiven
    start = beginning.find("{")
    with suppress(ValueError, RecursionError):
        while start >= 0:
            record, end = decoder.raw_decode(beginning, start)
            yield end, record
            start = beginning.find("{", end)


def _open_list(path: FilePath) -> Table:
    """A list cannot be read line by line, so it is held in memory."""
    lines = [line for _, line in text_lines(path)]
    if None in lines:
        raise ValueError(f"{path} is {NOT_UTF8}")
    try:
        content = parse_json("\n".join(line or "" for line in lines))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{path} is no JSON file: {problem}") from problem
    if not content or not isinstance(content[0], dict):
        raise ValueError(f'{path}: a list of objects was expected, such as [{{"text": ...}}]')

    def rows(_: list[str] | None, advance: Advance, __: Counter[str] | None) -> Rows:
        advance(file_size(path))
        for number, value in enumerate(content, 1):
            yield number, _checked(value, {})

    return Table(path, "jsonl", list(content[0]), rows, place_format="{path}, object {number}")


def _checked(content: object, cells: PlainDict) -> Record:
    if isinstance(content, dict):
        return content
    return DamagedRow("no JSON object", cells)
