"""Prepared corpora are what they were, to the byte: for any shards and any number of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.corpus.test_prepare import files_of
from tests.reference.corpora import CORPORA, FROZEN, facts, prepare


def frozen(name: str) -> Any:
    return json.loads(FROZEN.read_text())[name]


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_is_what_it_was(name: str, tmp_path: Path) -> None:
    whole = prepare(CORPORA[name], tmp_path)
    assert facts(whole) == frozen(name)
    sizes = [20_000]
    if name in ("several", "given"):
        sizes.append(1)  # a document is a shard
    for characters in sizes:
        with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", characters):
            other = prepare(CORPORA[name], tmp_path, cache=f"cache{characters}")
        assert files_of(other) == files_of(whole), "the manifest, too"


@pytest.mark.parametrize("workers", [2, 3])
def test_processes_make_the_same(workers: int, tmp_path: Path) -> None:
    for name in ("several", "byte_bpe", "long"):
        with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", 40_000):
            prepared = prepare(CORPORA[name], tmp_path / name, workers=workers)
        assert facts(prepared) == frozen(name)
