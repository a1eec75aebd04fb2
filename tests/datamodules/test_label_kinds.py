"""What a label may be: a kind encodes it, trains on it, predicts it, scores it, in one place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.datamodules.baselines import Texts, guess_classes
from clozelab.datamodules.label_kinds import Classes, LabelKind, Number, Values
from clozelab.metrics import glue
from clozelab.metrics.metric import Scorer, by_name
from clozelab.modules.model import MULTI_LABEL


def _exact_match(predictions: Values, labels: Values) -> float:
    return float((predictions == labels).all(axis=1).mean())


def _micro_f1(predictions: Values, labels: Values) -> float:
    return glue.f1_binary(predictions.reshape(-1), labels.reshape(-1))


class LabelSet(LabelKind):
    """Any number of labels that do not exclude each other; encoded [N, K] of 0 and 1.

    Its accuracy is the share of examples whose whole set is right, its f1 is over all labels.
    """

    metrics = ("accuracy", "f1")
    predicts = "a set of labels"
    problem_type = "multi_label_classification"
    scorers: ClassVar = by_name(
        Scorer.share("accuracy", _exact_match), Scorer.share("f1", _micro_f1)
    )

    def encode(self, labels: Sequence[Collection[str]]) -> Values:
        encoded = np.zeros((len(labels), len(self.names)), dtype=np.int64)
        for row, names in zip(encoded, labels, strict=True):
            row[[self._index[name] for name in names]] = 1
        return encoded

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")

    def predict(self, logits: np.ndarray) -> Values:
        return (logits > 0).astype(np.int64)

    def shown(self, value: Any) -> list[str]:
        return [self.names[number] for number in np.flatnonzero(value)]

    def guess(self, train: Texts, labels: Values, test: Texts) -> Values:
        return np.stack([guess_classes(train, column, test, 2) for column in labels.T], axis=1)


def test_a_set_of_two_labels_is_predicted_and_scored() -> None:
    kind = LabelSet(["dark", "funny"])
    labels = kind.encode([["dark"], [], ("funny", "dark"), ["funny"]])
    assert labels.tolist() == [[1, 0], [0, 0], [1, 1], [0, 1]]
    logits = np.array([[2.0, -1.0], [-3.0, 0.5], [1.0, 1.0], [-1.0, 4.0]])
    predicted = kind.predict(logits)
    assert predicted.tolist() == [[1, 0], [0, 1], [1, 1], [0, 1]]
    # three whole sets of four; four labels are right, and one is too many
    assert kind.score(["accuracy", "f1"], predicted, labels) == {"accuracy": 0.75, "f1": 8 / 9}
    record = kind.record(predicted[2], labels[2], logits[2])
    assert record == {
        "prediction": ["dark", "funny"],
        "label": ["dark", "funny"],
        "logits": [1.0, 1.0],
    }
    assert not kind.is_collapsed(predicted, labels) and kind.is_collapsed(labels[:1], labels[:1])
    assert kind.problem_type == MULTI_LABEL and kind.num_outputs == 2
    with pytest.raises(ValueError, match="a set of labels"):
        kind.check_metrics(["spearman"])


def test_the_loss_of_a_set_is_that_of_its_labels_apart() -> None:
    kind = LabelSet(["dark", "funny"])
    logits = torch.tensor([[0.3, -1.0], [2.0, 0.1]])
    labels = torch.from_numpy(kind.encode([["dark"], ["dark", "funny"]]))
    of_right = torch.where(labels == 1, logits, -logits)
    expected = torch.nn.functional.softplus(-of_right).sum()
    assert torch.allclose(kind.loss(logits, labels), expected)


def test_simple_answers_to_sets() -> None:
    kind = LabelSet(["dark", "funny"])
    train = [("a grim night", ""), ("a silly joke", ""), ("a grim joke", "")] * 3
    labels = kind.encode([["dark"], ["funny"], ["dark", "funny"]] * 3)
    assert kind.majority(labels).tolist() == [[0, 1]] * 9, "of equally frequent ones the lowest"
    guesses = kind.guess(train, labels, [("grim", ""), ("joke", ""), ("grim joke", "")])
    assert guesses.tolist() == [[1, 0], [0, 1], [1, 1]]


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_numbers_have_collapsed_whatever_their_unit(unit: float) -> None:
    labels = unit * np.arange(5.0)
    assert Number().is_collapsed(unit * (2.0 + 5e-4 * labels / unit), labels)
    assert not Number().is_collapsed(unit * (2.0 + 5e-3 * labels / unit), labels)


def test_classes_and_numbers() -> None:
    classes = Classes(["no", "yes"])
    assert classes.encode(["yes", "no"]).tolist() == [1, 0]
    assert classes.record(1, 0, np.array([0.25, 1.0])) == {
        "prediction": "yes",
        "label": "no",
        "logits": [0.25, 1.0],
    }
    means = ["accuracy", "macro_f1", "weighted_f1", "matthews"]
    assert classes.baseline_metrics == Classes("abc").baseline_metrics == means
    assert Classes("01").baseline_metrics == ["accuracy", "f1", *means[1:]]
    number = Number()
    assert number.encode(["1.5", "2"]).tolist() == [1.5, 2.0] and number.num_outputs == 1
    assert number.predict(np.array([[0.5], [2.0]])).tolist() == [0.5, 2.0]
    assert number.majority(np.ones(3)) is None
