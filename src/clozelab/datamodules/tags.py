"""Tagging data (entities, chunks, parts of speech): CoNLL column files, and Universal Dependencies'
conllu.

A column file has one word a line, its columns between tabs (then nothing else separates) or blanks,
a blank line (or one of blanks, WNUT-17) between sentences and, where the set has documents, a
`-DOCSTART-` line before each. In conllu
`# newdoc` begins a document. A sentence with a damaged line is left out and counted.

The first sub-token of a word stands for it. A sequence is a sentence or, with document context, a
window: the sentence in the middle, and as many whole words of its document on both sides as fit.
Only the middle's words are scored, so that every word is scored exactly once; a sentence longer
than a sequence becomes several, and none is lost.

Letters: N sequences, S sentences, W scored words in file order; B sequences, T tokens and U scored
words of a batch.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.baselines import TAGS, Ints, most_frequent_tags
from clozelab.datamodules.examples import (
    Sequences,
    TokenSequences,
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
    TaskPreview,
    refuse_wrong_file,
    text_lines,
)
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labels import ANY, CLASSES, LabelColumn, refuse_one_class
from clozelab.metrics.entities import (
    OUTSIDE,
    entity_scores,
    scheme_of,
    split_tag,
    tag_scores,
    to_iob2,
)

log = logging.getLogger(__name__)

DOCUMENT_START = "-DOCSTART-"
CONLLU_COLUMNS = 10
# UPOS and XPOS, of which every word has one; in others `_` is an answer
CONLLU_TAG_COLUMNS = (3, 4)
# one sentence: (line number, columns) of each word; none where it is not UTF-8
Block = list[tuple[int, list[str]]]


@dataclass(frozen=True)
class ColumnFormat:
    """Which columns hold word and tag, counted from 0, negative from the end."""

    file_format: str  # columns | conllu
    word_column: int
    tag_column: int

    def __post_init__(self) -> None:
        if self.file_format not in ("columns", "conllu"):
            raise ValueError(f"file_format={self.file_format!r} is unknown; known: columns, conllu")

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

    def starts_document(self, line: str) -> bool:
        if self.is_conllu:
            return re.match(r"#\s*newdoc\b", line) is not None
        return line.split(maxsplit=1)[:1] == [DOCUMENT_START]

    def is_comment(self, line: str) -> bool:
        """conllu's comments, multiword ranges and empty nodes; a column file has none of them: `#`
        is a word there.
        """
        return self.is_conllu and (
            line.startswith("#") or re.match(r"\d+[-.]\d+\t", line) is not None
        )


@dataclass
class TaggedSentences:
    """Sentences in file order. `tags` is None for a file without them; `documents` [S] numbers each
    one's document.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    documents: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # [S] line of each sentence's first word
    # False: the file marks no documents, and every sentence is one of its own
    has_documents: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.words)


def read_conll(
    path: Path,
    layout: ColumnFormat,
    *,
    require_tags: bool,
    expected: str = ANY,
) -> TaggedSentences:
    """Read one file; without `require_tags` its lines may hold only the word. The tags are
    `expected` to be ANY, or CLASSES, of which more is known (labels.py).

    ValueError names the file and line for a missing tag column, a tag that is none, no sentences,
    or too many damaged ones."""
    sentences = TaggedSentences(tags=[])
    found = LabelColumn(path, None, expected, is_tag=True)
    width: int | None = None
    bad: list[str] = []
    num_seen = document = 0
    for starts_document, block in _blocks(path, layout):
        sentences.has_documents |= starts_document
        document += starts_document or not sentences.has_documents
        if not block:
            continue
        num_seen += 1
        if width is None and layout.is_conllu:
            width = CONLLU_COLUMNS
        problem = _damage(block, width or len(block[0][1]))
        if problem:
            bad.append(f"{path}:{problem}")
            continue
        width, line = len(block[0][1]), block[0][0]
        has_tags = width >= 2 and -width <= layout.tag_column < width  # beside the word's column
        if require_tags and not has_tags:
            where = f"{width} columns, but the tag is looked for in tag_column={layout.tag_column}"
            raise ValueError(
                f"{path}:{line}: {where} (a test file without tags can only be predicted)"
            )
        sentences.words.append([fields[layout.word_column] for _, fields in block])
        sentences.documents.append(document)
        sentences.lines.append(line)
        if not has_tags:
            sentences.tags = None
        elif require_tags and sentences.tags is not None:
            sentences.tags.append(
                [found.add(number, layout.tag_of(fields)) for number, fields in block],
            )
        elif sentences.tags is not None:
            sentences.tags.append([fields[layout.tag_column] for _, fields in block])
    found.refuse()
    refuse_wrong_file(path, bad, num_seen, "one word a line with the same number of columns")
    sentences.counts["damaged_sentences"] = len(bad)
    return sentences


def _damage(block: Block, expected_width: int) -> str:
    """Line and fault of a sentence's first damaged word; "" for none."""
    for number, fields in block:
        if not fields:
            return f"{number}: not UTF-8 text"
        if len(fields) != expected_width:
            return f"{number}: {len(fields)} columns, expected {expected_width}"
    return ""


def _blocks(path: Path, layout: ColumnFormat) -> Iterator[tuple[bool, Block]]:
    """(whether a document begins with it, sentence); a document mark alone comes with an empty
    sentence.
    """
    block: Block = []
    for number, line in text_lines(path):
        starts_document = line is not None and layout.starts_document(line)
        if line is not None and (starts_document or not line.strip(" \t")):
            yield False, block
            block = []
            if starts_document:
                yield True, []
        elif line is None:
            block.append((number, []))
        elif not layout.is_comment(line):
            # A tab-separated word may hold blanks, and other white space is part of a word.
            block.append(
                (number, line.split("\t") if "\t" in line else re.split(" +", line.strip(" ")))
            )
    yield False, block


def predicted_lines(path: Path, layout: ColumnFormat, tags: Sequence[str]) -> Iterator[str]:
    """The lines of a file without damage, with a tag for each word in file order.

    It is one more column, the last, as `conlleval` wants it; in conllu, whose columns are fixed, it
    stands in its own.
    """
    left = iter(tags)
    for _, line in text_lines(path):
        assert line is not None, "a damaged file is refused before it is predicted"
        if not line.strip(" \t") or layout.is_comment(line):
            yield line
        elif layout.is_conllu:
            fields = line.split("\t")
            fields[layout.tag_column] = next(left)
            yield "\t".join(fields)
        else:
            tag = OUTSIDE if layout.starts_document(line) else next(left)
            yield f"{line}\t{tag}" if "\t" in line else f"{line.rstrip(' ')} {tag}"
    assert next(left, None) is None, "one tag a word"


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

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """Also of scored words [U]: `word_slots` (place in the stream), `word_index` (in the
        split), `labels`.
        """
        arrays = self.sequences.gather(index)
        counts = self.word_offsets[index + 1] - self.word_offsets[index]
        words = ragged_positions(self.word_offsets[index], counts)[1]
        starts = np.cumsum(arrays["lengths"]) - arrays["lengths"]
        word_slots = np.repeat(starts, counts) + self.word_positions[words]
        return arrays | {
            "word_slots": word_slots,
            "word_index": words,
            "labels": self.labels[words],
        }


def build_sequences(
    sentences: TaggedSentences,
    chosen: Sequence[int],
    tokenizer: Tokenizer,
    max_seq_length: int,
    document_context: bool,
) -> tuple[Arrays, Counter[str]]:
    """The arrays of the `chosen` sentences' sequences (context comes from all), and what was
    unusual about them.
    """
    budget = max_seq_length - 2
    if budget < 1:
        raise ValueError(
            f"max_seq_length={max_seq_length} leaves no room for words beside the special tokens"
        )
    # Tokens of all words, and the place of each word's first one [words + 1]. A word without any (a
    # lone control character) becomes [UNK], for it is scored like any other; one with more than a
    # sequence holds is cut.
    ids, lengths = tokenizer.encode_words([word for words in sentences.words for word in words])
    kept = np.minimum(lengths, budget)
    starts = offsets_of(np.maximum(kept, 1))
    if tokenizer.unk_id < 0 and (lengths == 0).any():
        raise ValueError(
            "a word has no tokens, and this tokenizer has no unknown token to put there; take"
            " it out"
        )
    tokens = np.full(int(starts[-1]), tokenizer.unk_id, dtype=np.int32)
    source = ragged_positions(np.cumsum(lengths) - lengths, kept)[1]
    tokens[ragged_positions(starts[:-1], kept)[1]] = ids[source]
    counts = Counter(
        words_without_tokens=int((lengths == 0).sum()), cut_words=int((lengths > budget).sum())
    )
    places = offsets_of([len(words) for words in sentences.words])  # [S + 1] into the words
    documents = np.array(sentences.documents)
    # First word and one behind the last of each sentence's document.
    begins = places[np.searchsorted(documents, documents, side="left")]
    ends = places[np.searchsorted(documents, documents, side="right")]
    sequences, positions, num_words = [], [], []
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    for sentence in chosen:
        begin, last = int(places[sentence]), int(places[sentence + 1])
        is_split, document = False, (int(begins[sentence]), int(ends[sentence]))
        while begin < last:  # in runs that fit a sequence; nearly always one
            end = min(last, int(np.searchsorted(starts, starts[begin] + budget, side="right")) - 1)
            a, b = (
                _window(starts, begin, end, document, budget) if document_context else (begin, end)
            )
            counts["context_tokens"] += int(starts[b] - starts[a] - (starts[end] - starts[begin]))
            sequences.append(np.concatenate([cls, tokens[starts[a] : starts[b]], sep]))
            positions.append((starts[begin:end] - starts[a] + 1).astype(np.int32))
            num_words.append(end - begin)
            is_split |= end < last
            begin = end
        counts["split_sentences"] += is_split
    input_ids, offsets = concatenate(sequences)
    arrays: Arrays = {"input_ids": input_ids, "offsets": offsets}
    arrays |= {"word_offsets": offsets_of(num_words), "word_positions": concatenate(positions)[0]}
    arrays["sentence_offsets"] = offsets_of([len(sentences.words[sentence]) for sentence in chosen])
    arrays["ids"] = np.array([str(sentences.lines[sentence]) for sentence in chosen], dtype=np.str_)
    return arrays, counts


def _window(
    starts: Ints, begin: int, end: int, document: tuple[int, int], budget: int
) -> tuple[int, int]:
    """Words begin..end with as many neighbours as fit: as much before as behind, more where one
    side has too few.
    """
    spare = budget - int(starts[end] - starts[begin])
    before, behind = (
        int(starts[begin] - starts[document[0]]),
        int(starts[document[1]] - starts[end]),
    )
    left = min(before, max(spare // 2, spare - behind))
    first = int(np.searchsorted(starts, starts[begin] - left, side="left"))
    right = min(behind, spare - int(starts[begin] - starts[first]))
    return first, int(np.searchsorted(starts, starts[end] + right, side="right")) - 1


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
    counts: dict[str, Any]
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

    def by_sentence(self, values: Sequence[Any]) -> list[list[Any]]:
        """[W] -> one list a sentence."""
        return [list(values[a:b]) for a, b in itertools.pairwise(self.sentence_offsets.tolist())]


class TagDataModule(FinetuningDataModule):
    """Words with tags; `max_train_examples` counts sentences. Args: as conf/task/format/conll.yaml
    says of each.
    """

    validation: TaggedSplit

    def __init__(
        self,
        *,
        file_format: str,
        word_column: int,
        tag_column: int,
        entity_tags: bool,
        document_context: bool,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.layout = ColumnFormat(file_format, word_column, tag_column)
        self.entity_tags, self.document_context = entity_tags, document_context

    @property
    def reading(self) -> dict[str, Any]:
        return asdict(self.layout) | {
            "entity_tags": self.entity_tags,
            "document_context": self.document_context,
        }

    def read_splits(self) -> None:
        self.train = self._load(
            self.train_path, self.inputs.label_names, self.plan.max_train_examples
        )
        refuse_one_class(self.train_path, self.train.label_names, "task.data.tag_column")
        self.validation = self._load(self.validation_path, self.train.label_names, None)
        self.train_sequences, self.train_targets = self.train.sequences, {}
        self.validation_sequences = self.validation.sequences
        if self.entity_tags and self.inputs.tokenizer.lowercase:
            log.warning(
                "the encoder's vocabulary is lower-cased: entities lose the letter case that tells"
                " them apart"
            )
        if self.document_context and not self.train.counts["has_documents"]:
            log.warning(
                "%s marks no documents: every sentence is encoded without neighbours",
                self.train_path,
            )

    def read_test(self, path: Path) -> tuple[Sequences, TaggedSplit]:
        """Its tags are not read: every word has the first label."""
        split = self._load(path, self.train.label_names, None, require_tags=False)
        return split.sequences, split

    def _load(
        self,
        path: Path,
        label_names: Sequence[str] | None,
        max_examples: int | None,
        require_tags: bool = True,
    ) -> TaggedSplit:
        """One split. `label_names` None: those of the file; of entities O, then B and I of every
        type.
        """

        def build() -> tuple[Arrays, Facts]:
            if require_tags:
                sentences, tags, scheme = self._read(path)
            else:
                sentences = read_conll(path, self.layout, require_tags=False)
                tags, scheme = (
                    [[(label_names or [""])[0]] * len(words) for words in sentences.words],
                    None,
                )
            names = list(label_names or ())
            if not names:
                names = sorted({tag for sentence in tags for tag in sentence})
                if self.entity_tags:
                    types = sorted({split_tag(tag)[1] for tag in names} - {""})
                    names = [OUTSIDE, *(f"{prefix}-{name}" for name in types for prefix in "BI")]
            chosen = subset(len(sentences), max_examples)
            room = self.max_seq_length
            arrays, counts = build_sequences(
                sentences, chosen, self.inputs.tokenizer, room, self.document_context
            )
            index = {name: number for number, name in enumerate(names)}
            for at, tag in (
                (sentences.lines[i], tag) for i in chosen for tag in tags[i] if tag not in index
            ):
                raise ValueError(
                    f"{path}:{at}: tag {tag!r} does not occur in the training file; its tags are"
                    f" {names}"
                )
            arrays["labels"] = np.array(
                [index[tag] for i in chosen for tag in tags[i]], dtype=np.int64
            )
            words = "\n".join(word for i in chosen for word in sentences.words[i])
            arrays["words"] = np.frombuffer(words.encode(), dtype=np.uint8)
            counts.update(sentences.counts)
            known = {
                "available": len(sentences),
                "has_documents": sentences.has_documents,
                "tag_scheme": scheme,
            }
            return arrays, {
                "label_names": names,
                "counts": known | {key: int(n) for key, n in counts.items() if n},
            }

        labels = None if label_names is None else list(label_names)
        settings = {"labels": labels, "max_examples": max_examples, "require_tags": require_tags}
        arrays, facts, key = self.cached(path, self.reading | settings, build)
        tokens = TokenSequences(
            arrays["input_ids"], arrays["offsets"], np.diff(arrays["offsets"]).astype(np.int32)
        )
        sequences = TaggedSequences(
            tokens, arrays["word_offsets"], arrays["word_positions"], arrays["labels"]
        )
        own = (
            sequences,
            arrays["sentence_offsets"],
            arrays["words"].tobytes().decode().split("\n"),
            arrays["ids"],
        )
        return TaggedSplit(
            *own, facts["label_names"], self.entity_tags, facts["counts"], key, path, self.layout
        )

    def _read(self, path: Path) -> tuple[TaggedSentences, list[list[str]], str | None]:
        """Sentences; their tags, of entities in IOB2; and the scheme that those were written in."""
        if self.entity_tags:
            expected = ANY
        else:
            expected = CLASSES
        found = read_conll(path, self.layout, require_tags=True, expected=expected)
        tags = found.tags or []
        if not self.entity_tags:
            return found, tags, None
        try:
            scheme = scheme_of(tags)
        except ValueError as problem:
            raise ValueError(
                f"{path}: {problem}; is tag_column={self.layout.tag_column} the right one?"
            ) from problem
        return found, [to_iob2(names) for names in tags], scheme

    def compute_baselines(self) -> Scores:
        """Each word's most frequent tag; an unknown word is no entity, or has the most frequent tag
        of all.
        """
        (train, tags, _), (asked, golds, _) = (
            self._read(path) for path in (self.train_path, self.validation_path)
        )
        learnt = [
            (train.words[i], tags[i]) for i in subset(len(train), self.plan.max_train_examples)
        ]
        counts = Counter(name for _, names in learnt for name in names)
        unknown = OUTSIDE if self.entity_tags else counts.most_common(1)[0][0]
        guesses = most_frequent_tags(learnt, asked.words, unknown)
        return {TAGS: (entity_scores if self.entity_tags else tag_scores)(guesses, golds)}

    def preview(self) -> TaskPreview:
        train, validation = self._preview(self.train_path), self._preview(self.validation_path)
        return TaskPreview(train, validation, sorted(set(train.labels or ())))

    def _preview(self, path: Path) -> Preview:
        """Labels are the tags of all words; of entity tags their types, whatever scheme each file
        is in.
        """
        found = read_conll(path, self.layout, require_tags=True)
        tags = [tag for sentence in found.tags or () for tag in sentence]
        labels = [split_tag(tag)[1] or OUTSIDE for tag in tags] if self.entity_tags else tags
        return Preview(
            {"sentence": [" ".join(words) for words in found.words]},
            labels,
            len(found),
            dict(found.counts),
        )
