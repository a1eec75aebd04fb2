"""Text of one's own: paths from where one stands, and how often a run reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.screens import refuses

from clozelab.assembly.passes import passes
from clozelab.corpus.files import CorpusSource
from clozelab.launch.sweep import compose


def test_a_path_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (
        (tmp_path / "here" / "texts", "a.txt"),
        (tmp_path / "data" / "both", "b.txt"),
    ):
        place.mkdir(parents=True)
        (place / name).write_text("one sentence\n")
    (tmp_path / "here" / "both").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (found,) = CorpusSource("mine", "texts").shards(0, tmp_path / "data")
    assert found.path.resolve() == tmp_path / "here" / "texts" / "a.txt"
    (found,) = CorpusSource("mine", "both").shards(0, tmp_path / "data")
    assert found.name == "b.txt", "data_dir comes first"


def test_passes_over_the_text() -> None:
    assert passes(4e6, 1_000_000) == ("4.0 passes over 1 M tokens of text", False)
    said, is_much = passes(4.1e7, 1_000_000)
    assert is_much and said.startswith(
        "41.0 passes over 1 M tokens of text; beyond 40 an encoder learns the text by"
    )


def test_the_scale_for_it_takes_a_text(tmp_path: Path) -> None:
    composed = compose(
        "pretrain", ["scale=own", f"corpus.sources.0.path={tmp_path}", "objective=mlm"]
    ).config
    assert composed.corpus.name == "text" and composed.tokenizer.vocab_size == 8192
    assert (
        sum(one.steps * one.global_batch_size * one.seq_length for one in composed.phases)
        == 7_372_800
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
