"""Labelled sentences and sentence pairs from the official GLUE files.

The format is tab-separated but not CSV: a quotation mark is a character like any other, so the csv module must not
touch it. Some files begin with a byte order mark, some end their lines with CRLF, CoLA has no header, test files have
no labels. A rare damaged row is skipped and counted; a file where more than `MAX_BAD_FRACTION` of the rows are damaged
is another format and is refused. A label outside the list is never skipped: it means that the list or the column is
wrong.

One split of a GLUE-like task, tokenised: from a TSV file through the cache to rows, ids and labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.random import uniform_u64
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.examples import Ints, TokenRows, encode_examples, encode_windows
from clozelab.datamodules.files import Arrays, Facts, cached_arrays, content_key, refuse_wrong_file, text_lines


@dataclass(frozen=True)
class TsvFormat:
    """Where a task's columns are. `columns` names them for a file without a header; None: the first line names them."""

    text_columns: Sequence[str]
    label_column: str
    id_column: str | None
    columns: Sequence[str] | None
    numeric_labels: bool = False
    """Labels are numbers (regression), not names of classes."""

    def __post_init__(self) -> None:
        if len(self.text_columns) not in (1, 2):
            raise ValueError(f"text_columns must name one or two columns, not {list(self.text_columns)}")


@dataclass
class TextExamples:
    """Examples in file order. `second` is None for single sentences, `labels` is None for a file without labels."""

    ids: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    second: list[str] | None = None
    labels: list[str] | None = None
    num_bad_rows: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, index: Sequence[int]) -> TextExamples:
        """The examples at `index`, in its order."""
        return TextExamples(
            ids=[self.ids[i] for i in index],
            first=[self.first[i] for i in index],
            second=None if self.second is None else [self.second[i] for i in index],
            labels=None if self.labels is None else [self.labels[i] for i in index],
            num_bad_rows=self.num_bad_rows,
        )


def read_tsv(path: Path, layout: TsvFormat, *, label_names: Sequence[str] | None, require_labels: bool) -> TextExamples:
    """Read one file. `label_names` None accepts every label; `require_labels` False allows a missing label column.

    Raises ValueError naming the file (and line) for a missing column, an unknown label, or more than 1 % damaged rows.
    """
    lines = text_lines(path)
    columns = list(layout.columns) if layout.columns is not None else _header(path, lines)
    positions = _positions(path, columns, layout, require_labels)
    text_at, label_at, id_at = positions
    examples = TextExamples(second=[] if len(text_at) == 2 else None, labels=[] if label_at is not None else None)
    bad: list[str] = []
    num_rows = 0
    for row, (number, line) in enumerate(lines):
        num_rows += 1
        fields = line.split("\t") if line is not None else []
        if len(fields) != len(columns):
            bad.append(f"{path}:{number}: " + _what_is_wrong(line, len(fields), len(columns)))
            continue
        examples.ids.append(fields[id_at] if id_at is not None else str(row))
        examples.first.append(fields[text_at[0]])
        if examples.second is not None:
            examples.second.append(fields[text_at[1]])
        if examples.labels is not None and label_at is not None:
            _check_label(path, number, fields[label_at], label_names, layout.numeric_labels)
            examples.labels.append(fields[label_at])
    refuse_wrong_file(path, bad, num_rows, f"the columns {columns}")
    examples.num_bad_rows = len(bad)
    return examples


def _header(path: Path, lines: Iterator[tuple[int, str | None]]) -> list[str]:
    number, line = next(lines, (0, None))
    if number == 0:
        raise ValueError(f"{path} is empty; expected a header line and one example a line, separated by tabs")
    if line is None:
        raise ValueError(f"{path}:{number}: the header is not UTF-8 text; expected a tab-separated GLUE file")
    return line.split("\t")


def _positions(
    path: Path, columns: list[str], layout: TsvFormat, require_labels: bool
) -> tuple[list[int], int | None, int | None]:
    wanted = [*layout.text_columns, *([layout.id_column] if layout.id_column else [])]
    wanted += [layout.label_column] if require_labels else []
    missing = [name for name in wanted if name not in columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(map(repr, missing))}; its columns are {columns}"
            + (" (a test file without labels can only be predicted)" if missing == [layout.label_column] else "")
        )
    label_at = columns.index(layout.label_column) if layout.label_column in columns else None
    id_at = columns.index(layout.id_column) if layout.id_column else None
    return [columns.index(name) for name in layout.text_columns], label_at, id_at


def _check_label(path: Path, number: int, label: str, label_names: Sequence[str] | None, numeric: bool) -> None:
    if numeric:
        if not _is_number(label):
            raise ValueError(f"{path}:{number}: label {label!r} is not a number; this task predicts one")
    elif label_names is not None and label not in label_names:
        raise ValueError(f"{path}:{number}: label {label!r} is not one of the known labels {list(label_names)}")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _what_is_wrong(line: str | None, found: int, expected: int) -> str:
    return "not UTF-8 text" if line is None else f"{found} tab-separated fields, expected {expected}"


FORMAT_VERSION = 2
"""Raised when this code makes other rows of the same file: older cache folders are then not found."""


POOLINGS = ("mean", "max")


@dataclass(frozen=True)
class WindowRule:
    """How texts longer than a row are divided, and how what is said of the parts becomes one answer."""

    stride: int
    """In tokens, from one window's beginning to the next one's."""
    pooling: str
    """mean | max: of each logit over a text's windows."""

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ValueError(f"window_pooling={self.pooling!r} is unknown; known: {', '.join(POOLINGS)}")


@dataclass(frozen=True)
class Windows:
    """Which rows are whose: those from offsets[i] to offsets[i + 1] are windows of example i."""

    offsets: Ints
    """[N + 1]."""
    pooling: str

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[rows, K] -> [N, K]."""
        if self.pooling == "max":
            return np.maximum.reduceat(logits, self.offsets[:-1], axis=0)
        sums = np.add.reduceat(logits, self.offsets[:-1], axis=0)
        return (sums / np.diff(self.offsets)[:, None]).astype(np.float32)


@dataclass(frozen=True)
class LabelledRows:
    """Examples of one split.

    `labels` [N] are indices into `label_names`; the numbers themselves where `label_names` is empty (regression); -1
    for a file without labels.
    """

    rows: TokenRows
    ids: NDArray[np.str_]
    labels: NDArray[Any]
    label_names: list[str]
    num_available: int
    """Examples of the file before `max_examples` cut it."""
    num_bad_rows: int
    counts: dict[str, int] = field(default_factory=dict)
    """What is unusual about the rows in use: truncated_rows, truncated_tokens, empty_texts, duplicate_ids; and of
    windows: windows, texts_in_windows."""
    extra: dict[str, LabelledRows] = field(default_factory=dict)
    """Further validation sets of the same task by name, scored beside this one."""
    windows: Windows | None = None
    """None: an example is one input."""

    @property
    def num_inputs(self) -> int:
        """Examples, or windows of them: as many as there are logits."""
        return len(self) if self.windows is None else len(self.rows)

    @property
    def input_labels(self) -> NDArray[Any]:
        """[num_inputs]: a window has the label of its text."""
        return self.labels if self.windows is None else np.repeat(self.labels, np.diff(self.windows.offsets))

    def pool(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """[num_inputs, K] -> [N, K]."""
        return logits if self.windows is None else self.windows.pool(logits)

    @property
    def is_regression(self) -> bool:
        return not self.label_names

    def __len__(self) -> int:
        return len(self.ids)


def subset(num_examples: int, max_examples: int | None) -> list[int]:
    """File positions of the examples to use: all, or a fixed pseudo-random choice in file order.

    The choice depends on nothing but both numbers, so every arm and every seed trains on the same examples; a smaller
    limit chooses a part of what a larger one does.
    """
    if max_examples is None or max_examples >= num_examples:
        return list(range(num_examples))
    draws = uniform_u64(0, 0, "task-subset", np.arange(num_examples))
    return sorted(np.argsort(draws, kind="stable")[:max_examples].tolist())


def load_labelled(
    path: Path,
    layout: TsvFormat,
    tokenizer: Tokenizer,
    *,
    name: str,
    cache_dir: Path,
    label_names: Sequence[str] | None,
    max_seq_length: int,
    max_examples: int | None,
    require_labels: bool = True,
    window_rule: WindowRule | None = None,
) -> LabelledRows:
    """One split, from the cache if it was tokenised before. `label_names` None: the sorted labels of the file.

    `require_labels` False is for prediction: the file may come without a label column. `window_rule` None: a text
    longer than a row is cut.
    """
    key: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "file": file_sha256(path),
        "layout": asdict(layout),
        "tokenizer": tokenizer.fingerprint,
        "labels": label_names and list(label_names),
        "max_seq_length": max_seq_length,
        "max_examples": max_examples,
        "require_labels": require_labels,
    }
    key |= {"window_stride": window_rule.stride} if window_rule else {}

    def build() -> tuple[Arrays, Facts]:
        examples = read_tsv(path, layout, label_names=label_names, require_labels=require_labels)
        names = _names(examples, layout, label_names)
        stride = window_rule.stride if window_rule else None
        return _tokenise(examples, tokenizer, names, max_seq_length, max_examples, stride)

    arrays, facts = cached_arrays(cache_dir / "tasks" / f"{name}-{content_key(key)}", build)
    rows = TokenRows(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])
    windows = Windows(arrays["window_offsets"], window_rule.pooling) if window_rule else None
    return LabelledRows(rows=rows, ids=arrays["ids"], labels=arrays["labels"], windows=windows, **facts)


def _names(examples: TextExamples, layout: TsvFormat, given: Sequence[str] | None) -> list[str]:
    """Names of the classes in the order of their indices; empty for numbers."""
    if layout.numeric_labels:
        return []
    return list(given) if given is not None else sorted(set(examples.labels or []))


def _tokenise(
    examples: TextExamples,
    tokenizer: Tokenizer,
    label_names: list[str],
    max_seq_length: int,
    max_examples: int | None,
    window_stride: int | None,
) -> tuple[Arrays, Facts]:
    chosen = examples.select(subset(len(examples), max_examples))
    windows: dict[str, Ints] = {}
    if window_stride is None:
        rows = encode_examples(tokenizer, chosen.first, chosen.second, max_seq_length=max_seq_length)
    else:
        rows, offsets = encode_windows(tokenizer, chosen.first, max_seq_length=max_seq_length, stride=window_stride)
        windows = {"window_offsets": offsets}
    arrays: Arrays = {
        "input_ids": rows.input_ids,
        "offsets": rows.offsets,
        "second_starts": rows.second_starts,
        "ids": np.array(chosen.ids, dtype=np.str_),
        "labels": _label_values(chosen, label_names),
        **windows,
    }
    facts = {"label_names": label_names, "num_available": len(examples), "num_bad_rows": examples.num_bad_rows}
    counts = _counts(chosen, rows)
    if windows:
        counts |= {"windows": len(rows), "texts_in_windows": int((np.diff(windows["window_offsets"]) > 1).sum())}
    return arrays, facts | {"counts": counts}


def _label_values(examples: TextExamples, names: list[str]) -> NDArray[Any]:
    if examples.labels is None:
        return np.full(len(examples), -1, dtype=np.int64)
    if not names:
        return np.array([float(label) for label in examples.labels], dtype=np.float32)
    index = {label: number for number, label in enumerate(names)}
    return np.array([index[label] for label in examples.labels], dtype=np.int64)


def _counts(examples: TextExamples, rows: TokenRows) -> dict[str, int]:
    assert rows.cut_tokens is not None  # this reader counts them
    texts = [*examples.first, *(examples.second or [])]
    return {
        "truncated_rows": int((rows.cut_tokens > 0).sum()),
        "truncated_tokens": int(rows.cut_tokens.sum()),
        "empty_texts": sum(not text.strip() for text in texts),
        "duplicate_ids": len(examples) - len(set(examples.ids)),
    }
