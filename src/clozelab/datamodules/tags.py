"""Tagging data (entities, chunks, parts of speech).

Files are those of readers/conll.py.

The first sub-token of a word stands for it. A sequence is a sentence or, with document context, a
window: the sentence in the middle, and as many whole words of its document on both sides as fit.
Only the middle's words are scored, so that every word is scored exactly once; a sentence longer
than a sequence becomes several, and none is lost.

    document    [Rare words .] [EU rejects German call .] [Peter left .]
    sequence    [CLS] words . [EU rejects German call .] Peter left [SEP]
    scored                     ^  ^       ^      ^    ^

Letters: N sequences, S sentences, W scored words in file order; B sequences, T tokens and U scored
words of a batch.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.baselines import TAGS, Ints, most_frequent_tags
from clozelab.datamodules.examples import (
    Int32s,
    Sequences,
    TokenSequences,
    assemble,
    concatenate,
    offsets_of,
    ragged_positions,
    subset,
)
from clozelab.datamodules.files import (
    Arrays,
    Facts,
    Preview,
    Scores,
)
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskArguments
from clozelab.datamodules.label_kinds import Classes
from clozelab.datamodules.labels import ANY, CLASSES, LabelColumn, refuse_one_class
from clozelab.datamodules.splitting import text_hashes
from clozelab.metrics.entities import (
    OUTSIDE,
    PLAIN,
    are_plain,
    entity_scores,
    scheme_of,
    split_tag,
    tag_scores,
    to_iob2,
    to_plain,
)
from clozelab.readers.conll import ColumnFormat, TaggedSentences, read_conll
from clozelab.text.plain import JsonObject

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_tags(path: Path, layout: ColumnFormat, expected: str = ANY) -> TaggedSentences:
    """Read a file whose words have tags: ANY, or CLASSES, of which more is known (labels.py)."""
    return read_conll(path, layout, LabelColumn(path, None, expected, is_tag=True))


@dataclass(frozen=True)
class TaggedSequences(Sequences):
    """Sequences with a target for some of their tokens."""

    sequences: TokenSequences  # [N]
    word_offsets: Ints  # [N + 1] into the scored words
    # [W]: where in its sequence each scored word's first sub-token stands
    word_positions: NDArray[np.int32]
    labels: Ints  # [W]

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths

    @property
    def num_targets(self) -> Ints:
        return np.diff(self.word_offsets)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The batch's arrays, and three of its scored words [U].

        `word_slots` is their place in the batch's stream of tokens, `word_index` their place in the
        split, `labels` their target.
        """
        arrays = self.sequences.gather(index)
        counts = self.word_offsets[index + 1] - self.word_offsets[index]
        _, word_index = ragged_positions(self.word_offsets[index], counts)
        # lengths [3, 4, 2] -> sequences start at slots [0, 3, 7]
        starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
        word_slots = np.repeat(starts, counts) + self.word_positions[word_index]
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
    document_begins, document_ends = _document_bounds(sentences.documents, sentence_starts)
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
    lines = [str(sentences.lines[sentence]) for sentence in selection]
    arrays: Arrays = assemble(tokenizer, pieces).arrays() | {
        "word_offsets": offsets_of(num_words),
        "word_positions": word_positions,
        "sentence_offsets": offsets_of(sentence_lengths),
        "ids": np.array(lines, dtype=np.str_),
    }
    return arrays, counts


def _document_bounds(documents: Sequence[int], sentence_starts: Ints) -> tuple[Ints, Ints]:
    """The first word, and one behind the last, of each sentence's document [S].

    Documents [1, 1, 2] with sentences of 3, 2 and 4 words begin at [0, 0, 5] and end at [5, 5, 9].
    """
    # Numbers of documents rise, so a document's first and last sentence are found by bisection.
    begins = sentence_starts[np.searchsorted(documents, documents, side="left")]
    ends = sentence_starts[np.searchsorted(documents, documents, side="right")]
    return begins, ends


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
    behind = int(starts[document_end] - starts[end])
    # Half of the room for the left side, and what the right side cannot fill. Whole words fit:
    # `first` is the first word that begins within it, and the right side gets what is left then.
    left = min(before, max(spare // 2, spare - behind))
    first = int(np.searchsorted(starts, starts[begin] - left, side="left"))
    right = min(behind, spare - int(starts[begin] - starts[first]))
    last = int(np.searchsorted(starts, starts[end] + right, side="right")) - 1
    return first, last


@dataclass(frozen=True)
class TaggedSplit:
    """One split: what is encoded, and the sentences it comes from."""

    sequences: TaggedSequences
    sentence_offsets: Ints  # [S + 1] into the scored words
    words: list[str]  # [W]
    ids: NDArray[np.str_]  # [S]: the line of each sentence's first word in its file
    label_names: list[str]
    entity_tags: bool
    # what is unusual about the sentences in use, and how their tags were written
    counts: JsonObject
    key: str  # names the content: what is computed from the sequences can be stored under it
    path: Path | None = None
    layout: ColumnFormat | None = None  # the file they come from, and how it is read

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_available(self) -> int:
        return self.counts["available"]

    @property
    def num_bad_rows(self) -> int:
        return self.counts.get("damaged_sentences", 0)

    @property
    def labels(self) -> Ints:
        return self.sequences.labels

    def by_sentence(self, values: Sequence[T]) -> list[list[T]]:
        """[W] -> one list a sentence."""
        bounds = itertools.pairwise(self.sentence_offsets.tolist())
        return [list(values[begin:end]) for begin, end in bounds]


class TagDataModule(FinetuningDataModule):
    """Words with tags; `max_train_examples` counts sentences.

    Args: as conf/task/format/conll.yaml says of each.
    """

    train: TaggedSplit
    validation: TaggedSplit
    grouping = "equal sentences, or those of one document, stay together"

    def __init__(
        self,
        *,
        file_format: str,
        word_column: int,
        tag_column: int,
        entity_tags: bool,
        document_context: bool,
        **common: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**common)
        self.layout = ColumnFormat(file_format, word_column, tag_column)
        self.entity_tags = entity_tags
        self.document_context = document_context

    def remembered(self) -> JsonObject:
        return super().remembered() | {"document_context": self.document_context}

    @property
    def reading(self) -> JsonObject:
        return asdict(self.layout) | {
            "entity_tags": self.entity_tags,
            "document_context": self.document_context,
        }

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training", self.inputs.label_names)
        refuse_one_class(self.train_path, self.train.label_names, "task.data.tag_column")
        self.validation = self._load(self.validation_path, "validation", self.train.label_names)
        self.train_sequences = self.train.sequences
        self.train_targets = {}
        self.validation_sequences = self.validation.sequences
        if self.entity_tags and self.inputs.tokenizer.lowercase:
            log.warning(
                "the encoder's vocabulary is lower-cased: entities lose the letter case that tells"
                " them apart"
            )
        self._warn_of_plain_tags()
        if self.document_context and not self.train.counts["has_documents"]:
            log.warning(
                "%s marks no documents: every sentence is encoded without neighbours",
                self.train_path,
            )

    @property
    def _has_plain_labels(self) -> bool:
        """Whether the model's labels are types alone: it is scored by those."""
        names = self.inputs.label_names
        return names is not None and are_plain(names)

    def _warn_of_plain_tags(self) -> None:
        """Say which file has nothing that keeps neighbouring entities of one type apart."""
        schemes = {
            self.train.counts["tag_scheme"]: self.train_path,
            self.validation.counts["tag_scheme"]: self.validation_path,
        }
        if PLAIN not in schemes:
            return
        plain_path = schemes.pop(PLAIN)
        for scheme, path in schemes.items():
            if not self._has_plain_labels:
                log.warning(
                    "%s has types without B- and I-, and %s has %s tags: neighbouring entities of"
                    " one type are one entity in the first file and several in the second, so"
                    " scores are wrong where they occur: write both files in one scheme",
                    plain_path,
                    path,
                    scheme,
                )
        if not schemes:
            log.warning(
                "%s: its tags are types without B- and I-: neighbouring words of one type are one"
                " entity, also in scores",
                self.train_path,
            )

    def read_test(self, path: Path) -> tuple[Sequences, TaggedSplit]:
        """Its tags are not read: every word has the first label."""
        split = self._load(path, "test", self.train.label_names)
        return split.sequences, split

    def _load(self, path: Path, role: str, label_names: Sequence[str] | None) -> TaggedSplit:
        """One split. `label_names` None: those of its file."""
        arrays, facts, key = self.cached(path, role, self._encode, label_names=label_names)
        sequences = TaggedSequences(
            TokenSequences.of(arrays),
            arrays["word_offsets"],
            arrays["word_positions"],
            arrays["labels"],
        )
        word_strings = arrays["words"].tobytes().decode().split("\n")
        return TaggedSplit(
            sequences=sequences,
            sentence_offsets=arrays["sentence_offsets"],
            words=word_strings,
            ids=arrays["ids"],
            label_names=facts["label_names"],
            entity_tags=self.entity_tags,
            counts=facts["counts"],
            key=key,
            path=path,
            layout=self.layout,
        )

    def _encode(
        self, path: Path, role: str, label_names: Sequence[str] | None
    ) -> tuple[Arrays, Facts]:
        """What the cache holds of one split."""
        scheme = None
        if role != "test":
            sentences, tags, scheme = self._read(path)
        else:
            sentences = read_conll(path, self.layout)
            # a label that nobody looks at: a test file may have none
            placeholder = label_names[0] if label_names else ""
            tags = [[placeholder] * len(words) for words in sentences.words]
        names = list(label_names) if label_names else self._label_names(tags)
        rows = self._rows_for(path, role, sentences)
        selection = self._in_use(rows, role)
        arrays, counts = build_sequences(
            sentences, selection, self.inputs.tokenizer, self.max_seq_length, self.document_context
        )
        arrays["labels"] = _label_indices(path, sentences, tags, selection, names)
        # Words as bytes: an array of strings would be as wide as its longest one.
        words = itertools.chain.from_iterable(sentences.words[i] for i in selection)
        arrays["words"] = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
        arrays["row_hashes"] = text_hashes(sentences.words[i] for i in rows)
        arrays["row_lines"] = np.array([sentences.lines[i] for i in rows], dtype=np.int64)
        counts.update(sentences.counts)
        facts = {
            "available": len(rows),
            "has_documents": sentences.has_documents,
            "tag_scheme": scheme,
        }
        facts |= {name: int(count) for name, count in counts.items() if count}
        return arrays, {"label_names": names, "counts": facts}

    def _rows_for(self, path: Path, role: str, sentences: TaggedSentences) -> list[int]:
        """The sentences for a role, where validation is held out: whole documents if there are."""
        groups = [" ".join(words) for words in sentences.words]
        if sentences.has_documents:
            groups = [str(document) for document in sentences.documents]
        return self.rows_of(role, path, groups)

    def _in_use(self, rows: Sequence[int], role: str) -> list[int]:
        return [rows[i] for i in subset(len(rows), self.limit(role))]

    def _examples(self, path: Path, role: str) -> list[tuple[list[str], list[str]]]:
        """Words and tags of each sentence in use."""
        sentences, tags, _ = self._read(path)
        rows = self._in_use(self._rows_for(path, role, sentences), role)
        return [(sentences.words[i], tags[i]) for i in rows]

    def _label_names(self, tags: Sequence[Sequence[str]]) -> list[str]:
        """The labels of a training file: its tags, or of entities O, then B and I of every type."""
        names = set(itertools.chain.from_iterable(tags))
        if not self.entity_tags:
            return sorted(names)
        # An entity type of the training file may lack B or I there; both are labels.
        types = {split_tag(tag)[1] for tag in names} - {""}
        labels = [OUTSIDE]
        for name in sorted(types):
            labels += [f"B-{name}", f"I-{name}"]
        return labels

    def _read(self, path: Path) -> tuple[TaggedSentences, list[list[str]], str | None]:
        """Sentences; their tags, of entities in IOB2; and the scheme that those were written in."""
        expected = ANY if self.entity_tags else CLASSES
        sentences = read_tags(path, self.layout, expected)
        tags = sentences.tags or []
        if not self.entity_tags:
            return sentences, tags, None
        try:
            scheme = scheme_of(tags)
        except ValueError as problem:
            raise ValueError(
                f"{path}: {problem}; is tag_column={self.layout.tag_column} the right one?"
                " Tags that are classes of their own need task.data.entity_tags=false and"
                " task.metric=validation/accuracy"
            ) from problem
        convert = to_iob2
        if self._has_plain_labels:
            convert = to_plain
        return sentences, list(map(convert, tags)), scheme

    def compute_baselines(self) -> Scores:
        """Each word's most frequent tag.

        An unknown word is no entity, or has the most frequent tag of all.
        """
        examples = self._examples(self.train_path, "training")
        sentences, gold_tags = zip(*self._examples(self.validation_path, "validation"), strict=True)
        if self.entity_tags:
            unknown = OUTSIDE
            score = entity_scores
        else:
            counts = Counter(itertools.chain.from_iterable(tags for _, tags in examples))
            unknown = counts.most_common(1)[0][0]
            score = tag_scores
        guesses = most_frequent_tags(examples, sentences, unknown)
        return {TAGS: score(guesses, gold_tags)}

    def preview_facts(self, train: Preview) -> JsonObject:
        return {"kind": Classes(sorted(set(train.labels or ())))}

    def preview_of(self, path: Path, role: str) -> Preview:
        """Labels are the tags of all words; of entity tags their types, whatever the scheme."""
        sentences = read_tags(path, self.layout)
        part = self._rows_for(path, role, sentences)
        rows = [sentences.words[i] for i in part]
        tags = sentences.tags or []
        labels = list(itertools.chain.from_iterable(tags[i] for i in part))
        if self.entity_tags:
            labels = to_plain(labels)
        texts = {"sentence": [" ".join(words) for words in rows]}
        return Preview(texts, labels, len(rows), dict(sentences.counts), rows)


def _label_indices(
    path: Path,
    sentences: TaggedSentences,
    tags: Sequence[Sequence[str]],
    selection: Sequence[int],
    names: Sequence[str],
) -> Ints:
    """[W] of the selected sentences, into `names`; ValueError for a tag that is none of them."""
    index = {name: number for number, name in enumerate(names)}
    labels = []
    for sentence in selection:
        for tag in tags[sentence]:
            if tag not in index:
                raise ValueError(
                    f"{path}:{sentences.lines[sentence]}: tag {tag!r} does not occur in the"
                    f" training file; its tags are {names}"
                )
            labels.append(index[tag])
    return np.array(labels, dtype=np.int64)
