"""Sources of a corpus: their shards, what each is, and its rows in constant memory.

A source is anything with a `name`, a `text_field` and `shards(index, data_dir)`; a shard is as
`Shard` says. Here a shard is a file: of text (a row is one sentence, or the blank between
documents), of JSON objects, or a table (csv, tsv, Parquet, Arrow). All but the last two may be
packed (readers/lines.py). A row that cannot be used is counted by reason and skipped; too many end
the run.
NUL characters are removed and counted, as BERT's cleaning does.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

from clozelab.corpus.text_column import DEFAULT_TEXT_COLUMN, find_text_column
from clozelab.files.digests import file_facts
from clozelab.readers.lines import (
    NUL_REMOVED,
    Advance,
    beginning_of,
    file_suffix,
    ignore,
    text_lines,
)
from clozelab.readers.objects import begins_as_json, refuse_list, rows_of_objects
from clozelab.readers.records import NOT_UTF8, DamagedRow
from clozelab.readers.records import Rows as Records
from clozelab.readers.tables import COLUMNAR, FORMATS, open_table, table_format
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

# what a folder is searched for; a file or glob may have any
TEXT_SUFFIXES = (".txt", ".text", "", ".jsonl", ".ndjson")
CORPUS_FORMATS = ("auto", "text", *FORMATS)
NAMED_BAD_ROWS = 20  # how many unusable rows the manifest names
MISSING = object()  # stands for the cell of a row that has no such field
MOST_FIELDS = 12  # of a jsonl row, that an error names
# a table's beginning; a beginning of fewer rows says nothing about a file
HEAD_ROWS = 1000
MIN_HEAD_ROWS = 10

HOW_TO_GET = (
    "expected: plain text (.txt: one sentence a line, a blank line between documents), jsonl with a"
    " text field (.jsonl: one document a line), either also packed (.gz, .zst, .xz, .bz2), a table"
    " with a column of texts (.csv, .tsv, .parquet, .arrow: one document a row), or a folder of"
    " such files. To get one: set data_dir to the folder your sources are relative to, or name your"
    " own text with text=FILE_FOLDER_OR_GLOB; corpus=microworld needs none"
)


@dataclass
class CorpusCounts:
    """What a pass over a corpus met.

    There are `bad` rows and `dropped` documents by reason, the first bad rows by place, and what
    was `removed` from texts that are used.
    """

    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: list[str] = field(default_factory=list)
    documents: int = 0
    sentences: int = 0
    characters: int = 0
    words: Counter[int] = field(default_factory=Counter)  # between blanks, by number of the source
    dropped: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)

    @property
    def skipped(self) -> dict[str, int]:
        """Rows and documents that were not used, by reason."""
        return dict(sorted({**self.dropped, **self.bad}.items()))

    def without_nuls(self, text: str) -> str:
        if "\0" in text:
            self.removed[NUL_REMOVED] += text.count("\0")
            text = text.replace("\0", "")
        return text


class BadRow(NamedTuple):
    """Stands for a text that cannot be read; `details` tell one from others of the reason."""

    reason: str
    details: str = ""


Rows = Iterator[tuple[int, str | BadRow]]  # (number, text)


@dataclass(frozen=True)
class Shard(ABC):
    """One file of the source of this number, named without the machine's path.

    Its `format` is never "auto".
    """

    path: Path
    name: str
    source: int
    format: str
    text_field: str  # of a table the column that was found

    has_lines: ClassVar[bool] = False  # whether a row is a line, so that blank ones part documents

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size

    def identity(self) -> PlainDict:
        """What decides the texts, as a manifest names it."""
        return {"name": self.name, **file_facts(self.path), "format": self.format}

    @abstractmethod
    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        """(number, text) of each row, in order.

        `advance` is told the bytes that were read from disk. ValueError for a binary or damaged
        file.
        """

    def texts(self, counts: CorpusCounts, advance: Advance = ignore) -> Iterator[str]:
        """Texts of all usable rows; of a text file its lines, "" between documents.

        `counts` grows by what was met.
        """
        return self._usable(self.rows(counts, advance), counts)

    def check(self) -> None:
        """ValueError for a binary or damaged file.

        The same where most rows of its beginning are unusable.
        """
        # Read as the whole file will be; these counts are for this check alone.
        counts = CorpusCounts()
        head = islice(self.rows(counts, ignore), HEAD_ROWS)
        num_usable = sum(bool(text) for text in self._usable(head, counts))
        num_bad = counts.bad.total()
        num_rows = num_bad + num_usable
        if num_rows < MIN_HEAD_ROWS or num_bad <= num_usable:
            return
        reasons = ", ".join(f"{number} x {reason}" for reason, number in counts.bad.most_common())
        raise ValueError(
            f"{self.path}: {num_bad} of its first {num_rows} rows cannot be read ({reasons}; first:"
            f" {counts.first_bad[0]}); check the encoding (UTF-8), the format ({self.format}) and"
            " the text_field of this source, or leave the file out"
        )

    def _usable(self, rows: Rows, counts: CorpusCounts) -> Iterator[str]:
        for number, text in rows:
            counts.rows += 1
            if isinstance(text, str):
                yield text
                continue
            counts.bad[text.reason] += 1
            if len(counts.first_bad) < NAMED_BAD_ROWS:
                counts.first_bad.append(f"{self.name}:{number}: {text.reason}{text.details}")


class TextFile(Shard):
    """Lines of text: a row is one sentence, or the blank between documents."""

    has_lines = True

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        lines = text_lines(self.path, advance, keeps_empty_end=True, removed=counts.removed)
        for number, line in lines:
            if line is None:
                yield number, BadRow(NOT_UTF8)
            else:
                # a file that was put together of others may have several byte order marks
                yield number, line.removeprefix("\ufeff").strip()


class TableFile(Shard):
    """A row of a table is a document; an empty cell is an empty one."""

    def identity(self) -> PlainDict:
        return {**super().identity(), "column": self.text_field}

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        for number, record in self._records(counts, advance):
            if isinstance(record, DamagedRow):
                yield number, BadRow(record.problem)
                continue
            cell = record.get(self.text_field, MISSING)
            if isinstance(cell, str):
                yield number, counts.without_nuls(cell)
            elif cell is None:
                yield number, ""
            else:
                problem = f"no text in field {self.text_field!r}"
                fields = ", ".join(sorted(record)[:MOST_FIELDS])
                yield number, BadRow(problem, f" (there are {fields})")

    def _records(self, counts: CorpusCounts, advance: Advance) -> Records:
        table = open_table(self.path, self.format)
        return table.rows([self.text_field], advance, counts.removed)


class JsonLinesFile(TableFile):
    """An object a line is a document; not all objects need the same keys."""

    def identity(self) -> PlainDict:
        return Shard.identity(self)

    def _records(self, counts: CorpusCounts, advance: Advance) -> Records:
        return rows_of_objects(text_lines(self.path, advance, removed=counts.removed))


@dataclass(frozen=True)
class CorpusSource:
    """One named part of a corpus."""

    name: str
    path: str  # a file, a folder or a glob; a relative one starts at the data directory
    format: str = "auto"  # auto (by file name) | text | jsonl | csv | tsv | parquet | arrow
    text_field: str = DEFAULT_TEXT_COLUMN  # of jsonl and tables: where the text is

    def shards(self, index: int, data_dir: Path) -> list[Shard]:
        """Its files in the order of their names, as source number `index` of a corpus.

        ValueError where there are none, and for a table that does not say which of its columns is
        the text.
        """
        paths, num_left_out = source_files(self, data_dir)
        if num_left_out:
            log.warning(
                "%s: files left out: %d, no texts by their suffix, or tables beside texts (a glob"
                " as path names them, a second source adds them)",
                resolve_path(self.path, data_dir),
                num_left_out,
            )
        check_choice(f"source {self.name}: format", self.format, CORPUS_FORMATS)
        return [self._shard(index, name, path) for name, path in sorted(paths.items())]

    def _shard(self, index: int, name: str, path: Path) -> Shard:
        """A file with its format, and of a table with its column of texts."""
        file_format = self.format
        if file_format == "auto":
            # by the suffix; what has none that is known is text
            file_format = table_format(path) or "text"
            if file_format == "text":
                _refuse_json(path, index)
        if file_format == "text":
            return TextFile(path, name, index, file_format, self.text_field)
        if file_format == "jsonl":
            refuse_list(path)
            return JsonLinesFile(path, name, index, file_format, self.text_field)
        table = open_table(path, file_format)
        column = find_text_column(table, self.text_field, f"corpus.sources.{index}.text_field")
        if column != self.text_field:
            log.info("%s: the text is the column %r", path, column)
        return TableFile(path, name, index, file_format, column)


def source_files(source: CorpusSource, data_dir: str | Path) -> tuple[dict[str, Path], int]:
    """As `matching_files`; ValueError where a source has none."""
    paths, num_left_out = matching_files(source.path, data_dir)
    if not paths:
        location = resolve_path(source.path, data_dir).absolute()
        advice = ""
        if num_left_out:
            advice = f"; {num_left_out} files there are no texts (unpack a .tar or a .zip first)"
        raise ValueError(
            f"source {source.name}: no text files at {location}, nor from here{advice}\n"
            f"{HOW_TO_GET}"
        )
    return paths, num_left_out


def _refuse_json(path: Path, index: int) -> None:
    """ValueError for objects of JSON under a name that says text.

    Their brackets and keys would be trained on.
    """
    try:
        beginning = beginning_of(path)
    except (OSError, ValueError):
        return  # who reads it says what is wrong
    if begins_as_json(beginning):
        key = f"corpus.sources.{index}.format"
        raise ValueError(
            f"{path} holds JSON, and its name says text: write an object a line and call it .jsonl,"
            f" or set {key}=jsonl; {key}=text takes it as it is"
        )


def matching_files(pattern: str, data_dir: str | Path) -> tuple[dict[str, Path], int]:
    """Names and paths of a file, a folder's texts or a glob's files; none of them is opened.

    Below a folder the name is the relative path. The number is how many files of a folder are no
    texts by their suffix.
    """
    location = resolve_path(pattern, data_dir)
    if location.is_file():
        return {location.name: location}, 0
    if location.is_dir():
        return _files_below(location)
    # A glob is looked for below data_dir and then from here; an absolute one below its root alone.
    glob = Path(pattern).expanduser()
    bases = [Path(data_dir).expanduser(), Path()]
    if glob.is_absolute():
        bases = [Path(glob.anchor)]
        glob = glob.relative_to(glob.anchor)
    files = []
    for base in bases:
        files = _files_of_glob(base, str(glob))
        if files:
            break
    names = {path.name for path in files}
    if len(names) == len(files):
        return {path.name: path for path in files}, 0
    # Where folders hold files of one name, the folders tell them apart.
    return {path.relative_to(base).as_posix(): path for path in files}, 0


def _files_of_glob(base: Path, pattern: str) -> list[Path]:
    files = []
    for path in base.glob(pattern):
        if path.is_file():
            files.append(path)
        else:
            _warn_of_broken_link(path)
    return files


def _files_below(folder: Path) -> tuple[dict[str, Path], int]:
    """The texts of a folder, or its tables where it has no texts.

    The number is how many other files it has.
    """
    seen = dict[str, Path]()
    for path in _walk(folder):
        if path.is_file():
            seen[path.relative_to(folder).as_posix()] = path
        else:
            _warn_of_broken_link(path)
    texts = dict[str, Path]()
    tables = dict[str, Path]()
    for name, path in seen.items():
        if file_suffix(path) in TEXT_SUFFIXES:
            texts[name] = path
        elif table_format(path) is not None:
            tables[name] = path
    # A table beside texts says something about them. But a LICENSE beside Parquet files is no text
    # of theirs.
    has_named_texts = any(file_suffix(path) for path in texts.values())
    has_columnar = any(table_format(path) in COLUMNAR for path in tables.values())
    if not texts or (has_columnar and not has_named_texts):
        return tables, len(seen) - len(tables)
    return texts, len(seen) - len(texts)


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
