"""Questions, passages and answers from the official SQuAD files (1.1 and 2.0), with every answer checked against its
passage.

Unusual: an `answer_start` that does not point at its text is repaired to the nearest place where the text stands; where
the text does not occur in the passage at all, a training question is skipped and counted. A question asked for scoring
is never skipped: the scorer compares texts and needs no offset.

SQuAD questions as token sequences: `[CLS] question [SEP] window of the passage [SEP]`, windows overlapping by a stride.

Follows the released run_squad.py (windows, max-context, answers outside a window point at [CLS]) with one difference:
tokens carry their place in the original characters, so an answer is found and cut by character offsets and no text has
to be re-aligned. Where the released `get_final_text` succeeds it gives the same characters; where it gives up and
returns whole words, offsets still give the exact ones. Letters: W windows, T tokens of all windows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.examples import Ints, TokenSequences, concatenate, window_ranges


@dataclass(frozen=True)
class SquadQuestion:
    """`answers` are the gold texts, `answer_start` the first one's place in the passage (-1: none that can be used)."""

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
        """The questions at `index`, in its order; passages keep their numbers."""
        return SquadExamples(self.passages, [self.questions[i] for i in index], self.counts)


def read_squad(path: Path, *, for_training: bool, with_unanswerable: bool = False) -> SquadExamples:
    """Read one file. `for_training` skips (and counts) what cannot be learned from, and a question's exact repeat.

    `with_unanswerable` (2.0): a question without an answer is an example, too.

    Raises ValueError naming the file for broken JSON, a missing key, a duplicate question id, or no usable question.
    """
    examples = SquadExamples()
    seen: dict[str, tuple[str, Any]] = {}
    for passage, question in _questions(path, _load(path), examples):
        identifier = _text(path, question, "id")
        asked = (examples.passages[passage], question)
        if for_training and seen.get(identifier) == asked:
            examples.counts["question_repeated"] += 1
            continue
        if identifier in seen:
            raise ValueError(f"{path}: the question id {identifier!r} occurs twice; scores would count one of them")
        seen[identifier] = asked
        _add(path, examples, passage, question, for_training, with_unanswerable)
    if not examples.questions:
        raise ValueError(f"{path} has no usable question (skipped: {dict(examples.counts) or 'none'})")
    return examples


def locate_answer(passage: str, text: str, start: int) -> int:
    """Where `text` stands in the passage: `start` if it is right, else the nearest occurrence, else -1."""
    if text and start >= 0 and passage.startswith(text, start):
        return start
    found, best = passage.find(text) if text else -1, -1
    while found >= 0:
        if best < 0 or abs(found - start) < abs(best - start):
            best = found
        found = passage.find(text, found + 1)
    return best


def _load(path: Path) -> list[Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as problem:  # also undecodable bytes
        raise ValueError(f"{path} is not a JSON file: {problem}") from problem
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise ValueError(f'{path} is not in the SQuAD format: expected {{"version": ..., "data": [articles]}}')
    return content["data"]


def _questions(path: Path, articles: list[Any], examples: SquadExamples) -> Iterator[tuple[int, dict[str, Any]]]:
    for article in articles:
        for paragraph in _list(path, article, "paragraphs"):
            examples.passages.append(_text(path, paragraph, "context"))
            examples.counts["empty_passage"] += not examples.passages[-1].strip()
            for question in _list(path, paragraph, "qas"):
                yield len(examples.passages) - 1, question


def _add(
    path: Path,
    examples: SquadExamples,
    passage: int,
    question: dict[str, Any],
    for_training: bool,
    with_unanswerable: bool,
) -> None:
    identifier = question["id"]
    answers = [(_text(path, answer, "text"), answer.get("answer_start")) for answer in question.get("answers") or []]
    start = -1
    if answers:
        text, given = answers[0]
        if not isinstance(given, int):
            raise ValueError(f"{path}: question {identifier!r}: answer_start is {given!r}, expected a number")
        start = locate_answer(examples.passages[passage], text, given)
        examples.counts["answer_offset_repaired"] += start not in (-1, given)
        examples.counts["answer_not_in_passage"] += start == -1
    else:
        examples.counts["question_without_answer"] += 1
    if for_training and start < 0 and (answers or not with_unanswerable):
        return
    texts = tuple(text for text, _ in answers)
    examples.questions.append(SquadQuestion(identifier, _text(path, question, "question"), passage, texts, start))


def _list(path: Path, node: Any, key: str) -> list[Any]:
    if not isinstance(node, dict) or not isinstance(node.get(key), list):
        raise ValueError(f"{path} is not in the SQuAD format: expected a list {key!r} in {str(node)[:80]!r}")
    return node[key]


def _text(path: Path, node: Any, key: str) -> str:
    if not isinstance(node, dict) or not isinstance(node.get(key), str):
        raise ValueError(f"{path} is not in the SQuAD format: expected a text {key!r} in {str(node)[:80]!r}")
    return node[key]


Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class WindowSettings:
    """Lengths in tokens: of a whole sequence, of the step between windows, of the question (cut at its end)."""

    max_seq_length: int
    doc_stride: int
    max_query_length: int

    def __post_init__(self) -> None:
        if self.doc_stride < 1 or self.max_query_length < 1 or self.max_seq_length < self.max_query_length + 4:
            raise ValueError(
                f"max_seq_length={self.max_seq_length} must be at least max_query_length={self.max_query_length} + 4 "
                f"(three special tokens and a passage token), and doc_stride={self.doc_stride} at least 1"
            )

    @classmethod
    def fitted(cls, max_seq_length: int, doc_stride: int, max_query_length: int) -> WindowSettings:
        """Settings for sequences that may be shorter than the other two were chosen for.

        At least half a sequence is passage, and a step between windows is at most half a sequence, so that they overlap
        unless the question is as long as it may be. Raises ValueError for sequences too short for any question.
        """
        half = max_seq_length // 2
        if half < 4:
            raise ValueError(
                f"sequences of {max_seq_length} tokens are too short for questions on a passage: half of one has to "
                "hold three special tokens and a part of the question; take an encoder trained on longer sequences, "
                "or a larger task.data.max_seq_length"
            )
        return cls(max_seq_length, min(doc_stride, half), min(max_query_length, half - 3))


@dataclass(frozen=True)
class SquadFeatures:
    """One sequence a window. Positions are inside the sequence; `passage_spans` [.., 2] are character ranges."""

    sequences: TokenSequences
    question: Int32s
    """[W] index of the question in the examples."""
    passage_starts: Int32s
    """[W] sequence position of the window's first passage token."""
    window_starts: Int32s
    """[W] index of that token among the passage's tokens."""
    start_positions: Int32s
    """[W] sequence position of the answer's first token; 0 ([CLS]) where the answer is not wholly inside the window."""
    end_positions: Int32s
    max_context: NDArray[np.bool_]
    """[T] true for the passage tokens that have no better window."""
    passage_spans: Int32s
    passage_offsets: Ints

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """What the cache stores."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "sequences"}
        return own | self.sequences.arrays()

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[np.generic]]) -> SquadFeatures:
        """The inverse of `to_arrays`."""
        own = {name: arrays[name] for name in cls.__dataclass_fields__ if name != "sequences"}
        return cls(sequences=TokenSequences.of(arrays), **own)  # type: ignore[arg-type]


def build_features(
    examples: SquadExamples, tokenizer: Tokenizer, settings: WindowSettings
) -> tuple[SquadFeatures, Counter[str]]:
    """Windows of all questions in order, and counts: windows, windows_without_answer, answer_without_tokens, ..."""
    used = sorted({question.passage for question in examples.questions})
    encoded = dict(zip(used, tokenizer.encode_with_offsets([examples.passages[i] for i in used]), strict=True))
    queries = tokenizer.encode_batch([question.text for question in examples.questions])
    builder = _Builder(tokenizer, settings)
    for index, (question, query) in enumerate(zip(examples.questions, queries, strict=True)):
        ids, spans = encoded[question.passage]
        length = len(question.answers[0]) if question.answers else 0
        answer = answer_tokens(spans, question.answer_start, question.answer_start + length)
        builder.counts["answer_without_tokens"] += bool(question.answers) and answer[0] < 0
        builder.counts["questions_cut"] += len(query) > settings.max_query_length
        builder.add(index, query[: settings.max_query_length], ids, answer)
    passage_offsets = np.zeros(len(examples.passages) + 1, dtype=np.int64)
    passage_offsets[[i + 1 for i in used]] = [len(encoded[i][0]) for i in used]
    flat_spans = np.concatenate([np.zeros((0, 2)), *(encoded[i][1] for i in used)]).astype(np.int32)
    return builder.build(flat_spans, np.cumsum(passage_offsets)), builder.counts


def answer_tokens(spans: NDArray[np.integer], start: int, end: int) -> tuple[int, int]:
    """First and last token that overlap the characters start..end; (-1, -1) where none does or there is no answer."""
    if start < 0 or not len(spans):
        return -1, -1
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left")) - 1
    return (first, last) if first <= last else (-1, -1)


def max_context_flags(ranges: list[tuple[int, int]], num_tokens: int) -> list[NDArray[np.bool_]]:
    """For each window, which of its tokens have their largest context there (the first window wins a tie).

    Context of a token: min(tokens to its left, to its right) + 0.01 * window length, as released.
    """
    if len(ranges) == 1:
        return [np.ones(num_tokens, dtype=np.bool_)]
    context = np.full((len(ranges), num_tokens), -1.0)
    for window, (start, length) in enumerate(ranges):
        inside = np.arange(length)
        context[window, start : start + length] = np.minimum(inside, length - 1 - inside) + 0.01 * length
    best = context.argmax(axis=0) if len(ranges) else np.zeros(0, dtype=np.int64)
    return [best[start : start + length] == window for window, (start, length) in enumerate(ranges)]


class _Builder:
    """Collects windows; one `add` a question."""

    def __init__(self, tokenizer: Tokenizer, settings: WindowSettings) -> None:
        self.settings = settings
        self.cls = np.array([tokenizer.cls_id], dtype=np.int32)
        self.sep = np.array([tokenizer.sep_id], dtype=np.int32)
        self.middle = np.repeat(self.sep, tokenizer.pair_separators)
        self.has_token_types = tokenizer.has_token_types
        self.sequences: list[Int32s] = []
        self.flags: list[NDArray[np.bool_]] = []
        self.columns: list[tuple[int, int, int, int, int]] = []
        self.counts: Counter[str] = Counter()

    def add(self, index: int, query: Int32s, passage: Int32s, answer: tuple[int, int]) -> None:
        head = np.concatenate([self.cls, query, self.middle])
        ranges = window_ranges(len(passage), self.settings.max_seq_length - len(head) - 1, self.settings.doc_stride)
        self.counts["question_of_empty_passage"] += not ranges
        for (start, length), flags in zip(ranges, max_context_flags(ranges, len(passage)), strict=True):
            self.sequences.append(np.concatenate([head, passage[start : start + length], self.sep]))
            self.flags.append(np.concatenate([np.zeros(len(head), dtype=np.bool_), flags, np.zeros(1, dtype=np.bool_)]))
            inside = start <= answer[0] and answer[1] < start + length
            shift = len(head) - start
            first, last = (answer[0] + shift, answer[1] + shift) if inside else (0, 0)
            self.counts["windows_without_answer"] += not inside
            self.columns.append((index, len(head), start, first, last))
        self.counts["windows"] += len(ranges)

    def build(self, passage_spans: Int32s, passage_offsets: Ints) -> SquadFeatures:
        input_ids, offsets = concatenate(self.sequences)
        columns = np.array(self.columns, dtype=np.int32).reshape(-1, 5)
        question, passage_starts, window_starts, first, last = (np.ascontiguousarray(column) for column in columns.T)
        lengths = np.diff(offsets).astype(np.int32)
        return SquadFeatures(
            sequences=TokenSequences(input_ids, offsets, passage_starts if self.has_token_types else lengths),
            question=question,
            passage_starts=passage_starts,
            window_starts=window_starts,
            start_positions=first,
            end_positions=last,
            max_context=np.concatenate(self.flags) if self.flags else np.zeros(0, dtype=np.bool_),
            passage_spans=passage_spans,
            passage_offsets=passage_offsets,
        )


MAX_UNUSABLE_FRACTION = 0.1
"""More questions without a usable answer than this: another data set (2.0, say), not dirt."""


@dataclass(frozen=True)
class SquadSplit:
    """`examples` is None for training, where no text is needed any more."""

    features: SquadFeatures
    examples: SquadExamples | None
    num_questions: int
    num_available: int
    counts: dict[str, int]

    def require_examples(self) -> SquadExamples:
        """The texts of a split that was loaded for scoring."""
        assert self.examples is not None, "this split was loaded for training"
        return self.examples


def refuse_other_data(path: Path, examples: SquadExamples, with_unanswerable: bool) -> None:
    unanswerable = 0 if with_unanswerable else examples.counts["question_without_answer"]
    unusable = unanswerable + examples.counts["answer_not_in_passage"]
    if unusable > MAX_UNUSABLE_FRACTION * (len(examples) + unusable):
        raise ValueError(
            f"{path}: {unusable} questions have no answer inside their passage ({dict(examples.counts)}); "
            + ("another data set?" if with_unanswerable else "this task needs SQuAD 1.1, where every question has one")
        )
