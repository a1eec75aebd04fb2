"""A table that was opened: its columns, and its rows one after the other.

    table = open_table(path)            # readers/tables.py
    table.columns                       # ["id", "text", "label"]
    for number, row in table.rows(["text", "label"]):
        ...                             # {"text": "...", "label": 1}, or a DamagedRow

A cell is what the format has: text in csv and tsv; of the others also numbers, lists, dictionaries,
None. What a cell means is for the caller to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from claims.text.did_you_mean import nearest
from clozelab.readers.lines import Advance, ignore
from clozelab.readers.remote import FilePath
from clozelab.text.plain import JsonObject, PlainDict

if TYPE_CHECKING:
    import pyarrow

NOT_UTF8 = "not UTF-8 text"


@dataclass(frozen=True)
class DamagedRow:
    """A row that is not as the others: what is wrong, and the cells that are there by column."""

    problem: str
    cells: PlainDict = field(default_factory=dict)


Record = PlainDict | DamagedRow
Rows = Iterator[tuple[int, Record]]
# (columns to read, who is told of bytes, what counts the NULs that are removed) -> rows
ReadRows = Callable[[list[str] | None, Advance, Counter[str] | None], Rows]


@dataclass(frozen=True)
class PlacedRow:
    """A row with its place; `problem`: why nothing can be read of it, as the place goes on."""

    place: str
    record: PlainDict
    problem: str | None
    number: int = 1  # of the line, or the row of a table without lines


@dataclass(frozen=True)
class Table:
    """A table that was opened: its header was read, its rows were not.

    Lines of text (`lines`) are one of a column, or of two.
    """

    path: FilePath
    form: str  # lines, or a format of tables.py
    columns: list[str]  # in file order; of JSON those of the first object
    _read_rows: ReadRows = field(repr=False)
    types: dict[str, pyarrow.DataType] = field(default_factory=dict)  # of Parquet and Arrow
    # of Parquet and Arrow: what a column's 0, 1, ... mean
    class_names: dict[str, list[str]] = field(default_factory=dict)
    delimiter: str = ","  # of csv and tsv
    is_quoted: bool = True  # whether a quotation mark of csv and tsv is more than a character
    place_format: str = "{path}:{number}"

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def is_table(self) -> bool:
        """Whether it has columns beside its texts, and a header that names them."""
        return self.form not in ("lines", "jsonl")

    def rows(
        self,
        columns: Sequence[str] | None = None,
        advance: Advance = ignore,
        removed: Counter[str] | None = None,
    ) -> Rows:
        """(number, record) of each row, from the first one on; ValueError for a damaged file.

        The number is a line of the file (of a csv row with line breaks its last one), or counts
        the rows from 1. Of Parquet and Arrow only `columns` are read (None: all). `advance` is told
        how many bytes were read; `removed` counts NUL characters, of which else a warning tells.
        """
        if columns is not None:
            columns = list(columns)
        return self._read_rows(columns, advance, removed)

    def whole_rows(self) -> Iterator[JsonObject]:
        """The cells of each row; ValueError names the first damaged one."""
        for number, record in self.rows():
            if isinstance(record, DamagedRow):
                raise ValueError(f"{self.place(number)}: {record.problem}")
            yield record

    def placed_rows(self) -> Iterator[PlacedRow]:
        """Each row with its place; a damaged one keeps its cells as far as they are there."""
        for number, record in self.rows():
            location = self.place(number)
            if not isinstance(record, DamagedRow):
                yield PlacedRow(location, record, None, number)
                continue
            cells = record.cells
            # A damaged row of a table lacks cells at its end: those are None.
            if self.is_table:
                cells = dict.fromkeys(self.columns) | cells
            yield PlacedRow(location, cells, f"is damaged: {record.problem}", number)

    def place(self, number: int) -> str:
        """Where a row is, for messages: `FILE:7`, or `FILE, object 7`."""
        return self.place_format.format(path=self.path, number=number)


def check_columns(
    columns: Sequence[str], names: Sequence[str], where: object, advice: str = ""
) -> None:
    """ValueError where one of these names is no column, or that of two."""
    missing = [name for name in names if name not in columns]
    if missing:
        near = nearest(missing[0], columns)
        meant = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(
            f"{where} has no column {', '.join(map(repr, missing))}; its columns are"
            f" {', '.join(map(repr, columns))}{meant}{advice}"
        )
    for name in names:
        if columns.count(name) > 1:
            raise ValueError(f"{where} has two columns {name!r}; rename one")
