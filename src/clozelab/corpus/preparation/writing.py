"""The tokens of all shards, put together to the files that training reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from clozelab.corpus.preparation.shard_files import read_arrays
from clozelab.corpus.shards import SPLITS, ShardWriter
from clozelab.corpus.steps.step import Arrays

# A file of tokens ends with the document that completes so many characters, so that files are the
# same for any shards.
BATCH_CHARACTERS = 1_000_000


def write_tokens(
    folder: Path, tokens: Iterable[Path], vocab_size: int, source_names: Sequence[str]
) -> dict[str, ShardWriter]:
    """Write train/ and validation/ from the shards' tokens, in order; returns their writers."""
    writers = {}
    for side in SPLITS:
        writers[side] = ShardWriter(folder / side, vocab_size=vocab_size, source_names=source_names)
    with writers["train"], writers["validation"]:
        for pieces, begins_batch in _pieces(tokens):
            for side, writer in writers.items():
                writer.add(**pieces[side], can_begin_file=begins_batch)
    return writers


def _pieces(tokens: Iterable[Path]) -> Iterator[tuple[dict[str, Arrays], bool]]:
    """(side -> its tokens, whether they begin a batch) of some documents at a time.

    A piece ends where a batch of BATCH_CHARACTERS or a shard does.
    """
    first_document = size = 0
    for path in tokens:
        arrays = read_arrays(path)
        begins_batch = size == 0
        ends = []
        for document, characters in enumerate(arrays["characters"].tolist(), start=1):
            size += characters
            if size >= BATCH_CHARACTERS:
                ends.append(document)
                size = 0
        num_documents = len(arrays["characters"])
        if num_documents not in (0, *ends[-1:]):
            ends.append(num_documents)
        bounds = first_document + np.array(ends, dtype=np.int64)
        sides = [_cut_side(arrays, side, bounds) for side in SPLITS]
        for pieces in zip(*sides, strict=True):
            yield dict(zip(SPLITS, pieces, strict=True)), begins_batch
            begins_batch = True
        first_document += num_documents


def _cut_side(arrays: Arrays, side: str, bounds: np.ndarray) -> Iterator[Arrays]:
    """A side's tokens up to the document of each bound: the arguments of `ShardWriter.add`."""
    ids, sentences, documents, sources, origins = (
        arrays[f"{side}.{name}"] for name in ("ids", "sentences", "documents", "sources", "origins")
    )
    # Where the parts of documents, their sentences and their tokens end.
    document_ends = np.searchsorted(origins, bounds)
    sentence_ends = np.append(0, np.cumsum(documents))[document_ends]
    token_ends = np.append(0, np.cumsum(sentences))[sentence_ends]
    pieces = {
        "ids": np.split(ids, token_ends),
        "sentences": np.split(sentences, sentence_ends),
        "documents": np.split(documents, document_ends),
        "sources": np.split(sources, document_ends),
        "origins": np.split(origins, document_ends),
    }
    for number in range(len(bounds)):  # nothing is left behind the last bound
        yield {name: split[number] for name, split in pieces.items()}
