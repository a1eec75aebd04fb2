"""The SWAG data module: choices stay together and unpadded, folds, facts."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.choices import ChoiceDataModule
from clozelab.datamodules.finetuning import TaskInputs, TrainingBatches, TrainingPlan

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., ChoiceDataModule]:
    """make(data changes) on 21 training and 7 validation questions whose choices differ in length."""
    for name, count in (("train", 21), ("val", 7)):
        rows = [f"c{i},{'a ' * (i % 3)}b,{'a ' * (i % 5)}b,b a,{i % 3}" for i in range(count)]
        (tmp_path / f"{name}.csv").write_text("sent1,e0,e1,e2,label\n" + "\n".join(rows) + "\n")

    def build(**data: Any) -> ChoiceDataModule:
        task = {
            "train_file": "train.csv",
            "validation_file": "val.csv",
            "test_files": {"Toy": "test.csv"},
            "published_train_examples": None,
            "folds": None,
            "held_out_fold": None,
            "file_format": "auto",
            "columns": None,
            "context_column": "sent1",
            "start_column": None,
            "ending_columns": ["e0", "e1", "e2"],
            "label_column": "label",
            "how_to_get": "make it",
            "max_seq_length": 32,
            "evaluation_tokens": 60,
        }
        plan = TrainingPlan(4, 1.0, 1, None, 1, 0)
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 32)
        return ChoiceDataModule(inputs=inputs, plan=plan, **(task | data))

    return build


def test_choices_are_sequences_of_their_own(make: Callable[..., ChoiceDataModule]) -> None:
    data = make()
    data.setup()
    data.setup()  # the second time does nothing
    assert data.steps_per_epoch == 6
    for batch in TrainingBatches(data, range(6), 0, 1):
        index = batch["example_index"].numpy()
        assert batch["layout"].batch_size == 3 * len(index)
        assert batch["labels"].tolist() == (index % 3).tolist()
        assert batch["layout"].num_tokens == len(batch["input_ids"]) == batch["global_tokens"]  # nothing is padded
        per_choice = np.array(batch["layout"].lengths_list).reshape(-1, 3)
        assert (per_choice[:, 0] - index % 3 == per_choice[:, 2] - 1).all()
        assert (per_choice[:, 1] - index % 5 == per_choice[:, 2] - 1).all()
        assert batch["global_examples"] == batch["global_targets"] == len(index)
    evaluated = np.concatenate([batch["example_index"] for batch in data.val_dataloader()])
    assert sorted(evaluated.tolist()) == list(range(7))


def test_folds_of_one_file(make: Callable[..., ChoiceDataModule]) -> None:
    data = make(validation_file="train.csv", folds=3, held_out_fold=1)
    data.setup()
    assert len(data.train) + len(data.validation) == 21
    assert not set(data.train.ids) & set(data.validation.ids)
    assert data.facts["train_examples_available"] == len(data.train)
    assert make(validation_file="train.csv", folds=3, held_out_fold=2).fingerprint != data.fingerprint
    with pytest.raises(ValueError, match="give both, or neither"):
        make(folds=3)


def test_another_set_in_the_same_columns_is_noticed(
    make: Callable[..., ChoiceDataModule], caplog: pytest.LogCaptureFixture
) -> None:
    make(published_train_examples=21).setup()
    assert not caplog.records
    make(published_train_examples=73546, max_seq_length=8).setup()
    assert "train.csv has 21 examples, toy's own has 73546" in caplog.text
    assert "toy, training:" in caplog.text and "rows are longer than max_seq_length=8 and were cut" in caplog.text


def test_test_file(make: Callable[..., ChoiceDataModule], tmp_path: Path) -> None:
    """Without a label column, and with labels that mean nothing; whole, whatever the folds."""
    for header, end in (("sent1,e0,e1,e2", ""), ("sent1,e0,e1,e2,label", ",-1")):
        (tmp_path / "test.csv").write_text(header + "\n" + "".join(f"c{i},a,b,c{end}\n" for i in range(9)))
        data = make(validation_file="train.csv", folds=3, held_out_fold=1)
        data.setup()
        test = data.load_test()["Toy"]
        assert (len(test.rows), len(test.split), test.split.ids.tolist()) == (9, 9, [str(i) for i in range(9)])
    (tmp_path / "test.csv").write_text("sent1,e0,e1,e2\n" + "c,a,b,c\n" * 200 + "c,a\n")
    with pytest.raises(ValueError, match="1 damaged rows; predictions must be made for every row"):
        data.load_test()


def test_missing_file_is_said_before_anything_is_read(make: Callable[..., ChoiceDataModule]) -> None:
    with pytest.raises(ValueError, match=r"(?s)nowhere.csv.*how to get it: make it"):
        make(validation_file="nowhere.csv")


def test_preview_reads_the_files_and_keeps_the_folds_apart(make: Callable[..., ChoiceDataModule]) -> None:
    whole = make().preview()
    assert (whole.train.num_examples, whole.validation.num_examples, whole.label_names) == (21, 7, ["0", "1", "2"])
    assert whole.train.labels == [str(i % 3) for i in range(21)]
    assert [len(whole.validation.texts[part]) for part in ("context", "ending")] == [7, 21]
    parts = make(validation_file="train.csv", folds=3, held_out_fold=1).preview()
    contexts = [set(found.texts["context"]) for found in (parts.train, parts.validation)]
    assert len(contexts[0] | contexts[1]) == 21 and not contexts[0] & contexts[1] and contexts[1]
