"""What every benchmark reader does with files: find them or say how to get them, and name their content by checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path


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
