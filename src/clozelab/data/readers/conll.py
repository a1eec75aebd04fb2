"""Sentences whose words carry tags: CoNLL column files, and Universal Dependencies' conllu.

A column file has one word a line, its columns between tabs (then nothing else separates) or blanks, a blank line
between sentences and, where the set has documents, a `-DOCSTART-` line before each. In conllu `# newdoc` begins a
document; multiword ranges (`3-4`) and empty nodes (`8.1`) are not words. Lines that hold only blanks end a sentence too
(WNUT-17).

A sentence with a damaged line is left out and counted; a file with more than 1 % of them is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clozelab.data.readers.files import refuse_wrong_file, text_lines

DOCUMENT_START = "-DOCSTART-"
OUTSIDE = "O"
FILE_FORMATS = ("columns", "conllu")
CONLLU_COLUMNS = 10


@dataclass(frozen=True)
class ColumnFormat:
    """Which columns hold word and tag, counted from 0, negative from the end."""

    file_format: str
    """columns | conllu."""
    word_column: int
    tag_column: int

    def __post_init__(self) -> None:
        if self.file_format not in FILE_FORMATS:
            raise ValueError(f"file_format={self.file_format!r} is unknown; known: {', '.join(FILE_FORMATS)}")


@dataclass
class TaggedSentences:
    """Sentences in file order. `tags` is None for a file without them; `documents` [S] numbers each one's document."""

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """[S] line of each sentence's first word."""
    has_documents: bool = False
    """False: the file marks no documents, and every sentence is one of its own."""
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.words)


def read_conll(path: Path, layout: ColumnFormat, *, require_tags: bool) -> TaggedSentences:
    """Read one file. `require_tags` False allows lines that hold only the word.

    Raises ValueError naming the file and line for a missing tag column, no sentences, or too many damaged ones.
    """
    sentences = TaggedSentences(tags=[])
    width: int | None = None
    bad: list[str] = []
    num_seen = document = 0
    for starts_document, block in _blocks(path, layout):
        sentences.has_documents |= starts_document
        document += starts_document or not sentences.has_documents
        if not block:
            continue
        num_seen += 1
        problem = _problem(block, width or (CONLLU_COLUMNS if layout.file_format == "conllu" else len(block[0][1])))
        if problem is not None:
            bad.append(f"{path}:{problem}")
            continue
        width = len(block[0][1])
        has_tags = _check_width(path, block[0][0], width, layout, require_tags)
        sentences.words.append([fields[layout.word_column] for _, fields in block])
        sentences.documents.append(document)
        sentences.lines.append(block[0][0])
        if has_tags and sentences.tags is not None:
            sentences.tags.append([fields[layout.tag_column] for _, fields in block])
        else:
            sentences.tags = None
    refuse_wrong_file(path, bad, num_seen, "one word a line with the same number of columns")
    sentences.counts["damaged_sentences"] = len(bad)
    return sentences


def predicted_lines(path: Path, layout: ColumnFormat, tags: Sequence[str]) -> Iterator[str]:
    """The lines of a file without damage, with a tag for each word in file order.

    Columns get one more, the last: what `conlleval` compares with the column before it. In conllu, whose columns are
    fixed, the tag stands in its own column instead of what was there.
    """
    left = iter(tags)
    for _, line in text_lines(path):
        assert line is not None, "a damaged file is refused before it is predicted"
        if not line.strip(" \t") or _is_comment(line, layout):
            yield line
        elif layout.file_format == "conllu":
            fields = line.split("\t")
            fields[layout.tag_column] = next(left)
            yield "\t".join(fields)
        else:
            tag = OUTSIDE if _is_document_start(line, layout) else next(left)
            yield f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    assert next(left, None) is None, "one tag a word"


Block = list[tuple[int, list[str]]]
"""One sentence: (line number, columns) of each word; no columns for a line that is not UTF-8."""


def _blocks(path: Path, layout: ColumnFormat) -> Iterator[tuple[bool, Block]]:
    """(whether a document begins with it, sentence); a document mark alone comes with an empty sentence."""
    block: Block = []
    for number, line in text_lines(path):
        if line is not None and not line.strip(" \t"):
            if block:
                yield False, block
            block = []
        elif line is not None and _is_document_start(line, layout):
            if block:
                yield False, block
            block = []
            yield True, []
        elif line is None or not _is_comment(line, layout):
            block.append((number, [] if line is None else _columns(line)))
    if block:
        yield False, block


def _columns(line: str) -> list[str]:
    """A tab-separated word may hold blanks, and other white space is part of a word."""
    return line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))


def _is_document_start(line: str, layout: ColumnFormat) -> bool:
    if layout.file_format == "conllu":
        return re.match(r"#\s*newdoc\b", line) is not None
    return line.split(maxsplit=1)[:1] == [DOCUMENT_START]


def _is_comment(line: str, layout: ColumnFormat) -> bool:
    """conllu's comments, multiword ranges and empty nodes; a column file has none of them: `#` is a word there."""
    if layout.file_format != "conllu":
        return False
    return line.startswith("#") or re.match(r"\d+[-.]\d+\t", line) is not None


def _problem(block: Block, width: int) -> str | None:
    """What is wrong with a sentence, with its line number."""
    for number, fields in block:
        if len(fields) != width:
            return f"{number}: " + (f"{len(fields)} columns, expected {width}" if fields else "not UTF-8 text")
    return None


def _check_width(path: Path, number: int, width: int, layout: ColumnFormat, require_tags: bool) -> bool:
    """Whether the lines have the tag's column (beside the word's)."""
    if width < 2 or not -width <= layout.tag_column < width:
        if require_tags:
            raise ValueError(
                f"{path}:{number}: {width} columns, but the tag is looked for in tag_column={layout.tag_column} "
                "(a test file without tags can only be predicted)"
            )
        return False
    return True
