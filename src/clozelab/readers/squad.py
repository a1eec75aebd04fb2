"""Questions about passages: SQuAD's articles, or a question a row as `datasets` writes them.

An `answer_start` that does not point at its text is repaired to the nearest place where the text
stands. Where there is none, a training question is skipped and counted; one asked for scoring is
not, since the scorer compares texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from clozelab.readers.lines import parse_json, text_lines
from clozelab.readers.objects import is_list, object_of
from clozelab.readers.records import DamagedRow
from clozelab.readers.tables import open_table, table_format
from clozelab.text.plain import PlainDict


@dataclass(frozen=True)
class SquadQuestion:
    """One question with its gold answers.

    `answers` are their texts, `answer_start` is the first one's place in the passage (-1: none that
    can be used).
    """

    id: str
    text: str
    passage: int
    answers: tuple[str, ...]
    answer_start: int
    number: int = 1  # its place in the file, from 1


@dataclass
class SquadExamples:
    """Questions in file order; `counts` says what was repaired or skipped, by reason.

    Answers are no labels, and a question that cannot be used is counted, not a bad row.
    """

    labels: ClassVar[None] = None
    num_bad_rows: ClassVar[int] = 0

    passages: list[str] = field(default_factory=list)
    questions: list[SquadQuestion] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def ids(self) -> list[str]:
        return [question.id for question in self.questions]

    @property
    def numbers(self) -> list[int]:
        return [question.number for question in self.questions]

    @property
    def lines(self) -> list[int]:
        """The questions' numbers."""
        return self.numbers

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Each question with its passage."""
        return [(question.text, self.passages[question.passage]) for question in self.questions]

    def select(self, index: Sequence[int]) -> SquadExamples:
        questions = [self.questions[i] for i in index]
        return SquadExamples(self.passages, questions, self.counts)


def read_squad(
    path: Path, *, for_training: bool, with_unanswerable: bool = False, needs_answers: bool = True
) -> SquadExamples:
    """Read one file: the official articles (.json), or a question a row (jsonl, Parquet, ...).

    `for_training` skips (and counts) what cannot be learned from, and a question's exact repeat.
    `with_unanswerable` (2.0): a question without an answer is an example, too. Without
    `needs_answers` a file may lack them, as a test file does. ValueError names the file for broken
    JSON, a missing key, a duplicate question id, or no usable question.
    """
    examples = SquadExamples()
    seen: PlainDict = {}
    for number, (text, record) in enumerate(_questions(path), 1):
        # neighbours with the same passage share it
        if not examples.passages or examples.passages[-1] != text:
            examples.passages.append(text)
            examples.counts["empty_passage"] += not text.strip()
        identifier = _value(path, record, "id", str)
        # An oversampled training file repeats questions; two of one id are a mistake.
        if for_training and seen.get(identifier) == (text, record):
            examples.counts["question_repeated"] += 1
            continue
        if identifier in seen:
            raise ValueError(
                f"{path}: the question id {identifier!r} occurs twice; scores would count one of"
                " them"
            )
        seen[identifier] = (text, record)
        answers, given_start = _answers_of(path, record, needs_answers)
        start = _counted_start(text, answers, given_start, examples.counts)
        # Training learns from questions whose answer has a place, and in 2.0 from those without.
        is_unanswerable = with_unanswerable and not answers
        if for_training and start < 0 and not is_unanswerable:
            continue
        question = _value(path, record, "question", str)
        passage = len(examples.passages) - 1
        examples.questions.append(
            SquadQuestion(identifier, question, passage, answers, start, number)
        )
    if not examples.questions:
        raise ValueError(
            f"{path} has no usable question (skipped: {dict(examples.counts) or 'none'})"
        )
    return examples


def _counted_start(
    passage: str, answers: Sequence[str], given_start: int, counts: Counter[str]
) -> int:
    """Where the first answer stands in the passage (-1: nowhere); counts what is unusual."""
    if not answers:
        counts["question_without_answer"] += 1
        return -1
    start = locate_answer(passage, answers[0], given_start)
    counts["answer_offset_repaired"] += start not in (-1, given_start)
    counts["answer_not_in_passage"] += start == -1
    return start


def _answers_of(
    path: Path,
    question: PlainDict,
    needs_answers: bool,
) -> tuple[tuple[str, ...], int]:
    """The gold texts, and where the file says that the first one begins.

    ValueError for what is no list of answers.
    """
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
    texts = tuple(_value(path, answer, "text", str) for answer in answers)
    if not texts:
        return (), -1
    if question.get("is_impossible") is True:
        raise ValueError(
            f"{where} has answers and is_impossible=true; only one of them can be right",
        )
    start = answers[0].get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise ValueError(f"{where}: answer_start is {start!r}, expected a number")
    return texts, start


def _answer_list(where: str, answers: PlainDict) -> list[PlainDict]:
    """From lists of texts and of starts, as `datasets` has them, to a list of answers."""
    texts = answers.get("text")
    starts = answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise ValueError(
            f"{where}: answers need two equally long lists, text and answer_start, not"
            f" {str(answers)[:80]}"
        )
    pairs = zip(texts, starts, strict=True)
    return [{"text": text, "answer_start": start} for text, start in pairs]


def _questions(path: Path) -> Iterator[tuple[str, PlainDict]]:
    """(passage, question) in file order."""
    articles = _articles_of(path)
    if articles is not None:
        yield from _questions_of_articles(path, articles)
        return
    for record in open_table(path, table_format(path) or "jsonl").whole_rows():
        yield _value(path, record, "context", str), record


def _articles_of(path: Path) -> list[object] | None:
    """The articles that are one JSON object; None for a file of rows.

    The datasets library gives its jsonl any name, .json most often.
    """
    if table_format(path) is not None or is_list(path):
        return None
    try:
        content = parse_json(path.read_bytes())
    except ValueError as problem:  # also undecodable bytes
        _, first_line = next(text_lines(path), (0, None))
        if isinstance(object_of(first_line), DamagedRow):
            raise ValueError(f"{path} is not a JSON file: {problem}") from problem
        return None
    is_one_row = isinstance(content, dict) and "data" not in content and "context" in content
    if is_one_row:
        return None
    return _value(path, content, "data", list)


def _questions_of_articles(
    path: Path, articles: Iterable[object]
) -> Iterator[tuple[str, PlainDict]]:
    for article in articles:
        for paragraph in _value(path, article, "paragraphs", list):
            context = _value(path, paragraph, "context", str)
            for question in _value(path, paragraph, "qas", list):
                yield context, question


T = TypeVar("T")


def _value(path: Path, node: object, key: str, expected: type[T]) -> T:
    """The value of a key; ValueError where it is missing, or no text (or list)."""
    if isinstance(node, dict):
        value = node.get(key)
        if isinstance(value, expected):
            return value
    name = "text"
    if expected is list:
        name = "list"
    raise ValueError(
        f"{path} is not in the SQuAD format: expected a {name} {key!r} in {str(node)[:80]!r}",
    )


def locate_answer(passage: str, text: str, start: int) -> int:
    """Where `text` stands in the passage.

    It is `start` if that is right, else the nearest occurrence, else -1.
    """
    if not text:
        return -1
    occurrences = []
    place = passage.find(text)
    while place >= 0:
        occurrences.append(place)
        place = passage.find(text, place + 1)
    return min(occurrences, key=lambda occurrence: abs(occurrence - start), default=-1)
