"""What a run needs to stop anywhere and go on to the same bits: whole checkpoints, a position, seeds from places.

A checkpoint is either whole or not there, and is never loaded with a flipped bit. File layout: what torch.save writes,
then a tail of 48 bytes: magic (8), payload length (8, little endian), sha256 of the payload (32). Plain torch.load
reads the file too. One file means one rename: payload and checksum cannot belong to different saves.

Lightning's loop counters are not restored: their meaning depends on the hook that saved them. Data, masks and dropout
are functions of the step, so the step is all there is to restore. Dropout in micro-batch m of step s on rank r draws
from torch's global generator seeded by (seed, s, r, m).
"""

from __future__ import annotations

import hashlib
import os
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

_MAGIC = b"CLOZECK1"
_TAIL = struct.Struct("<8sQ32s")
_CHUNK = 4 * 2**20


class CheckpointCorruptError(ValueError):
    """The file is not what was written: truncated, foreign, or its checksum differs."""


def save_file(content: dict[str, Any], path: Path) -> None:
    """Write `content` to `path` in one rename; on any error (a full disk, for one) what was there stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as stream:
            torch.save(content, stream)
            length = stream.tell()
            stream.seek(0)
            stream.write(_TAIL.pack(_MAGIC, length, hashlib.file_digest(stream, "sha256").digest()))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
        leftover.unlink(missing_ok=True)


def load_file(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint after checking its checksum; tensors and plain values only (no pickled code).

    Raises FileNotFoundError, or CheckpointCorruptError saying what differs.
    """
    verify_file(path)
    return torch.load(path, map_location=map_location, weights_only=True)


def verify_file(path: Path) -> None:
    """Raise CheckpointCorruptError unless the file's tail is there and its checksum is right."""
    advice = "; delete the file to start this run from its beginning, or restore it from a copy"
    length, sha256 = path.stat().st_size - _TAIL.size, hashlib.sha256()
    with path.open("rb") as stream:
        for start in range(0, length, _CHUNK):
            sha256.update(stream.read(min(_CHUNK, length - start)))
        tail = stream.read()
    expected = _TAIL.pack(_MAGIC, max(0, length), sha256.digest())
    if tail[:-32] != expected[:-32]:
        raise CheckpointCorruptError(f"{path} is truncated or was not written by clozelab{advice}")
    if tail != expected:
        raise CheckpointCorruptError(f"{path}: the checksum differs from the one it was saved with{advice}")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's door to `save_file` and `load_file`; only rank zero is asked to save."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        save_file(checkpoint, Path(path))

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: Any = None) -> dict[str, Any]:
        return load_file(Path(path), map_location or "cpu")


def set_position(trainer: Trainer, step: int) -> None:
    """Make `trainer` count from optimizer step `step`; for use while a checkpoint is being restored."""
    loop = trainer.fit_loop.epoch_loop
    for tracker in (
        loop.manual_optimization.optim_step_progress.total,
        loop.automatic_optimization.optim_progress.optimizer.step.total,
    ):
        tracker.ready = tracker.completed = step
    total: Any = loop.batch_progress.total
    total.ready = total.started = total.processed = total.completed = step
    loop._batches_that_stepped = step


def validation_is_due(trainer: Trainer, step: int) -> bool:
    """Whether Lightning validates after optimizer step `step`: at each interval or else epoch's end, and at the end."""
    if not trainer.enable_validation:
        return False
    interval = trainer.val_check_interval
    at_interval = step % interval == 0 if isinstance(interval, int) else trainer.is_last_batch
    return at_interval or step == trainer.max_steps


_MASK = (1 << 64) - 1


def mix(*numbers: int) -> int:
    """64 well-mixed bits of a sequence of integers (splitmix64 finaliser after each)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state = ((state ^ (state >> 31)) + 0x9E3779B97F4A7C15) & _MASK
    return state


def seed_forward(seed: int, step: int, rank: int, micro_index: int) -> None:
    """Seed torch's generators (CPU and every accelerator) for one forward and backward."""
    _seed_generators(mix(seed, step, rank, micro_index))


def seed_initialisation(seed: int) -> None:
    """Seed torch's generators before weights are drawn; the same on every rank."""
    _seed_generators(mix(seed, -1))


def _seed_generators(bits: int) -> None:
    """torch.manual_seed, without the 1 to 2 ms a call that it takes for accelerators that are not there."""
    (torch.manual_seed if has_accelerator() else torch.default_generator.manual_seed)(bits >> 1)


has_accelerator = cache(torch.accelerator.is_available)
