"""A class for every word: a linear layer reads its first sub-token, with or without a BiLSTM.

Unusual: logits exist for scored words only; the sub-tokens behind a word's first, and the words of
the document around the sentence, are context and nothing else. Entities are scored whole, as
conlleval does.

Letters: T tokens and U scored words of the batch, W words of the split, C chosen layers, H hidden
size, K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from clozelab.datamodules.finetuning import Batch
from clozelab.datamodules.tags import TaggedSplit
from clozelab.metrics.entities import (
    ENTITY_METRICS,
    TAG_METRICS,
    entities,
    entity_scores,
    scores_of_types,
    tag_scores,
)
from clozelab.metrics.metric import Metric
from clozelab.models.encoder import Encoder
from clozelab.models.heads import FeatureMix, check_features
from clozelab.modules.class_report import ClassReport
from clozelab.modules.finetuning import (
    BatchValues,
    Evaluation,
    FineTuning,
    in_fp32,
    in_order,
)
from clozelab.readers.conll import predicted_lines
from clozelab.text.plain import JsonObject, ReadOnlyJson


class TokenClassification(FineTuning):
    """Tagging of words; arguments as FineTuning's, and the validation split."""

    head_kind = "tags"

    def __init__(self, *, encoder: Encoder, validation: TaggedSplit, **training: Any) -> None:
        super().__init__(encoder=encoder, **training)
        self.declare(self.metrics_of({}, {"entity_tags": validation.entity_tags}))
        self.validation = validation
        self.put_head("tags", len(validation.label_names))

    @classmethod
    def metrics_of(
        cls,
        settings: ReadOnlyJson,  # noqa: ARG003
        data: ReadOnlyJson,
    ) -> Sequence[Metric]:
        if data["entity_tags"]:
            return ENTITY_METRICS
        return TAG_METRICS

    def logits(self, batch: Batch) -> Tensor:
        """[U, K]."""
        words = self.encode(batch).index_select(0, batch["word_slots"])
        return in_fp32(self.classifier, words)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def outputs(self, logits: Tensor, batch: Batch) -> BatchValues:
        """Each word's number and its class."""
        return batch["word_index"].cpu(), logits.argmax(1).cpu()

    def prediction_files(
        self, name: str, split: Any, outputs: Sequence[BatchValues]
    ) -> dict[str, Iterable[str]]:
        """The test file itself with a column of predictions (entities in IOB2)."""
        tags = []
        for number in in_order(outputs, len(split.words)):
            tags.append(self.validation.label_names[number])
        suffix = "conllu" if split.layout.file_format == "conllu" else "conll"
        return {f"{name}.{suffix}": predicted_lines(split.path, split.layout, tags)}

    def evaluate(self, outputs: Sequence[BatchValues]) -> Evaluation:
        split = self.validation
        predicted = in_order(outputs, len(split.labels))
        tags = self._tags(predicted)
        words_by_sentence = split.by_sentence(split.words)
        labels = self._tags(split.labels)
        records = []
        for number, sentence_id in enumerate(split.ids):
            records.append(
                {
                    "id": str(sentence_id),
                    "words": words_by_sentence[number],
                    "prediction": tags[number],
                    "label": labels[number],
                }
            )
        num_entities = None
        if split.entity_tags:
            num_entities = sum(len(entities(sentence)) for sentence in labels)
        return Evaluation(
            self.trainer.global_step,
            self._scores(tags),
            records,
            is_collapsed=len(np.unique(predicted)) <= 1,
            num_entities=num_entities,
        )

    def class_reports(self, best: Evaluation) -> dict[str, ClassReport]:
        """Of each type of entities, or each tag."""
        answers = [record["prediction"] for record in best.predictions]
        labels = [record["label"] for record in best.predictions]
        if self.validation.entity_tags:
            return {"": ClassReport(*scores_of_types(answers, labels))}
        pairs = zip(chain(*labels), chain(*answers), strict=True)
        return {"": ClassReport.of(self.validation.label_names, pairs)}

    def baseline(self) -> float:
        """The most frequent tag everywhere; for entities that is usually O, and scores nothing."""
        most_frequent = np.bincount(self.validation.labels).argmax()
        tags = self._tags(np.full(len(self.validation.labels), most_frequent))
        return self._scores(tags)[self.metric.removeprefix("validation/")]

    def _tags(self, classes: np.ndarray) -> list[list[str]]:
        """[W] -> one list of tags a sentence."""
        names = self.validation.label_names
        return self.validation.by_sentence([names[number] for number in classes])

    def _scores(self, tags: Sequence[Sequence[str]]) -> dict[str, float]:
        score = entity_scores if self.validation.entity_tags else tag_scores
        return score(tags, self._tags(self.validation.labels))


class FeatureBased(TokenClassification):
    """Tagging on a frozen encoder's features (table 7): a BiLSTM over words, and a linear layer.

    Unusual: the encoder is here for its shape and for saving the model; training and evaluation
    never call it, the batches bring what it gave for every word (datamodules/features.py).
    Arguments as TokenClassification's, and `features`: one of models/heads.py. `head` must be
    bilstm.
    """

    def __init__(self, *, encoder: Encoder, head: str, features: str, **tagging: Any) -> None:
        config = encoder.config
        mix = FeatureMix(features, config.num_hidden_layers, config.output_size)
        super().__init__(encoder=encoder, head=head, input_size=mix.output_size, **tagging)
        self.encoder.requires_grad_(False)
        self.feature_mix = mix
        self.features = features

    def remembered(self) -> JsonObject:
        return {"features": self.features}

    @classmethod
    def check_head(cls, head: str) -> None:
        super().check_head(head)
        if head != "bilstm":
            raise ValueError(
                f"head={head}: feature-based tagging stands on a BiLSTM, as in table 7; set"
                " head=bilstm"
            )

    @classmethod
    def check_settings(cls, settings: ReadOnlyJson) -> None:
        super().check_settings(settings)
        check_features(settings["features"])

    def logits(self, batch: Batch) -> Tensor:
        """[U, K], from `features` [U, C, H]."""
        assert self.bilstm is not None
        mixed = self.feature_mix(batch["features"])
        return in_fp32(self.classifier, self.bilstm(mixed, batch["layout"]))
