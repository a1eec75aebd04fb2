"""What this room warns of, and the sentence that says so: a row a case."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calling import call_with_fixtures
from tests.datamodules import (
    test_choices,
    test_corpus,
    test_labelled,
    test_labels,
    test_squad,
    test_tags,
)

from clozelab.corpus.tokenizers import WordPieceTokenizer

make_choices = test_choices.make
make_corpus = test_corpus.make
corpus = test_corpus.corpus
make_tags = test_tags.make_tags


def a_table_without_its_column_of_names(tmp_path: Path) -> None:
    path = test_labelled.write_table(tmp_path, "s2\ts1\tlabel\nb\ta\tyes\nd\tc\tno\n")
    test_labelled.read_table_of(path, test_labelled.PAIRS, ["yes", "no"])


def a_class_without_an_example(tmp_path: Path, tokenizer: WordPieceTokenizer) -> None:
    (tmp_path / "x.tsv").write_text("text\tlabel\nthe cat\tyes\n \tyes\n")
    test_labelled.load(tmp_path, tokenizer, labels=["yes", "no"])


def a_stray_nul(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(test_labels.STRAY_NUL[name])
    test_labels.read(tmp_path / name)


WARNINGS: list[tuple[str, Callable[..., Any], str]] = [
    (
        "another set in the same columns",
        lambda make_choices: make_choices(published_train_examples=73546).setup(),
        "train.csv has 21 examples, toy's own has 73546",
    ),
    (
        "texts that are cut: which",
        lambda make_choices: make_choices(max_seq_length=8).setup(),
        "toy, training:",
    ),
    (
        "texts that are cut: where",
        lambda make_choices: make_choices(max_seq_length=8).setup(),
        "sequences are longer than max_seq_length=8 and were cut",
    ),
    (
        "a table without its column of names",
        a_table_without_its_column_of_names,
        "has no column 'index': its rows are numbered from 0",
    ),
    (
        "a class without an example",
        a_class_without_an_example,
        "x.tsv has no example of 1 of 2 classes: 'no'",
    ),
    (
        "an empty text",
        a_class_without_an_example,
        "x, training: 1 texts are empty",
    ),
    (
        "a stray NUL in tabs",
        lambda tmp_path: a_stray_nul(tmp_path, "x.tsv"),
        "1 NUL characters were removed",
    ),
    (
        "a stray NUL in commas",
        lambda tmp_path: a_stray_nul(tmp_path, "x.csv"),
        "1 NUL characters were removed",
    ),
    (
        "a stray NUL in JSON",
        lambda tmp_path: a_stray_nul(tmp_path, "x.jsonl"),
        "1 NUL characters were removed",
    ),
    (
        "a short encoder shortens the question",
        lambda tmp_path: test_squad.build_module(tmp_path, question="who sat who").setup(),
        "questions are cut at 1 tokens (not 3)",
    ),
    (
        "questions that are cut are counted",
        lambda tmp_path: test_squad.build_module(tmp_path, question="who sat who").setup(),
        "s, training: 6 questions are longer than max_query_length and were cut",
    ),
    (
        "words that are cut",
        lambda make_tags: make_tags("a" + "b" * 40 + " B-PER\nc O\n", "a O\n").setup(),
        "toy, training: 1 words are longer than a sequence and were cut",
    ),
    (
        "capitals that the vocabulary lacks",
        lambda make_tags: make_tags("a B-PER\n", "a B-PER\n").setup(),
        "vocabulary is lower-cased",
    ),
    (
        "tags without documents",
        lambda make_tags: make_tags("a B-PER\n", "a B-PER\n").setup(),
        "marks no documents",
    ),
]


@pytest.mark.parametrize(
    ("call", "sentence"), [row[1:] for row in WARNINGS], ids=[row[0] for row in WARNINGS]
)
def test_warning(
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    call: Callable[..., Any],
    sentence: str,
) -> None:
    with caplog.at_level(logging.WARNING):
        call_with_fixtures(call, request)
    assert sentence in caplog.text
