"""One class for a sentence or a pair: the pooled token, or a BiLSTM's last states, and a linear layer.

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
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.data.readers.labelled import LabelledRows
from clozelab.metrics import glue
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, SequenceClassificationHead
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, check_head


class SequenceClassification(FineTuning):
    """Classification of the GLUE kind.

    Args:
        encoder: with the weights to start from.
        head: linear | bilstm.
        validation: the validation split, for its labels, names and ids.
        metrics: names of scores in metrics/glue.py.
        metric: the one of them that selects, as "validation/NAME".
        bilstm_num_layers, bilstm_hidden_size (a direction; None: the encoder's), bilstm_dropout_prob: only for that
            head.
        training: what FineTuning takes beside these.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        head: str,
        validation: LabelledRows,
        metrics: Sequence[str],
        metric: str,
        bilstm_num_layers: int,
        bilstm_hidden_size: int | None,
        bilstm_dropout_prob: float,
        **training: Any,
    ) -> None:
        check_head(head)
        super().__init__(encoder=encoder, metric=metric, score_keys=self.score_keys({"metrics": metrics}), **training)
        self.metrics, self.validation = list(metrics), validation
        self.bilstm: BiLSTM | None = None
        input_size = hidden_size = encoder.config.hidden_size
        if head == "bilstm":
            size = bilstm_hidden_size or hidden_size
            self.bilstm = BiLSTM(hidden_size, size, bilstm_num_layers, bilstm_dropout_prob)
            self.encoder.pooler.requires_grad_(False)
            input_size = 2 * size
        self.classifier = SequenceClassificationHead(encoder.config, len(validation.label_names), input_size)
        self._collected: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any]) -> Sequence[str]:
        glue.check_names(settings["metrics"])
        return settings["metrics"]

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]."""
        hidden, layout = self.encode(batch), batch["layout"]
        if self.bilstm is None:
            return self.in_fp32(self.classifier, self.encoder.pool(hidden, layout))
        states = self.bilstm(hidden, layout)  # [T, 2 * size]
        forward, backward = states.chunk(2, dim=-1)
        ends = (forward.index_select(0, layout.last_rows), backward.index_select(0, layout.first_rows))
        return self.in_fp32(self.classifier, torch.cat(ends, dim=-1))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def collect(self, logits: Tensor, batch: Batch) -> None:
        self._collected.append((batch["example_index"].cpu(), logits.cpu()))

    def evaluate(self) -> Evaluation:
        index = torch.cat([pair[0] for pair in self._collected]).numpy()
        assert len(np.unique(index)) == len(index) == len(self.validation), "each example is scored exactly once"
        logits = np.empty((len(self.validation), len(self.validation.label_names)), dtype=np.float32)
        logits[index] = torch.cat([pair[1] for pair in self._collected]).numpy()
        self._collected.clear()
        predicted = logits.argmax(axis=1)
        scores = glue.score(self.metrics, predicted, self.validation.labels)
        return Evaluation(
            step=self.trainer.global_step,
            scores=scores,
            predictions=self._records(predicted, logits),
            is_collapsed=glue.is_collapsed(predicted),
        )

    def heads(self) -> dict[str, nn.Module]:
        return {"classifier": self.classifier} | ({"bilstm": self.bilstm} if self.bilstm is not None else {})

    def baseline(self) -> float:
        name = self.metric.removeprefix("validation/")
        return glue.majority_baseline([name], self.validation.labels)[name]

    def _records(self, predicted: np.ndarray, logits: np.ndarray) -> list[dict[str, Any]]:
        names, split = self.validation.label_names, self.validation
        return [
            {"id": str(key), "prediction": names[p], "label": names[label], "logits": [round(float(x), 5) for x in row]}
            for key, p, label, row in zip(split.ids, predicted, split.labels, logits, strict=True)
        ]
