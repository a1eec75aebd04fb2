"""Which column of a table is a corpus's text."""

from __future__ import annotations

from itertools import islice

from clozelab.readers.columnar import is_list_of_numbers, is_text_type
from clozelab.readers.records import DamagedRow, Table, check_columns
from clozelab.text.formatting import shortened

DEFAULT_TEXT_COLUMN = "text"
SAMPLED_ROWS = 100  # by which a column of text is known
# of a column; longer "names" are the first row of a file without any
MAX_NAME_WORDS = 4
MAX_NAME_CHARACTERS = 60


def find_text_column(table: Table, name: str, key: str) -> str:
    """The column `name`, or the only one that looks like text.

    The latter counts where no column is called DEFAULT_TEXT_COLUMN and none is named. ValueError
    lists the columns where the named one is missing or no text, and where several may be it. `key`
    is the setting that names the column.
    """
    listed = ", ".join(map(repr, table.columns))
    if name in table.columns or name != DEFAULT_TEXT_COLUMN:
        check_columns(table.columns, [name], table.path, f": name one by {key}")
        content = _other_content(table, name)
        if content:
            raise ValueError(
                f"{table.path}: the column {name!r} holds {content}, no text; its columns are"
                f" {listed}: name another by {key}"
            )
        return name
    # No column is called "text": a name has to be found, so there must be a header.
    _refuse_missing_header(table)
    plausible = _plausible_columns(table)
    if len(plausible) != 1:
        raise ValueError(
            f"{table.path} does not say which column is the text ({listed}): name it by {key}",
        )
    return plausible[0]


def _other_content(table: Table, column: str) -> str:
    """What a column holds that is no text; empty where it holds text."""
    if not _may_hold_text(table, column):
        if is_list_of_numbers(table.types[column]):
            return ""
        return str(table.types[column])
    values = _sampled(table, [column])[column]
    if values and all(map(_is_number, values)):
        return f"numbers ({values[0]}, ...)"
    return ""


def _refuse_missing_header(table: Table) -> None:
    """Of csv and tsv: a first line that is a row of data names no columns."""
    for name in table.columns:
        if len(name) > MAX_NAME_CHARACTERS or len(name.split()) > MAX_NAME_WORDS:
            example = shortened(name, MAX_NAME_CHARACTERS)
            raise ValueError(
                f"{table.path}: its first line names no columns ({example!r}): put a header line"
                " above it"
            )


def _plausible_columns(table: Table) -> list[str]:
    """The only column with text in it.

    Of several, those whose cells are mostly more than a word.
    """
    candidates = [name for name in table.columns if _may_hold_text(table, name)]
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


def _may_hold_text(table: Table, column: str) -> bool:
    return column not in table.types or is_text_type(table.types[column])


def _sampled(table: Table, columns: list[str]) -> dict[str, list[str]]:
    """Non-empty texts of the first rows, by column."""
    values: dict[str, list[str]] = {name: [] for name in columns}
    for _, record in islice(table.rows(columns), SAMPLED_ROWS):
        if isinstance(record, DamagedRow):
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
