"""Scores from a CSV: a table without run folders, for whoever trained elsewhere.

arm,seed,task,score
mlm,1,qnli,81.2
ltr,1,qnli,74.9
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from claims.analysis.schema import IN_PERCENT, Claim, Column, Row, SequentialDesign, TableSpec
from claims.analysis.scores import Cell, DataColumn, Origin, ScoreTable
from claims.analysis.statistics import Seeds

REQUIRED = ("arm", "seed", "task", "score")
FINETUNE_SEED_NAMES = ("finetuning_seed", "fine_tuning_seed")


@dataclass(frozen=True)
class ScoreLine:
    """One line of a score file."""

    number: int
    arm: str
    seeds: Seeds
    # the task, and its metric where the file has several of one task: "qnli accuracy"
    column: str
    score: float


def read_score_file(path: Path) -> list[ScoreLine]:
    """Read the lines of a CSV with the columns arm, seed, task and score.

    It may have finetuning_seed (or fine_tuning_seed) and metric, too; other columns are left
    alone. ValueError: a column is missing, a cell is not what it should be (with its line), or two
    lines are about the same run.
    """
    # utf-8-sig: Excel puts a byte order mark before a CSV.
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = list(reader.fieldnames or ())
        for name in REQUIRED:
            if name not in columns:
                raise ValueError(
                    f"{path}: no column {name!r}; it has {', '.join(columns) or 'none'}"
                )
        for name in columns:
            if columns.count(name) > 1:
                raise ValueError(f"{path}: two columns are called {name!r}")
        # The reader counts the lines that it has read, also inside a quoted cell.
        rows = [(reader.line_num, row) for row in reader]
    if not rows:
        raise ValueError(f"{path}: no line below the heading")

    metrics = _metrics_by_task(row for _, row in rows)
    lines = [_read_line(path, number, row, metrics) for number, row in rows]
    _refuse_repeated(path, lines)
    return lines


def _metrics_by_task(rows: Iterable[Mapping[str, str | None]]) -> dict[str, set[str]]:
    metrics: dict[str, set[str]] = {}
    for row in rows:
        task = (row["task"] or "").strip()
        metrics.setdefault(task, set()).add((row.get("metric") or "").strip())
    return metrics


def _read_line(
    path: Path, number: int, row: Mapping[str, str | None], metrics: Mapping[str, set[str]]
) -> ScoreLine:
    where = f"{path}, line {number}"
    # DictReader fills a short line with None, and files surplus cells under the key None.
    texts = {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}
    for name in REQUIRED:
        if not texts[name]:
            raise ValueError(f"{where}: {name} is empty")
    if None in row:
        raise ValueError(f"{where}: it has more cells than the heading")
    finetune_seed = 0
    for name in FINETUNE_SEED_NAMES:
        if texts.get(name):
            finetune_seed = _whole_number(texts[name], name, where)
    task = texts["task"]
    # Of QNLI with accuracy and f1: "qnli accuracy" and "qnli f1". Of one metric: "qnli".
    column = f"{task} {texts['metric']}" if len(metrics[task]) > 1 else task
    return ScoreLine(
        number=number,
        arm=texts["arm"],
        seeds=(_whole_number(texts["seed"], "seed", where), finetune_seed),
        column=column.strip(),
        score=_finite_number(texts["score"], where),
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
    first: dict[tuple[str, str, Seeds], int] = {}
    for line in lines:
        key = (line.arm, line.column, line.seeds)
        if key in first:
            seed, finetune_seed = line.seeds
            fine = f", fine-tuning seed {finetune_seed}" if finetune_seed else ""
            raise ValueError(
                f"{path}, lines {first[key]} and {line.number}: two scores of {line.arm} on"
                f" {line.column}, seed {seed}{fine}"
            )
        first[key] = line.number


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
    for arm in arms:
        for dataset in datasets:
            cell_scores = scores.get((arm, dataset.key), {})
            # No file says that a run has collapsed, so all are taken for healthy.
            cells[arm, dataset.key] = Cell(scores=cell_scores, healthy=cell_scores)
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
