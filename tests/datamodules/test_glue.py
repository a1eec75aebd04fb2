"""The GLUE data module: early refusals, steps and evaluations where they belong, ranks that share batches."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import TaskInputs, TrainingBatches, TrainingPlan
from clozelab.datamodules.labelled import LabelledDataModule

WORDS = ["good", "bad", "film", "dull", "fine"]


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, *WORDS], lowercase=True)


@pytest.fixture
def make(tmp_path: Path, tokenizer: WordPieceTokenizer) -> Callable[..., LabelledDataModule]:
    """make(plan changes, data changes) on 53 training and 9 validation examples."""
    for name, count in (("train", 53), ("dev", 9)):
        rows = [" ".join([WORDS[i % 5]] * (1 + i % 7)) + f"\t{i % 2}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")

    def build(max_positions: int = 64, plan: Any = None, **data: Any) -> LabelledDataModule:
        settings = {
            "global_batch_size": 8,
            "epochs": 2.5,
            "evaluations_per_epoch": 2,
            "max_train_examples": None,
            "seed": 1,
            "num_workers": 0,
        }
        task = {
            "train_file": "train.tsv",
            "validation_file": "dev.tsv",
            "file_format": "auto",
            "columns": None,
            "text_columns": ["sentence"],
            "label_column": "label",
            "id_column": None,
            "labels": ["0", "1"],
            "numeric_labels": False,
            "extra_validation_files": None,
            "test_files": None,
            "test_id_column": None,
            "long_documents": "truncate",
            "window_stride": 6,
            "window_pooling": "mean",
            "how_to_get": "make it",
            "max_seq_length": 16,
            "evaluation_tokens": 20,
        }
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", tokenizer, max_positions)
        return LabelledDataModule(inputs=inputs, plan=TrainingPlan(**(settings | (plan or {}))), **(task | data))

    return build


def test_steps_and_evaluations(make: Callable[..., LabelledDataModule]) -> None:
    data = make()
    data.setup()
    assert (data.steps_per_epoch, data.total_steps) == (7, 18)  # 2.5 * 7, rounded to the even one
    assert data.evaluation_steps == [4, 7, 10, 14, 18]
    seen = []
    for start in [0, *data.evaluation_steps[:-1]]:
        data.trainer = SimpleNamespace(global_step=start, global_rank=0, world_size=1)  # type: ignore[assignment]
        seen.append(len(list(data.train_dataloader())))
    assert seen == [4, 3, 3, 4, 4]


def test_batches_hold_the_rows_they_name(make: Callable[..., LabelledDataModule]) -> None:
    data = make()
    data.setup()
    data.setup()  # the second time does nothing
    for batch in TrainingBatches(data, range(3), 0, 1):
        index = batch["example_index"].numpy()
        assert batch["labels"].tolist() == (index % 2).tolist()
        assert batch["layout"].lengths_list == (1 + index % 7 + 2).tolist()
        assert len(batch["input_ids"]) == batch["layout"].num_tokens == batch["global_tokens"]
        assert batch["global_examples"] == len(index)
    evaluated = torch.cat([batch["example_index"] for batch in data.val_dataloader()])
    assert sorted(evaluated.tolist()) == list(range(9))


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing(make: Callable[..., LabelledDataModule], workers: int) -> None:
    plain, other = make(), make(plan={"num_workers": workers})
    for data in (plain, other):
        data.setup()
        data.trainer = SimpleNamespace(global_step=10, global_rank=0, world_size=1)  # type: ignore[assignment]
    expected = [batch["input_ids"].tolist() for batch in plain.train_dataloader()]
    assert [batch["input_ids"].tolist() for batch in other.train_dataloader()] == expected


def test_ranks_share_each_global_batch(make: Callable[..., LabelledDataModule]) -> None:
    data = make(plan={"global_batch_size": 26})  # the last batch of an epoch has one example
    data.setup()
    for whole, first, second in zip(
        *(TrainingBatches(data, range(3), r, n) for r, n in ((0, 1), (0, 2), (1, 2))), strict=True
    ):
        parts = [b["example_index"] for b in (first, second) if b["local_weight"]]
        assert sorted(torch.cat(parts).tolist()) == sorted(whole["example_index"].tolist())
        assert first["global_examples"] == second["global_examples"] == len(whole["example_index"])
        assert len(second["example_index"]) > 0


def test_rows_are_cut_to_what_the_encoder_takes(make: Callable[..., LabelledDataModule]) -> None:
    data = make(max_positions=5)
    data.setup()
    assert data.max_seq_length == 5 == data.train_rows.lengths.max() == data.facts["max_seq_length"]


def test_missing_file_is_said_before_anything_is_read(make: Callable[..., LabelledDataModule]) -> None:
    with pytest.raises(ValueError, match=r"(?s)nowhere.tsv.*how to get it: make it"):
        make(validation_file="nowhere.tsv")


def test_labels_from_the_data_bind_the_validation_split(
    make: Callable[..., LabelledDataModule], tmp_path: Path
) -> None:
    data = make(labels=None)
    data.setup()
    assert data.validation.label_names == ["0", "1"]
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t2\n")
    with pytest.raises(ValueError, match=r"dev.tsv:2: label '2' .*\['0', '1'\]"):
        make(labels=None).setup()


def test_fingerprint_follows_content_and_settings(make: Callable[..., LabelledDataModule], tmp_path: Path) -> None:
    first = make().fingerprint
    assert make().fingerprint == first
    assert make(max_seq_length=8).fingerprint != first
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood\t1\n")
    assert make().fingerprint != first


@pytest.mark.parametrize("name", ["global_batch_size", "epochs", "evaluations_per_epoch", "max_train_examples"])
def test_plan_refuses_nothing_to_do(make: Callable[..., LabelledDataModule], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be above 0"):
        make(plan={name: 0})


def test_facts_count_what_was_used(make: Callable[..., LabelledDataModule]) -> None:
    data = make(plan={"max_train_examples": 20})
    data.setup()
    assert data.facts["train_examples"] == 20 == sum(data.facts["train_labels"].values())
    assert data.facts["train_examples_available"] == 53
    assert np.array_equal(data.train_targets["labels"], data.train.labels)


def test_further_validation_sets_lie_behind_the_first(make: Callable[..., LabelledDataModule], tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("sentence\tlabel\nbad\t0\ngood good\t1\n")
    data = make(extra_validation_files={"other": "other.tsv"})
    data.setup()
    assert (len(data.validation), len(data.validation_rows)) == (9, 11)
    assert data.validation.extra["other"].labels.tolist() == [0, 1]
    assert data.validation_rows.lengths[-2:].tolist() == data.validation.extra["other"].rows.lengths.tolist()
    assert data.fingerprint != make().fingerprint


def test_test_files(make: Callable[..., LabelledDataModule], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'toy' has no test files"):
        make().require_test_files()
    files = {"test_files": {"Toy": "test.tsv"}, "test_id_column": "index"}
    with pytest.raises(ValueError, match=r"(?s)test.tsv.*how to get it"):
        make(**files).require_test_files()
    (tmp_path / "test.tsv").write_text("index\tsentence\n5\tgood\n6\tbad\n")
    data = make(**files)
    data.setup()
    assert data.require_test_files() and data.load_test()["Toy"].split.ids.tolist() == ["5", "6"]
    (tmp_path / "test.tsv").write_text("index\tsentence\n" + "5\tgood\n" * 200 + "torn\n")
    data = make(**files)
    data.setup()
    with pytest.raises(ValueError, match="1 damaged rows; predictions must be made for every row"):
        data.load_test()


def test_cut_rows_are_said_aloud(make: Callable[..., LabelledDataModule], caplog: pytest.LogCaptureFixture) -> None:
    data = make(max_positions=5)
    data.setup()
    cut = data.facts["unusual"]["train"]
    assert cut["truncated_rows"] > 0
    assert f"toy, training: {cut['truncated_rows']} rows are longer than max_seq_length=5 and were cut" in caplog.text
    assert f"{cut['truncated_tokens']} tokens were lost with them" in caplog.text
    caplog.clear()
    make().setup()
    assert "were cut" not in caplog.text


def test_damaged_rows_are_said_aloud(
    make: Callable[..., LabelledDataModule], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = make()
    rows = [f"{WORDS[i % 5]}\t{i % 2}" for i in range(200)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows, "no label"]) + "\n")
    data.setup()
    assert len(data.validation) == 200
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [f"toy: 1 damaged row(s) of {tmp_path / 'dev.tsv'} left out"]


def test_a_label_named_twice_is_refused(make: Callable[..., LabelledDataModule]) -> None:
    with pytest.raises(ValueError, match=r"task.data.labels names a label twice: \['0', '0', '1'\]"):
        make(labels=[0, 0, 1])
    data = make(labels=[0, 1])  # as YAML reads them
    data.setup()
    assert data.train.label_names == ["0", "1"]


def test_long_documents_in_windows(make: Callable[..., LabelledDataModule]) -> None:
    """Nothing is cut; windows are training examples with their text's label, and each text is in its windows whole."""
    cut, data = make(max_positions=5), make(max_positions=5, long_documents="windows", window_stride=2)
    for one in (cut, data):
        one.setup()
    assert data.fingerprint != cut.fingerprint == make(max_positions=5, window_stride=2).fingerprint
    assert cut.fingerprint != make().fingerprint
    assert cut.source_fingerprint == make().source_fingerprint != data.source_fingerprint
    words = 1 + np.arange(53) % 7
    windows = 1 + np.maximum(0, -(-(words - 3) // 2))  # 3 words fit a row
    unusual = data.facts["unusual"]
    assert unusual["train"] == {"windows": windows.sum(), "texts_in_windows": (words > 3).sum()}
    assert "truncated_rows" in cut.facts["unusual"]["train"]
    assert data.facts["train_examples"] == 53
    assert len(data.train_rows) == windows.sum() > data.train_rows.lengths.max() == 5
    owner = np.repeat(np.arange(53), windows)
    assert data.train_targets["labels"].tolist() == (owner % 2).tolist()
    for batch in TrainingBatches(data, range(2), 0, 1):
        assert batch["labels"].tolist() == (owner[batch["example_index"]] % 2).tolist()
        assert batch["global_targets"] == batch["global_examples"] == len(batch["labels"])
    assert len(data.validation) == 9 < data.validation.num_inputs == len(data.validation_rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"long_documents": "split"}, "long_documents='split' is unknown; known: truncate, windows"),
        ({"window_pooling": "sum"}, "window_pooling='sum' is unknown; known: mean, max"),
        ({"text_columns": ["sentence", "label"]}, "long_documents=windows is for single texts"),
        ({"window_stride": 15}, r"window_stride=15 tokens: rows of 16 hold 14 .* give 1 to 14"),
        ({"window_stride": 0}, "window_stride=0 tokens"),
    ],
)
def test_windows_that_cannot_be(make: Callable[..., LabelledDataModule], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**({"long_documents": "windows"} | changes)).setup()
