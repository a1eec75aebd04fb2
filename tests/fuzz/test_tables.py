"""Random tables, JSON lines and objects for `predict`.

Each row of the output has the cells that the csv or json module of Python reads from the same file,
and the answer that transformers gives to its text alone.
"""

from __future__ import annotations

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas
from hypothesis import assume, example, given
from tests.fuzz.answering import compare, predictor, rows_of, rows_written, run_predict
from tests.fuzz.properties import SEPARATORS, Layout, few_and_many, layouts, texts

CLEAN = Layout(has_mark=False, line_end="\n", has_last_end=True, is_packed=False)
WINDOWS = Layout(has_mark=True, line_end="\r\n", has_last_end=False, is_packed=False)
NAMES = ["id", "note", "label"]
CELLS = st.sampled_from(["", "1", "007", "1.50", "NA", "null", "x y", 'a "b"', "a,b", "é"])


def predicted(content: bytes, suffix: str) -> list[dict[str, Any]]:
    """The rows that `predict` writes for a file."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / f"input{suffix}"
        path.write_bytes(content)
        run_predict(path, Path(place) / "out.jsonl")
        return rows_written(Path(place) / "out.jsonl")


def check_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        cells.append({key: value for key, value in row.items() if key != "prediction"})
    assert cells == expected
    compare(rows, [row["text"] for row in expected], "row")


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """A header and rows; the column `text` stands anywhere among others."""
    header = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    place = draw(st.integers(0, len(header)))
    rows = []
    for text in draw(st.lists(texts(SEPARATORS), min_size=2, max_size=6)):
        cells = [draw(CELLS) for _ in header]
        rows.append([*cells[:place], text, *cells[place:]])
    return [[*header[:place], "text", *header[place:]], *rows]


@few_and_many(20, 400)
@given(
    tables(),
    layouts(),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@example([["text"], ["the NA"], ["the 'cat"]], WINDOWS, ",", csv.QUOTE_MINIMAL)
@example([["text", "label"], ['the "cat"', "1"], ["a, b", ""]], CLEAN, ";", csv.QUOTE_ALL)
def test_comma_separated(
    table: list[list[str]], layout: Layout, separator: str, quoting: Any
) -> None:
    # What stands between columns is known by the header, which has to have two.
    assume(separator == "," or len(table[0]) > 1)
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=quoting).writerows(table)
    read = csv.DictReader(io.StringIO(buffer.getvalue(), newline=""), delimiter=separator)
    rows = predicted(layout.write(buffer.getvalue()), f".csv{layout.suffix}")
    check_rows(rows, [*read])


@few_and_many(12, 250)
@given(tables(), layouts())
@example([["id", "text"], ["1", '"the cat'], ["2", 'a "mat']], CLEAN)
def test_tab_separated(table: list[list[str]], layout: Layout) -> None:
    """A .tsv does not quote: a quotation mark is a letter."""
    content = "".join("\t".join(row) + "\n" for row in table)
    # A row of one empty cell is a blank line.
    assume(all(any(row) for row in table))
    header, *rows = [line.split("\t") for line in content.removesuffix("\n").split("\n")]
    expected = [dict(zip(header, row, strict=True)) for row in rows]
    check_rows(predicted(layout.write(content), f".tsv{layout.suffix}"), expected)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "NA", "é\n😀"]),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)


@few_and_many(12, 250)
@given(
    st.lists(st.tuples(texts([*SEPARATORS, "\n", "\t"]), VALUES), min_size=1, max_size=5),
    layouts(),
    st.booleans(),
)
@example([("the cat\u2028sat", None)], WINDOWS, False)
def test_json_lines(rows: list[tuple[str, Any]], layout: Layout, is_ascii: bool) -> None:
    records = [{"text": text, "id": value} for text, value in rows]
    lines = [json.dumps(record, ensure_ascii=is_ascii) for record in records]
    content = layout.write("\n".join(lines) + "\n")
    check_rows(predicted(content, f".jsonl{layout.suffix}"), [*map(json.loads, lines)])


CONTAINERS = {
    "list": list,
    "array": lambda values: np.array(values, dtype=object),
    "Series": lambda values: pandas.Series(values, dtype=object, index=[7] * len(values)),
    "generator": lambda values: (value for value in values),
    "records": lambda values: [{"text": value} for value in values],
    "columns": lambda values: {"text": [*values]},
}
UNREADABLE = st.sampled_from([None, float("nan"), 7, b"the cat", "", " \n", "😀"])


@few_and_many(20, 300)
@given(st.sampled_from([*CONTAINERS]), st.lists(texts() | UNREADABLE, min_size=1, max_size=5))
@example("Series", ["the cat", float("nan")])
@example("list", ["the cat", ""])
def test_objects(container: str, values: list[Any]) -> None:
    """A text that cannot be answered is marked, or the whole is refused by its number; the others
    are answered as if they stood alone.
    """
    readable = [value if is_answerable(value) else None for value in values]
    bad = [number for number, value in enumerate(values, 1) if not isinstance(value, str)]
    try:
        answers = predictor().classify(CONTAINERS[container](values))
    except ValueError as error:
        assert bad and f"text {bad[0]}" in str(error)
    else:
        compare(rows_of(answers), readable, "text")


def is_answerable(value: Any) -> bool:
    """Whether it is a text with a character that the vocabulary knows."""
    return isinstance(value, str) and any(letter.isascii() and letter.isalpha() for letter in value)
