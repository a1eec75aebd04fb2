"""How much text a source has, whatever its files are called and however they are packed.

A training's steps may follow from the number, and they are a part of what a run is known by. So it
follows from the files alone, and no clock is asked, as a forecast does (preparation/forecast.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from clozelab.corpus.files import TEXT_KINDS, CorpusCounts, CorpusSource, Shard
from clozelab.corpus.paths import matching_files, path_list
from clozelab.readers.lines import COMPRESSIONS, file_suffix
from clozelab.readers.tables import table_format

T = TypeVar("T")

SAMPLED_FILES = 16  # of those that are called alike
SAMPLED_BYTES = 2**24  # of them together; where they are fewer, all is read


def text_bytes(source: CorpusSource, data_dir: str) -> float:
    """About how many bytes a source's texts would be as plain text, with blank lines between them.

    Plain files on this machine are as long as they are. Of tables and of packed files some are
    read, large ones in part, and their texts are multiplied. What cannot be read counts for
    nothing: who prepares it says what is wrong.
    """
    files_of_kind = defaultdict[tuple[str, str], list[Path]](list)
    for path in path_list(source.path):
        for _, file in sorted(matching_files(path, data_dir)[0].items()):
            files_of_kind[file_suffix(file), file.suffix].append(file)
    total = 0.0
    for files in files_of_kind.values():
        if _is_plain(source, files[0]):
            total += _stored_bytes(files)
        else:
            total += _bytes_by_sample(source, files)
    return total


def _is_plain(source: CorpusSource, file: Path) -> bool:
    """Whether all of a file is text, by its name."""
    if file.suffix in COMPRESSIONS:
        return False
    if source.format == "auto":
        return table_format(file) is None and file_suffix(file) != ".json"
    return source.format in TEXT_KINDS


def _stored_bytes(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _bytes_by_sample(source: CorpusSource, files: Sequence[Path]) -> float:
    """About how many bytes of text files have that are called alike: those of some, multiplied."""
    sample = in_even_steps(files, SAMPLED_FILES)
    most_bytes = SAMPLED_BYTES
    if _stored_bytes(sample) > SAMPLED_BYTES:
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
    num_read = 0

    def advance(number: int) -> None:
        nonlocal num_read
        num_read += number

    num_bytes = 0
    num_read_before = 0
    # a line ends with one, and behind a document is a blank line
    end_bytes = 1 if shard.has_lines else 2
    for text in shard.texts(CorpusCounts(), advance):
        # Bytes that are read at once hold many texts: it ends where all of theirs were counted.
        if num_read > num_read_before and max(num_read_before, num_bytes) >= most_bytes:
            return num_bytes * shard.num_bytes / max(1, num_read_before)
        num_bytes += len(text.encode("utf-8", "surrogatepass")) + end_bytes
        num_read_before = num_read
    return num_bytes


def in_even_steps(files: Sequence[T], most: int) -> list[T]:
    """So many of some files at most; those of one kind often have names that follow one another."""
    num_files = min(len(files), most)
    sample = []
    for number in range(num_files):
        sample.append(files[(2 * number + 1) * len(files) // (2 * num_files)])
    return sample
