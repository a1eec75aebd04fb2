"""Runs from before tasks had units and targets are known as what they are."""

from __future__ import annotations

from typing import Any

import pytest
from tests.composing import composed

from clozelab.addresses import allowed
from clozelab.runs.identity import (
    DATA_BEFORE_UNITS,
    MODULES_BEFORE_UNITS,
    as_before_units,
    delta_as_before_units,
    identity_of,
)
from clozelab.text.plain import flatten

UNIT = "task.unit._target_"
TARGET = "task.target._target_"
OLD = {
    "sst2": ("labelled.LabelledDataModule", "classification.SequenceClassification"),
    "stsb": ("labelled.LabelledDataModule", "classification.SequenceClassification"),
    "stsb_siamese": ("labelled.LabelledDataModule", "embeddings.SiameseEncoder"),
    "stsb_simcse": ("contrastive.ContrastiveDataModule", "embeddings.ContrastiveEncoder"),
    "swag": ("choices.ChoiceDataModule", "classification.MultipleChoice"),
    "squad_v2": ("squad.SquadDataModule", "spans.SpanExtraction"),
    "ner_wnut17": ("tags.TagDataModule", "tags.TokenClassification"),
    "ner_features_wnut17": ("features.FeatureDataModule", "tags.FeatureBased"),
}
"""Task -> the addresses of its data and its module in records of that time."""


def values_of(task: str, *words: str) -> Any:
    return composed("finetune", [f"task={task}", "encoder=none", "row=mine", *words]).values


@pytest.mark.parametrize("task", OLD)
def test_a_task_is_known_by_the_addresses_of_its_time(task: str) -> None:
    values = values_of(task)
    assert {"_target_"} <= values["task"]["unit"].keys() & values["task"]["target"].keys()
    data, module = OLD[task]
    identity = identity_of(values)
    assert identity["task.data._target_"] == f"clozelab.datamodules.{data}"
    assert identity["task.module._target_"] == f"clozelab.modules.{module}"
    assert identity["task.data._partial_"] is identity["task.module._partial_"] is True
    assert not {UNIT, TARGET} & identity.keys()
    # An old record has these leaves itself, and is read as it is.
    assert as_before_units(identity) == identity


def test_the_tables_name_parts_that_there_are() -> None:
    assert DATA_BEFORE_UNITS.keys() == MODULES_BEFORE_UNITS.keys()
    for pair in DATA_BEFORE_UNITS:
        unit, target = (f"clozelab.tasks.{part}" for part in pair.split())
        assert unit in allowed()["task.unit"] and target in allowed()["task.target"]


def test_newer_parts_are_known_by_their_own_addresses() -> None:
    leaves = {UNIT: "clozelab.tasks.words.WordUnit", TARGET: "mine.Target", "task.name": "x"}
    assert as_before_units(leaves) == leaves
    assert delta_as_before_units({TARGET: "mine.Target"}, {}) == {TARGET: "mine.Target"}


def test_what_a_row_changes_of_a_task_is_said_in_both_ways() -> None:
    """A row of table 7 lays the format of features over a tagging task."""
    values = values_of("ner_microworld", "+task/format@task=features")
    unit = flatten(values)[UNIT]
    delta = {UNIT: unit, "task.data.features": "last"}
    assert delta_as_before_units(delta, values) == {
        "task.data._target_": "clozelab.datamodules.features.FeatureDataModule",
        "task.module._target_": "clozelab.modules.tags.FeatureBased",
        "task.data.features": "last",
    }
    # What changes no part is as it was.
    plain = {"task.data.features": "last"}
    assert delta_as_before_units(plain, values) == plain
