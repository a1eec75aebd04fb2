"""Rows that are words already: lists of numbers, and k-mers, for a tokenizer of words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tests.corpus.test_prepare import opened
from tests.screens import refuses

from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.shards import PreparedCorpus

RNG = np.random.default_rng(0)
NUMBERS = [RNG.integers(0, 40, RNG.integers(3, 900)).tolist() for _ in range(50)]
"""The longest are beyond the 2,000 characters at which a sentence of text is cut."""
GENES = ["".join(RNG.choice(list("ACGT"), 60)) for _ in range(40)]


def k_mers(sequence: str, k: int = 3) -> str:
    return " ".join(sequence[start : start + k] for start in range(len(sequence) - k + 1))


def write(folder: Path, name: str, rows: list[Any]) -> None:
    folder.mkdir(exist_ok=True)
    if name.endswith(".jsonl"):
        lines = [json.dumps({"ids": row}) for row in rows]
        (folder / name).write_text("\n".join(lines))
    elif name.endswith(".parquet"):
        pandas.DataFrame({"n": range(len(rows)), "ids": rows}).to_parquet(folder / name)
    else:
        pandas.DataFrame({"n": range(len(rows)), "ids": rows}).to_feather(folder / name)


def words_of(corpus: PreparedCorpus) -> set[tuple[str, ...]]:
    """The words of every document, the two sides together."""
    model = json.loads((corpus.folder / "tokenizer/tokenizer.json").read_text())["model"]
    vocabulary = {token: word for word, token in model["vocab"].items()}
    documents = set()
    for side in (corpus.train, corpus.validation):
        for number in range(side.num_documents):
            first, end = side.sentence_offsets[side.document_offsets[[number, number + 1]]]
            documents.add(tuple(vocabulary[token] for token in side.tokens[first:end].tolist()))
    return documents


@pytest.mark.parametrize("rows", [NUMBERS, [k_mers(gene) for gene in GENES]], ids=["ids", "k-mers"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.feather"])
def test_rows_of_words_are_read_word_by_word(tmp_path: Path, name: str, rows: list[Any]) -> None:
    write(tmp_path / "data", name, rows)
    source = CorpusSource("rows", name, text_field="ids")
    options = {"kind": "whitespace", "vocab_size": 200, "lowercase": False}
    corpus = opened(tmp_path, sources=[source], **options)
    expected = set()
    for row in rows:
        expected.add(tuple(row.split() if isinstance(row, str) else map(str, row)))
    assert words_of(corpus) == expected
    assert corpus.manifest["unknown_fraction"] == 0


@pytest.mark.parametrize("row", [["a", "word"], [1.5], [[1]], [{"a": 1}], [True]])
def test_other_lists_are_no_text(tmp_path: Path, row: list[Any]) -> None:
    write(tmp_path, "rows.jsonl", [row])
    (file,) = CorpusSource("rows", "rows.jsonl", text_field="ids").shards(0, tmp_path)
    counts = CorpusCounts()
    assert list(file.texts(counts)) == []
    assert counts.first_bad == [f"rows.jsonl:1: no text in field 'ids' (it holds {row!r})"]


def test_a_column_of_other_lists_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "rows.parquet", [[0.5], [1.5]])
    with refuses("rows.parquet: the column 'ids' holds list<element: double>, no text"):
        CorpusSource("rows", "rows.parquet", text_field="ids").shards(0, tmp_path)
