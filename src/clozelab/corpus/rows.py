"""Rows of a file of texts, in order, each with its place and its cells as they stand there.

    file = open_rows("reviews.csv")
    file.columns                        # ["id", "review", "stars"]
    for row in file.rows():
        row.place                       # "reviews.csv:2"
        row.record                      # {"id": "7", "review": "a film, to remember", "stars": "4"}

Tables (corpus/tables.py) are known by the file's name. Of any other file a line is a text, or two
between a tab; where its first line is a JSON object, all lines are. A row that is damaged keeps its
place and says what is wrong with it, so that it takes no other one along. What spoils a whole file
is a ValueError before the first row is given out.
"""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from clozelab.corpus.tables import (
    COLUMNAR,
    DamagedRow,
    Record,
    Table,
    csv_line,
    delimiter_of,
    json_record,
    open_table,
    refuse_twins,
    table_format,
)
from clozelab.files.lines import (
    file_suffix,
    is_decoded,
    parse_json,
    refuse_carriage_returns,
    text_lines,
)
from clozelab.text.plain import Json, JsonObject

FORMATS = ("lines", "jsonl", "csv", "tsv", "parquet", "arrow")
TAB = "\t"
# [{"text": ...: no line of a text begins so
JSON_LIST = re.compile(r'\s*\[\s*\{\s*"')
JSON_LIST_LINES = 3  # over which its beginning may go
# (number, text); None for a line that is not UTF-8
Lines = Callable[[], Iterator[tuple[int, str | None]]]


@dataclass(frozen=True)
class Row:
    """`problem`: why nothing can be read of it; it goes on where the place ends."""

    place: str
    record: JsonObject
    problem: str | None = None
    number: int = 1  # of the line, or the row of a table without lines


@dataclass(frozen=True)
class RowFile:
    """A file that was opened, and found to be of its form throughout."""

    name: str
    form: str  # one of FORMATS
    columns: list[str]  # of jsonl: the keys of the first object
    # (number, cells) of each row; DamagedRow goes on where its place ends
    _records: Callable[[], Iterator[tuple[int, Record]]] = field(repr=False)
    delimiter: str = ","  # of csv, and of tsv
    is_quoted: bool = True  # whether a quotation mark in it is more than a character
    _place: str = "{name}:{number}"  # of a row

    @property
    def is_table(self) -> bool:
        """Whether it has columns beside its texts, and a header that names them."""
        return self.form not in ("lines", "jsonl")

    def rows(self) -> Iterator[Row]:
        """From the first one on, however often it is asked for."""
        for number, record in self._records():
            problem = None
            cells: Json = record
            if isinstance(record, DamagedRow):
                problem = str(record)
                cells = record.cells
            place = self._place.format(name=self.name, number=number)
            yield Row(place, cells, problem, number)


def open_rows(name: str, form: str = "auto") -> RowFile:
    """Open a file, or what is piped in (`-`).

    ValueError where there is none, no row is in it, or it is damaged.
    """
    if form not in ("auto", *FORMATS):
        raise ValueError(f"format={form}: choose auto, {', '.join(FORMATS)}")
    if name == "-":
        return _open_piped(form)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"input={name}: there is no such file")
    if form == "auto" and file_suffix(path) == ".json":
        return _open_json(path)
    known_form: str | None = form
    if form == "auto":
        known_form = table_format(path)
    if known_form is None or known_form in ("lines", "jsonl"):
        # An answer for every line, so that answers stay beside their texts.
        return _open_lines(name, lambda: text_lines(path, keeps_empty_end=True), known_form)
    return _open_table(path, known_form)


# Lines


def _open_piped(form: str) -> RowFile:
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
    return _open_lines("-", lambda: iter(lines), None if form == "auto" else form)


def _split(text: str) -> list[tuple[int, str | None]]:
    """Numbered lines; they end at line feeds alone.

    Other characters that end a line elsewhere may stand in a text.
    """
    if not text:
        return []
    lines: list[tuple[int, str | None]] = []
    for number, line in enumerate(text.removeprefix("\ufeff").removesuffix("\n").split("\n"), 1):
        if is_decoded(line):
            lines.append((number, line.rstrip("\r")))
        else:
            lines.append((number, None))
    return lines


def _open_lines(name: str, lines: Lines, form: str | None) -> RowFile:
    number, first = next(lines(), (0, None))
    if number == 0:
        raise ValueError(f"input={name} has no line to read")
    if form is None:
        _refuse_json_list(name, lines)
        form = "lines"
        if isinstance(json_record(first), dict):
            form = "jsonl"
    if form == "jsonl":
        return RowFile(name, form, _first_keys(name, lines), lambda: _json_records(lines))
    has_pairs = _has_pairs(name, lines)
    columns = ["text"]
    if has_pairs:
        columns = ["text", "pair"]
    return RowFile(name, form, columns, lambda: _text_records(lines, has_pairs))


def _refuse_json_list(name: str, lines: Lines) -> None:
    """ValueError for a list of objects, which its lines would cut to pieces."""
    beginning = "\n".join(line or "" for _, line in islice(lines(), JSON_LIST_LINES))
    if JSON_LIST.match(beginning):
        raise ValueError(
            f"{name} begins as a list of JSON objects: call it .json, or write an object a line"
            " (format=lines takes its lines as texts)"
        )


def _first_keys(name: str, lines: Lines) -> list[str]:
    """Keys of the first object; ValueError where there is none."""
    for _, record in _json_records(lines):
        if isinstance(record, dict):
            return list(record)
    number, _ = next(_json_records(lines), (0, None))
    if number == 0:
        raise ValueError(f"input={name} has no line to read")
    raise ValueError(f"{name}:{number} is no JSON object, nor is any line below it")


def _has_pairs(name: str, lines: Lines) -> bool:
    """Whether most lines are two texts between a tab; in other files a tab is a blank.

    ValueError for a table.
    """
    # All lines are looked at: the first ones may be the exception.
    total = pairs = wide = 0
    for _, line in lines():
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


def _text_records(lines: Lines, has_pairs: bool) -> Iterator[tuple[int, Record]]:
    for number, line in lines():
        record: Record = {"text": line}
        if line is None:
            record = DamagedRow.of("is not UTF-8 text", {"text": ""})
        elif has_pairs and line.count(TAB) == 1:
            first, second = line.split(TAB)
            record = {"text": first, "pair": second}
        elif has_pairs and not line.strip():
            record = {"text": "", "pair": ""}
        elif has_pairs:
            reason = f"has {line.count(TAB)} tabs: two texts between a tab were expected"
            record = DamagedRow.of(reason, {"text": line})
        yield number, record


def _json_records(lines: Lines) -> Iterator[tuple[int, Record]]:
    for number, line in lines():
        if line is not None and not line.strip():
            continue
        record = json_record(line)
        if isinstance(record, str):
            cells = {"line": line}
            if line is None:
                cells = {}
            record = DamagedRow.of(f"is {record}", cells)
        yield number, record


def _open_json(path: Path) -> RowFile:
    """A list of objects, as `json` writes it; or an object a line under this name."""
    # A JSON list cannot be read line by line.
    lines = list(text_lines(path))
    if any(line is None for _, line in lines):
        raise ValueError(f"{path} is not UTF-8 text")
    content = None
    with suppress(ValueError, RecursionError):
        content = parse_json("\n".join(line or "" for _, line in lines))
    if not isinstance(content, list):
        return _open_lines(str(path), lambda: iter(lines), "jsonl")
    if not content or not isinstance(content[0], dict):
        raise ValueError(f'{path}: a list of objects was expected, such as [{{"text": ...}}]')

    def records() -> Iterator[tuple[int, Record]]:
        for number, record in enumerate(content, 1):
            if not isinstance(record, dict):
                record = DamagedRow.of("is no JSON object", {})
            yield number, record

    return RowFile(str(path), "jsonl", list(content[0]), records, _place="{name}, object {number}")


# Tables


def _open_table(path: Path, form: str) -> RowFile:
    delimiter = ","
    is_quoted = False
    if form == "csv":
        delimiter = delimiter_of(path)
        is_quoted = True
    elif form == "tsv":
        delimiter = TAB
        is_quoted = _is_quoted(path)
    table = open_table(path, "csv" if is_quoted else form, delimiter=delimiter)
    refuse_twins(table.columns, table.columns, path)
    if form not in COLUMNAR and not any(True for _ in table.rows()):
        raise ValueError(f"{path} has a header and no row below it")
    if form == "csv":
        # An open quotation mark is found now, and not after hours of work on what stands before it.
        for _ in table.rows():
            pass
    return RowFile(
        str(path), form, table.columns, lambda: _table_records(table), delimiter, is_quoted
    )


def _table_records(table: Table) -> Iterator[tuple[int, Record]]:
    for number, record in table.rows():
        if isinstance(record, str):
            # A damaged row keeps its cells as far as they stand there.
            cells = dict.fromkeys(table.columns) | getattr(record, "cells", {})
            record = DamagedRow.of(f"is damaged: {record}", cells)
        yield number, record


def _is_quoted(path: Path) -> bool:
    """Whether a tsv file was written by a csv writer.

    Then quotation marks enclose cells with tabs and line breaks. It was, where such a writer makes
    the very same file of what it reads there. Benchmarks have quotation marks that are characters
    like any other, and most have some that no writer would have left so.
    """
    raw = []
    for _, line in text_lines(path):
        if line is None:
            return False
        raw.append(line)
    text = "\n".join(raw)
    if '"' not in text:
        return False
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True))
    except csv.Error:
        return False
    # Where every line has as many tabs as the header, each is a row: two marks on different lines
    # are no cell that goes over them. Of a single column the tabs say nothing, and a doubled mark
    # is a writer's.
    num_tabs = {line.count(TAB) for line in raw}
    has_rows_of_lines = len(num_tabs) == 1 and num_tabs != {0}
    if has_rows_of_lines and len(rows) < len(raw) and '""' not in text:
        return False
    # Quotation marks where they are needed, or around every cell.
    for quotes_all in (False, True):
        lines = [csv_line(row, TAB, quotes_all=quotes_all) for row in rows]
        if "".join(lines).rstrip("\n") == text:
            return True
    return False
