"""Token shards: what is written is what is read, over any number of files; damage is noticed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from clozelab.corpus.shards import (
    MAX_SHARD_TOKENS,
    ShardWriter,
    TokenShards,
    TokenStream,
    token_dtype,
)


def write(
    folder: Path,
    documents: list[list[list[int]]],
    vocab_size: int = 100,
    max_shard_tokens: int = MAX_SHARD_TOKENS,
) -> TokenShards:
    """One call a document, so that every document may begin a new file."""
    with (
        patch("clozelab.corpus.shards.MAX_SHARD_TOKENS", max_shard_tokens),
        ShardWriter(folder, vocab_size=vocab_size, source_names=["one", "two"]) as writer,
    ):
        for index, document in enumerate(documents):
            lengths = np.array([len(sentence) for sentence in document])
            about = [np.array([value]) for value in (len(document), index % 2, index // 3)]
            writer.add(np.concatenate(document), lengths, *about)
    return TokenShards.open(folder)


@pytest.fixture
def documents() -> list[list[list[int]]]:
    rng = np.random.default_rng(0)
    result = []
    for size in rng.integers(1, 6, 20):
        result.append([rng.integers(0, 100, n).tolist() for n in rng.integers(1, 9, size)])
    return result


@pytest.mark.parametrize("max_shard_tokens", [1, 50, 10**6])
@pytest.mark.parametrize("vocab_size", [100, 70_000])
def test_reads_what_was_written(
    tmp_path: Path, documents: list, max_shard_tokens: int, vocab_size: int
) -> None:
    shards = write(tmp_path, documents, vocab_size, max_shard_tokens=max_shard_tokens)
    sentences = chain.from_iterable(documents)
    flat = np.array([*chain.from_iterable(sentences)])
    num_files = len(list(tmp_path.glob("tokens-*.bin")))
    assert num_files == {1: 20, 10**6: 1}.get(max_shard_tokens, num_files)
    assert 1 < num_files < 20 or max_shard_tokens != 50
    assert next(shards.tokens.blocks(1))[1].dtype == token_dtype(vocab_size)
    assert shards.num_tokens == len(shards.tokens) == len(flat)
    assert shards.tokens[:].tolist() == flat.tolist()
    assert (shards.num_documents, shards.source_names) == (20, ("one", "two"))
    assert shards.document_source.tolist() == [0, 1] * 10
    assert shards.document_origin is not None
    assert shards.document_origin.tolist() == [i // 3 for i in range(20)]
    rebuilt = []
    for d in range(shards.num_documents):
        rebuilt.append(
            [
                shards.tokens[shards.sentence_offsets[s] : shards.sentence_offsets[s + 1]].tolist()
                for s in range(shards.document_offsets[d], shards.document_offsets[d + 1])
            ]
        )
    assert rebuilt == documents


@pytest.mark.parametrize("max_shard_tokens", [50, 10**6])
def test_tokens_are_taken_at_positions_of_any_shape(
    tmp_path: Path, documents: list, max_shard_tokens: int
) -> None:
    tokens = write(tmp_path, documents, max_shard_tokens=max_shard_tokens).tokens
    sentences = chain.from_iterable(documents)
    flat = np.array([*chain.from_iterable(sentences)])
    assert tokens[:].tolist() == flat.tolist()
    starts = np.random.default_rng(1).integers(0, len(flat) - 10, 30)
    taken = tokens.take(starts[:, None] + np.arange(10))
    assert taken.dtype == np.int64
    assert taken.tolist() == [flat[start : start + 10].tolist() for start in starts]
    outside = np.array([-1, len(flat)])
    assert tokens.take(outside).tolist() == [flat[0], flat[-1]]


@pytest.mark.parametrize("max_shard_tokens", [50, 10**6])
@pytest.mark.parametrize("width", [1, 12, 10**4])
def test_windows_are_the_tokens_from_their_starts_on(
    tmp_path: Path, documents: list, max_shard_tokens: int, width: int
) -> None:
    """Also over the ends of files, and behind both ends of the text."""
    tokens = write(tmp_path, documents, max_shard_tokens=max_shard_tokens).tokens
    starts = np.arange(-3, len(tokens) + 3).reshape(2, -1)
    windows = tokens.windows(starts, width)
    assert windows.dtype == np.uint16
    assert (windows == tokens.take(starts[..., None] + np.arange(width))).all()


def test_a_file_that_was_begun_for_nothing_is_never_read() -> None:
    """Behind a full file another one begins, though all that follows may be held out."""
    empty = np.empty(0, dtype=np.uint16)
    tokens = TokenStream([np.array([7, 8], dtype=np.uint16), empty])
    assert tokens.take(np.arange(-1, 4)).tolist() == [7, 7, 8, 8, 8]
    assert tokens.windows(np.arange(-1, 2), 2).tolist() == [[7, 7], [7, 8], [8, 8]]


def test_dtype_follows_the_vocabulary() -> None:
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32


# What is refused


def test_an_unfinished_folder_does_not_open(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        ShardWriter(tmp_path, vocab_size=9, source_names=["one"]) as writer,
    ):
        writer.add(np.array([1, 2]), np.array([2]), np.array([1]), np.array([0]), np.array([0]))
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match=r"shards.json is missing; run the prepare stage"):
        TokenShards.open(tmp_path)


OFFSETS = "sentence_offsets.bin"
DAMAGES: dict[str, Callable[[Path], object]] = {
    rf"{OFFSETS} has \d+ bytes instead of": lambda folder: (folder / OFFSETS).write_bytes(b"1"),
    f"{OFFSETS} is missing": lambda folder: (folder / OFFSETS).unlink(),
    "damaged": lambda folder: (folder / "shards.json").write_text("{"),
}


@pytest.mark.parametrize(("sentence", "damage"), DAMAGES.items())
def test_a_damaged_folder_does_not_open(
    tmp_path: Path, documents: list[Any], sentence: str, damage: Callable[[Path], object]
) -> None:
    write(tmp_path, documents)
    damage(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        TokenShards.open(tmp_path)
