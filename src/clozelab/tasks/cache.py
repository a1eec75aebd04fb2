"""What the cache keeps of a task's data.

A cache folder is named by what decides its content. It holds files and `meta.json` with their
checksums and the facts that came with them, and is whole or absent. One that does not match its
checksums is built anew with a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path

import numpy as np

from clozelab.files.digests import file_sha256
from clozelab.files.locks import exclusive_lock
from clozelab.text.plain import JsonObject, PlainMapping, read_json

log = logging.getLogger(__name__)

WARNINGS = "warnings"  # among a cache folder's facts: what building it warned of
SOURCE = "{source}"  # stands there for the name of the file
_used: set[str] = set()  # cache folders that this process has asked for
Arrays = dict[str, np.ndarray]
Facts = JsonObject


def fingerprint_of(parts: PlainMapping) -> str:
    """sha256 of plain values, whatever their order."""
    text = json.dumps(parts, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()


def content_key(parts: PlainMapping) -> str:
    """16 hex digits that name everything which decides the content."""
    return fingerprint_of(parts)[:16]


def used_folders() -> list[str]:
    """Names of the cache folders that this process has asked for.

    A run's record may say that it refers to them.
    """
    return sorted(_used)


@contextmanager
def collected_warnings() -> Iterator[list[logging.LogRecord]]:
    """The package's warnings meanwhile.

    They are logged as ever; a log that is off stays off.
    """
    logger = logging.getLogger("clozelab")
    level = logger.level
    propagate = logger.propagate
    collector = BufferingHandler(capacity=sys.maxsize)
    collector.setLevel(logging.WARNING)
    logger.addHandler(collector)
    if not logger.isEnabledFor(logging.WARNING):
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield collector.buffer
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
        logger.propagate = propagate


def cached_arrays(
    folder: Path, source: Path, build: Callable[[], tuple[Arrays, Facts]]
) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`.

    They are built and stored first where they are missing or damaged. What building them warned of
    is said again where they are read; `source` is the file that it is about.
    """
    built: Arrays = {}

    def write(target: Path) -> Facts:
        with collected_warnings() as records:
            arrays, facts = build()
        built.update(arrays)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array, allow_pickle=False)
        # The folder serves any file of this content, so it holds no file's name.
        texts = [record.getMessage().replace(str(source), SOURCE) for record in records]
        return facts | {WARNINGS: texts}

    facts = cached_folder(folder, write)
    warnings = facts.pop(WARNINGS, [])
    # What was just built need not be read again.
    if built:
        return built, facts
    for text in warnings:
        log.warning("%s", text.replace(SOURCE, str(source)))
    arrays = {}
    for path in folder.glob("*.npy"):
        arrays[path.stem] = np.load(path, allow_pickle=False)
    return arrays, facts


def cached_folder(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    """The facts of `folder`, whose files are then whole.

    Where it is missing or damaged, `write` fills an empty one.
    """
    _used.add(f"{folder.parent.name}/{folder.name}")
    facts = _checked_facts(folder)
    if facts is not None:
        return facts
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder.parent):
        # Another process may have written it while this one waited.
        facts = _checked_facts(folder)
        if facts is not None:
            return facts
        if folder.is_dir():
            log.warning("cached task data in %s is damaged; building it anew", folder)
            shutil.rmtree(folder, ignore_errors=True)
        # A folder is whole or absent: it is filled under another name, and renamed when complete.
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            facts = write(temporary)
            _write_meta(temporary, facts)
            temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
            temporary.rename(folder)
            return facts
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _write_meta(folder: Path, facts: Facts) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {}
    for path in files:
        checksums[path.relative_to(folder).as_posix()] = file_sha256(path)
    meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1)
    (folder / "meta.json").write_text(meta, encoding="utf-8")


def _checked_facts(folder: Path) -> Facts | None:
    """None where the folder is missing or does not match its checksums."""
    try:
        meta = read_json(folder / "meta.json")
        for name, checksum in meta["checksums"].items():
            if file_sha256(folder / name) != checksum:
                return None
        return meta["facts"]
    except (OSError, ValueError, KeyError):
        return None
