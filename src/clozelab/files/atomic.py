"""Files that are whole or not there: written beside their place, and put there in one rename."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
    """A file to write, put in its place in one rename at the end.

    So a reader never sees half of it.
    """
    # of this process alone: two may write the same file
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of these lines, whole or not at all."""
    with atomic_open(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def refuse_to_replace(to: Path) -> None:
    """ValueError for a file, or a folder that holds anything: what it holds would be gone."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ValueError(f"{to} is there; remove it, or give to= another name")
