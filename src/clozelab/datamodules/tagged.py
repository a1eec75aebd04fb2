"""Sentences whose words carry tags: CoNLL column files, and Universal Dependencies' conllu.

A column file has one word a line, its columns between tabs (then nothing else separates) or blanks, a blank line
between sentences and, where the set has documents, a `-DOCSTART-` line before each. In conllu `# newdoc` begins a
document; multiword ranges (`3-4`) and empty nodes (`8.1`) are not words. Lines that hold only blanks end a sentence too
(WNUT-17).

A sentence with a damaged line is left out and counted; a file with more than 1 % of them is refused.

Tagged sentences as model inputs: which sequences are encoded, and where in them the words stand that are scored.

The first sub-token of a word stands for it. A sequence is a sentence or, with document context, a window: the sentence
in the middle, and as much of its document on both sides as fits, whole words only. Only the middle's words are scored,
so that every word is scored exactly once and in the largest context. A sentence longer than a sequence becomes several,
each with its own words to score: none is lost.

Letters: N sequences, S sentences, W scored words (in file order over sequences and sentences alike), B sequences, T
tokens and U scored words of a batch.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.cache import Arrays
from clozelab.datamodules.examples import Ints, TokenSequences, concatenate, ragged_positions
from clozelab.datamodules.files import refuse_wrong_file, text_lines

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


@dataclass(frozen=True)
class TaggedSequences:
    """Sequences with a target for some of their tokens."""

    sequences: TokenSequences
    """[N]."""
    word_offsets: Ints
    """[N + 1] into the scored words."""
    word_positions: NDArray[np.int32]
    """[W]: where in its sequence each scored word's first sub-token stands."""
    labels: Ints
    """[W]."""

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths

    @property
    def num_targets(self) -> Ints:
        return np.diff(self.word_offsets)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """As TokenSequences; and of the scored words [U]: `word_slots` (place in the stream), `word_index` (place in
        the split), `labels`."""
        arrays = self.sequences.gather(index)
        counts = self.word_offsets[index + 1] - self.word_offsets[index]
        words = ragged_positions(self.word_offsets[index], counts)[1]
        starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
        word_slots = np.repeat(starts, counts) + self.word_positions[words]
        return arrays | {"word_slots": word_slots, "word_index": words, "labels": self.labels[words]}


@dataclass(frozen=True)
class TaggedSplit:
    """One split: what is encoded, and the sentences it comes from."""

    sequences: TaggedSequences
    sentence_offsets: Ints
    """[S + 1] into the scored words."""
    words: list[str]
    """[W]."""
    ids: NDArray[np.str_]
    """[S]: the line of each sentence's first word in its file."""
    label_names: list[str]
    entity_tags: bool
    counts: dict[str, Any]
    """What is unusual about the sentences in use, and how their tags were written."""
    key: str
    """Names the content: what is computed from the sequences can be stored under it."""
    path: Path | None = None
    """The file they come from."""
    layout: ColumnFormat | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_bad_rows(self) -> int:
        """Sentences with a damaged line."""
        return self.counts.get("damaged_sentences", 0)

    @property
    def labels(self) -> Ints:
        return self.sequences.labels

    def by_sentence(self, values: Sequence[Any]) -> list[list[Any]]:
        """[W] -> one list a sentence."""
        starts = self.sentence_offsets.tolist()
        return [list(values[a:b]) for a, b in itertools.pairwise(starts)]


def build_sequences(
    sentences: TaggedSentences,
    chosen: Sequence[int],
    tokenizer: Tokenizer,
    *,
    max_seq_length: int,
    document_context: bool,
) -> tuple[Arrays, Counter[str]]:
    """The arrays of the `chosen` sentences' sequences (context comes from all), and what was unusual about them."""
    budget = max_seq_length - 2
    if budget < 1:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for words beside the special tokens")
    tokens, starts, counts = _tokenise([word for words in sentences.words for word in words], tokenizer, budget)
    ends = np.cumsum([len(words) for words in sentences.words])
    documents = _document_ranges(sentences, ends) if document_context else None
    sequences, positions, num_words = [], [], []
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    for sentence in chosen:
        first, last = int(ends[sentence]) - len(sentences.words[sentence]), int(ends[sentence])
        pieces = list(_pieces(starts, first, last, budget))
        counts["split_sentences"] += len(pieces) > 1
        for begin, end in pieces:
            a, b = _window(starts, begin, end, documents[sentence], budget) if documents is not None else (begin, end)
            counts["context_tokens"] += int(starts[b] - starts[a] - (starts[end] - starts[begin]))
            sequences.append(np.concatenate([cls, tokens[starts[a] : starts[b]], sep]))
            positions.append((starts[begin:end] - starts[a] + 1).astype(np.int32))
            num_words.append(end - begin)
    input_ids, offsets = concatenate(sequences)
    word_offsets = np.concatenate([[0], np.cumsum(num_words)]).astype(np.int64)
    sentence_words = [len(sentences.words[sentence]) for sentence in chosen]
    arrays: Arrays = {
        "input_ids": input_ids,
        "offsets": offsets,
        "word_offsets": word_offsets,
        "word_positions": concatenate(positions)[0],
        "sentence_offsets": np.concatenate([[0], np.cumsum(sentence_words)]).astype(np.int64),
        "ids": np.array([str(sentences.lines[sentence]) for sentence in chosen], dtype=np.str_),
    }
    return arrays, counts


def _tokenise(words: list[str], tokenizer: Tokenizer, budget: int) -> tuple[NDArray[np.int32], Ints, Counter[str]]:
    """Tokens of all words, the place of each word's first one [words + 1], counts. A word without any token (a lone
    control character) becomes [UNK], for it is scored like any other; one with more than a sequence holds is cut."""
    ids, lengths = tokenizer.encode_words(words)
    kept = np.minimum(lengths, budget)
    starts = np.concatenate([[0], np.cumsum(np.maximum(kept, 1))]).astype(np.int64)
    tokens = np.full(int(starts[-1]), tokenizer.unk_id, dtype=np.int32)
    source = ragged_positions(np.cumsum(lengths) - lengths, kept)[1]
    tokens[ragged_positions(starts[:-1], kept)[1]] = ids[source]
    counts = Counter(words_without_tokens=int((lengths == 0).sum()), cut_words=int((lengths > budget).sum()))
    return tokens, starts, counts


def _document_ranges(sentences: TaggedSentences, ends: Ints) -> list[tuple[int, int]]:
    """(first word, one behind the last) of each sentence's document."""
    documents = np.array(sentences.documents)
    first = np.searchsorted(documents, documents, side="left")
    last = np.searchsorted(documents, documents, side="right") - 1
    begins = ends - np.array([len(words) for words in sentences.words])
    return list(zip(begins[first].tolist(), ends[last].tolist(), strict=True))


def _pieces(starts: Ints, first: int, last: int, budget: int) -> Iterator[tuple[int, int]]:
    """Words first..last in runs that fit a sequence; nearly always one."""
    while first < last:
        end = min(last, int(np.searchsorted(starts, starts[first] + budget, side="right")) - 1)
        yield first, end
        first = end


def _window(starts: Ints, begin: int, end: int, document: tuple[int, int], budget: int) -> tuple[int, int]:
    """Words begin..end with as many neighbours as fit: as much before as behind, more where one side has too few."""
    spare = budget - int(starts[end] - starts[begin])
    before, behind = int(starts[begin] - starts[document[0]]), int(starts[document[1]] - starts[end])
    left = min(before, max(spare // 2, spare - behind))
    first = int(np.searchsorted(starts, starts[begin] - left, side="left"))
    right = min(behind, spare - int(starts[begin] - starts[first]))
    return first, int(np.searchsorted(starts, starts[end] + right, side="right")) - 1
