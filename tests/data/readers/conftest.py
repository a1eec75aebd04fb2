"""A tokenizer of whole words, so that a test can count tokens by eye."""

from __future__ import annotations

import string

import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer

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
    letters = list(string.ascii_lowercase + string.digits + ".,?!'\"-") + [f"##{c}" for c in string.ascii_lowercase]
    return WordPieceTokenizer([*SPECIAL_TOKENS, *letters, *(word for word in WORDS if len(word) > 1)], lowercase=True)
