"""Which of a few endings is right (SWAG): each has a score, and the softmax is over an example's.

Letters: N examples, B of a batch, K choices of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clozelab.metrics import glue
from clozelab.tasks.baselines import BAG, Scores, guess_choices
from clozelab.tasks.batches import Batch, apply_head_fp32
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.labels import warn_of_lacking_classes
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.target import Files
from clozelab.tasks.unit import Split
from clozelab.text.plain import PlainDict


class ChoiceTarget(ClassTarget):
    """The number of the right one of `ending_columns`; `metrics` as ClassTarget has them."""

    units = ("ChoiceUnit",)

    # The first is drawn and dropped: the second's weights are what results are known for.
    head_kinds = ("classification", "choices")

    def __init__(self, *, ending_columns: Sequence[str], metrics: Sequence[str]) -> None:
        endings = [str(number) for number in range(len(ending_columns))]
        super().__init__(labels=endings, metrics=metrics)

    def of_model(self, classes: Sequence[str]) -> ChoiceTarget:
        return self

    def writes_names(self) -> bool:
        return False  # numbers of choices

    def check_training(self, path: Path, split: Split, column_key: str) -> None:
        warn_of_lacking_classes(path, split.labels, self.classes)

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """[B, K], from the states [B * K, H] of the sequences."""
        return apply_head_fp32(head, states).view(-1, len(self.classes))

    def baselines(self, train: TextExamples, validation: Mapping[str, TextExamples]) -> Scores:
        """Bag of words: the ending that looks most like a right one."""
        examples = validation[""]
        labels = self.encode(train.known_labels)
        guesses = guess_choices(_choices(train), labels, _choices(examples))
        return {
            BAG: self.score(
                [glue.SCORERS["accuracy"].metric], guesses, self.encode(examples.known_labels)
            )
        }

    def class_report(self, records: Sequence[PlainDict]) -> None:
        """None: an ending's place says nothing."""
        return

    def prediction_files(
        self,
        name: str,
        split: Split,
        outputs: np.ndarray,
        scores: Mapping[str, float],
    ) -> Files:
        """The chosen ending of each row of the file, and the probability of every one."""
        logits = torch.from_numpy(outputs)
        best_choices = logits.argmax(1).tolist()
        probabilities = logits.softmax(1).tolist()
        endings = [f"ending{choice}" for choice in range(len(self.classes))]
        lines = [",".join(["index", "label", *endings])]
        for example_id, best, shares in zip(split.ids, best_choices, probabilities, strict=True):
            columns = [f"{share:.6f}" for share in shares]
            lines.append(",".join([str(example_id), str(best), *columns]))
        return {f"{name}.csv": lines}


def _choices(examples: TextExamples) -> list[tuple[str, list[str]]]:
    """(context, endings) of each example."""
    return [(context, endings) for context, *endings in examples.texts]
