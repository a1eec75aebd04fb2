"""Files of `train_extra` are looked at as the training file is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.composing import composed
from tests.runs.sentiment import TOKENIZER, write_sentiment

from clozelab.assembly import task_data
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """read(*words) -> the data of a sentiment task with an extra file `more.tsv`, set up."""
    write_sentiment(tmp_path, train=300, dev=8)

    def build(*words: str) -> FinetuningDataModule:
        extra = "+task.data.train_extra=[more.tsv]"
        task = dict(
            vars(
                composed("finetune", ["task=sst2", "encoder=x", "row=x", extra, *words]).config.task
            )
        )
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 32)
        data = task_data.build_task_data(task, inputs)
        data.setup()
        data.refuse_outside()
        return data

    return build


def test_damaged_rows_are_counted_and_said(
    read: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"the film good\t{i % 2}" for i in range(300)]
    rows[7] = "the film good"
    (tmp_path / "more.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    with caplog.at_level(logging.WARNING):
        data = read()
    assert data.facts["bad_rows"] == 1
    assert "1 damaged row(s) of" in caplog.text and "more.tsv left out" in caplog.text


def test_a_number_that_cannot_be_is_refused(read: Any, tmp_path: Path) -> None:
    rows = [f"the film good\t{i % 2}" for i in range(300)]
    rows[7] = "the film good\t70"
    (tmp_path / "more.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = [
        "task.data.numeric_labels=true",
        "task.data.labels=null",
        "task.metric=validation/spearman",
    ]
    with pytest.raises(ValueError, match=r"more.tsv:9: .*70"):
        read(*words, "task.module.metrics=[spearman]", "task.module.number_range=[0,1]")
