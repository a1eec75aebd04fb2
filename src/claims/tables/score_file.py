"""A table of scores without run folders, for whoever trained elsewhere.

arm,seed,task,score
mlm,1,qnli,81.2
ltr,1,qnli,74.9
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pydantic import FiniteFloat, ValidationError

from claims.analysis.schema import (
    IN_PERCENT,
    Claim,
    Column,
    Entry,
    Row,
    SequentialDesign,
    TableSpec,
)
from claims.analysis.scores import Cell, DataColumn, Origin, ScoreTable
from claims.analysis.statistics import Seeds
from claims.tables.claim_file import validation_message
from claims.tables.layout import DEFAULT_LAYOUT, ScoreLayout, ScoreRows
from claims.tables.result_folders import read_result_folder
from claims.tables.rows import read_rows


class ScoreRow(Entry):
    """The cells of a score."""

    arm: str
    """the name of a system"""
    seed: int
    """a whole number"""
    finetuning_seed: int = 0
    """a whole number"""
    task: str
    """the name of a task"""
    metric: str = ""
    """the name of a metric"""
    score: FiniteFloat
    """a number; leave the line out where a run failed"""


@dataclass(frozen=True)
class Scores:
    """What a file or a folder of scores has."""

    # (arm, column) -> seeds -> score. A column is a task, and its metric where the file has several
    # of one task: "qnli accuracy".
    cells: dict[tuple[str, str], dict[Seeds, float]]
    # those of which the file itself gives unit and direction
    columns: list[Column] = field(default_factory=list)
    # what was left out, in words
    notes: list[str] = field(default_factory=list)


def read_scores(path: Path, layout: ScoreLayout = DEFAULT_LAYOUT) -> Scores:
    """Read scores from a CSV, a Parquet file or a folder of result files.

    ValueError: a column is missing, a cell is not what it should be (with its line), or two lines
    are about the same run.
    """
    read = read_result_folder if path.is_dir() else read_rows
    content = read(path, layout)
    if not content.rows:
        raise ValueError(f"{path}: no score of a finished run")
    rows = [(where, _read_row(path, where, cells)) for where, cells in content.rows]
    metrics: dict[str, set[str]] = {}
    for _, row in rows:
        metrics.setdefault(row.task, set()).add(row.metric)

    cells: dict[tuple[str, str], dict[Seeds, float]] = {}
    for where, row in rows:
        column = _column_name(row.task, row.metric, metrics)
        cell = cells.setdefault((row.arm, column), {})
        seeds = (row.seed, row.finetuning_seed)
        # One run has one score: two lines about it would count twice.
        if seeds in cell:
            fine = f", fine-tuning seed {row.finetuning_seed}" if row.finetuning_seed else ""
            raise ValueError(
                f"{path}, {where}: a second score of {row.arm} on {column}, seed {row.seed}{fine}"
            )
        cell[seeds] = row.score
    return Scores(cells, _falling_columns(content, metrics), content.notes)


def _column_name(task: str, metric: str, metrics: Mapping[str, set[str]]) -> str:
    """Of QNLI with accuracy and f1 "qnli accuracy" and "qnli f1"; of one metric "qnli"."""
    if len(metrics[task]) == 1:
        return task
    return f"{task} {metric}".strip()


def _falling_columns(found: ScoreRows, metrics: Mapping[str, set[str]]) -> list[Column]:
    names = [_column_name(task, metric, metrics) for task, metric in sorted(found.falling)]
    return [Column(name=name, task=name, unit="points", higher_is_better=False) for name in names]


def _read_row(path: Path, where: str, cells: Mapping[str, str]) -> ScoreRow:
    texts = {name: text.strip() for name, text in cells.items()}
    # An empty cell is none: it may only be one that nothing has to have.
    given = {name: text for name, text in texts.items() if text}
    try:
        return ScoreRow.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{path}, {where}: {validation_message(error, ScoreRow)}") from None


def make_score_table(
    scores: Scores,
    claims: Iterable[Claim],
    design: SequentialDesign | None = None,
    declared: Iterable[Column] = (),
) -> ScoreTable:
    """The table of a score file. Nothing is known of how its runs were made.

    `declared` are columns whose unit and direction are given, which go before what the file itself
    says; all others are taken for percent, where higher is better.
    """
    arms = dict.fromkeys(arm for arm, _ in scores.cells)
    known = {column.name: column for column in (*scores.columns, *declared)}
    columns = []
    for name in dict.fromkeys(name for _, name in scores.cells):
        columns.append(known.get(name, Column(name=name, task=name)))
    spec = TableSpec(
        columns=tuple(columns),
        rows=tuple(Row(row=arm, label=arm, arm=arm) for arm in arms),
        claims=tuple(claims),
        stopping=design,
    )
    datasets = tuple(map(_data_column, columns))
    cells = {}
    for dataset in datasets:
        of_column = {arm: scores.cells.get((arm, dataset.key), {}) for arm in arms}
        seeds = set(chain.from_iterable(of_column.values()))
        for arm, of_arm in of_column.items():
            # No file says that a run has collapsed, so all are taken for healthy.
            missing = tuple(sorted(seeds - of_arm.keys()))
            cells[arm, dataset.key] = Cell(scores=of_arm, healthy=of_arm, missing=missing)
    return ScoreTable(spec, datasets, cells)


def _data_column(column: Column) -> DataColumn:
    """A column of the file as a data set; scores without a declared scale are in percent."""
    return DataColumn(
        heading=column.name,
        key=column.name,
        metric="",
        column=column,
        origin=Origin.OTHER,
        scale=column.scale or IN_PERCENT,
        task=column.name,
        tasks=(column.name,),
    )
