"""Documents of a corpus: cleaning, sentences, duplicates, and the train/validation split.

Unusual: everything here is a pure function of the files, streamed document by document, and is run
twice: once to survey, once to write. Memory does not grow with the corpus but for 20 bytes a
document: to find duplicates, to split.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import sentencex

from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.steps.clean import HOLDS_WORD, clean
from clozelab.readers.bad_rows import MAX_BAD_FRACTION
from clozelab.readers.lines import Advance, ignore

# rules of the sentence splitter; abbreviations differ, most rules are shared between languages
LANGUAGE = "en"
MAX_SENTENCE_CHARACTERS = 2000  # a longer sentence is cut between words
# beyond, a sentence is looked at again without the quotation marks of a speech
LONG_SENTENCE_CHARACTERS = 300
# what the splitter sees at once: a quotation mark left open would swallow the rest
MAX_PIECE_CHARACTERS = 8000
# a text file without blank lines becomes documents of this size, not one
MAX_DOCUMENT_CHARACTERS = 4_000_000
# what the split takes to one side: some 4,000 tokens, seven of the longest instances
STRETCH_CHARACTERS = 16_000

_QUOTES = str.maketrans('"“”„«»‘', " " * 7)


@dataclass(frozen=True)
class Document:
    source: int
    sentences: list[str]
    hash: int  # of the text

    @property
    def num_characters(self) -> int:
        return sum(map(len, self.sentences))


def read_documents(
    shards: Iterable[Shard],
    counts: CorpusCounts,
    advance: Advance = ignore,
) -> Iterator[Document]:
    """Cleaned documents of all shards in order, each text once.

    `counts` grows; `advance` is told of bytes read. ValueError for a binary or damaged file, and
    where more than 1 % of all rows are unusable.
    """
    seen = SeenHashes()
    for shard in shards:
        texts = shard.texts(counts, advance)
        split_line: Callable[[str], list[str]] = split_paragraph
        if shard.has_lines:
            texts = _paragraphs(texts)
            split_line = _whole_line
        for text in texts:
            sentences = []
            for line in clean(text):
                sentences += split_line(line)
            document = Document(shard.source, sentences, hash_of("\n".join(sentences)))
            if not sentences:
                counts.dropped["empty document"] += 1
            elif not seen.add(document.hash):
                counts.dropped["duplicate document"] += 1
            else:
                counts.documents += 1
                counts.sentences += len(sentences)
                counts.characters += document.num_characters
                # Cleaned lines have a single blank between two words.
                num_blanks = sum(sentence.count(" ") for sentence in sentences)
                counts.words[shard.source] += num_blanks + len(sentences)
                yield document
    _refuse_many_bad(counts)


def _refuse_many_bad(counts: CorpusCounts) -> None:
    num_bad = counts.bad.total()
    if num_bad <= max(1, MAX_BAD_FRACTION * counts.rows):
        return
    problem = (
        f"{num_bad} of {counts.rows} rows cannot be read, more than {MAX_BAD_FRACTION:.0%}; the"
        " first ones:"
    )
    advice = "check the encoding (UTF-8), the format and the text_field of this source"
    raise ValueError("\n  ".join([problem, *counts.first_bad[:5]]) + f"\n{advice}")


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


def hash_of(text: str) -> int:
    """64 bits that name a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def split_paragraph(paragraph: str) -> list[str]:
    """Sentences of one paragraph.

    Each has a word in it, and is at most MAX_SENTENCE_CHARACTERS long.
    """
    sentences = []
    for piece in _cut(paragraph, MAX_PIECE_CHARACTERS, ". "):
        for sentence in sentencex.segment(LANGUAGE, piece):
            if len(sentence) <= LONG_SENTENCE_CHARACTERS:
                sentences.append(sentence.strip())
                continue
            for quoted in _split_quoted(sentence):
                sentences += _whole_line(quoted)
    return [sentence for sentence in sentences if HOLDS_WORD.search(sentence)]


def _split_quoted(sentence: str) -> Iterator[str]:
    """Sentences inside a quoted speech.

    Boundaries are found without the quotation marks, and the parts keep them.
    """
    start = 0
    for masked in sentencex.segment(LANGUAGE, sentence.translate(_QUOTES)):
        yield sentence[start : start + len(masked)]
        start += len(masked)


def _whole_line(line: str) -> list[str]:
    """A line that is one sentence already, cut where it is too long."""
    line = line.strip()
    if len(line) <= MAX_SENTENCE_CHARACTERS:
        return [line]
    return [part for part in _cut(line, MAX_SENTENCE_CHARACTERS, " ") if HOLDS_WORD.search(part)]


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


class SeenHashes:
    """A set of 64-bit hashes in 8 bytes each.

    It is a sorted array, and a small set that is merged into it when full.
    """

    RECENT = 2**16

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype=np.uint64)
        self._recent: set[int] = set()

    def add(self, value: int) -> bool:
        """Whether the value is new."""
        if value in self._recent:
            return False
        place = bisect_left(self._sorted, value)
        if place < len(self._sorted) and int(self._sorted[place]) == value:
            return False
        self._recent.add(value)
        if len(self._recent) >= self.RECENT:
            self._sorted = np.union1d(self._sorted, np.fromiter(self._recent, dtype=np.uint64))
            self._recent = set()
        return True


class TextSample:
    """A bounded sample of text, in no order.

    It is the blocks of sentences whose hash is below a threshold, which halves at need.
    """

    BLOCK_SENTENCES = 32
    # a short document is one block: by its plain hash it would be held-out text, see SplitRule
    SALT = "vocabulary\n"

    def __init__(self, max_characters: float) -> None:
        self.max_characters = max_characters
        self.threshold = 2**64
        self._blocks: list[tuple[int, str]] = []
        self._characters = 0

    def add(self, document: Document) -> None:
        for start in range(0, len(document.sentences), self.BLOCK_SENTENCES):
            block = "\n".join(document.sentences[start : start + self.BLOCK_SENTENCES])
            block_hash = hash_of(f"{self.SALT}{block}")
            if block_hash < self.threshold:
                self._blocks.append((block_hash, block))
                self._characters += len(block)
        while self._characters > self.max_characters:
            self.threshold //= 2
            self._blocks = [entry for entry in self._blocks if entry[0] < self.threshold]
            self._characters = sum(len(block) for _, block in self._blocks)

    def texts(self) -> list[str]:
        return [block for _, block in self._blocks]


def stretches(sentences: Sequence[str]) -> list[tuple[int, int, int]]:
    """(end, characters, hash) of a document's stretches.

    They are as few and as even ones as STRETCH_CHARACTERS allow; `end` numbers sentences.
    """
    ends = np.cumsum([len(sentence) for sentence in sentences])
    num_characters = ends[-1]
    num_stretches = -(-num_characters // STRETCH_CHARACTERS)
    # A sentence belongs to the stretch that its last character lies in: lengths [6, 4, 9, 1] and
    # two stretches have the numbers [0, 0, 1, 1].
    number = (ends - 1) * num_stretches // num_characters
    cuts = (np.flatnonzero(np.diff(number)) + 1).tolist()
    result = []
    characters_before = 0
    for first, end in pairwise([0, *cuts, len(sentences)]):
        characters = int(ends[end - 1]) - characters_before
        result.append((end, characters, hash_of("\n".join(sentences[first:end]))))
        characters_before += characters
    return result


class SplitRule:
    """Which side of the split a stretch of text is on.

    Validation gets those of the lowest hash of every source, up to a share of its characters. So no
    source or long document has more than its share, and a short document lies on one side as a
    whole.
    """

    def __init__(self, validation_fraction: float) -> None:
        self.validation_fraction = validation_fraction
        self._seen: dict[int, tuple[array[int], array[int]]] = {}
        self._limits: dict[int, int] = {}

    def observe(self, document: Document) -> None:
        hashes, sizes = self._seen.setdefault(document.source, (array("Q"), array("I")))
        for _, characters, stretch in stretches(document.sentences):
            hashes.append(stretch)
            sizes.append(characters)

    @property
    def num_stretches(self) -> int:
        """Of different text, observed so far; of several sources the same text counts for each."""
        return sum(len(np.unique(hashes)) for hashes, _ in self._seen.values())

    def settle(self) -> None:
        """Find how far each source's share reaches, after every document was observed.

        It reaches to one stretch at least. A source of a single stretch is trained on, unless all
        are.
        """
        all_single = True
        for source, (hashes, sizes) in self._seen.items():
            distinct, inverse = np.unique(hashes, return_inverse=True)
            # By ascending hash: a stretch is held out whose middle lies inside the share.
            weights = np.bincount(inverse, sizes)
            middles = np.cumsum(weights) - weights / 2
            share = self.validation_fraction * weights.sum()
            num_held_out = max(1, int(np.searchsorted(middles, share)))
            self._limits[source] = int(distinct[min(num_held_out, len(distinct) - 1)])
            all_single &= len(distinct) == 1
        if all_single:
            self._limits[min(self._limits, key=self._limits.__getitem__)] = 2**64
        self._seen = {}

    def held_out(self, document: Document) -> list[bool]:
        """Whether each sentence is held out."""
        limit = self._limits[document.source]
        sides: list[bool] = []
        for end, _, stretch_hash in stretches(document.sentences):
            sides += [stretch_hash < limit] * (end - len(sides))
        return sides
