"""Labelled texts of tables: the official GLUE files, and anybody's csv, jsonl, Parquet or Arrow.

GLUE's format is tab-separated but not CSV: a quotation mark is a character like any other. Some
files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files
have no labels. A rare damaged row is skipped and counted. A label outside the list is never
skipped: it means that the list or the column is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from clozelab.readers.bad_rows import refuse_wrong_file
from clozelab.readers.cells import cell_text, is_missing
from clozelab.readers.records import DamagedRow, Record, Table, check_columns
from clozelab.readers.remote import FilePath
from clozelab.readers.tables import open_table
from clozelab.tasks.labels import ANY, NUMBERS, LabelColumn
from clozelab.tasks.sequences import subset
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
# (labels of the file, line, cell) -> what stands for the row's label
ReadCell = Callable[[LabelColumn, int, object], Any]
UNLABELLED = " (a test file without labels can only be predicted)"


@dataclass
class TextExamples:
    """Labelled texts of a table, in file order.

    The texts of an example are its text, its pair, or a context and its endings.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[Any] | None = None  # as a target reads cells; None: the file has none
    num_bad_rows: int = 0
    lines: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of the file's rows, from 0
    file_labels: list[Any] | None = None  # of all rows that these were chosen from
    groups: list[str] | None = None  # the cells of the format's `group_column`, if it has one

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        labels = None
        if self.labels is not None:
            labels = [self.labels[i] for i in index]
        ids = [self.ids[i] for i in index]
        texts = [self.texts[i] for i in index]
        lines = [self.lines[i] for i in index]
        numbers = [self.numbers[i] for i in index]
        groups = None
        if self.groups is not None:
            groups = [self.groups[i] for i in index]
        return TextExamples(
            ids, texts, labels, self.num_bad_rows, lines, numbers, self.all_labels, groups
        )

    @classmethod
    def joined(cls, parts: Sequence[TextExamples]) -> TextExamples:
        """The texts and labels of files behind each other, for baselines."""
        if len(parts) == 1:
            return parts[0]
        joined = cls()
        labels: list[Any] = []
        for part in parts:
            joined.ids += part.ids
            joined.texts += part.texts
            labels += part.labels or []
        if len(labels) == len(joined):
            joined.labels = labels
        return joined

    def limited(self, most: int | None) -> TextExamples:
        return self.select(subset(len(self), most))

    @property
    def all_labels(self) -> list[Any] | None:
        """The labels of the whole file, of which another part may be held out."""
        if self.file_labels is None:
            return self.labels
        return self.file_labels

    @property
    def known_labels(self) -> list[Any]:
        """The labels of a file that has some."""
        assert self.labels is not None
        return self.labels

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return self.texts

    @property
    def counts(self) -> dict[str, int]:
        return {"damaged rows": self.num_bad_rows}

    @property
    def num_empty(self) -> int:
        """Texts without a character beside blanks."""
        return sum(not text.strip() for text in chain.from_iterable(self.texts))


@dataclass(frozen=True)
class TableFormat:
    """Where a task's texts and labels stand in a table.

    Columns are found by name, in any order, among any others. Of the file formats, tsv has tabs
    alone, and a quotation mark is a character like any other (GLUE); csv is quoted where needed;
    jsonl has an object a line; parquet and arrow are as pandas and `datasets` write them; auto goes
    by the file's name. A number or a truth stands as JSON writes it. Null and NaN are missing. A
    list is neither a text nor a label.
    """

    text_columns: Sequence[str]
    label_column: str
    id_column: str | None = None  # None, or a file without it: the row's number is its id
    # names for a tsv or csv file whose first line does not name the text columns
    columns: Sequence[str] | None = None
    file_format: str = "auto"
    group_column: str | None = None  # rows with the same cell are held out together, or not at all

    def __post_init__(self) -> None:
        # YAML reads the name 0 of a column as a number.
        names: PlainDict = {
            "text_columns": list(map(cell_text, self.text_columns)),
            "label_column": cell_text(self.label_column),
        }
        if self.id_column is not None:
            names["id_column"] = cell_text(self.id_column)
        if self.group_column is not None:
            names["group_column"] = cell_text(self.group_column)
        if self.columns is not None:
            names["columns"] = list(map(cell_text, self.columns))
        for key, value in names.items():
            object.__setattr__(self, key, value)

    def read(
        self,
        path: Path,
        has_labels: bool = True,
        *,
        names: Sequence[str] | None = None,
        expected: str = ANY,
        listed: Sequence[str] = (),
        read_cell: ReadCell = LabelColumn.add,
        advice: str = UNLABELLED,
    ) -> TextExamples:
        """Read one file, with its labels where `has_labels`: a test file may lack them.

        The labels are `expected` to be CLASSES, NUMBERS or ANY names; `names`: those that there
        are; `listed`: some that are labels beside others. A wrong label is never skipped;
        `read_cell` gives what stands for a row's label; `advice` is for a file without them. The
        numbers of a column to which the datasets library gave names (ClassLabel) are read as these
        names.

        ValueError names the file (and line) of a missing column, a wrong label, or more than 1 %
        damaged rows.
        """
        table = open_table(path, self.file_format, header=self.columns, required=self.text_columns)
        columns, id_column = self._columns_to_read(table, has_labels, advice)
        label_column = LabelColumn(path, names, expected, listed=listed)
        named_classes = self._named_classes(table, listed if names is None else names, expected)
        needed_columns = self._needed_columns(id_column)
        examples = TextExamples()
        if self.group_column is not None:
            examples.groups = []
        labels = []
        damaged = []
        num_rows = 0
        for row, (line, record) in enumerate(table.rows(columns)):
            num_rows += 1
            cells = self._cells_of(record, needed_columns)
            if isinstance(cells, str):
                damaged.append(f"{table.place(line)}: {cells}")
                continue
            if has_labels and not isinstance(record, DamagedRow):
                label = record.get(self.label_column)
                if named_classes is not None:
                    label = named_classes.read(label)
                labels.append(read_cell(label_column, line, label))
            self._add(examples, cells, id_column, row)
            examples.lines.append(line)
        if named_classes is not None:
            named_classes.refuse_two_readings()
        # A label column that is no column of labels, before the rows that are damaged beside it.
        label_column.refuse()
        refuse_wrong_file(path, damaged, num_rows, f"the columns {table.columns}")
        if has_labels:
            examples.labels = labels
        examples.num_bad_rows = len(damaged)
        return examples

    def _named_classes(
        self, table: Table, labels: Sequence[str], expected: str
    ) -> NamedClasses | None:
        """How the label column's numbers are read where the file names them.

        None: as they stand. So it is where numbers are expected, and where the known `labels` and
        the names have nothing in common.
        """
        names = table.class_names.get(self.label_column, [])
        if not names or expected == NUMBERS:
            return None
        if labels and set(labels).isdisjoint(names):
            return None
        return NamedClasses(table.path, self.label_column, names, frozenset(labels))

    def _columns_to_read(
        self, table: Table, has_labels: bool, advice: str
    ) -> tuple[list[str], str | None]:
        """All columns to read, and the one with ids.

        ValueError for one that is missing or stands there twice.
        """
        columns = list(self.text_columns)
        if has_labels:
            columns.append(self.label_column)
        if not has_labels or not set(self.text_columns) <= set(table.columns):
            advice = ""
        id_column = self.id_column
        if id_column is not None and id_column not in table.columns:
            # Ids are worth having, but no reason to refuse a file.
            log.warning("%s has no column %r: its rows are numbered from 0", table.path, id_column)
            id_column = None
        if id_column is not None:
            columns.append(id_column)
        check_columns(table.columns, columns, table.path, advice)
        if self.group_column is not None:
            check_columns(table.columns, [self.group_column], table.path)
            columns.append(self.group_column)
        return list(dict.fromkeys(columns)), id_column

    def _add(
        self, examples: TextExamples, cells: dict[str, str], id_column: str | None, row: int
    ) -> None:
        """One more example, of the `row` that has these cells."""
        name = str(row)
        if id_column is not None:
            name = cells[id_column]
        if examples.groups is not None and self.group_column is not None:
            examples.groups.append(cells[self.group_column])
        examples.ids.append(name)
        examples.texts.append(tuple(cells[column] for column in self.text_columns))
        examples.numbers.append(row)

    def _needed_columns(self, id_column: str | None) -> list[str]:
        """The columns in which every row has a text, beside its label."""
        columns = list(self.text_columns)
        for column in (id_column, self.group_column):
            if column is not None:
                columns.append(column)
        return columns

    def _cells_of(self, record: Record, columns: Sequence[str]) -> dict[str, str] | str:
        """A row's cells by their columns; of a damaged row, what is wrong with it."""
        if isinstance(record, DamagedRow):
            return record.problem
        lacking = [name for name in columns if is_missing(record.get(name))]
        if lacking:
            return f"no value of {', '.join(lacking)}"
        cells = dict[str, str]()
        for name in columns:
            try:
                cells[name] = cell_text(record[name])
            except ValueError as problem:
                return f"{name} is {problem}, and a text was expected"
        return cells


@dataclass
class NamedClasses:
    """A column of numbers, or lists of them, that the datasets library gave names (ClassLabel)."""

    path: FilePath
    column: str
    names: list[str]
    labels: frozenset[str]  # those that are known; empty: none are
    numbers: set[int] = field(default_factory=set)  # that were read

    def read(self, value: object) -> object:
        """The name of a class's number.

        None for -1, by which the datasets library means that a row has no label.
        """
        if isinstance(value, list | tuple):
            return [self.read(item) for item in value]
        if isinstance(value, int) and 0 <= value < len(self.names):
            self.numbers.add(value)
            return self.names[value]
        if value == -1:
            return None
        return value

    def refuse_two_readings(self) -> None:
        """ValueError where the rows' names are known labels, and the numbers themselves are too.

        Names ["1", "2", "3"] beside the labels 0 to 3: is the number 1 the label "1" or "2"? No
        question is left where every known label is one of the names.
        """
        if self.labels <= set(self.names):
            return
        as_names = {number: self.names[number] for number in self.numbers}
        as_numbers = {number: str(number) for number in self.numbers}
        fits_twice = self.labels.issuperset(as_names.values()) and self.labels.issuperset(
            as_numbers.values()
        )
        if fits_twice and as_names != as_numbers:
            raise ValueError(
                f"{self.path}: the numbers of the column {self.column!r} are labels by themselves"
                f" and by their names {self.names}, of {sorted(self.labels)}: write the labels as"
                " text"
            )
