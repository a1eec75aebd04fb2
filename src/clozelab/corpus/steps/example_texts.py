"""All texts in a file of labelled examples, whatever its format, for comparison with a corpus."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path

from clozelab.readers.lines import (
    beginning_of,
    decoded_lines,
    file_suffix,
    parse_json,
    text_lines,
)
from clozelab.readers.objects import begins_as_json, rows_of_objects
from clozelab.readers.records import NOT_UTF8, DamagedRow, Rows
from clozelab.readers.tables import DELIMITED, open_table, table_format

LETTER = re.compile(r"[^\W\d_]")


def texts_of_file(path: Path) -> Iterator[str]:
    """Every text of a table, of JSON, or of a file of lines.

    ValueError for a damaged file, and for a row that is not UTF-8: its text would stay in a corpus.

    Of a table these are its cells, the first line's included, as it may be no header. Of JSON these
    are the values, also in a file of another name (RACE's are called .txt). Of other files these
    are the blocks between blank lines: as they are, and each of their columns that may be words
    (CoNLL, conllu).
    """
    is_table = table_format(path) is not None
    content = None
    is_json = not is_table and begins_as_json(beginning_of(path))
    if is_json or file_suffix(path) == ".json":
        content = _whole_json(path)
    if content is not None:
        yield from _texts_in(content)
    elif is_table or file_suffix(path) == ".json":
        yield from _texts_of_table(path)
    elif is_json:
        yield from _texts_of_rows(path, rows_of_objects(text_lines(path)))
    else:
        yield from _texts_of_lines(path)


def _texts_of_table(path: Path) -> Iterator[str]:
    table = open_table(path)
    yield from table.columns
    if table.form in DELIMITED:
        # A column is found by its name, and two may have the same one.
        names = [f"column {number}" for number in range(len(table.columns))]
        table = open_table(path, table.form, header=names, required=names)
    yield from _texts_of_rows(path, table.rows())


def _whole_json(path: Path) -> object:
    """The content of a file that is a single value of JSON; None for an object a line."""
    try:
        return parse_json("\n".join(line for _, line in decoded_lines(path)))
    except ValueError:
        return None


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(map(_texts_in, value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_texts_in, value))
        cells = [part for part in value if isinstance(part, str)]
        if _may_be_words(cells):
            yield " ".join(cells)


def _texts_of_rows(path: Path, rows: Rows) -> Iterator[str]:
    for number, record in rows:
        cells: object = record
        if isinstance(record, DamagedRow):
            if record.problem == NOT_UTF8:
                raise _not_utf8(path, number)
            cells = record.cells  # what can be read of a damaged row still counts
        yield from _texts_in(cells)


def _texts_of_lines(path: Path) -> Iterator[str]:
    for is_text, block in groupby(_whole_lines(path), key=lambda line: bool(line.strip())):
        if not is_text:
            continue
        block_lines = list(block)
        yield "\n".join(block_lines)
        if len(block_lines) == 1:  # a paragraph, whose columns would be its words
            continue
        columns: defaultdict[int, list[str]] = defaultdict(list)
        for line in block_lines:
            for column, word in enumerate(line.split()):
                columns[column].append(word)
        yield from map(" ".join, filter(_may_be_words, columns.values()))


def _may_be_words(cells: Sequence[str]) -> bool:
    """Whether a column, or a list of JSON, may be the words of a text.

    It is neither of numbers, as ids, nor of one tag for the most part.
    """
    # In conllu some cells of a column of numbers are of comments.
    num_with_letters = sum(map(bool, map(LETTER.search, cells)))
    most_frequent = max(Counter(cells).values(), default=0)
    return 4 * num_with_letters >= len(cells) and 2 * most_frequent <= len(cells)


def _whole_lines(path: Path) -> Iterator[str]:
    for number, line in text_lines(path):
        if line is None:
            raise _not_utf8(path, number)
        yield line


def _not_utf8(path: Path, number: int) -> ValueError:
    return ValueError(
        f"decontaminate: {path}:{number}: {NOT_UTF8}, so it could not be searched for: write the"
        " file in UTF-8 (iconv -f latin1 -t utf8 converts one in Latin-1)"
    )
