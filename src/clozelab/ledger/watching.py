"""Which files a run reads, and whether they are still as they were: by size and time, without opening one.

Used only to skip a complete run, so every doubt is a reason to let the run look for itself.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from clozelab.data.text_files import matching_files
from clozelab.ledger.fingerprint import canonical, flatten

MAX_WATCHED_FILES = 500
UNWATCHED = "(not all files can be watched)"
"""Stands in for the files where they are too many or not to be found: then only the run itself can say more."""


def watched_files(config: DictConfig) -> dict[str, list[int]]:
    """Size and time of every file that the configuration names: {path: [bytes, nanoseconds]}.

    A corpus' sources are what reading the corpus takes them for. Every other text may name a file, a folder or a glob,
    below data_dir or from where the command was started.
    """
    plain = canonical(config, hides=False)
    data_dir = str(config.get("data_dir") or "")
    sources = _take_sources(plain)
    found: dict[str, list[int]] = {}
    try:
        for path in (*_paths(sources, _texts(plain), data_dir), *_encoder(config)):
            status = path.stat()
            found[str(path)] = [status.st_size, status.st_mtime_ns]
            if len(found) > MAX_WATCHED_FILES:
                return {UNWATCHED: [-1, -1]}
    except (OSError, RuntimeError, ValueError):  # no such source, nobody's "~", no pattern, a file that just went
        return {UNWATCHED: [-1, -1]}
    return dict(sorted(found.items()))


def are_untouched(watched: Mapping[str, list[int]], state: Mapping[str, Any]) -> bool:
    """Whether the files are surely those that a run's record names, as they were then."""
    return UNWATCHED not in watched and state.get("watched") == watched


def _take_sources(plain: dict[str, Any]) -> list[str]:
    """The paths of the corpus' sources, out of the configuration."""
    corpus = plain.get("corpus")
    sources = corpus.pop("sources", None) if isinstance(corpus, dict) else None
    return [str(source["path"]) for source in sources or []]


def _texts(plain: dict[str, Any]) -> Iterator[str]:
    """Every other text that may name an input, also one from the environment."""
    parts = {key: value for key, value in plain.items() if key != "optimizer"}
    yield from (value for value in flatten(parts).values() if isinstance(value, str) and value)


def _encoder(config: DictConfig) -> Iterator[Path]:
    """Files of the encoder's folder, which may be called by a plain word."""
    if folder := config.get("encoder"):
        yield from _files_of(str(Path(str(folder)).expanduser()))


def _paths(sources: list[str], texts: Iterator[str], data_dir: str) -> Iterator[Path]:
    """Raises ValueError for a source of no file."""
    for source in sources:
        files, _ = matching_files(source, data_dir)
        if not files:
            raise ValueError(f"{source}: no such files")
        yield from files.values()
    for text in texts:
        for base in [""] if text.startswith("/") else ["", data_dir]:
            name = str(Path(base, os.path.expanduser(text)))  # noqa: PTH111 - pathlib's raises for nobody's "~"
            if os.path.isfile(name):  # noqa: PTH113 - pathlib's raises for a text too long for a name
                yield Path(name)
            elif "/" in text or "." in text:  # a plain word is no folder that somebody means
                yield from _files_of(name)


def _files_of(name: str) -> Iterator[Path]:
    """Files that a folder holds or a glob finds."""
    # pathlib has no glob that starts at an absolute pattern
    for place in map(Path, glob.glob(name) if glob.has_magic(name) else [name]):  # noqa: PTH207
        if place.is_file():
            yield place
        elif place.is_dir():
            yield from (child for child in place.rglob("*") if child.is_file())
