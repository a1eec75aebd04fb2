"""How many examples a task's files hold, and about how long they are; without a tokenizer."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from clozelab.data.readers.files import text_lines

SAMPLE_ROWS = 500


class Sample(NamedTuple):
    """Examples in a file, and their mean length; `words` of a tagged file's sentences, else 0."""

    examples: int
    characters: float
    words: float = 0.0


@cache
def sample_rows(path: Path, text_columns: tuple[str, ...], word_column: int | None) -> Sample | None:
    """What a task's file holds, by its first examples; None where the file is not there.

    Counts lines (questions of SQuAD's JSON): what the readers leave out is counted, too. With a `word_column` it is a
    tagged file, one word a line, and its sentences are counted.
    """
    if not path.is_file():
        return None
    try:
        if path.suffix == ".json":
            return _questions(path)
        lines = [line or "" for _, line in text_lines(path)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if word_column is not None:
        return _sentences(lines, word_column)
    rows = [line for line in lines if line.strip()]
    separator = "," if path.suffix == ".csv" else "\t"
    sample = list(
        csv.reader(
            rows[: SAMPLE_ROWS + 1],
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
        )
    )
    places = [sample[0].index(name) for name in text_columns if name in sample[0]] if sample else []
    texts = [[row[place] for place in places if place < len(row)] if places else row for row in sample[1:]]
    characters = [sum(len(text) for text in row) for row in texts]
    return Sample(max(1, len(rows) - 1), sum(characters) / max(1, len(characters)))


def _questions(path: Path) -> Sample:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    lengths = [
        len(paragraph["context"]) + len(question["question"])
        for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]
    ]  # fmt: skip
    return Sample(len(lengths), sum(lengths) / max(1, len(lengths)))


def _sentences(lines: Sequence[str], word_column: int) -> Sample:
    sentences: list[list[int]] = [[]]
    for line in lines:
        cells = line.split()
        if not cells and sentences[-1]:
            sentences.append([])
        if len(cells) > word_column and line[0] != "#":
            sentences[-1].append(len(cells[word_column]) + 1)
    found = [words for words in sentences if words]
    number = max(1, len(found))
    return Sample(len(found), sum(map(sum, found)) / number, sum(map(len, found)) / number)
