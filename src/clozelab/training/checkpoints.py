"""What a run needs to stop anywhere and go on to the same bits: whole checkpoints, a position,
seeds from places.

A checkpoint is either whole or not there, and is never loaded with a flipped bit. A file is what
torch.save writes (and torch.load reads), then 48 bytes: magic (8), payload length (8, little
endian), sha256 of the payload (32). A folder keeps the last checkpoint, the one before it and the
best: a damaged one is passed over.

Lightning's loop counters are not restored: their meaning depends on the hook that saved them. Data,
masks and dropout are functions of the step, so the step is all there is to restore. Dropout in
micro-batch m of step s on rank r draws from torch's global generator seeded by (seed, s, r, m).
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import struct
from functools import cache
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from torch.utils._pytree import tree_leaves

from clozelab.training.host import process_rank

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

log = logging.getLogger(__name__)

LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"
_MAGIC = b"CLOZECK1"
_TAIL = struct.Struct("<8sQ32s")
_CHUNK = 4 * 2**20


class CheckpointCorruptError(ValueError):
    """The file is not what was written: truncated, foreign, or its checksum differs."""


class CheckpointNotSavedError(OSError):
    """There is no room, or the file cannot be written; what was saved before is as it was."""


def save_file(content: dict[str, Any], path: Path, previous: Path | None = None) -> None:
    """Write `content` to `path` in one rename; what was there becomes `previous`, or goes.

    Raises CheckpointNotSavedError, on a full disk before anything is written; what was there then
    stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed
        leftover.unlink(missing_ok=True)
    temporary, needed = path.with_name(f".{path.name}.{os.getpid()}.tmp"), size_of(content)
    try:
        if shutil.disk_usage(path.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with temporary.open("w+b") as stream:
            torch.save(content, stream)
            length = stream.tell()
            stream.seek(0)
            stream.write(_TAIL.pack(_MAGIC, length, hashlib.file_digest(stream, "sha256").digest()))
            stream.flush()
            os.fsync(stream.fileno())
        if previous is not None and path.exists():
            path.replace(previous)  # killed here, the one before is all there is, and it is whole
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of a failed write
        temporary.unlink(missing_ok=True)  # before the free bytes are counted
        cause = error if isinstance(error, OSError) else error.__context__
        reason = getattr(cause, "strerror", None) or str(error).partition("\n")[0]
        free = shutil.disk_usage(path.parent).free
        raise CheckpointNotSavedError(
            f"{path} is not saved ({reason}): it needs {needed:,} bytes, and {free:,} are free"
            " there; what was saved before stays, so make room and start the same command again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def size_of(content: Any) -> int:
    """Bytes that torch.save makes of it, and a little more."""
    leaves = tree_leaves(content)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    texts = sum(len(leaf) for leaf in leaves if isinstance(leaf, str))
    return sum(storages.values()) + texts + 1024 * len(tensors) + 128 * len(leaves) + 2**16


def keep_best(path: Path) -> None:
    """Let BEST be what `path` is now: another name of the same file, or a copy where a disk knows
    no such thing.
    """
    temporary = path.with_name(f".{BEST}.{os.getpid()}.tmp")
    try:
        temporary.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, temporary)
    temporary.replace(path.with_name(BEST))


def newest_whole(folder: Path, *, put_aside: bool = True) -> Path | None:
    """The checkpoint to go on from: the last or, where that is damaged, the one before or the best;
    None without any.

    Rank zero puts a damaged one aside, so that no save keeps it as the one before. ValueError where
    all are damaged.
    """
    damaged: dict[Path, Exception] = {}
    for path in (one for name in (LAST, PREVIOUS, BEST) if (one := folder / name).exists()):
        try:
            verify_file(path)
        except (CheckpointCorruptError, OSError) as error:
            damaged[path] = error
            continue
        for bad, why in damaged.items():
            log.warning(
                "%s: it is passed over%s", why, f", and now called {bad.name}.damaged" * put_aside
            )
            if put_aside and process_rank() == 0:
                bad.replace(f"{bad}.damaged")
        return path
    if damaged:
        said = "; ".join(map(str, damaged.values()))
        raise CheckpointCorruptError(
            f"{said}; no whole one is left: restore one, or remove {folder} to begin anew"
        )
    return None


def load_file(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint after checking its checksum; tensors and plain values only (no pickled
    code).

    Raises FileNotFoundError, or CheckpointCorruptError saying what differs."""
    verify_file(path)
    return torch.load(path, map_location=map_location, weights_only=True)


def verify_file(path: Path) -> None:
    """Raise CheckpointCorruptError unless the file's tail is there and its checksum is right."""
    length, sha256 = path.stat().st_size - _TAIL.size, hashlib.sha256()
    with path.open("rb") as stream:
        for start in range(0, length, _CHUNK):
            sha256.update(stream.read(min(_CHUNK, length - start)))
        tail = stream.read()
    expected = _TAIL.pack(_MAGIC, max(0, length), sha256.digest())
    if tail[:-32] != expected[:-32]:
        raise CheckpointCorruptError(f"{path} is truncated or was not written by clozelab")
    if tail != expected:
        raise CheckpointCorruptError(f"{path}: the checksum differs from the one it was saved with")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's door to `save_file` and `load_file`; only rank zero is asked to save."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        save_file(checkpoint, Path(path), Path(path).with_name(PREVIOUS))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: Any = None
    ) -> dict[str, Any]:
        return load_file(Path(path), map_location or "cpu")


def set_position(trainer: Trainer, step: int, epoch: int = 0) -> None:
    """Make `trainer` count from optimizer step `step`; for use while a checkpoint is being
    restored.

    `epoch`: how many are over, for a Trainer that counts them."""
    if trainer.max_epochs not in (None, -1):
        done: Any = trainer.fit_loop.epoch_progress.current
        done.ready = done.started = done.processed = done.completed = epoch
    loop = trainer.fit_loop.epoch_loop
    for tracker in (
        loop.manual_optimization.optim_step_progress.total,
        loop.automatic_optimization.optim_progress.optimizer.step.total,
    ):
        tracker.ready = tracker.completed = step
    total: Any = loop.batch_progress.total
    total.ready = total.started = total.processed = total.completed = step
    loop._batches_that_stepped = step


def count_step(trainer: Trainer) -> None:
    """Count an optimizer step whose update is left out; for use inside a training step under manual
    optimisation.
    """
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def validation_is_due(trainer: Trainer, step: int) -> bool:
    """Whether Lightning validates after optimizer step `step`: at each interval or else epoch's
    end, and at the end.
    """
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
    """torch.manual_seed, without the 1 to 2 ms a call that it takes for accelerators that are not
    there.
    """
    (torch.manual_seed if has_accelerator() else torch.default_generator.manual_seed)(bits >> 1)


has_accelerator = cache(torch.accelerator.is_available)
