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
from itertools import islice
from pathlib import Path

from clozelab.readers.lines import (
    Advance,
    file_suffix,
    ignore,
    is_decoded,
    plain_lines,
    text_lines,
)
from clozelab.readers.records import NOT_UTF8, DamagedRow, Record, Rows, Table

log = logging.getLogger(__name__)

TAB = "\t"
DELIMITERS = (",", ";", TAB)  # of csv
MAX_CELL_LINES = 2**14  # of one between marks in a tsv
MAX_CELL_CHARACTERS = 2**24  # of a csv cell; an open quotation mark swallows no more than this
SET_CSV = (
    "set its format to csv (of a task task.data.file_format=csv, of a corpus"
    " corpus.sources.N.format=csv, to predict format=csv)"
)
# as a csv writer leaves a row between tabs: marks enclose whole cells, those inside are doubled
QUOTED_CELL = r'"(?:[^"]|"")*"'
WRITTEN_ROW = re.compile(rf'(?:{QUOTED_CELL}|[^"\t]*)(?:\t(?:{QUOTED_CELL}|[^"\t]*))*')
QUOTED_ROW = re.compile(rf"{QUOTED_CELL}(?:\t{QUOTED_CELL})*")
# inside of a cell: a tab, a line break or a mark, for which a writer has to quote it
NEEDED_MARKS = re.compile(r'[\t\n]|""')
# of the lines: from here on quoted cells are worth a warning
MIN_QUOTED_ROWS = 2
MIN_QUOTED_FRACTION = 0.05

# (line number, cells) of each row; None for one that is not UTF-8
Fields = Iterator[tuple[int, list[str] | None]]
ReadFields = Callable[[Advance, Counter[str] | None], Fields]


def open_delimited(
    path: Path,
    file_format: str,
    header: Sequence[str] | None = None,
    required: Sequence[str] = (),
    delimiter: str | None = None,
) -> Table:
    """Open a tsv or csv file.

    `header` names the columns of a file whose first line does not name all of `required`.
    `delimiter` stands between cells of csv; None: as `delimiter_of` says.
    """
    if file_format == "tsv":
        read_fields: ReadFields = partial(_plain_fields, path)
        delimiter = TAB
    else:
        if delimiter is None:
            delimiter = delimiter_of(path)
        read_fields = partial(_csv_fields, path, delimiter)
    columns, has_header = _header_of(path, read_fields, header, required)
    if file_format == "tsv" and has_header and QUOTED_ROW.fullmatch(TAB.join(columns)):
        raise ValueError(
            f"{path}: its header's names stand in quotation marks, as a csv writer puts them:"
            f" {SET_CSV}"
        )

    def rows(_: list[str] | None, advance: Advance, removed: Counter[str] | None) -> Rows:
        for number, fields in islice(read_fields(advance, removed), int(has_header), None):
            yield number, _record_of(columns, fields, delimiter)

    return Table(path, columns, rows)


def delimiter_of(path: Path) -> str:
    """What stands between cells of a csv file: a tab in a file called .tsv, else what its first
    line has most of.
    """
    if file_suffix(path) == ".tsv":
        return TAB
    _, header = next(iter(text_lines(path)), (0, ""))
    # in some countries a semicolon
    return max(DELIMITERS, key=(header or "").count)


def _header_of(
    path: Path, read_fields: ReadFields, header: Sequence[str] | None, required: Sequence[str]
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


def _plain_fields(path: Path, advance: Advance, removed: Counter[str] | None) -> Fields:
    guess = QuoteGuess()
    for number, line in text_lines(path, advance, removed=removed):
        guess.add(line)
        yield number, None if line is None else line.split(TAB)
    if guess.is_likely:
        _warn_of_quotes(path, guess.num_quoted)


def _csv_fields(
    path: Path, delimiter: str, advance: Advance, removed: Counter[str] | None
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
    cells = dict(zip(columns, fields, strict=False))
    if len(fields) == len(columns):
        return cells
    # What stands behind the last column is a part of the last cell, so that nothing is lost.
    if len(fields) > len(columns) > 0:
        cells[columns[-1]] = delimiter.join(fields[len(columns) - 1 :])
    return DamagedRow(f"{len(fields)} fields, expected {len(columns)}", cells)


# Quotation marks of a tsv file


class QuoteGuess:
    """Whether a csv writer made the lines of a tsv file, so that quotation marks enclose cells.

    Benchmarks have marks that are characters like any other, and most have some that no writer
    would have left so: `"a film" of note`. A single one refutes the guess for the whole file.
    """

    def __init__(self) -> None:
        # whether a cell needed its marks (it has a tab, a line break or a mark in it), or the whole
        # header has some
        self.is_certain = False
        self.num_quoted = 0  # rows with a cell between marks
        self._num_lines = 0
        self._num_tabs = 0  # of the header
        self._open_lines: list[str] = []  # of a row whose last cell is still open
        self._num_marks = 0  # in these
        self._is_refuted = False

    def add(self, line: str | None) -> None:
        """Look at the next line; None stands for one that is not UTF-8 text."""
        self._num_lines += 1
        if line is None:
            self._refute()
        if line is None or self._is_refuted:
            return
        if self._num_lines == 1:
            self._num_tabs = line.count(TAB)
            self.is_certain = QUOTED_ROW.fullmatch(line) is not None
        if '"' not in line and not self._open_lines:
            return
        self._open_lines.append(line)
        self._num_marks += line.count('"')
        if self._num_marks % 2 == 0:
            self._close_row("\n".join(self._open_lines))
        elif len(self._open_lines) > MAX_CELL_LINES:
            self._refute()

    @property
    def is_written(self) -> bool:
        """The answer, after the last line."""
        return self.is_certain and not self._open_lines

    @property
    def is_likely(self) -> bool:
        """As `is_written`, or so many cells stand between marks that somebody should look."""
        likely = max(MIN_QUOTED_ROWS, MIN_QUOTED_FRACTION * self._num_lines)
        return self.is_written or self.num_quoted >= likely

    def _close_row(self, row: str) -> None:
        if not WRITTEN_ROW.fullmatch(row) or self._is_several_rows(row):
            self._refute()
            return
        self._open_lines = []
        self._num_marks = 0
        self.num_quoted += 1
        cells = re.findall(QUOTED_CELL, row)
        self.is_certain |= any(NEEDED_MARKS.search(cell[1:-1]) for cell in cells)

    def _refute(self) -> None:
        self._is_refuted = True
        self.is_certain = False
        self.num_quoted = 0
        self._open_lines = []

    def _is_several_rows(self, row: str) -> bool:
        """Whether marks on different lines enclose nothing, since each line has the header's tabs.

        Of a single column the tabs say nothing, and a doubled mark is a writer's.
        """
        if len(self._open_lines) == 1 or not self._num_tabs or '""' in row:
            return False
        return all(line.count(TAB) == self._num_tabs for line in self._open_lines)


def is_csv_written(path: Path) -> bool:
    """Whether a csv writer made this tsv file."""
    guess = QuoteGuess()
    for _, line in text_lines(path):
        guess.add(line)
    return guess.is_written


@cache
def _warn_of_quotes(path: Path, num_quoted: int) -> None:
    """Once for a file, however often it is read."""
    log.warning(
        "%s: %d rows have a cell between quotation marks, and these are read as characters of it;"
        " if a csv writer put them there, %s",
        path,
        num_quoted,
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
