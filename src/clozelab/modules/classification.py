"""One class, or one number, for a sentence or a pair: the pooled token, or a BiLSTM's last states,
and a linear layer.

Unusual: a causal encoder pools its last real token (its first has seen nothing else); the encoder's
configuration decides. Of a text in several windows the logits are pooled, so that it has one
prediction.

With `head: bilstm` the pooler is not used: the forward direction's state at the last token and the
backward direction's at the first have both read the whole sequence. Letters: B examples, K choices
of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.datamodules.labelled import LabelledSplit
from clozelab.metrics import glue
from clozelab.metrics.glue import prediction_lines
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, Part, in_order


class SequenceClassification(FineTuning):
    """Classification of the GLUE kind; regression (squared error) where the data has no classes.

    Args: as FineTuning has them, and as conf/task/format/labelled.yaml says. Extra splits of
    `validation` are scored as "validation/NAME_SCORE".
    """

    head_kind: ClassVar[str] = "classification"

    def __init__(
        self,
        *,
        encoder: Encoder,
        validation: LabelledSplit,
        metrics: Sequence[str],
        number_range: Sequence[float] | None,
        **training: Any,
    ) -> None:
        data = {
            "numeric_labels": validation.is_regression,
            "extra_validation_files": validation.extra,
        }
        if "f1" in metrics and len(validation.label_names) > 2:
            raise ValueError(
                f"metrics: f1 is of two classes, and there are {len(validation.label_names)}; take"
                " accuracy"
            )
        super().__init__(
            encoder=encoder, score_keys=self.score_keys({"metrics": metrics}, data), **training
        )
        self.metrics, self.validation, self.number_range = (
            list(metrics),
            validation,
            number_range or (-np.inf, np.inf),
        )
        self._put_head("classification", max(1, len(validation.label_names)))

    def _put_head(self, kind: str, num_labels: int) -> None:
        """The output layer; the pooler is trained where that reads it, or DDP would wait for its
        gradient.
        """
        family = self.encoder.config.family
        self.classifier = family.head(
            kind, self.encoder, num_labels=num_labels, input_size=self.head_input_size
        )
        is_read = self.bilstm is None and not getattr(self.classifier, "reads_token_states", False)
        self.encoder.pooler.requires_grad_(is_read)

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[str]:
        metrics = settings["metrics"]
        glue.check_metrics(metrics, is_regression=bool(data.get("numeric_labels")))
        return [
            *metrics,
            *(
                f"{name}_{key}"
                for name in data.get("extra_validation_files") or ()
                for key in metrics
            ),
        ]

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]; one column for regression."""
        hidden, has_bilstm = self.encode(batch), self.bilstm is not None
        states = sequence_states(self.encoder, self.classifier, hidden, batch["layout"], has_bilstm)
        return self.in_fp32(self.classifier, states)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        if self.validation.is_regression:
            return F.mse_loss(logits[:, 0], batch["labels"], reduction="sum")
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def evaluate(self, parts: Sequence[Part]) -> Evaluation:
        splits = {"": self.validation, **self.validation.extra}
        logits = in_order(parts, sum(split.num_inputs for split in splits.values()))
        scores: dict[str, float] = {}
        records: dict[str, list[dict[str, Any]]] = {}
        for name, split in splits.items():
            own, logits = split.pool(logits[: split.num_inputs]), logits[split.num_inputs :]
            found = glue.score(self.metrics, self._predicted(own), split.labels)
            scores |= {f"{name}_{key}" if name else key: value for key, value in found.items()}
            records[name] = self._records(split, own)
        own_records = records.pop("")
        answers, labels = ([one[key] for one in own_records] for key in ("prediction", "label"))
        is_collapsed = glue.is_collapsed(answers, self.validation.is_regression, labels)
        return Evaluation(
            self.trainer.global_step, scores, own_records, is_collapsed, extra_predictions=records
        )

    def prediction_files(
        self, name: str, split: Any, parts: Sequence[Part]
    ) -> dict[str, Iterable[str]]:
        """A file of a GLUE submission."""
        predicted = self._predicted(split.pool(in_order(parts, split.num_inputs)))
        if self.validation.is_regression:
            least, largest = self.number_range
            answers = [f"{value:.3f}" for value in np.clip(predicted, least, largest)]
        else:
            answers = [self.validation.label_names[index] for index in predicted]
        return {f"{name}.tsv": prediction_lines(split.ids, answers)}

    def baseline(self) -> float | None:
        name = self.metric.removeprefix("validation/")
        if self.validation.is_regression or name not in self.metrics:
            return None
        return glue.majority_baseline([name], self.validation.labels)[name]

    def _predicted(self, logits: np.ndarray) -> np.ndarray:
        """[N]: class indices, or the numbers themselves."""
        return logits[:, 0] if self.validation.is_regression else logits.argmax(axis=1)

    def _records(self, split: LabelledSplit, logits: np.ndarray) -> list[dict[str, Any]]:
        found = zip(split.ids, self._predicted(logits), split.labels, logits, strict=True)
        if split.is_regression:
            return [
                {"id": str(i), "prediction": round(float(p), 5), "label": float(t)}
                for i, p, t, _ in found
            ]
        names = split.label_names
        return [
            {
                "id": str(i),
                "prediction": names[p],
                "label": names[t],
                "logits": [round(float(x), 5) for x in row],
            }
            for i, p, t, row in found
        ]


def sequence_states(
    encoder: Encoder, head: nn.Module, hidden: Tensor, layout: Layout, has_bilstm: bool
) -> Tensor:
    """[B, H] of the encoder's states [T, H], or [B, 2 G] of what a BiLSTM made of them: what `head`
    reads.
    """
    if not has_bilstm:
        return encoder.pool(hidden, layout, head)
    forward, backward = hidden.chunk(2, dim=-1)
    return torch.cat(
        (forward.index_select(0, layout.last_rows), backward.index_select(0, layout.first_rows)),
        dim=-1,
    )


class MultipleChoice(SequenceClassification):
    """One of a few endings (SWAG): each is a sequence of its own, scored by one vector, softmax
    over the choices.

    Unusual: the choices of an example are neighbours in the token stream, each as long as it is;
    none is padded.
    """

    head_kind: ClassVar[str] = "choices"
    set_by_class: ClassVar[tuple[str, ...]] = (*SequenceClassification.set_by_class, "number_range")

    def __init__(self, *, encoder: Encoder, **classification: Any) -> None:
        super().__init__(encoder=encoder, number_range=None, **classification)
        self._put_head("choices", 1)

    def logits(self, batch: Batch) -> Tensor:
        """[B, K], from the scores [B * K, 1] of the sequences."""
        return super().logits(batch).view(-1, len(self.validation.label_names))

    def prediction_files(
        self, name: str, split: Any, parts: Sequence[Part]
    ) -> dict[str, Iterable[str]]:
        """The chosen ending of each row of the file, and the probability of every one."""
        logits = torch.from_numpy(in_order(parts, len(split)))
        names = [f"ending{choice}" for choice in split.label_names]
        rows = zip(split.ids, logits.argmax(1).tolist(), logits.softmax(1).tolist(), strict=True)
        lines = (",".join([str(i), str(best), *(f"{p:.6f}" for p in ps)]) for i, best, ps in rows)
        return {f"{name}.csv": [",".join(["index", "label", *names]), *lines]}
