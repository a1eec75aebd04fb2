"""Every format gives the same rows, by one set of rules, and says where a damaged one is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

from clozelab.readers.delimited import Quotes, detect_quoting
from clozelab.readers.lines import text_lines
from clozelab.readers.records import DamagedRow
from clozelab.readers.tables import FORMATS, open_table, table_format

FRAME = pandas.DataFrame({"text": ["a film, to remember", "Zürich", "plain"], "n": ["1", "", "3"]})
WRITERS: dict[str, Callable[[Path], object]] = {
    "x.tsv": lambda path: FRAME.to_csv(path, sep="\t", index=False),
    "x.csv": lambda path: FRAME.to_csv(path, index=False),
    "semicolons.csv": lambda path: FRAME.to_csv(path, sep=";", index=False),
    "x.jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "x.ndjson.gz": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "list.json": lambda path: FRAME.to_json(path, orient="records", indent=1),
    "lines.json": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "x.parquet": lambda path: FRAME.to_parquet(path, index=False),
    "x.feather": lambda path: FRAME.to_feather(path),
}


def test_every_format_has_a_writer_here() -> None:
    assert {table_format(Path(name)) for name in WRITERS} == {*FORMATS, None}


@pytest.mark.parametrize("name", WRITERS)
def test_a_format_changes_no_row(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    table = open_table(tmp_path / name)
    assert table.columns == ["text", "n"]
    assert list(table.whole_rows()) == FRAME.to_dict("records")


BAD = DamagedRow("no JSON object", {"line": "[1]"})
ROWS: dict[str, tuple[str, list[object]]] = {
    "x.jsonl": (
        '\ufeff\n{"a": 1}\n \n[1]\r\n{"a": null}\n\n',
        [(2, {"a": 1}), (4, BAD), (5, {"a": None})],
    ),
    "x.json": ('[{"a": 1}, 7]', [(1, {"a": 1}), (2, DamagedRow("no JSON object"))]),
    "x.csv": (
        'a,b\n"1\n2",3\n\n4\n5, 6,7\n',
        [
            (3, {"a": "1\n2", "b": "3"}),
            (5, DamagedRow("1 fields, expected 2", {"a": "4"})),
            (6, DamagedRow("3 fields, expected 2", {"a": "5", "b": " 6,7"})),
        ],
    ),
    "x.tsv": ('a\tb\n"1\t2\n', [(2, {"a": '"1', "b": "2"})]),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_have_the_number_of_their_line_and_blank_lines_are_none(
    tmp_path: Path, name: str
) -> None:
    content, rows = ROWS[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert list(open_table(tmp_path / name).rows()) == rows


def test_the_first_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(ValueError, match=r"x\.csv:3: 1 fields, expected 2"):
        list(open_table(tmp_path / "x.csv").whole_rows())
    (tmp_path / "x.json").write_text('[{"a": 1}, 7]')
    with pytest.raises(ValueError, match=r"x\.json, object 2: no JSON object"):
        list(open_table(tmp_path / "x.json").whole_rows())


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl"])
def test_nuls_are_removed_and_counted_or_warned_of(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"x.jsonl": '{"a": "b\0c"}\n'}.get(name, "a\nb\0c\n")
    (tmp_path / name).write_text(content)
    table = open_table(tmp_path / name)
    caplog.clear()
    removed = Counter[str]()
    assert list(table.rows(removed=removed)) == [(len(content.splitlines()), {"a": "bc"})]
    assert removed == {"NUL character": 1} and not caplog.records
    list(table.rows())
    assert "1 NUL characters were removed" in caplog.text


QUOTES = [
    ("no mark", "text\tn\na\t1\n", Quotes()),
    ("a stray mark", 'text\tn\n"a film" of note\t1\n"a ""b"""\t2\n', Quotes()),
    ("a mark inside", 'text\tn\na "film"\t1\n', Quotes()),
    ("whole cells that need none", 'text\tn\n"whole"\t0\n"a, b"\t1\n', Quotes(2, False)),
    ("a doubled mark", 'text\tn\n"a ""b"""\t1\n', Quotes(1, True)),
    ("a tab inside", 'text\tn\n"a\tb"\t1\n', Quotes(1, True)),
    ("a line break inside", 'text\tn\n"a\nb"\t1\nc\t2\n', Quotes(1, True)),
    ("a line break and whole lines", 'text\tn\n"a\t1\nb"\t2\n', Quotes()),
    ("a line break in one column", 'text\n"a\nb"\n', Quotes(1, True)),
    ("a quoted header", '"text"\t"n"\n"a"\t1\n', Quotes(2, True)),
    ("a mark that is never closed", 'text\tn\n"a ""b"""\t1\n"c\t2\n', Quotes()),
    ("a line that is not UTF-8", b'text\tn\n"a ""b"""\t1\n"c\xe9"\t2\n', Quotes()),
]


@pytest.mark.parametrize(
    ("content", "quotes"), [row[1:] for row in QUOTES], ids=[row[0] for row in QUOTES]
)
def test_quotation_marks_of_a_tsv(tmp_path: Path, content: str | bytes, quotes: Quotes) -> None:
    path = tmp_path / "x.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert detect_quoting(text_lines(path)) == quotes


@pytest.mark.parametrize("quoting", [0, 1, 2])
def test_what_pandas_writes_is_known_as_a_csv_writers(tmp_path: Path, quoting: int) -> None:
    texts = ['He said "no"\tand\nwent.', '"', "plain", "a, b"]
    frame = pandas.DataFrame({"text": texts, "n": range(4)})
    options: dict[str, Any] = {"sep": "\t", "index": False, "quoting": quoting}
    frame.to_csv(tmp_path / "x.tsv", **options)
    assert detect_quoting(text_lines(tmp_path / "x.tsv")).are_certain
    read = open_table(tmp_path / "x.tsv", "csv").whole_rows()
    assert [row["text"] for row in read] == texts


def test_objects_need_not_have_the_same_keys(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"b": [2]}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(open_table(tmp_path / "x.jsonl").whole_rows()) == rows
