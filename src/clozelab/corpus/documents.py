"""Documents of a corpus as sentences, and the simple way to read them: one after another.

A preparation does the same shard by shard (preparation/passes.py). Memory does not grow with the
text but for a number a document, to find duplicates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import sentencex

from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.preparation.texts import TextShard, cut_shards
from clozelab.corpus.steps.clean import EMPTY, Clean, lines_with_word
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport, TableStep

# rules of the sentence splitter; abbreviations differ, most rules are shared between languages
LANGUAGE = "en"
MAX_SENTENCE_CHARACTERS = 2000  # a longer sentence is cut between words
# beyond, a sentence is looked at again without the quotation marks of a speech
LONG_SENTENCE_CHARACTERS = 300
# what the splitter sees at once: a quotation mark left open would swallow the rest
MAX_PIECE_CHARACTERS = 8000
# what `read_documents` reads at a time
READ_CHARACTERS = 1_000_000
DUPLICATE = "duplicate document"
NO_TABLE: Arrays = {}

# Blanks that are no ASCII. sentencex 1.0.32 panics where one stands between a single capital and a
# full stop, as in "vitamin C&nbsp;."
BLANKS = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_HALTING = re.compile(rf"(?<!\w)[A-Z]\s*[{BLANKS}]\s*\.")
_BLANK_BEFORE_STOP = re.compile(rf"[{BLANKS}]\s*\.")  # rare, and found at six times the speed
_BLANKS = str.maketrans(dict.fromkeys(filter(str.isspace, map(chr, range(128, 0x3001))), " "))
_QUOTES = '"“”„«»‘'


def read_documents(
    files: Iterable[Shard],
    counts: CorpusCounts,
    steps: Sequence[CorpusStep] = (Clean(),),
) -> Iterator[Document]:
    """Documents of all files in order, their lines sentences, each text once.

    Steps with a table are left out. `counts` grows. ValueError as of `cut_shards`.
    """
    seen = set[int]()
    without_table = [(step, NO_TABLE) for step in steps if not isinstance(step, TableStep)]
    for shard in cut_shards(files, counts, max_characters=READ_CHARACTERS):
        report = StepReport()
        for document in prepared_documents(shard, without_table, report):
            text_hash = hash_of("\n".join(document.lines))
            if text_hash in seen:
                counts.dropped[DUPLICATE] += 1
                continue
            seen.add(text_hash)
            counts.documents += 1
            counts.sentences += len(document.lines)
            counts.characters += document.num_characters
            yield document
        counts.dropped.update(report.documents)


def prepared_documents(
    shard: TextShard, steps: Sequence[tuple[CorpusStep, Arrays]], report: StepReport
) -> Iterator[Document]:
    """What steps leave of a shard, each with its table; with sentences for lines."""
    documents = shard.documents()
    for step, table in steps:
        documents = step.apply(documents, table, report)
    return sentences_of(documents, report)


def sentences_of(documents: Iterable[Document], report: StepReport) -> Iterator[Document]:
    """The documents of a shard with sentences for lines; one without a sentence is dropped."""
    for document in documents:
        if document.has_sentences:
            sentences = list(chain.from_iterable(map(_whole_line, document.lines)))
        else:
            sentences = split_paragraphs(document.lines)
        if sentences:
            yield replace(document, lines=sentences)
        else:
            report.drop(document, EMPTY)


def hash_of(text: str) -> int:
    """64 bits that name a text."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def split_paragraphs(paragraphs: Iterable[str]) -> list[str]:
    """Sentences of paragraphs; none goes on in the next paragraph.

    Each has a word in it, and is at most MAX_SENTENCE_CHARACTERS long.
    """
    segments = []
    for paragraph in paragraphs:
        pieces = [paragraph.strip()]
        if len(paragraph) > MAX_PIECE_CHARACTERS:
            pieces = _cut(paragraph, MAX_PIECE_CHARACTERS, ". ")
        for piece in pieces:
            segments += _segments(piece, piece)
    sentences = []
    for segment in segments:
        if len(segment) <= LONG_SENTENCE_CHARACTERS:
            sentences.append(segment.strip())
            continue
        # Boundaries inside of a quoted speech are found without the quotation marks.
        masked = segment
        for quote in _QUOTES:
            masked = masked.replace(quote, " ")  # str.translate takes ten times as long
        for part in _segments(segment, masked):
            sentences += _whole_line(part)
    return lines_with_word(sentences)


def _segments(text: str, masked: str) -> list[str]:
    """The parts of a text that stand where the sentences of `masked`, which is as long, do."""
    has_blank = not masked.isascii() and _BLANK_BEFORE_STOP.search(masked)
    if has_blank and _HALTING.search(masked):
        masked = masked.translate(_BLANKS)
    segments = sentencex.segment(LANGUAGE, masked)
    if masked == text:
        return segments
    ends = list(accumulate(map(len, segments)))
    return [text[start:end] for start, end in pairwise([0, *ends])]


def _whole_line(line: str) -> list[str]:
    """A line that is one sentence already, cut where it is too long; none without a word."""
    parts = [line.strip()]
    if len(parts[0]) > MAX_SENTENCE_CHARACTERS:
        parts = _cut(parts[0], MAX_SENTENCE_CHARACTERS, " ")
    return lines_with_word(parts)


def _cut(text: str, size: int, boundary: str) -> list[str]:
    """Parts of at most `size` characters that end at a boundary, else at a space, else anywhere."""
    pieces = []
    start = 0
    while len(text) - start > size:
        # A boundary in the second half only: pieces stay large, so the work stays proportional to
        # the text.
        earliest = start + size // 2
        latest = start + size
        last = text.rfind(boundary, earliest, latest)
        if last < 0:
            last = text.rfind(" ", earliest, latest)
        end = latest
        if last >= 0:
            end = last + 1
        pieces.append(text[start:end].strip())
        start = end
    pieces.append(text[start:].strip())
    return pieces
