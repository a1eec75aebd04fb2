"""What the label of an example may be: a class or a number.

A kind says how labels become numbers, what a model's outputs are trained on, what they predict, how
predictions are scored, and what simple methods reach. A new kind is a class here.

Letters: N examples, B examples of a batch, K classes or labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.datamodules.baselines import Texts, guess_classes, guess_numbers
from clozelab.metrics import glue
from clozelab.metrics.metric import Scorer
from clozelab.text.plain import Json, JsonObject

Values = np.ndarray
SHOWN_LABELS = 10
USUAL_POSITIVE_LABELS = {frozenset({"0", "1"}): "1", frozenset({"false", "true"}): "true"}
CONSTANT_RANGE = 1e-3  # of the labels' range: predicted numbers that differ by less are one answer


class LabelKind(ABC):
    """Base; `names` are the classes or labels, in the order of their indices."""

    metrics: Sequence[str]  # those of glue.py that mean something
    predicts: str  # for messages
    problem_type: str | None  # in a model's config.json
    positive_label: str | None = None  # the class that an F1 is of, where it is known
    scorers: ClassVar[Mapping[str, Scorer]] = glue.SCORERS

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        # A number has no names, and one output.
        self.num_outputs = max(1, len(names))  # of a model's head
        self._index = {name: number for number, name in enumerate(names)}

    @property
    def baseline_metrics(self) -> list[str]:
        """What a simple method is scored by."""
        return list(self.metrics)

    def check_metrics(self, metrics: Sequence[str]) -> None:
        """ValueError for a score that does not exist, or means nothing here."""
        glue.check_metrics(metrics)
        unfit = [name for name in metrics if name not in self.metrics]
        if unfit:
            raise ValueError(
                f"metrics {unfit} do not fit a task that predicts {self.predicts};"
                f" {', '.join(self.metrics)} do (module.metrics of a task lists them, and its"
                " metric is the main one, validation/NAME)"
            )

    def score(
        self, metrics: Sequence[str], predictions: Values, labels: Values
    ) -> dict[str, float]:
        self.check_metrics(metrics)
        return {name: self.scorers[name](predictions, labels) for name in metrics}

    @abstractmethod
    def encode(self, labels: Sequence[Any]) -> Values:
        """Labels as files spell them [N] as numbers."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Summed over a batch's examples; `logits` [B, num_outputs]."""

    @abstractmethod
    def predict(self, logits: NDArray[np.floating]) -> Values:
        """What the outputs say, as `encode` has labels."""

    @abstractmethod
    def shown(self, value: object) -> Json:
        """A prediction or a label as people read it."""

    def record(self, prediction: object, label: object, logits: Values) -> JsonObject:
        """An example's prediction, label and outputs as people read them."""
        return {
            "prediction": self.shown(prediction),
            "label": self.shown(label),
            "logits": [round(float(logit), 5) for logit in logits],
        }

    def majority(self, labels: Values) -> Values | None:
        """The answer that is right most often, for every example; None: there is none.

        Of equally frequent ones it is the lowest.
        """
        # Labels [1, 0, 1]: answers [0, 1] with counts [1, 2], so 1 for every example.
        answers, counts = np.unique(labels, axis=0, return_counts=True)
        return np.broadcast_to(answers[counts.argmax()], labels.shape)

    @abstractmethod
    def guess(self, train: Texts, labels: Values, test: Texts) -> Values:
        """What a bag of words predicts of `test`."""

    def is_collapsed(self, predictions: Values, labels: Values) -> bool:  # noqa: ARG002
        """Whether nearly every example has the same answer, and should not."""
        return len(np.unique(predictions, axis=0)) <= 1


class Classes(LabelKind):
    """One of some classes; encoded it is an index [N].

    F1 is of the positive label. Where none is given, that is the latter of the classes 0 and 1, or
    false and true, as in GLUE and scikit-learn; other classes have none.
    """

    metrics = tuple(glue.OF_CLASSES)
    predicts = "a class"
    problem_type = None

    def __init__(self, names: Sequence[str] = (), positive_label: str | None = None) -> None:
        super().__init__(names)
        if positive_label is not None and positive_label not in self._index:
            raise ValueError(
                f"task.data.positive_label={positive_label} is not one of the labels"
                f" {', '.join(self.names[:SHOWN_LABELS])}"
            )
        if positive_label is None:
            positive_label = USUAL_POSITIVE_LABELS.get(frozenset(self.names))
        self.positive_label = positive_label

    @property
    def baseline_metrics(self) -> list[str]:
        metrics = list(self.metrics)
        if self.positive_label is None:
            metrics.remove("f1")
        return metrics

    def check_metrics(self, metrics: Sequence[str]) -> None:
        super().check_metrics(metrics)
        # Without names (of a task whose files nobody has read) the question is still open.
        if "f1" in metrics and self.names and self.positive_label is None:
            listed = ", ".join(self.names[:SHOWN_LABELS])
            raise ValueError(
                f"module.metrics: f1 is of one class, and the labels are {listed}: name it by"
                f" task.data.positive_label={self.names[0]} (or another), or take macro_f1, the"
                " mean over the classes"
            )

    def score(
        self, metrics: Sequence[str], predictions: Values, labels: Values
    ) -> dict[str, float]:
        scores = super().score(metrics, predictions, labels)
        if "f1" in metrics and self.positive_label is not None:
            positive = self._index[self.positive_label]
            scores["f1"] = glue.f1_binary(predictions == positive, labels == positive)
        return scores

    def encode(self, labels: Sequence[str]) -> Values:
        return np.array([self._index[label] for label in labels], dtype=np.int64)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, reduction="sum")

    def predict(self, logits: NDArray[np.floating]) -> Values:
        return logits.argmax(axis=1)

    def shown(self, value: Any) -> str:
        return self.names[value]

    def guess(self, train: Texts, labels: Values, test: Texts) -> Values:
        return guess_classes(train, labels, test, len(self.names))

    def is_collapsed(self, predictions: Values, labels: Values) -> bool:
        return glue.is_collapsed(predictions, labels)


class Number(LabelKind):
    """A number, which a model's one output is."""

    metrics = tuple(glue.OF_NUMBERS)
    predicts = "a number"
    problem_type = "regression"

    @property
    def baseline_metrics(self) -> list[str]:
        return ["spearman", "pearson"]

    def encode(self, labels: Sequence[str]) -> Values:
        return np.array([float(label) for label in labels])

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(logits[:, 0], labels, reduction="sum")

    def predict(self, logits: NDArray[np.floating]) -> Values:
        return logits[:, 0]

    def shown(self, value: Any) -> float:
        return float(value)

    def record(self, prediction: Any, label: object, logits: Values) -> JsonObject:  # noqa: ARG002
        return {"prediction": round(float(prediction), 5), "label": self.shown(label)}

    def majority(self, labels: Values) -> None:  # noqa: ARG002
        return None

    def guess(self, train: Texts, labels: Values, test: Texts) -> Values:
        return guess_numbers(train, labels, test)

    def is_collapsed(self, predictions: Values, labels: Values) -> bool:
        return bool(np.ptp(predictions) <= CONSTANT_RANGE * np.ptp(labels))


def kind_of(names: Sequence[str], positive_label: str | None = None) -> LabelKind:
    """One class each, or a number where there are no names.

    ValueError for a positive label that is none of the names.
    """
    if names:
        return Classes(names, positive_label)
    if positive_label is not None:
        raise ValueError(
            f"task.data.positive_label={positive_label}: this task predicts a number, which has no"
            " classes; leave it out"
        )
    return Number()
