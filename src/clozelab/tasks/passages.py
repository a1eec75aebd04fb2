"""A question with its passage as a unit: windows over the passage, outputs for every token.

A sequence is `[CLS] question [SEP] window of the passage [SEP]`, windows overlapping by a stride. A
training example is one window. Follows the released run_squad.py (windows, max-context, answers
outside a window point at [CLS]) with one difference: tokens carry their place in the original
characters, so no text has to be re-aligned. Where `get_final_text` gives up and returns whole
words, offsets still give the exact characters.

Letters: Q questions, W windows, T tokens of all windows, S tokens of all passages, H hidden size.
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.readers.squad import SquadExamples, SquadQuestion, read_squad
from clozelab.tasks.batches import Batch, BatchValues
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.sequences import (
    Int32s,
    Ints,
    TokenSequences,
    assemble,
    offsets_of,
    ragged_positions,
    window_ranges,
)
from clozelab.tasks.target import Target
from clozelab.tasks.unit import Split, SplitSource, TaskModel, Unit
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
Floats = NDArray[np.float32]

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
        return cls(sequences=TokenSequences.from_arrays(arrays), **columns)


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


def token_logits(features: SquadFeatures, outputs: Sequence[BatchValues]) -> tuple[Floats, Floats]:
    """Start and end logits [T] of all windows.

    `outputs`: (numbers of windows, logits of their tokens [.., 2]) of each batch.
    """
    scored = torch.cat([index for index, _ in outputs]).numpy()
    assert len(np.unique(scored)) == len(scored) == len(features.question), (
        "each window is scored exactly once"
    )
    sequences = features.sequences
    # Starts and ends of all windows one after the other: a window's tokens stand together.
    logits = np.full((2, len(sequences.input_ids)), -np.inf, dtype=np.float32)
    for index, values in outputs:
        windows = index.numpy()
        _, tokens = ragged_positions(sequences.offsets[windows], sequences.lengths[windows])
        logits[:, tokens] = values.detach().numpy().T
    return logits[0], logits[1]


@dataclass(frozen=True, kw_only=True)
class PassageSplit(Split):
    """`examples` is empty for training, where no text is needed any more."""

    features: SquadFeatures
    examples: SquadExamples

    @property
    def targets(self) -> dict[str, np.ndarray]:
        return {
            "start_positions": self.features.start_positions.astype("int64"),
            "end_positions": self.features.end_positions.astype("int64"),
        }


class PassageUnit(Unit[SquadExamples]):
    """Questions and passages, as conf/task/squad_v1.yaml says.

    `max_train_examples` counts questions, a batch counts windows. A question without an answer is
    learned as the span [CLS]..[CLS].
    """

    kind = "PassageUnit"
    row_noun = "question"
    training_differs = True
    grouping = "questions of one passage stay together"
    scores_several_files = False
    settings: WindowSettings  # once `fitted`

    def __init__(
        self,
        *,
        with_unanswerable: bool,
        doc_stride: int,
        max_query_length: int,
        max_unusable: float = MAX_UNUSABLE_FRACTION,
    ) -> None:
        self.max_unusable = max_unusable
        self.with_unanswerable = with_unanswerable
        self.expects_unanswerable = with_unanswerable
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length

    def fitted(self, max_seq_length: int, task_name: str) -> Self:
        fitted = copy.copy(self)
        fitted.max_seq_length = max_seq_length
        fitted.settings = WindowSettings.fitted(
            max_seq_length, self.doc_stride, self.max_query_length
        )
        # A short encoder reads shorter questions than the configuration says: not in silence.
        asked = WindowSettings(max_seq_length, self.doc_stride, self.max_query_length)
        if fitted.settings != asked:
            log.warning(
                "%s: sequences of %d tokens: questions are cut at %d tokens (not %d), windows step"
                " by %d (not %d)",
                task_name,
                max_seq_length,
                fitted.settings.max_query_length,
                self.max_query_length,
                fitted.settings.doc_stride,
                self.doc_stride,
            )
        return fitted

    def reading(self, target: Target) -> PlainDict:
        return {"with_unanswerable": self.with_unanswerable}

    def tokenization(self) -> PlainDict:
        return {"settings": asdict(self.settings)}

    def config_to_save(self) -> PlainDict:
        return asdict(self.settings)

    @property
    def facts(self) -> PlainDict:
        return asdict(self.settings)

    # Files

    def read(
        self,
        path: Path,
        role: str,
        target: Target,
        *,
        strict: bool = True,
    ) -> SquadExamples:
        """The questions of a file; a test file may come without answers.

        ValueError where so many questions cannot be used that it is another data set.
        """
        examples = read_squad(
            path,
            for_training=strict and role == "training",
            with_unanswerable=self.with_unanswerable,
            needs_answers=role != "test",
        )
        if strict and role != "test":
            self._refuse_unusable(path, examples)
        return examples

    def _refuse_unusable(self, path: Path, examples: SquadExamples) -> None:
        # 1.1 has an answer to every question; in 2.0 those without are meant.
        unusable = examples.counts["answer_not_in_passage"]
        advice = "another data set?"
        if not self.with_unanswerable:
            unusable += examples.counts["question_without_answer"]
            advice = "this task needs SQuAD 1.1, where every question has one"
        if unusable > self.max_unusable * (len(examples) + unusable):
            raise ValueError(
                f"{path}: {unusable} questions have no answer inside their passage"
                f" ({dict(examples.counts)}); {advice}"
            )

    def groups(self, examples: SquadExamples) -> Sequence[str]:
        return [passage for _, passage in examples.rows]

    def preview_texts(self, examples: SquadExamples) -> Mapping[str, Sequence[str]]:
        questions = [question.text for question in examples.questions]
        return {"question": questions, "passage": examples.passages}

    def joined(self, parts: Sequence[SquadExamples]) -> SquadExamples:
        """The questions alone: their passages are numbered anew in each file."""
        joined = SquadExamples()
        for examples in parts:
            joined.questions += examples.questions
        return joined

    # Sequences

    def encode(self, examples: SquadExamples, tokenizer: Tokenizer) -> tuple[Arrays, PlainDict]:
        features, counts = build_features(examples, tokenizer, self.settings)
        return features.to_arrays(), dict(Counter(examples.counts) + counts)

    def split(self, arrays: Arrays, facts: Facts, source: SplitSource) -> PassageSplit:
        examples = SquadExamples()
        if source.role != "training":
            examples = source.examples()
        return PassageSplit(
            sequences=TokenSequences.from_arrays(arrays),
            ids=arrays["ids"],
            labels=arrays["labels"],
            features=SquadFeatures.from_arrays(arrays),
            examples=examples,
            **facts,
        )

    # The model

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[T, H]."""
        return model.encode(batch)

    def outputs(
        self, batches: Sequence[BatchValues], splits: Sequence[PassageSplit]
    ) -> list[np.ndarray]:
        """Start and end logits [2, T] of all windows."""
        (split,) = splits
        return [np.stack(token_logits(split.features, batches))]
