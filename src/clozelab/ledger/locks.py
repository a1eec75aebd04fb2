"""Who works in a run folder, asked without touching its lock.

Taking the lock to see whether it is free could refuse a run that starts at this very moment. Linux lists every held
lock in /proc/locks; elsewhere, and for another machine's processes on a shared file system, the answer is unknown.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_FILE = ".lock"
BUSY_STATUS = os.EX_TEMPFAIL
"""Exit status of a command whose run folder another process holds: try again later."""
_PROC_LOCKS = Path("/proc/locks")


def can_tell() -> bool:
    """Whether this machine says who holds a lock."""
    return _PROC_LOCKS.is_file()


def holders() -> dict[tuple[int, int, int], int]:
    """(device major, device minor, inode) -> process id, of every file that this machine holds a flock on."""
    found: dict[tuple[int, int, int], int] = {}
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


def holder(folder: Path, held: dict[tuple[int, int, int], int] | None = None) -> int | None:
    """Process id of who holds a run folder's lock; None where nobody does, or it cannot be told.

    `held` is an answer of `holders`, for asking about many folders at once. Process 0 is one of another container.
    """
    try:
        status = (folder / LOCK_FILE).stat()
    except OSError:
        return None
    held = holders() if held is None else held
    found = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    if found is not None:
        return found
    # Some file systems show programs another device number than the kernel's own list has.
    same_inode = [pid for (_, _, inode), pid in held.items() if inode == status.st_ino]
    return next((pid for pid in same_inode if _has_open(pid, folder / LOCK_FILE)), None)


def _has_open(pid: int, path: Path) -> bool:
    wanted = str(path.resolve())
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if str(link.readlink()) == wanted:
                return True
        except OSError:
            continue
    return False


@contextmanager
def owned(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock while inside; yields False, and holds nothing, where somebody else has it."""
    try:
        lock = (folder / LOCK_FILE).open("a", encoding="utf-8")
    except FileNotFoundError:
        yield True  # the folder itself has gone
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
