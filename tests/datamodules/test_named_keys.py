"""A refusal names the keys of the verb that was said: only a corpus has corpus.sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.screens import refuses, shows

from clozelab.corpus.files import CorpusSource
from clozelab.corpus.steps.step import Document
from clozelab.datamodules.heldout import file_sources
from clozelab.readers.tables import open_table
from clozelab.stages import vocabulary

TABLE = "title,body\na first title,a first body\nanother title,another body\n"


def sources(path: str) -> list[CorpusSource]:
    return file_sources([{"name": "mine", "path": path}])


def test_held_out_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "a.txt").write_text('{"body": "a text"}\n')
    with refuses("name it by measure.data.sources.0.text_field"):
        sources("a.csv")[0].shards(0, tmp_path)
    with refuses("or set measure.data.sources.0.format=jsonl;"):
        sources("a.txt")[0].shards(0, tmp_path)
    with refuses("how to get them: measure.data.sources names them") as caught:
        sources("b.txt")[0].shards(0, tmp_path)
    assert "corpus=" not in str(caught.value)
    with refuses("name it by corpus.sources.1.text_field"):
        CorpusSource("mine", "a.csv").shards(1, tmp_path)


def test_the_text_of_a_longer_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    monkeypatch.setattr(vocabulary, "find_model", lambda *_, **__: tmp_path)
    words = ["model", f"to={tmp_path}/b", f"text={tmp_path}/a.csv", "add=5"]
    with refuses("name it by text_field"):
        vocabulary.main(words)
    seen: list[Document] = []
    monkeypatch.setattr(vocabulary.vocabulary, "count_words", seen.extend)
    with refuses("config.json", OSError, ValueError):
        vocabulary.main([*words, "text_field=body"])
    assert [document.lines for document in seen] == [["a first body"], ["another body"]]


def test_a_tsv_with_quotation_marks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.tsv").write_text("id\ttext\n" + '1\t"a ""quoted"" text"\n' * 9)
    open_table(tmp_path / "a.tsv")
    shows(caplog.text, "say that it is csv (of a task task.data.file_format=csv, else format=csv)")
