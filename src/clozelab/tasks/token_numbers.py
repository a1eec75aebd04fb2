"""A number for each word: squared error, the mean absolute error, a rank correlation.

A word may have none: its cell holds `missing`, it is NaN here, and neither loss nor scores see it.

Letters: U scored words of a batch, W words of a split.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics.glue import OF_NUMBERS
from clozelab.readers.cells import cell_text
from clozelab.tasks.baselines import Scores
from clozelab.tasks.batches import Batch
from clozelab.tasks.labels import NUMBERS
from clozelab.tasks.numbers import are_one_number, number_text
from clozelab.tasks.target import Files, Outcome, Target
from clozelab.tasks.words import Sentences, WordSplit
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
SCORES = ("mae", "spearman")
MEAN = "mean"
WORD_MEANS = "mean of each word"


class TokenNumberTarget(Target):
    """A number for each word; encoded it is float32 [W].

    Args:
        missing: what a cell of a word without a number holds; -1 is the text "-1".
    """

    units = ("WordUnit", "FeatureUnit")
    head_kinds = ("tags",)
    problem_type = "regression"
    predicts_numbers = True
    expects = NUMBERS
    metrics = tuple(OF_NUMBERS[name].metric for name in SCORES)

    def __init__(self, *, missing: str = "_") -> None:
        self.missing = cell_text(missing)
        self.listed = (self.missing,)

    def reading(self) -> PlainDict:
        """The cell of a word without a number, but for the usual one."""
        return {} if self.missing == "_" else {"missing": self.missing}

    # Labels

    def encode(self, labels: Sequence[str]) -> np.ndarray:
        numbers = [np.nan if label == self.missing else float(label) for label in labels]
        return np.array(numbers, dtype=np.float32)

    def shown_labels(self, labels: Sequence[str]) -> Sequence[str]:
        return [label for label in labels if label != self.missing]

    def check_training(self, path: Path, split: WordSplit, column_key: str) -> None:
        numbers = split.labels[~np.isnan(split.labels)]
        if not len(numbers):
            raise ValueError(
                f"{path}: no word has a number, so there is nothing to learn; is {column_key} the"
                " right one?"
            )
        if np.ptp(numbers) == 0:
            log.warning("%s: all words have one number, %g", path, numbers[0])

    def check_validation(self, split: WordSplit) -> None:
        if np.isnan(split.labels).all():
            raise ValueError(f"{split.path}: no word has a number, so nothing can be scored")

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of logits [U, 1], over the words that have a number."""
        labels = batch["labels"]
        is_known = ~torch.isnan(labels)
        return F.mse_loss(logits[:, 0][is_known], labels[is_known], reduction="sum")

    def kept(self, logits: Tensor) -> Tensor:
        """The numbers [U]."""
        return logits[:, 0]

    # Scores, and what is written down

    def evaluate(self, outputs: np.ndarray, split: WordSplit) -> Outcome:
        is_known = ~np.isnan(split.labels)
        predicted = outputs[is_known]
        labels = split.labels[is_known]
        # The records have every word, and null where a word has no number.
        predictions = split.by_sentence([float(number_text(number)) for number in outputs])
        golds = split.by_sentence(list(map(_shown, split.labels)))
        records = split.records(predictions, golds)
        return Outcome(self._score(predicted, labels), records, are_one_number(predicted, labels))

    def baselines(self, train: Sentences, validation: Mapping[str, Sentences]) -> Scores:
        """The mean of all training words, and each word's own mean, whatever its case.

        A word that training does not have gets the mean of all.
        """
        by_word = defaultdict(list)
        for word, number in self._known_words(train):
            by_word[word].append(number)
        mean = float(np.mean(list(chain.from_iterable(by_word.values()))))
        pairs = self._known_words(validation[""])
        labels = np.array([number for _, number in pairs])
        own = np.array([np.mean(by_word.get(word, [mean])) for word, _ in pairs])
        return {
            MEAN: self._score(np.full(len(labels), mean), labels),
            WORD_MEANS: self._score(own, labels),
        }

    def _score(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        names = [metric.name for metric in self.metrics]
        return {name: OF_NUMBERS[name](predictions, labels) for name in names}

    def _known_words(self, examples: Sentences) -> list[tuple[str, float]]:
        """(word in lower case, number) of each word that has one."""
        pairs = []
        for words, labels in zip(examples.rows, examples.known_labels, strict=True):
            for word, label in zip(words, labels, strict=True):
                if label != self.missing:
                    pairs.append((word.lower(), float(label)))
        return pairs

    def prediction_files(
        self, name: str, split: WordSplit, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """The test file itself with a column of numbers."""
        return split.with_column(name, list(map(number_text, outputs)))


def _shown(label: float) -> float | None:
    """A number for JSON, which has no NaN."""
    if np.isnan(label):
        return None
    return float(label)
