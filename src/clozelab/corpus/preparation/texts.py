"""The texts of a corpus's files, cut into shards.

A shard is what one process works at: some 4 million characters of consecutive documents. Where it
begins and ends follows from the files alone, and nothing that is made of a corpus follows from it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.steps.step import Document
from clozelab.readers.bad_rows import MAX_BAD_FRACTION
from clozelab.readers.lines import Advance

SHARD_CHARACTERS = 4_000_000
# that a document and a line count for beside their own: they take memory however short they are
DOCUMENT_CHARACTERS = 200
LINE_CHARACTERS = 20
# a text file without blank lines becomes documents of this size, not one
MAX_DOCUMENT_CHARACTERS = 4_000_000
# Unusable rows of a larger file are held against its own rows alone: good files beside it say
# nothing of it. Of a smaller file a few may be 1 %, so a source's small files are one.
SMALL_FILE_ROWS = 1000


@dataclass(frozen=True)
class TextRun:
    """Documents of one file, one after another."""

    source: int
    has_sentences: bool  # whether their lines are sentences already
    texts: list[str]


@dataclass(frozen=True)
class TextShard:
    """The texts of consecutive documents, as they were read."""

    number: int
    runs: Sequence[TextRun]
    num_bytes: int  # that were read from disk for it

    @property
    def num_characters(self) -> int:
        number = 0
        for run in self.runs:
            number += sum(map(len, run.texts))
        return number

    def documents(self) -> Iterator[Document]:
        """Its documents, numbered from 0."""
        index = 0
        for run in self.runs:
            for text in run.texts:
                lines = text.split("\n")
                yield Document(self.number, index, run.source, lines, run.has_sentences)
                index += 1

    def digest(self) -> str:
        """A checksum of its texts."""
        checksum = hashlib.blake2b(digest_size=16)
        for run in self.runs:
            checksum.update(f"{run.source} {run.has_sentences} {len(run.texts)}\0".encode())
            for text in run.texts:
                checksum.update(text.encode("utf-8", "surrogatepass") + b"\0")
        return checksum.hexdigest()


def cut_shards(
    files: Iterable[Shard],
    counts: CorpusCounts,
    max_characters: int | None = None,
    *,
    are_all: bool = True,
) -> Iterator[TextShard]:
    """The texts of all files in order, in shards of SHARD_CHARACTERS unless said otherwise.

    `counts` grows by the rows of each file that ends. ValueError for a binary or damaged file, and
    where more than 1 % of a file's rows are unusable; those of a source's small files count
    together, if these `are_all`.
    """
    limit = max_characters or SHARD_CHARACTERS
    bytes_read: list[int] = []  # since the last shard
    runs: list[TextRun] = []
    number = size = 0
    # source -> the rows of its small files, which count together
    small_files = defaultdict[int, CorpusCounts](CorpusCounts)
    for file in files:
        runs.append(TextRun(file.source, file.has_lines, []))
        of_file = CorpusCounts()
        for text in _documents_of(file, of_file, bytes_read.append):
            runs[-1].texts.append(text)
            size += len(text) + DOCUMENT_CHARACTERS + LINE_CHARACTERS * text.count("\n")
            if size >= limit:
                yield TextShard(number, runs, sum(bytes_read))
                bytes_read.clear()
                runs = [TextRun(file.source, file.has_lines, [])]
                number += 1
                size = 0
        counts.add_rows(of_file)
        if of_file.rows < SMALL_FILE_ROWS:
            small_files[file.source].add_rows(of_file)
        else:
            _refuse_many_bad(of_file)
    if size:
        yield TextShard(number, runs, sum(bytes_read))
    if are_all:
        for of_files in small_files.values():
            _refuse_many_bad(of_files)


def _documents_of(file: Shard, counts: CorpusCounts, advance: Advance) -> Iterator[str]:
    """The text of each document of a file; `counts` and `advance` as `Shard.texts` says."""
    rows = file.texts(counts, advance)
    if file.has_lines:
        return _paragraphs(rows)
    return rows


def _paragraphs(rows: Iterable[str]) -> Iterator[str]:
    """Documents of a text file: what stands between blank lines."""
    lines: list[str] = []
    size = 0
    for line in chain(rows, [""]):
        if lines and (not line or size + len(line) > MAX_DOCUMENT_CHARACTERS):
            yield "\n".join(lines)
            lines = []
            size = 0
        if line:
            lines.append(line)
            size += len(line)


def _refuse_many_bad(counts: CorpusCounts) -> None:
    num_bad = counts.bad.total()
    if num_bad <= max(1, MAX_BAD_FRACTION * counts.rows):
        return
    problem = (
        f"{num_bad} of {counts.rows} rows cannot be read, more than {MAX_BAD_FRACTION:.0%}; the"
        " first ones:"
    )
    advice = (
        "check the encoding (UTF-8), the format and the text_field of this source"
        " (docs/own-text.md#which-files-are-read)"
    )
    raise ValueError("\n  ".join([problem, *counts.first_bad[:5]]) + f"\n{advice}")
