"""Locks between processes that want to write the same folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)


CACHE_REMEDY = (
    "set cache_dir, or the environment variable CLOZELAB_CACHE, to a folder that can be written"
)


@contextmanager
def exclusive_lock(
    path: Path, *, lock_file: Path | None = None, remedy: str = CACHE_REMEDY
) -> Iterator[None]:
    """Hold back other processes that want to write a folder or a file.

    Who waits finds the work of the first one done. The lock ends with the process that holds it;
    one that hangs is waited for, and that is said.

    Args:
        path: what is written.
        lock_file: None: a hidden file beside it.
        remedy: what to do where nothing can be written.

    ValueError where nothing can be written.
    """
    if lock_file is None:
        lock_file = path.with_name(f".{path.name}.lock")
    lock = FileLock(lock_file)
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process is writing %s; waiting for it", path)
        lock.acquire()
    except OSError as error:
        raise ValueError(
            f"cannot write below {lock_file.parent} ({error.strerror}): {remedy}"
        ) from error
    try:
        yield
    finally:
        lock.release()
