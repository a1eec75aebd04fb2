"""The files between the passes of a preparation: one of a shard and a pass, whole or absent.

A file is an .npz archive of arrays, among them the facts (JSON) and the documents (their lines as
packed text). Who is killed goes on with the shards that have a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from clozelab.corpus.steps.step import Arrays, Document
from clozelab.corpus.utf8_texts import ENCODING, Utf8Texts
from clozelab.files.atomic import atomic_open
from clozelab.text.plain import PlainMapping

FACTS = "facts"
SURVEY = "survey."  # before the names of a step's arrays
TEXT = "text"
LEVEL = 1  # of compression: three times as fast as the usual 3, a tenth larger
DOCUMENT_ARRAYS = ("index", "source", "has_sentences", "num_lines")


def write_file(path: Path, arrays: Arrays, facts: PlainMapping) -> None:
    """Write arrays and facts as one file, in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(path) as file:
        content: dict[str, Any] = {**arrays, FACTS: _bytes_array(json.dumps(facts).encode())}
        np.savez(file, **content)


def read_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file, all or those that are named; others are not read."""
    with np.load(path) as archive:
        if names is None:
            names = [name for name in archive.files if name != FACTS]
        return {name: archive[name] for name in names}


def read_facts(path: Path) -> Any:
    """The facts of a file."""
    return json.loads(read_arrays(path, [FACTS])[FACTS].tobytes())


def _bytes_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


def pack_documents(documents: Sequence[Document]) -> dict[str, np.ndarray]:
    """Documents of a shard as arrays."""
    texts = ["\n".join(document.lines) for document in documents]
    index = [document.index for document in documents]
    source = [document.source for document in documents]
    num_lines = [text.count("\n") + 1 for text in texts]
    data = zstandard.compress("\n".join(texts).encode(*ENCODING), LEVEL)
    packed = {TEXT: _bytes_array(data)}
    packed["index"] = np.array(index, dtype=np.int64)
    packed["source"] = np.array(source, dtype=np.uint8)
    packed["has_sentences"] = np.array([document.has_sentences for document in documents], bool)
    packed["num_lines"] = np.array(num_lines, dtype=np.int64)
    return packed


def unpack_lines(arrays: Arrays) -> Utf8Texts:
    """The lines of all packed documents."""
    return Utf8Texts.of_lines(_unpack_text(arrays))


def _unpack_text(arrays: Arrays) -> bytes:
    """The lines of all packed documents, each with a line end."""
    if not len(arrays["num_lines"]):
        return b""
    return zstandard.decompress(arrays[TEXT].tobytes()) + b"\n"


def unpack_documents(shard: int, arrays: Arrays) -> Iterator[Document]:
    """The packed documents of a shard."""
    lines = _unpack_text(arrays).decode(*ENCODING).split("\n")
    start = 0
    columns = (arrays[name].tolist() for name in DOCUMENT_ARRAYS)
    for index, source, has_sentences, num_lines in zip(*columns, strict=True):
        yield Document(shard, index, source, lines[start : start + num_lines], has_sentences)
        start += num_lines


class SurveyFiles(Sequence[Arrays]):
    """The surveys of all shards in order, each read when it is asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SurveyFiles(self._paths[index])
        with np.load(self._paths[index]) as archive:
            names = [name for name in archive.files if name.startswith(SURVEY)]
            return {name.removeprefix(SURVEY): archive[name] for name in names}
