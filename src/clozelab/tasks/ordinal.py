"""One of some classes with an order (bad, fair, good) for each text or pair.

Of K classes there are K - 1 outputs, each of which says whether the class is above one of the
others (Niu et al. 2016, "Ordinal Regression with Multiple Output CNN for Age Estimation", after Li
and Lin 2007). With rank y in 0 .. K - 1 and output f_k,

    P(y > k) = sigmoid(f_k)
    loss = -1 / (K - 1) * sum over k of ([y > k] log P(y > k) + [y <= k] log(1 - P(y > k)))

The predicted rank is the number of outputs above 0. So a neighbour costs less than a far class.

In a model's folder each output is called "above CLASS" and is a label by itself
(multi_label_classification): so transformers gives its probability, and nobody takes it for that of
a class. The classes in their order stand under `clozelab`.

Letters: N examples, B of a batch, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics import glue, ordinal
from clozelab.tasks.baselines import Scores, score_each_set
from clozelab.tasks.batches import Batch
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.tables import TextExamples
from clozelab.text.plain import PlainDict

FREQUENT = "most frequent class"
MEDIAN = "median class"


class OrdinalTarget(ClassTarget):
    """One of some classes in their order; encoded it is a rank [N], from 0.

    Args:
        labels: three classes or more, the lowest first.
    """

    problem_type = "multi_label_classification"
    scorers = ordinal.SCORERS | {"accuracy": glue.OF_CLASSES["accuracy"]}

    def __init__(self, *, labels: Sequence[object] | None = None) -> None:
        if labels is None or len(labels) < 3:
            raise ValueError(
                f"task.data.labels={labels}: list three classes or more in their order, the lowest"
                " first (no file has the order; two classes are a task of format/labelled)"
            )
        super().__init__(labels=labels)
        self.metrics = [scorer.metric for scorer in self.scorers.values()]

    def of_model(self, classes: Sequence[str]) -> Self:
        target = super().of_model(classes)
        target.configured_classes = list(classes)  # in another order they are other numbers
        return target

    # The model

    @property
    def num_outputs(self) -> int:
        return len(self.classes) - 1

    @property
    def output_names(self) -> Sequence[str]:
        return [f"above {name}" for name in self.classes[:-1]]

    def model_config_to_save(self, scores: Mapping[str, float]) -> PlainDict:
        return {"answers": {"ranks": list(self.classes)}}

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of logits [B, K - 1]: the sum over the examples of the mean over the outputs."""
        ranks = torch.arange(logits.shape[1], device=logits.device)
        is_above = (batch["labels"][:, None] > ranks).to(logits.dtype)
        losses = F.binary_cross_entropy_with_logits(logits, is_above, reduction="none")
        return losses.mean(dim=1).sum()

    # Scores, and what is written down

    def predict(self, outputs: np.ndarray) -> NDArray[np.int64]:
        return reached_ranks(outputs)

    def probability_of(self, logits: Sequence[float]) -> float:
        outputs = np.array([logits])
        return float(rank_probabilities(outputs)[0, reached_ranks(outputs)[0]])

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """The most frequent class, the median one, and a bag of words that knows no order."""
        ranks = self.encode(train.known_labels)
        # of an even number the lower of both in the middle
        median = int(np.sort(ranks)[(len(ranks) - 1) // 2])
        frequent = int(np.bincount(ranks).argmax())
        metrics = [scorer.metric for scorer in self.scorers.values()]
        labels = {name: self.encode(examples.known_labels) for name, examples in validation.items()}
        count = sum(len(of_set) for of_set in labels.values())
        scores = {}
        for rule, rank in ((MEDIAN, median), (FREQUENT, frequent)):
            guesses = np.full(count, rank)
            scores[rule] = score_each_set(guesses, labels, partial(self.score, metrics))
        return scores | super().baselines(train, validation)


def reached_ranks(outputs: np.ndarray) -> NDArray[np.int64]:
    """[N, K - 1] -> how many outputs say that the class is above theirs: [N]."""
    return (outputs > 0).sum(axis=1)


def rank_probabilities(outputs: np.ndarray) -> NDArray[np.float64]:
    """[N, K - 1] -> a probability of each class [N, K].

    The outputs are not bound to fall. In falling order they are the chances to be above each class,
    and as many as before are above a half.
    """
    above = torch.from_numpy(outputs).double().sigmoid().numpy()
    falling = -np.sort(-above, axis=1)
    edge = np.ones((len(outputs), 1))
    chances = np.concatenate([edge, falling, np.zeros_like(edge)], axis=1)
    return -np.diff(chances, axis=1)
