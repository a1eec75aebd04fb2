"""The SQuAD reader: repaired and lost answers, duplicate ids, files that are something else; and the real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clozelab.datamodules.squad_reading import locate_answer, read_squad

CONTEXT = "A cat sat. A cat ran."


def question(identifier: str, text: str = "cat", start: Any = 2) -> dict[str, Any]:
    return {"id": identifier, "question": "Who sat?", "answers": [{"text": text, "answer_start": start}]}


def write(folder: Path, questions: list[dict[str, Any]], context: str = CONTEXT) -> Path:
    path = folder / "train.json"
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [("cat", 2, 2), ("cat", 3, 2), ("cat", 12, 13), ("cat", 999, 13), ("cat", -1, 2), ("dog", 2, -1), ("", 0, -1)],
)
def test_nearest_occurrence(text: str, start: int, expected: int) -> None:
    assert locate_answer(CONTEXT, text, start) == expected


def test_training_skips_and_counts_what_cannot_be_learned(tmp_path: Path) -> None:
    lost = question("c", "zebra")
    none = {"id": "d", "question": "?", "answers": []}
    path = write(tmp_path, [question("a"), question("b", "ran", 0), lost, none])
    examples = read_squad(path, for_training=True)
    assert [(q.id, q.answer_start) for q in examples.questions] == [("a", 2), ("b", 17)]
    assert +examples.counts == {"answer_offset_repaired": 1, "answer_not_in_passage": 1, "question_without_answer": 1}


def test_scoring_keeps_every_question(tmp_path: Path) -> None:
    examples = read_squad(write(tmp_path, [question("a"), question("c", "zebra")]), for_training=False)
    assert [(q.id, q.answers, q.answer_start) for q in examples.questions] == [
        ("a", ("cat",), 2),
        ("c", ("zebra",), -1),
    ]


@pytest.mark.parametrize(
    ("questions", "for_training"),
    [([question("a"), question("a")], False), ([question("a"), question("a", "ran", 17)], True)],
)
def test_duplicate_id(questions: list[dict[str, Any]], for_training: bool, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.json: the question id 'a' occurs twice"):
        read_squad(write(tmp_path, questions), for_training=for_training)


def test_training_takes_an_exact_repeat_once(tmp_path: Path) -> None:
    examples = read_squad(write(tmp_path, [question("a"), question("b", "ran", 17), question("a")]), for_training=True)
    assert [one.id for one in examples.questions] == ["a", "b"] and examples.counts["question_repeated"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a JSON file"),
        ("[]", "not in the SQuAD format"),
        ('{"data": [{"title": "x"}]}', "expected a list 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "expected a text 'context'"),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 7}]}]}]}', "expected a text 'id'"),
        ('{"data": []}', "no usable question"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "train.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_squad(path, for_training=True)


def test_offset_that_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"question 'a': answer_start is '2'"):
        read_squad(write(tmp_path, [question("a", start="2")]), for_training=True)


@pytest.mark.shared
def test_real_counts(shared_dir: Path) -> None:
    examples = read_squad(shared_dir / "data/squad/dev-v1.1.json", for_training=False)
    assert len(examples) == 10570
    assert examples.counts["answer_not_in_passage"] == 0
    unanswerable = read_squad(shared_dir / "data/squad/dev-v2.0.json", for_training=False)
    assert (len(unanswerable), unanswerable.counts["question_without_answer"]) == (11873, 5945)


def test_unanswerable_questions_are_examples_of_2_0(tmp_path: Path) -> None:
    none = {"id": "d", "question": "?", "answers": [], "is_impossible": True}
    path = write(tmp_path, [question("a"), question("c", "zebra"), none])
    examples = read_squad(path, for_training=True, with_unanswerable=True)
    assert [(q.id, q.answers, q.answer_start) for q in examples.questions] == [("a", ("cat",), 2), ("d", (), -1)]
    assert +examples.counts == {"answer_not_in_passage": 1, "question_without_answer": 1}
