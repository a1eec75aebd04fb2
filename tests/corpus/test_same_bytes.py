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


LONGER = {"jsonl_zst": "rules", "byte_bpe": "byte_bpe_several", "one_source_of_several": "several"}
"""Slow ones, and those of the same files or the same tokenizer in every run of the suite."""
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in LONGER else []) for name in CORPORA]


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus_is_what_it_was(name: str, tmp_path: Path) -> None:
    whole = prepare(CORPORA[name], tmp_path)
    assert facts(whole) == frozen(name)
    check_shards(name, tmp_path, whole, characters=20_000)


def check_shards(name: str, folder: Path, whole: Path, characters: int) -> None:
    """Cut into shards of this size, a corpus has the same files, the manifest too."""
    with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", characters):
        other = prepare(CORPORA[name], folder, cache=f"cache{characters}")
    assert files_of(other) == files_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["several", "given"])
def test_a_document_can_be_a_shard(name: str, tmp_path: Path) -> None:
    check_shards(name, tmp_path, prepare(CORPORA[name], tmp_path), characters=1)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("several", 2),
        *(
            pytest.param(name, 3, marks=pytest.mark.slow)
            for name in ("several", "byte_bpe", "long")
        ),
    ],
)
def test_processes_make_the_same(name: str, workers: int, tmp_path: Path) -> None:
    with patch("clozelab.corpus.preparation.texts.SHARD_CHARACTERS", 40_000):
        prepared = prepare(CORPORA[name], tmp_path, workers=workers)
    assert facts(prepared) == frozen(name)
