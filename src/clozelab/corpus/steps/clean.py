"""The step `clean` takes invisible characters, HTML tags and light Markdown out of documents."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import filterfalse

from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport

EMPTY = "empty document"
REASON = "cleaned"
HOLDS_WORD = re.compile(r"[^\W_]")  # searched in a line
_TAG_NAMES = (
    "a|abbr|b|big|blockquote|br|center|cite|code|dd|del|dfn|div|dl|dt|em|font|gallery|h[1-6]|hr|i"
    "|id|imagemap|includeonly|ins|kbd|li|math|noinclude|nowiki|ol|onlyinclude|p|poem|pre|q|rb|ref"
    "|rp|rt|ruby|s|score|small|span|strike|strong|sub|sup|table|tbody|td|th|tr|tt|u|ul|var"
)
_ATTRIBUTE_VALUE = "\"[^\"<>]{0,300}\"|'[^'<>]{0,300}'|[^\\s<>\"']{1,300}"
# Known names with well-formed attributes only: "a<b and c>d" is mathematics.
_TAG = re.compile(
    r"<!--[^<>]{0,1000}-->"
    rf"|</?(?:{_TAG_NAMES})(?:\s+[\w:-]{{1,40}}\s*=\s*(?:{_ATTRIBUTE_VALUE}))*\s*/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\ufffd"
    "\ud800-\udfff]"
)
_LINE_END = re.compile("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]")
# A pattern that begins with a plain character is looked for at ten times the speed of one that
# begins with a condition: so a heading begins with the end of the line before it, and what stands
# before an emphasis is looked at behind its first sign.
_HEADING = re.compile(r"\n[ \t]*#{1,6}[ \t]+")
_EMPHASIS = re.compile(r"(([*_])(?<![\w*][*_])\2{0,2})(?=\S)([^*_\n]{1,400})(?<=\S)\1(?![\w*])")
# what _INVISIBLE or _LINE_END finds, and what of it is ASCII
_UNUSUAL = re.compile(f"{_INVISIBLE.pattern[:-1]}{_LINE_END.pattern[1:]}")
_CONTROLS = _UNUSUAL.findall("".join(map(chr, range(128))))


class Clean(CorpusStep):
    """Takes out what is no text, and lines without a word; an empty document is dropped."""

    name = "clean"

    def apply(
        self,
        documents: Iterable[Document],
        table: Arrays,  # noqa: ARG002
        report: StepReport,
    ) -> Iterator[Document]:
        """As `CorpusStep` says."""
        for document in documents:
            lines = clean("\n".join(document.lines))
            if not lines:
                report.drop(document, EMPTY)
                continue
            if lines != document.lines:
                report.changed[REASON] += 1
                report.characters[REASON] += document.num_characters - sum(map(len, lines))
            yield replace(document, lines=lines)


def clean(text: str) -> list[str]:
    """Lines that hold a word, without invisible characters, HTML tags and light Markdown."""
    # Each pattern runs only where a sign of it is in the text.
    if "&" in text:
        text = _ENTITY.sub(lambda match: html.unescape(match[0]), text)
    if _is_unusual(text):
        text = _LINE_END.sub("\n", _INVISIBLE.sub("", text))
    if "<" in text:
        text = _TAG.sub(" ", text)
    if "#" in text:
        text = _HEADING.sub("\n", f"\n{text}")
    lines = text.split("\n")
    if "*" in text or "_" in text:
        lines = list(map(_without_emphasis, lines))
    return lines_with_word([line.strip() for line in lines])


def _is_unusual(text: str) -> bool:
    """Whether _UNUSUAL finds something; in ASCII, as most lines are, it is slow to find nothing."""
    if any(map(text.__contains__, _CONTROLS)):
        return True
    other_lines = "".join(filterfalse(str.isascii, text.split("\n")))
    return _UNUSUAL.search(other_lines) is not None


def _without_emphasis(line: str) -> str:
    if "*" in line or "_" in line:
        return _EMPHASIS.sub(r"\3", line)
    return line


def lines_with_word(lines: Iterable[str]) -> list[str]:
    """The lines that hold a word."""
    # Most begin with one, and the pattern takes longer than a look at a character.
    return [line for line in lines if line[:1].isalnum() or HOLDS_WORD.search(line)]
