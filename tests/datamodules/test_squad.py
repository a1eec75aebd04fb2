"""SQuAD: questions and windows from official files, the cache, and the data module on top."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from tests.parts import ready, squad_data

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.readers.squad import SquadExamples, SquadQuestion, locate_answer, read_squad
from clozelab.tasks.passages import WindowSettings, answer_tokens, build_features, max_context_flags
from clozelab.tasks.sequences import window_ranges

CONTEXT = "A cat sat. A cat ran."


def question(
    identifier: str, text: str = "cat", start: Any = 2, asked: str = "Who sat?"
) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start}]
    return {"id": identifier, "question": asked, "answers": answers}


def unanswerable(identifier: str) -> dict[str, Any]:
    return question(identifier) | {"answers": []}


def write_articles(
    folder: Path, questions: list[dict[str, Any]], context: str = CONTEXT, name: str = "train.json"
) -> Path:
    """One article of one passage."""
    article = {"title": "t", "paragraphs": [{"context": context, "qas": questions}]}
    (folder / name).write_text(json.dumps({"version": "1.1", "data": [article]}))
    return folder / name


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("cat", 2, 2),
        ("cat", 3, 2),
        ("cat", 12, 13),
        ("cat", 999, 13),
        ("cat", -1, 2),
        ("dog", 2, -1),
        ("", 0, -1),
    ],
)
def test_nearest_occurrence(text: str, start: int, expected: int) -> None:
    assert locate_answer(CONTEXT, text, start) == expected


def test_training_skips_and_counts_what_cannot_be_learned(tmp_path: Path) -> None:
    lost = question("c", "zebra")
    asked = [question("a"), question("b", "ran", 0), lost, unanswerable("d")]
    path = write_articles(tmp_path, asked)
    examples = read_squad(path, for_training=True)
    assert [(q.id, q.answer_start) for q in examples.questions] == [("a", 2), ("b", 17)]
    assert +examples.counts == {
        "answer_offset_repaired": 1,
        "answer_not_in_passage": 1,
        "question_without_answer": 1,
    }


def test_scoring_keeps_every_question(tmp_path: Path) -> None:
    examples = read_squad(
        write_articles(tmp_path, [question("a"), question("c", "zebra")]), for_training=False
    )
    assert [(q.id, q.answers, q.answer_start) for q in examples.questions] == [
        ("a", ("cat",), 2),
        ("c", ("zebra",), -1),
    ]


def test_training_takes_an_exact_repeat_once(tmp_path: Path) -> None:
    examples = read_squad(
        write_articles(tmp_path, [question("a"), question("b", "ran", 17), question("a")]),
        for_training=True,
    )
    assert [one.id for one in examples.questions] == ["a", "b"]
    assert examples.counts["question_repeated"] == 1


def rows_of(path: Path) -> list[dict[str, Any]]:
    """A question a row, as the `datasets` library has them."""
    rows = []
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                columns = {}
                for key in ("text", "answer_start"):
                    columns[key] = [answer[key] for answer in asked["answers"]]
                row = {
                    "id": asked["id"],
                    "title": article["title"],
                    "context": paragraph["context"],
                }
                rows.append(row | {"question": asked["question"], "answers": columns})
    return rows


@pytest.mark.parametrize("kind", ["jsonl", "json", "list.json", "parquet", "feather"])
def test_rows_are_read_as_their_articles(tmp_path: Path, kind: str) -> None:
    """Also 2.0's questions without an answer; `datasets` names its lines .json most often."""
    lost = question("c", "zebra")
    asked = [question("a"), question("b", "ran", 0), lost, unanswerable("d")]
    path = write_articles(tmp_path, asked)
    rows, other = rows_of(path), tmp_path / f"x.{kind}"
    if kind == "list.json":
        other.write_text(json.dumps(rows))
    elif kind in ("json", "jsonl"):
        other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        frame = pandas.DataFrame(rows)
        frame.to_parquet(other) if kind == "parquet" else frame.to_feather(other)
    for options in (
        {"for_training": True},
        {"for_training": False},
        {"for_training": True, "with_unanswerable": True},
    ):
        expected, found = read_squad(path, **options), read_squad(other, **options)
        assert (found.questions, found.passages) == (expected.questions, expected.passages)
        assert +found.counts == +expected.counts


def test_a_test_file_of_rows_needs_no_answers(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(
        json.dumps({"id": "a", "context": CONTEXT, "question": "Who?"}) + "\n"
    )
    assert len(read_squad(tmp_path / "x.jsonl", for_training=False, needs_answers=False)) == 1


@pytest.mark.shared
def test_real_counts(shared_dir: Path) -> None:
    examples = read_squad(shared_dir / "data/squad/dev-v1.1.json", for_training=False)
    assert len(examples) == 10570
    assert examples.counts["answer_not_in_passage"] == 0
    unanswerable = read_squad(shared_dir / "data/squad/dev-v2.0.json", for_training=False)
    assert (len(unanswerable), unanswerable.counts["question_without_answer"]) == (11873, 5945)


def test_unanswerable_questions_are_examples_of_2_0(tmp_path: Path) -> None:
    none = unanswerable("d") | {"is_impossible": True}
    path = write_articles(tmp_path, [question("a"), question("c", "zebra"), none])
    examples = read_squad(path, for_training=True, with_unanswerable=True)
    assert [(q.id, q.answers, q.answer_start) for q in examples.questions] == [
        ("a", ("cat",), 2),
        ("d", (), -1),
    ]
    assert +examples.counts == {"answer_not_in_passage": 1, "question_without_answer": 1}


def released_max_context(ranges: list[tuple[int, int]], window: int, position: int) -> bool:
    """`_check_is_max_context` of the released run_squad."""
    best_score, best_index = None, None
    for index, (start, length) in enumerate(ranges):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_index = score, index
    return window == best_index


@pytest.mark.parametrize("num_tokens", [0, 1, 7, 8, 9, 13, 30])
@pytest.mark.parametrize("stride", [1, 3, 8, 20])
def test_windows_cover_and_max_context_is_the_released_rule(num_tokens: int, stride: int) -> None:
    ranges = window_ranges(num_tokens, 8, stride)
    covered = set()
    for start, length in ranges:
        covered.update(range(start, start + length))
    assert covered == set(range(num_tokens))
    for window, flags in enumerate(max_context_flags(ranges, num_tokens)):
        start, length = ranges[window]
        expected = [released_max_context(ranges, window, start + i) for i in range(length)]
        assert flags.tolist() == expected


@pytest.mark.parametrize(
    ("characters", "expected"),
    [
        ((0, 3), (0, 0)),
        ((4, 7), (1, 1)),
        ((1, 6), (0, 1)),
        ((3, 4), (-1, -1)),
        ((8, 9), (2, 2)),
        ((-1, 4), (-1, -1)),
    ],
)
def test_answer_tokens(characters: tuple[int, int], expected: tuple[int, int]) -> None:
    spans = np.array([[0, 3], [4, 7], [7, 12]])
    assert answer_tokens(spans, *characters) == expected


def features_of(
    tokenizer: WordPieceTokenizer, passage: str, answer: str, **settings: int
) -> tuple[Any, Any]:
    start = passage.find(answer)
    examples = SquadExamples([passage], [SquadQuestion("q", "who ran?", 0, (answer,), start)])
    lengths = {"max_seq_length": 14, "doc_stride": 3, "max_query_length": 4} | settings
    return build_features(examples, tokenizer, WindowSettings(**lengths))


def test_every_window_that_holds_the_answer_points_at_it(tokenizer: WordPieceTokenizer) -> None:
    passage = "The red  cat sat on the mat, the Blue dog ran on a hill."
    features, counts = features_of(tokenizer, passage, "Blue dog")
    spans = features.passage_spans
    found = 0
    for window in range(len(features.question)):
        row = features.sequences.input_ids[
            features.sequences.offsets[window] : features.sequences.offsets[window + 1]
        ]
        assert len(row) <= 14
        assert row[features.passage_starts[window] - 1] == tokenizer.sep_id == row[-1]
        first, last = features.start_positions[window], features.end_positions[window]
        if last:
            found += 1
            shift = features.window_starts[window] - features.passage_starts[window]
            assert passage[spans[first + shift, 0] : spans[last + shift, 1]] == "Blue dog"
    assert 0 < found < len(features.question) == counts["windows"]
    assert counts["windows_without_answer"] == counts["windows"] - found


def test_question_is_cut_and_a_short_passage_has_one_window(tokenizer: WordPieceTokenizer) -> None:
    features, counts = features_of(tokenizer, "a cat", "cat", max_query_length=2)
    tokens = [tokenizer.vocabulary[i] for i in features.sequences.input_ids]
    assert " ".join(tokens) == "[CLS] who ran [SEP] a cat [SEP]"
    token_types = features.sequences.gather(np.array([0]))["token_type_ids"].tolist()
    assert token_types == [0] * 4 + [1] * 3
    assert features.max_context.tolist() == [False] * 4 + [True, True, False]
    assert counts["windows"] == counts["questions_cut"] == 1


def test_passage_without_tokens_has_no_window(tokenizer: WordPieceTokenizer) -> None:
    features, counts = features_of(tokenizer, "  ", "x")
    assert (len(features.question), counts["question_of_empty_passage"]) == (0, 1)


@pytest.mark.parametrize("length", [8, 9, 16, 33, 64, 67, 128, 256, 384, 512])
def test_settings_follow_the_length_of_rows(length: int) -> None:
    fitted = WindowSettings.fitted(length, 128, 64)
    assert fitted.max_seq_length == length
    # the passage has half of the row, at least
    assert length - fitted.max_query_length - 3 >= length / 2
    assert 1 <= fitted.doc_stride <= length / 2
    if length >= 256:
        # the released settings, where there is room
        assert (fitted.doc_stride, fitted.max_query_length) == (128, 64)


TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *string.ascii_lowercase, "who", "cat", "sat"], lowercase=True
)
FILES: dict[str, Any] = {
    "test_files": {"test": "test.json"},
    "train_file": "s.json",
    "validation_file": "s.json",
    "train_extra": [],
    "with_unanswerable": False,
}


def build_module(
    folder: Path,
    max_positions: int = 64,
    asked: str = "who",
    max_seq_length: int = 8,
    further: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> FinetuningDataModule:
    questions = [question(str(i), start=8, asked=asked) for i in range(6)]
    questions += further
    write_articles(folder, questions, "sat sat cat sat sat", "s.json")
    return squad_data(
        inputs=TaskInputs("s", folder, folder / "cache", TOKENIZER, max_positions),
        max_seq_length=max_seq_length,
        doc_stride=2,
        max_query_length=3,
        **(FILES | changes),
    )


def test_cache_gives_the_same_windows_and_texts_only_for_scoring(tmp_path: Path) -> None:
    plan = TrainingPlan(4, 1, 1, 3, 1, 0)
    built, again = (build_module(tmp_path, plan=plan) for _ in range(2))
    for data in (built, again):
        data.setup()
        assert (len(data.train), data.train.num_available) == (3, 6)
        assert not data.train.examples and len(data.validation.examples) == 6
    assert again.train.counts == built.train.counts
    assert np.array_equal(again.train_sequences.input_ids, built.train_sequences.input_ids)


def test_windows_are_the_training_examples(tmp_path: Path) -> None:
    data = ready(build_module(tmp_path))
    assert data.facts["train_examples"] == 6
    # two windows a question: tokens 0-2 and 2-4
    assert (len(data.train_sequences), data.total_steps) == (12, 3)
    for batch in TrainingBatches(data, range(3), 0, 1):
        starts = batch["layout"].first_rows + batch["start_positions"]
        assert {TOKENIZER.vocabulary[i] for i in batch["input_ids"][starts]} <= {"cat", "[CLS]"}
    assert data.validation.examples.questions[0].answers == ("cat",)


def test_a_short_encoder_shortens_the_question(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = ready(build_module(tmp_path, asked="who sat who"))
    facts = data.facts
    assert (facts["max_seq_length"], facts["max_query_length"], facts["doc_stride"]) == (8, 1, 2)
    assert (
        facts["train_counts"]["questions_cut"] == facts["validation_counts"]["questions_cut"] == 6
    )
    assert data.train_sequences.lengths.max() <= 8
    assert "questions are cut at 1 tokens (not 3)" in caplog.text
    assert "s, training: 6 questions are longer than max_query_length and were cut" in caplog.text


def test_test_file_needs_no_answers(tmp_path: Path) -> None:
    questions = [{"id": str(i), "question": "who"} for i in range(3)]
    write_articles(tmp_path, questions, "sat cat", "test.json")
    data = ready(build_module(tmp_path))
    sequences, split = data.load_test()["test"]
    assert len(split) == len(sequences) == 3


def test_extra_training_files_come_first_and_once(tmp_path: Path) -> None:
    questions = [question(str(i), "who", 0, "cat") for i in range(5)]
    write_articles(tmp_path, questions, "who sat", "extra.json")
    data = ready(build_module(tmp_path, train_extra=["extra.json"]))
    assert (data.num_first_sequences, data.first_steps) == (5, 2)
    assert (data.steps_per_epoch, data.total_steps) == (3, 5)
    assert data.evaluation_steps == [5]
    batches = list(TrainingBatches(data, range(5), 0, 1))
    first = torch.cat([batch["example_index"] for batch in batches[:2]]).tolist()
    rest = torch.cat([batch["example_index"] for batch in batches[2:]]).tolist()
    assert (sorted(first), sorted(rest)) == (list(range(5)), list(range(5, 17)))
    who, cat = (TOKENIZER.vocabulary.index(word) for word in ("who", "cat"))
    assert {int(b["input_ids"][b["layout"].first_rows + 1][0]) for b in batches[:2]} == {cat}
    assert {int(b["input_ids"][b["layout"].first_rows + 1][0]) for b in batches[2:]} == {who}
    assert data.fingerprint != build_module(tmp_path).fingerprint


def test_questions_without_answer(tmp_path: Path) -> None:
    write_articles(tmp_path, [unanswerable("n")], "sat", "none.json")
    files = {"train_file": "none.json", "validation_file": "none.json"}
    with pytest.raises(ValueError, match="no usable question"):
        build_module(tmp_path, **files).setup()
    data = ready(build_module(tmp_path, with_unanswerable=True, **files))
    assert (
        data.train_targets["start_positions"].tolist()
        == data.train_targets["end_positions"].tolist()
        == [0]
    )


def test_fingerprint_follows_the_shortened_settings(tmp_path: Path) -> None:
    # 8 tokens both
    assert build_module(tmp_path).fingerprint == build_module(tmp_path, max_positions=9).fingerprint
    assert (
        build_module(tmp_path, max_seq_length=12).fingerprint != build_module(tmp_path).fingerprint
    )


# What is refused

BAD_CONTENTS = {
    "is not a JSON file": "{",
    "a list of objects was expected": "[]",
    "expected a list 'paragraphs'": '{"data": [{"title": "x"}]}',
    "expected a text 'context'": '{"data": [{"paragraphs": [{"qas": []}]}]}',
    "expected a text 'id'": ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 7}]}]}]}'),
    "no usable question": '{"data": []}',
}


@pytest.mark.parametrize(("sentence", "content"), BAD_CONTENTS.items())
def test_another_file_is_refused(tmp_path: Path, sentence: str, content: str) -> None:
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_squad(tmp_path / "train.json", for_training=True)


BAD_ROWS: dict[str, dict[str, Any]] = {
    "question 'a' has no 'answers': a question without an answer has an empty list": {
        "answers": None
    },
    "question 'a': answers are 'cat', expected a list": {"answers": "cat"},
    "answers need two equally long lists": {"answers": {"text": ["cat"], "answer_start": []}},
    "question 'a' has answers and is_impossible=true": {"is_impossible": True},
    "answer_start is True, expected a number": {
        "answers": {"text": ["cat"], "answer_start": [True]}
    },
    "expected a text 'context'": {"context": None},
}


@pytest.mark.parametrize(("sentence", "changes"), BAD_ROWS.items())
def test_what_is_no_answer(tmp_path: Path, sentence: str, changes: dict[str, Any]) -> None:
    answers = {"text": ["cat"], "answer_start": [2]}
    row = {"id": "a", "context": CONTEXT, "question": "Who?", "answers": answers} | changes
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=sentence):
        read_squad(tmp_path / "x.jsonl", for_training=False, with_unanswerable=True)


@pytest.mark.parametrize(
    ("questions", "for_training", "sentence"),
    [
        ([question("a"), question("a")], False, "the question id 'a' occurs twice"),
        ([question("a"), question("a", "ran", 17)], True, "the question id 'a' occurs twice"),
        ([question("a", start="2")], True, "question 'a': answer_start is '2'"),
    ],
)
def test_bad_questions(
    tmp_path: Path, questions: list[dict[str, Any]], for_training: bool, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_squad(write_articles(tmp_path, questions), for_training=for_training)


def test_rows_too_short_for_any_question(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sequences of 7 tokens are too short.*longer sequences"):
        WindowSettings.fitted(7, 128, 64)
    with pytest.raises(ValueError, match="sequences of 6 tokens are too short"):
        build_module(tmp_path, max_positions=6)


def test_unanswerable_questions_are_another_data_set(tmp_path: Path) -> None:
    further = [unanswerable(f"n{number}") for number in range(4)]
    with pytest.raises(ValueError, match=r"4 questions have no answer .*needs SQuAD 1\.1"):
        build_module(tmp_path, further=further).setup()
