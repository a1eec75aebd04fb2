"""Lines of text files, plain or packed: gzip, Zstandard, xz and bzip2, in constant memory.

A packed file that is cut off or damaged is an error, never a shorter text. A binary file is known
by its first bytes; a stray NUL in a text is no sign of one, and who reads the lines removes it.
"""

from __future__ import annotations

import bz2
import codecs
import json
import logging
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import filterfalse
from pathlib import PurePath
from typing import Any, BinaryIO

import zstandard

from clozelab.readers.remote import FilePath, file_size
from clozelab.text.plain import Json

log = logging.getLogger(__name__)

COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")
UNPACKING_ERRORS = (OSError, EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
CHUNK_BYTES = 2**20
GZIP_WBITS = 16 + zlib.MAX_WBITS  # for zlib: a gzip header and checksum
PACKED_BYTES = 2**12  # read at a time: so few unpack to some 128 MiB at most
# a packed file may become so many times larger, or so large
MAX_EXPANSION = 200
MIN_BOMB_BYTES = 2**24
SNIFFED_BYTES = 8192  # by which a binary file is known
MAX_NUL_FRACTION = 0.01  # of the sniffed bytes; a single NUL is always forgiven
# that no text has; NUL is counted apart
CONTROLS = bytes(sorted({*range(1, 9), *range(14, 27), *range(28, 32), 127}))
NUL = b"\0"
NUL_REMOVED = "NUL character"
SURROGATES = re.compile("[\ud800-\udfff]")  # halves of a character, which no file of UTF-8 can hold
ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # how JSON may write one, or two that are a character
ESCAPED_BYTES = re.compile(ESCAPED.pattern.encode())
SURROGATE_BYTE = b"\xed"
Advance = Callable[[int], object]  # told how many bytes of the file on disk were read
Line = tuple[int, str | None]  # (number, text); None for one that is not UTF-8


def without_surrogates(texts: Sequence[str]) -> list[str]:
    """The texts with U+FFFD for each half of a character; each text keeps its length."""
    try:
        "".join(filterfalse(str.isascii, texts)).encode()
    except UnicodeEncodeError:
        return [SURROGATES.sub("\ufffd", text) for text in texts]
    return list(texts)


def ignore(_: int) -> None:
    """An `Advance` that shows nothing."""


class CountedFile:
    """A file on disk that tells `advance` of every byte which is read from it."""

    def __init__(self, raw: BinaryIO, advance: Advance) -> None:
        self._raw = raw
        self._advance = advance

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._advance(len(data))
        return data


def file_suffix(path: FilePath) -> str:
    """The last suffix that is not a compression, in lower case."""
    name = PurePath(path.name)
    if name.suffix in COMPRESSIONS:
        name = name.with_suffix("")
    return name.suffix.lower()


def _lines_of(path: FilePath, advance: Advance) -> Iterator[bytes]:
    """Lines of a file whatever its compression, without line ends."""
    unfinished = []
    for chunk in _chunks_of(path, advance):
        # The first piece of a chunk ends the line that the last chunk left unfinished.
        head, *lines = chunk.split(b"\n")
        unfinished.append(head)
        if lines:  # joined once per line, so a line of many chunks costs its length, not its square
            yield b"".join(unfinished)
            yield from lines[:-1]
            unfinished = [lines[-1]]
    last = b"".join(unfinished)
    if last:
        yield last


def text_lines(
    path: FilePath,
    advance: Advance = ignore,
    *,
    keeps_empty_end: bool = False,
    removed: Counter[str] | None = None,
) -> Iterator[Line]:
    """(line number from 1, text without line end); None for a line that is not UTF-8.

    Empty lines at the end are dropped, unless `keeps_empty_end`: there each line is a text. A byte
    order mark, CRLF line ends and NUL characters are taken off; a packed file is unpacked on the
    way. `removed` as plain_lines says.
    """
    empty = 0
    for number, raw in plain_lines(path, advance, removed):
        raw = raw.rstrip(b"\r")
        if not raw and not keeps_empty_end:
            empty += 1
            continue
        # Empty lines are kept once it is known that they are not the last ones.
        for skipped in range(number - empty, number):
            yield skipped, ""
        empty = 0
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError:
            yield number, None


def decoded_lines(path: FilePath) -> Iterator[tuple[int, str]]:
    """(line number from 1, text) of each line that holds more than blanks.

    ValueError names the first one that is not UTF-8.
    """
    for number, line in text_lines(path):
        if line is None:
            raise ValueError(f"{path}:{number}: not UTF-8 text")
        if line.strip():
            yield number, line


def plain_lines(
    path: FilePath, advance: Advance, removed: Counter[str] | None
) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) without a byte order mark and NULs.

    `removed` counts the NULs; without it a warning does.
    """
    num_nuls = 0
    for number, line in enumerate(_lines_of(path, advance), start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if NUL in line:
            num_nuls += line.count(NUL)
            line = line.replace(NUL, b"")
        yield number, line
    if num_nuls and removed is None:
        log.warning("%s: %d NUL characters were removed", path, num_nuls)
    elif num_nuls and removed is not None:
        removed[NUL_REMOVED] += num_nuls


def is_decoded(text: str) -> bool:
    """Whether all of it was UTF-8: no byte stands as a surrogate (errors="surrogateescape")."""
    return text.isascii() or not any("\udc80" <= character <= "\udcff" for character in text)


def parse_json(text: str | bytes) -> Json:
    """As json.loads, with whole characters: an escape such as `\\ud800` may stand alone in JSON."""
    content = json.loads(text)
    if isinstance(text, bytes):
        may_be_halved = SURROGATE_BYTE in text or ESCAPED_BYTES.search(text) is not None
    else:
        may_be_halved = ESCAPED.search(text) is not None
    if may_be_halved:  # most text is not, and need not be gone through
        return whole_characters(content)
    return content


def whole_characters(value: object) -> object:
    """The same with U+FFFD for each half of a character, in lists and dictionaries too.

    Nobody could write such a text down again: not to a file, a terminal or a network.
    """
    if isinstance(value, str):
        return SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [whole_characters(part) for part in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(part) for key, part in value.items()}
    return value


def refuse_carriage_returns(place: FilePath | str, beginning: bytes) -> None:
    """ValueError for a text whose lines end with CR alone: all of it would be one line."""
    if b"\n" not in beginning and b"\r" in beginning.rstrip(b"\r"):
        raise ValueError(
            f"{place} ends its lines with a carriage return alone (CR), as old Macintoshes did:"
            " write it with line feeds (LF or CRLF)"
        )


def beginning_of(path: FilePath, advance: Advance = ignore, least_bytes: int = 1) -> bytes:
    """The first bytes of a text, without a BOM: a chunk (some 100 KB) or more up to `least_bytes`.

    ValueError for a binary or damaged file.
    """
    chunks = []
    num_bytes = 0
    for chunk in _chunks_of(path, advance):
        chunks.append(chunk)
        num_bytes += len(chunk)
        if num_bytes >= least_bytes:
            break
    return b"".join(chunks).removeprefix(codecs.BOM_UTF8)


def _chunks_of(path: FilePath, advance: Advance) -> Iterator[bytes]:
    """Unpacked bytes of a file, a chunk at a time.

    ValueError for a binary or damaged file, and for a bomb.
    """
    # a small file that unpacks to a large one is a bomb
    limit = max(MIN_BOMB_BYTES, MAX_EXPANSION * file_size(path))
    size = 0
    with path.open("rb") as file:
        try:
            for chunk in _unpacked(path.suffix, CountedFile(file, advance)):
                if size == 0:
                    _refuse_other_than_text(path, chunk)
                size += len(chunk)
                if path.suffix in COMPRESSIONS and size > limit:
                    raise ValueError(
                        f"{path} unpacks to over {limit:,} bytes, as no text does: leave it out, or"
                        " unpack it"
                    )
                yield chunk
        except UNPACKING_ERRORS as error:
            problem = f"{path} is damaged or incomplete ({error}); fetch it again"
            raise ValueError(problem) from error


def _refuse_other_than_text(path: FilePath, beginning: bytes) -> None:
    if is_binary(beginning[:SNIFFED_BYTES]):
        raise ValueError(f"{path} is binary (or UTF-16): UTF-8 text was expected")
    refuse_carriage_returns(path, beginning)


def is_binary(head: bytes) -> bool:
    """Whether the first bytes of a file hold NULs as no text does.

    They are many, or stand beside what is no UTF-8 text.
    """
    num_nuls = head.count(NUL)
    if not num_nuls:
        return False
    # UTF-16 has a NUL in every other byte.
    if num_nuls > max(1, MAX_NUL_FRACTION * len(head)):
        return True
    text = head.replace(NUL, b"")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(text)  # the last character may be cut
    except UnicodeDecodeError:
        return True
    # translate leaves these bytes out: there are some where it gets shorter.
    return len(text.translate(None, CONTROLS)) < len(text)


def _unpacked(suffix: str, raw: CountedFile) -> Iterator[bytes]:
    if suffix == ".zst":
        # `zstd --long=31` writes windows of 2^31 bytes; 2^27 is the usual limit.
        library = zstandard.ZstdDecompressor(max_window_size=2**31)
        yield from _gathered(_stream_chunks(raw, library.decompressobj))
    elif suffix == ".xz":
        # Between two streams xz may write zeros.
        yield from _gathered(_stream_chunks(raw, lzma.LZMADecompressor, padding=b"\0"))
    elif suffix == ".bz2":
        yield from _gathered(_stream_chunks(raw, bz2.BZ2Decompressor))
    elif suffix == ".gz":
        # The gzip module reads more at a time from Python 3.12 on, and what is counted by the bytes
        # that were read (corpus/sizes.py) would be another number. It forgives zeros at the end.
        new_decompressor = partial(zlib.decompressobj, GZIP_WBITS)
        yield from _gathered(_stream_chunks(raw, new_decompressor, padding=b"\0"))
    else:
        while chunk := raw.read(CHUNK_BYTES):
            yield chunk


def _gathered(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Larger chunks, so that the first one is enough to know a file by."""
    text = b""
    for chunk in chunks:
        text += chunk
        if len(text) >= CHUNK_BYTES // 8:
            yield text
            text = b""
    if text:
        yield text


def _stream_chunks(
    raw: CountedFile, new_decompressor: Callable[[], Any], padding: bytes = b""
) -> Iterator[bytes]:
    """Decompressed chunks of all streams (members, frames) of a packed file.

    Where a later one is damaged, or the last one cut off, the libraries' own readers end in
    silence; this does not.
    """
    stream = None
    num_streams = 0
    while packed := raw.read(PACKED_BYTES):
        # Behind a stream's end another one may begin.
        while packed:
            if stream is None:
                packed = packed.lstrip(padding)
                if not packed:
                    break
                stream = new_decompressor()
                num_streams += 1
            yield stream.decompress(packed)
            packed = b""
            if stream.eof:
                packed = stream.unused_data
                stream = None
    if stream is not None or not num_streams:
        raise EOFError("the compressed stream ends early")
