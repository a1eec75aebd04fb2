"""How the same rows can lie on a disk: encodings, line ends, packings and damage of files as such.

Each layout is tried on a file of every kind and every verb. The right answer is that of the clean
file, because no layout changes a row; a refusal has to name the file.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zstandard
from tests.fuzz.lab import EITHER, READ, REFUSED


@dataclass(frozen=True)
class Layout:
    """`change(content)` is the file's content laid out so; `suffix` is added to its name."""

    oddity: str
    expected: str
    change: Callable[[bytes], bytes]
    suffix: str = ""


def line_end(new: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content.replace(b"\n", new)


def encoded(encoding: str) -> Callable[[bytes], bytes]:
    return lambda content: content.decode().encode(encoding)


def in_two_parts(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Two packed files put together by cat, the first of which ends inside a line."""

    def change(content: bytes) -> bytes:
        half = len(content) // 2
        return pack(content[:half]) + pack(content[half:])

    return change


def cut(pack: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A packed file of which a third is missing."""

    def change(content: bytes) -> bytes:
        packed = pack(content)
        return packed[: 2 * len(packed) // 3]

    return change


LAYOUTS = (
    Layout("a byte order mark", READ, lambda content: codecs.BOM_UTF8 + content),
    Layout("Windows line ends", READ, line_end(b"\r\n")),
    Layout("line ends of old Macintoshes (CR alone)", EITHER, line_end(b"\r")),
    Layout("no line end after the last line", READ, lambda content: content.rstrip(b"\n")),
    Layout("two blank lines at its end", EITHER, lambda content: content + b"\n\n"),
    Layout("UTF-16 with its mark", EITHER, encoded("utf-16")),
    Layout("UTF-16, big end first, without a mark", EITHER, encoded("utf-16-be")),
    Layout("UTF-32 with its mark", EITHER, encoded("utf-32")),
    Layout("packed by gzip", EITHER, gzip.compress, ".gz"),
    Layout("two gzip files put together by cat", EITHER, in_two_parts(gzip.compress), ".gz"),
    Layout("packed by zstd", EITHER, zstandard.compress, ".zst"),
    Layout("packed by xz", EITHER, lzma.compress, ".xz"),
    Layout("packed by bzip2", EITHER, bz2.compress, ".bz2"),
    Layout("a gzip file cut off", REFUSED, cut(gzip.compress), ".gz"),
    Layout("a zstd file cut off", REFUSED, cut(zstandard.compress), ".zst"),
    Layout("gzip inside, and not in its name", EITHER, gzip.compress),
    Layout("no gzip inside, and .gz in its name", EITHER, lambda content: content, ".gz"),
    Layout("an empty file", REFUSED, lambda _: b""),
    Layout("blank lines alone", REFUSED, lambda _: b"\n \n\t\n" * 50),
    Layout("random bytes", REFUSED, lambda _: random.Random(1).randbytes(5000)),
    Layout("a picture", REFUSED, lambda _: b"\x89PNG\r\n\x1a\n\0\0\xff"),
)

Register = Callable[[str, str, bytes, str], None]
"""Takes what is odd, what is expected, the file's content and its suffix."""


def in_every_layout(
    register: Register, kind: str, content: str, suffix: str, must_read: Sequence[str] = ()
) -> None:
    """Register a clean file of some kind, and each of its layouts.

    `must_read`: layouts that this kind of file promises to read, where others may refuse them.
    """
    register(f"{kind}: nothing, the control", READ, content.encode(), suffix)
    for layout in LAYOUTS:
        expected = READ if layout.oddity in must_read else layout.expected
        changed = layout.change(content.encode())
        register(f"{kind}: {layout.oddity}", expected, changed, suffix + layout.suffix)
