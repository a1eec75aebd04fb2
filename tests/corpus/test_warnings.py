"""What this room warns of, and the sentence that says so: a row a case."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.calling import call_with_fixtures
from tests.corpus import test_prepare, test_tables

from clozelab.corpus.files import CorpusSource
from clozelab.corpus.paths import matching_files
from clozelab.readers.tables import open_table

data = test_prepare.data


def lines_that_are_paragraphs(tmp_path: Path, data: Path) -> None:
    paragraphs = ["The river is long. " * 30 + f"It has number {index}." for index in range(20)]
    (data / "one.txt").write_text("\n\n".join(paragraphs))
    test_prepare.run(tmp_path, sources=[CorpusSource("one", "one.txt")])


def words_of_seventy_letters(tmp_path: Path, data: Path) -> None:
    (data / "one.txt").write_text(test_prepare.unspaced(70))
    test_prepare.run(tmp_path, sources=[CorpusSource("one", "one.txt")])


def a_table_beside_texts(tmp_path: Path) -> None:
    test_tables.write_csv(tmp_path / "about.csv")
    (tmp_path / "a.txt").write_text("From a.")
    test_tables.read(tmp_path, ".")


def a_tsv_of_a_csv_writer(tmp_path: Path) -> None:
    texts = ['"No," she said.', "a film", '"Yes," he said.']
    frame = pandas.DataFrame({"text": texts, "label": [0, 1, 0]})
    frame.to_csv(tmp_path / "x.tsv", sep="\t", index=False)
    list(open_table(tmp_path / "x.tsv").rows())


def a_link_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "b.txt").write_text("Another sentence.\n")
    (tmp_path / "text" / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    matching_files("text", tmp_path)


WARNINGS: list[tuple[str, Callable[..., Any], str]] = [
    (
        "lines that are paragraphs",
        lines_that_are_paragraphs,
        "characters on average: plain text needs one sentence a line",
    ),
    (
        "words of seventy letters",
        words_of_seventy_letters,
        "words have some 70 characters: are there no spaces between the words? tokenizer=byte_bpe",
    ),
    ("a table beside texts", a_table_beside_texts, "files left out: 1,"),
    ("a tsv of a csv writer", a_tsv_of_a_csv_writer, "task.data.file_format=csv"),
    ("a link to nothing", a_link_to_nothing, "gone.txt is a link to nothing"),
]


@pytest.mark.parametrize(
    ("call", "sentence"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS]
)
def test_warning(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    call: Callable[..., Any],
    sentence: str,
) -> None:
    with caplog.at_level(logging.WARNING):
        call_with_fixtures(call, request)
    assert sentence in caplog.text
