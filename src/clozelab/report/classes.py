"""Where classifications fail, as a report shows it: from the class files of the runs in a table."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import fmean

from claims.analysis.scores import DataColumn
from clozelab.metrics.classes import MACRO, WEIGHTED
from clozelab.results.table import ResultTable

FIGURES = ("precision", "recall", "f1", "count")
MOST_CLASSES = 12  # on a page: of more those with the lowest F1; a matrix has no more
MOST_CONFUSIONS = 5


@dataclass(frozen=True)
class ClassTable:
    """One row of the table on one data set: its classes, the lowest F1 first, then the means."""

    title: str
    # class -> precision, recall and F1 in percent and its number of examples, as text
    classes: dict[str, list[str]]
    num_hidden: int
    # the labels and the counts of each label's answers, summed over runs; empty for many classes
    matrix: dict[str, list[int]]
    # "fraud answered as ok: 12 times"
    confusions: list[str]


def class_tables(table: ResultTable) -> list[ClassTable]:
    """A table for each row and data set whose runs left class files."""
    tables = []
    of_tasks: dict[str, DataColumn] = {}
    for column in table.with_results:
        of_tasks.setdefault(column.task, column)
    for column, row in product(of_tasks.values(), table.experiment.rows):
        cell = table.cells[row.name, column.key]
        folders = [run.folder for run in cell.runs.values()]
        figures = _mean_figures(folders)
        if figures:
            # (label, answer) -> how often, over all runs
            counts = Counter[tuple[str, str]]()
            for line in _lines(folders, "confusion.csv"):
                counts[line["label"], line["answer"]] += int(line["count"])
            tables.append(_class_table(f"{column.heading}, {row.label}", figures, counts))
    return tables


def _lines(folders: Iterable[Path], name: str) -> Iterator[dict[str, str]]:
    for folder in folders:
        path = folder / name
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        # Every run has scored an example: there are means, and a count.
        if not lines:
            raise ValueError(f"{path} is damaged: it has no rows")
        for line in lines:
            if None in line.values():
                raise ValueError(f"{path} is damaged: a row of it lacks cells")
            yield line


def _mean_figures(folders: list[Path]) -> dict[str, list[float]]:
    """Class, or name of a mean -> the means over runs of its FIGURES."""
    figures_of: dict[str, list[list[float]]] = {}
    for line in _lines(folders, "classes.csv"):
        figures = list(map(float, itemgetter(*FIGURES)(line)))
        figures_of.setdefault(line["label"], []).append(figures)
    means = {}
    for name, rows in figures_of.items():
        means[name] = list(map(fmean, zip(*rows, strict=True)))
    return means


def _class_table(
    title: str, figures: dict[str, list[float]], counts: Counter[tuple[str, str]]
) -> ClassTable:
    # A class that only later runs have stands behind the means.
    means = [MACRO, WEIGHTED]
    names = [name for name in figures if name not in means]
    worst = sorted(names, key=lambda name: figures[name][2])[:MOST_CLASSES]
    classes = {}
    for name in [*worst, *means]:
        *shares, count = figures[name]
        classes[name] = [*(f"{share:.1f}" for share in shares), f"{count:,.0f}"]
    matrix: dict[str, list[int]] = {}  # of the answers to each label, in the same order
    if counts and len(names) <= MOST_CLASSES:
        for label in names:
            matrix[label] = [counts[label, answer] for answer in names]
    wrong = Counter(counts)
    for name in names:
        del wrong[name, name]
    confusions = []
    for (label, answer), count in wrong.most_common(MOST_CONFUSIONS):
        confusions.append(f"{label} answered as {answer}: {count:,} times")
    return ClassTable(title, classes, len(names) - len(worst), matrix, confusions)
