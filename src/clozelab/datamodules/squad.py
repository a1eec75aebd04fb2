"""Span extraction data, SQuAD 1.1 and 2.0: official articles, or rows of the `datasets` library
(jsonl, Parquet).

A training example is one window of a passage.

Unusual: an `answer_start` that does not point at its text is repaired to the nearest place where
the text stands; where there is none, a training question is skipped and counted, one asked for
scoring is not: the scorer compares texts.

A sequence is `[CLS] question [SEP] window of the passage [SEP]`, windows overlapping by a stride.
Follows the released run_squad.py (windows, max-context, answers outside a window point at [CLS])
with one difference: tokens carry their place in the original characters, so no text has to be
re-aligned: where `get_final_text` gives up and returns whole words, offsets still give the exact
characters. Letters: W windows, T tokens of all windows.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.lines import parse_json, text_lines
from clozelab.corpus.tables import Table, open_table, table_format
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.baselines import OVERLAP, PhraseGuesser
from clozelab.datamodules.examples import (
    Int32s,
    Ints,
    Sequences,
    TokenSequences,
    concatenate,
    join_sequences,
    offsets_of,
    subset,
    window_ranges,
)
from clozelab.datamodules.files import Arrays, Facts, Preview, Scores, TaskPreview
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.metrics.squad import score_v1, score_v2

log = logging.getLogger(__name__)

# more questions without a usable answer than this: another data set (2.0, say), not dirt
MAX_UNUSABLE_FRACTION = 0.1


@dataclass(frozen=True)
class SquadQuestion:
    """`answers` are the gold texts, `answer_start` the first one's place in the passage (-1: none
    that can be used).
    """

    id: str
    text: str
    passage: int
    answers: tuple[str, ...]
    answer_start: int


@dataclass
class SquadExamples:
    """Questions in file order; `counts` says what was repaired or skipped, by reason."""

    passages: list[str] = field(default_factory=list)
    questions: list[SquadQuestion] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.questions)

    def select(self, index: Sequence[int]) -> SquadExamples:
        return SquadExamples(self.passages, [self.questions[i] for i in index], self.counts)


def read_squad(
    path: Path, *, for_training: bool, with_unanswerable: bool = False, needs_answers: bool = True
) -> SquadExamples:
    """Read one file: the official articles (.json), or a question a row as `datasets` writes it
    (jsonl, Parquet, ...).

    `for_training` skips (and counts) what cannot be learned from, and a question's exact repeat.
    `with_unanswerable` (2.0): a question without an answer is an example, too. Without
    `needs_answers` a file may lack them, as a test file does. ValueError names the file for broken
    JSON, a missing key, a duplicate question id, or no usable question."""
    examples = SquadExamples()
    seen: dict[str, Any] = {}
    for passage, question in _questions(path, examples):
        identifier, text = _value(path, question, "id"), examples.passages[passage]
        if for_training and seen.get(identifier) == (text, question):
            examples.counts["question_repeated"] += 1
            continue
        if identifier in seen:
            raise ValueError(
                f"{path}: the question id {identifier!r} occurs twice; scores would count one of"
                " them"
            )
        seen[identifier] = text, question
        golds, given = _answers_of(path, question, needs_answers)
        start = -1
        if golds:
            start = locate_answer(text, golds[0], given)
            examples.counts["answer_offset_repaired"] += start not in (-1, given)
            examples.counts["answer_not_in_passage"] += start == -1
        else:
            examples.counts["question_without_answer"] += 1
        if not for_training or start >= 0 or (with_unanswerable and not golds):
            asked = SquadQuestion(
                identifier, _value(path, question, "question"), passage, golds, start
            )
            examples.questions.append(asked)
    if not examples.questions:
        raise ValueError(
            f"{path} has no usable question (skipped: {dict(examples.counts) or 'none'})"
        )
    return examples


def _answers_of(
    path: Path,
    question: dict[str, Any],
    needs_answers: bool,
) -> tuple[tuple[str, ...], int]:
    """The gold texts, and where the file says that the first one begins; ValueError for what is no
    list of answers."""
    where = f"{path}: question {question['id']!r}"
    answers = question.get("answers")
    if answers is None:
        if needs_answers:
            raise ValueError(
                f"{where} has no 'answers': a question without an answer has an empty list of them",
            )
        return (), -1
    if isinstance(answers, dict):
        answers = _answer_list(where, answers)
    if not isinstance(answers, list):
        raise ValueError(
            f"{where}: answers are {str(answers)[:80]!r}, expected a list, or lists of text and"
            " answer_start"
        )
    golds = tuple(_value(path, answer, "text") for answer in answers)
    if not golds:
        return (), -1
    if question.get("is_impossible") is True:
        raise ValueError(
            f"{where} has answers and is_impossible=true; only one of them can be right",
        )
    start = answers[0].get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise ValueError(f"{where}: answer_start is {start!r}, expected a number")
    return golds, start


def _answer_list(where: str, answers: dict[str, Any]) -> list[dict[str, Any]]:
    """From lists of texts and of starts, as `datasets` has them, to a list of answers."""
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise ValueError(
            f"{where}: answers need two equally long lists, text and answer_start, not"
            f" {str(answers)[:80]}"
        )
    return [
        {"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)
    ]


def _questions(path: Path, examples: SquadExamples) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of its passage, question) in file order; passages are put into `examples`."""
    if table_format(path) is not None:
        yield from _questions_of_rows(path, _rows_of(open_table(path)), examples)
        return
    try:
        content = parse_json(path.read_bytes())
    except ValueError as problem:  # also undecodable bytes
        if not _is_jsonl(path):
            raise ValueError(f"{path} is not a JSON file: {problem}") from problem
        yield from _questions_of_rows(path, _rows_of(open_table(path, "jsonl")), examples)
        return
    if isinstance(content, list) and content:
        yield from _questions_of_rows(path, content, examples)
        return
    if isinstance(content, dict) and "data" not in content and "context" in content:
        yield from _questions_of_rows(path, [content], examples)  # jsonl of one line
        return
    for article in _value(path, content, "data", list):
        for paragraph in _value(path, article, "paragraphs", list):
            _add_passage(path, paragraph, examples)
            for question in _value(path, paragraph, "qas", list):
                yield len(examples.passages) - 1, question


def _is_jsonl(path: Path) -> bool:
    """Whether the first line is an object by itself: `datasets` gives its jsonl any name, .json
    most often."""
    _, line = next(text_lines(path), (0, None))
    if line is None:
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _rows_of(table: Table) -> Iterator[dict[str, Any]]:
    for number, record in table.rows():
        if isinstance(record, str):
            raise ValueError(f"{table.path}:{number}: {record}")
        yield record


def _questions_of_rows(
    path: Path, rows: Iterable[Any], examples: SquadExamples
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of id, context, question and answers; neighbours with the same passage share it."""
    for row in rows:
        context = _value(path, row, "context")
        if not examples.passages or examples.passages[-1] != context:
            _add_passage(path, row, examples)
        yield len(examples.passages) - 1, row


def _add_passage(path: Path, node: Any, examples: SquadExamples) -> None:
    passage = _value(path, node, "context")
    examples.passages.append(passage)
    examples.counts["empty_passage"] += not passage.strip()


def _value(path: Path, node: Any, key: str, kind: type = str) -> Any:
    if isinstance(node, dict) and isinstance(node.get(key), kind):
        return node[key]
    name = "text"
    if kind is list:
        name = "list"
    raise ValueError(
        f"{path} is not in the SQuAD format: expected a {name} {key!r} in {str(node)[:80]!r}",
    )


def locate_answer(passage: str, text: str, start: int) -> int:
    """Where `text` stands in the passage: `start` if it is right, else the nearest occurrence, else
    -1.
    """
    places, found = [], passage.find(text) if text else -1
    while found >= 0:
        places.append(found)
        found = passage.find(text, found + 1)
    return min(places, key=lambda place: abs(place - start), default=-1)


@dataclass(frozen=True)
class WindowSettings:
    """Lengths in tokens: of a whole sequence, of the step between windows, of the question (cut at
    its end).
    """

    max_seq_length: int
    doc_stride: int
    max_query_length: int

    @classmethod
    def fitted(cls, max_seq_length: int, doc_stride: int, max_query_length: int) -> WindowSettings:
        """At least half a sequence is passage, and windows step by half a one at most; ValueError
        where none fits.
        """
        half = max_seq_length // 2
        if half < 4:
            why = "half of one has to hold three special tokens and a part of the question"
            longer = (
                "take an encoder trained on longer sequences, or a larger task.data.max_seq_length"
            )
            said = f"sequences of {max_seq_length} tokens are too short for questions on a passage"
            raise ValueError(f"{said}: {why}; {longer}")
        if min(doc_stride, max_query_length) < 1:
            raise ValueError(
                f"doc_stride={doc_stride} and max_query_length={max_query_length}: give at least 1"
                " token"
            )
        return cls(max_seq_length, min(doc_stride, half), min(max_query_length, half - 3))


@dataclass(frozen=True)
class SquadFeatures:
    """One sequence a window. Positions are inside the sequence; `passage_spans` [.., 2] are
    character ranges.
    """

    sequences: TokenSequences
    question: Int32s  # [W] index of the question in the examples
    passage_starts: Int32s  # [W] sequence position of the window's first passage token
    window_starts: Int32s  # [W] index of that token among the passage's tokens
    # [W] sequence position of the answer's first token; 0 ([CLS]) where it is not all inside
    start_positions: Int32s
    end_positions: Int32s
    max_context: NDArray[np.bool_]  # [T] true for the passage tokens that have no better window
    passage_spans: Int32s
    passage_offsets: Ints

    def to_arrays(self) -> Arrays:
        return {
            name: value for name, value in vars(self).items() if name != "sequences"
        } | self.sequences.arrays()

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> SquadFeatures:
        own = {name: arrays[name] for name in cls.__dataclass_fields__ if name != "sequences"}
        return cls(sequences=TokenSequences.of(arrays), **own)


def build_features(
    examples: SquadExamples, tokenizer: Tokenizer, settings: WindowSettings
) -> tuple[SquadFeatures, Counter[str]]:
    """Windows of all questions in order, and counts: windows, windows_without_answer,
    answer_without_tokens, ...
    """
    used = sorted({question.passage for question in examples.questions})
    encoded = dict(
        zip(used, tokenizer.encode_with_offsets([examples.passages[i] for i in used]), strict=True)
    )
    queries = tokenizer.encode_batch([question.text for question in examples.questions])
    cls, sep = (np.array([token], dtype=np.int32) for token in (tokenizer.cls_id, tokenizer.sep_id))
    sequences, columns, counts = [], [], Counter[str]()
    all_flags: list[NDArray[np.bool_]] = [np.zeros(0, dtype=np.bool_)]
    for index, (question, query) in enumerate(zip(examples.questions, queries, strict=True)):
        passage, spans = encoded[question.passage]
        length = len(question.answers[0]) if question.answers else 0
        answer = answer_tokens(spans, question.answer_start, question.answer_start + length)
        head = np.concatenate(
            [cls, query[: settings.max_query_length], np.repeat(sep, tokenizer.pair_separators)]
        )
        ranges = window_ranges(
            len(passage), settings.max_seq_length - len(head) - 1, settings.doc_stride
        )
        for (start, length), flags in zip(
            ranges, max_context_flags(ranges, len(passage)), strict=True
        ):
            sequences.append(np.concatenate([head, passage[start : start + length], sep]))
            all_flags.append(np.concatenate([np.zeros(len(head), dtype=np.bool_), flags, [False]]))
            inside = start <= answer[0] and answer[1] < start + length
            shift = len(head) - start
            first, last = (answer[0] + shift, answer[1] + shift) if inside else (0, 0)
            columns.append((index, len(head), start, first, last))
            counts["windows_without_answer"] += not inside
        counts["windows"] += len(ranges)
        counts["question_of_empty_passage"] += not ranges
        counts["answer_without_tokens"] += bool(question.answers) and answer[0] < 0
        counts["questions_cut"] += len(query) > settings.max_query_length
    input_ids, offsets = concatenate(sequences)
    owners, passage_starts, window_starts, starts, ends = (
        np.array(columns, dtype=np.int32).reshape(-1, 5).T.copy()
    )
    second_starts = (
        passage_starts if tokenizer.has_token_types else np.diff(offsets).astype(np.int32)
    )
    features = SquadFeatures(
        TokenSequences(input_ids, offsets, second_starts),
        *(owners, passage_starts, window_starts, starts, ends),
        np.concatenate(all_flags),
        np.concatenate([np.zeros((0, 2)), *(encoded[i][1] for i in used)]).astype(np.int32),
        offsets_of(
            [len(encoded[i][0]) if i in encoded else 0 for i in range(len(examples.passages))]
        ),
    )
    return features, counts


def answer_tokens(spans: NDArray[np.integer], start: int, end: int) -> tuple[int, int]:
    """First and last token that overlap the characters start..end; (-1, -1) where none does or
    there is no answer.
    """
    if start < 0 or not len(spans):
        return -1, -1
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left")) - 1
    return (first, last) if first <= last else (-1, -1)


def max_context_flags(ranges: list[tuple[int, int]], num_tokens: int) -> list[NDArray[np.bool_]]:
    """For each window, which of its tokens have their largest context there, as released (the first
    wins a tie).
    """
    if len(ranges) <= 1:
        return [np.ones(num_tokens, dtype=np.bool_)] * len(ranges)
    context = np.full((len(ranges), num_tokens), -1.0)
    for window, (start, length) in enumerate(ranges):
        inside = np.arange(length)
        context[window, start : start + length] = np.minimum(inside, inside[::-1]) + 0.01 * length
    best = context.argmax(axis=0)
    return [best[start : start + length] == window for window, (start, length) in enumerate(ranges)]


@dataclass(frozen=True)
class SquadSplit:
    """`examples` is empty for training, where no text is needed any more."""

    features: SquadFeatures
    examples: SquadExamples
    num_questions: int
    num_available: int
    counts: dict[str, int]
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return self.num_questions


class SquadDataModule(FinetuningDataModule):
    """Questions and passages, as conf/task/squad_v1.yaml says; `max_train_examples` counts
    questions, a batch windows.

    A question without an answer is learned as the span [CLS]..[CLS]; the schedule of rates covers
    `train_extra` too."""

    def __init__(
        self,
        *,
        train_extra: list[str],
        with_unanswerable: bool,
        doc_stride: int,
        max_query_length: int,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.settings = WindowSettings.fitted(self.max_seq_length, doc_stride, max_query_length)
        if self.settings != WindowSettings(self.max_seq_length, doc_stride, max_query_length):
            log.warning(
                "%s: sequences of %d tokens: questions are cut at %d tokens (not %d), windows step"
                " by %d (not %d)",
                *(
                    self.inputs.name,
                    self.max_seq_length,
                    self.settings.max_query_length,
                    max_query_length,
                ),
                *(self.settings.doc_stride, doc_stride),
            )
        self.extra_paths = [self.require(file) for file in train_extra]
        self.with_unanswerable = with_unanswerable

    @property
    def reading(self) -> dict[str, Any]:
        extra = [file_sha256(path) for path in self.extra_paths]
        return {"train_extra": extra, "with_unanswerable": self.with_unanswerable}

    @property
    def tokenization(self) -> dict[str, Any]:
        return super().tokenization | {"settings": asdict(self.settings)}

    def read_splits(self) -> None:
        largest = self.plan.max_train_examples
        self.train = self._load(self.train_path, True, largest)
        self.validation = self._load(self.validation_path, False, None)
        self.extra = [self._load(path, True, largest) for path in self.extra_paths]
        parts = [split.features for split in (*self.extra, self.train)]
        self.train_sequences = join_sequences([features.sequences for features in parts])
        self.train_targets = {
            name: np.concatenate([getattr(features, name) for features in parts]).astype("int64")
            for name in ("start_positions", "end_positions")
        }
        self.validation_sequences = self.validation.features.sequences

    @property
    def num_first_sequences(self) -> int:
        """Windows of `train_extra`."""
        return sum(len(split.features.sequences) for split in self.extra)

    def read_test(self, path: Path) -> tuple[Sequences, SquadSplit]:
        split = self._load(path, False, None, is_test=True)
        return split.features.sequences, split

    def _load(
        self, path: Path, for_training: bool, max_examples: int | None, is_test: bool = False
    ) -> SquadSplit:
        """One split; its texts only where they are scored or predicted, when the file may come
        without answers.
        """

        @cache
        def read() -> tuple[SquadExamples, int]:
            found = read_squad(
                path,
                for_training=for_training,
                with_unanswerable=self.with_unanswerable,
                needs_answers=not is_test,
            )
            unanswerable = 0 if self.with_unanswerable else found.counts["question_without_answer"]
            unusable = unanswerable + found.counts["answer_not_in_passage"]
            if not is_test and unusable > MAX_UNUSABLE_FRACTION * (len(found) + unusable):
                needed = "this task needs SQuAD 1.1, where every question has one"
                wanted = "another data set?" if self.with_unanswerable else needed
                said = (
                    f"{unusable} questions have no answer inside their passage"
                    f" ({dict(found.counts)})"
                )
                raise ValueError(f"{path}: {said}; {wanted}")
            return found.select(subset(len(found), max_examples)), len(found)

        def build() -> tuple[Arrays, Facts]:
            examples, available = read()
            features, counts = build_features(examples, self.inputs.tokenizer, self.settings)
            total = dict(Counter(examples.counts) + counts)
            return features.to_arrays(), {
                "num_questions": len(examples),
                "num_available": available,
                "counts": total,
            }

        settings = {
            "for_training": for_training,
            "max_examples": max_examples,
            "squad_2": self.with_unanswerable,
        }
        arrays, facts, _ = self.cached(path, settings, build)
        return SquadSplit(
            SquadFeatures.from_arrays(arrays),
            SquadExamples() if for_training else read()[0],
            **facts,
        )

    def compute_baselines(self) -> Scores:
        """Longest overlap; a question for which no phrase is known gets no answer, in 2.0 as
        well.
        """
        learnt: list[SquadQuestion] = []
        for path in (*self.extra_paths, self.train_path):
            part = read_squad(path, for_training=True, with_unanswerable=self.with_unanswerable)
            learnt += part.select(subset(len(part), self.plan.max_train_examples)).questions
        guesser = PhraseGuesser([one.text for one in learnt], [one.answers for one in learnt])
        found = self.validation.examples
        guesses = {
            one.id: guesser.guess(found.passages[one.passage], one.text) for one in found.questions
        }
        golds = {one.id: one.answers for one in found.questions}
        scores = score_v2(golds, guesses) if self.with_unanswerable else score_v1(golds, guesses)
        return {
            OVERLAP: {
                name: scores[name] for name in ("exact", "exact_match", "f1") if name in scores
            }
        }

    def preview(self) -> TaskPreview:
        train, validation = self._preview(self.train_path), self._preview(self.validation_path)
        return TaskPreview(train, validation, None, expects_unanswerable=self.with_unanswerable)

    def _preview(self, path: Path) -> Preview:
        found = read_squad(path, for_training=False, with_unanswerable=self.with_unanswerable)
        texts = {
            "question": [question.text for question in found.questions],
            "passage": found.passages,
        }
        return Preview(texts, None, len(found), dict(found.counts))

    @property
    def facts(self) -> dict[str, Any]:
        return super().facts | asdict(self.settings)
