"""Multiple choice: a context and a few endings of which one is right, from SWAG's CSV files and others of that kind.

SWAG is true CSV: fields with commas stand in quotes. Other sets (CODAH) are tab-separated without quoting, like GLUE;
there a quotation mark is a character like any other. Each choice becomes a row
`[CLS] context [SEP] start ending [SEP]`, where the start is the beginning of the second sentence that all endings share
(SWAG's `sent2`), if there is one.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.corpus.files import file_sha256
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.examples import TokenRows, encode_examples
from clozelab.datamodules.files import Arrays, Facts, cached_arrays, content_key, refuse_wrong_file, text_lines
from clozelab.datamodules.labelled import LabelledRows, subset

FORMAT_VERSION = 1
"""Raised when this code makes other rows of the same file: older cache folders are then not found."""

Fields = Iterator[tuple[int, list[str] | None]]
"""(line number, fields); None for a line that is not UTF-8."""


@dataclass(frozen=True)
class ChoiceFormat:
    """Where the parts of an example are.

    `columns` names them for a file without a header; None: its first line does. `is_csv`: comma-separated with quotes;
    otherwise tab-separated without any. `start_column` None: endings stand alone.
    """

    context_column: str
    start_column: str | None
    ending_columns: Sequence[str]
    label_column: str
    columns: Sequence[str] | None
    is_csv: bool

    def __post_init__(self) -> None:
        if len(self.ending_columns) < 2:
            raise ValueError(f"ending_columns must name at least two columns, not {list(self.ending_columns)}")


@dataclass(frozen=True)
class Fold:
    """A part of a file that has no official split: contexts fall into `number` folds by their text.

    Training reads all folds but `held_out`, validation that one; equal contexts are always on the same side.
    """

    number: int
    held_out: int
    is_training: bool

    def __post_init__(self) -> None:
        if not (self.number >= 2 and 0 <= self.held_out < self.number):
            raise ValueError(f"held_out_fold={self.held_out} is not one of folds={self.number} (counted from 0)")

    def holds(self, context: str) -> bool:
        place = int.from_bytes(hashlib.sha256(context.encode()).digest()[:8]) % self.number
        return (place != self.held_out) == self.is_training


@dataclass
class ChoiceExamples:
    """Examples in file order; `endings` [N][K] begin with the start they share; `labels` None: the file has none."""

    ids: list[str] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)
    endings: list[list[str]] = field(default_factory=list)
    labels: list[int] | None = None
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> ChoiceExamples:
        """The examples at `index`, in its order."""
        return ChoiceExamples(
            ids=[self.ids[i] for i in index],
            contexts=[self.contexts[i] for i in index],
            endings=[self.endings[i] for i in index],
            labels=None if self.labels is None else [self.labels[i] for i in index],
            num_bad_rows=self.num_bad_rows,
        )


def read_choices(path: Path, layout: ChoiceFormat, *, require_labels: bool) -> ChoiceExamples:
    """Read one file; the id of an example is its row number from 0. Labels are read only with `require_labels`.

    Raises ValueError naming the file (and line) for a missing column, a label that is no number of a choice, or more
    than 1 % damaged rows.
    """
    records = _csv_records(path) if layout.is_csv else _tsv_records(path)
    columns = list(layout.columns) if layout.columns is not None else _header(path, records)
    wanted = [layout.context_column, *layout.ending_columns, *([layout.start_column] if layout.start_column else [])]
    _require_columns(path, columns, [*wanted, *([layout.label_column] if require_labels else [])], layout.label_column)
    examples = ChoiceExamples(labels=[] if require_labels else None)
    bad: list[str] = []
    num_rows = 0
    for number, fields in records:
        row, num_rows = num_rows, num_rows + 1
        if fields is None or len(fields) != len(columns):
            found = "not UTF-8 text" if fields is None else f"{len(fields)} fields, expected {len(columns)}"
            bad.append(f"{path}:{number}: {found}")
            continue
        values = dict(zip(columns, fields, strict=True))
        start = f"{values[layout.start_column]} " if layout.start_column else ""
        examples.ids.append(str(row))
        examples.contexts.append(values[layout.context_column])
        examples.endings.append([(start + values[name]).strip() for name in layout.ending_columns])
        if examples.labels is not None:
            examples.labels.append(_label(f"{path}:{number}", values[layout.label_column], len(layout.ending_columns)))
    refuse_wrong_file(path, bad, num_rows, f"the columns {columns}")
    examples.num_bad_rows = len(bad)
    return examples


def load_choices(
    path: Path,
    layout: ChoiceFormat,
    tokenizer: Tokenizer,
    *,
    name: str,
    cache_dir: Path,
    fold: Fold | None,
    max_seq_length: int,
    max_examples: int | None,
    require_labels: bool = True,
) -> LabelledRows:
    """One split, from the cache if it was tokenised before; the class of an example is the number of its choice.

    `require_labels` False is for prediction: the file may come without a label column, and its labels are not read.

    `rows` holds the choices of each example one after the other: as many rows an example as `layout.ending_columns`.
    """
    key: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "file": file_sha256(path),
        "layout": asdict(layout),
        "fold": fold and asdict(fold),
        "tokenizer": tokenizer.fingerprint,
        "max_seq_length": max_seq_length,
        "max_examples": max_examples,
    }
    key |= {} if require_labels else {"require_labels": False}

    def build() -> tuple[Arrays, Facts]:
        examples = read_choices(path, layout, require_labels=require_labels)
        return _tokenise(path, examples, tokenizer, fold, max_seq_length, max_examples)

    arrays, facts = cached_arrays(cache_dir / "tasks" / f"{name}-{content_key(key)}", build)
    rows = TokenRows(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])
    return LabelledRows(rows=rows, ids=arrays["ids"], labels=arrays["labels"], **facts)


def _tokenise(
    path: Path,
    examples: ChoiceExamples,
    tokenizer: Tokenizer,
    fold: Fold | None,
    max_seq_length: int,
    max_examples: int | None,
) -> tuple[Arrays, Facts]:
    part = [i for i, context in enumerate(examples.contexts) if fold is None or fold.holds(context)]
    if not part:
        raise ValueError(f"{path}: no example falls into this fold of {fold}; take fewer folds or a larger file")
    chosen = [part[i] for i in subset(len(part), max_examples)]
    first = [examples.contexts[i] for i in chosen for _ in examples.endings[i]]
    second = [ending for i in chosen for ending in examples.endings[i]]
    rows = encode_examples(tokenizer, first, second, max_seq_length=max_seq_length)
    assert rows.cut_tokens is not None
    arrays: Arrays = {
        "input_ids": rows.input_ids,
        "offsets": rows.offsets,
        "second_starts": rows.second_starts,
        "ids": np.array([examples.ids[i] for i in chosen], dtype=np.str_),
        "labels": np.array([examples.labels[i] if examples.labels else -1 for i in chosen], dtype=np.int64),
    }
    counts = {
        "truncated_rows": int((rows.cut_tokens > 0).sum()),
        "truncated_tokens": int(rows.cut_tokens.sum()),
        "empty_texts": sum(not text.strip() for text in [*(examples.contexts[i] for i in chosen), *second]),
    }
    names = [str(number) for number in range(len(examples.endings[0]))]
    facts = {"label_names": names, "num_available": len(part), "num_bad_rows": examples.num_bad_rows, "counts": counts}
    return arrays, facts


def _csv_records(path: Path) -> Fields:
    """A quoted field may hold line breaks, so the csv module reads the file, not single lines."""
    with path.open(encoding="utf-8-sig", newline="", errors="surrogateescape") as file:
        reader = csv.reader(file, strict=True)
        try:
            for fields in reader:
                broken = any("\udc80" <= character <= "\udcff" for text in fields for character in text)
                yield reader.line_num, None if broken else fields
        except csv.Error as problem:
            raise ValueError(f"{path}:{reader.line_num}: not a CSV file: {problem}") from problem


def _tsv_records(path: Path) -> Fields:
    for number, line in text_lines(path):
        yield number, None if line is None else line.split("\t")


def _header(path: Path, records: Fields) -> list[str]:
    number, fields = next(records, (0, None))
    if fields is None:
        raise ValueError(
            f"{path} is empty; expected a header line and one example a line"
            if number == 0
            else f"{path}:{number}: the header is not UTF-8 text"
        )
    return fields


def _require_columns(path: Path, columns: list[str], wanted: list[str], label_column: str) -> None:
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; its columns are {columns}"
            + (" (a test file without labels can only be predicted)" if missing == [label_column] else "")
        )


def _label(where: str, text: str, num_choices: int) -> int:
    if not (text.isdecimal() and int(text) < num_choices):
        raise ValueError(f"{where}: label {text!r} is not the number of a choice, 0 to {num_choices - 1}")
    return int(text)
