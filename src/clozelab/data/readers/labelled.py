"""One split of a labelled task, tokenised: from a TSV file through the cache to rows, ids and class indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.random import uniform_u64
from clozelab.data.readers.cache import Arrays, Facts, cached_arrays, content_key
from clozelab.data.readers.files import file_sha256
from clozelab.data.readers.glue import TextExamples, TsvFormat, read_tsv
from clozelab.data.readers.rows import Ints, TokenRows, encode_examples
from clozelab.data.tokenizer import WordPieceTokenizer

FORMAT_VERSION = 1
"""Raised when this code makes other rows of the same file: older cache folders are then not found."""


@dataclass(frozen=True)
class LabelledRows:
    """Examples of one split; `labels` [N] are indices into `label_names`."""

    rows: TokenRows
    ids: NDArray[np.str_]
    labels: Ints
    label_names: list[str]
    num_available: int
    """Examples of the file before `max_examples` cut it."""
    num_bad_rows: int

    def __len__(self) -> int:
        return len(self.ids)


def subset(num_examples: int, max_examples: int | None) -> list[int]:
    """File positions of the examples to use: all, or a fixed pseudo-random choice in file order.

    The choice depends on nothing but both numbers, so every arm and every seed trains on the same examples; a smaller
    limit chooses a part of what a larger one does.
    """
    if max_examples is None or max_examples >= num_examples:
        return list(range(num_examples))
    if max_examples < 1:
        raise ValueError(f"max_train_examples={max_examples} must be at least 1 (null: all)")
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
) -> LabelledRows:
    """One split, from the cache if it was tokenised before. `label_names` None: the sorted labels of the file."""
    key: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "file": file_sha256(path),
        "layout": {field: value and list(value) for field, value in asdict(layout).items()},
        "tokenizer": tokenizer.fingerprint,
        "labels": label_names and list(label_names),
        "max_seq_length": max_seq_length,
        "max_examples": max_examples,
    }

    def build() -> tuple[Arrays, Facts]:
        examples = read_tsv(path, layout, label_names=label_names, require_labels=True)
        return _tokenise(examples, tokenizer, label_names, max_seq_length, max_examples)

    arrays, facts = cached_arrays(cache_dir / "tasks" / f"{name}-{content_key(key)}", build)
    rows = TokenRows(arrays["input_ids"], arrays["offsets"], arrays["second_starts"])
    return LabelledRows(rows=rows, ids=arrays["ids"], labels=arrays["labels"], **facts)


def _tokenise(
    examples: TextExamples,
    tokenizer: WordPieceTokenizer,
    label_names: Sequence[str] | None,
    max_seq_length: int,
    max_examples: int | None,
) -> tuple[Arrays, Facts]:
    assert examples.labels is not None  # required by the reader
    names = list(label_names) if label_names is not None else sorted(set(examples.labels))
    chosen = examples.select(subset(len(examples), max_examples))
    rows = encode_examples(tokenizer, chosen.first, chosen.second, max_seq_length=max_seq_length)
    index = {label: number for number, label in enumerate(names)}
    arrays: Arrays = {
        "input_ids": rows.input_ids,
        "offsets": rows.offsets,
        "second_starts": rows.second_starts,
        "ids": np.array(chosen.ids, dtype=np.str_),
        "labels": np.array([index[label] for label in chosen.labels or []], dtype=np.int64),
    }
    return arrays, {"label_names": names, "num_available": len(examples), "num_bad_rows": examples.num_bad_rows}
