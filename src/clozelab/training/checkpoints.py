"""What a run needs to stop anywhere and go on to the same bits: checkpoints, a position, seeds.

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

LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
BEST = "best.ckpt"
# The tail of a file: magic, payload length, sha256.
_MAGIC = b"CLOZECK1"
_TAIL = struct.Struct("<8sQ32s")
_CHUNK = 4 * 2**20


class CheckpointCorruptError(ValueError):
    """The file is not what was written: truncated, foreign, or its checksum differs."""


class CheckpointNotSavedError(OSError):
    """There is no room, or the file cannot be written; what was saved before is as it was."""


# What torch.save writes: tensors and plain values by names, as Lightning has them.
Checkpoint = dict[str, Any]


def save_file(content: Checkpoint, path: Path, previous: Path | None = None) -> None:
    """Writes `content` to `path` in one rename; what was there becomes `previous`, or goes.

    Raises CheckpointNotSavedError, on a full disk before anything is written; what was there then
    stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _fresh_temporary(path)
    needed = size_of(content)
    try:
        if shutil.disk_usage(path.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _write_with_tail(content, temporary)
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
    # The rename itself is on the disk once the folder is.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _fresh_temporary(path: Path) -> Path:
    """A hidden name beside `path`; those of processes that were killed are removed."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _write_with_tail(content: Checkpoint, path: Path) -> None:
    """The file, its tail behind it, and all of it on the disk."""
    with path.open("w+b") as stream:
        torch.save(content, stream)
        length = stream.tell()
        stream.seek(0)
        digest = hashlib.file_digest(stream, "sha256").digest()  # which reads to the end
        stream.write(_TAIL.pack(_MAGIC, length, digest))
        stream.flush()
        os.fsync(stream.fileno())


def size_of(content: object) -> int:
    """Bytes that torch.save makes of it, and a little more."""
    leaves = tree_leaves(content)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    # Tensors that share their memory are saved once.
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    texts = sum(len(leaf) for leaf in leaves if isinstance(leaf, str))
    return sum(storages.values()) + texts + 1024 * len(tensors) + 128 * len(leaves) + 2**16


def keep_best(path: Path) -> None:
    """Lets BEST be what `path` is now: another name of the same file.

    It is a copy where a disk knows no such thing.
    """
    best = path.with_name(BEST)
    # Of two names of one file neither replaces the other: the temporary one would stay.
    if best.exists() and best.samefile(path):
        return
    temporary = _fresh_temporary(best)
    try:
        temporary.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, temporary)
    temporary.replace(best)


def newest_intact(folder: Path, *, set_aside: bool = True) -> Path | None:
    """The checkpoint to go on from; None without any.

    It is the last or, where that is damaged, the one before or the best. Rank zero puts a damaged
    one aside, so that no save keeps it as the one before. ValueError where all are damaged.
    """
    damaged = {}
    for path in (folder / LAST, folder / PREVIOUS, folder / BEST):
        if not path.exists():
            continue
        try:
            verify_file(path)
        except (CheckpointCorruptError, OSError) as error:
            damaged[path] = error
            continue
        for bad_path, reason in damaged.items():
            log.warning("%s: it is passed over", reason)
            if set_aside and process_rank() == 0:
                bad_path.replace(f"{bad_path}.damaged")
        return path
    if damaged:
        reasons = "; ".join(map(str, damaged.values()))
        raise CheckpointCorruptError(
            f"{reasons}; no whole one is left: restore one, or remove {folder} to begin anew"
        )
    return None


def load_file(path: Path, map_location: Any = "cpu") -> Checkpoint:
    """Reads a checkpoint after checking its checksum; tensors and plain values only.

    No pickled code is run. Raises FileNotFoundError, or CheckpointCorruptError saying what differs.
    """
    verify_file(path)
    return torch.load(path, map_location=map_location, weights_only=True)


def verify_file(path: Path) -> None:
    """Raise CheckpointCorruptError unless the file's tail is there and its checksum is right."""
    # In pieces: a checkpoint may be larger than the memory.
    length = path.stat().st_size - _TAIL.size
    sha256 = hashlib.sha256()
    with path.open("rb") as stream:
        for start in range(0, length, _CHUNK):
            sha256.update(stream.read(min(_CHUNK, length - start)))
        tail = stream.read()
    expected = _TAIL.pack(_MAGIC, max(0, length), sha256.digest())
    # All but the checksum tells a cut or foreign file from a damaged one.
    if tail[:-32] != expected[:-32]:
        raise CheckpointCorruptError(f"{path} is truncated or was not written by clozelab")
    if tail != expected:
        raise CheckpointCorruptError(f"{path}: the checksum differs from the one it was saved with")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's door to `save_file` and `load_file`; only rank zero is asked to save."""

    def save_checkpoint(
        self, checkpoint: Checkpoint, path: str | Path, storage_options: object = None
    ) -> None:
        save_file(checkpoint, Path(path), Path(path).with_name(PREVIOUS))

    def load_checkpoint(
        self, path: str | Path, map_location: object = None, weights_only: object = None
    ) -> Checkpoint:
        return load_file(Path(path), map_location or "cpu")


def set_position(trainer: Trainer, step: int, epoch: int) -> None:
    """Makes `trainer` count from optimizer step `step`, while a checkpoint is being restored.

    `epoch`: how many are over, for a Trainer that counts them.
    """
    if trainer.max_epochs not in (None, -1):
        epochs: Any = trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.started = epochs.processed = epochs.completed = epoch
    loop = trainer.fit_loop.epoch_loop
    for steps in (
        loop.manual_optimization.optim_step_progress.total,
        loop.automatic_optimization.optim_progress.optimizer.step.total,
    ):
        steps.ready = steps.completed = step
    batches: Any = loop.batch_progress.total
    batches.ready = batches.started = batches.processed = batches.completed = step
    loop._batches_that_stepped = step


def count_step(trainer: Trainer) -> None:
    """Counts an optimizer step whose update is left out.

    For use inside a training step under manual optimisation.
    """
    # As Lightning counts around an optimizer's own step.
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def validation_is_due(trainer: Trainer, step: int) -> bool:
    """Whether Lightning validates after optimizer step `step`.

    It does at each interval, or else at an epoch's end; and at the end of the training.
    """
    if not trainer.enable_validation:
        return False
    if step == trainer.max_steps:
        return True
    interval = trainer.val_check_interval
    if isinstance(interval, int):
        return step % interval == 0
    return trainer.is_last_batch


_MASK = (1 << 64) - 1


def hash_combine(*numbers: int) -> int:
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
    _seed_generators(hash_combine(seed, step, rank, micro_index))


def seed_initialisation(seed: int) -> None:
    """Seed torch's generators before weights are drawn; the same on every rank."""
    _seed_generators(hash_combine(seed, -1))


def _seed_generators(bits: int) -> None:
    """torch.manual_seed, without the 1 to 2 ms a call for accelerators that are not there."""
    if has_accelerator():
        torch.manual_seed(bits >> 1)
    else:
        torch.default_generator.manual_seed(bits >> 1)


has_accelerator = cache(torch.accelerator.is_available)
