"""The words of sentences as a unit: a head reads each word's first sub-token.

A sequence is a sentence or, with document context, a window: the sentence in the middle, and as
many whole words of its document on both sides as fit. Only the middle's words are scored, so that
every word is scored exactly once; a sentence longer than a sequence becomes several, and none is
lost.

    document    [Rare words .] [EU rejects German call .] [Peter left .]
    sequence    [CLS] words . [EU rejects German call .] Peter left [SEP]
    scored                     ^  ^       ^      ^    ^

Unusual: outputs exist for scored words only; the sub-tokens behind a word's first, and the words of
the document around the sentence, are context and nothing else.

Letters: N sequences, S sentences, W scored words in file order; B sequences, T tokens and U scored
words of a batch, H hidden size.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.readers.conll import ColumnFormat, TaggedSentences, predicted_lines, read_conll
from clozelab.tasks.batches import Batch
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.labels import ANY, NUMBERS, LabelColumn
from clozelab.tasks.sequences import (
    Int32s,
    Ints,
    Sequences,
    TokenSequences,
    assemble,
    concatenate,
    marked_tokens,
    offsets_of,
    ragged_positions,
)
from clozelab.tasks.target import Files, Target
from clozelab.tasks.unit import BatchContext, Split, SplitSource, TaskModel, Unit
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_tags(
    path: Path, layout: ColumnFormat, expected: str = ANY, listed: Sequence[str] = ()
) -> TaggedSentences:
    """Read a file whose words have tags.

    They are `expected` to be ANY, CLASSES or NUMBERS (labels.py); those that are `listed` are tags
    whatever they look like.
    """
    check = LabelColumn(path, None, expected, listed=listed, is_tag=True)
    return read_conll(path, layout, check)


def count_targets(labels: np.ndarray, word_offsets: Ints) -> Ints:
    """[N]: the words of each sequence that have a label; one whose label is NaN has none."""
    if labels.dtype.kind != "f":
        return np.diff(word_offsets)
    counts = offsets_of((~np.isnan(labels)).astype(np.int64))
    return np.diff(counts[word_offsets])


@dataclass(frozen=True)
class TaggedSequences(Sequences):
    """Sequences with a target for some of their tokens."""

    sequences: TokenSequences  # [N]
    word_offsets: Ints  # [N + 1] into the scored words
    # [W]: where in its sequence each scored word's first sub-token stands
    word_positions: NDArray[np.int32]
    labels: np.ndarray  # [W]

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths

    @property
    def num_targets(self) -> Ints:
        return count_targets(self.labels, self.word_offsets)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The batch's arrays, and three of its scored words [U].

        `word_slots` is their place in the batch's stream of tokens, `word_index` their place in the
        split, `labels` their target.
        """
        arrays = self.sequences.gather(index)
        word_index, word_slots = marked_tokens(
            self.word_offsets, self.word_positions, index, arrays["lengths"]
        )
        return arrays | {
            "word_slots": word_slots,
            "word_index": word_index,
            "labels": self.labels[word_index],
        }


def build_sequences(
    sentences: TaggedSentences,
    selection: Sequence[int],
    tokenizer: Tokenizer,
    max_seq_length: int,
    document_context: bool,
) -> tuple[Arrays, Counter[str]]:
    """The arrays of the selected sentences' sequences, and what was unusual about them.

    `selection` are numbers of sentences; their context comes from all.
    """
    budget = max_seq_length - 2
    if budget < 1:
        raise ValueError(
            f"max_seq_length={max_seq_length} leaves no room for words beside the special tokens"
        )
    tokens, starts, counts = _encode_words(sentences, tokenizer, budget)
    sentence_starts = offsets_of([len(words) for words in sentences.words])  # [S + 1] into words
    # Numbers of documents rise, so a document's first and last sentence are found by bisection.
    # Documents [1, 1, 2] with sentences of 3, 2 and 4 words begin at [0, 0, 5], end at [5, 5, 9].
    documents = sentences.documents
    document_begins = sentence_starts[np.searchsorted(documents, documents, side="left")]
    document_ends = sentence_starts[np.searchsorted(documents, documents, side="right")]
    pieces: list[Int32s] = []
    positions: list[Int32s] = []
    num_words = []
    for sentence in selection:
        document = int(document_begins[sentence]), int(document_ends[sentence])
        runs = _runs(
            starts, int(sentence_starts[sentence]), int(sentence_starts[sentence + 1]), budget
        )
        for begin, end in runs:
            first = begin
            last = end
            if document_context:
                first, last = _window(starts, begin, end, document, budget)
            context_before = int(starts[begin] - starts[first])
            context_behind = int(starts[last] - starts[end])
            counts["context_tokens"] += context_before + context_behind
            pieces.append(tokens[starts[first] : starts[last]])
            positions.append((starts[begin:end] - starts[first] + 1).astype(np.int32))
            num_words.append(end - begin)
        if len(runs) > 1:
            counts["split_sentences"] += 1
    word_positions, _ = concatenate(positions)
    sentence_lengths = [len(sentences.words[sentence]) for sentence in selection]
    arrays: Arrays = assemble(tokenizer, pieces).arrays() | {
        "word_offsets": offsets_of(num_words),
        "word_positions": word_positions,
        "sentence_offsets": offsets_of(sentence_lengths),
    }
    return arrays, counts


def _encode_words(
    sentences: TaggedSentences, tokenizer: Tokenizer, budget: int
) -> tuple[Int32s, Ints, Counter[str]]:
    """The tokens of all words behind each other, where each word's begin [words + 1], and counts.

    A word without any token (a lone control character) becomes [UNK], for it is scored like any
    other; one of more than `budget` tokens is cut.

        words     EU      rejects        \\x01
        tokens    eu      reject ##s     [UNK]
        starts    0       1              3        4
    """
    ids, lengths = tokenizer.encode_words(list(itertools.chain.from_iterable(sentences.words)))
    has_no_tokens = lengths == 0
    if tokenizer.unk_id < 0 and has_no_tokens.any():
        raise ValueError(
            "a word has no tokens, and this tokenizer has no unknown token to put there; take"
            " it out"
        )
    kept = np.minimum(lengths, budget)
    starts = offsets_of(np.maximum(kept, 1))
    # Filled with [UNK]; then the first `kept` tokens of each word go to where the word begins.
    tokens = np.full(int(starts[-1]), tokenizer.unk_id, dtype=np.int32)
    _, source = ragged_positions(np.cumsum(lengths) - lengths, kept)
    _, target = ragged_positions(starts[:-1], kept)
    tokens[target] = ids[source]
    counts = Counter(
        words_without_tokens=int(has_no_tokens.sum()), cut_words=int((lengths > budget).sum())
    )
    return tokens, starts, counts


def _runs(starts: Ints, begin: int, last: int, budget: int) -> list[tuple[int, int]]:
    """Cut words begin..last into runs of at most `budget` tokens; nearly always it is one."""
    runs = []
    while begin < last:
        # the last word that begins within `budget` tokens is where the run ends
        end = min(last, int(np.searchsorted(starts, starts[begin] + budget, side="right")) - 1)
        runs.append((begin, end))
        begin = end
    return runs


def _window(
    starts: Ints, begin: int, end: int, document: tuple[int, int], budget: int
) -> tuple[int, int]:
    """The first word, and one behind the last, of words begin..end with as many neighbours as fit.

    There are as many tokens before as behind, and more where one side of the document has too few.
    """
    document_begin, document_end = document
    spare = budget - int(starts[end] - starts[begin])
    before = int(starts[begin] - starts[document_begin])
    tokens_after = int(starts[document_end] - starts[end])
    # Half of the room for the left side, and what the right side cannot fill. Whole words fit:
    # `first` is the first word that begins within it, and the right side gets what is left then.
    left = min(before, max(spare // 2, spare - tokens_after))
    first = int(np.searchsorted(starts, starts[begin] - left, side="left"))
    right = min(tokens_after, spare - int(starts[begin] - starts[first]))
    last = int(np.searchsorted(starts, starts[end] + right, side="right")) - 1
    return first, last


@dataclass(frozen=True)
class Sentences:
    """Some sentences of a file; the others are there as their context."""

    file: TaggedSentences
    selection: Sequence[int]  # numbers of sentences
    # of all sentences of the file, as they are predicted; None: the file has none
    tags: Sequence[Sequence[Any]] | None
    tag_facts: PlainDict = field(default_factory=dict)  # how they were written

    def __len__(self) -> int:
        return len(self.selection)

    def select(self, index: Sequence[int]) -> Sentences:
        return replace(self, selection=[self.selection[number] for number in index])

    @property
    def rows(self) -> list[list[str]]:
        """The words of each sentence."""
        return [self.file.words[number] for number in self.selection]

    @property
    def numbers(self) -> Sequence[int]:
        return self.selection

    @property
    def labels(self) -> list[Sequence[Any]] | None:
        """The tags of each sentence."""
        if self.tags is None:
            return None
        return [self.tags[number] for number in self.selection]

    @property
    def known_labels(self) -> list[Sequence[Any]]:
        """The same of a file that has some."""
        assert self.labels is not None
        return self.labels

    @property
    def lines(self) -> list[int]:
        return [self.file.lines[number] for number in self.selection]

    @property
    def ids(self) -> list[str]:
        return [str(line) for line in self.lines]

    @property
    def num_bad_rows(self) -> int:
        return self.file.counts["damaged_sentences"]

    @property
    def counts(self) -> Mapping[str, int]:
        return self.file.counts


@dataclass(frozen=True, kw_only=True)
class WordSplit(Split):
    """One split: what is encoded, and the sentences it comes from; `labels` [W]."""

    sequences: TaggedSequences
    sentence_offsets: Ints  # [S + 1] into the scored words
    words: list[str]  # [W]
    key: str  # names the content: what is computed from the sequences can be stored under it
    path: Path | None = None
    layout: ColumnFormat | None = None  # the file they come from, and how it is read

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def by_sentence(self, values: Sequence[T]) -> list[list[T]]:
        """[W] -> one list a sentence."""
        bounds = itertools.pairwise(self.sentence_offsets.tolist())
        return [list(values[begin:end]) for begin, end in bounds]

    def records(self, predictions: Sequence[Any], labels: Sequence[Any]) -> list[PlainDict]:
        """What is kept of each sentence; both are lists of one list a sentence."""
        words_by_sentence = self.by_sentence(self.words)
        records = []
        for number, sentence_id in enumerate(self.ids):
            records.append(
                {
                    "id": str(sentence_id),
                    "words": words_by_sentence[number],
                    "prediction": predictions[number],
                    "label": labels[number],
                }
            )
        return records

    def with_column(self, name: str, cells: Sequence[str]) -> Files:
        """The split's file with a column of predictions [W], as a file of this name."""
        assert self.path is not None and self.layout is not None, "it was read from a file"
        suffix = "conllu" if self.layout.is_conllu else "conll"
        return {f"{name}.{suffix}": predicted_lines(self.path, self.layout, cells)}


class WordUnit(Unit[Sentences]):
    """Words of sentences; `max_train_examples` counts sentences.

    Args: as conf/task/format/conll.yaml says of each.
    """

    kind = "WordUnit"
    grouping = "equal sentences, or those of one document, stay together"
    column_key = "task.data.tag_column"
    index_key = "word_index"
    divides_equal_rows = True  # of several documents
    trains_on_several_files = False
    scores_several_files = False

    def __init__(
        self, *, file_format: str, word_column: int, tag_column: int, document_context: bool
    ) -> None:
        self.layout = ColumnFormat(file_format, word_column, tag_column)
        self.document_context = document_context

    def reading(self, target: Target) -> PlainDict:
        return asdict(self.layout) | {"document_context": self.document_context}

    def config_to_save(self) -> PlainDict:
        return super().config_to_save() | {"document_context": self.document_context}

    # Files

    def read(self, path: Path, role: str, target: Target, *, strict: bool = True) -> Sentences:
        """All sentences; the tags of a test file are not read."""
        if role == "test":
            sentences = read_conll(path, self.layout)
            return Sentences(sentences, range(len(sentences)), None)
        expected = target.expects
        if not strict and expected != NUMBERS:
            expected = ANY
        sentences = read_tags(path, self.layout, expected, target.listed)
        tags: Sequence[Sequence[Any]] = sentences.tags or []
        facts: PlainDict = {}
        if strict:
            tags, facts = target.convert(tags, path)
        return Sentences(sentences, range(len(sentences)), tags, facts)

    def groups(self, examples: Sentences) -> Sequence[str]:
        """Whole documents if there are, else equal sentences."""
        if examples.file.has_documents:
            return [str(examples.file.documents[number]) for number in examples.selection]
        return [" ".join(words) for words in examples.rows]

    def preview_texts(self, examples: Sentences) -> Mapping[str, Sequence[str]]:
        return {"sentence": [" ".join(words) for words in examples.rows]}

    def check_splits(self, splits: Sequence[tuple[Path, WordSplit]], name: str) -> None:
        path, train = splits[0]
        if self.document_context and not train.counts["has_documents"]:
            log.warning("%s marks no documents: every sentence is encoded without neighbours", path)

    # Sequences

    def flat_labels(self, examples: Sentences) -> list[object]:
        return list(itertools.chain.from_iterable(examples.labels or []))

    def line_of(self, examples: Sentences, place: int) -> int:
        """Of the first word of its sentence."""
        ends = np.cumsum([len(words) for words in examples.rows])
        return examples.lines[int(np.searchsorted(ends, place, side="right"))]

    def label_pool(self, examples: Sentences) -> list[object]:
        return list(itertools.chain.from_iterable(examples.tags or []))

    def labels(self, examples: Sentences, target: Target, path: Path) -> np.ndarray:
        """[W]; ValueError for a tag that is none of the training file's."""
        if examples.labels is None:
            return np.zeros(sum(map(len, examples.rows)), dtype=np.int64)
        labels = self.flat_labels(examples)
        place = target.unknown(labels)
        if place is not None:
            raise ValueError(
                f"{path}:{self.line_of(examples, place)}: tag {labels[place]!r} does not occur in"
                f" the training file; its tags are {target.classes}"
            )
        return target.encode(labels)

    def encode(self, examples: Sentences, tokenizer: Tokenizer) -> tuple[Arrays, PlainDict]:
        arrays, counts = build_sequences(
            examples.file,
            examples.selection,
            tokenizer,
            self.max_seq_length,
            self.document_context,
        )
        # Words as bytes: an array of strings would be as wide as its longest one.
        words = itertools.chain.from_iterable(examples.rows)
        arrays["words"] = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
        counts.update(examples.counts)
        facts: PlainDict = {"has_documents": examples.file.has_documents, **examples.tag_facts}
        return arrays, facts | {name: int(count) for name, count in counts.items() if count}

    def split(self, arrays: Arrays, facts: Facts, source: SplitSource) -> WordSplit:
        sequences = TaggedSequences(
            TokenSequences.from_arrays(arrays),
            arrays["word_offsets"],
            arrays["word_positions"],
            arrays["labels"],
        )
        # `encode` has joined the words of all sentences by line ends.
        all_words = arrays["words"].tobytes().decode().split("\n")
        return WordSplit(
            sequences=sequences,
            ids=arrays["ids"],
            labels=arrays["labels"],
            sentence_offsets=arrays["sentence_offsets"],
            words=all_words,
            key=source.key,
            path=source.path,
            layout=self.layout,
            **facts,
        )

    def batched(
        self, splits: Sequence[WordSplit], role: str, batch_context: BatchContext
    ) -> Sequences:
        (split,) = splits
        return split.sequences

    # The model

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[U, H]."""
        return model.encode(batch).index_select(0, batch["word_slots"])
