"""Rows of files: quoted, with a header, damaged in one place, piped in."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from clozelab.readers.rows import open_rows
from clozelab.readers.tables import open_table


def rows_of(
    path: Path, content: str | bytes, form: str = "auto"
) -> list[tuple[int, dict[str, Any], str | None]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [
        (row.number, row.record, row.problem) for row in open_rows(str(path), form).placed_rows()
    ]


def test_csv_has_a_header_quotes_and_line_breaks(tmp_path: Path) -> None:
    text = 'id,text\n007,"a, b\nc ""d"""\n\n8,e,f\n9,NA\n'
    first, second, third = rows_of(tmp_path / "a.csv", text)
    assert first == (3, {"id": "007", "text": 'a, b\nc "d"'}, None)
    assert second[2] == "is damaged: 3 fields, expected 2" and second[0] == 5
    assert third == (6, {"id": "9", "text": "NA"}, None)
    semicolons = rows_of(tmp_path / "b.csv", "id;text\n1;a, b\n")
    assert semicolons == [(2, {"id": "1", "text": "a, b"}, None)]
    latin = rows_of(tmp_path / "c.csv", b"text\ncaf\xe9\ntea\n")
    assert [problem for _, _, problem in latin] == ["is damaged: not UTF-8 text", None]


def test_tsv_is_quoted_where_a_program_has_quoted_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, for a task reads a .tsv as it stands there; format=tsv does, too."""
    frame = pandas.DataFrame({"text": ['he said "no"\tand\nwent', "plain"], "label": [0, 1]})
    frame.to_csv(tmp_path / "quoted.tsv", sep="\t", index=False)
    file = open_rows(str(tmp_path / "quoted.tsv"))
    assert file.is_quoted
    assert [row.record["text"] for row in file.placed_rows()] == frame.text.tolist()
    assert "quoted.tsv: quotation marks around cells are left out" in caplog.text
    frame.text = ['he said "no"', "plain"]
    frame.to_csv(tmp_path / "quoted.tsv", sep="\t", index=False)
    as_it_stands = open_rows(str(tmp_path / "quoted.tsv"), "tsv").placed_rows()
    of_task = open_table(tmp_path / "quoted.tsv").whole_rows()
    assert [row.record for row in as_it_stands] == list(of_task)
    glue = 'text\tlabel\n"a film" of note\t1\n"whole"\t0\n'
    assert [record["text"] for _, record, _ in rows_of(tmp_path / "glue.tsv", glue)] == [
        '"a film" of note',
        '"whole"',
    ]


def test_lines_are_texts_or_pairs(tmp_path: Path) -> None:
    plain = rows_of(tmp_path / "a.txt", "\ufeffone\r\n\n\ttwo\nthree\n")
    assert [record for _, record, _ in plain] == [
        {"text": "one"},
        {"text": ""},
        {"text": "\ttwo"},
        {"text": "three"},
    ]
    pairs = rows_of(tmp_path / "b.txt", "one\ttwo\nthree\nfour\tfive\n")
    assert pairs[0][1] == {"text": "one", "pair": "two"}
    assert "0 tabs" in str(pairs[1][2])
    assert pairs[2][2] is None
    assert rows_of(tmp_path / "c.txt", b"one\ncaf\xe9\n")[1][2] == "is damaged: not UTF-8 text"
    objects = rows_of(tmp_path / "d.txt", '{"text": "one"}\n[1]\n\n{"text": 2}\n')
    assert [problem for _, _, problem in objects] == [None, "is damaged: no JSON object", None]
    assert rows_of(tmp_path / "e.json", '[{"text": "one"},\n 3]') == [
        (1, {"text": "one"}, None),
        (2, {}, "is damaged: no JSON object"),
    ]


def test_what_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\x0cthree\n"))
    file = open_rows("-")
    assert [row.record["text"] for row in file.placed_rows()] == ["one", "two\x0cthree"]
    assert len(list(file.placed_rows())) == 2, "they can be gone through again"
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"text": "one"}\n\xe9\n'), encoding="utf-8")
    )
    assert [row.problem for row in open_rows("-").placed_rows()] == [
        None,
        "is damaged: not UTF-8 text",
    ]


JSON_LISTS = ('[{"text": "one"}]', '[\n  {\n    "text": "one"\n  }\n]\n')


@pytest.mark.parametrize("content", JSON_LISTS)
def test_a_json_list_under_another_name_is_no_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match="a list of JSON objects"):
        open_rows(str(tmp_path / "a.txt"))


def test_a_form_may_be_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("id\ttext\tlabel\n1\tone\tx\n")
    assert open_rows(str(tmp_path / "a.txt"), "tsv").columns == ["id", "text", "label"]
    (tmp_path / "b.txt").write_text(json.dumps({"text": "one"}) + "\n")
    assert [row.record for row in open_rows(str(tmp_path / "b.txt"), "lines").placed_rows()] == [
        {"text": '{"text": "one"}'}
    ]


def test_half_a_character_in_json_can_be_written_again(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    rows = rows_of(
        path, '{"text": "a \\ud800 b", "more": ["\\udfff"]}\n{"text": "\\ud83d\\ude00"}\n'
    )
    assert [record for _, record, _ in rows] == [
        {"text": "a \ufffd b", "more": ["\ufffd"]},
        {"text": "\U0001f600"},
    ]


def test_lines_that_end_with_carriage_returns_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\rtwo\rthree\r")
    with pytest.raises(ValueError, match=r"x\.txt ends its lines with a carriage return alone"):
        open_rows(str(path))
    assert [record["text"] for _, record, _ in rows_of(path, b"one\r\ntwo\r\n")] == ["one", "two"]
    assert [record["text"] for _, record, _ in rows_of(path, b"one\r")] == ["one"]


@pytest.mark.parametrize("content", ["one\n\ntwo\n\n\n", "one\n\r\n", "one", "one\n", "a\tb\n\n"])
def test_a_file_has_the_lines_that_a_pipe_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(content))
    piped = [(row.number, row.record, row.problem) for row in open_rows("-").placed_rows()]
    assert rows_of(tmp_path / "e.txt", content) == piped
    assert len(piped) == content.removesuffix("\n").count("\n") + 1


def test_a_packed_list_of_objects_is_read_as_one(tmp_path: Path) -> None:
    content = b'[{"text": "one"},\n {"text": "two"}]'
    expected = [(1, {"text": "one"}, None), (2, {"text": "two"}, None)]
    assert rows_of(tmp_path / "a.json.gz", gzip.compress(content)) == expected
    assert len(rows_of(tmp_path / "a.txt", content, "lines")) == 2
    assert rows_of(tmp_path / "b.txt", "[{MASK}] is\n[\n")[0][1] == {"text": "[{MASK}] is"}


# What is refused


def test_nothing_that_is_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ValueError, match="input=- has no line to read"):
        open_rows("-")


BAD_FILES: list[tuple[str, str, str]] = [
    ("a.csv", 'text,n\none,1\n"two,2\nthree,3\n', "a.csv:4: not a CSV file"),
    ("a.csv", "text,text\none,two\n", "two columns 'text'"),
    ("a.csv", "text\n", "a header and no row below it"),
    ("a.csv", "", "is empty"),
    ("a.txt", "", "has no line to read"),
    ("a.jsonl", "\n \n", "has no examples"),
    ("a.txt", "one\t1\tx\ntwo\t2\ty\n", "call it .tsv, or say format=tsv"),
    ("a.jsonl", "[1]\n", "a.jsonl:1 begins a JSON array"),
    ("a.json", "[1]", "a list of objects was expected"),
    ("a.xlsx", "PK\x03\x04" + "\0" * 100, "is binary"),
    ("a.parquet", "text", "no parquet file"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), BAD_FILES)
def test_what_spoils_a_whole_file_is_said_first(
    tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content.encode())
    with pytest.raises(ValueError, match=sentence):
        open_rows(str(tmp_path / name), "auto")


def test_an_unknown_format(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ValueError, match="format=xml: choose auto, lines"):
        open_rows(str(tmp_path / "a.txt"), "xml")
