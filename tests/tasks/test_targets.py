"""What is predicted: a target encodes it, trains on it, scores it and writes it down."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parts import PAIRS, TEXTS

from clozelab.metrics import glue
from clozelab.tasks.baselines import BAG
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.numbers import NumberTarget, are_one_number
from clozelab.tasks.sequences import TokenSequences
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.texts import TextUnit, VectorUnit
from clozelab.tasks.unit import Split

NO_TOKENS = TokenSequences(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32))


def split_of(labels: np.ndarray) -> Split:
    ids = np.arange(len(labels)).astype(str)
    return Split(sequences=NO_TOKENS, ids=ids, labels=labels)


def examples_of(labels: list[str]) -> TextExamples:
    texts = [(f"{label} text {number % 2}",) for number, label in enumerate(labels)]
    return TextExamples([str(n) for n in range(len(labels))], texts, labels)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_numbers_have_collapsed_whatever_their_unit(unit: float) -> None:
    labels = unit * np.arange(5.0)
    assert are_one_number(unit * (2.0 + 5e-4 * labels / unit), labels)
    assert not are_one_number(unit * (2.0 + 5e-3 * labels / unit), labels)


def test_classes_and_numbers() -> None:
    classes = ClassTarget(labels=["no", "yes"])
    assert classes.encode(["yes", "no"]).tolist() == [1, 0] and classes.num_outputs == 2
    outcome = classes.evaluate(np.array([[0.25, 1.0]]), split_of(np.array([0])))
    assert outcome.records == [
        {"id": "0", "prediction": "yes", "label": "no", "logits": [0.25, 1.0]}
    ]
    number = NumberTarget()
    assert number.encode(["1.5", "2"]).tolist() == [1.5, 2.0] and number.num_outputs == 1
    outcome = number.evaluate(np.array([[0.5], [2.0]]), split_of(np.array([1.0, 3.0])))
    assert [record["prediction"] for record in outcome.records] == [0.5, 2.0]
    assert outcome.scores == {"spearman": pytest.approx(1.0)}
    assert number.majority_score("spearman", split_of(np.ones(3))) is None


def test_the_bag_of_words_is_scored_by_all_that_means_something() -> None:
    """An F1 of one class is none of it where no class is the positive one."""
    means = [name for name in glue.OF_CLASSES if name != "f1"]
    for names, scores in (("ab", means), ("01", list(glue.OF_CLASSES))):
        examples = examples_of([*names] * 6)
        target = ClassTarget(labels=list(names))
        found = target.baselines(examples, {"": examples, "other": examples})[BAG]
        assert list(found) == [*scores, *(f"other_{name}" for name in scores)]
        assert set(found.values()) == {1.0}


def test_a_positive_label_is_one_of_the_classes() -> None:
    target = ClassTarget(positive_label="yes", metrics=["f1"])
    assert target.named(["no", "yes"]).positive_label == "yes"
    with pytest.raises(ValueError, match=r"positive_label=yes is not one of the labels a, b"):
        target.named(["a", "b"])
    with pytest.raises(ValueError, match="f1 is of one class, and the labels are a, b"):
        ClassTarget(metrics=["f1"]).named(["a", "b"]).check_scores()


@pytest.mark.parametrize(
    ("unit", "settings"),
    [(TextUnit, TEXTS | {"pairs": "apart", "text_columns": ["a", "b"]}), (VectorUnit, PAIRS)],
    ids=["apart", "joint"],
)
def test_a_unit_reads_pairs_one_way(unit: Any, settings: dict[str, Any]) -> None:
    given = settings | ({"pairs": "joint", "pooling": "mean"} if unit is VectorUnit else {})
    with pytest.raises(ValueError, match=r"task.data.pairs=\w+: this task reads pairs"):
        unit(**given)
