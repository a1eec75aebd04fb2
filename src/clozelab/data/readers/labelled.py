"""One split of a GLUE-like task, tokenised: from a TSV file through the cache to rows, ids and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.checksums import file_sha256
from clozelab.data.random import uniform_u64
from clozelab.data.readers.cache import Arrays, Facts, cached_arrays, content_key
from clozelab.data.readers.glue import TextExamples, TsvFormat, read_tsv
from clozelab.data.readers.rows import Ints, TokenRows, encode_examples, encode_windows
from clozelab.data.tokenizer import WordPieceTokenizer

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
    tokenizer: WordPieceTokenizer,
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
    tokenizer: WordPieceTokenizer,
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
