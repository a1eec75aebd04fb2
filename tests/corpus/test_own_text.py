"""Text of one's own: paths from where one stands, and how often a run reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.screens import refuses

from clozelab.assembly.passes import passes, source_passes
from clozelab.corpus.files import CorpusCounts, CorpusSource, content_marks, text_marks
from clozelab.corpus.preparation.forecast import forecast_source
from clozelab.corpus.preparation.texts import cut_shards
from clozelab.launch.sweep import compose


def test_a_few_bad_lines_of_a_book_are_skipped(tmp_path: Path) -> None:
    """They are held against its lines, though it is one document."""
    lines = [b"A line of it."] * 500
    lines[9] = lines[99] = b"caf\xe9"
    (tmp_path / "novel.txt").write_bytes(b"\n".join(lines))
    files = CorpusSource("mine", "novel.txt", format="book").shards(0, tmp_path)
    files[0].check()
    counts = CorpusCounts()
    assert len(list(cut_shards(files, counts))) == 1
    assert counts.bad.total() == 2


def test_a_forecast_holds_bad_lines_against_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"A line of it.\n" * 20_000)
    (tmp_path / "z.txt").write_bytes(b"A line.\n" * 50 + b"caf\xe9\n" * 2)
    files = CorpusSource("mine", ".").shards(0, tmp_path)
    assert forecast_source(files, [], None, seconds=1.0).files == 2
    with pytest.raises(ValueError, match="2 of 52 rows cannot be read"):
        forecast_source(files[1:], [], None, seconds=1.0)


def test_a_name_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.txt")).write_text("one sentence\n")
    with pytest.raises(ValueError, match=r"caf\\udce9\.txt': the name of this file is not UTF-8"):
        CorpusSource("mine", ".").shards(0, tmp_path)


def test_two_columns_or_a_book_are_another_text() -> None:
    file = {"sha256": "0a", "format": "jsonl"}
    book = {"sha256": "0a", "format": "book"}
    sources: Any = [{"files": [file]}, {"files": [file], "text_field": "title"}, {"files": [book]}]
    assert text_marks(sources) == ["0a", "0a title", "0a as a book"]
    assert content_marks(sources) == ["0a", "0a", "0a"]


def test_passes_over_the_text() -> None:
    assert passes(4.0, 1_000_000) == ("4.0 passes over 1 M tokens of text", False)
    assert passes(0.0123, 1_000_000)[0].startswith("0.01 passes over")
    assert source_passes({"a": 0.04, "b": 0.0, "c": 0.1})[0] == (
        "a is read 0.04 times, b is read 0.0 times, c is read 0.1 times"
    )
    said, is_much = passes(41.0, 1_000_000)
    assert is_much and said.startswith(
        "41.0 passes over 1 M tokens of text; beyond 40 an encoder learns the text by"
    )


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("corpus.sources.0.path=[a,s3://b/c.txt]", ["a", "s3://b/c.txt"]),
        ("corpus.sources.0.path=2024", "2024"),
        ("corpus.sources.0.path=[2023,2024]", ["2023", "2024"]),
        ("text=[a,b]", ["a", "b"]),
        ("text=s3://bucket/folder", "s3://bucket/folder"),
    ],
)
def test_a_path_may_be_a_list_a_number_or_a_url(word: str, path: object) -> None:
    composed = compose("prepare", ["scale=own", word]).config
    assert composed.corpus.sources[0].path == path


@pytest.mark.parametrize("value", ["[]", "{a: b}"])
def test_any_other_path_is_refused(value: str) -> None:
    with refuses("corpus.sources.0.path is"):
        assert compose("prepare", ["scale=own", f"corpus.sources.0.path={value}"]).config
