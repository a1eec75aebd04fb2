"""Files of `train_extra` are looked at as the training file is."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.composing import composed
from tests.parts import ENDINGS, WORDS, choice_data, squad_data, tag_data
from tests.runs.sentiment import TOKENIZER, write_sentiment

from clozelab.assembly import task_data
from clozelab.assembly.labelled import READ_ONCE
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.tasks.classes import ClassTarget


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """read(*words) -> the data of a sentiment task with an extra file `more.tsv`, set up."""
    write_sentiment(tmp_path, train=300, dev=8)

    def build(*words: str, plan: TrainingPlan = READ_ONCE) -> FinetuningDataModule:
        extra = "+task.data.train_extra=[more.tsv]"
        task = dict(
            vars(
                composed("finetune", ["task=sst2", "encoder=x", "row=x", extra, *words]).config.task
            )
        )
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 32)
        data = task_data.build_task_data(task, inputs, plan)
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


def test_the_baseline_learns_from_it(read: Any, tmp_path: Path) -> None:
    rows = [f"the film good\t{i % 2}" for i in range(40)]
    (tmp_path / "more.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    data = read()
    assert 0.0 <= data.baselines["bag of words"]["accuracy"] <= 1.0
    parts = [data.examples_in_use(path, "training") for path in data.train_paths]
    joined = data.unit.joined(parts)
    assert len(joined) == len(joined.known_labels) == 340
    assert joined.texts[300:] == parts[1].texts
    for part in parts:
        part.labels = None
    assert data.unit.joined(parts).labels is None


def test_the_limit_is_of_each_file_and_the_log_says_so(
    read: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"the film good\t{i % 2}" for i in range(40)]
    (tmp_path / "more.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    with caplog.at_level(logging.INFO):
        data = read(plan=replace(READ_ONCE, max_train_examples=16))
    assert len(data.train_sequences) == 32
    assert "16 of 300 training examples" in caplog.text
    assert "beside them 16 of 40 training examples of" in caplog.text and "more.tsv" in caplog.text


def test_balanced_weights_count_all_files(read: Any, tmp_path: Path) -> None:
    rows = ["the film good\t1"] * 100
    (tmp_path / "more.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    data = read("task.module.class_weights=balanced")
    counts = np.bincount(data.train_targets["labels"])
    assert counts.sum() == 400
    assert isinstance(data.target, ClassTarget) and data.target.weights is not None
    assert data.target.weights.tolist() == pytest.approx(400 / (2 * counts))


def test_an_example_of_several_sequences_counts_once(tmp_path: Path) -> None:
    for name, count in (("train", 12), ("more", 8), ("dev", 4)):
        lines = ["context,ending0,ending1,ending2,ending3,label"]
        for number in range(count):
            lines.append(f"the film,good,bad,a,the,{number % 4}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    data = choice_data(
        inputs=TaskInputs(
            "toy", tmp_path, tmp_path / "cache", TOKENIZER, 32, max_unknown_share=1.0
        ),
        train_file="train.csv",
        validation_file="dev.csv",
        train_extra=["more.csv"],
        max_seq_length=32,
        file_format="csv",
        columns=None,
        context_column="context",
        start_column=None,
        ending_columns=ENDINGS,
        label_column="label",
        folds=None,
        held_out_fold=None,
        published_train_examples=None,
    )
    data.setup()
    assert (len(data.train_sequences), data.num_first_sequences) == (20, 8)
    assert (data.first_steps, data.steps_per_epoch) == (2, 3)
    parts = [data.examples_in_use(path, "training") for path in data.train_paths]
    assert len(data.unit.joined(parts)) == 20


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (tag_data, {"train_extra": ["more.txt"]}),
        (tag_data, {"extra_validation_files": {"more": "more.txt"}}),
        (squad_data, {"extra_validation_files": {"more": "more.json"}}),
    ],
)
def test_a_further_file_is_refused_at_once(make: Any, setting: Any, tmp_path: Path) -> None:
    tags = WORDS | {"entity_tags": True}
    questions = {"with_unanswerable": False, "doc_stride": 8, "max_query_length": 8}
    (key,) = setting
    settings = setting | (tags if make is tag_data else questions)
    inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 32)
    with pytest.raises(ValueError, match=f"task.data.{key}.* on one file"):
        make(
            inputs=inputs,
            train_file="train",
            validation_file="dev",
            max_seq_length=32,
            **settings,
        )


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
