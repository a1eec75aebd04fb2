"""Locks between processes that want to write the same folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Hold back other processes that want to write there.

    Who waits finds the work of the first one done. The lock ends with the process that holds it;
    one that hangs is waited for, and that is said. ValueError where nothing can be written.
    """
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        log.info("another process is writing %s; waiting for it", folder)
        lock.acquire()
    except OSError as error:
        raise ValueError(
            f"cannot write below {folder.parent} ({error.strerror}): set cache_dir, or the"
            " environment variable CLOZELAB_CACHE, to a folder that can be written"
        ) from error
    try:
        yield
    finally:
        lock.release()
