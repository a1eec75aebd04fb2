"""Checkpoints that are either whole or not there, and are never loaded with a flipped bit.

File layout: what torch.save writes, then a 48-byte tail: magic (8), payload length (8, little endian), sha256 of the
payload (32). zip readers ignore bytes behind the archive, so the file stays readable by plain torch.load. One file
means one rename: payload and checksum cannot belong to different saves. torch.save streams storage by storage into the
file, so nothing is held twice.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import hashlib
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.plugins import CheckpointIO

log = logging.getLogger(__name__)

_MAGIC = b"CLOZECK1"
_TAIL = struct.Struct("<8sQ32s")
_CHUNK = 4 * 2**20


class CheckpointCorruptError(ValueError):
    """The file is not what was written: truncated, foreign, or its checksum differs."""


class _HashingWriter:
    """The write-only file torch.save needs, hashing what passes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.sha256, self.length = stream, hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.sha256.update(view)
        self.length += view.nbytes
        self.stream.write(view)
        return view.nbytes

    def flush(self) -> None:
        self.stream.flush()

    def tail(self) -> bytes:
        return _TAIL.pack(_MAGIC, self.length, self.sha256.digest())


def save_file(content: dict[str, Any], path: Path) -> None:
    """Write `content` to `path` atomically: temporary file in the same folder, fsync, rename, fsync of the folder.

    On any error (a full disk, for one) the temporary file is removed and the old checkpoint stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            writer = _HashingWriter(stream)
            torch.save(content, writer)  # type: ignore[arg-type]
            stream.write(writer.tail())
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)
    _remove_leftovers(path)


def load_file(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint after checking its checksum; tensors and plain values only (no pickled code).

    Raises FileNotFoundError, or CheckpointCorruptError saying what differs.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    verify_file(path)
    return torch.load(path, map_location=map_location, weights_only=True)


def verify_file(path: Path) -> None:
    """Raise CheckpointCorruptError unless the file's tail is there and its checksum is right."""
    advice = "; delete the file to start this run from its beginning, or restore it from a copy"
    size = path.stat().st_size
    if size < _TAIL.size:
        raise CheckpointCorruptError(f"{path} is truncated ({size} bytes){advice}")
    with path.open("rb") as stream:
        stream.seek(size - _TAIL.size)
        magic, length, expected = _TAIL.unpack(stream.read(_TAIL.size))
        if magic != _MAGIC or length != size - _TAIL.size:
            raise CheckpointCorruptError(f"{path} is truncated or was not written by clozelab{advice}")
        stream.seek(0)
        sha256 = hashlib.sha256()
        while length:
            chunk = stream.read(min(_CHUNK, length))
            sha256.update(chunk)
            length -= len(chunk)
    if sha256.digest() != expected:
        raise CheckpointCorruptError(f"{path}: the checksum differs from the one it was saved with{advice}")


def _fsync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files that a killed process left beside `path`."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


class AtomicCheckpointIO(CheckpointIO):
    """Lightning's door to `save_file` and `load_file`; only rank zero is asked to save."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if storage_options is not None:
            raise TypeError("storage_options are for remote file systems; checkpoints go to a local folder")
        save_file(checkpoint, Path(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Callable[..., Any] | str | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_file(Path(path), map_location or "cpu")

    def remove_checkpoint(self, path: str | Path) -> None:
        Path(path).unlink(missing_ok=True)
