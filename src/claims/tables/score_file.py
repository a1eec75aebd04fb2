"""A table of scores without run folders, for whoever trained elsewhere.

arm,seed,task,score
mlm,1,qnli,81.2
ltr,1,qnli,74.9
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from claims.analysis.schema import IN_PERCENT, Claim, Column, Row, SequentialDesign, TableSpec
from claims.analysis.scores import Cell, DataColumn, Origin, ScoreTable
from claims.analysis.statistics import Seeds
from claims.tables.layout import Layout, ScoreRows
from claims.tables.result_folders import read_result_folder
from claims.tables.rows import read_rows

REQUIRED = ("arm", "seed", "task", "score")


@dataclass(frozen=True)
class ScoreLine:
    """One score of one run."""

    # "line 3", or a file of a folder
    where: str
    arm: str
    seeds: Seeds
    # the task, and its metric where the file has several of one task: "qnli accuracy"
    column: str
    score: float


@dataclass(frozen=True)
class Scores:
    """What a file or a folder of scores has."""

    lines: list[ScoreLine]
    # those of which the file itself gives unit and direction
    columns: list[Column]
    # what was left out, in words
    notes: list[str]


def read_scores(path: Path, layout: Layout | None = None) -> Scores:
    """Read scores from a CSV, a Parquet file or a folder of result files.

    ValueError: a column is missing, a cell is not what it should be (with its line), or two lines
    are about the same run.
    """
    layout = layout or Layout()
    found = read_result_folder(path, layout) if path.is_dir() else read_rows(path, layout)
    metrics: dict[str, set[str]] = {}
    for _, cells in found.rows:
        metrics.setdefault(cells["task"].strip(), set()).add(cells.get("metric", "").strip())
    lines = [_read_line(path, where, cells, metrics) for where, cells in found.rows]
    _refuse_repeated(path, lines)
    return Scores(lines, _falling_columns(found, metrics), found.notes)


def _column_name(task: str, metric: str, metrics: Mapping[str, set[str]]) -> str:
    """Of QNLI with accuracy and f1 "qnli accuracy" and "qnli f1"; of one metric "qnli"."""
    if len(metrics[task]) == 1:
        return task
    return f"{task} {metric}".strip()


def _falling_columns(found: ScoreRows, metrics: Mapping[str, set[str]]) -> list[Column]:
    names = [_column_name(task, metric, metrics) for task, metric in sorted(found.falling)]
    return [Column(name=name, task=name, unit="points", higher_is_better=False) for name in names]


def _read_line(
    path: Path, where: str, cells: Mapping[str, str], metrics: Mapping[str, set[str]]
) -> ScoreLine:
    place = f"{path}, {where}"
    texts = {name: text.strip() for name, text in cells.items()}
    for name in REQUIRED:
        if not texts[name]:
            raise ValueError(f"{place}: {name} is empty")
    finetune_seed = 0
    if texts.get("finetuning_seed"):
        finetune_seed = _whole_number(texts["finetuning_seed"], "finetuning_seed", place)
    return ScoreLine(
        where=where,
        arm=texts["arm"],
        seeds=(_whole_number(texts["seed"], "seed", place), finetune_seed),
        column=_column_name(texts["task"], texts.get("metric", ""), metrics),
        score=_finite_number(texts["score"], place),
    )


def _whole_number(text: str, name: str, where: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{where}: {name} is {text!r}; it is a whole number") from None


def _finite_number(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        raise ValueError(f"{where}: score is {text!r}; it is a number") from None
    if not math.isfinite(score):
        raise ValueError(f"{where}: score is {text!r}; leave the line out where a run failed")
    return score


def _refuse_repeated(path: Path, lines: Iterable[ScoreLine]) -> None:
    """One run has one score: two lines about it would count twice."""
    first: dict[tuple[str, str, Seeds], str] = {}
    for line in lines:
        key = (line.arm, line.column, line.seeds)
        if key in first:
            seed, finetune_seed = line.seeds
            fine = f", fine-tuning seed {finetune_seed}" if finetune_seed else ""
            raise ValueError(
                f"{path}, {first[key]} and {line.where}: two scores of {line.arm} on"
                f" {line.column}, seed {seed}{fine}"
            )
        first[key] = line.where


def make_score_table(
    lines: Iterable[ScoreLine],
    claims: Iterable[Claim],
    design: SequentialDesign | None = None,
    declared: Iterable[Column] = (),
) -> ScoreTable:
    """The table of a score file. Nothing is known of how its runs were made.

    `declared` are columns whose unit and direction are given; all others are taken for percent,
    where higher is better.
    """
    scores: dict[tuple[str, str], dict[Seeds, float]] = {}
    for line in lines:
        scores.setdefault((line.arm, line.column), {})[line.seeds] = line.score
    arms = dict.fromkeys(arm for arm, _ in scores)
    column_names = dict.fromkeys(name for _, name in scores)
    declared_columns = {column.name: column for column in declared}
    columns = []
    for name in column_names:
        columns.append(declared_columns.get(name, Column(name=name, task=name)))
    rows = [Row(row=arm, label=arm, arm=arm) for arm in arms]
    spec = TableSpec(
        columns=tuple(columns),
        rows=tuple(rows),
        claims=tuple(claims),
        stopping=design,
    )
    datasets = tuple(map(_data_column, columns))
    cells = {}
    for dataset in datasets:
        of_column = {arm: scores.get((arm, dataset.key), {}) for arm in arms}
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
