"""Labelled sentences and sentence pairs from the official GLUE files.

The format is tab-separated but not CSV: a quotation mark is a character like any other, so the csv module must not
touch it. Some files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files have
no labels. A rare damaged row is skipped and counted; a file where more than `MAX_BAD_FRACTION` of the rows are damaged
is another format and is refused. A label outside the list is never skipped: it means that the list or the column is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clozelab.data.readers.files import refuse_wrong_file, text_lines


@dataclass(frozen=True)
class TsvFormat:
    """Where a task's columns are. `columns` names them for a file without a header; None: the first line names them."""

    text_columns: Sequence[str]
    label_column: str
    id_column: str | None
    columns: Sequence[str] | None
    numeric_labels: bool = False
    """Labels are numbers (regression), not names of classes."""

    def __post_init__(self) -> None:
        if len(self.text_columns) not in (1, 2):
            raise ValueError(f"text_columns must name one or two columns, not {list(self.text_columns)}")


@dataclass
class TextExamples:
    """Examples in file order. `second` is None for single sentences, `labels` is None for a file without labels."""

    ids: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    second: list[str] | None = None
    labels: list[str] | None = None
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        """The examples at `index`, in its order."""
        return TextExamples(
            ids=[self.ids[i] for i in index],
            first=[self.first[i] for i in index],
            second=None if self.second is None else [self.second[i] for i in index],
            labels=None if self.labels is None else [self.labels[i] for i in index],
            num_bad_rows=self.num_bad_rows,
        )


def read_tsv(path: Path, layout: TsvFormat, *, label_names: Sequence[str] | None, require_labels: bool) -> TextExamples:
    """Read one file. `label_names` None accepts every label; `require_labels` False allows a missing label column.

    Raises ValueError naming the file (and line) for a missing column, an unknown label, or more than 1 % damaged rows.
    """
    lines = text_lines(path)
    columns = list(layout.columns) if layout.columns is not None else _header(path, lines)
    positions = _positions(path, columns, layout, require_labels)
    text_at, label_at, id_at = positions
    examples = TextExamples(second=[] if len(text_at) == 2 else None, labels=[] if label_at is not None else None)
    bad: list[str] = []
    num_rows = 0
    for row, (number, line) in enumerate(lines):
        num_rows += 1
        fields = line.split("\t") if line is not None else []
        if len(fields) != len(columns):
            bad.append(f"{path}:{number}: " + _what_is_wrong(line, len(fields), len(columns)))
            continue
        examples.ids.append(fields[id_at] if id_at is not None else str(row))
        examples.first.append(fields[text_at[0]])
        if examples.second is not None:
            examples.second.append(fields[text_at[1]])
        if examples.labels is not None and label_at is not None:
            _check_label(path, number, fields[label_at], label_names, layout.numeric_labels)
            examples.labels.append(fields[label_at])
    refuse_wrong_file(path, bad, num_rows, f"the columns {columns}")
    examples.num_bad_rows = len(bad)
    return examples


def _header(path: Path, lines: Iterator[tuple[int, str | None]]) -> list[str]:
    number, line = next(lines, (0, None))
    if number == 0:
        raise ValueError(f"{path} is empty; expected a header line and one example a line, separated by tabs")
    if line is None:
        raise ValueError(f"{path}:{number}: the header is not UTF-8 text; expected a tab-separated GLUE file")
    return line.split("\t")


def _positions(
    path: Path, columns: list[str], layout: TsvFormat, require_labels: bool
) -> tuple[list[int], int | None, int | None]:
    wanted = [*layout.text_columns, *([layout.id_column] if layout.id_column else [])]
    wanted += [layout.label_column] if require_labels else []
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; its columns are {columns}"
            + (" (a test file without labels can only be predicted)" if missing == [layout.label_column] else "")
        )
    label_at = columns.index(layout.label_column) if layout.label_column in columns else None
    id_at = columns.index(layout.id_column) if layout.id_column else None
    return [columns.index(name) for name in layout.text_columns], label_at, id_at


def _check_label(path: Path, number: int, label: str, label_names: Sequence[str] | None, numeric: bool) -> None:
    if numeric:
        if not _is_number(label):
            raise ValueError(f"{path}:{number}: label {label!r} is not a number; this task predicts one")
    elif label_names is not None and label not in label_names:
        raise ValueError(f"{path}:{number}: label {label!r} is not one of the known labels {list(label_names)}")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _what_is_wrong(line: str | None, found: int, expected: int) -> str:
    return "not UTF-8 text" if line is None else f"{found} tab-separated fields, expected {expected}"
