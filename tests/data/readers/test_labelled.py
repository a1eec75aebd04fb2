"""A labelled split end to end: label order, the fixed subset, and what renews the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.examples import LabelledRows, subset
from clozelab.datamodules.finetuning import TaskInputs, TrainingPlan
from clozelab.datamodules.labelled import LabelledDataModule

TASK = {
    "file_format": "auto",
    "columns": None,
    "text_columns": ["text"],
    "label_column": "label",
    "id_column": None,
    "labels": ["yes", "no"],
    "numeric_labels": False,
    "extra_validation_files": None,
    "test_id_column": None,
    "long_documents": "truncate",
    "window_stride": 6,
    "window_pooling": "mean",
    "test_files": None,
    "how_to_get": "make it",
    "max_seq_length": 16,
    "evaluation_tokens": 20,
}


def module(folder: Path, tokenizer: WordPieceTokenizer, name: str = "x.tsv", **changes: Any) -> LabelledDataModule:
    """Of one file, which is both splits; `max_examples` is the plan's."""
    plan = TrainingPlan(8, 1, 1, changes.pop("max_examples", None), 1, 0)
    inputs = TaskInputs("x", folder, folder / "cache", tokenizer, 64)
    files = {"train_file": name, "validation_file": name}
    return LabelledDataModule(inputs=inputs, plan=plan, **(TASK | files | changes))


def load(*where: Any, **changes: Any) -> LabelledRows:
    """The training split."""
    data = module(*where, **changes)
    data.setup()
    return data.train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [f"the cat {i}\t{'no' if i % 3 else 'yes'}" for i in range(20)]
    (tmp_path / "x.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_label_order_is_the_lists(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    split = load(folder, tokenizer)
    assert split.label_names == ["yes", "no"]
    assert split.labels.tolist()[:4] == [0, 1, 1, 0]
    again = load(folder, tokenizer)  # from the cache
    assert again.labels.tolist() == split.labels.tolist()
    assert (again.ids.tolist()[:2], again.num_available, len(again)) == (["0", "1"], 20, 20)


def test_labels_from_the_data_are_sorted(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    assert load(folder, tokenizer, labels=None).label_names == ["no", "yes"]


def test_subset_is_fixed_nested_and_in_file_order(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    small, large = subset(1000, 50), subset(1000, 200)
    assert small == sorted(small) == subset(1000, 50)
    assert set(small) < set(large)
    assert max(small) > 500 > min(small)
    assert subset(10, None) == subset(10, 99) == list(range(10))
    split = load(folder, tokenizer, max_examples=7)
    assert (len(split), split.num_available) == (7, 20)
    assert split.ids.tolist() == [str(i) for i in subset(20, 7)]


def test_cache_follows_content_and_settings(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    load(folder, tokenizer)
    load(folder, tokenizer, max_seq_length=4)
    (folder / "x.tsv").write_text("text\tlabel\nthe dog\tyes\n")
    assert len(load(folder, tokenizer)) == 1
    assert len(list((folder / "cache/tasks").iterdir())) == 3


def test_numbers_and_files_without_labels(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    numbers: dict[str, Any] = {"name": "n.tsv", "label_column": "score", "labels": None, "numeric_labels": True}
    path = tmp_path / "n.tsv"
    path.write_text("text\tscore\nthe cat\t4.25\nthe dog\t0\n")
    data = module(tmp_path, tokenizer, **numbers)
    data.setup()
    split = data.train
    assert (split.labels.tolist(), split.labels.dtype, split.label_names) == ([4.25, 0.0], "float32", [])
    assert split.is_regression
    (tmp_path / "test.tsv").write_text("text\nthe cat\n")
    assert data.read_test(tmp_path / "test.tsv")[1].labels.tolist() == [-1]
    path.write_text("text\tscore\nthe cat\tnan\n")
    with pytest.raises(ValueError, match=r"n.tsv:2: label 'nan' is not a number"):
        load(tmp_path, tokenizer, **numbers)


def test_what_is_unusual_is_counted(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    path = tmp_path / "x.tsv"
    rows = ["1\tthe cat\tthe dog\tyes", "1\tthe red cat\tthe green dog ran fast\tyes", "2\t \tthe dog\tno"]
    path.write_text("id\ta\tb\tlabel\n" + "\n".join(rows) + "\n")
    settings: dict[str, Any] = {"text_columns": ["a", "b"], "id_column": "id", "labels": None}
    for _ in range(2):  # built, and from the cache
        split = load(tmp_path, tokenizer, max_seq_length=8, **settings)
        expected = {"truncated_rows": 1, "truncated_tokens": 3, "empty_texts": 1, "duplicate_ids": 1}
        assert split.counts == expected
    assert split.rows.lengths.max() == 8
