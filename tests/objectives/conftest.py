"""A small corpus in memory, a tiny encoder, and batches of either objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.models.encoder import Encoder
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective

VOCAB_SIZE = 60


@pytest.fixture
def ids() -> SpecialIds:
    return SpecialIds(cls=2, sep=3, pad=0, mask=4, vocab_size=VOCAB_SIZE)


@pytest.fixture
def shards() -> TokenShards:
    """30 documents of 2..12 sentences of 3..9 tokens, two sources."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 13, 30)
    lengths = rng.integers(3, 10, sizes.sum())
    return TokenShards(
        tokens=TokenStream([rng.integers(5, VOCAB_SIZE, lengths.sum())]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=(np.arange(30) % 2).astype(np.uint8),
        source_names=("wiki", "books"),
        vocab_size=VOCAB_SIZE,
        unigram_entropy=4.0,
        fingerprint="",
    )


@pytest.fixture
def change_token(shards: TokenShards) -> Callable[[int], TokenShards]:
    """change_token(position) -> the same corpus with another token there."""

    def change(position: int) -> TokenShards:
        tokens = shards.tokens[:].copy()
        tokens[position] = 5 + (tokens[position] - 5 + 7) % (VOCAB_SIZE - 5)
        return replace(shards, tokens=TokenStream([tokens]))

    return change


@pytest.fixture
def make_encoder(tiny_config: Callable[..., Any]) -> Callable[..., Encoder]:
    """make_encoder(is_causal, **changes) -> a tiny encoder, always of the same weights."""

    def make(is_causal: bool, **changes: Any) -> Encoder:
        torch.manual_seed(0)
        sizes = {
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 16,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "initializer_range": 0.3,
        }
        config = tiny_config(is_causal=is_causal, **sizes | changes)
        return Encoder(config).eval()

    return make


@pytest.fixture
def make_mlm() -> Callable[..., MaskedLanguageModel]:
    """make_mlm(mask, random, same) -> masked language model with those fractions."""

    def make(mask: float = 0.8, random: float = 0.1, same: float = 0.1) -> MaskedLanguageModel:
        return MaskedLanguageModel(
            predict_prob=0.15,
            mask_fraction=mask,
            random_fraction=random,
            same_fraction=same,
            weight=1.0,
        )

    return make


@pytest.fixture
def mlm_nsp(make_mlm: Any) -> Objective:
    return Objective(
        input=SegmentPairs(0.5, "corpus"), token=make_mlm(), pair=NextSentencePrediction(weight=0.5)
    )
