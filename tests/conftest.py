"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import os
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.config import EncoderConfig

# Sweeps of the tests are to be run, not to be looked at first; what tests the pre-flight takes it away again.
os.environ.setdefault("CLOZELAB_SKIP_DOCTOR", "1")
TINY = {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "initializer_range": 0.2,
    "layer_norm_eps": 1e-12,
    "position_embedding_init": "normal",
}


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., EncoderConfig]:
    """tiny_config(**changes) -> a small configuration without dropout."""
    return lambda **changes: EncoderConfig(**{**TINY, **changes})


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real data and oracles: CLOZELAB_SHARED, or `../shared` beside the checkout; skips without it."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("CLOZELAB_SHARED", default))
    if not folder.is_dir():
        pytest.skip(f"real data not available: {folder} is not a folder (set CLOZELAB_SHARED)")
    return folder


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are those of a pipe, however wide the terminal is that the tests run in (pytest-xdist says so to all)."""
    monkeypatch.delenv("COLUMNS", raising=False)


WORDS = [
    "the",
    "a",
    "red",
    "green",
    "blue",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "hill",
    "who",
    "where",
    "what",
    "is",
    "was",
    "did",
    "fast",
]


@pytest.fixture(scope="session")
def tokenizer() -> WordPieceTokenizer:
    """Of whole words, so that a test can count tokens by eye."""
    letters = list(string.ascii_lowercase + string.digits + ".,?!'\"-") + [f"##{c}" for c in string.ascii_lowercase]
    return WordPieceTokenizer([*SPECIAL_TOKENS, *letters, *(word for word in WORDS if len(word) > 1)], lowercase=True)
