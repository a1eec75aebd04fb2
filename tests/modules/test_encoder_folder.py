"""Opening an encoder folder: its own tokenizer or a refusal, and the longest row it knows."""

from __future__ import annotations

import json
import logging
import string
from pathlib import Path
from typing import Any

import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.modules.model import log_max_positions, max_positions, open_tokenizer

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)


def write(folder: Path, vocab_size: int = TOKENIZER.vocab_size, **made: Any) -> Path:
    for name, content in TOKENIZER.files().items():
        (folder / name).write_bytes(content)
    config = {
        "model_type": "bert",
        "vocab_size": vocab_size,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(config | ({"clozelab": made} if made else {})))
    return folder


def test_own_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_fingerprint=TOKENIZER.fingerprint)
    assert open_tokenizer(folder).fingerprint == TOKENIZER.fingerprint


def test_padded_embeddings_are_fine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert open_tokenizer(write(tmp_path, 64)).vocab_size == 31
    assert "33 embeddings behind the vocabulary of 31 are padding" in caplog.text


def test_longest_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said where that is asked for, and not by each who wants the number."""
    caplog.set_level(logging.INFO)
    assert max_positions(write(tmp_path)) == 64
    log_max_positions(tmp_path)
    assert max_positions(write(tmp_path, trained_seq_lengths=[16, 32])) == 32
    assert not caplog.messages
    log_max_positions(tmp_path)
    (message,) = caplog.messages
    assert "sequences of up to 32 tokens (of 64 positions)" in message


@pytest.mark.parametrize("size", [TOKENIZER.vocab_size - 1, TOKENIZER.vocab_size + 128, 30522])
def test_a_vocabulary_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    """One embedding too few, more than padding, and another model's."""
    with pytest.raises(ValueError, match=rf"for {size} ids .* hold 31: they do not belong togeth"):
        open_tokenizer(write(tmp_path, size))


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not those the encoder was trained with"):
        open_tokenizer(write(tmp_path, tokenizer_fingerprint="0" * 64))
