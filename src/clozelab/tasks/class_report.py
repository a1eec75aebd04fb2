"""Where a classification fails: classes.csv, confusion.csv and errors.csv beside a run, and the
same in short for a terminal.

Letters: N examples, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozelab.metrics.classes import MACRO, WEIGHTED, ClassScores
from clozelab.readers.delimited import csv_line
from clozelab.text.formatting import shortened
from clozelab.text.plain import JsonObject

MOST_CLASSES = 8  # on a screen; of more the worst are shown
MATRIX_CLASSES = 5  # whose confusion matrix fits there
MOST_CONFUSIONS = 3
NAME_WIDTH = 28
COUNT_WIDTH = 9


@dataclass(frozen=True)
class ClassReport:
    """The scores of K classes, and their confusion matrix [K, K]: rows are labels.

    The matrix is None for entities, which are found or missed.
    """

    names: Sequence[str]
    scores: ClassScores
    matrix: NDArray[np.int64] | None = None

    @classmethod
    def from_pairs(cls, names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> ClassReport:
        """Of (label, answer) of N examples, each one of the names."""
        index = {name: number for number, name in enumerate(names)}
        matrix = np.zeros((len(names), len(names)), dtype=np.int64)
        for label, answer in pairs:
            matrix[index[label], index[answer]] += 1
        return cls(names, ClassScores.from_matrix(matrix), matrix)

    def rows(self) -> Iterator[tuple[str, list[float], int]]:
        """(class, [precision, recall, F1] in percent, number of labels), then both means."""
        scores = self.scores
        columns = [100 * shares for shares in (scores.precision, scores.recall, scores.f1)]
        counts = scores.num_labels.tolist()
        for name, *values, count in zip(self.names, *columns, counts, strict=True):
            yield name, values, count
        yield MACRO, list(map(scores.macro, columns)), sum(counts)
        yield WEIGHTED, list(map(scores.weighted, columns)), sum(counts)

    def confusions(self) -> list[tuple[str, str, int]]:
        """(label, answer, how often) of all that occurs."""
        cells = []
        if self.matrix is not None:
            for label, answer in np.argwhere(self.matrix).tolist():
                count = int(self.matrix[label, answer])
                cells.append((self.names[label], self.names[answer], count))
        return cells

    def files(self, suffix: str) -> dict[str, list[str]]:
        """Name -> lines of classes.csv and confusion.csv; the suffix is of a further split."""
        classes = []
        for name, values, count in self.rows():
            classes.append([name, *(f"{value:.4f}" for value in values), count])
        files = {
            f"classes{suffix}.csv": _csv(["label", "precision", "recall", "f1", "count"], classes)
        }
        if self.matrix is not None:
            header = ["label", "answer", "count"]
            files[f"confusion{suffix}.csv"] = _csv(header, self.confusions())
        return files

    def shown_lines(self) -> Iterator[str]:
        """A table for a terminal of 80 columns, in percent, the lowest F1 first.

        Below it stands the confusion matrix of few classes, or what is confused most often.
        """
        *of_classes, macro, weighted = self.rows()
        of_classes.sort(key=lambda row: row[1][-1])
        yield _shown_row("", ["precision", "recall", "F1", "count"])
        for name, values, count in [*of_classes[:MOST_CLASSES], macro, weighted]:
            yield _shown_row(name, [*(f"{value:.1f}" for value in values), _grouped(count)])
        if len(of_classes) > MOST_CLASSES:
            yield f"  {len(of_classes) - MOST_CLASSES} more classes in classes.csv"
        if self.matrix is not None and len(self.names) <= MATRIX_CLASSES:
            yield _shown_row("label \\ answer", self.names)
            for name, counts in zip(self.names, self.matrix.tolist(), strict=True):
                yield _shown_row(name, list(map(_grouped, counts)))
        else:
            yield from self._confusion_lines()

    def _confusion_lines(self) -> Iterator[str]:
        wrong = [cell for cell in self.confusions() if cell[0] != cell[1]]
        wrong.sort(key=lambda cell: -cell[-1])
        for label, answer, count in wrong[:MOST_CONFUSIONS]:
            row = _shown_row(label, [_grouped(count), "times"])
            yield f"{row} {_fitted(answer, NAME_WIDTH)}"


def largest_probability(logits: Sequence[float]) -> float:
    """The softmax of the largest of K logits, which is the answer's."""
    values = np.array(logits)
    return 1.0 / float(np.exp(values - values.max()).sum())


def error_lines(
    records: Sequence[JsonObject],
    texts: Sequence[Sequence[str]],
    probability_of: Callable[[Sequence[float]], float] = largest_probability,
) -> list[str]:
    """The lines of errors.csv: every wrong answer with its texts, the surest first.

    `records` [N] have id, label, prediction and logits; `texts` [N]. ValueError for other numbers.
    `probability_of` gives an answer's probability from the logits.
    """
    errors = []
    for record, of_record in zip(records, texts, strict=True):
        if record["prediction"] == record["label"]:
            continue
        probability = probability_of(record["logits"])
        cells = [record["id"], *of_record, record["label"], record["prediction"]]
        errors.append([*cells, f"{probability:.4f}"])
    errors.sort(key=lambda cells: -float(cells[-1]))
    names = ["text", *(f"text_{number}" for number in range(2, len(texts[0]) + 1))]
    return _csv(["id", *names, "label", "answer", "probability"], errors)


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [csv_line(cells).removesuffix("\n") for cells in (header, *rows)]


def _shown_row(name: str, cells: Sequence[str]) -> str:
    figures = "".join(f" {_fitted(cell, COUNT_WIDTH):>{COUNT_WIDTH}}" for cell in cells)
    return f"  {_fitted(name, NAME_WIDTH):{NAME_WIDTH}}{figures}"


def _grouped(count: int) -> str:
    return f"{count:,}"


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else shortened(text, width - 3)
