"""Prepared corpora are what they were, to the byte: tests/reference/frozen_corpora.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reference.corpora import CORPORA, FROZEN, facts, prepare


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_is_what_it_was(name: str, tmp_path: Path) -> None:
    frozen = json.loads(FROZEN.read_text())[name]
    assert facts(prepare(CORPORA[name], tmp_path)) == frozen
