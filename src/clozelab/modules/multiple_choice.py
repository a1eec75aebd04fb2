"""One of a few endings: every choice is a sequence of its own, scored by one vector, softmax over the choices.

Unusual: the choices of an example are neighbours in the token stream, each as long as it is; none is padded to another.

Letters: B examples, K choices of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from clozelab.models.encoder import Encoder
from clozelab.models.heads import SequenceClassificationHead
from clozelab.modules.finetuning import Batch, Part, in_order
from clozelab.modules.sequence_classification import SequenceClassification


class MultipleChoice(SequenceClassification):
    """SWAG: classification whose classes are the choices. Arguments as there, `validation` with K label names."""

    architecture: ClassVar[str | None] = "BertForMultipleChoice"

    set_by_class: ClassVar[tuple[str, ...]] = (*SequenceClassification.set_by_class, "number_range")

    def __init__(self, *, encoder: Encoder, **classification: Any) -> None:
        super().__init__(encoder=encoder, number_range=None, **classification)
        self.classifier = SequenceClassificationHead(encoder.config, 1, self.head_input_size)

    def logits(self, batch: Batch) -> Tensor:
        """[B, K], from the scores [B * K, 1] of the sequences."""
        return super().logits(batch).view(-1, len(self.validation.label_names))

    def prediction_files(self, name: str, split: Any, parts: Sequence[Part]) -> dict[str, Iterable[str]]:
        """The chosen ending of each row of the file, and the probability of every one."""
        logits = torch.from_numpy(in_order(parts, len(split)))
        names = [f"ending{choice}" for choice in split.label_names]
        rows = zip(split.ids, logits.argmax(1).tolist(), logits.softmax(1).tolist(), strict=True)
        lines = (",".join([str(i), str(best), *(f"{p:.6f}" for p in ps)]) for i, best, ps in rows)
        return {f"{name}.csv": [",".join(["index", "label", *names]), *lines]}
