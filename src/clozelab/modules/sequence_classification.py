"""One class, or one number, for a sentence or a pair: the pooled token, or a BiLSTM's last states, and a linear layer.

Unusual: a causal encoder pools its last real token (its first has seen nothing else); the encoder's configuration
    decides.
With `head: bilstm` the pooler is not used: the forward direction's state at the last token and the backward direction's
at the first have both read the whole sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.data.readers.labelled import LabelledRows
from clozelab.metrics import glue
from clozelab.models.encoder import Encoder
from clozelab.models.heads import SequenceClassificationHead
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning


class SequenceClassification(FineTuning):
    """Classification of the GLUE kind; regression (squared error) where the data has no classes.

    Args:
        encoder: with the weights to start from.
        validation: the validation split, for its labels, names and ids; its extra splits are scored as
            "validation/NAME_SCORE".
        number_range: of regression: predictions for a submission are cut to it.
        metrics: names of scores in metrics/glue.py.
        metric: the one of them that selects, as "validation/NAME".
        training: what FineTuning takes beside these.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        validation: LabelledRows,
        metrics: Sequence[str],
        metric: str,
        number_range: Sequence[float] | None,
        **training: Any,
    ) -> None:
        data = {"numeric_labels": validation.is_regression, "extra_validation_files": validation.extra}
        keys = self.score_keys({"metrics": metrics}, data)
        super().__init__(encoder=encoder, metric=metric, score_keys=keys, **training)
        self.metrics, self.validation, self.number_range = list(metrics), validation, number_range or (-np.inf, np.inf)
        if self.bilstm is not None:
            self.encoder.pooler.requires_grad_(False)
        self.num_outputs = max(1, len(validation.label_names))
        self.classifier = SequenceClassificationHead(encoder.config, self.num_outputs, self.head_input_size)
        self._collected: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[str]:
        metrics = settings["metrics"]
        glue.check_names(metrics)
        glue.check_kind(metrics, is_regression=bool(data.get("numeric_labels")))
        extra = data.get("extra_validation_files") or ()
        return [*metrics, *(f"{name}_{key}" for name in extra for key in metrics)]

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]; one column for regression."""
        hidden, layout = self.encode(batch), batch["layout"]
        if self.bilstm is None:
            return self.in_fp32(self.classifier, self.encoder.pool(hidden, layout))
        states = self.bilstm(hidden, layout)  # [T, 2 * size]
        forward, backward = states.chunk(2, dim=-1)
        ends = (forward.index_select(0, layout.last_rows), backward.index_select(0, layout.first_rows))
        return self.in_fp32(self.classifier, torch.cat(ends, dim=-1))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.validation.is_regression:
            return F.mse_loss(logits[:, 0], batch["labels"], reduction="sum")
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def collect(self, logits: Tensor, batch: Batch) -> None:
        self._collected.append((batch["example_index"].cpu(), logits.cpu()))

    def evaluate(self) -> Evaluation:
        num_rows = len(self.validation) + sum(len(split) for split in self.validation.extra.values())
        logits = _in_order(self._collected, self.num_outputs)
        assert len(logits) == num_rows, "each example is scored exactly once"
        self._collected.clear()
        main, start = self.validation, len(self.validation)
        predicted = self._predicted(logits[:start])
        scores = glue.score(self.metrics, predicted, main.labels)
        extra = {}
        for name, split in main.extra.items():
            own = logits[start : start + len(split)]
            start += len(split)
            found = glue.score(self.metrics, self._predicted(own), split.labels)
            scores |= {f"{name}_{key}": value for key, value in found.items()}
            extra[name] = self._records(split, own)
        return Evaluation(
            step=self.trainer.global_step,
            scores=scores,
            predictions=self._records(main, logits[: len(main)]),
            is_collapsed=glue.is_collapsed(predicted, main.is_regression),
            extra_predictions=extra,
        )

    def answers(self, parts: Sequence[tuple[Tensor, Tensor]]) -> list[str]:
        predicted = self._predicted(_in_order(parts, self.num_outputs))
        if self.validation.is_regression:
            least, largest = self.number_range
            return [f"{value:.3f}" for value in np.clip(predicted, least, largest)]
        return [self.validation.label_names[index] for index in predicted]

    def baseline(self) -> float | None:
        name = self.metric.removeprefix("validation/")
        if self.validation.is_regression or name not in self.metrics:
            return None
        return glue.majority_baseline([name], self.validation.labels)[name]

    def _predicted(self, logits: np.ndarray) -> np.ndarray:
        """[N]: class indices, or the numbers themselves."""
        return logits[:, 0] if self.validation.is_regression else logits.argmax(axis=1)

    def _records(self, split: LabelledRows, logits: np.ndarray) -> list[dict[str, Any]]:
        found = zip(split.ids, self._predicted(logits), split.labels, logits, strict=True)
        if split.is_regression:
            return [{"id": str(i), "prediction": round(float(p), 5), "label": float(t)} for i, p, t, _ in found]
        names = split.label_names
        return [
            {"id": str(i), "prediction": names[p], "label": names[t], "logits": [round(float(x), 5) for x in row]}
            for i, p, t, row in found
        ]


def _in_order(parts: Sequence[tuple[Tensor, Tensor]], num_outputs: int) -> np.ndarray:
    """[N, number of outputs] from (example numbers, logits) of the batches, which hold each example once."""
    index = torch.cat([part[0] for part in parts]).numpy()
    assert len(np.unique(index)) == len(index), "each example is scored exactly once"
    logits = np.empty((len(index), num_outputs), dtype=np.float32)
    logits[index] = torch.cat([part[1] for part in parts]).detach().float().numpy()
    return logits
