"""Text files of a corpus: finding them, naming their content, and reading their rows in constant memory.

A row is one line: one JSON object of a jsonl file, one sentence (or the blank between documents) of a text file. Files
may be gzip or zstd compressed. A row that cannot be used is counted by reason and skipped; too many end the run.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

log = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".zst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", "")  # what a folder is searched for besides jsonl; a file or glob may have any
CHUNK_BYTES = 2**20
MAX_EXPANSION, MIN_BOMB_BYTES = 200, 2**24  # a packed file may become so many times larger, or so large
SNIFFED_BYTES = 8192  # a NUL byte among the first ones means a binary file; a later one, a bad row
MAX_BAD_FRACTION = 0.01  # more unusable rows than this mean a wrong file, not dirt; one row is always forgiven
NAMED_BAD_ROWS = 20  # how many unusable rows the manifest names
MOST_FIELDS = 12  # of a jsonl row, that an error names
MIN_HEAD_ROWS = 10  # a beginning of fewer rows says nothing about a file

HOW_TO_GET = (
    "expected: plain text (.txt: one sentence a line, a blank line between documents), a folder of such files, or "
    "jsonl with a text field (.jsonl, .jsonl.gz, .jsonl.zst: one document a line). To get one: set data_dir to the "
    "folder your sources are relative to, or name your own text with corpus=text "
    "corpus.sources.0.path=FILE_FOLDER_OR_GLOB; corpus=microworld needs none"
)


def digest(value: Any) -> str:
    """sha256 hex of a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_facts(path: Path) -> dict[str, Any]:
    """A file's size and checksum, as manifests name them."""
    return {"size": path.stat().st_size, "sha256": file_sha256(path)}


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, put in its place in one rename at the end, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of these lines, whole or not at all."""
    with whole_file(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


@dataclass(frozen=True)
class Source:
    """One named part of a corpus."""

    name: str
    path: str  # a file, a folder or a glob; a relative one starts at the data directory
    format: str = "auto"  # auto (by file name) | text | jsonl
    text_field: str = "text"


@dataclass(frozen=True)
class TextFile:
    """One file of the source of this number, named without the machine's path; `format` is text or jsonl."""

    path: Path
    name: str
    source: int
    format: str
    text_field: str


@dataclass
class CorpusCounts:
    """What a pass over a corpus met: `bad` rows and `dropped` documents by reason, the first bad rows by place."""

    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: list[str] = field(default_factory=list)
    documents: int = 0
    sentences: int = 0
    characters: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def skipped(self) -> dict[str, int]:
        """Rows and documents that were not used, by reason."""
        return dict(sorted({**self.dropped, **self.bad}.items()))


def find_files(source: Source, index: int, data_dir: Path) -> list[TextFile]:
    """Files of one source in the order of their names; ValueError where there are none."""
    found, num_left_out = matching_files(source.path, data_dir)
    place = _place(source.path, data_dir)
    if num_left_out:
        log.warning("%s: %d files with other suffixes than text or jsonl are left out", place, num_left_out)
    if not found:
        raise ValueError(f"source {source.name}: no text files at {place.absolute()}, nor from here\n{HOW_TO_GET}")
    files = []
    for name, path in sorted(found.items()):
        by_name = "jsonl" if file_suffix(path) in JSONL_SUFFIXES else "text"
        text_format = by_name if source.format == "auto" else source.format
        files.append(TextFile(path, name, index, text_format, source.text_field))
    return files


def matching_files(pattern: str, data_dir: str | Path) -> tuple[dict[str, Path], int]:
    """Names (below a folder the relative path) and paths of a file, a folder's texts or a glob's files, none of them
    opened; and how many files of a folder are no texts by their suffix."""
    place = _place(pattern, data_dir)
    if place.is_file():
        return {place.name: place}, 0
    if place.is_dir():
        below = {path.relative_to(place): path for path in place.rglob("*") if path.is_file()}
        seen = {name: path for name, path in below.items() if not any(part.startswith(".") for part in name.parts)}
        texts = [name for name, path in seen.items() if file_suffix(path) in (*JSONL_SUFFIXES, *TEXT_SUFFIXES)]
        return {name.as_posix(): seen[name] for name in texts}, len(seen) - len(texts)
    base = Path(place.anchor if Path(pattern).expanduser().is_absolute() else data_dir).expanduser()
    files = [path for path in base.glob(str(place.relative_to(base))) if path.is_file()]
    unique = len({path.name for path in files}) == len(files)
    # Where folders hold files of one name, the folders tell them apart.
    return {path.name if unique else path.relative_to(base).as_posix(): path for path in files}, 0


def _place(pattern: str, data_dir: str | Path) -> Path:
    """Below `data_dir`; where nothing is there, from the folder that one stands in."""
    place, here = Path(data_dir).expanduser() / Path(pattern).expanduser(), Path(pattern).expanduser()
    return here if here.exists() and not place.exists() else place


def file_suffix(path: Path) -> str:
    """The last suffix that is not a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def check_head(file: TextFile) -> None:
    """ValueError for a binary or damaged file, and where most rows of its first chunk are unusable."""
    with file.path.open("rb") as raw:
        *lines, _ = next(_chunks(file.path, raw), b"").split(b"\n")  # the last one may be cut
    counts = CorpusCounts()
    usable = sum(bool(text) for text in usable_rows(lines, file, counts))
    num_bad = counts.bad.total()
    if num_bad + usable >= MIN_HEAD_ROWS and num_bad > usable:
        reasons = ", ".join(f"{number} x {reason}" for reason, number in counts.bad.most_common())
        shown = f"{reasons}; first: {counts.first_bad[0]}"
        said = f"{num_bad} of its first {num_bad + usable} rows cannot be read ({shown})"
        look = f"check the encoding (UTF-8), the format ({file.format}) and the text_field of this source"
        raise ValueError(f"{file.path}: {said}; {look}, or leave the file out")


def usable_rows(lines: Iterable[bytes], file: TextFile, counts: CorpusCounts) -> Iterator[str]:
    """Texts of the rows that have one (of text the line, "" between documents); others are counted, blank jsonl not."""
    for number, line in enumerate(lines, start=1):
        if file.format == "jsonl" and not line.strip():
            continue
        counts.rows += 1
        text: Any = ""
        problem = known = ""
        try:
            text = line.decode("utf-8-sig")
            if file.format == "text":
                text, problem = text.strip(), "NUL byte" if "\0" in text else ""
            else:
                row = json.loads(text)
                text = row.get(file.text_field) if isinstance(row, dict) else None
                problem = "" if isinstance(text, str) else f"no text in field {file.text_field!r}"
                known = f" (there are {', '.join(sorted(row)[:MOST_FIELDS])})" if isinstance(row, dict) else ""
        except UnicodeDecodeError:
            problem = "undecodable bytes"
        except (ValueError, RecursionError):
            problem = "invalid JSON"
        if not problem:
            yield text
            continue
        counts.bad[problem] += 1
        if len(counts.first_bad) < NAMED_BAD_ROWS:
            counts.first_bad.append(f"{file.name}:{number}: {problem}{known}")


def lines_of(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    """Lines of a file whatever its compression, without line ends; ValueError for a binary or damaged one."""
    rest: list[bytes] = []
    for chunk in _chunks(path, raw):
        head, *lines = chunk.split(b"\n")
        rest.append(head)
        if lines:  # joined once per line, so a line of many chunks costs its length, not its square
            yield b"".join(rest)
            yield from lines[:-1]
            rest = [lines[-1]]
    if last := b"".join(rest):
        yield last


def _chunks(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    try:
        stream = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
        chunks = _zstd_chunks(raw) if path.suffix == ".zst" else iter(lambda: stream.read(CHUNK_BYTES), b"")
        size, limit = 0, max(MIN_BOMB_BYTES, MAX_EXPANSION * path.stat().st_size)
        for number, chunk in enumerate(chunks):
            size += len(chunk)
            if path.suffix in COMPRESSIONS and size > limit:
                raise ValueError(f"{path} unpacks to over {limit:,} bytes, as no text does: leave it out, or unpack it")
            if number == 0 and b"\0" in chunk[:SNIFFED_BYTES]:
                raise ValueError(f"{path} is binary (or UTF-16): UTF-8 text was expected")
            yield chunk
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}); fetch it again") from error


def _zstd_chunks(raw: BinaryIO) -> Iterator[bytes]:
    """Decompressed chunks of all frames. The library's own reader ends a cut-off file in silence; this does not."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    frame, text = None, b""
    while data := raw.read(CHUNK_BYTES // 256):  # 4 KiB unpack to 128 MiB at most
        while data:
            frame = frame or decompressor.decompressobj()
            text += frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
        if len(text) >= CHUNK_BYTES // 8:
            yield text
            text = b""
    yield from [text] if text else []
    if frame is not None:
        raise EOFError("the compressed stream ends early")
