"""Rows of tables on disk, streamed in constant memory.

They are csv, tsv, jsonl, Parquet and Arrow, as pandas and `datasets` write them.

    table = open_table(path)            # the format by the file's name, or the one that is given
    table.columns                       # ["id", "text", "label"]
    for number, row in table.rows(["text", "label"]):
        ...                             # {"text": "...", "label": 1}; a damaged row is a text that
                                        # says what is wrong

tsv: tabs alone, a quotation mark is a character like any other (GLUE). csv: quoted where needed,
between commas, or between tabs in a file called .tsv. jsonl: an object a line. csv, tsv and jsonl
may be packed (files/lines.py).

`number` is a line of the file (of a csv row with line breaks its last one), of Parquet and Arrow
the row, from 1. A cell is what the format has: text in csv and tsv; of the others also numbers,
lists, dictionaries, None. What a cell means is for the reader to say.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from clozelab.files.lines import (
    COMPRESSIONS,
    Advance,
    file_suffix,
    ignore,
    is_decoded,
    parse_json,
    plain_lines,
    text_lines,
)
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import JsonObject, PlainDict

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import RecordBatch
    from pyarrow.ipc import RecordBatchFileReader, RecordBatchStreamReader

    ArrowReader: TypeAlias = RecordBatchFileReader | RecordBatchStreamReader

log = logging.getLogger(__name__)

TABLE_FORMATS = ("tsv", "csv", "jsonl", "parquet", "arrow")
TAB = "\t"
DELIMITERS = (",", ";", TAB)  # of csv
# of a tsv file, from which a csv writer may have made it
MIN_QUOTED_ROWS = 2
MIN_QUOTED_FRACTION = 0.05
COLUMNAR = ("parquet", "arrow")  # binary: their rows have numbers, not lines
FORMAT_BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}
MAX_CELL_CHARACTERS = 2**24  # of a csv cell; an open quotation mark swallows no more than this
BATCH_ROWS = 64  # of Parquet and Arrow, held at a time: a row may be a book
BUFFER_BYTES = 2**20
SAMPLED_ROWS = 100  # by which a column of text is known
# of a column; longer "names" are the first row of a file without any
MAX_NAME_WORDS = 4
MAX_NAME_CHARACTERS = 60
ARROW_FILE = b"ARROW1"
# Arrow's mark of a message (0xFFFFFFFF), and a length of 0: no more messages
ARROW_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
DEFAULT_TEXT_COLUMN = "text"
SET_CSV = (
    "set its format to csv (of a task task.data.file_format=csv, of a corpus"
    " corpus.sources.N.format=csv)"
)
CLASS_LABEL = "ClassLabel"  # what the datasets library calls a column of numbers that have names

Record = JsonObject | str  # a row's cells by column; of a damaged row, what is wrong with it
Row = tuple[int, Record]
# (line number, cells) of each row; None for one that is not UTF-8
Fields = Iterator[tuple[int, list[str] | None]]


class DamagedRow(str):
    """What is wrong with a row, and the `cells` that stand there all the same, by column."""

    cells: PlainDict

    @classmethod
    def of(cls, problem: str, cells: JsonObject) -> DamagedRow:
        row = cls(problem)
        row.cells = cells
        return row


@dataclass(frozen=True)
class Table:
    """A table that was opened: its header was read, its rows were not."""

    path: Path
    columns: list[str]  # in file order; of jsonl those of the first object
    types: dict[str, object] = field(default_factory=dict)  # of the columns of Parquet and Arrow
    # of Parquet and Arrow: what a column's 0, 1, ... mean
    class_names: dict[str, list[str]] = field(default_factory=dict)
    _rows: Callable[[list[str] | None, Advance], Iterator[Row]] = lambda *_: iter(())

    def rows(
        self,
        columns: Sequence[str] | None = None,
        advance: Advance = ignore,
    ) -> Iterator[Row]:
        """(number, record) of each row, from the first one on; ValueError for a damaged file.

        Of Parquet and Arrow only `columns` are read (None: all). `advance` is told how many bytes
        were read.
        """
        if columns is not None:
            columns = list(columns)
        return self._rows(columns, advance)

    def holds_text(self, column: str) -> bool:
        """False where its type says otherwise."""
        return column not in self.types or _is_text(self.types[column])


def refuse_twins(columns: Sequence[str], names: Iterable[str], where: object) -> None:
    """ValueError where one of these is the name of two columns."""
    for name in names:
        if columns.count(name) > 1:
            raise ValueError(f"{where} has two columns {name!r}; rename one")


def table_format(path: Path) -> str | None:
    """What a file's name says that it is; None for no table."""
    return FORMAT_BY_SUFFIX.get(file_suffix(path))


def open_table(
    path: Path,
    file_format: str = "auto",
    *,
    header: Sequence[str] | None = None,
    required: Sequence[str] = (),
    delimiter: str | None = None,
) -> Table:
    """Open a table and read its columns' names.

    The format `auto` goes by the file's name, and is tsv where that says nothing. `header` names
    the columns of a tsv or csv file whose first line does not name all of `required`. `delimiter`
    stands between cells of csv; None: as `delimiter_of` says. ValueError for an unknown format, an
    empty or binary file, and one that is not of its format.
    """
    check_choice("file_format", file_format, ("auto", *TABLE_FORMATS))
    if file_format == "auto":
        file_format = table_format(path) or "tsv"
        if file_suffix(path) == ".json":
            file_format = "jsonl"
    if file_format == "jsonl":
        return _open_jsonl(path)
    if file_format in COLUMNAR:
        return _open_columnar(path, file_format)
    if file_format == "tsv":
        delimiter = TAB
    elif delimiter is None:
        delimiter = delimiter_of(path)
    return _open_delimited(path, file_format, header, required, delimiter)


# csv and tsv


def delimiter_of(path: Path) -> str:
    """What stands between cells of a csv file: a tab in a file called .tsv, else what its first
    line has most of.
    """
    if file_suffix(path) == ".tsv":
        return TAB
    _, header = next(iter(text_lines(path)), (0, ""))
    # in some countries a semicolon
    return max(DELIMITERS, key=(header or "").count)


def _open_delimited(
    path: Path,
    file_format: str,
    header: Sequence[str] | None,
    required: Sequence[str],
    delimiter: str,
) -> Table:
    is_plain = file_format == "tsv"
    fields_of = partial(_plain_fields if is_plain else _csv_fields, path, delimiter)
    columns, has_header = _header_of(path, fields_of, header, required)
    if is_plain and has_header and all(map(_is_quoted, columns)):
        raise ValueError(
            f"{path}: its header's names stand in quotation marks, as a csv writer puts them:"
            f" {SET_CSV}"
        )

    def rows(_: list[str] | None, advance: Advance) -> Iterator[Row]:
        num_rows = num_quoted = 0
        for number, fields in islice(fields_of(advance), int(has_header), None):
            num_rows += 1
            if is_plain and any(map(_is_quoted, fields or ())):
                num_quoted += 1
            yield number, _delimited_record(columns, fields, delimiter)
        if num_quoted >= max(MIN_QUOTED_ROWS, MIN_QUOTED_FRACTION * num_rows):
            _warn_of_quotes(path, num_quoted, num_rows)

    return Table(path, columns, _rows=rows)


def _header_of(
    path: Path,
    fields_of: Callable[[Advance], Fields],
    header: Sequence[str] | None,
    required: Sequence[str],
) -> tuple[list[str], bool]:
    """The names of the columns, and whether they stand in the first line.

    A given `header` counts where the first line does not name all of `required`.
    """
    number, names = next(fields_of(ignore), (0, None))
    if number == 0:
        raise ValueError(f"{path} is empty; expected a header line")
    if header is not None and (names is None or not set(required) <= set(names)):
        return list(header), False
    if names is None:
        raise ValueError(f"{path}:{number}: the header is not UTF-8 text")
    return names, True


def _is_quoted(cell: str) -> bool:
    """Whether it looks as a csv writer leaves it: between quotation marks, those inside doubled."""
    if len(cell) < 2 or cell[0] != '"' or cell[-1] != '"':
        return False
    inside = cell[1:-1]
    return '"' not in inside.replace('""', "")


@cache
def _warn_of_quotes(path: Path, num_quoted: int, num_rows: int) -> None:
    """Once for a file, however often it is read."""
    log.warning(
        "%s: %d of %d rows have a cell between quotation marks, and these are read as characters of"
        " it; if a csv writer put them there, %s",
        path,
        num_quoted,
        num_rows,
        SET_CSV,
    )


def _plain_fields(path: Path, delimiter: str, advance: Advance) -> Fields:
    for number, line in text_lines(path, advance):
        yield number, None if line is None else line.split(delimiter)


def _csv_fields(path: Path, delimiter: str, advance: Advance) -> Fields:
    """A quoted field may hold line breaks, so the csv module reads the file, not single lines."""
    # the limit is the whole process's, and is only ever raised
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARACTERS))
    # Bytes that are not UTF-8 become surrogates, so that only their row is lost.
    lines = (line.decode("utf-8", "surrogateescape") for _, line in plain_lines(path, advance))
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


def csv_line(cells: Iterable[object], delimiter: str = ",", *, quotes_all: bool = False) -> str:
    """A row of csv with its line feed; its cells are quoted where that is needed, or all.

    Older Pythons quote a carriage return only where their own rows end with one. A reader takes it
    for the end of a row.
    """
    buffer = io.StringIO(newline="")
    quoting: Literal[0, 1] = csv.QUOTE_ALL if quotes_all else csv.QUOTE_MINIMAL
    writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n", quoting=quoting)
    writer.writerow(cells)
    return buffer.getvalue().removesuffix("\r\n") + "\n"


def _delimited_record(columns: list[str], fields: list[str] | None, delimiter: str) -> Record:
    if fields is None:
        return "not UTF-8 text"
    cells = dict(zip(columns, fields, strict=False))
    if len(fields) == len(columns):
        return cells
    # What stands behind the last column is a part of the last cell, so that nothing is lost.
    if len(fields) > len(columns) > 0:
        cells[columns[-1]] = delimiter.join(fields[len(columns) - 1 :])
    return DamagedRow.of(f"{len(fields)} fields, expected {len(columns)}", cells)


# jsonl


def _open_jsonl(path: Path) -> Table:
    number, first = next(_json_rows(path, ignore), (0, ""))
    if number == 0:
        raise ValueError(f"{path} has no examples")
    if isinstance(first, str):
        raise ValueError(
            f"{path}:{number}: {first}: a file of JSON has an object a line here, and no array"
            " around them (pandas: to_json(orient='records', lines=True))"
        )
    return Table(path, list(first), _rows=lambda _, advance: _json_rows(path, advance))


def _json_rows(path: Path, advance: Advance) -> Iterator[Row]:
    for number, line in text_lines(path, advance):
        yield number, json_record(line)


def json_record(line: str | None) -> Record:
    """The object of a line (None: it is not UTF-8 text), or what is wrong with it."""
    if line is None:
        return "not UTF-8 text"
    try:
        content = parse_json(line)
    except (ValueError, RecursionError):
        return "no JSON object"
    if isinstance(content, dict):
        return content
    return "no JSON object"


# Parquet and Arrow


def _open_columnar(path: Path, file_format: str) -> Table:
    if path.suffix in COMPRESSIONS:
        raise ValueError(
            f"{path}: a packed {file_format} file cannot be streamed; unpack it (it is compressed"
            " inside)"
        )
    schema, num_rows = _columnar_schema(path, file_format)

    def rows(columns: list[str] | None, advance: Advance) -> Iterator[Row]:
        number = num_bytes = 0
        size = path.stat().st_size
        for batch in _batches(path, file_format, columns):
            for record in batch.to_pylist():
                number += 1
                yield number, record
            # How far it is, by rows: the order of the bytes on disk is the format's own affair.
            num_bytes_now = size * number // max(number, num_rows or 1)
            advance(num_bytes_now - num_bytes)
            num_bytes = num_bytes_now

    return Table(
        path,
        columns=list(schema.names),
        types={column.name: column.type for column in schema},
        class_names=_class_names(schema),
        _rows=rows,
    )


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Column -> the names of its numbers.

    The datasets library notes them in a schema's metadata.
    """
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        features = dict(metadata["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}
    names: dict[str, list[str]] = {}
    for column, feature in features.items():
        if not isinstance(feature, dict) or feature.get("_type") != CLASS_LABEL:
            continue
        if isinstance(feature.get("names"), list):
            names[column] = [str(name) for name in feature["names"]]
    return names


def _columnar_schema(path: Path, file_format: str) -> tuple[pyarrow.Schema, int | None]:
    """The schema, and the number of rows where the file says it."""
    import pyarrow  # takes a third of a second: only who reads such a file pays
    from pyarrow import parquet

    try:
        if file_format == "parquet":
            with parquet.ParquetFile(path) as file:
                return file.schema_arrow, file.metadata.num_rows
        with pyarrow.memory_map(str(path)) as source, _arrow_reader(source) as reader:
            return reader.schema, None
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(_unreadable(path, file_format, error)) from error


def _batches(path: Path, file_format: str, columns: list[str] | None) -> Iterator[RecordBatch]:
    """Record batches of BATCH_ROWS rows at most."""
    import pyarrow
    from pyarrow import parquet

    try:
        if file_format == "parquet":
            # By pages: otherwise a row group of many megabytes is read as a whole.
            with parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
                yield from file.iter_batches(batch_size=BATCH_ROWS, columns=columns)
            return
        with pyarrow.memory_map(str(path)) as source, _arrow_reader(source) as reader:
            for batch in _arrow_batches(reader):
                if columns is not None:
                    batch = batch.select(columns)
                for start in range(0, len(batch), BATCH_ROWS):
                    yield batch.slice(start, BATCH_ROWS)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(_unreadable(path, file_format, error)) from error


def _arrow_reader(source: pyarrow.NativeFile) -> ArrowReader:
    """A reader of Arrow's two layouts: a file (feather), or a stream (as `datasets` caches it)."""
    from pyarrow import ipc

    is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
    # A stream whose writer was stopped is cut off between two batches, and reads as a shorter one.
    source.seek(max(0, source.size() - len(ARROW_STREAM_END)))
    if not is_file and source.read() != ARROW_STREAM_END:
        raise OSError("the stream does not end with its mark")
    source.seek(0)
    if is_file:
        return ipc.open_file(source)
    return ipc.open_stream(source)


def _arrow_batches(reader: ArrowReader) -> Iterator[RecordBatch]:
    if hasattr(reader, "num_record_batches"):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader


def _is_text(column_type: pyarrow.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    is_any_string = types.is_string(column_type) or types.is_large_string(column_type)
    return is_any_string or types.is_string_view(column_type)


def _unreadable(path: Path, file_format: str, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} cannot be read: you have no permission for it"
    reason = str(error).partition("\n")[0]
    return (
        f"{path} is no {file_format} file, or is damaged or incomplete ({reason}); fetch it again"
    )


# Which column is the text?


def find_text_column(
    table: Table,
    name: str,
    key: str,
) -> str:
    """The column `name`, or the only one that looks like text.

    The latter counts where no column is called DEFAULT_TEXT_COLUMN and none is named. ValueError
    lists the columns where the name one is missing or no text, and where several may be it. `key`
    is the setting that names the column.
    """
    columns = table.columns
    refuse_twins(columns, [name], table.path)
    if name in columns:
        _refuse_other_than_text(table, name, key)
        return name
    listed = ", ".join(map(repr, columns))
    if name != DEFAULT_TEXT_COLUMN:
        raise ValueError(
            f"{table.path} has no column {name!r}; its columns are {listed}: name one by {key}",
        )
    # No column is called "text": a name has to be found, so there must be a header.
    _refuse_missing_header(table)
    plausible = _plausible_columns(table)
    if len(plausible) != 1:
        raise ValueError(
            f"{table.path} does not say which column is the text ({listed}): name it by {key}",
        )
    return plausible[0]


def _refuse_other_than_text(table: Table, column: str, key: str) -> None:
    if not table.holds_text(column):
        raise ValueError(
            f"{table.path}: the column {column!r} holds {table.types[column]}, no text; "
            f"its columns are {', '.join(map(repr, table.columns))}: name another by {key}"
        )
    values = _sampled(table, [column])[column]
    if values and all(map(_is_number, values)):
        raise ValueError(
            f"{table.path}: the column {column!r} holds numbers ({values[0]}, ...), no text; "
            f"its columns are {', '.join(map(repr, table.columns))}: name another by {key}"
        )


def _refuse_missing_header(table: Table) -> None:
    """Of csv and tsv: a first line that is a row of data names no columns."""
    for name in table.columns:
        if len(name) > MAX_NAME_CHARACTERS or len(name.split()) > MAX_NAME_WORDS:
            example = name
            if len(name) > MAX_NAME_CHARACTERS:
                example = f"{name[:MAX_NAME_CHARACTERS]}..."
            raise ValueError(
                f"{table.path}: its first line names no columns ({example!r}): put a header line"
                " above it"
            )


def _plausible_columns(table: Table) -> list[str]:
    """The only column with text in it.

    Of several, those whose cells are mostly more than a word.
    """
    candidates = list(filter(table.holds_text, table.columns))
    texts = dict[str, list[str]]()
    for name, values in _sampled(table, candidates).items():
        if values and not all(map(_is_number, values)):
            texts[name] = values
    if len(texts) == 1:
        return list(texts)
    plausible = []
    for name, values in texts.items():
        num_with_words = sum(len(text.split()) > 1 for text in values)
        if 2 * num_with_words > len(values):
            plausible.append(name)
    return plausible


def _sampled(table: Table, columns: list[str]) -> dict[str, list[str]]:
    """Non-empty texts of the first rows, by column."""
    values: dict[str, list[str]] = {name: [] for name in columns}
    for _, record in islice(table.rows(columns), SAMPLED_ROWS):
        if isinstance(record, str):
            continue
        for name in columns:
            cell = record.get(name)
            if isinstance(cell, str) and cell.strip():
                values[name].append(cell.strip())
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
