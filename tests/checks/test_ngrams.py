"""Stretches of tokens are found where they stand, over block and file ends, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.checks.conftest import make_shards

from clozelab.checks import corpus as ngrams
from clozelab.checks.corpus import NGRAM, ngram_hashes, search
from clozelab.corpus.shards import TokenStream


@pytest.mark.parametrize("block", [16, 1 << 15])
def test_every_ngram_is_found_where_it_stands(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(ngrams, "BLOCK_TOKENS", block)
    shards = make_shards(1, 20, 600)
    ids = shards.tokens[:]
    index = search(shards, [ngram_hashes(ids)], unk_id=7)
    assert np.array_equal(index.only_position(ngram_hashes(ids)), np.arange(len(ids) - NGRAM + 1))
    assert (index.num_searched, index.largest_id) == (len(ids), ids.max())
    assert index.num_unknown == (ids == 7).sum()


def test_what_is_not_there_is_not_found() -> None:
    shards = make_shards(1, 20, 600)
    ids = shards.tokens[:]
    other = ids.copy()
    other[::NGRAM] = (other[::NGRAM] + 1) % 600  # one token of every n-gram
    index = search(shards, [ngram_hashes(other)], unk_id=1)
    assert not index.is_found(ngram_hashes(other)).any()
    reversed_ids = ngram_hashes(ids[::-1])
    assert not search(shards, [reversed_ids], unk_id=1).is_found(reversed_ids).any()


def test_what_stands_twice_has_no_only_position() -> None:
    shards = make_shards(1, 20, 600)
    ids = shards.tokens[:].astype("<u2")
    twice = replace(shards, tokens=TokenStream([ids, ids]))
    index = search(twice, [ngram_hashes(ids)], unk_id=1)
    assert index.is_found(ngram_hashes(ids)).all()
    assert (index.only_position(ngram_hashes(ids)) == -1).all()
    assert (index.only_position(np.zeros(3, dtype=np.uint64)) == -1).all()


def test_a_large_corpus_is_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "BLOCK_TOKENS", 100)
    shards = make_shards(1, 40, 600)
    monkeypatch.setattr(ngrams, "MAX_SEARCHED_TOKENS", shards.num_tokens // 3)
    index = search(shards, [], unk_id=1)
    assert 0.2 < index.searched_fraction < 0.35
