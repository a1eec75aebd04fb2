"""Tables of text: tsv and csv.

tsv: tabs alone, and a quotation mark is a character like any other, as in the official files of
GLUE. csv: cells are quoted where that is needed, between commas, semicolons or tabs.
"""

from __future__ import annotations

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, islice
from typing import NamedTuple

from clozelab.readers.lines import (
    Advance,
    Line,
    file_suffix,
    ignore,
    is_decoded,
    plain_lines,
    text_lines,
)
from clozelab.readers.records import NOT_UTF8, DamagedRow, Record, Rows, Table
from clozelab.readers.remote import FilePath
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

TAB = "\t"
DELIMITERS = (",", ";", TAB)  # of csv
MAX_CELL_LINES = 2**14  # of one between marks in a tsv
MAX_CELL_CHARACTERS = 2**24  # of a csv cell; an open quotation mark swallows no more than this
SET_CSV = "say that it is csv (of a task task.data.file_format=csv, else format=csv)"
# as a csv writer leaves a row between tabs: marks enclose whole cells, those inside are doubled
QUOTED_CELL = r'"(?:[^"]|"")*"'
WRITTEN_ROW = re.compile(rf'(?:{QUOTED_CELL}|[^"\t]*)(?:\t(?:{QUOTED_CELL}|[^"\t]*))*')
QUOTED_ROW = re.compile(rf"{QUOTED_CELL}(?:\t{QUOTED_CELL})*")
# inside of a cell: a tab, a line break or a mark, for which a writer has to quote it
NEEDED_MARKS = re.compile(r'[\t\n]|""')
JUDGED_LINES = 20_000  # for a warning; from here on quoted cells are worth one
MIN_QUOTED_ROWS = 2
MIN_QUOTED_FRACTION = 0.05

# (line number, cells) of each row; None for one that is not UTF-8
Fields = Iterator[tuple[int, list[str] | None]]
ReadFields = Callable[[Advance, Counter[str] | None], Fields]


def open_delimited(
    path: FilePath,
    file_format: str,
    header: Sequence[str] | None = None,
    required: Sequence[str] = (),
    *,
    may_be_quoted: bool = False,
) -> Table:
    """Open a tsv or csv file.

    `header` names the columns of a file whose first line does not name all of `required`. A tsv
    that `may_be_quoted` is read as csv where a csv writer made it; else a warning says so.
    """
    is_quoted = file_format == "csv"
    if may_be_quoted and not is_quoted:
        is_quoted = detect_quoting(text_lines(path)).are_certain
    delimiter = TAB
    if file_format == "csv":
        delimiter = delimiter_of(path)
    read_fields: ReadFields = partial(_plain_fields, path)
    if is_quoted:
        read_fields = partial(_csv_fields, path, delimiter)
    columns, has_header = _header_of(path, read_fields, header, required)
    if not is_quoted:
        if has_header and QUOTED_ROW.fullmatch(TAB.join(columns)):
            raise ValueError(
                f"{path}: its header's names stand in quotation marks, as a csv writer puts them:"
                f" {SET_CSV}"
            )
        _warn_of_quotes(path)

    def rows(_: list[str] | None, advance: Advance, removed: Counter[str] | None) -> Rows:
        for number, fields in islice(read_fields(advance, removed), int(has_header), None):
            yield number, _record_of(columns, fields, delimiter)

    return Table(path, file_format, columns, rows, delimiter=delimiter, is_quoted=is_quoted)


def delimiter_of(path: FilePath) -> str:
    """What stands between cells of a csv file: a tab in a file called .tsv, else what its first
    line has most of.
    """
    if file_suffix(path) == ".tsv":
        return TAB
    _, header = next(iter(text_lines(path)), (0, ""))
    # in some countries a semicolon
    return max(DELIMITERS, key=(header or "").count)


def _header_of(
    path: FilePath, read_fields: ReadFields, header: Sequence[str] | None, required: Sequence[str]
) -> tuple[list[str], bool]:
    """The names of the columns, and whether they stand in the first line.

    A given `header` counts where the first line does not name all of `required`.
    """
    number, names = next(read_fields(ignore, Counter()), (0, None))
    if number == 0:
        raise ValueError(f"{path} is empty; expected a header line")
    if header is not None and (names is None or not set(required) <= set(names)):
        return list(header), False
    if names is None:
        raise ValueError(f"{path}:{number}: the header is {NOT_UTF8}")
    return names, True


def _plain_fields(path: FilePath, advance: Advance, removed: Counter[str] | None) -> Fields:
    for number, line in text_lines(path, advance, removed=removed):
        yield number, None if line is None else line.split(TAB)


def _csv_fields(
    path: FilePath, delimiter: str, advance: Advance, removed: Counter[str] | None
) -> Fields:
    """A quoted field may hold line breaks, so the csv module reads the file, not single lines."""
    # the limit is the whole process's, and is only ever raised
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    # Bytes that are not UTF-8 become surrogates, so that only their row is lost.
    raw_lines = plain_lines(path, advance, removed)
    lines = (line.decode("utf-8", "surrogateescape") for _, line in raw_lines)
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if not fields:  # a blank line is no row
                continue
            if all(map(is_decoded, fields)):
                yield reader.line_num, fields
            else:
                yield reader.line_num, None
    except csv.Error as problem:
        raise ValueError(f"{path}:{reader.line_num}: not a CSV file: {problem}") from problem


def _record_of(columns: list[str], fields: list[str] | None, delimiter: str) -> Record:
    if fields is None:
        return DamagedRow(NOT_UTF8)
    cells: PlainDict = dict(zip(columns, fields, strict=False))
    if len(fields) == len(columns):
        return cells
    # What stands behind the last column is a part of the last cell, so that nothing is lost.
    if len(fields) > len(columns) > 0:
        cells[columns[-1]] = delimiter.join(fields[len(columns) - 1 :])
    return DamagedRow(f"{len(fields)} fields, expected {len(columns)}", cells)


# Quotation marks of a tsv file


class Quotes(NamedTuple):
    """What the quotation marks of a tsv file are; by default characters like any other."""

    num_rows: int = 0  # that have a cell between marks
    # some of these needed them (a tab, a line break or a mark inside), or the whole header has them
    are_certain: bool = False


def detect_quoting(lines: Iterable[Line]) -> Quotes:
    """Whether a csv writer made the lines of a tsv file, so that quotation marks enclose cells.

    Benchmarks have marks that are characters like any other, and most have some that no writer
    would have left so: `"a film" of note`. A single one decides for the whole file.
    """
    remaining = iter(lines)
    _, header = next(remaining, (0, None))
    if header is None:
        return Quotes()
    num_rows = 0
    are_certain = QUOTED_ROW.fullmatch(header) is not None
    for row in _marked_rows(chain([(1, header)], remaining)):
        text = "\n".join(row)
        if not WRITTEN_ROW.fullmatch(text) or _are_rows(row, header.count(TAB)):
            return Quotes()
        num_rows += 1
        cells = re.findall(QUOTED_CELL, text)
        are_certain |= any(NEEDED_MARKS.search(cell[1:-1]) for cell in cells)
    return Quotes(num_rows, are_certain)


def _marked_rows(lines: Iterable[Line]) -> Iterator[list[str]]:
    """The lines of each row with quotation marks; it ends where those are closed.

    The last row has a single mark where one is never closed, or a line is not UTF-8 text.
    """
    row: list[str] = []
    for _, line in lines:
        if line is None or len(row) > MAX_CELL_LINES:
            yield ['"']
            return
        is_open = bool(row)
        has_odd_marks = line.count('"') % 2 == 1
        if is_open or '"' in line:
            row.append(line)
        if row and is_open == has_odd_marks:
            yield row
            row = []
    if row:
        yield row


def _are_rows(lines: Sequence[str], num_tabs: int) -> bool:
    """Whether marks on different lines enclose nothing, since each line has the header's tabs.

    Of a single column the tabs say nothing, and a doubled mark is a writer's.
    """
    if len(lines) == 1 or not num_tabs or any('""' in line for line in lines):
        return False
    return all(line.count(TAB) == num_tabs for line in lines)


@cache
def _warn_of_quotes(path: FilePath) -> None:
    """Once for a file, however often it is opened."""
    lines = list(islice(text_lines(path, removed=Counter()), JUDGED_LINES))
    quotes = detect_quoting(lines)
    likely_rows = max(MIN_QUOTED_ROWS, MIN_QUOTED_FRACTION * len(lines))
    if quotes.are_certain or quotes.num_rows >= likely_rows:
        log.warning(
            "%s: %d rows have a cell between quotation marks, and these are read as characters of"
            " it; if a csv writer put them there, %s",
            path,
            quotes.num_rows,
            SET_CSV,
        )


# Writing


def csv_line(cells: Iterable[object], delimiter: str = ",") -> str:
    """A row of csv with its line feed; its cells are quoted where that is needed.

    Older Pythons quote a carriage return only where their own rows end with one. A reader takes it
    for the end of a row.
    """
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"
