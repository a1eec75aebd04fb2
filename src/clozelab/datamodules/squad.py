"""Span extraction data: SQuAD 1.1 and 2.0.

Files are those of readers/squad.py. A training example is one window of a passage.

A sequence is `[CLS] question [SEP] window of the passage [SEP]`, windows overlapping by a stride.
Follows the released run_squad.py (windows, max-context, answers outside a window point at [CLS])
with one difference: tokens carry their place in the original characters, so no text has to be
re-aligned. Where `get_final_text` gives up and returns whole words, offsets still give the exact
characters.

Letters: Q questions, W windows, T tokens of all windows, S tokens of all passages.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.baselines import OVERLAP, PhraseGuesser
from clozelab.datamodules.examples import (
    Int32s,
    Ints,
    Sequences,
    TokenSequences,
    assemble,
    join_sequences,
    offsets_of,
    subset,
    window_ranges,
)
from clozelab.datamodules.files import Arrays, Facts, Preview, Scores
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskArguments
from clozelab.datamodules.splitting import text_hashes
from clozelab.files.digests import file_sha256
from clozelab.metrics.squad import score_v1, score_v2
from clozelab.readers.squad import SquadExamples, SquadQuestion, read_squad
from clozelab.text.plain import JsonObject

log = logging.getLogger(__name__)

# more questions without a usable answer than this: another data set (2.0, say), not dirt
MAX_UNUSABLE_FRACTION = 0.1
# of SquadFeatures, a value a window
WINDOW_COLUMNS = (
    "question",
    "passage_starts",
    "window_starts",
    "start_positions",
    "end_positions",
)


@dataclass(frozen=True)
class WindowSettings:
    """Lengths in tokens: of a whole sequence, of the step between windows, of the question.

    A longer question is cut at its end.
    """

    max_seq_length: int
    doc_stride: int
    max_query_length: int

    @classmethod
    def fitted(cls, max_seq_length: int, doc_stride: int, max_query_length: int) -> WindowSettings:
        """Settings that fit: half a sequence or more is passage, and windows step by half at most.

        ValueError where none fits.
        """
        half = max_seq_length // 2
        if half < 4:
            raise ValueError(
                f"sequences of {max_seq_length} tokens are too short for questions on a passage:"
                " half of one has to hold three special tokens and a part of the question; take an"
                " encoder trained on longer sequences, or a larger task.data.max_seq_length"
            )
        if min(doc_stride, max_query_length) < 1:
            raise ValueError(
                f"doc_stride={doc_stride} and max_query_length={max_query_length}: give at least 1"
                " token"
            )
        # 3: [CLS] and two [SEP]
        return cls(max_seq_length, min(doc_stride, half), min(max_query_length, half - 3))


@dataclass(frozen=True)
class SquadFeatures:
    """One sequence a window; positions are inside the sequence."""

    sequences: TokenSequences
    question: Int32s  # [W] index of the question in the examples
    passage_starts: Int32s  # [W] sequence position of the window's first passage token
    window_starts: Int32s  # [W] index of that token among the passage's tokens
    # [W] sequence position of the answer's first token; 0 ([CLS]) where it is not all inside
    start_positions: Int32s
    end_positions: Int32s
    max_context: NDArray[np.bool_]  # [T] true for the passage tokens that have no better window
    passage_spans: Int32s  # [S, 2] range of characters of each passage token
    passage_offsets: Ints  # [passages + 1] where each passage's tokens begin in `passage_spans`

    def to_arrays(self) -> Arrays:
        columns = {}
        for name, value in vars(self).items():
            if name != "sequences":
                columns[name] = value
        return columns | self.sequences.arrays()

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> SquadFeatures:
        columns = {name: arrays[name] for name in cls.__dataclass_fields__ if name != "sequences"}
        return cls(sequences=TokenSequences.of(arrays), **columns)


# A passage's tokens, and each one's range of characters [tokens, 2].
EncodedPassage = tuple[Int32s, Ints]


@dataclass
class _WindowBuilder:
    """Collects the windows of question after question."""

    tokenizer: Tokenizer
    settings: WindowSettings
    queries: list[Int32s] = field(default_factory=list)  # of each window
    windows: list[Int32s] = field(default_factory=list)
    # One row a window, of WINDOW_COLUMNS.
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    max_context: list[NDArray[np.bool_]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(
        self, index: int, question: SquadQuestion, query: Int32s, encoded: EncodedPassage
    ) -> None:
        """All windows of question number `index`; `query` are its tokens."""
        passage, spans = encoded
        length = len(question.answers[0]) if question.answers else 0
        first, last = answer_tokens(spans, question.answer_start, question.answer_start + length)
        self.counts["questions_cut"] += len(query) > self.settings.max_query_length
        query = query[: self.settings.max_query_length]
        # Tokens before the passage: [CLS] question [SEP], or what the tokenizer has instead.
        head = 1 + len(query) + self.tokenizer.pair_separators
        room = self.settings.max_seq_length - head - 1
        ranges = window_ranges(len(passage), room, self.settings.doc_stride)
        all_flags = max_context_flags(ranges, len(passage))
        for (start, num_tokens), flags in zip(ranges, all_flags, strict=True):
            self.queries.append(query)
            self.windows.append(passage[start : start + num_tokens])
            is_special = np.zeros(head, dtype=np.bool_)
            self.max_context.append(np.concatenate([is_special, flags, [False]]))
            # An answer that is not all inside this window is learned as [CLS], position 0.
            start_position = end_position = 0
            is_inside = start <= first and last < start + num_tokens
            if is_inside:
                start_position = first + head - start
                end_position = last + head - start
            self.rows.append((index, head, start, start_position, end_position))
            self.counts["windows_without_answer"] += not is_inside
        self.counts["windows"] += len(ranges)
        self.counts["question_of_empty_passage"] += not ranges
        self.counts["answer_without_tokens"] += bool(question.answers) and first < 0


def build_features(
    examples: SquadExamples, tokenizer: Tokenizer, settings: WindowSettings
) -> tuple[SquadFeatures, Counter[str]]:
    """The windows of all questions in order, and counts of what is unusual about them."""
    # Each passage is encoded once, however many questions it has.
    used = sorted({question.passage for question in examples.questions})
    passages = tokenizer.encode_with_offsets([examples.passages[number] for number in used])
    encoded = dict(zip(used, passages, strict=True))
    queries = tokenizer.encode_batch([question.text for question in examples.questions])
    builder = _WindowBuilder(tokenizer, settings)
    for index, (question, query) in enumerate(zip(examples.questions, queries, strict=True)):
        builder.add(index, question, query, encoded[question.passage])

    # Rows of five become five contiguous columns; the shape holds for no window, too.
    values = np.array(builder.rows, dtype=np.int32).reshape(-1, len(WINDOW_COLUMNS)).T.copy()
    columns = dict(zip(WINDOW_COLUMNS, values, strict=True))
    # Passages without a question have no tokens here. The empty arrays serve where there is none.
    all_spans = [np.zeros((0, 2))] + [spans for _, spans in passages]
    passage_lengths = np.zeros(len(examples.passages), dtype=np.int64)
    for number, (tokens, _) in encoded.items():
        passage_lengths[number] = len(tokens)
    no_flags = np.zeros(0, dtype=np.bool_)
    max_context = np.concatenate([no_flags, *builder.max_context])
    passage_spans = np.concatenate(all_spans).astype(np.int32)
    features = SquadFeatures(
        sequences=assemble(tokenizer, builder.queries, builder.windows),
        **columns,
        max_context=max_context,
        passage_spans=passage_spans,
        passage_offsets=offsets_of(passage_lengths),
    )
    return features, builder.counts


def answer_tokens(spans: NDArray[np.integer], start: int, end: int) -> tuple[int, int]:
    """The first and last token that overlap the characters start..end.

    They are (-1, -1) where none does, or where there is no answer. `spans` [tokens, 2].
    """
    if start < 0 or not len(spans):
        return -1, -1
    # Both columns rise: the first token that ends behind `start`, the last that begins before `end`
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left")) - 1
    if first > last:
        return -1, -1
    return first, last


def max_context_flags(ranges: list[tuple[int, int]], num_tokens: int) -> list[NDArray[np.bool_]]:
    """For each window, which of its tokens have their largest context there.

    As released: context is the smaller number of tokens on either side, and a hundredth of the
    window's length; the first window wins a tie.
    """
    if len(ranges) <= 1:
        return [np.ones(num_tokens, dtype=np.bool_)] * len(ranges)
    # [windows, tokens]; windows of 4 with step 2 over 6 tokens, without the hundredths:
    #     0  1  1  0 -1 -1
    #    -1 -1  0  1  1  0    best: 0 0 0 1 1 1
    context = np.full((len(ranges), num_tokens), -1.0)
    for window, (start, length) in enumerate(ranges):
        position = np.arange(length)
        # As in the released code; a hundredth of the window's length decides among equals.
        smaller_side = np.minimum(position, position[::-1])
        context[window, start : start + length] = smaller_side + 0.01 * length
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

    @property
    def sequences(self) -> TokenSequences:
        return self.features.sequences


class SquadDataModule(FinetuningDataModule):
    """Questions and passages, as conf/task/squad_v1.yaml says.

    `max_train_examples` counts questions, a batch counts windows. A question without an answer is
    learned as the span [CLS]..[CLS]. The schedule of rates covers `train_extra` too.
    """

    validation: SquadSplit
    row_noun = "question"
    grouping = "questions of one passage stay together"

    def __init__(
        self,
        *,
        train_extra: list[str],
        with_unanswerable: bool,
        doc_stride: int,
        max_query_length: int,
        **common: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**common)
        self.settings = WindowSettings.fitted(self.max_seq_length, doc_stride, max_query_length)
        # A short encoder reads shorter questions than the configuration says: not in silence.
        if self.settings != WindowSettings(self.max_seq_length, doc_stride, max_query_length):
            log.warning(
                "%s: sequences of %d tokens: questions are cut at %d tokens (not %d), windows step"
                " by %d (not %d)",
                self.inputs.name,
                self.max_seq_length,
                self.settings.max_query_length,
                max_query_length,
                self.settings.doc_stride,
                doc_stride,
            )
        self.extra_paths = [self.require(file) for file in train_extra]
        self.with_unanswerable = with_unanswerable

    def remembered(self) -> JsonObject:
        return asdict(self.settings)

    @property
    def reading(self) -> JsonObject:
        extra = [file_sha256(path) for path in self.extra_paths]
        return {"train_extra": extra, "with_unanswerable": self.with_unanswerable}

    @property
    def tokenization(self) -> JsonObject:
        return super().tokenization | {"settings": asdict(self.settings)}

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training")
        self.validation = self._load(self.validation_path, "validation")
        self.extra = [self._load(path, "training") for path in self.extra_paths]
        # The windows of `train_extra` come first: see `num_first_sequences`.
        features = [split.features for split in (*self.extra, self.train)]
        self.train_sequences = join_sequences([windows.sequences for windows in features])
        starts = np.concatenate([windows.start_positions for windows in features])
        ends = np.concatenate([windows.end_positions for windows in features])
        self.train_targets = {
            "start_positions": starts.astype("int64"),
            "end_positions": ends.astype("int64"),
        }
        self.validation_sequences = self.validation.features.sequences

    @property
    def num_first_sequences(self) -> int:
        """Windows of `train_extra`."""
        return sum(len(split.features.sequences) for split in self.extra)

    def read_test(self, path: Path) -> tuple[Sequences, SquadSplit]:
        split = self._load(path, "test")
        return split.features.sequences, split

    def _load(self, path: Path, role: str) -> SquadSplit:
        """One split; its texts only where they are scored or predicted.

        A test file may come without answers.
        """
        # The file is read at most once: for what is not in the cache, and for its texts.
        read = cache(self._read)
        arrays, facts, _ = self.cached(
            path, role, lambda file, role: self._encode(*read(file, role))
        )
        examples = SquadExamples()
        if role != "training":
            _, examples = read(path, role)
        return SquadSplit(SquadFeatures.from_arrays(arrays), examples, **facts)

    def _read(self, path: Path, role: str) -> tuple[SquadExamples, SquadExamples]:
        """The examples of a file that are for a role, and those of them that are used.

        ValueError where so many questions cannot be used that it is another data set.
        """
        examples = read_squad(
            path,
            for_training=role == "training",
            with_unanswerable=self.with_unanswerable,
            needs_answers=role != "test",
        )
        # 1.1 has an answer to every question; in 2.0 those without are meant.
        unusable = examples.counts["answer_not_in_passage"]
        advice = "another data set?"
        if not self.with_unanswerable:
            unusable += examples.counts["question_without_answer"]
            advice = "this task needs SQuAD 1.1, where every question has one"
        if role != "test" and unusable > MAX_UNUSABLE_FRACTION * (len(examples) + unusable):
            raise ValueError(
                f"{path}: {unusable} questions have no answer inside their passage"
                f" ({dict(examples.counts)}); {advice}"
            )
        examples = self._for_role(path, role, examples)
        return examples, examples.select(subset(len(examples), self.limit(role)))

    def _for_role(self, path: Path, role: str, examples: SquadExamples) -> SquadExamples:
        """Those for a role, where validation is held out: questions of one passage together."""
        passages = [passage for _, passage in examples.texts()]
        return examples.select(self.rows_of(role, path, passages))

    def _encode(self, every: SquadExamples, examples: SquadExamples) -> tuple[Arrays, Facts]:
        """What the cache holds of one split: of `every` question the hashes, of `examples` all."""
        features, counts = build_features(examples, self.inputs.tokenizer, self.settings)
        facts: Facts = {
            "num_questions": len(examples),
            "num_available": len(every),
            "counts": dict(Counter(examples.counts) + counts),
        }
        arrays = features.to_arrays()
        arrays["row_hashes"] = text_hashes(every.texts())
        arrays["row_lines"] = np.arange(1, len(every) + 1)
        return arrays, facts

    def compute_baselines(self) -> Scores:
        """Longest overlap.

        A question for which no phrase is known gets no answer, in 2.0 as well.
        """
        train = []
        for path in (*self.extra_paths, self.train_path):
            _, examples = self._read(path, "training")
            train += examples.questions
        guesser = PhraseGuesser(
            [question.text for question in train], [question.answers for question in train]
        )
        validation = self.validation.examples
        guesses = {}
        golds = {}
        for question in validation.questions:
            passage = validation.passages[question.passage]
            guesses[question.id] = guesser.guess(passage, question.text)
            golds[question.id] = question.answers
        score = score_v2 if self.with_unanswerable else score_v1
        scores = score(golds, guesses)
        reported = [name for name in ("exact", "exact_match", "f1") if name in scores]
        return {OVERLAP: {name: scores[name] for name in reported}}

    def preview_facts(self, train: Preview) -> JsonObject:  # noqa: ARG002
        return {"kind": None, "expects_unanswerable": self.with_unanswerable}

    def preview_of(self, path: Path, role: str) -> Preview:
        examples = read_squad(path, for_training=False, with_unanswerable=self.with_unanswerable)
        examples = self._for_role(path, role, examples)
        texts = {
            "question": [question.text for question in examples.questions],
            "passage": examples.passages,
        }
        return Preview(texts, None, len(examples), dict(examples.counts), examples.texts())

    @property
    def facts(self) -> JsonObject:
        return super().facts | asdict(self.settings)
