"""What every benchmark reader does with files: find them or say how to get them, name their content by checksum, and
know generated files, which have the official names and formats, from real ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from clozelab.data.microworld.world import MANIFEST


def require_file(data_dir: str | Path, relative: str, how_to_get: str) -> Path:
    """`data_dir/relative`, or a ValueError that names the file, the expected layout and where it comes from."""
    path = Path(data_dir) / relative
    if path.is_file():
        return path
    raise ValueError(
        f"benchmark file not found: {path}\n"
        f"  expected layout: data_dir/{relative} (data_dir is {Path(data_dir).absolute()}; set data_dir=FOLDER)\n"
        f"  how to get it: {' '.join(how_to_get.split())}"
    )


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def generator_of(data_dir: str | Path, paths: Iterable[Path]) -> str | None:
    """The generator that wrote any of these files, by the manifest it left in `data_dir`; None for real ones.

    Goes by content, so real files that have taken a generated file's place are real.
    """
    manifest = Path(data_dir) / MANIFEST
    if not manifest.is_file():
        return None
    try:
        checksums = set(json.loads(manifest.read_text(encoding="utf-8"))["sha256"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{manifest} is damaged ({problem}); delete it and what it describes, or restore it"
        ) from problem
    return manifest.stem if any(file_sha256(path) in checksums for path in paths) else None
