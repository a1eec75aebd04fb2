"""Several classes for each text or pair, perhaps none: one yes or no for each class.

The loss of an example is the mean over the K labels of the binary cross-entropy of their logits. So
it is one number an example, and the mean over a batch is what transformers computes for the same
`problem_type`.

A label is predicted where its probability (sigmoid of its logit) is above a threshold, which is one
number for the whole task. A given one is used as it is. Otherwise the validation split is divided
into folds, and the answers of a fold use the threshold with the highest micro F1 on all other
folds. So no example helps to choose what decides about itself, and no training example, whose
probabilities are too sure, decides at all. The model keeps the threshold that is best on the whole
validation split, for other files.

Letters: N examples, B of a batch, K labels.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics import glue, label_sets
from clozelab.metrics.metric import NO_UNIT, Metric
from clozelab.models.config_keys import Provenance
from clozelab.readers.cells import SHOWN_CHARACTERS, cell_text, is_missing
from clozelab.tasks.baselines import BAG, Scores, guess_label_sets, score_each_set, text_pairs
from clozelab.tasks.batches import Batch
from clozelab.tasks.class_report import ClassReport
from clozelab.tasks.classes import KnownClasses
from clozelab.tasks.labels import WRITTEN_LIST, LabelColumn, warn_of_lacking_classes
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.target import Files, Outcome, saved_threshold
from clozelab.tasks.unit import Split
from clozelab.text.formatting import shortened
from clozelab.text.plain import JsonObject, PlainDict

FREQUENT_SET = "most frequent label set"
PREVALENCE = "prevalence of each label"
DEFAULT_THRESHOLD = 0.5
NUM_FOLDS = 5  # of the validation split, where the threshold is chosen on it
THRESHOLD = Metric("threshold", NO_UNIT, higher_is_better=None)
Labels = tuple[str, ...]
Floats = NDArray[np.floating]


class SeveralClassesTarget(KnownClasses):
    """Any number of classes; encoded they are float32 [N, K] of 0 and 1.

    A cell has its labels between separators, or is a list. An empty one has no label. A label that
    holds the separator stands between quotation marks, as in a csv.

    Args:
        separator: one character.
        labels: the classes in the order of their indices; None: the sorted labels of the training
            file.
        threshold: the probability above which a label is predicted; None: chosen on folds of the
            validation split.
    """

    problem_type = "multi_label_classification"
    one_label_each = False
    metrics = (
        *(scorer.metric for scorer in label_sets.SCORERS.values()),
        label_sets.MEAN_AVERAGE_PRECISION.metric,
        THRESHOLD,
    )

    def __init__(
        self,
        *,
        separator: str = ",",
        labels: Sequence[object] | None = None,
        threshold: float | None = None,
    ) -> None:
        if len(separator) != 1 or separator in '"\r\n':
            raise ValueError(
                f"task.data.separator={separator!r}: give one character that is no quotation mark"
            )
        if threshold is not None and not 0 < threshold < 1:
            raise ValueError(f"task.module.threshold={threshold}: give a number between 0 and 1")
        self.separator = separator
        self.threshold = threshold
        super().__init__(labels=labels)

    def reading(self) -> PlainDict:
        return {"separator": self.separator}

    # Labels

    def read_cell(self, column: LabelColumn, line: int, cell: object) -> Labels:
        try:
            written_labels = self._parts(cell)
        except ValueError as problem:
            advice = f"write the labels with {self.separator!r} between them, or a list"
            column.note_problem(line, str(problem), advice)
            return ()
        labels = tuple(column.add(line, written) for written in written_labels)
        repeated = [label for label, count in Counter(labels).items() if count > 1]
        if repeated:
            advice = "give each label once"
            column.note_problem(line, f"{repeated[0]!r} stands twice in a cell", advice)
        return labels

    def _parts(self, cell: object) -> list[Any]:
        """The labels of a cell as they stand there; ValueError where it cannot be taken apart."""
        if isinstance(cell, list | tuple):
            return list(cell)
        if is_missing(cell):
            return []
        try:
            text = cell_text(cell)
        except ValueError as problem:
            raise ValueError(f"is {problem}") from None
        beginning = shortened(text, SHOWN_CHARACTERS)
        if WRITTEN_LIST.fullmatch(text):
            raise ValueError(f"is a list or an object written as text ({beginning})")
        if not text.strip():
            return []
        reader = csv.reader(
            [text],
            delimiter=self.separator,
            skipinitialspace=self.separator != " ",
            strict=True,
        )
        try:
            (parts,) = reader
        except (csv.Error, ValueError) as error:
            raise ValueError(f"has quotation marks or line ends amiss ({beginning})") from error
        return [part.strip() for part in parts]

    def _written(self, labels: Iterable[str]) -> str:
        """The text of a cell with these labels."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="").writerow(labels)
        return text.getvalue()

    def classes_of(self, labels: Sequence[Labels]) -> Sequence[str]:
        return self.preview_classes(self.shown_labels(labels))

    def encode(self, labels: Sequence[Labels]) -> np.ndarray:
        return label_sets.matrix_of(labels, self.classes).astype(np.float32)

    def shown_labels(self, labels: Sequence[Labels]) -> Sequence[str]:
        """All labels of all examples, one behind the other."""
        return list(chain.from_iterable(labels))

    def strata(self, labels: Sequence[Labels]) -> NDArray[np.int64]:
        """The rarest label of each example, so that a held-out part leaves some of each behind."""
        by_rarity = sorted(Counter(self.shown_labels(labels)).items(), key=lambda item: item[::-1])
        # of equally rare ones the first by name
        place_of = {label: place for place, (label, _) in enumerate(by_rarity)}
        strata = []
        for of_example in labels:
            places = [place_of[label] for label in of_example]
            strata.append(min(places, default=len(place_of)))
        return np.array(strata, dtype=np.int64)

    def check_training(self, path: Path, split: Split, column_key: str) -> None:
        if not split.labels.any():
            raise ValueError(
                f"{path}: no row has a label, so there is nothing to learn; is {column_key} the"
                " right one?"
            )
        if len(self.classes) < 2:
            raise ValueError(
                f"{path}: there is one label, {self.classes[0]!r}: a class for each text"
                " (format/labelled) separates rows with it from rows without"
            )
        # A fine-tuned model brings its classes, and the file may lack some of those.
        if not self.is_of_model:
            present = np.flatnonzero(split.labels.any(axis=0))
            warn_of_lacking_classes(path, present, self.classes)

    def check_validation(self, split: Split) -> None:
        for name_of_set, examples in split.validation_sets.items():
            if not examples.labels.any():
                raise ValueError(
                    f"no row of the {name_of_set} has a label, so nothing can be scored"
                )

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of logits [B, K]: the sum over the examples of the mean over the labels."""
        losses = F.binary_cross_entropy_with_logits(logits, batch["labels"], reduction="none")
        return losses.mean(dim=1).sum()

    def restore_config(self, saved_config: Provenance) -> PlainDict:
        """Takes the model's own threshold where none is given, or else DEFAULT_THRESHOLD."""
        if self.threshold is not None:
            source = "given by module.threshold"
            return {"label_threshold": {"value": self.threshold, "source": source}}
        threshold = saved_threshold(saved_config, DEFAULT_THRESHOLD)
        self.threshold = threshold["value"]
        return {"label_threshold": threshold}

    def model_config_to_save(self, scores: Mapping[str, float]) -> PlainDict:
        return {"answers": {"threshold": scores[THRESHOLD.name]}}

    # Scores, and what is written down

    def evaluate(self, outputs: np.ndarray, split: Split) -> Outcome:
        probabilities = probabilities_of(outputs)
        expected = split.labels.astype(bool)
        predicted, threshold = self._predict(probabilities, expected)
        predicted_sets = self._sets(predicted)
        records: list[PlainDict] = []
        for number, labels in enumerate(self._sets(expected)):
            shares = [round(float(share), 5) for share in probabilities[number]]
            records.append(
                {
                    "id": str(split.ids[number]),
                    "prediction": predicted_sets[number],
                    "label": labels,
                    "probabilities": dict(zip(self.classes, shares, strict=True)),
                }
            )
        scores = score_sets(predicted, probabilities, expected) | {THRESHOLD.name: threshold}
        # equal sets of labels are one class
        both = np.concatenate([predicted, expected])
        set_numbers = np.unique(both, axis=0, return_inverse=True)[1].reshape(2, -1)
        return Outcome(scores, records, is_collapsed=glue.is_collapsed(*set_numbers))

    def _predict(
        self, probabilities: Floats, expected: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], float]:
        """Predictions [N, K], and the threshold for other files."""
        if self.threshold is not None:
            return probabilities > self.threshold, self.threshold
        # one threshold for all labels: as if there were one label, of N * K examples
        flat = probabilities.reshape(-1, 1)
        flat_expected = expected.reshape(-1, 1)
        threshold = float(label_sets.best_thresholds(flat, flat_expected)[0])
        num_examples, num_labels = expected.shape
        if num_examples < 2:
            return probabilities > threshold, threshold
        folds = np.repeat(np.arange(num_examples) % NUM_FOLDS, num_labels)
        predicted = label_sets.predict_by_folds(flat, flat_expected, folds)
        return predicted.reshape(expected.shape), threshold

    def _sets(self, matrix: NDArray[np.bool_]) -> list[list[str]]:
        """The names of each row's labels."""
        sets = []
        for row in matrix:
            sets.append([self.classes[place] for place in np.flatnonzero(row).tolist()])
        return sets

    def majority_score(self, name: str, split: Split) -> float | None:
        if name not in label_sets.SCORERS:
            return None
        expected = split.labels.astype(bool)
        return label_sets.SCORERS[name](_most_frequent(expected, len(expected)), expected)

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """The set that is most frequent, each label by its share, and a regression a label."""
        labels = self.encode(train.known_labels)
        rows = chain.from_iterable(examples.texts for examples in validation.values())
        guesses = guess_label_sets(
            text_pairs(train.texts), labels.astype(np.int64), text_pairs(rows)
        )
        # a rule predicts what it gives more than half of the probability
        constants = {
            FREQUENT_SET: _most_frequent(labels, len(guesses)).astype(np.float64),
            PREVALENCE: np.tile(labels.mean(axis=0, dtype=np.float64), (len(guesses), 1)),
        }
        expected = {}
        for name, examples in validation.items():
            expected[name] = self.encode(examples.labels or []).astype(bool)
        scores = {}
        for rule, probabilities in (constants | {BAG: guesses}).items():
            scores[rule] = score_each_set(probabilities, expected, _score_guesses)
        return scores

    def prediction_files(
        self, name: str, split: Split, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """An id and the cell with the labels on each line."""
        threshold = self.threshold
        if threshold is None:
            threshold = scores.get(THRESHOLD.name, DEFAULT_THRESHOLD)
        sets = self._sets(probabilities_of(outputs) > threshold)
        return {f"{name}.tsv": glue.prediction_lines(split.ids, list(map(self._written, sets)))}

    def class_report(self, records: Sequence[JsonObject]) -> ClassReport:
        predicted = label_sets.matrix_of([record["prediction"] for record in records], self.classes)
        expected = label_sets.matrix_of([record["label"] for record in records], self.classes)
        return ClassReport(self.classes, label_sets.scores_of_labels(predicted, expected))


def probabilities_of(logits: np.ndarray) -> NDArray[np.float64]:
    """[N, K]: each label's own, as a model's answers give them.

    In float64, as thresholds are: one just below a probability would be equal to it in float32.
    """
    return torch.from_numpy(logits).float().sigmoid().double().numpy()


def _score_guesses(probabilities: Floats, expected: NDArray[np.bool_]) -> dict[str, float]:
    return score_sets(probabilities > DEFAULT_THRESHOLD, probabilities, expected)


def score_sets(
    predicted: NDArray[np.bool_], probabilities: Floats, expected: NDArray[np.bool_]
) -> dict[str, float]:
    """Scores of sets [N, K] and of the probabilities behind them, shares of one."""
    scores = {}
    for name, scorer in label_sets.SCORERS.items():
        scores[name] = scorer(predicted, expected)
    ranking = label_sets.MEAN_AVERAGE_PRECISION
    scores[ranking.metric.name] = ranking(probabilities, expected)
    return scores


def _most_frequent(labels: np.ndarray, count: int) -> np.ndarray:
    """[count, K]: the most frequent row of `labels`, again and again."""
    sets, counts = np.unique(labels, axis=0, return_counts=True)
    return np.tile(sets[counts.argmax()], (count, 1))
