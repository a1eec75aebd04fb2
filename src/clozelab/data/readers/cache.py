"""Arrays kept between runs in a content-addressed folder: whole or absent, and checked when read.

A folder holds one `.npy` file an array and `meta.json` with their checksums and the facts that came with them. It is
written beside its place and renamed, so a killed run leaves nothing half-written under the real name. A folder that
does not match its checksums is built anew with a warning: the cache never decides a result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.readers.files import file_sha256

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]
Facts = dict[str, Any]


def content_key(parts: Mapping[str, Any]) -> str:
    """16 hex digits that name everything which decides the content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def cached_arrays(folder: Path, build: Callable[[], tuple[Arrays, Facts]]) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`, built and stored first where they are missing or damaged."""
    if folder.is_dir():
        try:
            return _read(folder)
        except (OSError, ValueError, KeyError) as problem:
            log.warning("cached task data in %s is damaged (%s); building it anew", folder, problem)
            shutil.rmtree(folder, ignore_errors=True)
    arrays, facts = build()
    _write(folder, arrays, facts)
    return arrays, facts


def _read(folder: Path) -> tuple[Arrays, Facts]:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    arrays: Arrays = {}
    for name, checksum in meta["checksums"].items():
        path = folder / f"{name}.npy"
        if file_sha256(path) != checksum:
            raise ValueError(f"checksum of {path.name}")
        arrays[name] = np.load(path, allow_pickle=False)
    return arrays, meta["facts"]


def _write(folder: Path, arrays: Arrays, facts: Facts) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        checksums = {name: file_sha256(temporary / f"{name}.npy") for name in arrays}
        meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1, sort_keys=True)
        (temporary / "meta.json").write_text(meta, encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster with the same content
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
