"""Sources of a corpus: their shards, what each is, and its rows in constant memory.

A source is anything with a `name`, a `text_field` and `shards(index, data_dir)`; a shard is as
`Shard` says. Here a shard is a file, on disk or of an object store: of text (a row is one sentence,
or the blank between documents), of JSON objects, or a table (csv, tsv, Parquet, Arrow). All but the
last two may be packed (readers/lines.py). A row that cannot be used is counted by reason and
skipped; too many end the run. NUL characters are removed and counted, as BERT's cleaning does.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

from clozelab.corpus.manifest import SourceFacts
from clozelab.corpus.paths import corpus_files, path_list, place_of
from clozelab.corpus.text_column import DEFAULT_TEXT_COLUMN, find_text_column
from clozelab.files.digests import file_facts
from clozelab.readers.lines import (
    NUL_REMOVED,
    Advance,
    beginning_of,
    file_suffix,
    ignore,
    is_decoded,
    text_lines,
)
from clozelab.readers.objects import (
    begins_as_json,
    is_list,
    open_objects,
    refuse_list,
    rows_of_objects,
)
from clozelab.readers.records import NOT_UTF8, DamagedRow, Record
from clozelab.readers.records import Rows as Records
from clozelab.readers.remote import FilePath, RemotePath, file_size
from clozelab.readers.tables import FORMATS, open_table, table_format
from clozelab.text.did_you_mean import check_choice
from clozelab.text.formatting import shortened
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

CORPUS_FORMATS = ("auto", "text", "book", *FORMATS)
NAMED_BAD_ROWS = 20  # how many unusable rows the manifest names
MISSING = object()  # stands for the cell of a row that has no such field
MOST_FIELDS = 12  # of a jsonl row, that an error names
SHOWN_CHARACTERS = 40  # of a cell that is no text
# a table's beginning, of long texts fewer rows; one of fewer still says nothing about a file
HEAD_ROWS = 1000
HEAD_CHARACTERS = 1_000_000
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
    dropped: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)

    def add_rows(self, other: CorpusCounts) -> None:
        """Add the rows that another pass met, and what it removed from them."""
        self.rows += other.rows
        self.bad += other.bad
        self.removed += other.removed
        self.first_bad = [*self.first_bad, *other.first_bad][:NAMED_BAD_ROWS]

    @property
    def skipped(self) -> dict[str, int]:
        """Rows and documents that were not used, by reason."""
        return dict(sorted({**self.dropped, **self.bad}.items()))


def content_marks(sources: Iterable[SourceFacts]) -> list[str]:
    """The checksum of each file of a manifest's sources; of others the version."""
    marks = []
    for source in sources:
        marks += [file.get("sha256", file.get("version", "")) for file in source["files"]]
    return marks


def text_marks(sources: Iterable[SourceFacts]) -> list[str]:
    """The same, with how a file is read where that is not usual: two columns are two texts."""
    marks = []
    for source in sources:
        for file, mark in zip(source["files"], content_marks([source]), strict=True):
            format_name = file.get("format", "")
            column = file.get("column", source.get("text_field", DEFAULT_TEXT_COLUMN))
            if format_name == "book":
                mark += " as a book"
            elif format_name != "text" and column != DEFAULT_TEXT_COLUMN:
                mark += f" {column}"
            marks.append(mark)
    return marks


class BadRow(NamedTuple):
    """Stands for a text that cannot be read; `details` tell one from others of the reason."""

    reason: str
    details: str = ""


Rows = Iterator[tuple[int, str | BadRow]]  # (number, text)


@dataclass(frozen=True)
class Shard(ABC):
    """A part of the source of this number: rows in order, named without the machine's path."""

    name: str
    source: int
    format: str  # never "auto"
    text_field: str  # of a table the column that was found

    has_lines: ClassVar[bool] = False  # whether a row is a line, so that blank ones part documents

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for messages."""

    @property
    def is_remote(self) -> bool:
        """Whether a network lies between; its identity then comes without reading it."""
        return True

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes as stored; 0 where they are not known."""

    @abstractmethod
    def identity(self) -> PlainDict:
        """What decides the texts, as a manifest names it.

        It has the content's `sha256`, or as `version` what the texts' owner calls their state.
        """

    def stamp(self) -> object:
        """What tells quickly whether it was written to; None where nothing can be."""
        return None

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
        num_texts = num_characters = 0
        for text in self._usable(head, counts):
            num_texts += bool(text)
            num_characters += len(text)
            if num_characters > HEAD_CHARACTERS and counts.rows >= MIN_HEAD_ROWS:
                break
        num_bad = counts.bad.total()
        num_usable = self.num_usable(counts, num_texts)
        num_rows = num_bad + num_usable
        if num_rows < MIN_HEAD_ROWS or num_bad <= num_usable:
            return
        reasons = ", ".join(f"{number} x {reason}" for reason, number in counts.bad.most_common())
        raise ValueError(
            f"{self.place}: {num_bad} of its first {num_rows} rows cannot be read ({reasons};"
            f" first: {counts.first_bad[0]}); check the encoding (UTF-8: iconv -f latin1 -t utf8"
            f" converts a file in Latin-1), the format ({self.format}) and the text_field of this"
            " source, or leave the file out"
        )

    def num_usable(self, counts: CorpusCounts, num_texts: int) -> int:  # noqa: ARG002
        """Rows that bad ones are held against: of texts those that are not empty, `num_texts`."""
        return num_texts

    def _usable(self, rows: Rows, counts: CorpusCounts) -> Iterator[str]:
        for number, text in rows:
            counts.rows += 1
            if isinstance(text, str):
                yield text
                continue
            counts.bad[text.reason] += 1
            if len(counts.first_bad) < NAMED_BAD_ROWS:
                counts.first_bad.append(f"{self.name}:{number}: {text.reason}{text.details}")


@dataclass(frozen=True)
class CorpusFile(Shard):
    """A file, on this machine or of an object store."""

    path: FilePath

    @property
    def place(self) -> str:
        return str(self.path)

    @property
    def is_remote(self) -> bool:
        return isinstance(self.path, RemotePath)

    @property
    def num_bytes(self) -> int:
        return file_size(self.path)

    def identity(self) -> PlainDict:
        """Size and checksum; of a remote file, which is not read for that, its store's version."""
        if isinstance(self.path, RemotePath):
            facts: PlainDict = {"size": self.path.size, "version": self.path.version}
        else:
            facts = {**file_facts(self.path)}
        return {"name": self.name, **facts, "format": self.format}

    def stamp(self) -> object:
        """Size and time; a remote file is compared when it has been read (RemotePath.open)."""
        if isinstance(self.path, RemotePath):
            return None
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns


class TextFile(CorpusFile):
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


class BookFile(TextFile):
    """A document, whose paragraphs stand between blank lines; their lines are wrapped."""

    has_lines = False

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        paragraphs: list[list[str]] = [[]]
        for number, line in super().rows(counts, advance):
            if isinstance(line, BadRow):
                yield number, line
            elif line:
                counts.rows += 1  # of the lines, as bad ones are
                paragraphs[-1].append(line)
            else:
                paragraphs.append([])
        yield 1, "\n".join(map(" ".join, filter(None, paragraphs)))

    def num_usable(self, counts: CorpusCounts, num_texts: int) -> int:  # noqa: ARG002
        """Its lines; the text is one."""
        return counts.rows - counts.bad.total()


class TableFile(CorpusFile):
    """A row of a table is a document; an empty cell is an empty one."""

    def identity(self) -> PlainDict:
        return {**super().identity(), "column": self.text_field}

    def rows(self, counts: CorpusCounts, advance: Advance) -> Rows:
        for number, record in self._records(counts, advance):
            yield number, text_of(record, self.text_field, counts)

    def _records(self, counts: CorpusCounts, advance: Advance) -> Records:
        table = open_table(self.path, self.format)
        return table.rows([self.text_field], advance, counts.removed)


class JsonLinesFile(TableFile):
    """An object a line is a document; not all objects need the same keys."""

    def identity(self) -> PlainDict:
        return CorpusFile.identity(self)

    def _records(self, counts: CorpusCounts, advance: Advance) -> Records:
        if is_list(self.path):
            return open_objects(self.path).rows(None, advance, counts.removed)
        return rows_of_objects(text_lines(self.path, advance, removed=counts.removed))


TEXT_KINDS = {"text": TextFile, "book": BookFile}


def text_of(record: Record, column: str, counts: CorpusCounts) -> str | BadRow:
    """The text in a column of a row; an empty cell is an empty text.

    A list of whole numbers is a text, too.
    """
    if isinstance(record, DamagedRow):
        return BadRow(record.problem)
    cell = record.get(column, MISSING)
    # token ids, k-mers: each number is a word, for a tokenizer of words
    if isinstance(cell, list) and all(type(number) is int for number in cell):
        return " ".join(map(str, cell))
    if isinstance(cell, str):
        if "\0" in cell:
            counts.removed[NUL_REMOVED] += cell.count("\0")
        return cell.replace("\0", "")
    if cell is None:
        return ""
    details = f" (there are {', '.join(sorted(record)[:MOST_FIELDS])})"
    if cell is not MISSING:
        details = f" (it holds {shortened(repr(cell), SHOWN_CHARACTERS)})"
    return BadRow(f"no text in field {column!r}", details)


@dataclass(frozen=True)
class CorpusSource:
    """One named part of a corpus."""

    name: str
    # a file, a folder, a glob, a URL, or several; a relative one starts at the data directory
    path: str | Sequence[str]
    format: str = "auto"  # auto (by file name) | text | book | jsonl | csv | tsv | parquet | arrow
    text_field: str = DEFAULT_TEXT_COLUMN  # of jsonl and tables: where the text is
    how_to_get: str | None = None  # the files, where there are none
    # what a command line calls its settings
    key_format: str = "corpus.sources.{index}.{name}"

    def shards(self, index: int, data_dir: Path) -> list[Shard]:
        """Its files as source number `index` of a corpus: path by path, each in order of names.

        ValueError where there are none, and for a table that does not say which of its columns is
        the text.
        """
        check_choice(f"source {self.name}: format", self.format, CORPUS_FORMATS)
        shards: list[Shard] = []
        names = set[str]()
        for number, path in enumerate(path_list(self.path)):
            files, num_left_out = self._files_at(path, data_dir)
            if num_left_out:
                log.warning(
                    "%s: files left out: %d, tables beside texts, or no texts by their suffix (the"
                    " path '%s/**/*' reads all of them)",
                    path,
                    num_left_out,
                    str(path).rstrip("/"),
                )
            for name, file in sorted(files.items()):
                # Files of one name are told apart by the number of their path.
                if name in names:
                    name = f"{number}/{name}"
                if not is_decoded(name):
                    raise ValueError(
                        f"{str(file)!a}: the name of this file is not UTF-8: rename it"
                    )
                names.add(name)
                shards.append(self.shard(index, name, file))
        return shards

    def require_files(self, data_dir: str | Path) -> None:
        """ValueError where a path has no file."""
        for path in path_list(self.path):
            self._files_at(path, data_dir)

    def _files_at(self, path: str, data_dir: str | Path) -> tuple[Mapping[str, FilePath], int]:
        """As `corpus_files`; ValueError where there are none."""
        files, num_left_out = corpus_files(path, data_dir)
        if files:
            return files, num_left_out
        advice = ""
        if num_left_out:
            advice = f"; {num_left_out} files there are no texts (unpack a .tar or a .zip first)"
        how_to_get = HOW_TO_GET
        if self.how_to_get:
            how_to_get = f"how to get them: {self.how_to_get}"
        raise ValueError(
            f"source {self.name}: no text files at {place_of(path, data_dir)}{advice}\n{how_to_get}"
        )

    def shard(self, index: int, name: str, path: FilePath) -> Shard:
        """A file with its format, and of a table with its column of texts.

        ValueError for a table that does not say which of its columns is the text.
        """
        file_format = self.format
        if file_format == "auto":
            # by the suffix; what has none that is known is text
            file_format = table_format(path) or "text"
            if file_format == "text" and _holds_json(path):
                file_format = _format_of_json(path, self._key(index, "format"))
        shard_class: type[CorpusFile] = TableFile
        column = self.text_field
        if file_format in TEXT_KINDS:
            shard_class = TEXT_KINDS[file_format]
        elif file_format == "jsonl":
            if file_suffix(path) != ".json":
                refuse_list(path)
            shard_class = JsonLinesFile
        else:
            table = open_table(path, file_format)
            column = find_text_column(table, column, self._key(index, "text_field"))
            if column != self.text_field:
                log.info("%s: the text is the column %r", path, column)
        return shard_class(name, index, file_format, column, path)

    def _key(self, index: int, name: str) -> str:
        return self.key_format.format(index=index, name=name)


def _holds_json(path: FilePath) -> bool:
    with suppress(OSError, ValueError):  # who reads it says what is wrong
        return begins_as_json(beginning_of(path))
    return False


def _format_of_json(path: FilePath, key: str) -> str:
    """ValueError for objects of JSON under a name that says text.

    Their brackets and keys would be trained on.
    """
    if file_suffix(path) == ".json":
        return "jsonl"
    raise ValueError(
        f"{path} holds JSON, and its name says text: write an object a line and call it .jsonl,"
        f" or set {key}=jsonl; {key}=text takes it as it is"
    )
