"""One of some classes for each text or pair: cross-entropy, GLUE's scores, a bag of words.

Letters: N examples, B of a batch, K classes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics import glue
from clozelab.metrics.metric import Metric, Scorer
from clozelab.readers.cells import cell_text
from clozelab.tasks.baselines import BAG, Scores, guess_classes, score_each_set, text_pairs
from clozelab.tasks.batches import Batch
from clozelab.tasks.class_report import ClassReport, error_lines, largest_probability
from clozelab.tasks.labels import refuse_one_class, warn_of_lacking_classes
from clozelab.tasks.numbers import NumberTarget
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.target import Files, Outcome, Target
from clozelab.tasks.texts import TextSplit
from clozelab.tasks.unit import Split
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
SHOWN_LABELS = 10
NEED_TWO_CLASSES = {"matthews", "quadratic_kappa"}  # among the labels
DEFAULT_POSITIVE_LABELS = {frozenset({"0", "1"}): "1", frozenset({"false", "true"}): "true"}


def configured_labels(labels: Sequence[object] | None) -> list[str] | None:
    """The labels that a configuration lists, as files spell them (`false`, not Python's `False`).

    ValueError where one stands there twice.
    """
    if labels is None:
        return None
    names = [cell_text(label) for label in labels]
    if len(set(names)) < len(names):
        raise ValueError(f"task.data.labels names a label twice: {names}")
    return names


class KnownClasses(Target):
    """Base of targets with classes that a configuration, a training file or a model names.

    Args:
        labels: the classes in the order of their indices; None: the sorted labels of the training
            file.
    """

    units = ("TextUnit",)

    def __init__(self, *, labels: Sequence[object] | None = None) -> None:
        self.configured_classes = configured_labels(labels)
        self.is_of_model = False
        self._set_classes(self.configured_classes or ())

    @property
    def listed(self) -> Sequence[str]:  # type: ignore[override]
        return self.configured_classes or ()

    def of_model(self, classes: Sequence[str]) -> Self:
        target = self.with_classes(classes)
        # Whatever the model's order of them, a file is read alike, so scores are compared.
        listed = self.configured_classes
        if listed is None or set(listed) != set(classes):
            listed = sorted(classes)
        target.configured_classes = listed
        target.is_of_model = True
        return target

    def with_classes(self, classes: Sequence[str]) -> Self:
        target = super().with_classes(classes)
        target._set_classes(classes)
        return target

    def _set_classes(self, classes: Sequence[str]) -> None:
        """Take these classes; ValueError where they do not fit the settings."""
        self.classes = list(classes)
        self._index = {name: number for number, name in enumerate(self.classes)}

    def preview_classes(self, labels: Sequence[str]) -> Sequence[str]:
        return self.classes or sorted(set(labels))


class ClassTarget(KnownClasses):
    """One of some classes; encoded it is an index [N].

    F1 is of the positive label. Where none is given, that is the latter of the classes 0 and 1, or
    false and true, as in GLUE and scikit-learn; other classes have none.

    Args:
        labels: the classes in the order of their indices; None: the sorted labels of the training
            file.
        positive_label: the class that F1 is of.
        metrics: names of glue.OF_CLASSES.
        class_weights: what an error on each class costs in training, by its name, 1 for others;
            `balanced`: N / (K * count) of N training examples of K classes. The sum of the weighted
            losses is still divided by the number of examples.
    """

    scorers: Mapping[str, Scorer] = glue.OF_CLASSES

    def __init__(
        self,
        *,
        labels: Sequence[object] | None = None,
        positive_label: object = None,
        metrics: Sequence[str] = ("accuracy",),
        class_weights: Mapping[object, float] | str | None = None,
    ) -> None:
        glue.check_fit(metrics, glue.OF_CLASSES, "a class")
        self.class_weights = class_weights
        self.weights: Tensor | None = None  # [K]
        self.metrics = [glue.SCORERS[name].metric for name in metrics]
        self.given_positive_label: str | None = None
        if positive_label is not None:
            self.given_positive_label = cell_text(positive_label)
        super().__init__(labels=labels)

    def config_to_save(self) -> PlainDict:
        if self.given_positive_label is None:
            return {}
        return {"positive_label": self.given_positive_label}

    # Labels

    def _set_classes(self, classes: Sequence[str]) -> None:
        super()._set_classes(classes)
        self.positive_label = self.given_positive_label
        if self.positive_label is None:
            self.positive_label = DEFAULT_POSITIVE_LABELS.get(frozenset(self.classes))
        elif self.classes and self.positive_label not in self._index:
            raise ValueError(
                f"task.data.positive_label={self.positive_label} is not one of the labels"
                f" {', '.join(self.classes[:SHOWN_LABELS])}"
            )

    def classes_of(self, labels: Sequence[str]) -> Sequence[str]:
        return self.preview_classes(labels)

    def encode(self, labels: Sequence[str]) -> np.ndarray:
        return np.array([self._index[label] for label in labels], dtype=np.int64)

    def strata(self, labels: Sequence[str]) -> NDArray[np.int64]:
        _, strata = np.unique(labels, return_inverse=True)
        return strata

    def check_training(self, path: Path, split: Split, column_key: str) -> None:
        refuse_one_class(path, self.classes, column_key)
        # A fine-tuned model brings its classes, and the file may lack some of those.
        if not self.is_of_model:
            warn_of_lacking_classes(path, split.labels, self.classes)
        # The loss is over inputs: a text in windows counts once for each of them.
        self.learn_shares(getattr(split, "input_labels", split.labels))

    def learn_shares(self, labels: np.ndarray) -> None:
        if self.class_weights is not None:
            self.weights = self._weigh(labels)

    def _weigh(self, labels: np.ndarray) -> Tensor:
        """The weight of each class [K] of training labels [N]; ValueError for wrong settings."""
        if self.class_weights == "balanced":
            counts = np.bincount(labels, minlength=len(self.classes))
            # a class without examples has no errors
            return torch.tensor(len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1)))
        weights = torch.ones(len(self.classes))
        given = self.class_weights
        if not isinstance(given, Mapping):
            given = {given: 0}
        for name, weight in given.items():
            index = self._index.get(cell_text(name))
            if index is None or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                listed = ", ".join(self.classes[:SHOWN_LABELS])
                raise ValueError(
                    f"task.module.class_weights={self.class_weights}: write balanced, or a number"
                    f" above 0 for some of the classes {listed}, as {{{self.classes[0]}: 2}}"
                )
            weights[index] = weight
        return weights

    def check_scores(self) -> None:
        names = [metric.name for metric in self.metrics if metric.is_of_one_class]
        if names and self.positive_label is None:
            listed = ", ".join(self.classes[:SHOWN_LABELS])
            raise ValueError(
                f"module.metrics: f1 is of one class, and the labels are {listed}: name it by"
                f" task.data.positive_label={self.classes[0]} (or another), or take macro_f1, the"
                " mean over the classes"
            )

    def check_validation(self, split: Split) -> None:
        """Warn of scores that are 0 whatever is predicted."""
        names = {metric.name for metric in self.metrics}
        for name_of_set, examples in split.validation_sets.items():
            present = {self.classes[number] for number in np.unique(examples.labels)}
            undefined = []
            if len(present) == 1:
                undefined = sorted(names & NEED_TWO_CLASSES)
            if "f1" in names and self.positive_label not in present:
                undefined.append(f"the f1 of {self.positive_label}")
            if undefined:
                log.warning(
                    "the %s has rows of %s alone: no prediction makes %s other than 0",
                    name_of_set,
                    ", ".join(sorted(present)[:SHOWN_LABELS]),
                    " and ".join(undefined),
                )

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        weights = None
        if self.weights is not None:
            weights = self.weights.to(logits)
        return F.cross_entropy(logits, batch["labels"], weights, reduction="sum")

    # Scores, and what is written down

    def score(
        self, metrics: Sequence[Metric], predictions: np.ndarray, labels: np.ndarray
    ) -> dict[str, float]:
        """Scores of classes [N] against labels [N], shares of one."""
        scores = {}
        for metric in metrics:
            scores[metric.name] = self.scorers[metric.name](predictions, labels)
        if "f1" in scores and self.positive_label is not None:
            positive = self._index[self.positive_label]
            scores["f1"] = glue.f1_binary(predictions == positive, labels == positive)
        return scores

    def scores_of(self, outputs: np.ndarray, split: Split) -> dict[str, float]:
        """The scores of a split's outputs [N, num_outputs]."""
        return self.score(self.metrics, self.predict(outputs), split.labels)

    def predict(self, outputs: np.ndarray) -> NDArray[np.int64]:
        """[N, num_outputs] -> the class of each example."""
        return outputs.argmax(axis=1)

    def probability_of(self, logits: Sequence[float]) -> float:
        """What the model gives the class that it predicts by these outputs."""
        return largest_probability(logits)

    def evaluate(self, outputs: np.ndarray, split: Split) -> Outcome:
        predicted = self.predict(outputs)
        records = []
        for number, example_id in enumerate(split.ids):
            logits = [round(float(logit), 5) for logit in outputs[number]]
            records.append(
                {
                    "id": str(example_id),
                    "prediction": self.classes[predicted[number]],
                    "label": self.classes[split.labels[number]],
                    "logits": logits,
                }
            )
        return Outcome(
            self.scores_of(outputs, split),
            records,
            is_collapsed=glue.is_collapsed(predicted, split.labels),
        )

    def majority_score(self, name: str, split: Split) -> float | None:
        # Labels [1, 0, 1]: answers [0, 1] with counts [1, 2], so 1 for every example.
        answers, counts = np.unique(split.labels, return_counts=True)
        majority = np.broadcast_to(answers[counts.argmax()], split.labels.shape)
        return self.score([self.scorers[name].metric], majority, split.labels)[name]

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """Bag of words."""
        # All sets are guessed at once, behind each other: the words are learnt once.
        texts = chain.from_iterable(examples.texts for examples in validation.values())
        guesses = guess_classes(
            text_pairs(train.texts),
            self.encode(train.known_labels),
            text_pairs(texts),
            len(self.classes),
        )
        metrics = [scorer.metric for scorer in self.scorers.values()]
        if self.positive_label is None:
            metrics = [metric for metric in metrics if not metric.is_of_one_class]
        labels = {name: self.encode(examples.known_labels) for name, examples in validation.items()}
        return {BAG: score_each_set(guesses, labels, partial(self.score, metrics))}

    def prediction_files(
        self,
        name: str,
        split: Split,
        outputs: np.ndarray,
        scores: Mapping[str, float],
    ) -> Files:
        """A file of a GLUE submission."""
        answers = [self.classes[index] for index in self.predict(outputs)]
        return {f"{name}.tsv": glue.prediction_lines(split.ids, answers)}

    def result_files(self, records: Sequence[PlainDict], split: Split, suffix: str) -> Files:
        files = super().result_files(records, split, suffix)
        if not isinstance(split, TextSplit) or split.read_texts is None:
            return files
        file = f"errors{suffix}.csv"
        # The file is read anew; a training of hours is not lost with it.
        try:
            files[file] = error_lines(records, split.read_texts(), self.probability_of)
        except (OSError, ValueError) as problem:
            log.warning("%s is not written, since its texts changed: %s", file, problem)
        return files

    def class_report(self, records: Sequence[PlainDict]) -> ClassReport | None:
        pairs = [(str(record["label"]), str(record["prediction"])) for record in records]
        return ClassReport.from_pairs(self.classes, pairs)


def by_labels(
    of_classes: type[ClassTarget], of_numbers: type[NumberTarget]
) -> Callable[..., Target]:
    """What makes the target of a label column: a class, or with `numeric_labels` a number."""

    def class_or_number(
        *,
        numeric_labels: bool,
        labels: Sequence[object] | None,
        positive_label: object,
        metrics: Sequence[str],
        number_range: Sequence[float] | None,
        class_weights: Mapping[object, float] | str | None,
    ) -> Target:
        """Args: as conf/task/format/labelled.yaml says of each."""
        if not numeric_labels:
            return of_classes(
                labels=labels,
                positive_label=positive_label,
                metrics=metrics,
                class_weights=class_weights,
            )
        of_class = {"data.positive_label": positive_label, "module.class_weights": class_weights}
        for key, value in of_class.items():
            if value is not None:
                raise ValueError(
                    f"task.{key}={value}: this task predicts a number, which has no classes; leave"
                    " it out"
                )
        target = of_numbers(metrics=metrics, number_range=number_range)
        target.configured_classes = configured_labels(labels)
        return target

    return class_or_number


class_or_number = by_labels(ClassTarget, NumberTarget)
