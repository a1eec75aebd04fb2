"""A tag for every word: of entities (or chunks), or a class of its own (parts of speech).

Entities are read in any scheme, predicted in IOB2, and scored whole, as conlleval does.

Letters: U scored words of a batch, W words of a split, K classes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.metrics.entities import (
    ENTITY_METRICS,
    OUTSIDE,
    PLAIN,
    TAG_METRICS,
    are_plain,
    entities,
    entity_scores,
    scheme_of,
    scores_of_types,
    split_tag,
    tag_scores,
    to_iob2,
    to_plain,
)
from clozelab.tasks.baselines import TAGS, Scores, most_frequent_tags
from clozelab.tasks.batches import Batch
from clozelab.tasks.class_report import ClassReport
from clozelab.tasks.labels import ANY, CLASSES, refuse_one_class
from clozelab.tasks.target import Files, Outcome, Target
from clozelab.tasks.words import Sentences, WordSplit
from clozelab.text.plain import JsonObject, PlainDict

log = logging.getLogger(__name__)


class TagTarget(Target):
    """One of some tags for each word; encoded it is an index [W].

    Args:
        entity_tags: tags are those of entities; False: every tag is a class of its own.
    """

    units = ("WordUnit", "FeatureUnit")
    head_kinds = ("tags",)

    def __init__(self, *, entity_tags: bool) -> None:
        self.entity_tags = entity_tags
        self.expects = ANY if entity_tags else CLASSES
        self.metrics = ENTITY_METRICS if entity_tags else TAG_METRICS
        # a model whose labels are types alone is scored by those
        self.has_plain_labels = False

    def reading(self) -> PlainDict:
        return {"entity_tags": self.entity_tags}

    # Labels

    def of_model(self, classes: Sequence[str]) -> Self:
        target = self.with_classes(classes)
        target.has_plain_labels = self.entity_tags and are_plain(classes)
        return target

    def classes_of(self, labels: Sequence[str]) -> Sequence[str]:
        """The tags themselves, or of entities O, then B and I of every type."""
        if self.classes:
            return self.classes
        if not self.entity_tags:
            return sorted(set(labels))
        # An entity type of the training file may lack B or I there; both are labels.
        types = {split_tag(tag)[1] for tag in set(labels)} - {""}
        classes = [OUTSIDE]
        for name in sorted(types):
            classes += [f"B-{name}", f"I-{name}"]
        return classes

    def convert(
        self, labels: Sequence[Sequence[str]], path: Path
    ) -> tuple[Sequence[Sequence[str]], PlainDict]:
        """The tags of each sentence, of entities in IOB2, and how those were written."""
        if not self.entity_tags:
            return labels, {"tag_scheme": None}
        try:
            scheme = scheme_of(labels)
        except ValueError as problem:
            raise ValueError(
                f"{path}: {problem}; is task.data.tag_column the right one?"
                " Tags that are classes of their own need task.data.entity_tags=false and"
                " task.metric=validation/accuracy"
            ) from problem
        convert = to_iob2
        if self.has_plain_labels:
            convert = to_plain
        return list(map(convert, labels)), {"tag_scheme": scheme}

    def unknown(self, labels: Sequence[str]) -> int | None:
        foreign = set(labels).difference(self.classes)
        if not foreign:
            return None
        return next(place for place, label in enumerate(labels) if label in foreign)

    def encode(self, labels: Sequence[str]) -> np.ndarray:
        index = {name: number for number, name in enumerate(self.classes)}
        return np.array([index[label] for label in labels], dtype=np.int64)

    def shown_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Of entities the types, whatever the scheme."""
        if self.entity_tags:
            return to_plain(labels)
        return labels

    def preview_classes(self, labels: Sequence[str]) -> Sequence[str]:
        return sorted(set(labels))

    def check_training(self, path: Path, split: WordSplit, column_key: str) -> None:
        refuse_one_class(path, self.classes, column_key)

    def check_splits(self, splits: Sequence[tuple[Path, WordSplit]], tokenizer: Tokenizer) -> None:
        if self.entity_tags and tokenizer.lowercase:
            log.warning(
                "the encoder's vocabulary is lower-cased: entities lose the letter case that tells"
                " them apart"
            )
        self._warn_of_plain_tags(splits)

    def _warn_of_plain_tags(self, splits: Sequence[tuple[Path, WordSplit]]) -> None:
        """Say which file has nothing that keeps neighbouring entities of one type apart."""
        schemes = {split.counts["tag_scheme"]: path for path, split in splits}
        if PLAIN not in schemes:
            return
        plain_path = schemes.pop(PLAIN)
        for scheme, path in schemes.items():
            if not self.has_plain_labels:
                log.warning(
                    "%s has types without B- and I-, and %s has %s tags: neighbouring entities of"
                    " one type are one entity in the first file and several in the second, so"
                    " scores are wrong where they occur: write both files in one scheme",
                    plain_path,
                    path,
                    scheme,
                )
        if not schemes:
            train_path, _ = splits[0]
            log.warning(
                "%s: its tags are types without B- and I-: neighbouring words of one type are one"
                " entity, also in scores",
                train_path,
            )

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of logits [U, K]."""
        return F.cross_entropy(logits, batch["labels"], reduction="sum")

    def kept(self, logits: Tensor) -> Tensor:
        """The classes [U]."""
        return logits.argmax(1)

    # Scores, and what is written down

    def evaluate(self, outputs: np.ndarray, split: WordSplit) -> Outcome:
        tags = self._tags(outputs, split)
        labels = self._tags(split.labels, split)
        num_entities = None
        if self.entity_tags:
            num_entities = sum(len(entities(sentence)) for sentence in labels)
        return Outcome(
            self._score(tags, labels),
            split.records(tags, labels),
            is_collapsed=len(np.unique(outputs)) <= 1,
            num_entities=num_entities,
        )

    def _tags(self, classes: np.ndarray, split: WordSplit) -> list[list[str]]:
        """[W] -> one list of tags a sentence."""
        return split.by_sentence([self.classes[number] for number in classes])

    def _score(
        self, tags: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
    ) -> dict[str, float]:
        if self.entity_tags:
            return entity_scores(tags, labels)
        return tag_scores(tags, labels)

    def majority_score(self, name: str, split: WordSplit) -> float:
        """The most frequent tag everywhere; for entities that is usually O, and scores nothing."""
        most_frequent = np.bincount(split.labels).argmax()
        tags = self._tags(np.full(len(split.labels), most_frequent), split)
        return self._score(tags, self._tags(split.labels, split))[name]

    def baselines(self, train: Sentences, validation: Mapping[str, Sentences]) -> Scores:
        """Each word's most frequent tag.

        An unknown word is no entity, or has the most frequent tag of all.
        """
        examples = validation[""]
        unknown = OUTSIDE
        if not self.entity_tags:
            (unknown, _), *_ = Counter(chain.from_iterable(train.known_labels)).most_common(1)
        sentences = zip(train.rows, train.known_labels, strict=True)
        guesses = most_frequent_tags(sentences, examples.rows, unknown)
        return {TAGS: self._score(guesses, examples.known_labels)}

    def prediction_files(
        self,
        name: str,
        split: WordSplit,
        outputs: np.ndarray,
        scores: Mapping[str, float],
    ) -> Files:
        """The test file itself with a column of predictions (entities in IOB2)."""
        return split.with_column(name, [self.classes[number] for number in outputs])

    def class_report(self, records: Sequence[JsonObject]) -> ClassReport | None:
        """Of each type of entities, or each tag."""
        answers = [record["prediction"] for record in records]
        labels = [record["label"] for record in records]
        if self.entity_tags:
            return ClassReport(*scores_of_types(answers, labels))
        pairs = zip(chain(*labels), chain(*answers), strict=True)
        return ClassReport.from_pairs(self.classes, pairs)
