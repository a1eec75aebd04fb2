"""The SQuAD data module: windows as training examples, settings checked against the encoder's length."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import torch

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import TaskInputs, TrainingBatches, TrainingPlan
from clozelab.datamodules.squad import SquadDataModule

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, "who", "cat", "sat"], lowercase=True)
PLAN = TrainingPlan(
    global_batch_size=4, epochs=1, evaluations_per_epoch=1, max_train_examples=None, seed=1, num_workers=0
)
FILES = {
    "test_files": {"test": "test.json"},
    "train_file": "s.json",
    "validation_file": "s.json",
    "train_extra": [],
    "with_unanswerable": False,
}


def build(
    folder: Path, max_positions: int = 64, question: str = "who", max_seq_length: int = 8, **changes: Any
) -> SquadDataModule:
    qas = [{"id": str(i), "question": question, "answers": [{"text": "cat", "answer_start": 8}]} for i in range(6)]
    content = {"data": [{"paragraphs": [{"context": "sat sat cat sat sat", "qas": qas}]}]}
    (folder / "s.json").write_text(json.dumps(content))
    return SquadDataModule(
        inputs=TaskInputs("s", folder, folder / "cache", TOKENIZER, max_positions),
        plan=PLAN,
        how_to_get="make it",
        max_seq_length=max_seq_length,
        doc_stride=2,
        max_query_length=3,
        evaluation_tokens=100,
        **(FILES | changes),
    )


def test_windows_are_the_training_examples(tmp_path: Path) -> None:
    data = build(tmp_path)
    data.setup()
    assert data.facts["train_examples"] == 6
    assert (len(data.train_rows), data.total_steps) == (12, 3)  # two windows a question: tokens 0-2 and 2-4
    for batch in TrainingBatches(data, range(3), 0, 1):
        starts = batch["layout"].first_rows + batch["start_positions"]
        assert {TOKENIZER.vocabulary[i] for i in batch["input_ids"][starts]} <= {"cat", "[CLS]"}
    assert data.validation.require_examples().questions[0].answers == ("cat",)


def test_a_short_encoder_shortens_the_question(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = build(tmp_path, question="who sat who")
    data.setup()
    facts = data.facts
    assert (facts["max_seq_length"], facts["max_query_length"], facts["doc_stride"]) == (8, 1, 2)
    assert facts["train_counts"]["questions_cut"] == facts["validation_counts"]["questions_cut"] == 6
    assert data.train_rows.lengths.max() <= 8
    assert "questions are cut at 1 tokens (not 3)" in caplog.text
    assert "s, training: 6 questions are longer than max_query_length and were cut" in caplog.text


def test_test_file_needs_no_answers(tmp_path: Path) -> None:
    qas = [{"id": str(i), "question": "who"} for i in range(3)]
    (tmp_path / "test.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "sat cat", "qas": qas}]}]}))
    data = build(tmp_path)
    data.setup()
    test = data.load_test()["test"]
    assert test.split.num_questions == len(test.rows) == 3
    with pytest.raises(ValueError, match="questions have no answer inside their passage"):
        build(tmp_path, validation_file="test.json").setup()


def test_encoder_too_short_for_any_question(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows of 6 tokens are too short"):
        build(tmp_path, max_positions=6)


def test_extra_training_files_come_first_and_once(tmp_path: Path) -> None:
    qas = [{"id": str(i), "question": "cat", "answers": [{"text": "who", "answer_start": 0}]} for i in range(5)]
    (tmp_path / "extra.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "who sat", "qas": qas}]}]}))
    data = build(tmp_path, train_extra=["extra.json"])
    data.setup()
    assert (data.num_first_rows, data.timetable.first_steps, data.steps_per_epoch, data.total_steps) == (5, 2, 3, 5)
    assert data.evaluation_steps == [5]
    batches = list(TrainingBatches(data, range(5), 0, 1))
    first, rest = [torch.cat([b["example_index"] for b in part]).tolist() for part in (batches[:2], batches[2:])]
    assert (sorted(first), sorted(rest)) == (list(range(5)), list(range(5, 17)))
    who, cat = (TOKENIZER.vocabulary.index(word) for word in ("who", "cat"))
    assert {int(b["input_ids"][b["layout"].first_rows + 1][0]) for b in batches[:2]} == {cat}
    assert {int(b["input_ids"][b["layout"].first_rows + 1][0]) for b in batches[2:]} == {who}
    assert data.fingerprint != build(tmp_path).fingerprint


def test_questions_without_answer(tmp_path: Path) -> None:
    content = {"data": [{"paragraphs": [{"context": "sat", "qas": [{"id": "n", "question": "who", "answers": []}]}]}]}
    (tmp_path / "none.json").write_text(json.dumps(content))
    files = {"train_file": "none.json", "validation_file": "none.json"}
    with pytest.raises(ValueError, match=r"no usable question"):
        build(tmp_path, **files).setup()
    data = build(tmp_path, with_unanswerable=True, **files)
    data.setup()
    assert data.train_targets["start_positions"].tolist() == data.train_targets["end_positions"].tolist() == [0]


def test_fingerprint_follows_the_shortened_settings(tmp_path: Path) -> None:
    assert build(tmp_path).fingerprint == build(tmp_path, max_positions=9).fingerprint  # 8 tokens both
    assert build(tmp_path, max_seq_length=12).fingerprint != build(tmp_path).fingerprint
