"""Multiple-choice data in the SWAG format; an example is as many rows as it has endings."""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clozelab.corpus.files import file_sha256
from clozelab.datamodules.baselines import Scores, of_choices
from clozelab.datamodules.examples import GroupedRows, Preview, Rows, TaskPreview
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import LabelledRows, subset
from clozelab.datamodules.swag_reading import ChoiceExamples, ChoiceFormat, Fold, load_choices, read_choices

log = logging.getLogger(__name__)


class SwagDataModule(FinetuningDataModule):
    """A context and its possible endings.

    Args:
        published_train_examples: how many the set's own training file has; another number is warned of, since other
            sets come in the same columns. None: not known.
        folds, held_out_fold: for a set without an official split (the same file twice); None for one that has it.
        is_csv: comma-separated with quotes; False: tab-separated without quoting.
        columns: names for files without a header; None: the first line names them.
        context_column, ending_columns, label_column: by name; the label is the number of an ending.
        start_column: the beginning that all endings share; None where they stand alone.
        the others: as FinetuningDataModule's; the batch size counts examples, not rows.
    """

    def __init__(
        self,
        *,
        published_train_examples: int | None,
        folds: int | None,
        held_out_fold: int | None,
        is_csv: bool,
        columns: Sequence[str] | None,
        context_column: str,
        start_column: str | None,
        ending_columns: Sequence[str],
        label_column: str,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        names = list(columns) if columns is not None else None
        self.layout = ChoiceFormat(context_column, start_column, list(ending_columns), label_column, names, is_csv)
        if (folds is None) != (held_out_fold is None):
            raise ValueError(f"folds={folds} and held_out_fold={held_out_fold}: give both, or neither")
        self.published_train_examples = published_train_examples
        self.folds = None if folds is None or held_out_fold is None else (folds, held_out_fold)

    @property
    def sources(self) -> dict[str, Any]:
        files = [file_sha256(path) for path in (self.train_path, self.validation_path)]
        return {"files": files, "layout": asdict(self.layout), "folds": self.folds}

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenise both splits; does nothing the second time."""
        if not hasattr(self, "train"):
            self.train = self._load(self.train_path, True, self.plan.max_train_examples)
            self.validation = self._load(self.validation_path, False, None)
            number = len(self.layout.ending_columns)
            self.train_rows, self.train_targets = GroupedRows(self.train.rows, number), {"labels": self.train.labels}
            self.validation_rows = GroupedRows(self.validation.rows, number)
            self._warn()
            self.say_what_is_left_out(self.train_path, self.train.num_bad_rows)
            self.say_what_is_left_out(self.validation_path, self.validation.num_bad_rows)
            log.info("%s: %s", self.inputs.name, self.facts)

    def compute_baselines(self) -> Scores:
        train = self._read(self.train_path, True)
        train = train.select(subset(len(train), self.plan.max_train_examples))
        return of_choices(train, self._read(self.validation_path, False))

    def preview(self) -> TaskPreview:
        names = [str(number) for number in range(len(self.layout.ending_columns))]
        train, validation = self._preview(self.train_path, True), self._preview(self.validation_path, False)
        return TaskPreview(train, validation, names)

    def _preview(self, path: Path, is_training: bool) -> Preview:
        found = self._read(path, is_training)
        endings = [ending for endings in found.endings for ending in endings]
        labels = [str(label) for label in found.labels or []]
        counts = {"damaged rows": found.num_bad_rows}
        return Preview({"context": found.contexts, "ending": endings}, labels, len(found), counts)

    def _read(self, path: Path, is_training: bool) -> ChoiceExamples:
        """A split's part of a file."""
        found = read_choices(path, self.layout, require_labels=True)
        fold = None if self.folds is None else Fold(*self.folds, is_training=is_training)
        return found.select([i for i, context in enumerate(found.contexts) if fold is None or fold.holds(context)])

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "train_examples": len(self.train),
            "train_examples_available": self.train.num_available,
            "train_counts": self.train.counts,
            "validation_examples": len(self.validation),
            "validation_counts": self.validation.counts,
            "bad_rows": self.train.num_bad_rows + self.validation.num_bad_rows,
            "max_seq_length": self.max_seq_length,
        }

    def _warn(self) -> None:
        found, published = self.train.num_available, self.published_train_examples
        if published not in (None, found):
            log.warning(
                "%s has %d examples, %s's own has %d: another set in the same columns? Give it a task of its own name",
                *(self.train_path, found, self.inputs.name, published),
            )
        for name, split in (("training", self.train), ("validation", self.validation)):
            self.say_what_is_cut(name, split.counts)

    def read_test(self, path: Path) -> tuple[Rows, LabelledRows]:
        split = self._load(path, False, None, require_labels=False)
        self.refuse_damaged(path, split.num_bad_rows, "rows")
        return GroupedRows(split.rows, len(self.layout.ending_columns)), split

    def _load(
        self, path: Path, is_training: bool, max_examples: int | None, require_labels: bool = True
    ) -> LabelledRows:
        """A file that needs no labels is one to predict, whole whatever the folds."""
        in_folds = self.folds is not None and require_labels
        return load_choices(
            path,
            self.layout,
            self.inputs.tokenizer,
            name=self.inputs.name,
            cache_dir=self.inputs.cache_dir,
            fold=Fold(*self.folds, is_training=is_training) if self.folds and in_folds else None,
            max_seq_length=self.max_seq_length,
            max_examples=max_examples,
            require_labels=require_labels,
        )
