"""Rows of a file of texts, in order, each with its place and its cells as they stand there.

    file = open_rows("reviews.csv")
    file.columns                        # ["id", "review", "stars"]
    for row in file.placed_rows():
        row.place                       # "reviews.csv:2"
        row.record                      # {"id": "7", "review": "a film, to remember", "stars": "4"}

Tables (readers/tables.py) are known by the file's name. Of any other file a line is a text, or two
between a tab; where its first line is a JSON object, all lines are. A row that is damaged keeps its
place and says what is wrong with it; the other rows are read. What spoils a whole file is a
ValueError before the first row is given out.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from clozelab.readers.delimited import TAB, open_delimited
from clozelab.readers.lines import (
    Line,
    file_suffix,
    is_decoded,
    refuse_carriage_returns,
    text_lines,
)
from clozelab.readers.objects import begins_as_json, first_keys, object_of, rows_of_objects
from clozelab.readers.records import NOT_UTF8, DamagedRow, Rows, Table, check_columns
from clozelab.readers.tables import DELIMITED, FORMATS, open_table, table_format

log = logging.getLogger(__name__)
ROW_FORMATS = ("lines", *FORMATS)
JSON_LINES = 3  # over which the beginning of JSON may go
ReadLines = Callable[[], Iterator[Line]]


def open_rows(name: str, form: str = "auto") -> Table:
    """Open a file, or what is piped in (`-`).

    ValueError where there is none, no row is in it, or it is damaged.
    """
    if form not in ("auto", *ROW_FORMATS):
        raise ValueError(f"format={form}: choose auto, {', '.join(ROW_FORMATS)}")
    if name == "-":
        return _open_piped(form)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"input={name}: there is no such file")
    # An answer for every line, so that answers stay beside their texts.
    read_lines = partial(text_lines, path, keeps_empty_end=True)
    may_be_quoted = form == "auto"
    if form == "auto" and file_suffix(path) == ".json":
        form = "jsonl"
    elif form == "auto":
        form = table_format(path) or _form_of(name, read_lines)
    if form == "lines":
        return _open_lines(name, read_lines)
    return _open_table(path, form, may_be_quoted)


# Lines


def _open_piped(form: str) -> Table:
    if form not in ("auto", "lines", "jsonl"):
        raise ValueError(
            f"format={form}: what is piped in is lines or jsonl; write a table to a file first",
        )
    if hasattr(sys.stdin, "reconfigure"):
        # a broken byte costs its own line alone
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    text = sys.stdin.read()
    refuse_carriage_returns("what is piped in", text.encode("utf-8", "surrogatepass"))
    lines = _split(text)
    if form == "auto":
        form = _form_of("-", lambda: iter(lines))
    if form == "lines":
        return _open_lines("-", lambda: iter(lines))
    keys = first_keys("-", rows_of_objects(lines))
    return Table(Path("-"), form, keys, lambda *_: rows_of_objects(lines))


def _split(text: str) -> list[Line]:
    """Numbered lines; they end at line feeds alone.

    Other characters that end a line elsewhere may stand in a text.
    """
    if not text:
        return []
    lines: list[Line] = []
    for number, line in enumerate(text.removeprefix("\ufeff").removesuffix("\n").split("\n"), 1):
        if is_decoded(line):
            lines.append((number, line.rstrip("\r")))
        else:
            lines.append((number, None))
    return lines


def _form_of(name: str, read_lines: ReadLines) -> str:
    """`jsonl` where the first line is an object, else `lines`.

    ValueError for other JSON, which its lines would cut to pieces.
    """
    first_lines = [line or "" for _, line in islice(read_lines(), JSON_LINES)]
    if not isinstance(object_of("".join(first_lines[:1])), DamagedRow):
        return "jsonl"
    if begins_as_json("\n".join(first_lines).encode()):
        raise ValueError(
            f"{name} begins as a list of JSON objects: call it .json, or write an object a line"
            " (format=lines takes its lines as texts)"
        )
    return "lines"


def _open_lines(name: str, read_lines: ReadLines) -> Table:
    if _has_pairs(name, read_lines):
        return Table(Path(name), "lines", ["text", "pair"], lambda *_: _pairs(read_lines()))
    return Table(Path(name), "lines", ["text"], lambda *_: _texts(read_lines()))


def _has_pairs(name: str, read_lines: ReadLines) -> bool:
    """Whether most lines are two texts between a tab; in other files a tab is a blank.

    ValueError where there is no line, and for a table.
    """
    if next(read_lines(), None) is None:
        raise ValueError(f"input={name} has no line to read")
    # All lines are looked at: the first ones may be the exception.
    total = pairs = wide = 0
    for _, line in read_lines():
        if line is None or not line.strip():
            continue
        tabs = line.count(TAB)
        total += 1
        pairs += tabs == 1
        wide += tabs > 1
    if 2 * wide > total:
        raise ValueError(
            f"{name} has lines of three columns and more: call it .tsv, or say format=tsv, if it is"
            " a table"
        )
    return 2 * pairs > total


def _texts(lines: Iterable[Line]) -> Rows:
    for number, line in lines:
        if line is None:
            yield number, DamagedRow(NOT_UTF8, {"text": ""})
        else:
            yield number, {"text": line}


def _pairs(lines: Iterable[Line]) -> Rows:
    for number, line in lines:
        if line is None:
            yield number, DamagedRow(NOT_UTF8, {"text": ""})
            continue
        texts = line.split(TAB)
        if len(texts) == 2:
            yield number, {"text": texts[0], "pair": texts[1]}
        elif not line.strip():
            yield number, {"text": "", "pair": ""}
        else:
            problem = f"{len(texts) - 1} tabs, expected 1 between two texts"
            yield number, DamagedRow(problem, {"text": line})


# Tables


def _open_table(path: Path, form: str, may_be_quoted: bool) -> Table:
    if form not in DELIMITED:
        table = open_table(path, form)
        check_columns(table.columns, table.columns, path)
        return table
    table = open_delimited(path, form, may_be_quoted=may_be_quoted)
    if form == "tsv" and table.is_quoted:
        log.warning(
            "%s: quotation marks around cells are left out, as a csv writer put them there; a task"
            " keeps them without task.data.file_format=csv, and so does format=tsv here",
            path,
        )
    check_columns(table.columns, table.columns, path)
    # An open quotation mark is found now, and not after hours of work on the rows above it.
    if not sum(1 for _ in table.rows()):
        raise ValueError(f"{path} has a header and no row below it")
    return table
