"""How much text a source has, whatever its files are called and however they are packed.

A training's steps may follow from the number, and they are a part of what a run is known by. So it
follows from the files alone. A forecast (preparation/forecast.py) also asks the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from clozelab.corpus.files import (
    TEXT_KINDS,
    CorpusCounts,
    CorpusSource,
    JsonLinesFile,
    Shard,
    text_of,
)
from clozelab.corpus.paths import matching_files, path_list
from clozelab.readers.lines import COMPRESSIONS, beginning_of, file_suffix
from clozelab.readers.objects import begun_list, is_list
from clozelab.readers.tables import table_format

T = TypeVar("T")

SAMPLED_FILES = 16  # of a kind
SAMPLED_BYTES = 2**24  # of the sampled files together; of each one, where they are no longer


def text_bytes(source: CorpusSource, data_dir: str) -> float:
    """About how many bytes a source's texts would be as plain text, with blank lines between them.

    A plain file counts by its size. Of tables and packed files a sample is read, of large ones the
    beginning, and its texts are multiplied. A URL counts for nothing. So does what cannot be read:
    who prepares it says what is wrong.
    """
    files_of_kind = defaultdict[tuple[str, str], list[Path]](list)
    for path in path_list(source.path):
        for _, file in sorted(matching_files(path, data_dir)[0].items()):
            files_of_kind[_kind(source, file)].append(file)
    total = 0.0
    for (file_format, packing), files in files_of_kind.items():
        if file_format in TEXT_KINDS and not packing:
            total += _stored_bytes(files)
        else:
            total += _bytes_by_sample(source, files)
    return total


def _kind(source: CorpusSource, file: Path) -> tuple[str, str]:
    """How a file is read, by its name, and by what it is packed ("": by nothing).

    Numbers at the ends of names (part.001.gz) are no kinds.
    """
    packing = ""
    if file.suffix in COMPRESSIONS:
        packing = file.suffix
    if source.format != "auto":
        return source.format, packing
    if file_suffix(file) == ".json":
        return "json", packing
    return table_format(file) or "text", packing


def _stored_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _bytes_by_sample(source: CorpusSource, files: Sequence[Path]) -> float:
    """About how many bytes of text files of a kind have: those of some, multiplied.

    Bytes on disk say by how much, since those of all files are known without reading them.
    """
    sample = in_even_steps(files, SAMPLED_FILES)
    most_bytes = SAMPLED_BYTES
    if _stored_bytes(sample) > SAMPLED_BYTES:  # else each is read to its end, unless it is packed
        most_bytes //= len(sample)
    num_bytes = 0.0
    for file in sample:
        status = file.stat()
        version = (status.st_size, status.st_mtime_ns)
        num_bytes += _sampled_bytes(file, version, source.format, source.text_field, most_bytes)
    return num_bytes * (_stored_bytes(files) / max(1, _stored_bytes(sample)))


@cache
def _sampled_bytes(
    file: Path,
    version: tuple[int, int],  # noqa: ARG001
    file_format: str,
    text_field: str,
    most_bytes: int,
) -> float:
    """About how many bytes of text a version of a file has; the jobs of a sweep ask for the same.

    0 for one that cannot be read.
    """
    source = CorpusSource("sample", str(file), file_format, text_field)
    with suppress(OSError, ValueError):
        return _extrapolated(source.shard(0, file.name, file), most_bytes)
    return 0.0


def _extrapolated(shard: Shard, most_bytes: int) -> float:
    """Bytes of a file's texts: of its beginning, multiplied, where it is longer."""
    if isinstance(shard, JsonLinesFile) and is_list(shard.path):
        return _of_list(shard, most_bytes)
    num_read = 0

    def advance(number: int) -> None:
        nonlocal num_read
        num_read += number

    num_bytes = 0
    num_read_before = 0
    for text in shard.texts(CorpusCounts(), advance):
        # Bytes that are read at once hold many texts: it ends where all of theirs were counted.
        # A packed file has more bytes of text than on disk, a table with other columns fewer.
        if num_read > num_read_before and max(num_read_before, num_bytes) >= most_bytes:
            return num_bytes * shard.num_bytes / max(1, num_read_before)
        num_bytes += _plain_bytes(text, shard)
        num_read_before = num_read
    return num_bytes


def _of_list(shard: JsonLinesFile, most_bytes: int) -> float:
    """The same of a list of objects, which its reader would hold in memory as a whole."""
    read = list[int]()
    beginning = beginning_of(shard.path, read.append, most_bytes).decode("utf-8", "ignore")
    num_bytes = 0
    num_characters = 0
    for end, record in begun_list(beginning):
        text = text_of(record, shard.text_field, CorpusCounts())
        if isinstance(text, str):
            num_bytes += _plain_bytes(text, shard)
        num_characters = end
    num_read = sum(read)
    if num_read >= shard.num_bytes:
        return num_bytes
    if not num_characters:  # the first object is longer
        return _of_list(shard, 4 * most_bytes)
    return num_bytes * (shard.num_bytes / num_read) * (len(beginning) / num_characters)


def _plain_bytes(text: str, shard: Shard) -> int:
    """Of a line with its end, or of a document and the blank line behind it."""
    end_bytes = 1 if shard.has_lines else 2
    return len(text.encode("utf-8", "surrogatepass")) + end_bytes


def in_even_steps(files: Sequence[T], most: int) -> list[T]:
    """So many of some files at most, from all over their order.

    Neighbours in it often are alike, so the first ones would not stand for all.
    """
    num_files = min(len(files), most)
    sample = []
    for number in range(num_files):
        sample.append(files[(2 * number + 1) * len(files) // (2 * num_files)])
    return sample
