"""What every benchmark reader does with files: find them or say how to get them, read their lines and their tables.

A rare damaged row is skipped and counted by the reader; a file with more than `MAX_BAD_FRACTION` of them is refused.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from clozelab.corpus.files import JSONL_SUFFIXES, file_suffix, lines_of
from clozelab.corpus.generated import BASELINES_FILE, generator_of

MAX_BAD_FRACTION = 0.01
TABLE_FORMATS = ("auto", "tsv", "csv", "jsonl")

Scores = dict[str, dict[str, float]]
"""Baseline -> score's name -> value."""
Record = dict[str, str] | str
"""One row of a table: its values by column; or, of a damaged one, what is wrong with it."""


def require_file(data_dir: str | Path, relative: str, how_to_get: str) -> Path:
    """`data_dir/relative`, or a ValueError that names the file, the expected layout and where it comes from."""
    path = Path(data_dir) / relative
    if path.is_file():
        return path
    raise ValueError(
        f"benchmark file not found: {path}\n"
        f"  expected layout: data_dir/{relative} (data_dir is {Path(data_dir).absolute()}; set data_dir=FOLDER)\n"
        f"  how to get it: {' '.join(how_to_get.split())}"
    )


def text_lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """(line number from 1, text without line end); None for a line that is not UTF-8. Drops empty lines at the end.

    A byte order mark and CRLF line ends are taken off; a file named `.gz` or `.zst` is decompressed on the way.
    """
    empty = 0
    with path.open("rb") as file:
        for number, raw in enumerate(lines_of(path, file), start=1):
            raw = (raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw).rstrip(b"\r")
            if not raw:
                empty += 1
                continue
            for skipped in range(number - empty, number):
                yield skipped, ""
            empty = 0
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError:
                yield number, None


@dataclass
class TextExamples:
    """Labelled texts of a table, in file order."""

    ids: list[str] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    """Of each example: its text, its pair, or a context and its endings."""
    labels: list[str] | None = None
    """None: the file has none."""
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        """The examples at `index`, in its order."""
        labels = None if self.labels is None else [self.labels[i] for i in index]
        return TextExamples([self.ids[i] for i in index], [self.texts[i] for i in index], labels, self.num_bad_rows)


@dataclass(frozen=True)
class TableFormat:
    """Where a task's texts and labels stand in a table."""

    text_columns: Sequence[str]
    label_column: str
    id_column: str | None = None
    """None: the row's number is its id."""
    columns: Sequence[str] | None = None
    """Names for a file without a header; None: the first line names them."""
    file_format: str = "auto"
    """auto | tsv | csv | jsonl."""

    def read(
        self,
        path: Path,
        *,
        check_label: Callable[[str], str | None],
        labels: str,
        make: Callable[[dict[str, str]], tuple[str, ...]] | None = None,
    ) -> TextExamples:
        """Read one file.

        Args:
            check_label: says what is wrong with a label. It is never skipped: the list or the column is then wrong.
            labels: required | optional (the file may come without its column) | unread.
            make: values by column -> texts; None: the text columns.

        Raises:
            ValueError: names the file (and line) of a missing column, a wrong label, or more than 1 % damaged rows.
        """
        columns, records = read_table(path, self.file_format, self.columns)
        wanted = [*self.text_columns, *([self.id_column] if self.id_column else [])]
        require_columns(path, columns, wanted, self.label_column, labels == "required")
        has_labels = labels != "unread" and self.label_column in columns
        wanted += [self.label_column] if has_labels else []
        examples, bad, row = TextExamples(labels=[] if has_labels else None), [], -1
        for row, (number, record) in enumerate(records):
            if not isinstance(record, str) and (lacks := [name for name in wanted if name not in record]):
                record = f"no value of {', '.join(lacks)}"
            if isinstance(record, str):
                bad.append(f"{path}:{number}: {record}")
                continue
            if examples.labels is not None:
                label = record[self.label_column]
                if problem := check_label(label):
                    raise ValueError(f"{path}:{number}: label {label!r} {problem}")
                examples.labels.append(label)
            examples.ids.append(record[self.id_column] if self.id_column else str(row))
            examples.texts.append(make(record) if make else tuple(record[name] for name in self.text_columns))
        refuse_wrong_file(path, bad, row + 1, f"the columns {columns}")
        examples.num_bad_rows = len(bad)
        return examples


def read_table(
    path: Path, file_format: str, columns: Sequence[str] | None
) -> tuple[list[str], Iterator[tuple[int, Record]]]:
    """The columns of a table, and (line number, record) of its rows.

    tsv: tabs alone, a quotation mark is a character like any other (GLUE). csv: quoted where needed. jsonl: an object a
    line; a value that is no text stands as JSON writes it, null as a missing one. auto: by the file's name.

    Args:
        columns: names for a tsv or csv file without a header; None: the first line names them.

    Raises:
        ValueError: an unknown format, no header, or no CSV.
    """
    if file_format not in TABLE_FORMATS:
        raise ValueError(f"file_format={file_format!r} is unknown; known: {', '.join(TABLE_FORMATS)}")
    if file_format == "auto":
        suffix = file_suffix(path)
        file_format = "jsonl" if suffix in JSONL_SUFFIXES else "csv" if suffix == ".csv" else "tsv"
    if file_format == "jsonl":
        return _json_table(path)
    lines = _csv_fields(path) if file_format == "csv" else _tsv_fields(path)
    names = list(columns) if columns is not None else _header(path, lines)
    return names, ((number, _named(fields, names)) for number, fields in lines)


def require_columns(path: Path, columns: Sequence[str], wanted: Sequence[str], label: str, needs_label: bool) -> None:
    """ValueError for a table without a column that is read; the label's is, only if it is needed."""
    missing = [name for name in [*wanted, *([label] if needs_label else [])] if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; its columns are {list(columns)}"
            + (" (a test file without labels can only be predicted)" if missing == [label] else "")
        )


def _tsv_fields(path: Path) -> Iterator[tuple[int, list[str] | None]]:
    return ((number, None if line is None else line.split("\t")) for number, line in text_lines(path))


def _csv_fields(path: Path) -> Iterator[tuple[int, list[str] | None]]:
    """A quoted field may hold line breaks, so the csv module reads the file, not single lines."""
    with path.open("rb") as file:
        raw = (
            line if number else line.removeprefix(b"\xef\xbb\xbf") for number, line in enumerate(lines_of(path, file))
        )
        reader = csv.reader((line.decode("utf-8", "surrogateescape") + "\n" for line in raw), strict=True)
        try:
            for fields in reader:
                broken = any("\udc80" <= character <= "\udcff" for text in fields for character in text)
                yield reader.line_num, None if broken else fields
        except csv.Error as problem:
            raise ValueError(f"{path}:{reader.line_num}: not a CSV file: {problem}") from problem


def _header(path: Path, lines: Iterator[tuple[int, list[str] | None]]) -> list[str]:
    number, fields = next(lines, (0, None))
    if fields is None:
        raise ValueError(
            f"{path} is empty; expected a header line and one example a line"
            if number == 0
            else f"{path}:{number}: the header is not UTF-8 text"
        )
    return fields


def _named(fields: list[str] | None, columns: Sequence[str]) -> Record:
    if fields is None:
        return "not UTF-8 text"
    if len(fields) != len(columns):
        return f"{len(fields)} fields, expected {len(columns)}"
    return dict(zip(columns, fields, strict=True))


def _json_table(path: Path) -> tuple[list[str], Iterator[tuple[int, Record]]]:
    """The columns are the first object's keys."""
    records = ((number, _json_record(line)) for number, line in text_lines(path))
    number, first = next(records, (0, ""))
    if isinstance(first, str):
        raise ValueError(f"{path}:{number}: {first}" if number else f"{path} has no examples")
    return list(first), chain([(number, first)], records)


def _json_record(line: str | None) -> Record:
    try:
        found = None if line is None else json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return "not UTF-8 text" if line is None else "no JSON object"
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items() if value is not None
    }


def refuse_wrong_file(path: Path, bad: Sequence[str], num_rows: int, expected: str) -> None:
    """ValueError for a file without rows, or with too many damaged ones; `bad` says where and what, one text a row."""
    if num_rows == 0:
        raise ValueError(f"{path} has no examples")
    if len(bad) > MAX_BAD_FRACTION * num_rows:
        raise ValueError(
            f"{bad[0]}\n  {len(bad)} of {num_rows} rows do not fit {expected}: another format, or a damaged file"
        )


def baselines_of(data_dir: str | Path, path: Path) -> Scores:
    """Baseline -> score's name -> value, as `baselines.json` beside a validation file says; empty where none is there.

    A generator's list says nothing of a real file that has taken the generated one's place.
    ValueError where that file is there and is something else.
    """
    listed = path.with_name(BASELINES_FILE)
    if not listed.is_file() or generator_of(data_dir, [listed]) != generator_of(data_dir, [path]):
        return {}
    try:
        found = json.loads(listed.read_text(encoding="utf-8")).get(path.name, {})
        return {
            str(name): {str(metric): float(value) for metric, value in scores.items()} for name, scores in found.items()
        }
    except (ValueError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{listed} is no list of baselines ({problem}): it holds "
            f'{{"{path.name}": {{"name of a baseline": {{"accuracy": 0.5}}}}}}; mend it or delete it'
        ) from problem
