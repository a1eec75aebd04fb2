"""Sentences of tagged words: CoNLL column files, and Universal Dependencies' conllu.

A column file has one word a line. Its columns stand between tabs (then nothing else separates) or
between blanks. A blank line (or one of blanks, WNUT-17) ends a sentence. A set with documents has a
`-DOCSTART-` line before each; in conllu `# newdoc` begins a document. A sentence with a damaged
line is left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from clozelab.readers.bad_rows import refuse_wrong_file
from clozelab.readers.lines import beginning_of, text_lines
from clozelab.readers.objects import begins_as_json
from clozelab.text.did_you_mean import check_choice

DOCUMENT_START = "-DOCSTART-"
DOCUMENT_TAG = "O"  # of that line, as conlleval wants it
CONLLU_COLUMNS = 10
# UPOS and XPOS, of which every word has one; in others `_` is an answer
CONLLU_TAG_COLUMNS = (3, 4)
# one sentence: (line number, columns) of each word; none where it is not UTF-8
Block = list[tuple[int, list[str]]]


class TagCheck(Protocol):
    """Collects the tags of a file and refuses what is no tag (datamodules/labels.py)."""

    def add(self, line: int, value: object) -> str: ...

    def refuse(self) -> None: ...


@dataclass(frozen=True)
class ColumnFormat:
    """Which columns hold word and tag, counted from 0, negative from the end."""

    file_format: str  # columns | conllu
    word_column: int
    tag_column: int

    def __post_init__(self) -> None:
        check_choice("file_format", self.file_format, ("columns", "conllu"))

    @property
    def is_conllu(self) -> bool:
        return self.file_format == "conllu"

    def tag_of(self, fields: Sequence[str]) -> str | None:
        """A word's tag; None where conllu says with its `_` that nobody gave one."""
        tag = fields[self.tag_column]
        is_part_of_speech = self.is_conllu and self.tag_column in CONLLU_TAG_COLUMNS
        if is_part_of_speech and tag == "_":
            return None
        return tag

    def has_tags(self, width: int) -> bool:
        """Whether lines of `width` columns hold a tag beside the word."""
        return width >= 2 and -width <= self.tag_column < width

    def starts_document(self, line: str) -> bool:
        if self.is_conllu:
            return re.match(r"#\s*newdoc\b", line) is not None
        return line.split(maxsplit=1)[:1] == [DOCUMENT_START]

    def is_comment(self, line: str) -> bool:
        """Whether it is a comment, a multiword range or an empty node of conllu.

        A column file has none of them: `#` is a word there.
        """
        if not self.is_conllu:
            return False
        return line.startswith("#") or re.match(r"\d+[-.]\d+\t", line) is not None


@dataclass
class TaggedSentences:
    """Sentences in file order; `tags` is None for a file without them."""

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)  # [S] number of each sentence's document
    lines: list[int] = field(default_factory=list)  # [S] line of each sentence's first word
    # False: the file marks no documents, and every sentence is one of its own
    has_documents: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.words)

    def add(self, words: list[str], tags: list[str] | None, document: int, line: int) -> None:
        """Add a sentence; one without tags (None) leaves the whole file without them."""
        self.words.append(words)
        self.documents.append(document)
        self.lines.append(line)
        if tags is None:
            self.tags = None
        elif self.tags is not None:
            self.tags.append(tags)


def read_conll(
    path: Path, layout: ColumnFormat, tag_check: TagCheck | None = None
) -> TaggedSentences:
    """Read one file, whose tags `tag_check` looks at; None: it may lack them, or have any.

    ValueError names the file and line for a missing tag column, a tag that is none, no sentences,
    or too many damaged ones.
    """
    sentences = TaggedSentences(tags=[])
    # Conllu has ten columns, another file as many as its first undamaged sentence.
    width = None
    if layout.is_conllu:
        width = CONLLU_COLUMNS
    damaged = []
    num_sentences = 0
    for document, block in _numbered_blocks(path, layout, sentences):
        num_sentences += 1
        first_line, first_fields = block[0]
        expected_width = len(first_fields) if width is None else width
        damage = _damage(block, expected_width)
        if damage:
            damaged.append(f"{path}:{damage}")
            continue
        width = expected_width
        tags = None
        if layout.has_tags(width):
            tags = _tags_of(block, layout, tag_check)
        elif tag_check is not None:
            raise ValueError(
                f"{path}:{first_line}: {width} columns, but the tag is looked for in "
                f"tag_column={layout.tag_column} (a test file without tags can only be predicted)"
            )
        if not -width <= layout.word_column < width:
            raise ValueError(
                f"{path}:{first_line}: {width} columns, but the word is looked for in"
                f" word_column={layout.word_column}"
            )
        words = [fields[layout.word_column] for _, fields in block]
        sentences.add(words, tags, document, first_line)
    if tag_check is not None:
        tag_check.refuse()
    refuse_wrong_file(
        path, damaged, num_sentences, "one word a line with the same number of columns"
    )
    sentences.counts["damaged_sentences"] = len(damaged)
    return sentences


def _numbered_blocks(
    path: Path, layout: ColumnFormat, sentences: TaggedSentences
) -> Iterator[tuple[int, Block]]:
    """(number of its document, sentence); notes in `sentences` whether the file has documents."""
    document = 0
    for starts_document, block in _blocks(path, layout):
        if starts_document:
            sentences.has_documents = True
        # Without marks every sentence is a document of its own.
        if starts_document or not sentences.has_documents:
            document += 1
        if block:
            yield document, block


def _tags_of(block: Block, layout: ColumnFormat, tag_check: TagCheck | None) -> list[str]:
    """The tags of a sentence as written."""
    if tag_check is None:
        return [fields[layout.tag_column] for _, fields in block]
    return [tag_check.add(line, layout.tag_of(fields)) for line, fields in block]


def _damage(block: Block, expected_width: int) -> str:
    """Line and fault of a sentence's first damaged word; "" for none."""
    for number, fields in block:
        if not fields:
            return f"{number}: not UTF-8 text"
        if len(fields) != expected_width:
            return f"{number}: {len(fields)} columns, expected {expected_width}"
    return ""


def _blocks(path: Path, layout: ColumnFormat) -> Iterator[tuple[bool, Block]]:
    """Yield each sentence, and whether a document begins with it.

    A document mark comes with an empty sentence.
    """
    if begins_as_json(beginning_of(path)):
        raise ValueError(
            f"{path} holds JSON objects: a tagging task reads a word a line, its tag behind a"
            " blank or a tab, and an empty line behind each sentence; docs/tasks.md turns one"
            " into the other"
        )
    block: Block = []
    for number, line in text_lines(path):
        if line is None:  # not UTF-8
            block.append((number, []))
            continue
        starts_document = layout.starts_document(line)
        if starts_document or not line.strip(" \t"):
            yield False, block
            block = []
            if starts_document:
                yield True, []
        elif layout.is_comment(line):
            continue
        elif "\t" in line:
            # A tab-separated word may hold blanks, and other white space is part of a word.
            block.append((number, line.split("\t")))
        else:
            block.append((number, re.split(" +", line.strip(" "))))
    yield False, block


def predicted_lines(path: Path, layout: ColumnFormat, tags: Sequence[str]) -> Iterator[str]:
    """The lines of a file without damage, with a tag for each word in file order.

    It is one more column, the last, as `conlleval` wants it; in conllu, whose columns are fixed, it
    stands in its own.
    """
    next_tags = iter(tags)
    for _, line in text_lines(path):
        assert line is not None, "a damaged file is refused before it is predicted"
        if not line.strip(" \t") or layout.is_comment(line):
            yield line
            continue
        if layout.is_conllu:
            fields = line.split("\t")
            fields[layout.tag_column] = next(next_tags)
            yield "\t".join(fields)
            continue
        if layout.starts_document(line):
            tag = DOCUMENT_TAG
        else:
            tag = next(next_tags)
        if "\t" in line:
            yield f"{line}\t{tag}"
        else:
            yield f"{line.rstrip(' ')} {tag}"
    assert next(next_tags, None) is None, "one tag a word"
