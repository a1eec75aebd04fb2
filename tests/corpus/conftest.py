"""Token shards in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import pytest

from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream

FIRST_ID = 10


@pytest.fixture(autouse=True)
def small_texts_go_the_way_of_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """By words: the library alone would be asked for so few."""
    monkeypatch.setattr("clozelab.corpus.encoding.MIN_CUT_CHARACTERS", 0)


@pytest.fixture
def ids() -> SpecialIds:
    return SpecialIds(cls=2, sep=3, pad=0, mask=4, vocab_size=5000)


@pytest.fixture
def make_shards() -> Callable[..., TokenShards]:
    """make_shards([[sentence length, ...] of each document], sources) -> shards.

    Token ids are 10 + token position, so that a row tells where it was cut.
    """

    def make(
        documents: Sequence[Sequence[int]], sources: Sequence[int] | None = None
    ) -> TokenShards:
        lengths = np.array([*chain.from_iterable(documents)], dtype=np.int64)
        num_tokens = int(lengths.sum())
        return TokenShards(
            tokens=TokenStream([np.arange(FIRST_ID, FIRST_ID + num_tokens)]),
            sentence_offsets=np.append(0, np.cumsum(lengths)).astype(np.int64),
            document_offsets=np.append(
                0, np.cumsum([len(document) for document in documents])
            ).astype(np.int64),
            document_source=np.array(
                sources if sources is not None else [0] * len(documents), dtype=np.uint8
            ),
            source_names=("wiki", "books", "other"),
            vocab_size=FIRST_ID + num_tokens,
            unigram_entropy=1.0,
            fingerprint="",
        )

    return make


@pytest.fixture
def make_documents() -> Callable[..., list[list[int]]]:
    """make_documents(count, low, high, seed) -> sentence lengths of documents of low..high ones."""

    def make(count: int, low: int, high: int, seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        sizes = rng.integers(low, high + 1, count)
        return [(1 + rng.poisson(rng.gamma(3.0, 11 / 3, size))).tolist() for size in sizes]

    return make
