"""Who holds which folder: what keeps two processes out of one run.

A lock is the kernel's (flock, through `filelock`): a killed process loses it, and a forked child does not keep it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_FILE = ".lock"
BUSY_STATUS = os.EX_TEMPFAIL
"""Exit status of a command whose run folder another process holds: try again later."""
_PROC_LOCKS = Path("/proc/locks")
Held = dict[tuple[int, int, int], int]
"""(device major, device minor, inode) -> process id, of every locked file of this machine."""


def can_tell() -> bool:
    """Whether this machine says who holds a lock."""
    return _PROC_LOCKS.is_file()


def holders() -> Held:
    """Every file that a process of this machine holds a flock on."""
    found: Held = {}
    try:
        lines = _PROC_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        parts = line.split()
        if len(parts) >= 8 and parts[1] == "FLOCK":  # "->" in its place marks one that waits
            major, minor, inode = parts[5].split(":")
            found[int(major, 16), int(minor, 16), int(inode)] = int(parts[4])
    return found


def holder(folder: Path, held: Held | None = None) -> int | None:
    """Process id of who holds a run folder's lock; None where nobody does, or it cannot be told.

    `held` is an answer of `holders`, for asking about many folders at once. Process 0 is one of another container.
    """
    path = folder / LOCK_FILE
    try:
        status = path.stat()
    except OSError:
        return None
    held = holders() if held is None else held
    found = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    if found is not None:
        return found
    # Some file systems show programs another device number than the kernel's own list has.
    same_inode = [pid for (_, _, inode), pid in held.items() if inode == status.st_ino]
    return next((pid for pid in same_inode if _has_open(pid, path)), None)


def _has_open(pid: int, path: Path) -> bool:
    wanted = str(path.resolve())
    try:
        return any(_target(link) == wanted for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed since
        return ""


@contextmanager
def owned(lock_file: Path) -> Iterator[bool]:
    """Hold a lock file while inside; yields False, and holds nothing, where somebody else has it."""
    if not lock_file.parent.is_dir():
        yield True  # the folder itself has gone
        return
    lock = FileLock(lock_file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
