"""A SQuAD split through the cache, and a file of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.squad_reading import SquadSplit, WindowSettings, load_squad


def load(path: Path, tokenizer: WordPieceTokenizer, **changes: Any) -> SquadSplit:
    settings = {"for_training": True, "max_examples": None} | changes
    windows = WindowSettings(16, 4, 4)
    return load_squad(path, tokenizer, windows, name="s", cache_dir=path.parent / "cache", **settings)


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
    first, again = load(path, tokenizer, max_examples=3), load(path, tokenizer, max_examples=3)
    assert first.examples is None
    assert (again.num_questions, again.num_available, again.counts) == (3, 5, first.counts)
    assert np.array_equal(first.features.rows.input_ids, again.features.rows.input_ids)
    scoring = [load(path, tokenizer, for_training=False) for _ in range(2)]
    assert [len(split.require_examples()) for split in scoring] == [5, 5]


def test_unanswerable_questions_are_another_data_set(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(ValueError, match=r"4 questions have no answer .*needs SQuAD 1\.1"):
        load(write(tmp_path, 5, 4), tokenizer)
