"""A table of scores without run folders, for whoever trained elsewhere.

arm,seed,task,score
mlm,1,qnli,81.2
ltr,1,qnli,74.9
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import FiniteFloat, ValidationError

from claims.analysis.grouping import group_by
from claims.analysis.schema import (
    ALL_COLUMNS,
    IN_PERCENT,
    PERCENT,
    Claim,
    Column,
    Entry,
    Row,
    SequentialDesign,
    TableSpec,
    refuse_ambiguous_all,
)
from claims.analysis.scores import Cell, DataColumn, Origin, ScoreTable
from claims.analysis.statistics import Seeds
from claims.tables.claim_file import validation_message
from claims.tables.layout import DEFAULT_LAYOUT, ScoreLayout
from claims.tables.result_folders import read_result_folder
from claims.tables.rows import TRUTH, read_rows
from claims.text.phrases import FORMULA

# (arm, column) -> seeds -> [examples]
ExampleScores = dict[tuple[str, str], dict[Seeds, NDArray[np.float64]]]
# the last words of what is better where it is smaller
FALLING = re.compile(
    r"(?:^|[^a-z])((?:log|val|train|eval|test|dev)?loss|nll|cross_entropy"
    r"|(?:[a-z]+_)?perplexity|ppl|bpc|bits_per_[a-z]+"
    r"|error|error_rate|ece|brier_score|mae|mse|rmse|wer|cer|ter)$"
)
# what is negated is better where it is larger, such as scikit-learn's neg_log_loss
NEGATED = re.compile(r"(?:^|[^a-z])neg(?:ative)?_")
# the apostrophe of a spreadsheet before what would be a formula
ESCAPED = re.compile(f"^'(?=[{re.escape(FORMULA)}])")
CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
# a score from here on is in percent, so that one of at most 1 beside it may be a fraction
SURELY_PERCENT = 10.0


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
    unit: str = ""
    """the unit of the score; without it, percent"""
    higher_is_better: bool | None = None
    """True or False; without it, the name of the score says it"""
    example: str = ""
    """the name of an example"""
    score: FiniteFloat
    """a number with a decimal point; leave the line out where a run failed"""


@dataclass(frozen=True)
class Scores:
    """What a file or a folder of scores has."""

    # (arm, column) -> seeds -> score. A column is a task, and its metric where the file has several
    # of one task: "qnli accuracy".
    cells: dict[tuple[str, str], dict[Seeds, float]]
    # those whose unit or direction is known, by their names or the files' own word
    columns: list[Column] = field(default_factory=list)
    # names of those that were fractions and are percent now
    fractions: list[str] = field(default_factory=list)
    # column -> its arms with scores that may be fractions, among scores in percent
    doubtful: dict[str, list[str]] = field(default_factory=dict)
    # what was left out, in words
    notes: list[str] = field(default_factory=list)
    # of those columns whose scores are of single examples
    examples: ExampleScores = field(default_factory=dict)
    # tasks that nobody has named: all other columns of the file
    assumed_tasks: Sequence[str] = ()


def read_scores(
    path: Path, layout: ScoreLayout = DEFAULT_LAYOUT, declared: Iterable[Column] = ()
) -> Scores:
    """Read scores from a CSV, a Parquet file or a folder of result files.

    Scores of which none is above 1 are taken for fractions, and become percent; losses, scores of a
    file with units, and those of a column whose declared unit is not percent, stay as they are.
    ValueError: a column is missing, a cell is not what it should be (with its line), or two lines
    are about the same run.
    """
    read = read_result_folder if path.is_dir() else read_rows
    content = read(path, layout)
    if not content.rows:
        raise ValueError(f"{path}: no score of a finished run")
    rows = []
    metrics: dict[str, set[str]] = {}
    for where, line in content.rows:
        row = _read_row(path, where, line)
        rows.append((where, row))
        metrics.setdefault(row.task, set()).add(row.metric)
    by_example = _scores_by_example(path, rows, metrics)
    directions = {}
    for _, row in rows:
        if row.higher_is_better is not None:
            directions[row.task, row.metric] = row.higher_is_better
    columns = _known_columns(directions, metrics, _units_of_rows(path, rows))
    units = {column.name: column.unit for column in (*columns, *declared)}

    # A score of a whole run is an array of one; only those of single examples are kept as arrays.
    runs: ExampleScores = {}
    examples: ExampleScores = {}
    fractions = []
    doubtful = {}
    for column, keys in group_by(by_example, lambda key: key[1]).items():
        of_column = {key: by_example[key] for key in keys}
        names = _example_names(path, of_column)
        arrays = _example_arrays(of_column, names)
        unit = units.get(column, "")
        if not content.has_units and _are_fractions(arrays, unit):
            fractions.append(column)
            _become_percent(arrays)
        elif not content.has_units and not unit:
            doubtful[column] = _arms_like_fractions(arrays)
        runs |= arrays
        if names != [""]:
            examples |= arrays
    cells = {key: _means(runs[key]) for key in by_example}
    return Scores(
        cells, columns, fractions, doubtful, content.notes, examples, content.assumed_tasks
    )


def _means(runs: Mapping[Seeds, NDArray[np.float64]]) -> dict[Seeds, float]:
    return {seeds: float(scores.mean()) for seeds, scores in runs.items()}


def _become_percent(arrays: ExampleScores) -> None:
    for seeds_and_scores in arrays.values():
        for scores in seeds_and_scores.values():
            scores *= 100.0


def _scores_by_example(
    path: Path, rows: Iterable[tuple[str, ScoreRow]], metrics: Mapping[str, set[str]]
) -> dict[tuple[str, str], dict[Seeds, dict[str, float]]]:
    """(arm, column) -> seeds -> example -> score; a score of a whole run is of the example "".

    ValueError: two lines are about the same score.
    """
    by_example: dict[tuple[str, str], dict[Seeds, dict[str, float]]] = {}
    for where, row in rows:
        column = _column_name(row.task, row.metric, metrics)
        cell = by_example.setdefault((row.arm, column), {})
        scores = cell.setdefault((row.seed, row.finetuning_seed), {})
        # One run has one score: two lines about it would count twice.
        if row.example in scores:
            fine = f", fine-tuning seed {row.finetuning_seed}" if row.finetuning_seed else ""
            ending = f", example {row.example}: keep one"
            if not row.example:
                ending = (
                    ": keep one; if a line is one example of a run, name the column of examples:"
                    " `scores: {example: COLUMN}` in the file of claims (docs/judge.md)"
                )
            raise ValueError(
                f"{path}, {where}: a second score of {row.arm} on {column},"
                f" seed {row.seed}{fine}{ending}"
            )
        scores[row.example] = row.score
        if "" in scores and len(scores) > 1:
            raise ValueError(
                f"{path}, {where}: {row.arm} on {column}, seed {row.seed}, has scores of single"
                " examples and one of the whole run: leave one of the two out"
            )
    return by_example


def _example_names(
    path: Path, cells: Mapping[tuple[str, str], Mapping[Seeds, Mapping[str, float]]]
) -> list[str]:
    """The examples of a column, in order. ValueError: its runs are not all over the same ones."""
    first_cell = next(iter(cells.values()))
    names = sorted(next(iter(first_cell.values())))
    for (arm, column), cell in cells.items():
        for (seed, _), scores in cell.items():
            if sorted(scores) != names:
                raise ValueError(
                    f"{path}: {arm} on {column}, seed {seed}, is not scored on the examples of the"
                    f" first run ({len(scores)} and {len(names)}): give all runs the same ones"
                )
    return names


def _example_arrays(
    cells: Mapping[tuple[str, str], Mapping[Seeds, Mapping[str, float]]], names: Sequence[str]
) -> ExampleScores:
    """The scores of a column's examples, in their order."""
    arrays: ExampleScores = {}
    for key, cell in cells.items():
        arrays[key] = {}
        for seeds, run in cell.items():
            arrays[key][seeds] = np.array([run[name] for name in names])
    return arrays


def _are_fractions(arrays: ExampleScores, unit: str) -> bool:
    """Whether a column's scores are between -1 and 1, in percent or without a declared unit."""
    if unit not in ("", PERCENT):
        return False
    runs = chain.from_iterable(cell.values() for cell in arrays.values())
    return all((np.abs(run) <= 1.0).all() for run in runs)


def _arms_like_fractions(arrays: ExampleScores) -> list[str]:
    """The arms of a column that have a score of at most 1, where others are surely in percent.

    A score of 0 is the same either way.
    """
    means = {arm: list(_means(cell).values()) for (arm, _), cell in arrays.items()}
    if max(chain.from_iterable(means.values())) < SURELY_PERCENT:
        return []
    arms = []
    for arm, scores in means.items():
        if any(0.0 < score <= 1.0 for score in scores):
            arms.append(arm)
    return arms


def _column_name(task: str, metric: str, metrics: Mapping[str, set[str]]) -> str:
    """Of QNLI with accuracy and f1 "qnli accuracy" and "qnli f1"; of one metric "qnli"."""
    if len(metrics[task]) == 1:
        return task
    return f"{task} {metric}".strip()


def _units_of_rows(path: Path, rows: Iterable[tuple[str, ScoreRow]]) -> dict[tuple[str, str], str]:
    """(task, metric) -> the unit of its rows, or "". ValueError: they do not all have the same."""
    units: dict[tuple[str, str], str] = {}
    for where, row in rows:
        unit = PERCENT if row.unit == "%" else row.unit
        first = units.setdefault((row.task, row.metric), unit)
        if unit != first:
            raise ValueError(
                f"{path}, {where}: the unit of {row.task} is {unit!r}, and {first!r} before: give"
                " each unit a task or a metric of its own"
            )
    return units


def _known_columns(
    directions: Mapping[tuple[str, str], bool],
    metrics: Mapping[str, set[str]],
    units: Mapping[tuple[str, str], str],
) -> list[Column]:
    """Those that fall, or whose rows have another unit than percent."""
    columns = []
    for (task, metric), unit in units.items():
        full_name = CAMEL_CASE.sub("_", f"{task} {metric}".strip()).lower()
        name_of_loss = FALLING.search(full_name)
        rises = name_of_loss is None or NEGATED.search(full_name) is not None
        rises = directions.get((task, metric), rises)
        if rises and name_of_loss is None and unit in ("", PERCENT):
            continue
        # Its name is its unit: it is not drawn on the axis of another measure.
        own_unit = re.split("[ /]", full_name)[-1]
        if name_of_loss is not None:
            own_unit = name_of_loss[1]
        name = _column_name(task, metric, metrics)
        columns.append(
            Column(name=name, task=name, unit=unit if unit else own_unit, higher_is_better=rises)
        )
    return columns


def _read_row(path: Path, where: str, cells: Mapping[str, str]) -> ScoreRow:
    texts = {name: ESCAPED.sub("", text).strip() for name, text in cells.items()}
    # An empty cell is none: it may only be one that nothing has to have.
    given = {name: text for name, text in texts.items() if text}
    if "example" in given:
        score = given.get("score", "")
        given["score"] = TRUTH.get(score.casefold(), score)
    try:
        return ScoreRow.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"{path}, {where}: {validation_message(error, ScoreRow)}") from None


def make_score_table(
    scores: Scores,
    claims: Sequence[Claim],
    design: SequentialDesign | None = None,
    declared: Iterable[Column] = (),
) -> ScoreTable:
    """The table of a score file. Nothing is known of how its runs were made.

    `declared` are columns whose unit and direction are given, which go before what the file itself
    says; all others are taken for percent, where higher is better. ValueError: a claim's margin may
    be a fraction, as its scores were.
    """
    declared = list(declared)
    _refuse_small_margins(scores, claims, {column.name for column in declared})
    arms = dict.fromkeys(arm for arm, _ in scores.cells)
    known = {column.name: column for column in (*scores.columns, *declared)}
    columns = []
    for name in dict.fromkeys(name for _, name in scores.cells):
        columns.append(known.get(name, Column(name=name, task=name)))
    refuse_ambiguous_all([column.name for column in columns], claims)
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
            examples = scores.examples.get((arm, dataset.key), {})
            cells[arm, dataset.key] = Cell(
                scores=of_arm, healthy=of_arm, missing=missing, examples=examples
            )
    return ScoreTable(spec, datasets, cells)


def _refuse_small_margins(
    scores: Scores, claims: Iterable[Claim], declared: Collection[str]
) -> None:
    """ValueError for a margin below one point of scores that were taken for fractions."""
    for claim in claims:
        is_of_all = claim.column == ALL_COLUMNS
        for column in scores.fractions:
            if column in declared or not (is_of_all or claim.column == column):
                continue
            if 0.0 < claim.points < 1.0:
                raise ValueError(
                    f"claim {claim.text!r}: points: {claim.points:g} of {column}, whose fractions"
                    " become percent; write points: 1 for a hundredth. If it is less than one"
                    f" point, declare `columns: [{{name: {column}, unit: percent}}]`"
                )


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
