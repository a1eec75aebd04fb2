"""Checksums: of a file's bytes, and of a JSON value."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TypedDict


def digest(value: object) -> str:
    """sha256 hex of a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes; of a folder, of the names and bytes of all files in it."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return digest({file.relative_to(path).as_posix(): file_sha256(file) for file in files})
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileFacts(TypedDict):
    """A file's size and checksum, as manifests name them."""

    size: int
    sha256: str


def file_facts(path: Path) -> FileFacts:
    """A file's size and checksum, as manifests name them."""
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}
