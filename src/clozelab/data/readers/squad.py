"""Questions, passages and answers from the official SQuAD files (1.1 and 2.0), with every answer checked against its
passage.

Unusual: an `answer_start` that does not point at its text is repaired to the nearest place where the text stands; where
the text does not occur in the passage at all, a training question is skipped and counted. A question asked for scoring
is never skipped: the scorer compares texts and needs no offset.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
