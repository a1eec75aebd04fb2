"""Texts that belong together, without labels; pairs with a score to validate.

Each is told from all other texts of its batch (van den Oord et al. 2018): every other example's
text is a negative, as in Sentence-BERT's multiple negatives ranking loss (Henderson et al. 2017),
and so are all texts of a third column; copies are not (`copies`). Where a text belongs to itself,
dropout makes two vectors of it (SimCSE, Gao et al. 2021). With several devices the negatives are
those of all of them.

Letters: B examples of a batch, K texts of each, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.nn.functional import all_gather
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.tasks.baselines import Scores, words_of
from clozelab.tasks.batches import Batch
from clozelab.tasks.classes import configured_labels
from clozelab.tasks.numbers import correlations, exact_numbers
from clozelab.tasks.similarity import CosineTarget
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.unit import Split, Unit

COMMON = "share of common words"


class ContrastTarget(CosineTarget):
    """Cross-entropy of which text of the batch belongs to each; validation is of cosines.

    Args:
        temperature: cosines are divided by it.
        dropout: of the encoder while it trains; None: its own.
        numeric_labels, labels: of the validation file; they have to be numbers.
        class_weights: None: there are no classes.
    """

    learns_from_labels = False
    compares_examples = True

    def __init__(
        self,
        *,
        temperature: float,
        dropout: float | None,
        numeric_labels: bool,
        metrics: Sequence[str],
        number_range: Sequence[float] | None,
        labels: Sequence[object] | None,
        positive_label: object,
        class_weights: object = None,
    ) -> None:
        super().__init__(metrics=metrics, number_range=number_range)
        check_temperature(temperature)
        if not 0 <= (dropout or 0.0) < 1:
            raise ValueError(f"dropout={dropout}: give a number from 0 to below 1")
        if not numeric_labels or class_weights is not None:
            raise ValueError(
                "texts that belong together are validated by numbers: take a task with"
                " numeric_labels and without class_weights"
            )
        self.configured_classes = configured_labels(labels)
        self.temperature = temperature
        self.dropout = dropout

    def check_encoder(self, config: EncoderConfig, unit: Unit) -> None:
        """ValueError where a text belongs to itself, and nothing makes two vectors of it."""
        dropout = self.dropout
        if dropout is None:
            dropout = max(config.hidden_dropout_prob, config.attention_probs_dropout_prob)
        if unit.trains_text_with_itself and dropout == 0.0:
            raise ValueError(
                "train_columns names one column twice, and the encoder trains without dropout: a"
                " text's two vectors would be one and the same; say task.module.dropout=0.1"
            )

    def check_training(self, path: Path, split: Split, column_key: str) -> None:
        """Nothing: training has no numbers."""

    def outside(self, labels: np.ndarray) -> None:
        """None: training has no numbers, and `check_validation` looks at the others."""
        return

    def prepare_encoder(self, encoder: Encoder) -> None:
        if self.dropout is not None:
            encoder.set_dropout(self.dropout)

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """In training [B, B'], or [B, 2 B'] with negatives of one's own; else the cosine [B, 1].

        B' examples are those of all ranks. Of texts that are no negatives they are -inf.
        """
        if not training:
            return super().logits(head, states, batch, training=training)
        own = TextStates(states, batch["text_numbers"])
        return batch_logits(own, self.temperature, texts_of_all_ranks(own, batch))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return loss_of_positives(logits[None], batch)

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """The share of a pair's words that both texts have, as a score.

        No rule can be learnt from the training file, which has no scores.
        """
        examples = validation[""]
        shares = []
        for texts in examples.texts:
            first, second = (set(words_of(text)) for text in texts)
            shares.append(len(first & second) / max(1, len(first | second)))
        return {COMMON: correlations(np.array(shares), exact_numbers(examples.known_labels))}


def check_temperature(temperature: float) -> None:
    """ValueError for one that cosines cannot be divided by."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: give a number above 0")


@dataclass(frozen=True)
class TextStates:
    """The texts of B examples: an anchor, its positive and perhaps negatives, K texts each."""

    states: Tensor  # [B, K, H]
    numbers: Tensor  # int64 [B, K]; the same number is the same text, -1 is no text

    def cut(self, size: int) -> TextStates:
        """The same texts, of whose states the first `size` numbers are kept."""
        return TextStates(self.states[:, :, :size], self.numbers)


def batch_logits(own: TextStates, temperature: float, all_texts: TextStates) -> Tensor:
    """[B, (K - 1) B']: the cosine of each anchor with every other text, by the temperature.

    Of texts that are no negatives they are -inf. `all_texts` are those of all ranks [B', K, H].
    """
    anchors = F.normalize(own.states[:, 0], dim=1)
    # All texts that belong to one, then all that do not.
    candidates = F.normalize(all_texts.states[:, 1:], dim=2).transpose(0, 1).flatten(0, 1)
    logits = anchors @ candidates.T / temperature
    return logits.masked_fill(copies(own.numbers, all_texts.numbers), -torch.inf)


def positive_places(num_examples: int, num_rows: int) -> Tensor:
    """[B]: where each example's own positive stands among the candidates of all ranks.

    Each rank has as many of the `num_rows` rows.
    """
    first = 0
    if num_rows > num_examples:
        first = dist.get_rank() * (num_rows // dist.get_world_size())
    return torch.arange(first, first + num_examples)


def texts_of_all_ranks(own: TextStates, batch: Batch) -> TextStates:
    """The texts of every rank, one behind the other; gradients go back to where they come from.

    A rank may have fewer examples than another, or by `local_weight` none: its places are no texts.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return own
    numbers = own.numbers if batch["local_weight"] else torch.full_like(own.numbers, -1)
    most = torch.tensor(len(numbers), device=numbers.device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    lacking = int(most) - len(numbers)
    padded = F.pad(own.states, (0, 0, 0, 0, 0, lacking))
    padded_numbers = F.pad(numbers, (0, 0, 0, lacking), value=-1)
    return TextStates(torch.cat(all_gather(padded)), torch.cat(all_gather(padded_numbers)))


def loss_of_positives(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of each example's own positive, summed; `logits` [sizes, B, candidates]."""
    num_sizes, num_examples, num_candidates = logits.shape
    # Of all ranks: as many rows as there are positives among the candidates.
    num_rows = num_candidates // (batch["text_numbers"].shape[1] - 1)
    positives = positive_places(num_examples, num_rows).to(logits.device)
    return F.cross_entropy(logits.flatten(0, 1), positives.repeat(num_sizes), reduction="sum")


def copies(texts: Tensor, all_texts: Tensor) -> Tensor:
    """Which candidates are no negatives of a text, as they stand for what belongs to it.

    They are the same text as the anchor or as its positive, or the positive of the same anchor. A
    hard negative of the same anchor remains one.

    Args:
        texts: int64 [B, K], numbers of the anchors, the positives and perhaps the hard negatives;
            the same number is the same text.
        all_texts: the same of all ranks [B', K], -1 where there is no text.

    Returns:
        bool [B, (K - 1) B'], False for each anchor's own positive.
    """
    anchors = texts[:, :1]
    positives = texts[:, 1:2]
    candidates = all_texts[:, 1:].T.flatten()
    is_copy = (candidates == anchors) | (candidates == positives) | (candidates < 0)
    is_copy[:, : len(all_texts)] |= anchors == all_texts[:, :1].T
    own = positive_places(len(texts), len(all_texts)).to(texts.device)
    return is_copy.scatter_(1, own[:, None], False)
