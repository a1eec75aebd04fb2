"""What a generator says of its files: which they are, and the bound of its corpus in nats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.generated import MANIFEST, generator_of, known_loss
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.files.digests import file_sha256
from microworld.world import known_loss as bounds_of

ENTROPY = {
    "left_to_right_loss": 1.0,
    "left_to_right_standard_error": 0.1,
    "left_to_right_words": 1000.0,
    "masked_one_loss": 0.4,
    "masked_one_standard_error": 0.4,
    "masked_window_loss": 0.6,
    "masked_window_standard_error": 0.6,
    "masked_document_loss": 0.5,
    "masked_document_standard_error": 0.5,
}
BERT = (0.15, 0.1)


@pytest.fixture
def tokenizer(tmp_path: Path) -> WordPieceTokenizer:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "mill", "barn", "##s"]) + "\n")
    return WordPieceTokenizer.from_vocab(path, lowercase=True)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


def write(folder: Path, bounds: list[dict[str, Any]] | None = None) -> Path:
    """A folder with a manifest; the bounds are those that the embedded world writes of ENTROPY."""
    folder.mkdir()
    manifest = {
        "generator": "world",
        "sha256": {},
        "known_loss": bounds_of(ENTROPY) if bounds is None else bounds,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def labels(tokenizer: WordPieceTokenizer, text: str) -> Any:
    return np.array([tokenizer.vocabulary.index(token) for token in text.split()])


def test_next_tokens_cost_what_words_cost(world: Path, tokenizer: WordPieceTokenizer) -> None:
    known = known_loss(
        world, tokenizer, labels(tokenizer, "mill barn mill"), seq_length=64, masking=None
    )
    assert known is not None and known["reader"] == "left_to_right"
    assert known["nats"] == pytest.approx(1.0) and known["standard_error"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("length", "masking", "nats"),
    [
        (64, BERT, 0.9 * 0.6),
        (65, BERT, 0.9 * 0.5),
        (64, (0.15, 0.0), 0.6),
        (64, (0.05, 0.1), 0.9 * 0.4),
    ],
)
def test_masked_words_by_what_the_row_shows(
    world: Path,
    tokenizer: WordPieceTokenizer,
    length: int,
    masking: tuple[float, float],
    nats: float,
) -> None:
    found = known_loss(
        world, tokenizer, labels(tokenizer, "mill barn"), seq_length=length, masking=masking
    )
    assert (
        found is not None and found["nats"] == pytest.approx(nats) and found["reader"] == "masked"
    )


def test_pieces_of_a_word_share_its_loss_from_left_to_right_alone(
    world: Path, tokenizer: WordPieceTokenizer
) -> None:
    predicted = labels(tokenizer, "mill ##s barn ##s")
    known = known_loss(world, tokenizer, predicted, seq_length=64, masking=None)
    assert known is not None and known["nats"] == pytest.approx(0.5)
    assert known_loss(world, tokenizer, predicted, seq_length=64, masking=BERT) is None


def test_nothing_is_said_of_unknown_words(world: Path, tokenizer: WordPieceTokenizer) -> None:
    for masking in (None, BERT):
        assert (
            known_loss(
                world, tokenizer, labels(tokenizer, "mill [UNK]"), seq_length=64, masking=masking
            )
            is None
        )


def test_nothing_is_said_of_what_was_not_measured(
    tmp_path: Path, tokenizer: WordPieceTokenizer
) -> None:
    words = labels(tokenizer, "mill")
    only_next_words = [bound for bound in bounds_of(ENTROPY) if bound["reader"] == "left_to_right"]
    for folder in (
        write(tmp_path / "none", []),
        write(tmp_path / "other", only_next_words),
        tmp_path,
    ):
        assert known_loss(folder, tokenizer, words, seq_length=64, masking=BERT) is None


def test_generated_files_are_known_by_their_content(tmp_path: Path) -> None:
    real, made = tmp_path / "real.tsv", tmp_path / "made.tsv"
    real.write_text("real")
    made.write_text("made")
    assert generator_of(tmp_path, [real, made]) is None
    (tmp_path / MANIFEST).write_text(
        json.dumps(
            {"generator": "world", "sha256": {"made.tsv": file_sha256(made)}, "known_loss": []}
        )
    )
    assert generator_of(tmp_path, [real]) is None
    assert generator_of(tmp_path, [real, made]) == "world"
    made.write_text("real data in its place")
    assert generator_of(tmp_path, [made]) is None
    for text in ("{", "[]", "{}", '{"generator": "world", "sha256": 3, "known_loss": []}'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(ValueError, match=r"generated\.json is damaged"):
            generator_of(tmp_path, [made])
