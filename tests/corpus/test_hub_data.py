"""Data sets of the hub as sources, by a server of this machine that answers as the hub does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from tests.composing import composed
from tests.corpus.test_prepare import make_text, opened
from tests.hub_server import Hub, serving
from tests.screens import refuses

from clozelab.assembly.corpora import prepared_corpus, require_sources
from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.sources import DatasetSource, make_source

COMMIT = "c0ffee" * 6 + "abcd"
CARD = """---
configs:
- config_name: small
  data_files: data/train-*.parquet
- config_name: notes
  data_files: [{split: held, path: notes.parquet}]
---
"""
WEB = {
    "name": "web",
    "dataset": "org/web",
    "config": "small",
    "split": "train",
    "revision": COMMIT,
    "text_field": "text",
}
ROWS = make_text(60).strip().split("\n\n")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with org/web, asked by the datasets library of this process, whose cache is empty."""
    import datasets.config
    import huggingface_hub.constants

    root = tmp_path / "hub"
    (root / "data").mkdir(parents=True)
    (root / "README.md").write_text(CARD)
    for number in range(2):
        rows = ROWS[30 * number : 30 * number + 30]
        table = pandas.DataFrame({"id": range(30), "text": rows})
        table.to_parquet(root / f"data/train-{number}.parquet", index=False)
    pandas.DataFrame({"note": ["One.", "Two."]}).to_parquet(root / "notes.parquet", index=False)
    with serving(root, "org/web", COMMIT) as server:
        for place, name in (
            (datasets.config, "HF_ENDPOINT"),
            (huggingface_hub.constants, "ENDPOINT"),
        ):
            monkeypatch.setattr(place, name, server.url)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
        for name in ("HF_DATASETS_CACHE", "HF_MODULES_CACHE", "DOWNLOADED_DATASETS_PATH"):
            monkeypatch.setattr(datasets.config, name, str(tmp_path / "cache" / name))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache/hub"))
        yield server


def texts_of(source: Any) -> list[str]:
    (shard,) = source.shards(0, Path())
    shard.check()
    return list(shard.texts(CorpusCounts()))


def test_a_split_gives_the_corpus_of_its_rows(tmp_path: Path, hub: Hub) -> None:
    (tmp_path / "data").mkdir()
    pandas.DataFrame({"text": ROWS}).to_parquet(tmp_path / "data/rows.parquet")
    local = opened(tmp_path, sources=[CorpusSource("web", "rows.parquet")])
    source = make_source(WEB, 0, hub=True)
    prepared = opened(tmp_path, sources=[source])
    assert prepared.fingerprint == local.fingerprint
    assert prepared.manifest["settings"]["sources"][0]["files"] == [
        {
            "name": "org/web/small/train",
            "version": f"org/web/small/train@{COMMIT}",
            "column": "text",
        }
    ]
    assert any(COMMIT in path for path in hub.asked)
    assert not list((tmp_path / "cache").rglob("*.arrow")), "it is streamed"


def test_a_data_set_on_the_command_line(tmp_path: Path, hub: Hub) -> None:
    source = f"{{name: web, dataset: org/web, config: small, revision: {COMMIT}}}"
    words = ["corpus=text", f"corpus.sources=[{source}]", "tokenizer.vocab_size=150"]
    words += [f"data_dir={tmp_path}", f"cache_dir={tmp_path}/cache", "tokenizer.vocab_size=150"]
    with refuses("source web: org/web comes from the Hugging Face hub, which is asked only with"):
        require_sources(composed("prepare", words).config)
    assert not hub.asked
    for stage in ("prepare", "pretrain"):
        corpus = prepared_corpus(composed(stage, [*words, "corpus.hub=true"]).config)
        assert corpus.manifest["counts"]["documents"] == 60
    with refuses("its dataset is org/web: a source has either of them"):
        assert composed("prepare", [*words, "corpus.sources.0.path=a.txt"]).config


def test_another_split_and_field(hub: Hub) -> None:
    notes = {**WEB, "config": "notes", "split": "held", "text_field": "note"}
    assert texts_of(make_source(notes, 0, hub=True)) == ["One.", "Two."]
    with refuses(
        f"org/web/notes/held at revision {COMMIT} has no column 'text'; its columns are 'note'"
    ):
        texts_of(make_source({**notes, "text_field": "text"}, 0, hub=True))


def test_what_the_hub_does_not_have(hub: Hub) -> None:
    with refuses("org/web/small/none at revision c0ffee"):
        texts_of(make_source({**WEB, "split": "none"}, 0, hub=True))
    with refuses(f"org/web at revision {COMMIT} cannot be read (ValueError: BuilderConfig 'big'"):
        texts_of(make_source({**WEB, "config": "big"}, 0, hub=True))
    other = "0" * 40
    with refuses(f"{other} cannot be read (DatasetNotFoundError: Revision"):
        texts_of(make_source({**WEB, "revision": other}, 0, hub=True))


def test_offline_the_library_s_cache_is_read_and_no_other_commit(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library takes whatever commit its cache has when it does not reach the hub."""
    import datasets

    rows = list(datasets.load_dataset("org/web", "small", split="train", revision=COMMIT)["text"])
    hub.asked.clear()
    hub.shutdown()
    hub.server_close()
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert texts_of(make_source(WEB, 0, hub=True)) == rows == ROWS
    other = "0" * 40
    control = datasets.load_dataset("org/web", "small", split="train", revision=other)
    assert list(control["text"]) == rows, "the control: the commit of the cache, without an error"
    with refuses(
        f"org/web at revision {other} cannot be read (OSError: the hub was not reached, and the"
        f" cache holds commit {COMMIT})"
    ):
        texts_of(make_source({**WEB, "revision": other}, 0, hub=True))
    assert not hub.asked


def test_the_hub_is_not_asked_before_rows_are_read(no_network: list[str]) -> None:
    source = make_source(WEB, 3, hub=True)
    assert isinstance(source, DatasetSource)
    (shard,) = source.shards(3, Path())
    assert shard.identity()["version"] == f"org/web/small/train@{COMMIT}"


@pytest.mark.parametrize("revision", ["main", None])
def test_a_revision_that_is_no_commit_is_refused(revision: str | None) -> None:
    with refuses(f"corpus.sources.0.revision={revision!r} is no commit of org/web"):
        make_source({**WEB, "revision": revision}, 0, hub=True)
