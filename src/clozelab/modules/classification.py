"""One class, or one number, for a sentence or a pair: a pooled state and a linear layer.

Unusual: a causal encoder pools its last real token (its first has seen nothing else); the encoder's
configuration decides. Of a text in several windows the logits are pooled, so that it has one
prediction.

With `head: bilstm` the pooler is not used: the forward direction's state at the last token and the
backward direction's at the first have both read the whole sequence. Letters: B examples, K choices
of each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clozelab.datamodules.finetuning import Batch
from clozelab.datamodules.label_kinds import Classes, LabelKind, Number
from clozelab.datamodules.labelled import LabelledSplit
from clozelab.metrics.glue import prediction_lines
from clozelab.metrics.metric import Metric
from clozelab.models.encoder import Encoder, last_of_directions
from clozelab.models.layout import Layout
from clozelab.modules.class_report import ClassReport, error_lines
from clozelab.modules.finetuning import (
    BatchValues,
    Evaluation,
    FineTuning,
    in_fp32,
    in_order,
)
from clozelab.text.plain import JsonObject, ReadOnlyJson

log = logging.getLogger(__name__)


class SequenceClassification(FineTuning):
    """Classification of the GLUE kind; regression (squared error) where the data has no classes.

    Args: as FineTuning has them, and as conf/task/format/labelled.yaml says. Extra splits of
    `validation` are scored as "validation/NAME_SCORE".
    """

    head_kind = "classification"

    def __init__(
        self,
        *,
        encoder: Encoder,
        validation: LabelledSplit,
        metrics: Sequence[str],
        number_range: Sequence[float] | None,
        **training: Any,
    ) -> None:
        self.kind = validation.kind
        self.kind.check_metrics(metrics)
        self.positive_label = self.kind.positive_label
        data = {
            "numeric_labels": not self.kind.names,
            "extra_validation_files": validation.extra,
        }
        super().__init__(encoder=encoder, **training)
        self.declare(self.metrics_of({"metrics": metrics}, data))
        self.metric_names = list(metrics)
        self.validation = validation
        self.number_range = number_range or (-np.inf, np.inf)
        self.put_head("classification", self.kind.num_outputs)

    @classmethod
    def metrics_of(cls, settings: ReadOnlyJson, data: ReadOnlyJson) -> Sequence[Metric]:
        names = settings["metrics"]
        label_kind: LabelKind = Classes()
        if data.get("numeric_labels"):
            label_kind = Number()
        label_kind.check_metrics(names)
        main = [label_kind.scorers[name].metric for name in names]
        metrics = list(main)
        for file in data.get("extra_validation_files") or ():
            metrics += [replace(metric, name=f"{file}_{metric.name}") for metric in main]
        return metrics

    def logits(self, batch: Batch) -> Tensor:
        """[B, number of labels]; one column for regression."""
        hidden = self.encode(batch)
        has_bilstm = self.bilstm is not None
        states = sequence_states(self.encoder, self.classifier, hidden, batch["layout"], has_bilstm)
        return in_fp32(self.classifier, states)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return self.kind.loss(logits, batch["labels"])

    def evaluate(self, outputs: Sequence[BatchValues]) -> Evaluation:
        splits = {"": self.validation, **self.validation.extra}
        # The inputs of all splits are numbered one after the other.
        logits = in_order(outputs, sum(split.num_inputs for split in splits.values()))
        scores: dict[str, float] = {}
        records: dict[str, list[JsonObject]] = {}
        first = 0
        is_collapsed = False
        for name, split in splits.items():
            split_logits = split.pool(logits[first : first + split.num_inputs])
            first += split.num_inputs
            predicted = self._predicted(split_logits)
            split_scores = self.kind.score(self.metric_names, predicted, split.labels)
            for metric, value in split_scores.items():
                scores[f"{name}_{metric}" if name else metric] = value
            records[name] = self._records(split, predicted, split_logits)
            if split is self.validation:
                is_collapsed = self.kind.is_collapsed(predicted, split.labels)
        # The split without a name is the one that the others stand beside.
        main_records = records.pop("")
        return Evaluation(
            self.trainer.global_step, scores, main_records, is_collapsed, extra_predictions=records
        )

    def class_reports(self, best: Evaluation) -> dict[str, ClassReport]:
        reports = {}
        for name, records in self._records_of_splits(best):
            pairs = [(record["label"], record["prediction"]) for record in records]
            reports[name] = ClassReport.of(self.kind.names, pairs)
        return reports

    def result_files(self, best: Evaluation) -> dict[str, Iterable[str]]:
        files = super().result_files(best)
        for name, records in self._records_of_splits(best):
            split = self.validation.extra.get(name, self.validation)
            if split.read_texts is None:
                continue
            file = f"errors_{name}.csv" if name else "errors.csv"
            # The file is read anew; a training of hours is not lost with it.
            try:
                files[file] = error_lines(records, split.read_texts())
            except (OSError, ValueError) as problem:
                log.warning("%s is not written, since its texts changed: %s", file, problem)
        return files

    def _records_of_splits(self, best: Evaluation) -> list[tuple[str, list[JsonObject]]]:
        """(name of a validation split, its records); none of numbers."""
        if not self.kind.names:
            return []
        return [("", best.predictions), *best.extra_predictions.items()]

    def prediction_files(
        self, name: str, split: Any, outputs: Sequence[BatchValues]
    ) -> dict[str, Iterable[str]]:
        """A file of a GLUE submission."""
        predicted = self._predicted(split.pool(in_order(outputs, split.num_inputs)))
        # not the kind's: `clozelab predict` may have given the classes other names since
        names = self.validation.label_names
        if names:
            answers = [names[index] for index in predicted]
        else:
            least, largest = self.number_range
            answers = [f"{value:.3f}" for value in np.clip(predicted, least, largest)]
        return {f"{name}.tsv": prediction_lines(split.ids, answers)}

    def baseline(self) -> float | None:
        name = self.metric.removeprefix("validation/")
        labels = self.validation.labels
        majority = self.kind.majority(labels)
        if majority is None or name not in self.metric_names:
            return None
        return self.kind.score([name], majority, labels)[name]

    def _predicted(self, logits: np.ndarray) -> np.ndarray:
        """[N]: class indices, or the numbers themselves."""
        return self.kind.predict(logits)

    def _records(
        self, split: LabelledSplit, predicted: np.ndarray, logits: np.ndarray
    ) -> list[JsonObject]:
        """An example's record each: its id, prediction and label, and the logits of classes."""
        records: list[JsonObject] = []
        for number, example_id in enumerate(split.ids):
            record = self.kind.record(predicted[number], split.labels[number], logits[number])
            records.append({"id": str(example_id), **record})
        return records


def sequence_states(
    encoder: Encoder, head: nn.Module, hidden: Tensor, layout: Layout, has_bilstm: bool
) -> Tensor:
    """What `head` reads of each sequence: [B, H] pooled from the encoder's states [T, H].

    Where a BiLSTM has made the states [T, 2 G], [B, 2 G]: the last state of each direction.
    """
    if has_bilstm:
        return last_of_directions(hidden, layout)
    return encoder.pool(hidden, layout, head)


class MultipleChoice(SequenceClassification):
    """One of a few endings (SWAG): each is a sequence of its own, with a score of its own.

    The softmax is over the choices of an example. Unusual: they are neighbours in the token stream,
    each as long as it is; none is padded.
    """

    head_kind = "choices"
    set_by_class = (*SequenceClassification.set_by_class, "number_range")

    def __init__(self, *, encoder: Encoder, **classification: Any) -> None:
        super().__init__(encoder=encoder, number_range=None, **classification)
        self.put_head("choices")

    def class_reports(self, best: Evaluation) -> dict[str, ClassReport]:  # noqa: ARG002
        """None: an ending's place says nothing."""
        return {}

    def logits(self, batch: Batch) -> Tensor:
        """[B, K], from the scores [B * K, 1] of the sequences."""
        return super().logits(batch).view(-1, len(self.validation.label_names))

    def prediction_files(
        self, name: str, split: Any, outputs: Sequence[BatchValues]
    ) -> dict[str, Iterable[str]]:
        """The chosen ending of each row of the file, and the probability of every one."""
        logits = torch.from_numpy(in_order(outputs, len(split)))
        best_choices = logits.argmax(1).tolist()
        probabilities = logits.softmax(1).tolist()
        endings = [f"ending{choice}" for choice in split.label_names]
        lines = [",".join(["index", "label", *endings])]
        for example_id, best, shares in zip(split.ids, best_choices, probabilities, strict=True):
            columns = [f"{share:.6f}" for share in shares]
            lines.append(",".join([str(example_id), str(best), *columns]))
        return {f"{name}.csv": lines}
