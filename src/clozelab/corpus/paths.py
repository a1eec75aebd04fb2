"""Files of a corpus by what a person calls them: a file, a folder, a glob."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from clozelab.readers.lines import file_suffix
from clozelab.readers.remote import FilePath, is_url, may_match, remote_files
from clozelab.readers.tables import COLUMNAR, table_format

log = logging.getLogger(__name__)

AnyPath = TypeVar("AnyPath", bound=FilePath)
# what a folder is searched for; a file or glob may have any
TEXT_SUFFIXES = (".txt", ".text", "", ".jsonl", ".ndjson")
# what the datasets library writes about a data set, beside its tables
DATASET_NOTES = ("dataset_dict.json", "dataset_info.json", "state.json")


def corpus_files(pattern: str, data_dir: str | Path) -> tuple[Mapping[str, FilePath], int]:
    """As `matching_files`; also the files that a URL names."""
    if not is_url(pattern):
        return matching_files(pattern, data_dir)
    files, is_folder = remote_files(pattern)
    if is_folder:
        return texts_of(files)
    return files, 0


def path_list(path: str | Sequence[str]) -> list[str]:
    """The paths of a source, which may be given as one text."""
    paths = [path] if isinstance(path, str) else path
    return [path.removeprefix("file://") for path in paths]


def place_of(pattern: str, data_dir: str | Path) -> str:
    """Where files were looked for, for messages."""
    if is_url(pattern):
        return pattern
    return f"{resolve_path(pattern, data_dir).absolute()}, nor from here"


def matching_files(pattern: str, data_dir: str | Path) -> tuple[dict[str, Path], int]:
    """Names and paths of a file, a folder's texts or a glob's files; none of them is opened.

    Below a folder the name is the relative path. The number is how many files of a folder are no
    texts by their suffix.
    """
    location = resolve_path(pattern, data_dir)
    if location.is_file():
        return {location.name: location}, 0
    if location.is_dir():
        return texts_of(files_below(location))
    # A glob is looked for below data_dir and then from here; an absolute one below its root alone.
    glob = Path(pattern).expanduser()
    bases = [Path(data_dir).expanduser(), Path()]
    if glob.is_absolute():
        bases = [Path(glob.anchor)]
        glob = glob.relative_to(glob.anchor)
    files = []
    for base in bases:
        found = _existing(base.glob(str(glob)))
        files = [path for path in found if may_match(path.relative_to(base), glob)]
        if files:
            break
    names = {path.name for path in files}
    if len(names) == len(files):
        return {path.name: path for path in files}, 0
    # Where folders hold files of one name, the folders tell them apart.
    return {path.relative_to(base).as_posix(): path for path in files}, 0


def files_below(folder: Path) -> dict[str, Path]:
    """All files of a folder that are not hidden, by their relative paths."""
    return {path.relative_to(folder).as_posix(): path for path in _existing(_walk(folder))}


def _existing(paths: Iterable[Path]) -> list[Path]:
    files = []
    for path in paths:
        if path.is_file():
            files.append(path)
        else:
            _warn_of_broken_link(path)
    return files


def texts_of(seen: Mapping[str, AnyPath]) -> tuple[dict[str, AnyPath], int]:
    """The texts of a folder's files, or the tables where there are no texts.

    The number is how many other files there are.
    """
    texts = dict[str, AnyPath]()
    tables = dict[str, AnyPath]()
    num_files = len(seen)
    for name, path in seen.items():
        if file_suffix(path) in TEXT_SUFFIXES:
            texts[name] = path
        elif table_format(path) is not None:
            tables[name] = path
        elif path.name in DATASET_NOTES:
            num_files -= 1
    # A table beside texts says something about them. But a LICENSE beside Parquet files is no text
    # of theirs.
    has_named_texts = any(file_suffix(path) for path in texts.values())
    has_columnar = any(table_format(path) in COLUMNAR for path in tables.values())
    if not texts or (has_columnar and not has_named_texts):
        return tables, num_files - len(tables)
    return texts, num_files - len(texts)


def _walk(folder: Path) -> Iterator[Path]:
    """All files below a folder, but nothing that is hidden.

    Links into other folders are followed, each folder once. ValueError for a folder that one may
    not look into: its texts would be lost without a word.
    """
    top = folder.resolve()
    visited = {top}
    for parent, folders, names in os.walk(folder, onerror=_refuse_forbidden, followlinks=True):
        # os.walk goes on into what is left in the list of folders.
        to_visit = []
        for name in sorted(folders):
            if not name.startswith(".") and _is_new(Path(parent, name), top, visited):
                to_visit.append(name)
        folders[:] = to_visit
        for name in names:
            if not name.startswith("."):
                yield Path(parent, name)


def _is_new(folder: Path, top: Path, visited: set[Path]) -> bool:
    """Whether nobody has been there.

    A link to a folder below `top` is not followed, for that has its own name.
    """
    real = folder.resolve()
    if real in visited or (folder.is_symlink() and real.is_relative_to(top)):
        return False
    visited.add(real)
    return True


def _refuse_forbidden(error: OSError) -> None:
    raise ValueError(
        f"{error.filename} cannot be looked into ({error.strerror}), so its texts would be lost:"
        " allow it, or name the others by a glob as path"
    ) from error


@cache
def _warn_of_broken_link(path: Path) -> None:
    """Once for each: planning, the pre-flight and the preparation all look into a folder."""
    if path.is_symlink() and not path.exists():
        log.warning(
            "%s is a link to nothing (%s): what it stood for is left out", path, path.readlink()
        )


def resolve_path(pattern: str, data_dir: str | Path) -> Path:
    """Below `data_dir`; where nothing is there, from the folder that one stands in."""
    from_here = Path(pattern).expanduser()
    from_data_dir = Path(data_dir).expanduser() / from_here
    if from_here.exists() and not from_data_dir.exists():
        return from_here
    return from_data_dir
