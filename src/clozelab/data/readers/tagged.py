"""Tagged sentences as model inputs: which rows are encoded, and where in them the words stand that are scored.

The first sub-token of a word stands for it. A row is a sentence or, with document context, a window: the sentence in
the middle, and as much of its document on both sides as fits, whole words only. Only the middle's words are scored, so
that every word is scored exactly once and in the largest context. A sentence longer than a row becomes several rows,
each with its own words to score: none is lost.

Letters: N rows, S sentences, W scored words (in file order over rows and sentences alike), B rows of a batch, T tokens
and U scored words of a batch.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.readers.cache import Arrays
from clozelab.data.readers.conll import ColumnFormat, TaggedSentences
from clozelab.data.readers.rows import Ints, TokenRows, concatenate, ragged_positions
from clozelab.data.tokenizer import WordPieceTokenizer


@dataclass(frozen=True)
class TaggedRows:
    """Rows with a target for some of their tokens."""

    rows: TokenRows
    """[N]."""
    word_offsets: Ints
    """[N + 1] into the scored words."""
    word_positions: NDArray[np.int32]
    """[W]: where in its row each scored word's first sub-token stands."""
    labels: Ints
    """[W]."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Ints:
        return self.rows.lengths

    @property
    def num_targets(self) -> Ints:
        return np.diff(self.word_offsets)

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """As TokenRows, and of the scored words [U]: `word_rows` (place in the stream), `word_index` (place in the
        split), `labels`."""
        arrays = self.rows.gather(index)
        counts = self.word_offsets[index + 1] - self.word_offsets[index]
        words = ragged_positions(self.word_offsets[index], counts)[1]
        starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
        word_rows = np.repeat(starts, counts) + self.word_positions[words]
        return arrays | {"word_rows": word_rows, "word_index": words, "labels": self.labels[words]}


@dataclass(frozen=True)
class TaggedSplit:
    """One split: what is encoded, and the sentences it comes from."""

    rows: TaggedRows
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
    """Names the content: what is computed from the rows can be stored under it."""
    path: Path | None = None
    """The file they come from."""
    layout: ColumnFormat | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> Ints:
        return self.rows.labels

    def by_sentence(self, values: Sequence[Any]) -> list[list[Any]]:
        """[W] -> one list a sentence."""
        starts = self.sentence_offsets.tolist()
        return [list(values[a:b]) for a, b in itertools.pairwise(starts)]


def build_rows(
    sentences: TaggedSentences,
    chosen: Sequence[int],
    tokenizer: WordPieceTokenizer,
    *,
    max_seq_length: int,
    document_context: bool,
) -> tuple[Arrays, Counter[str]]:
    """The arrays of the rows of the `chosen` sentences (context comes from all), and what was unusual about them."""
    budget = max_seq_length - 2
    if budget < 1:
        raise ValueError(f"max_seq_length={max_seq_length} leaves no room for words beside the special tokens")
    tokens, starts, counts = _tokenise([word for words in sentences.words for word in words], tokenizer, budget)
    ends = np.cumsum([len(words) for words in sentences.words])
    documents = _document_ranges(sentences, ends) if document_context else None
    rows, positions, num_words = [], [], []
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    for sentence in chosen:
        first, last = int(ends[sentence]) - len(sentences.words[sentence]), int(ends[sentence])
        pieces = list(_pieces(starts, first, last, budget))
        counts["split_sentences"] += len(pieces) > 1
        for begin, end in pieces:
            a, b = _window(starts, begin, end, documents[sentence], budget) if documents is not None else (begin, end)
            counts["context_tokens"] += int(starts[b] - starts[a] - (starts[end] - starts[begin]))
            rows.append(np.concatenate([cls, tokens[starts[a] : starts[b]], sep]))
            positions.append((starts[begin:end] - starts[a] + 1).astype(np.int32))
            num_words.append(end - begin)
    input_ids, offsets = concatenate(rows)
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


def _tokenise(
    words: list[str], tokenizer: WordPieceTokenizer, budget: int
) -> tuple[NDArray[np.int32], Ints, Counter[str]]:
    """Tokens of all words, the place of each word's first one [words + 1], counts. A word without any token (a lone
    control character) becomes [UNK], for it is scored like any other; one with more than a row holds is cut."""
    ids, lengths = tokenizer.encode_flat(words)
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
    """Words first..last in runs that fit a row; nearly always one."""
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
