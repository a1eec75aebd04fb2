"""Span extraction data in the SQuAD formats, 1.1 and 2.0; a training example is one window of a passage."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import of_spans
from clozelab.datamodules.cache import Arrays, Facts
from clozelab.datamodules.examples import Preview, Sequences, TaskPreview, join_sequences, subset
from clozelab.datamodules.files import Scores
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.squad_reading import (
    SquadExamples,
    SquadFeatures,
    SquadSplit,
    WindowSettings,
    build_features,
    read_squad,
    refuse_other_data,
)

log = logging.getLogger(__name__)


class SquadDataModule(FinetuningDataModule):
    """Questions and passages from JSON files.

    Args:
        train_extra: further training files that are gone through once, first (the paper's TriviaQA); the learning rate
            schedule is one over all of it.
        with_unanswerable: 2.0: questions may have no answer, which is learned as the span [CLS]..[CLS].
        doc_stride, max_query_length: in tokens; cut with max_seq_length (WindowSettings.fitted).
        the others: as FinetuningDataModule's; `max_train_examples` counts questions, the batch size counts windows.
    """

    def __init__(
        self,
        *,
        train_extra: Sequence[str],
        with_unanswerable: bool,
        doc_stride: int,
        max_query_length: int,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.settings = WindowSettings.fitted(self.max_seq_length, doc_stride, max_query_length)
        if (doc_stride, max_query_length) != (self.settings.doc_stride, self.settings.max_query_length):
            log.warning(
                "%s: sequences of %d tokens: questions are cut at %d tokens (not %d), windows step by %d (not %d)",
                self.inputs.name, self.max_seq_length, self.settings.max_query_length, max_query_length,
                self.settings.doc_stride, doc_stride,
            )  # fmt: skip
        self.extra_paths = [self.require(file) for file in train_extra]
        self.with_unanswerable = with_unanswerable

    @property
    def sources(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"files": [file_sha256(path) for path in (self.train_path, self.validation_path)]}
        if self.extra_paths or self.with_unanswerable:
            facts["train_extra"] = [file_sha256(path) for path in self.extra_paths]
            facts["with_unanswerable"] = self.with_unanswerable
        return facts

    @property
    def tokenization(self) -> dict[str, Any]:
        lengths = [self.settings.max_seq_length, self.settings.doc_stride, self.settings.max_query_length]
        return {"settings": lengths, "tokenizer": self.inputs.tokenizer.fingerprint}

    def read_splits(self) -> Iterable[tuple[str, Path, SquadSplit]]:
        largest = self.plan.max_train_examples
        self.train = self._load(self.train_path, True, largest)
        self.validation = self._load(self.validation_path, False, None)
        self.extra = [self._load(path, True, largest) for path in self.extra_paths]
        parts = [split.features for split in (*self.extra, self.train)]
        self.train_sequences = join_sequences([features.sequences for features in parts])
        self.train_targets = {
            name: np.concatenate([getattr(features, name) for features in parts]).astype("int64")
            for name in ("start_positions", "end_positions")
        }
        self.validation_sequences = self.validation.features.sequences
        return [("training", self.train_path, self.train), ("validation", self.validation_path, self.validation)]

    def compute_baselines(self) -> Scores:
        learnt = []
        for path in (*self.extra_paths, self.train_path):
            part = read_squad(path, for_training=True, with_unanswerable=self.with_unanswerable)
            chosen = part.select(subset(len(part), self.plan.max_train_examples)).questions
            learnt += [(question.text, question.answers) for question in chosen]
        found = self.validation.require_examples()
        asked = {one.id: (found.passages[one.passage], one.text, one.answers) for one in found.questions}
        return of_spans(learnt, asked, with_unanswerable=self.with_unanswerable)

    def preview(self) -> TaskPreview:
        train, validation = (self._preview(path) for path in (self.train_path, self.validation_path))
        return TaskPreview(train, validation, None, expects_unanswerable=self.with_unanswerable)

    def _preview(self, path: Path) -> Preview:
        found = read_squad(path, for_training=False, with_unanswerable=self.with_unanswerable)
        texts = {"question": [question.text for question in found.questions], "passage": found.passages}
        return Preview(texts, None, len(found), dict(found.counts))

    @property
    def num_first_sequences(self) -> int:
        """Windows of `train_extra`."""
        return sum(len(split.features.sequences) for split in self.extra)

    def read_test(self, path: Path) -> tuple[Sequences, SquadSplit]:
        split = self._load(path, False, None, for_prediction=True)
        return split.features.sequences, split

    def _load(
        self, path: Path, for_training: bool, max_examples: int | None, for_prediction: bool = False
    ) -> SquadSplit:
        """One split; its texts only where they are scored or predicted, when the file may come without answers."""
        loaded: list[SquadExamples] = []

        def read() -> SquadExamples:
            examples = read_squad(path, for_training=for_training, with_unanswerable=self.with_unanswerable)
            if not for_prediction:
                refuse_other_data(path, examples, self.with_unanswerable)
            loaded.append(examples.select(subset(len(examples), max_examples)))
            return examples

        def build() -> tuple[Arrays, Facts]:
            available = len(read())
            features, counts = build_features(loaded[0], self.inputs.tokenizer, self.settings)
            total = dict(Counter(loaded[0].counts) + counts)
            return features.to_arrays(), {"num_questions": len(loaded[0]), "num_available": available, "counts": total}

        settings = {"for_training": for_training, "max_examples": max_examples, "squad_2": self.with_unanswerable}
        arrays, facts, _ = self.cached(path, settings, build)
        if not for_training and not loaded:
            read()
        return SquadSplit(SquadFeatures.from_arrays(arrays), None if for_training else loaded[0], **facts)

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "train_examples": self.train.num_questions,
            "train_examples_available": self.train.num_available,
            "train_counts": self.train.counts,
            "train_extra_examples": sum(split.num_questions for split in self.extra),
            "validation_examples": self.validation.num_questions,
            "validation_counts": self.validation.counts,
            **asdict(self.settings),
        }
