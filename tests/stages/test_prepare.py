"""Stage prepare: from a configuration node to a prepared corpus; embedded corpora are generated once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from clozelab.config import CorpusConfig
from clozelab.stages.prepare import main, prepared_corpus

NUM_DOCUMENTS = 30


def corpus_config(**changes: Any) -> DictConfig:
    values: dict[str, Any] = {
        "name": "small",
        "sources": [{"name": "one", "path": "one.txt"}],
        "vocab_size": 200,
        "lowercase": True,
        "validation_fraction": 0.1,
    }
    return OmegaConf.merge(OmegaConf.structured(CorpusConfig), values | changes)


def generated_config() -> DictConfig:
    generator = {
        "_target_": "microworld.world.write_world",
        "_partial_": True,
        "world_seed": 1,
        "num_documents": NUM_DOCUMENTS,
        "train_examples": 20,
        "validation_examples": 10,
        "entropy_documents": 5,
    }
    sources = [{"name": "microworld", "path": "corpus/microworld.txt", "format": "text"}]
    return corpus_config(name="microworld", sources=sources, generator=generator, vocab_size=400)


def write_text(folder: Path) -> None:
    folder.mkdir()
    (folder / "one.txt").write_text("\n\n".join(f"Document {index}.\nIt has two sentences." for index in range(50)))


def test_main_prints_where_the_corpus_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "data")
    cfg = OmegaConf.create(
        {"data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache"), "corpus": corpus_config()}
    )
    folder = main(cfg)
    assert folder.parent == tmp_path / "cache" / "corpora"
    assert f"prepared corpus: {folder}" in capsys.readouterr().out


def test_a_byte_that_has_changed_is_found(tmp_path: Path) -> None:
    """Before a sweep; its jobs compare sizes alone."""
    write_text(tmp_path / "data")
    places = {"data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache")}
    folder = main(OmegaConf.create({**places, "corpus": corpus_config()}))
    path = next(folder.glob("train/tokens*.bin"))
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    prepared_corpus(corpus_config(), **places)
    with pytest.raises(ValueError, match=r"tokens.* has changed since it was written; delete .* and run the prepare"):
        main(OmegaConf.create({**places, "corpus": corpus_config()}))


def test_a_missing_value_is_an_error(tmp_path: Path) -> None:
    cfg = corpus_config()
    cfg.vocab_size = "???"
    with pytest.raises(Exception, match="vocab_size"):
        prepared_corpus(cfg, tmp_path, tmp_path)


def test_an_embedded_corpus_is_generated_once(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    corpus = prepared_corpus(generated_config(), data, cache)
    assert corpus.train.num_documents + corpus.validation.num_documents == NUM_DOCUMENTS
    text = data / "corpus" / "microworld.txt"
    written = text.stat().st_mtime_ns
    assert prepared_corpus(generated_config(), data, cache).fingerprint == corpus.fingerprint
    assert text.stat().st_mtime_ns == written
