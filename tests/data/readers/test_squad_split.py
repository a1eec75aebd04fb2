"""A SQuAD split through the cache, and a file of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.finetuning import TaskInputs, TrainingPlan
from clozelab.datamodules.squad import SquadDataModule
from clozelab.datamodules.squad_reading import SquadSplit


def load(path: Path, tokenizer: WordPieceTokenizer, largest: int | None = None) -> tuple[SquadSplit, SquadSplit]:
    """Training and validation split, both from one file."""
    data = SquadDataModule(
        inputs=TaskInputs("s", path.parent, path.parent / "cache", tokenizer, 64),
        plan=TrainingPlan(4, 1, 1, largest, 1, 0),
        train_file=path.name,
        validation_file=path.name,
        test_files=None,
        train_extra=[],
        with_unanswerable=False,
        how_to_get="",
        max_seq_length=16,
        doc_stride=4,
        max_query_length=4,
        evaluation_tokens=100,
    )
    data.setup()
    return data.train, data.validation


def write(folder: Path, num_answered: int, num_unanswerable: int) -> Path:
    questions: list[dict[str, Any]] = [
        {"id": str(i), "question": "who?", "answers": [{"text": "cat", "answer_start": 4}]} for i in range(num_answered)
    ]
    questions += [{"id": f"n{i}", "question": "who?", "answers": []} for i in range(num_unanswerable)]
    path = folder / "s.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "The cat sat.", "qas": questions}]}]}))
    return path


def test_cache_gives_the_same_windows_and_texts_only_for_scoring(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    path = write(tmp_path, 5, 0)
    (first, scoring), (again, scored) = load(path, tokenizer, 3), load(path, tokenizer, 3)
    assert first.examples is None
    assert (again.num_questions, again.num_available, again.counts) == (3, 5, first.counts)
    assert np.array_equal(first.features.rows.input_ids, again.features.rows.input_ids)
    assert [len(split.require_examples()) for split in (scoring, scored)] == [5, 5]


def test_unanswerable_questions_are_another_data_set(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(ValueError, match=r"4 questions have no answer .*needs SQuAD 1\.1"):
        load(write(tmp_path, 5, 4), tokenizer)
