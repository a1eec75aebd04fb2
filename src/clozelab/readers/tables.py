"""Tables on disk: csv, tsv, jsonl, Parquet and Arrow, streamed in constant memory.

A format is a function that opens a file of it (delimited.py, objects.py, columnar.py), and an entry
in FORMATS. csv, tsv and jsonl may be packed (readers/lines.py). A task may also name a layout of
benchmarks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from clozelab.readers.benchmarks import LAYOUTS
from clozelab.readers.columnar import open_columnar
from clozelab.readers.delimited import open_delimited
from clozelab.readers.lines import file_suffix
from clozelab.readers.objects import SUFFIXES, open_objects
from clozelab.readers.records import Table
from clozelab.readers.remote import FilePath
from clozelab.text.did_you_mean import check_choice


@dataclass(frozen=True)
class Format:
    """How files of a format are called and opened."""

    suffixes: tuple[str, ...]
    open: Callable[..., Table]
    is_columnar: bool = False  # binary, with typed columns: its rows have numbers, not lines


FORMATS: dict[str, Format] = {}
FORMATS["tsv"] = Format((".tsv",), partial(open_delimited, file_format="tsv"))
FORMATS["csv"] = Format((".csv",), partial(open_delimited, file_format="csv"))
FORMATS["jsonl"] = Format(SUFFIXES, open_objects)
FORMATS["parquet"] = Format((".parquet",), partial(open_columnar, file_format="parquet"), True)
FORMATS["arrow"] = Format((".arrow", ".feather"), partial(open_columnar, file_format="arrow"), True)
DELIMITED = ("tsv", "csv")
COLUMNAR = tuple(name for name, known in FORMATS.items() if known.is_columnar)


def table_format(path: FilePath) -> str | None:
    """What a file's name says that it is; None for no table."""
    suffix = file_suffix(path)
    return next((name for name, known in FORMATS.items() if suffix in known.suffixes), None)


def open_table(
    path: FilePath,
    file_format: str = "auto",
    *,
    header: Sequence[str] | None = None,
    required: Sequence[str] = (),
) -> Table:
    """Open a table and read its columns' names.

    The format `auto` goes by the file's name, and is tsv where that says nothing. `header` names
    the columns of a csv or tsv file whose first line does not name all of `required`. ValueError
    for an unknown format, an empty or binary file, and one that is not of its format.
    """
    check_choice("file_format", file_format, ("auto", *FORMATS, *LAYOUTS))
    if file_format in LAYOUTS:
        return LAYOUTS[file_format](path)
    if file_format == "auto":
        file_format = table_format(path) or "tsv"
        if file_suffix(path) == ".json":
            file_format = "jsonl"
    if file_format in DELIMITED:
        return open_delimited(path, file_format, header, required)
    return FORMATS[file_format].open(path)
