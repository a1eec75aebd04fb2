"""What a caller of Python gives where texts are asked for, read as what it is.

    read_texts("a text")                        one text
    read_texts(("first", "second"))             one pair
    read_texts(["one", "two"])                  texts, in order
    read_texts([["first", "second"]])           pairs (of a tagger: the words of a text)
    read_texts({"text": "one", "pair": "two"})  one pair, by its keys; lists in it, or dictionaries
                                                in a list, are many
    read_texts(frame, columns="review")         a column of a table of pandas or `datasets`

Anything else is a ValueError in one sentence, before a text is read. What cannot be a text in a
list is a mistake of the program, and refused; an empty cell of a table is a fact about one row, and
stands as `Unreadable` in its where.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from clozelab.datamodules.columns import (
    LISTS,
    SINGLE,
    choose_columns,
    describe_for_python,
    is_enough,
    refuse_unknown_keys,
    roles_of,
)
from clozelab.readers.cells import is_missing
from clozelab.readers.records import check_columns
from clozelab.text.formatting import shortened
from clozelab.text.plain import PlainDict, PlainMapping, ReadOnlyJson

log = logging.getLogger(__name__)

EXPECTED = "a text, a pair (FIRST, SECOND), a list of them, or a table with columns= was expected"
ERRORS = ("mark", "raise")  # what becomes of a text that cannot be read
SHOWN_CHARACTERS = 60  # of a wrong value
Columns = str | Sequence[str] | None


@dataclass(frozen=True)
class Unreadable:
    """Stands for a text that nobody can read; `reason` goes on where its name ends: "is empty"."""

    reason: str


class UnreadableText(ValueError):
    """Text number `number` (from 1) cannot be read, and the caller wants no answers then."""

    def __init__(self, number: int, reason: str, noun: str) -> None:
        super().__init__(f"{noun} {number} {reason}")
        self.number = number
        self.reason = reason


@dataclass(frozen=True)
class Texts:
    """Texts in order.

    Each is a str, a pair (str, str), a list of words, a question with its passages (str, [str]), or
    `Unreadable`.
    """

    items: list[Any]
    is_single: bool = False  # one text was given by itself
    table: object = None  # the table whose rows they are


def read_texts(
    given: object,
    act: str = "classify",
    columns: Columns = None,
    trained: Sequence[str] = (),
) -> Texts:
    """The texts that `given` holds, as `act` (datamodules/columns.py) takes them.

    `columns`: of a table, the column of the texts or the two of pairs; without it, those that the
    model was `trained` on, if it has them. ValueError says what was expected.
    """
    # What has columns, then what is one text by itself, then what is a list of texts.
    if isinstance(given, Mapping):
        return _from_mapping(given, act, columns)
    if is_table(given):
        return _from_table(given, act, columns, trained)
    if isinstance(given, str | tuple):
        _refuse_columns(columns)
        return Texts([read_item(given, 1, act)], is_single=True)
    values = _listed(given)
    if values and all(isinstance(value, Mapping) for value in values):
        return _from_records(values, act, columns)
    _refuse_columns(columns)
    items = []
    for number, value in enumerate(values, 1):
        items.append(read_item(value, number, act))
    _refuse_mixture(items, act)
    return Texts(items)


def read_item(value: object, number: int, act: str) -> object:
    """One text of a list, as `act` takes it; ValueError names its number."""
    if isinstance(value, bytes):
        raise ValueError(f"text {number} is bytes: a string was expected; decode it (.decode())")
    # A question alone has no passage to be answered from.
    if isinstance(value, str) and act == "answer":
        raise ValueError(
            f"question {number} is {_shown(value)} alone: (QUESTION, PASSAGE) was expected",
        )
    if isinstance(value, str):
        return str(value)  # numpy's strings are their own kind
    if not _is_sequence(value):
        raise ValueError(f"text {number} is {_shown(value)}: a string was expected")
    strings = list(value)
    if act == "answer":
        return _question(strings, number)
    if act in SINGLE and act != "tag":
        raise ValueError(f"do={act} takes single texts, and text {number} is a pair, or a list")
    for where, string in enumerate(strings, 1):
        if not isinstance(string, str):
            raise ValueError(
                f"text {number}, part {where} is {_shown(string)}: a string was expected",
            )
    if act == "tag":
        return [str(word) for word in strings]
    if len(strings) != 2:
        raise ValueError(
            f"text {number} is a sequence of {len(strings)}: a pair (a tuple, or a list of two)"
            " has two"
        )
    return str(strings[0]), str(strings[1])


def read_cells(record: PlainMapping, roles: Mapping[str, str], act: str) -> object:
    """A text of a table's row, whose cells may be anything; `Unreadable` where there is none.

    `roles` says which column is what (datamodules/columns.py).
    """
    cells: PlainDict = {}
    # Words stand for a text, and passages for one: another column may hold what one of these lacks.
    may_lack = set()
    if set(roles) & set(LISTS):
        may_lack = {*LISTS, "text"}
    for role, column in roles.items():
        value = record.get(column)
        if is_missing(value):
            if role in may_lack:
                continue
            reason = f"has no {column!r}"
            if column in record:
                reason += ": the cell is empty"
            return Unreadable(reason)
        problem = _wrong_cell(value, column, role)
        if problem:
            return Unreadable(problem)
        cells[role] = value
    if not is_enough(cells, act):
        roles_given = "nothing"
        if cells:
            roles_given = ", ".join(cells)
        return Unreadable(f"has {roles_given} alone: do={act} reads {', '.join(roles_of(act))}")
    return _from_cells(cells, act)


def is_table(given: object) -> bool:
    """A DataFrame, a `datasets.Dataset`, or what can be made one of them."""
    # by attributes: neither library has to be imported for it
    is_frame = hasattr(given, "iloc") and hasattr(given, "columns")
    is_dataset = hasattr(given, "column_names") and hasattr(given, "__len__")
    has_frame = hasattr(given, "to_pandas") and hasattr(given, "columns")
    return is_frame or is_dataset or has_frame


def with_columns(table: Any, columns: Mapping[str, Sequence[object]]) -> object:
    """A copy of a table with further columns.

    One of the same name is replaced, and a warning says so.
    """
    # the columns of the answers that the table has already
    replaced = [name for name in columns if name in _column_names(table)]
    if replaced:
        log.warning("the table's column %s is replaced by the answers'", ", ".join(replaced))
    # `datasets` refuses to add a column that is there.
    if _is_dataset(table):
        table = table.remove_columns(replaced)
        for name, values in columns.items():
            table = table.add_column(name, list(values))
        return table
    import pandas

    series = {}
    for name, values in columns.items():
        series[name] = pandas.Series(list(values), index=table.index)
    return table.assign(**series)


def _is_dataset(table: object) -> bool:
    return hasattr(table, "column_names") and hasattr(table, "features")


def _column_names(table: Any) -> list[Any]:
    if _is_dataset(table):
        return list(table.column_names)
    return list(table.columns)


def _from_table(given: Any, act: str, columns: Columns, trained: Sequence[str]) -> Texts:
    """The rows of a table."""
    if not _is_dataset(given) and not hasattr(given, "iloc"):
        options = {}
        # Else one null makes floats of whole numbers, whose last digits are lost.
        if type(given).__module__.startswith(("pyarrow", "polars")):
            options["integer_object_nulls"] = True
        given = given.to_pandas(**options)  # a table of Arrow, Polars and others
    names = _column_names(given)
    if columns is None and set(trained) <= set(names):
        columns = trained
    roles = _roles(names, act, columns, "the table")
    # Of two columns of one name pandas gives a table, whose items are the names.
    check_columns(names, list(roles.values()), "the table")
    cells = {column: list(given[column]) for column in roles.values()}
    return Texts(_rows_of(cells, roles, act), table=given)


def _from_mapping(given: Mapping[str, object], act: str, columns: Columns) -> Texts:
    """The rows of a dictionary of lists; a dictionary of single texts is one row."""
    # a `datasets.DatasetDict`
    if hasattr(given, "column_names"):
        raise ValueError(
            f"a dictionary of data sets was given: choose one of {', '.join(map(str, given))}",
        )
    if columns is None:
        refuse_unknown_keys(given, act, "the dictionary")
    roles = _roles(list(given), act, columns, "the dictionary")
    # {"text": "one"} is one text, {"text": ["one", "two"]} are two.
    if all(_is_single(role, given[column]) for role, column in roles.items()):
        return Texts([_refuse_unreadable(read_cells(given, roles, act), 1)], is_single=True)
    cells = {column: _listed(given[column]) for column in roles.values()}
    lengths = {column: len(values) for column, values in cells.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the dictionary's lists have different lengths: {lengths}")
    rows = _rows_of(cells, roles, act)
    return Texts([_refuse_unreadable(row, number) for number, row in enumerate(rows, 1)])


def _from_records(
    records: Sequence[PlainMapping],
    act: str,
    columns: Columns,
) -> Texts:
    """One dictionary a text; each is read by its own keys."""
    items = []
    for number, record in enumerate(records, 1):
        where = f"text {number}"
        if columns is None:
            refuse_unknown_keys(record, act, where)
        roles = _roles(list(record), act, columns, where)
        items.append(_refuse_unreadable(read_cells(record, roles, act), number))
    _refuse_mixture(items, act)
    return Texts(items)


def _rows_of(
    cells: Mapping[str, Sequence[object]], roles: Mapping[str, str], act: str
) -> list[object]:
    number = len(next(iter(cells.values())))
    if not number:
        raise ValueError("there is no text to read: the table has no row")
    rows = []
    for i in range(number):
        record = {name: values[i] for name, values in cells.items()}
        rows.append(read_cells(record, roles, act))
    return rows


def _roles(
    names: list[object],
    act: str,
    columns: Columns,
    where: str,
) -> dict[str, str]:
    if isinstance(columns, str):
        columns = [columns]
    string_names = [name for name in names if isinstance(name, str)]
    if not string_names:
        raise ValueError(f"{where} has no column with a name: {EXPECTED}")
    return choose_columns(
        string_names, act, named=list(columns or ()), where=where, describe=describe_for_python
    )


def _refuse_unreadable(item: object, number: int) -> object:
    """What a program has written down is refused where it is no text, as in a list."""
    if isinstance(item, Unreadable):
        raise ValueError(f"text {number} {item.reason}")
    return item


def _from_cells(cells: ReadOnlyJson, act: str) -> object:
    """The text that checked cells make."""
    if act == "answer":
        if "question" not in cells:  # in lines of two texts the question stands first
            return cells["text"], [cells["pair"]]
        if "passages" in cells:
            return cells["question"], list(cells["passages"])
        return cells["question"], [cells["text"]]
    if act == "tag" and "words" in cells:
        return list(cells["words"])
    if "pair" in cells:
        return cells["text"], cells["pair"]
    return cells["text"]


def _wrong_cell(value: object, column: str, role: str) -> str:
    """What is wrong with a cell; empty where nothing is."""
    if role not in LISTS:
        if isinstance(value, str):
            return ""
        return f"has {_shown(value)} as {column!r}: a string was expected"
    if not _is_sequence(value) or not all(isinstance(part, str) for part in value):
        return f"has {_shown(value)} as {column!r}: a list of strings was expected"
    return ""


def _question(items: list[object], number: int) -> tuple[str, list[str]]:
    """A question with its passage, or its passages."""
    if len(items) != 2 or not isinstance(items[0], str):
        raise ValueError(
            f"question {number}: (QUESTION, PASSAGE) or (QUESTION, [PASSAGES]) was expected",
        )
    return str(items[0]), read_passages(items[1], f"question {number}")


def read_passages(given: object, where: str) -> list[str]:
    """One passage, or many."""
    if isinstance(given, str):
        return [str(given)]
    if isinstance(given, Mapping) or not _is_iterable(given):
        raise ValueError(
            f"{where}: the passages are {_shown(given)}: a string, or a list of them, was expected",
        )
    passages = list(given)
    for index, passage in enumerate(passages, 1):
        if not isinstance(passage, str):
            raise ValueError(
                f"{where}: passage {index} is {_shown(passage)}: a string was expected",
            )
    return [str(passage) for passage in passages]


def _listed(given: object) -> list[Any]:
    """An iterable with an order, as a list."""
    if isinstance(given, bytes):
        raise ValueError("bytes were given: a string was expected; decode them (.decode())")
    if isinstance(given, set | frozenset):
        raise ValueError(
            "a set has no order, so nobody could tell which answer is whose: give a list of it",
        )
    if not _is_iterable(given):
        raise ValueError(f"{_shown(given)} was given: {EXPECTED}")
    values = list(given)
    if not values:
        raise ValueError("there is no text to read: the list is empty")
    return values


def _is_iterable(given: object) -> TypeGuard[Iterable[object]]:
    # An array of numpy without an axis has the method and cannot be gone through.
    return isinstance(given, Iterable) and getattr(given, "ndim", 1) != 0


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """A list, a tuple or an array of one axis."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def _is_single(role: str, value: object) -> bool:
    """Whether a dictionary's value is that of one text, rather than a list of them for many."""
    if role not in LISTS:
        return isinstance(value, str)
    return _is_sequence(value) and not any(_is_sequence(part) for part in value)


def _refuse_columns(columns: object) -> None:
    if columns is not None:
        raise ValueError(f"columns={columns!r} names columns of a table, and no table was given")


def _refuse_mixture(items: Sequence[object], act: str) -> None:
    if act in (*SINGLE, "answer"):
        return
    if len({isinstance(item, tuple) for item in items}) > 1:
        raise ValueError(
            "some texts are pairs and some are not (a tuple has two): give one kind at a time",
        )


def _shown(value: object) -> str:
    return shortened(repr(value), SHOWN_CHARACTERS)
