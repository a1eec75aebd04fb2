"""A number for each text or pair: squared error, correlations, a bag of words.

Letters: N examples, B of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics import glue
from clozelab.tasks.baselines import BAG, Scores, guess_numbers, score_each_set, text_pairs
from clozelab.tasks.batches import Batch
from clozelab.tasks.labels import NUMBERS
from clozelab.tasks.splitting import quantiles_of
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.target import Files, Outcome, Target
from clozelab.tasks.unit import Split

log = logging.getLogger(__name__)
BASELINE_METRICS = ("spearman", "pearson")  # which one number has not
CONSTANT_RANGE = 1e-3  # of the labels' range: predicted numbers that differ by less are one answer


class NumberTarget(Target):
    """A number, which a model's one output is.

    Args:
        metrics: names of glue.OF_NUMBERS.
        number_range: the least and the largest number that there can be; what a submission's
            predictions are cut to.
    """

    units = ("TextUnit",)
    problem_type = "regression"
    predicts_numbers = True
    expects = NUMBERS

    def __init__(
        self, *, metrics: Sequence[str] = ("spearman",), number_range: Sequence[float] | None = None
    ) -> None:
        glue.check_fit(metrics, glue.OF_NUMBERS, "a number")
        self.metrics = [glue.SCORERS[name].metric for name in metrics]
        self.number_range = number_range

    # Labels

    def encode(self, labels: Sequence[str]) -> np.ndarray:
        # in the precision of the model's outputs
        return np.array([float(label) for label in labels], dtype=np.float32)

    def strata(self, labels: Sequence[str]) -> NDArray[np.int64]:
        return quantiles_of(np.array(labels, dtype=np.float64))

    def check_training(self, path: Path, split: Split, column_key: str) -> None:
        if len(split) > 1 and np.ptp(split.labels) == 0:
            log.warning("%s: all rows have one label, %g", path, split.labels[0])

    def check_validation(self, split: Split) -> None:
        names = [metric.name for metric in self.metrics if metric.name in BASELINE_METRICS]
        for name_of_set, examples in split.validation_sets.items():
            if names and np.ptp(examples.labels) == 0:
                log.warning(
                    "all rows of the %s have the number %g: no prediction makes %s other than 0",
                    name_of_set,
                    examples.labels[0],
                    " and ".join(names),
                )

    def outside(self, labels: np.ndarray) -> np.ndarray | None:
        if self.number_range is None:
            return None
        least, largest = self.number_range
        return (labels < least) | (labels > largest)

    def refuse_outside(self, label: str) -> str:
        least, largest = self.number_range or (-np.inf, np.inf)
        return (
            f"label {label} lies outside of {least:g} to {largest:g} (task.module.number_range):"
            " mend it, or widen the range"
        )

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(logits[:, 0], batch["labels"], reduction="sum")

    # Scores, and what is written down

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """[N, 1] -> the numbers [N] on the scale of the labels."""
        return outputs[:, 0]

    def evaluate(self, outputs: np.ndarray, split: Split) -> Outcome:
        predicted = self.predict(outputs)
        records = []
        for example_id, prediction, label in zip(split.ids, predicted, split.labels, strict=True):
            records.append(
                {
                    "id": str(example_id),
                    "prediction": float(number_text(prediction)),
                    "label": float(label),
                }
            )
        scores = {}
        for metric in self.metrics:
            scores[metric.name] = glue.SCORERS[metric.name](predicted, split.labels)
        return Outcome(scores, records, are_one_number(predicted, split.labels))

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """Bag of words."""
        # All sets are guessed at once, behind each other: the words are learnt once.
        rows = chain.from_iterable(examples.texts for examples in validation.values())
        guesses = guess_numbers(
            text_pairs(train.texts), exact_numbers(train.known_labels), text_pairs(rows)
        )
        labels = {
            name: exact_numbers(examples.known_labels) for name, examples in validation.items()
        }
        # Guesses are on the scale of the labels, so an error can be told as well.
        names = dict.fromkeys([*BASELINE_METRICS, *(metric.name for metric in self.metrics)])
        return {BAG: score_each_set(guesses, labels, partial(_scores, names))}

    def prediction_files(
        self,
        name: str,
        split: Split,
        outputs: np.ndarray,
        scores: Mapping[str, float],
    ) -> Files:
        """A file of a GLUE submission."""
        least, largest = self.number_range or (-np.inf, np.inf)
        answers = list(map(number_text, np.clip(self.predict(outputs), least, largest)))
        return {f"{name}.tsv": glue.prediction_lines(split.ids, answers)}


def number_text(value: float) -> str:
    """A predicted number of any scale, in the digits that fp32 holds."""
    return f"{value:.7g}"


def exact_numbers(labels: Sequence[str]) -> NDArray[np.float64]:
    """Labels as written [N], for rules that a file alone is enough for."""
    return np.array([float(label) for label in labels])


def correlations(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """What a baseline of numbers on any scale is scored by."""
    return _scores(BASELINE_METRICS, predictions, labels)


def _scores(names: Iterable[str], predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of these names, of numbers [N]."""
    return {name: glue.SCORERS[name](predictions, labels) for name in names}


def are_one_number(predictions: np.ndarray, labels: np.ndarray) -> bool:
    """Whether all predictions are the same, on the scale of the labels."""
    return bool(np.ptp(predictions) <= CONSTANT_RANGE * np.ptp(labels))
