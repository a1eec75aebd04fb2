"""Labelled texts and pairs from tables.

Tables are the official GLUE files, and anybody's tsv, csv, jsonl, Parquet or Arrow. A task is a
YAML.

GLUE's format is tab-separated but not CSV: a quotation mark is a character like any other. Some
files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files
have no labels. A rare damaged row is skipped and counted. A label outside the list is never
skipped: it means that the list or the column is wrong.

Letters: N examples, W windows of them, K classes.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from clozelab.datamodules.baselines import BAG
from clozelab.datamodules.examples import (
    GroupedSequences,
    Ints,
    Sequences,
    TokenSequences,
    encode_examples,
    encode_windows,
    join_sequences,
    pool_windows,
    subset,
)
from clozelab.datamodules.files import (
    Arrays,
    Facts,
    Preview,
    Scores,
)
from clozelab.datamodules.finetuning import FinetuningDataModule, Split, TaskArguments
from clozelab.datamodules.label_kinds import Classes, LabelKind, Number, kind_of
from clozelab.datamodules.labels import (
    ANY,
    CLASSES,
    NUMBERS,
    LabelColumn,
    refuse_one_class,
    warn_of_lacking_classes,
)
from clozelab.datamodules.splitting import pair_groups, quantiles_of, swapped_hashes, text_hashes
from clozelab.files.digests import file_sha256
from clozelab.metrics import glue
from clozelab.readers.bad_rows import refuse_wrong_file
from clozelab.readers.cells import cell_text, is_missing
from clozelab.readers.records import DamagedRow, Record, Table, check_columns
from clozelab.readers.tables import open_table
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import Json, JsonObject

log = logging.getLogger(__name__)


@dataclass
class TextExamples:
    """Labelled texts of a table, in file order.

    The texts of an example are its text, its pair, or a context and its endings.
    """

    ids: list[str] = field(default_factory=list)
    texts: list[tuple[str, ...]] = field(default_factory=list)
    labels: list[str] | None = None  # None: the file has none
    num_bad_rows: int = 0
    lines: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        labels = None
        if self.labels is not None:
            labels = [self.labels[i] for i in index]
        ids = [self.ids[i] for i in index]
        texts = [self.texts[i] for i in index]
        lines = [self.lines[i] for i in index]
        return TextExamples(ids, texts, labels, self.num_bad_rows, lines)

    def limited(self, most: int | None) -> TextExamples:
        return self.select(subset(len(self), most))

    def row_arrays(self) -> Arrays:
        """What the cache holds of each row, used or not: a hash of its texts, and its line.

        Pairs have another hash, of the texts in the other order.
        """
        arrays: Arrays = {
            "row_hashes": text_hashes(self.texts),
            "row_lines": np.array(self.lines, dtype=np.int64),
        }
        if self.texts and len(self.texts[0]) == 2:
            arrays["swapped_hashes"] = swapped_hashes(self.texts)
        return arrays

    def label_values(self, kind: LabelKind) -> np.ndarray:
        """The labels as numbers; [N] of -1 for a file without labels."""
        if self.labels is None:
            return np.full(len(self), -1, dtype=np.int64)
        return kind.encode(self.labels)


@dataclass(frozen=True)
class TableFormat:
    """Where a task's texts and labels stand in a table.

    Columns are found by name, in any order, among any others. Of the file formats, tsv has tabs
    alone, and a quotation mark is a character like any other (GLUE); csv is quoted where needed;
    jsonl has an object a line; parquet and arrow are as pandas and `datasets` write them; auto goes
    by the file's name. A number or a truth stands as JSON writes it. Null and NaN are missing. A
    list is neither a text nor a label.
    """

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
        """Read one file, with its labels where `has_labels`: a test file may lack them.

        The labels are `expected` to be CLASSES, NUMBERS or ANY names; `names`: those that there
        are; `listed`: some that are labels beside others. A wrong label is never skipped. The
        numbers of a column to which the datasets library gave names (ClassLabel) are read as these
        names.

        ValueError names the file (and line) of a missing column, a wrong label, or more than 1 %
        damaged rows.
        """
        table = open_table(path, self.file_format, header=self.columns, required=self.text_columns)
        columns, id_column = self._columns_to_read(table, has_labels)
        label_column = LabelColumn(path, names, expected, listed=listed)
        named_classes = self._named_classes(table, listed if names is None else names, expected)
        examples = TextExamples()
        labels = []
        damaged = []
        num_rows = 0
        for row, (line, record) in enumerate(table.rows(columns)):
            num_rows += 1
            cells = self._cells_of(record, id_column)
            if isinstance(cells, str):
                damaged.append(f"{table.place(line)}: {cells}")
                continue
            if has_labels and not isinstance(record, DamagedRow):
                label = record.get(self.label_column)
                if named_classes is not None:
                    label = named_classes.read(label)
                labels.append(label_column.add(line, label))
            name, texts = cells
            examples.ids.append(str(row) if name is None else name)
            examples.texts.append(texts)
            examples.lines.append(line)
        if named_classes is not None:
            named_classes.refuse_two_readings()
        # A label column that is no column of labels, before the rows that are damaged beside it.
        label_column.refuse()
        refuse_wrong_file(path, damaged, num_rows, f"the columns {table.columns}")
        if has_labels:
            examples.labels = labels
        examples.num_bad_rows = len(damaged)
        return examples

    def _named_classes(
        self, table: Table, labels: Sequence[str], expected: str
    ) -> NamedClasses | None:
        """How the label column's numbers are read where the file names them.

        None: as they stand. So it is where numbers are expected, and where the known `labels` and
        the names have nothing in common.
        """
        names = table.class_names.get(self.label_column, [])
        if not names or expected == NUMBERS:
            return None
        if labels and set(labels).isdisjoint(names):
            return None
        return NamedClasses(table.path, self.label_column, names, frozenset(labels))

    def _columns_to_read(self, table: Table, has_labels: bool) -> tuple[list[str], str | None]:
        """All columns to read, and the one with ids.

        ValueError for one that is missing or stands there twice.
        """
        columns = list(self.text_columns)
        advice = ""
        if has_labels:
            columns.append(self.label_column)
            if set(self.text_columns) <= set(table.columns):
                advice = " (a test file without labels can only be predicted)"
        id_column = self.id_column
        if id_column is not None and id_column not in table.columns:
            # Ids are worth having, but no reason to refuse a file.
            log.warning("%s has no column %r: its rows are numbered from 0", table.path, id_column)
            id_column = None
        if id_column is not None:
            columns.append(id_column)
        check_columns(table.columns, columns, table.path, advice)
        return list(dict.fromkeys(columns)), id_column

    def _cells_of(
        self,
        record: Record,
        id_column: str | None,
    ) -> tuple[str | None, tuple[str, ...]] | str:
        """A row's id and texts; of a damaged row, what is wrong with it."""
        if isinstance(record, DamagedRow):
            return record.problem
        columns = list(self.text_columns)
        if id_column is not None:
            columns.append(id_column)
        lacking = [name for name in columns if is_missing(record.get(name))]
        if lacking:
            return f"no value of {', '.join(lacking)}"
        cells = dict[str, str]()
        for name in columns:
            try:
                cells[name] = cell_text(record[name])
            except ValueError as problem:
                return f"{name} is {problem}, and a text was expected"
        texts = tuple(cells[name] for name in self.text_columns)
        if id_column is None:
            return None, texts
        return cells[id_column], texts


@dataclass
class NamedClasses:
    """A column of numbers to which the datasets library gave names (ClassLabel)."""

    path: Path
    column: str
    names: list[str]
    labels: frozenset[str]  # those that are known; empty: none are
    numbers: set[int] = field(default_factory=set)  # that were read

    def read(self, value: object) -> Json:
        """The name of a class's number.

        None for -1, by which the datasets library means that a row has no label.
        """
        if isinstance(value, int) and 0 <= value < len(self.names):
            self.numbers.add(value)
            return self.names[value]
        if value == -1:
            return None
        return value

    def refuse_two_readings(self) -> None:
        """ValueError where the rows' names are known labels, and the numbers themselves are too.

        Names ["1", "2", "3"] beside the labels 0 to 3: is the number 1 the label "1" or "2"? No
        question is left where every known label is one of the names.
        """
        if self.labels <= set(self.names):
            return
        as_names = {number: self.names[number] for number in self.numbers}
        as_numbers = {number: str(number) for number in self.numbers}
        fits_twice = self.labels.issuperset(as_names.values()) and self.labels.issuperset(
            as_numbers.values()
        )
        if fits_twice and as_names != as_numbers:
            raise ValueError(
                f"{self.path}: the numbers of the column {self.column!r} are labels by themselves"
                f" and by their names {self.names}, of {sorted(self.labels)}: write the labels as"
                " text"
            )


@dataclass(frozen=True)
class LabelledSplit:
    """Examples of one split; `label_names` is empty for regression."""

    sequences: TokenSequences
    ids: NDArray[np.str_]
    # [N] indices into `label_names`, or the numbers themselves; -1 for a file without labels
    labels: np.ndarray
    label_names: list[str]
    num_available: int  # examples of the file before `max_examples` cut it
    num_bad_rows: int
    counts: dict[str, int] = field(default_factory=dict)  # what is unusual about those in use
    # further validation sets, scored beside this one
    extra: dict[str, LabelledSplit] = field(default_factory=dict)
    # [N + 1] where each example's windows begin; None: an example is one input
    window_offsets: Ints | None = None
    pooling: str = "mean"  # mean | max: of each logit over a text's windows
    # reads the texts of each example anew
    read_texts: Callable[[], list[tuple[str, ...]]] | None = None
    positive_label: str | None = None  # that F1 is of; None: as label_kinds.py says

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def kind(self) -> LabelKind:
        return kind_of(self.label_names, self.positive_label)

    @property
    def num_inputs(self) -> int:
        """Examples, or windows of them: as many as there are logits."""
        return len(self) if self.window_offsets is None else len(self.sequences)

    @property
    def input_labels(self) -> np.ndarray:
        """[num_inputs]: a window has the label of its text."""
        if self.window_offsets is None:
            return self.labels
        return np.repeat(self.labels, np.diff(self.window_offsets))

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pool the logits of each example's windows: [num_inputs, K] -> [N, K]."""
        if self.window_offsets is None:
            return logits
        return pool_windows(logits, self.window_offsets, self.pooling)


class LabelledDataModule(FinetuningDataModule):
    """Single texts or pairs with a class or a number each.

    Windows of a long text are training examples with its label; their logits are pooled into one
    prediction. Args: as conf/task/format/labelled.yaml says of each.
    """

    train: LabelledSplit
    validation: LabelledSplit

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
        positive_label: object,
        extra_validation_files: Mapping[str, str] | None,
        test_id_column: str | None,
        pairs: str,
        long_documents: str,
        window_stride: int,
        window_pooling: str,
        **common: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**common)
        text_columns = list(text_columns)
        if columns:
            columns = list(columns)
        self.layout = TableFormat(text_columns, label_column, id_column, columns, file_format)
        self.test_layout = replace(self.layout, id_column=test_id_column)
        # The classes of a fine-tuned model go before those of the configuration.
        if self.inputs.label_names is not None and not numeric_labels:
            labels = self.inputs.label_names
        self.labels: list[str] | None = None
        if labels is not None:
            self.labels = [str(label) for label in labels]
        self.numeric_labels = numeric_labels
        self.positive_label: str | None = None
        if positive_label is not None:
            self.positive_label = cell_text(positive_label)
        _check_columns_and_labels(text_columns, self.labels, pairs)
        self.pairs = pairs
        if len(text_columns) == 2:
            self.grouping = "rows with the same first text, and a pair and its swap, stay together"
        self.window_stride: int | None = None
        if _reads_windows(long_documents, window_pooling, text_columns):
            self.window_stride = window_stride
        self.long_documents = long_documents
        self.window_pooling = window_pooling
        self.extra_paths = {
            name: self.require(file) for name, file in (extra_validation_files or {}).items()
        }

    def remembered(self) -> JsonObject:
        """The same of windows, and how many texts it reads at once, but for a pair's read apart."""
        remembered = super().remembered() | {
            "long_documents": self.long_documents,
            "window_stride": self.window_stride,
            "window_pooling": self.window_pooling,
        }
        if self.positive_label is not None:
            remembered["positive_label"] = self.positive_label
        if self.pairs != "apart":
            remembered["texts_per_example"] = len(self.layout.text_columns)
        return remembered

    @property
    def reading(self) -> JsonObject:
        extra = {}
        for name, path in self.extra_paths.items():
            extra[name] = file_sha256(path)
        layout = [asdict(self.layout), self.labels, self.numeric_labels]
        windows = None
        if self.window_stride is not None:
            windows = (self.window_stride, self.window_pooling)
        return {"layout": layout, "extra_validation": extra, "windows": windows}

    @property
    def tokenization(self) -> JsonObject:
        tokenization = super().tokenization
        # Joint pairs have no key: older fingerprints knew nothing else.
        if self.pairs != "joint":
            tokenization["pairs"] = self.pairs
        return tokenization

    def read_splits(self) -> None:
        self.train = self._load(self.train_path, "training", self.labels)
        self._check_classes()
        assert self.train.kind  # refuses a positive label that is none
        names = self.train.label_names
        extra = {}
        for name, path in self.extra_paths.items():
            extra[name] = self._load(path, "validation", names)
        validation = self._load(self.validation_path, "validation", names)
        self.validation = replace(validation, extra=extra)
        self.train_targets = {"labels": self.train.input_labels}
        self.train_sequences = self._grouped(self.train.sequences)
        validation_splits = [self.validation, *extra.values()]
        joined = join_sequences([split.sequences for split in validation_splits])
        self.validation_sequences = self._grouped(joined)

    def _check_classes(self) -> None:
        """ValueError for a training file of one class; a warning for classes without an example."""
        if self.numeric_labels:
            if len(self.train) > 1 and np.ptp(self.train.labels) == 0:
                log.warning(
                    "%s: all rows have one label, %g", self.train_path, self.train.labels[0]
                )
            return
        refuse_one_class(self.train_path, self.train.label_names, "task.data.label_column")
        # A fine-tuned model brings its classes, and the file may lack some of those.
        if self.inputs.label_names is None:
            warn_of_lacking_classes(self.train_path, self.train.labels, self.train.label_names)

    def refuse_outside(self, number_range: Sequence[float] | None) -> None:
        """ValueError, with file and line, for a number beyond `number_range` (least, largest)."""
        if number_range is None or not self.numeric_labels:
            return
        # An error names the line, which only reading the file again can tell.
        least, largest = number_range
        for _, path, split in self.splits():
            assert isinstance(split, LabelledSplit)
            if len(split) and not least <= split.labels.min() <= split.labels.max() <= largest:
                self._refuse_outside(path, least, largest)

    def _refuse_outside(self, path: Path, least: float, largest: float) -> None:
        """The file is read again: splits know no lines."""
        layout = self.layout
        table = open_table(
            path, layout.file_format, header=layout.columns, required=layout.text_columns
        )
        for number, record in table.rows([layout.label_column]):
            if isinstance(record, DamagedRow):
                continue
            label = cell_text(record.get(layout.label_column))
            if glue.is_number(label) and not least <= float(label) <= largest:
                raise ValueError(
                    f"{path}:{number}: label {label} lies outside of {least:g} to {largest:g} "
                    "(task.module.number_range): mend it, or widen the range"
                )

    def _grouped(self, sequences: TokenSequences) -> Sequences:
        """An example is one sequence, or the two of a pair that are read apart."""
        if self.pairs == "apart":
            return GroupedSequences(sequences, 2)
        return sequences

    def splits(self) -> list[tuple[str, Path, Split]]:
        extra = []
        for name, split in self.validation.extra.items():
            extra.append((name, self.extra_paths[name], split))
        return super().splits() + extra

    def read_test(self, path: Path) -> tuple[Sequences, LabelledSplit]:
        split = self._load(path, "test", self.train.label_names)
        return self._grouped(split.sequences), split

    def _load(self, path: Path, role: str, names: Sequence[str] | None) -> LabelledSplit:
        """One split. `names` None: the sorted labels of the file.

        ValueError where two rows to predict have one id.
        """
        id_column = self._layout_of(role).id_column
        arrays, facts, _ = self.cached(path, role, self._encode, names=names, id_column=id_column)
        # An oversampled training file has rows twice, and no prediction carries their names.
        if role != "training":
            _refuse_ids_twice(path, arrays["ids"], id_column)
        split = LabelledSplit(
            sequences=TokenSequences.of(arrays),
            ids=arrays["ids"],
            labels=arrays["labels"],
            window_offsets=arrays.get("window_offsets"),
            pooling=self.window_pooling,
            positive_label=self.positive_label,
            **facts,
        )
        return replace(split, read_texts=lambda: self._read(path, role, names).texts)

    def _layout_of(self, role: str) -> TableFormat:
        if role == "test":
            return self.test_layout
        return self.layout

    def _encode(
        self,
        path: Path,
        role: str,
        names: Sequence[str] | None,
        id_column: str | None,  # noqa: ARG002  # of the layout, for the cache's key
    ) -> tuple[Arrays, Facts]:
        """What the cache holds of one split."""
        examples = self._read(path, role, names)
        label_names = []
        if not self.numeric_labels:
            label_names = list(names or sorted(set(examples.labels or [])))
        selected = examples.limited(self.limit(role))
        labels = selected.label_values(kind_of(label_names))
        # Of a regression: in the precision of the model's outputs.
        if labels.dtype.kind == "f":
            labels = labels.astype(np.float32)
        arrays: Arrays = {"ids": np.array(selected.ids, dtype=np.str_), "labels": labels}
        all_texts = list(itertools.chain.from_iterable(selected.texts))
        counts = {"empty_texts": sum(not text.strip() for text in all_texts)}
        tokenizer = self.inputs.tokenizer
        if self.window_stride is not None:
            sequences, offsets = encode_windows(
                tokenizer,
                all_texts,
                max_seq_length=self.max_seq_length,
                stride=self.window_stride,
            )
            counts["windows"] = len(sequences)
            arrays["window_offsets"] = offsets
        else:
            # [(a, b), (c, d)]: two sequences "a" and "b" of a pair that is read apart, one
            # sequence "a [SEP] b" of another
            if self.pairs == "apart":
                columns = [all_texts]
            else:
                columns = [list(column) for column in zip(*selected.texts, strict=True)]
            sequences = encode_examples(tokenizer, *columns, max_seq_length=self.max_seq_length)
        facts: Facts = {
            "label_names": label_names,
            "num_available": len(examples),
            "num_bad_rows": examples.num_bad_rows,
            "counts": sequences.cut_counts() | counts,
        }
        return arrays | examples.row_arrays() | sequences.arrays(), facts

    def _read(self, path: Path, role: str, names: Sequence[str] | None = None) -> TextExamples:
        """The examples of a file that are for a role, of any label unless `names` are given.

        Which of them belong there is for a preview's reader to say.
        """
        layout = self._layout_of(role)
        has_labels = role != "test"
        expected = CLASSES
        if self.numeric_labels:
            expected = NUMBERS
        elif names is None and self.labels is not None:
            expected = ANY  # the classes are named: the file's own set is not what is trained on
        examples = layout.read(
            path, has_labels, names=names, expected=expected, listed=self.labels or ()
        )
        return self._part_for(path, role, examples)

    def _part_for(self, path: Path, role: str, examples: TextExamples) -> TextExamples:
        """Those for a role, where validation is held out."""
        if self.held_out is None or examples.labels is None:
            return examples
        if self.numeric_labels:
            strata = quantiles_of(np.array(examples.labels, dtype=np.float64))
        else:
            _, strata = np.unique(examples.labels, return_inverse=True)
        return examples.select(self.rows_of(role, path, pair_groups(examples.texts), strata))

    def compute_baselines(self) -> Scores:
        """Bag of words."""
        label_kind = self.train.kind
        names = label_kind.names or None
        train = self._read(self.train_path, "training", names).limited(self.limit("training"))
        # Prefix of a score's name -> the validation set that it is of.
        paths = {"": self.validation_path}
        paths |= {f"{name}_": path for name, path in self.extra_paths.items()}
        validation = {}
        for prefix, path in paths.items():
            validation[prefix] = self._read(path, "validation", names)
        validation_pairs = []
        for examples in validation.values():
            validation_pairs += _pairs(examples)
        # All sets are guessed at once, behind each other: the words are learnt once.
        guesses = label_kind.guess(_pairs(train), train.label_values(label_kind), validation_pairs)
        scores: dict[str, float] = {}
        start = 0
        for prefix, examples in validation.items():
            end = start + len(examples)
            labels = examples.label_values(label_kind)
            set_scores = label_kind.score(label_kind.baseline_metrics, guesses[start:end], labels)
            scores |= {f"{prefix}{name}": value for name, value in set_scores.items()}
            start = end
        return {BAG: scores}

    def preview_facts(self, train: Preview) -> JsonObject:
        label_kind: LabelKind = Number()
        if not self.numeric_labels:
            names = self.labels or sorted(set(train.labels or ()))
            label_kind = Classes(names, self.positive_label)
        return {"kind": label_kind, "aligned": True}

    def preview_of(self, path: Path, role: str) -> Preview:
        examples = self._read(path, role)
        columns = zip(*examples.texts, strict=True)
        texts = dict(zip(self._layout_of(role).text_columns, columns, strict=True))
        counts = {"damaged rows": examples.num_bad_rows}
        return Preview(texts, examples.labels, len(examples), counts, examples.texts)


def _check_columns_and_labels(
    text_columns: Sequence[str], labels: Sequence[str] | None, pairs: str
) -> None:
    if len(text_columns) not in (1, 2):
        raise ValueError(f"text_columns must name one or two columns, not {list(text_columns)}")
    if labels is not None and len(set(labels)) < len(labels):
        raise ValueError(f"task.data.labels names a label twice: {labels}")
    if pairs not in ("joint", "apart") or (pairs == "apart" and len(text_columns) != 2):
        raise ValueError(
            f"pairs={pairs!r} of the columns {list(text_columns)}: joint, or of two columns apart"
        )


def _reads_windows(long_documents: str, window_pooling: str, text_columns: Sequence[str]) -> bool:
    """Whether long texts are read in windows; ValueError for settings that do not exist."""
    check_choice("long_documents", long_documents, ("truncate", "windows"))
    check_choice("window_pooling", window_pooling, ("mean", "max"))
    if long_documents == "windows" and len(text_columns) != 1:
        raise ValueError(
            f"long_documents=windows is for single texts; this task has pairs, {list(text_columns)}"
        )
    return long_documents == "windows"


def _refuse_ids_twice(path: Path, ids: NDArray[np.str_], column: str | None) -> None:
    """ValueError where two rows have one id, so that nobody could tell whose a prediction is."""
    distinct, first_rows, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = np.flatnonzero(counts > 1)
    if not len(repeated):
        return
    # `distinct` is sorted; the example is the one that comes first in the file
    example = distinct[repeated[first_rows[repeated].argmin()]]
    raise ValueError(
        f"{path}: {len(repeated)} ids of the column {column!r} stand there twice, the first"
        f" {str(example)!r}, so that predictions would share them; make them unique, or number the"
        " rows (task.data.id_column=null)"
    )


def _pairs(examples: TextExamples) -> list[tuple[str, str]]:
    """The texts as pairs, whose second side is empty for single texts."""
    pairs = []
    for texts in examples.texts:
        second = texts[1] if len(texts) == 2 else ""
        pairs.append((texts[0], second))
    return pairs
