"""Files that a URL names, read through fsspec: `s3://`, `gs://`, `hf://`, `https://` and others.

A remote file is streamed as a file on disk is: in constant memory, packed or not. Retries are
fsspec's. Credentials are the store's own affair (environment variables, its configuration files).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias
from urllib.parse import urlsplit

from clozelab.text.plain import PlainMapping

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BLOCK_BYTES = 2**23  # of one request; some stores would take 50 MiB
HUB_URLS = ("hf://", "https://huggingface.co/")
# what stores call the mark of a content, and the time of its last change
CHECKSUMS = ("sha256", "md5Hash", "ETag", "etag", "blob_id", "Content-MD5", "crc32c", "CRC")
TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "created")


class RemoteError(ValueError):
    """A store did not give what it was asked for; the next time it may."""


class _RemoteFile:
    """A file of a store, whose errors name it."""

    def __init__(self, file: BinaryIO, url: str) -> None:
        self._file = file
        self._url = url

    def read(self, size: int = -1) -> bytes:
        with named_errors(self._url):
            return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclass(frozen=True)
class RemotePath:
    """A file of an object store: what the readers need of a pathlib.Path.

    `version` is the mark that the store gives to the file's content: its ETag, the hub's blob, a
    checksum, or the time of its last change. It comes with the listing, so that a file is known
    without being read.
    """

    url: str
    size: int
    version: str
    store: AbstractFileSystem = field(repr=False, compare=False)
    key: str = field(repr=False, compare=False)  # what the store calls it

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[BinaryIO]:
        """A stream of its bytes, which can also be read at any place.

        ValueError names the file where it cannot be read, or has changed since it was listed.
        """
        with named_errors(self.url):
            with self.store.open(self.key, mode, block_size=BLOCK_BYTES) as opened:
                file: Any = _RemoteFile(opened, self.url)
                yield file
            self.store.invalidate_cache()
            if _size_and_version(self.store.info(self.key)) != (self.size, self.version):
                raise ValueError(
                    f"{self.url} was changed while this command read it: run the command again"
                )


FilePath: TypeAlias = Path | RemotePath


def is_url(text: str) -> bool:
    """Whether a path names a file through fsspec; `file://` is a path of this machine."""
    return "://" in text and not text.startswith("file://")


def file_size(path: FilePath) -> int:
    """Bytes of a file as it is stored."""
    if isinstance(path, RemotePath):
        return path.size
    return path.stat().st_size


def may_match(path: PurePath, glob: PurePath) -> bool:
    """Whether a glob may find this path: as in a shell, what is hidden only by a dot of its own."""
    named = [part for part in glob.parts if part.startswith(".")]
    for part in path.parts:
        if part.startswith(".") and not any(fnmatch(part, name) for name in named):
            return False
    return True


def remote_files(url: str) -> tuple[dict[str, RemotePath], bool]:
    """The file of a URL, all files below a folder, or those of a glob, by their names.

    Also whether the URL is a folder; then a name is the relative path. Empty where there is
    nothing. ValueError: a store that cannot be asked, a package that is missing, or a file that
    nothing tells from a changed one.
    """
    _refuse_offline(url)
    import fsspec  # here: only who reads such a file pays
    from fsspec.core import has_magic

    with named_errors(url):
        store, key = fsspec.url_to_fs(url)
        store.invalidate_cache()
        # A web server lists no folders, and its addresses have other question marks.
        if url.startswith(("http://", "https://")):
            listed = {key: store.info(key)}
        elif has_magic(key):
            listed = _matching_files(store, key)
        else:
            listed = store.find(key, detail=True)
        files = _files_of(store, listed)
    is_folder = key not in listed and not has_magic(key)
    if is_folder:
        names = {file.key.removeprefix(key).lstrip("/"): file for file in files}
        # as on disk, nothing that is hidden
        return {name: file for name, file in names.items() if "/." not in f"/{name}"}, True
    names = {file.name: file for file in files}
    # Where folders hold files of one name, the folders tell them apart.
    if len(names) < len(files):
        names = {file.key: file for file in files}
    return names, False


def _matching_files(store: AbstractFileSystem, glob: str) -> dict[str, PlainMapping]:
    """What a store lists for a glob, without what is hidden."""
    listed = {}
    for key, info in store.glob(glob, detail=True).items():
        if may_match(PurePosixPath(key), PurePosixPath(glob)):
            listed[key] = info
    return listed


def _files_of(store: AbstractFileSystem, listed: Mapping[str, PlainMapping]) -> list[RemotePath]:
    """The files among what a store has listed, by its own names."""
    files = []
    for key, info in listed.items():
        if info["type"] == "file":
            size, version = _size_and_version(info)
            files.append(RemotePath(store.unstrip_protocol(key), size, version, store, key))
    return files


def _size_and_version(info: PlainMapping) -> tuple[int, str]:
    """What tells a file of a store from a changed one; OSError where nothing does."""
    mark = next((info[key] for key in CHECKSUMS + TIMES if info.get(key)), None)
    if mark is None or info.get("size") is None:
        raise OSError("its server does not give both a size and an ETag, so fetch it to disk first")
    if isinstance(mark, datetime):
        mark = mark.timestamp()
    return int(str(info["size"])), str(mark)


def _refuse_offline(url: str) -> None:
    if not any(place in url for place in HUB_URLS):
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise ValueError(
            f"{url} is on the Hugging Face hub, and HF_HUB_OFFLINE is set: unset it, or name files"
            " of this machine"
        )


@contextmanager
def named_errors(place: str) -> Iterator[None]:
    """Every error as a RemoteError that names the place: stores have errors of all kinds."""
    try:
        yield
    except ImportError as problem:
        raise ValueError(f"{place} needs a package that is not installed: {problem}") from problem
    except Exception as problem:
        if isinstance(problem, ValueError) and place in str(problem):
            raise
        error: BaseException = problem
        # A server that does not answer counts for fsspec as one without the file.
        if type(problem) is FileNotFoundError and problem.__cause__ is not None:
            error = problem.__cause__
        first_line = str(error).partition("\n")[0]
        reason = f"{type(error).__name__}: {first_line}"
        raise RemoteError(f"{place} cannot be read ({reason})") from problem
