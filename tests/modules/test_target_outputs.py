"""What targets make of a model's outputs: scores of tags, and a file of choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from clozelab.tasks.right_choice import ChoiceTarget
from clozelab.tasks.tags import TagTarget
from clozelab.tasks.texts import TextSplit
from clozelab.tasks.words import WordSplit


def test_entities_words_and_a_collapse() -> None:
    """Every tag but one of two sentences is right; then every word is outside."""
    nothing: Any = None
    labels = np.array([0, 1, 2, 0, 0, 1])
    split = WordSplit(
        sequences=nothing,
        ids=np.array(["0", "1"]),
        labels=labels,
        sentence_offsets=np.array([0, 4, 6]),
        words=list("abcdef"),
        key="key",
    )
    target = TagTarget(entity_tags=True).with_classes(["O", "B-X", "I-X"])
    found = target.evaluate(np.array([0, 1, 0, 0, 0, 1]), split)
    assert list(found.scores) == ["f1", "precision", "recall", "accuracy"]
    assert found.scores["f1"] == 0.5 and not found.is_collapsed
    first, _ = found.records
    assert first["words"] == list("abcd")
    assert first["label"] == ["O", "B-X", "I-X", "O"]
    assert first["prediction"] == ["O", "B-X", "O", "O"]
    outside = target.evaluate(np.zeros_like(labels), split)
    assert outside.is_collapsed and outside.scores["f1"] == 0.0
    assert outside.scores["accuracy"] == target.majority_score("accuracy", split) == 0.5
    assert target.majority_score("f1", split) == 0.0


def test_a_file_of_choices_has_the_probability_of_each() -> None:
    nothing: Any = None
    split = TextSplit(sequences=nothing, ids=np.array(["7", "8"]), labels=np.array([1, 0]))
    target = ChoiceTarget(ending_columns=["a", "b"], metrics=["accuracy"])
    outputs = np.log(np.array([[0.25, 0.75], [0.5, 0.125]], dtype=np.float32))
    (lines,) = target.prediction_files("SWAG", split, outputs, {}).values()
    assert list(lines) == [
        "index,label,ending0,ending1",
        "7,1,0.250000,0.750000",
        "8,0,0.800000,0.200000",
    ]
