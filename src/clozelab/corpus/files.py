"""Checksums of files.

Text files of a corpus: finding them, naming their content, and reading their rows in constant memory.

A row is one line: one JSON object of a jsonl file, one sentence (or the blank between documents) of a text file. Files
may be gzip or zstd compressed. A row that cannot be used is counted by reason and skipped; too many end the run.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import zstandard


def file_sha256(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


log = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".zst")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
TEXT_SUFFIXES = (".txt", ".text", "")
"""What a folder is searched for besides jsonl; a file or glob may have any suffix."""
CHUNK_BYTES = 2**20
SNIFFED_BYTES = 8192
"""A NUL byte among the first ones means a binary file; a later one, a bad row."""
MAX_BAD_FRACTION = 0.01
"""More unusable rows than this mean a wrong file, not dirt; one row is always forgiven."""
NAMED_BAD_ROWS = 20
"""How many unusable rows the manifest names."""
MIN_HEAD_ROWS = 10
"""A beginning of fewer rows says nothing about a file."""

HOW_TO_GET = (
    "expected: plain text (.txt: one sentence a line, a blank line between documents), a folder of such files, or "
    "jsonl with a text field (.jsonl, .jsonl.gz, .jsonl.zst: one document a line). To get one: set data_dir to the "
    "folder your sources are relative to, or name your own text with corpus=text "
    "corpus.sources.0.path=FILE_FOLDER_OR_GLOB; corpus=microworld needs none"
)


@dataclass(frozen=True)
class Source:
    """One named part of a corpus."""

    name: str
    path: str
    """A file, a folder or a glob; a relative one starts at the data directory."""
    format: str = "auto"
    """auto (by file name) | text | jsonl."""
    text_field: str = "text"


@dataclass(frozen=True)
class TextFile:
    """One file of a source, named without the machine's path."""

    path: Path
    name: str
    source: int
    """Index of the source."""
    format: str
    """text | jsonl."""
    text_field: str

    def identity(self) -> dict[str, Any]:
        """Name, size and checksum: what decides the cache folder."""
        return {"name": self.name, "size": self.path.stat().st_size, "sha256": file_sha256(self.path)}


@dataclass
class RowCounts:
    """What reading met; `bad` by reason, the first ones by file and line."""

    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: list[str] = field(default_factory=list)

    def skip(self, file: TextFile, line: int, reason: str) -> None:
        self.bad[reason] += 1
        if len(self.first_bad) < NAMED_BAD_ROWS:
            self.first_bad.append(f"{file.name}:{line}: {reason}")

    def check(self) -> None:
        """ValueError once the unusable rows are more than dirt."""
        total = self.bad.total()
        if total > max(1, MAX_BAD_FRACTION * self.rows):
            shown = "\n  ".join(self.first_bad[:5])
            raise ValueError(
                f"{total} of {self.rows} rows cannot be read, more than {MAX_BAD_FRACTION:.0%}; the first ones:\n"
                f"  {shown}\n"
                "check the encoding (UTF-8), the format and the text_field of this source"
            )


def find_files(source: Source, index: int, data_dir: Path) -> list[TextFile]:
    """Files of one source in the order of their names; ValueError where there are none."""
    found, num_left_out = matching_files(source.path, data_dir)
    if num_left_out:
        text = "%s: %d files with other suffixes than text or jsonl are left out"
        log.warning(text, _place(source.path, data_dir), num_left_out)
    if not found:
        raise ValueError(
            f"source {source.name}: no text files at {_place(source.path, data_dir).absolute()}\n{HOW_TO_GET}"
        )
    return [
        TextFile(path, name, index, _format(path, source.format), source.text_field)
        for name, path in sorted(found.items())
    ]


def matching_files(pattern: str, data_dir: str | Path) -> tuple[dict[str, Path], int]:
    """What a source's `path` stands for: a file, a folder's texts or a glob's files; opens none of them.

    Returns:
        Portable name (below a folder the relative path) to path; how many files of a folder are no texts by suffix.
    """
    place = _place(pattern, data_dir)
    if place.is_file():
        return {place.name: place}, 0
    if place.is_dir():
        below = [path for path in place.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(place))]
        known = [path for path in below if file_suffix(path) in (*JSONL_SUFFIXES, *TEXT_SUFFIXES)]
        return {path.relative_to(place).as_posix(): path for path in known}, len(below) - len(known)
    base = Path(place.anchor if Path(pattern).expanduser().is_absolute() else data_dir).expanduser()
    files = [path for path in base.glob(str(place.relative_to(base))) if path.is_file()]
    unique = len({path.name for path in files}) == len(files)
    # Where folders hold files of one name, the folders tell them apart.
    return {path.name if unique else path.relative_to(base).as_posix(): path for path in files}, 0


def _place(pattern: str, data_dir: str | Path) -> Path:
    return Path(data_dir).expanduser() / Path(pattern).expanduser()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def file_suffix(path: Path) -> str:
    """The last suffix that is not a compression."""
    return (path.with_suffix("") if path.suffix in COMPRESSIONS else path).suffix.lower()


def _format(path: Path, wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "jsonl" if file_suffix(path) in JSONL_SUFFIXES else "text"


def read_rows(file: TextFile, counts: RowCounts, advance: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and text of each usable row.

    jsonl: the document's text. text: the line, "" between documents. `advance` is told the bytes of the file on disk
    that were read since the last call. ValueError for a binary or damaged file.
    """
    parse = _json_text if file.format == "jsonl" else _plain_text
    with file.path.open("rb") as raw:
        done = 0
        for number, line in enumerate(lines_of(file.path, raw, _require_text), start=1):
            if raw.tell() != done:
                advance(raw.tell() - done)
                done = raw.tell()
            text, reason = parse(line, file.text_field)
            counts.rows += file.format == "text" or bool(line.strip())
            if reason:
                counts.skip(file, number, reason)
            elif text is not None:
                yield number, text


def check_head(file: TextFile) -> None:
    """Looks at the first chunk of a file, so that a wrong one is found before anything slow.

    ValueError for a binary or damaged file, and where more than half of its first rows are unusable: such a file is
    not dirty, it is another kind of file, even if it is a small part of the corpus.
    """
    counts = RowCounts()
    parse = _json_text if file.format == "jsonl" else _plain_text
    with file.path.open("rb") as raw:
        chunk = next(_chunks(file.path, raw), b"")
        _require_text(file.path, chunk)
        *lines, _ = chunk.split(b"\n")  # the last one may be cut
    for number, line in enumerate(lines, start=1):
        _, reason = parse(line, file.text_field)
        counts.rows += bool(line.strip())
        if reason:
            counts.skip(file, number, reason)
    if counts.rows >= MIN_HEAD_ROWS and 2 * counts.bad.total() > counts.rows:
        reasons = ", ".join(f"{number} x {reason}" for reason, number in counts.bad.most_common())
        raise ValueError(
            f"{file.path}: {counts.bad.total()} of its first {counts.rows} rows cannot be read ({reasons}; first: "
            f"{counts.first_bad[0]}); check the encoding (UTF-8), the format ({file.format}) and the text_field of "
            "this source, or leave the file out"
        )


def _plain_text(line: bytes, _: str) -> tuple[str | None, str]:
    if b"\0" in line:
        return None, "NUL byte"
    try:
        return line.decode("utf-8-sig").strip(), ""
    except UnicodeDecodeError:
        return None, "undecodable bytes"


def _json_text(line: bytes, text_field: str) -> tuple[str | None, str]:
    """The text and "", or None and why not; a blank line is neither."""
    if not line.strip():
        return None, ""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None, "undecodable bytes"
    except (ValueError, RecursionError):
        return None, "invalid JSON"
    text = row.get(text_field) if isinstance(row, dict) else None
    return (text, "") if isinstance(text, str) else (None, f"no text in field {text_field!r}")


def lines_of(path: Path, raw: BinaryIO, check_head: Callable[[Path, bytes], None] | None = None) -> Iterator[bytes]:
    """Lines of a file whatever its compression, without line ends; `check_head` sees the first bytes.

    ValueError for a damaged or incomplete file.
    """
    rest: list[bytes] = []
    for number, chunk in enumerate(_chunks(path, raw)):
        if number == 0 and check_head is not None:
            check_head(path, chunk)
        head, *lines = chunk.split(b"\n")
        rest.append(head)
        if lines:  # joined once per line, so a line of many chunks costs its length, not its square
            yield b"".join(rest)
            yield from lines[:-1]
            rest = [lines[-1]]
    if last := b"".join(rest):
        yield last


def _require_text(path: Path, chunk: bytes) -> None:
    if b"\0" in chunk[:SNIFFED_BYTES]:
        raise ValueError(f"{path} is binary (or UTF-16): a corpus file is UTF-8 text")


def _chunks(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    try:
        if path.suffix == ".zst":
            yield from _zstd_chunks(raw)
        elif path.suffix == ".gz":
            with gzip.open(raw) as stream:
                yield from iter(lambda: stream.read(CHUNK_BYTES), b"")
        else:
            yield from iter(lambda: raw.read(CHUNK_BYTES), b"")
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise ValueError(f"{path} is damaged or incomplete ({error}); fetch it again") from error


def _zstd_chunks(raw: BinaryIO) -> Iterator[bytes]:
    """Decompressed chunks of all frames. The library's own reader ends a cut-off file in silence; this does not."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
    frame = None
    while data := raw.read(CHUNK_BYTES // 8):
        while data:
            frame = frame or decompressor.decompressobj()
            if chunk := frame.decompress(data):
                yield chunk
            data = frame.unused_data if frame.eof else b""
            frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError("the compressed stream ends early")
