"""Labelled texts and pairs from tables: the official GLUE files, and anybody's tsv, csv, jsonl,
Parquet or Arrow.

A task is a YAML.

GLUE's format is tab-separated but not CSV: a quotation mark is a character like any other. Some
files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files
have no labels. A rare damaged row is skipped and counted. A label outside the list is never
skipped: it means that the list or the column is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.tables import Record, Table, open_table
from clozelab.datamodules.baselines import BAG, guess_classes, guess_numbers
from clozelab.datamodules.examples import (
    GroupedSequences,
    Ints,
    Sequences,
    TokenSequences,
    encode_examples,
    encode_windows,
    join_sequences,
    subset,
)
from clozelab.datamodules.files import (
    Arrays,
    Facts,
    Preview,
    Scores,
    TaskPreview,
    refuse_wrong_file,
)
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labels import (
    ANY,
    CLASSES,
    NUMBERS,
    LabelColumn,
    cell_text,
    is_missing,
    refuse_one_class,
    warn_of_lacking_classes,
)
from clozelab.metrics import glue

log = logging.getLogger(__name__)


@dataclass
class TextExamples:
    """Labelled texts of a table, in file order: of each example its text, its pair, or a context
    and its endings.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[str] | None = None  # None: the file has none
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        labels = None if self.labels is None else [self.labels[i] for i in index]
        return TextExamples(
            [self.ids[i] for i in index], [self.texts[i] for i in index], labels, self.num_bad_rows
        )

    def limited(self, most: int | None) -> TextExamples:
        return self.select(subset(len(self), most))

    def label_values(self, names: Sequence[str]) -> NDArray[Any]:
        """[N]: indices into `names`, or the numbers themselves where there are none; -1 for a file
        without labels.
        """
        if self.labels is None:
            return np.full(len(self), -1, dtype=np.int64)
        if not names:
            return np.array([float(label) for label in self.labels])
        index = {label: number for number, label in enumerate(names)}
        return np.array([index[label] for label in self.labels], dtype=np.int64)


@dataclass(frozen=True)
class TableFormat:
    """Where a task's texts and labels stand in a table; columns are found by name, in any order,
    among any others.

    tsv: tabs alone, a quotation mark is a character like any other (GLUE). csv: quoted where
    needed. jsonl: an object a line. parquet, arrow: as pandas and `datasets` write them. auto: by
    the file's name. A number or a truth stands as JSON writes it; null and NaN are missing; a list
    is neither a text nor a label."""

    text_columns: Sequence[str]
    label_column: str
    id_column: str | None = None  # None, or a file without it: the row's number is its id
    # names for a tsv or csv file whose first line does not name the text columns
    columns: Sequence[str] | None = None
    file_format: str = "auto"

    def read(
        self,
        path: Path,
        has_labels: bool = True,
        *,
        names: Sequence[str] | None = None,
        expected: str = ANY,
        listed: Sequence[str] = (),
    ) -> TextExamples:
        """Read one file; of a test file without its labels, whether it `has_labels` or not.

        The labels are `expected` to be CLASSES, NUMBERS or ANY names; `names`: those that there
        are; `listed`: some that are labels beside others. A wrong label is never skipped. The
        numbers of a column to which the datasets library gave names (ClassLabel) are read as these
        names.

        ValueError names the file (and line) of a missing column, a wrong label, or more than 1 %
        damaged rows.
        """
        table = open_table(path, self.file_format, header=self.columns, required=self.text_columns)
        wanted, id_column = self._wanted_columns(table, has_labels)
        labels = LabelColumn(path, names, expected, listed=listed)
        class_names = self._class_names(table, listed if names is None else names, expected)
        examples = TextExamples(labels=[] if has_labels else None)
        bad: list[str] = []
        num_rows = 0
        for row, (number, record) in enumerate(table.rows(wanted)):
            num_rows += 1
            cells = self._cells_of(record, id_column)
            if isinstance(cells, str):
                bad.append(f"{path}:{number}: {cells}")
                continue
            if examples.labels is not None and not isinstance(record, str):
                label = record.get(self.label_column)
                if class_names:
                    label = _named_class(label, class_names)
                examples.labels.append(labels.add(number, label))
            name, texts = cells
            examples.ids.append(str(row) if name is None else name)
            examples.texts.append(texts)
        # A label column that is no column of labels, before the rows that are damaged beside it.
        labels.refuse()
        refuse_wrong_file(path, bad, num_rows, f"the columns {table.columns}")
        examples.num_bad_rows = len(bad)
        return examples

    def _class_names(self, table: Table, known: Sequence[str], expected: str) -> list[str]:
        """The names of the label column's numbers; none where numbers are wanted, or the known
        classes are others.
        """
        names = table.class_names.get(self.label_column, [])
        if expected == NUMBERS or (known and not set(names) <= set(known)):
            return []
        return names

    def _wanted_columns(self, table: Table, has_labels: bool) -> tuple[list[str], str | None]:
        """The columns to read, and the one with names; ValueError for one that is missing or stands
        there twice."""
        wanted = list(self.text_columns)
        if has_labels:
            wanted.append(self.label_column)
        missing = [name for name in wanted if name not in table.columns]
        if missing:
            only = ""
            if missing == [self.label_column]:
                only = " (a test file without labels can only be predicted)"
            named = ", ".join(map(repr, missing))
            raise ValueError(
                f"{table.path} has no column {named}; its columns are {table.columns}{only}",
            )
        id_column = self.id_column
        if id_column is not None and id_column not in table.columns:
            log.warning("%s has no column %r: its rows are numbered from 0", table.path, id_column)
            id_column = None
        if id_column is not None:
            wanted.append(id_column)
        table.refuse_twins(wanted)
        return list(dict.fromkeys(wanted)), id_column

    def _cells_of(
        self,
        record: Record,
        id_column: str | None,
    ) -> tuple[str | None, tuple[str, ...]] | str:
        """A row's name and texts; of a damaged one, what is wrong with it."""
        if isinstance(record, str):
            return record
        names = list(self.text_columns)
        if id_column is not None:
            names.append(id_column)
        cells = dict[str, str]()
        lacking = [name for name in names if is_missing(record.get(name))]
        if lacking:
            return f"no value of {', '.join(lacking)}"
        for name in names:
            try:
                cells[name] = cell_text(record[name])
            except ValueError as problem:
                return f"{name} is {problem}, and a text was expected"
        return cells.get(id_column or ""), tuple(cells[name] for name in self.text_columns)


def _named_class(value: Any, names: Sequence[str]) -> Any:
    """The name of a class's number; None for -1, by which the datasets library means that a row has
    no label.
    """
    if isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value == -1:
        return None
    return value


@dataclass(frozen=True)
class LabelledSplit:
    """Examples of one split; `label_names` is empty for regression."""

    sequences: TokenSequences
    ids: NDArray[np.str_]
    # [N] indices into `label_names`, or the numbers themselves; -1 for a file without labels
    labels: NDArray[Any]
    label_names: list[str]
    num_available: int  # examples of the file before `max_examples` cut it
    num_bad_rows: int
    counts: dict[str, int] = field(default_factory=dict)  # what is unusual about those in use
    # further validation sets, scored beside this one
    extra: dict[str, LabelledSplit] = field(default_factory=dict)
    # [N + 1] where each example's windows begin; None: an example is one input
    window_offsets: Ints | None = None
    pooling: str = "mean"  # mean | max: of each logit over a text's windows

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_regression(self) -> bool:
        return not self.label_names

    @property
    def num_inputs(self) -> int:
        """Examples, or windows of them: as many as there are logits."""
        return len(self) if self.window_offsets is None else len(self.sequences)

    @property
    def input_labels(self) -> NDArray[Any]:
        """[num_inputs]: a window has the label of its text."""
        return (
            self.labels
            if self.window_offsets is None
            else np.repeat(self.labels, np.diff(self.window_offsets))
        )

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[num_inputs, K] -> [N, K]."""
        if self.window_offsets is None:
            return logits
        starts = self.window_offsets[:-1]
        if self.pooling == "max":
            return np.maximum.reduceat(logits, starts, axis=0)
        return (
            np.add.reduceat(logits, starts, axis=0) / np.diff(self.window_offsets)[:, None]
        ).astype(np.float32)


class LabelledDataModule(FinetuningDataModule):
    """Single texts or pairs with a class or a number each. Args: as conf/task/format/labelled.yaml
    says of each.

    Windows of a long text are training examples with its label; their logits are pooled into one
    prediction."""

    def __init__(
        self,
        *,
        file_format: str,
        columns: Sequence[str] | None,
        text_columns: Sequence[str],
        label_column: str,
        id_column: str | None,
        labels: Sequence[str] | None,
        numeric_labels: bool,
        extra_validation_files: Mapping[str, str] | None,
        test_id_column: str | None,
        pairs: str,
        long_documents: str,
        window_stride: int,
        window_pooling: str,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.layout = TableFormat(
            list(text_columns), label_column, id_column, columns and list(columns), file_format
        )
        self.test_layout = replace(self.layout, id_column=test_id_column)
        labels = (
            labels if self.inputs.label_names is None or numeric_labels else self.inputs.label_names
        )
        self.labels = [str(label) for label in labels] if labels is not None else None
        self.numeric_labels = numeric_labels
        if len(text_columns) not in (1, 2):
            raise ValueError(f"text_columns must name one or two columns, not {list(text_columns)}")
        if self.labels is not None and len(set(self.labels)) < len(self.labels):
            raise ValueError(f"task.data.labels names a label twice: {self.labels}")
        if pairs not in ("joint", "apart") or (pairs == "apart" and len(text_columns) != 2):
            raise ValueError(
                f"pairs={pairs!r} of the columns {list(text_columns)}: joint, or of two columns"
                " apart"
            )
        self.pairs = pairs
        if long_documents not in ("truncate", "windows"):
            raise ValueError(
                f"long_documents={long_documents!r} is unknown; known: truncate, windows"
            )
        if window_pooling not in ("mean", "max"):
            raise ValueError(f"window_pooling={window_pooling!r} is unknown; known: mean, max")
        self.windows = (window_stride, window_pooling) if long_documents == "windows" else None
        if self.windows and len(text_columns) != 1:
            raise ValueError(
                "long_documents=windows is for single texts; this task has pairs,"
                f" {list(text_columns)}"
            )
        self.extra_paths = {
            name: self.require(file) for name, file in (extra_validation_files or {}).items()
        }

    @property
    def texts_per_example(self) -> int | None:
        """How many texts the model reads at once; None where it reads the two of a pair apart."""
        if self.pairs == "apart":
            return None
        return len(self.layout.text_columns)

    @property
    def reading(self) -> dict[str, Any]:
        extra = {name: file_sha256(path) for name, path in self.extra_paths.items()}
        layout = [asdict(self.layout), self.labels, self.numeric_labels]
        return {"layout": layout, "extra_validation": extra, "windows": self.windows}

    @property
    def tokenization(self) -> dict[str, Any]:
        return super().tokenization | ({"pairs": self.pairs} if self.pairs != "joint" else {})

    def read_splits(self) -> None:
        self.train = self._load(
            self.train_path, self.labels, self.plan.max_train_examples, is_training=True
        )
        self._look_at_classes()
        extra = {
            name: self._load(path, self.train.label_names, None)
            for name, path in self.extra_paths.items()
        }
        self.validation = replace(
            self._load(self.validation_path, self.train.label_names, None), extra=extra
        )
        self.train_targets = {"labels": self.train.input_labels}
        self.train_sequences = self._inputs(self.train.sequences)
        joined = join_sequences([one.sequences for one in (self.validation, *extra.values())])
        self.validation_sequences = self._inputs(joined)

    def _look_at_classes(self) -> None:
        """ValueError for a training file of one class; a warning for classes without an example."""
        if self.numeric_labels:
            if len(self.train) > 1 and np.ptp(self.train.labels) == 0:
                log.warning(
                    "%s: all rows have one label, %g", self.train_path, self.train.labels[0]
                )
            return
        refuse_one_class(self.train_path, self.train.label_names, "task.data.label_column")
        # else the classes are a model's, and the file may lack some
        if self.inputs.label_names is None:
            warn_of_lacking_classes(self.train_path, self.train.labels, self.train.label_names)

    def refuse_outside(self, number_range: Sequence[float] | None) -> None:
        """ValueError, with file and line, for a number beyond `number_range` (least, largest)."""
        if number_range is None or not self.numeric_labels:
            return
        least, largest = number_range
        for _, path, split in self.splits():
            if len(split) and not least <= split.labels.min() <= split.labels.max() <= largest:
                self._refuse_outside(path, least, largest)

    def _refuse_outside(self, path: Path, least: float, largest: float) -> None:
        """The file is read again: splits know no lines."""
        layout = self.layout
        table = open_table(
            path, layout.file_format, header=layout.columns, required=layout.text_columns
        )
        for number, record in table.rows([layout.label_column]):
            if isinstance(record, str):
                continue
            label = cell_text(record.get(layout.label_column))
            if glue.is_number(label) and not least <= float(label) <= largest:
                raise ValueError(
                    f"{path}:{number}: label {label} lies outside of {least:g} to {largest:g} "
                    "(task.module.number_range): mend it, or widen the range"
                )

    def _inputs(self, sequences: TokenSequences) -> Sequences:
        """An example is one sequence, or the two of a pair that are read apart."""
        return GroupedSequences(sequences, 2) if self.pairs == "apart" else sequences

    def splits(self) -> list[tuple[str, Path, Any]]:
        extra = self.validation.extra.items()
        return super().splits() + [(name, self.extra_paths[name], split) for name, split in extra]

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        split = self._load(path, self.train.label_names, None, has_labels=False)
        return self._inputs(split.sequences), split

    def _load(
        self,
        path: Path,
        names: Sequence[str] | None,
        max_examples: int | None,
        has_labels: bool = True,
        *,
        is_training: bool = False,
    ) -> LabelledSplit:
        """One split. `names` None: the sorted labels of the file. ValueError where two rows to
        predict have one id.
        """

        def build() -> tuple[Arrays, Facts]:
            examples = self._read(path, names, has_labels)
            known = [] if self.numeric_labels else list(names or sorted(set(examples.labels or [])))
            chosen = examples.limited(max_examples)
            texts = [list(part) for part in zip(*chosen.texts, strict=True)]
            values = chosen.label_values(known)
            values = values.astype(np.float32) if values.dtype.kind == "f" else values
            arrays: Arrays = {"ids": np.array(chosen.ids, dtype=np.str_), "labels": values}
            tokenizer, length = self.inputs.tokenizer, self.max_seq_length
            counts = {"empty_texts": sum(not text.strip() for part in texts for text in part)}
            if self.windows is None:
                parts = (
                    [[text for pair in chosen.texts for text in pair]]
                    if self.pairs == "apart"
                    else texts
                )
                sequences = encode_examples(tokenizer, *parts, max_seq_length=length)
            else:
                stride, _ = self.windows
                sequences, offsets = encode_windows(
                    tokenizer, texts[0], max_seq_length=length, stride=stride
                )
                counts["windows"] = len(sequences)
                arrays["window_offsets"] = offsets
            facts = {
                "label_names": known,
                "num_available": len(examples),
                "num_bad_rows": examples.num_bad_rows,
            }
            return arrays | sequences.arrays(), facts | {"counts": sequences.cut_counts() | counts}

        layout = asdict(self.layout if has_labels else self.test_layout)
        settings = {
            "layout": [layout, self.numeric_labels, names and list(names), has_labels],
            "max_examples": max_examples,
            "window_stride": self.windows and self.windows[0],
        }
        arrays, facts, _ = self.cached(path, settings, build)
        # an oversampled training file has rows twice, and no prediction carries their names
        if not is_training:
            _refuse_ids_twice(path, arrays["ids"], layout["id_column"])
        kept = TokenSequences.of(arrays), arrays["ids"], arrays["labels"]
        _, pooling = self.windows or (0, "mean")
        return LabelledSplit(
            *kept, **facts, window_offsets=arrays.get("window_offsets"), pooling=pooling
        )

    def _read(
        self, path: Path, names: Sequence[str] | None = None, has_labels: bool = True
    ) -> TextExamples:
        """Of any label unless `names` are given: which of them belong there is for a preview's
        reader to say.
        """
        layout = self.layout if has_labels else self.test_layout
        if self.numeric_labels:
            expected = NUMBERS
        else:
            expected = CLASSES
        if names is None and self.labels is not None and not self.numeric_labels:
            expected = ANY  # the classes are named: the file's own set is not what is trained on
        listed = [] if self.numeric_labels else self.labels
        return layout.read(path, has_labels, names=names, expected=expected, listed=listed or ())

    def compute_baselines(self) -> Scores:
        """Bag of words."""
        names = self.train.label_names
        train = self._read(self.train_path, names or None).limited(self.plan.max_train_examples)
        paths = {
            "": self.validation_path,
            **{f"{name}_": path for name, path in self.extra_paths.items()},
        }
        asked = {name: self._read(path, names or None) for name, path in paths.items()}
        learnt, labels = _pairs(train), train.label_values(names)
        texts = [pair for examples in asked.values() for pair in _pairs(examples)]
        guesses: NDArray[Any]
        if names:
            metrics = ["accuracy", "f1", "matthews"] if len(names) == 2 else ["accuracy"]
            guesses = guess_classes(learnt, labels, texts, len(names))
        else:
            metrics = ["spearman", "pearson"]
            guesses = guess_numbers(learnt, labels, texts)
        scores: dict[str, float] = {}
        for prefix, examples in asked.items():
            mine, guesses = guesses[: len(examples)], guesses[len(examples) :]
            found = glue.score(metrics, mine, examples.label_values(names))
            scores |= {f"{prefix}{name}": value for name, value in found.items()}
        return {BAG: scores}

    def preview(self) -> TaskPreview:
        train, validation = self._preview(self.train_path), self._preview(self.validation_path)
        names = None if self.numeric_labels else self.labels or sorted(set(train.labels or ()))
        return TaskPreview(
            train, validation, names, is_regression=self.numeric_labels, aligned=True
        )

    def _preview(self, path: Path) -> Preview:
        found = self._read(path)
        texts = dict(zip(self.layout.text_columns, zip(*found.texts, strict=True), strict=True))
        return Preview(texts, found.labels, len(found), {"damaged rows": found.num_bad_rows})


def _refuse_ids_twice(path: Path, ids: NDArray[np.str_], column: str | None) -> None:
    """ValueError where two rows have one id, so that nobody could tell whose a prediction is."""
    names, first, counts = np.unique(ids, return_index=True, return_counts=True)
    twice = np.flatnonzero(counts > 1)
    if not len(twice):
        return
    example = names[twice[first[twice].argmin()]]
    raise ValueError(
        f"{path}: {len(twice)} ids of the column {column!r} stand there twice, the first"
        f" {str(example)!r}, so that predictions would share them; make them unique, or number the"
        " rows (task.data.id_column=null)"
    )


def _pairs(examples: TextExamples) -> list[tuple[str, str]]:
    return [(texts[0], texts[1] if len(texts) == 2 else "") for texts in examples.texts]
