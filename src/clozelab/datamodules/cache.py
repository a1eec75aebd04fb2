"""Arrays kept between runs in a content-addressed folder: whole or absent, and checked when read.

A folder holds one `.npy` file an array and `meta.json` with their checksums and the facts that came with them. It is
written beside its place and renamed, so a killed run leaves nothing half-written under the real name. A folder that
does not match its checksums is built anew with a warning: the cache never decides a result.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]
Facts = dict[str, Any]
_used: set[str] = set()


def content_key(parts: Mapping[str, Any]) -> str:
    """16 hex digits that name everything which decides the content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def used_folders() -> list[str]:
    """Names of the cache folders that this process has asked for: what a run's record may say it refers to."""
    return sorted(_used)


def cached_arrays(folder: Path, build: Callable[[], tuple[Arrays, Facts]]) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`, built and stored first where they are missing or damaged."""
    built: Arrays = {}

    def write(target: Path) -> Facts:
        arrays, facts = build()
        built.update(arrays)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array, allow_pickle=False)
        return facts

    facts = cached_folder(folder, write)
    return built or {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")}, facts


def cached_folder(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    """The facts of `folder`, which then holds whole and checked `.npy` files.

    Where it is missing or damaged, `write` first fills an empty folder with them: for arrays that do not fit in memory.
    """
    _used.add(f"{folder.parent.name}/{folder.name}")
    if folder.is_dir():
        try:
            return _checked_facts(folder)
        except (OSError, ValueError, KeyError) as problem:
            log.warning("cached task data in %s is damaged (%s); building it anew", folder, problem)
            shutil.rmtree(folder, ignore_errors=True)
    return _write(folder, write)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold back other processes that want the same: who waits finds the work of the first one done."""
    folder.mkdir(parents=True, exist_ok=True)
    # A file beside it, open for writing: network file systems lock nothing else.
    with (folder.parent / f".{folder.name}.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _checked_facts(folder: Path) -> Facts:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    for name, checksum in meta["checksums"].items():
        if file_sha256(folder / f"{name}.npy") != checksum:
            raise ValueError(f"checksum of {name}.npy")
    return meta["facts"]


def _write(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        facts = write(temporary)
        checksums = {path.stem: file_sha256(path) for path in sorted(temporary.glob("*.npy"))}
        meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1, sort_keys=True)
        (temporary / "meta.json").write_text(meta, encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
        temporary.rename(folder)
        return facts
    except OSError:
        if not folder.is_dir():  # else another process was faster with the same content
            raise
        return _checked_facts(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
