"""A cell of an experiment's table taken apart: its runs, their arithmetic, and what sets its row apart."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from clozelab.ledger.collect import Collected, FinetuneRun, PretrainRun
from clozelab.ledger.fingerprint import flatten
from clozelab.ledger.reporting.accounts import place
from clozelab.ledger.reporting.consistency import FINETUNE_MAY_DIFFER
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.reporting.table import Cell, DataColumn, Table
from clozelab.metrics.statistics import ONE_RUN, PRETRAINING_SEEDS

SEED_KEYS = ("seed", "pretrain_seed")


@dataclass(frozen=True)
class Explanation:
    """One row on one data set.

    Attributes:
        runs: of the row on the task, with how each counts: "", or why it does not.
        encoders: the pre-training runs behind them.
        arithmetic: how the mean and its interval come about, line by line.
        apart: (key, this row's value, other rows' values) of what differs between the rows of this column.
    """

    column: DataColumn
    cell: Cell
    paper: float | None
    runs: list[tuple[FinetuneRun, str]]
    encoders: list[PretrainRun]
    arithmetic: list[str]
    apart: list[tuple[str, str, str]]


def find_row(experiment: Experiment, name: str) -> str:
    """The name of a row, from its name or its label.

    Raises:
        ValueError: there is none; names the nearest.
    """
    for row in experiment.rows:
        if name in (row.name, row.label):
            return row.name
    raise ValueError(_unknown("row", name, [row.name for row in experiment.rows]))


def find_columns(table: Table, name: str) -> list[DataColumn]:
    """The data sets with results that a name means: a task, a heading, or a column of the paper with its stand-ins.

    Raises:
        ValueError: there is none, or it has no run.
    """
    exact = [one for one in table.columns if name in (one.key, one.task, one.heading)]
    found = exact or [one for one in table.columns if one.column is not None and one.column.name == name]
    by_paper = [one for one in table.columns if one.column is not None and one.column.name == name]
    with_results = [one for one in found if table.has_results(one)] or [o for o in by_paper if table.has_results(o)]
    if with_results:
        return with_results
    papers = [one.column.name for one in table.with_results if one.column is not None]
    known = list(dict.fromkeys([*papers, *(key for one in table.with_results for key in (one.task, one.heading))]))
    if found:
        raise ValueError(f"column {name!r} has no run; with runs there are: {', '.join(known) or 'none'}")
    raise ValueError(_unknown("column", name, known))


def explain(table: Table, collected: Collected, row: str, column: DataColumn) -> Explanation:
    """Take a cell apart."""
    cell = table.cells[row, column.key]
    mine = [run for run in collected.finetune if (run.row, run.task) == (row, column.task)]
    runs = [(run, _why_not(run, cell, column)) for run in sorted(mine, key=lambda run: (run.pretrain_seed, run.seed))]
    arms = {str(run.state["config_resolved"].get("encoder_arm")) for run in mine}
    seeds = {run.pretrain_seed for run in mine}
    encoders = [run for run in collected.pretrain if run.arm in arms and run.seed in seeds]
    others = [run for run in collected.finetune if run.task == column.task and run.row != row and run.is_complete]
    return Explanation(
        column, cell, table.paper_value(row, column), runs, encoders, arithmetic(cell), _apart(mine, others)
    )


def _why_not(run: FinetuneRun, cell: Cell, column: DataColumn) -> str:
    """Why a run is not in the cell's mean; empty where it is."""
    if not run.is_complete:
        return f"not complete ({run.state['status']})"
    if column.metric not in run.scores:
        return f"has no {column.metric}"
    if cell.scores.get((run.pretrain_seed, run.seed)) != run.scores[column.metric]:
        return "another learning rate is better" if run.learning_rate is not None else "another run has its seeds"
    return ""


def run_rows(found: Explanation, collected: Collected) -> list[list[str]]:
    """Folder, score, commit, fingerprint and note of every run, those that trained the encoders last."""
    rows = []
    for run, why in found.runs:
        score = run.scores.get(found.column.metric)
        note = "; ".join(filter(None, (why and f"does not count: {why}", "collapsed" if run.collapsed else "")))
        rows.append([place(run, collected), "" if score is None else f"{score:.2f}", *_origin(run.state), note])
    fresh = all(run.state["config_resolved"].get("initialisation") == "random" for run, _ in found.runs)
    for one in found.encoders:
        note = f"{one.state['status']}{', gave only shape and vocabulary' if fresh else ''}"
        rows.append([place(one, collected), "", *_origin(one.state), note])
    return rows


def _origin(state: Mapping[str, Any]) -> tuple[str, str]:
    git = state.get("git") or {}
    return f"{str(git.get('commit', ''))[:12]}{'+' if git.get('dirty') else ''}", str(state["fingerprint"])[:12]


def arithmetic(cell: Cell) -> list[str]:
    """How mean and interval come about."""
    found = cell.estimate
    if found is None:
        return ["no complete run: no mean"]
    by_seed: dict[int, list[float]] = {}
    for (first, _), score in sorted(cell.scores.items()):
        by_seed.setdefault(first, []).append(score)
    lines = [
        f"pre-training seed {seed}: mean of {_listed(scores)} = {np.mean(scores):.2f}"
        for seed, scores in by_seed.items()
    ]
    if found.basis == ONE_RUN:
        return [*lines, f"one run: {found.mean:.2f}, no interval"]
    is_over_seeds = found.basis == PRETRAINING_SEEDS
    values = [float(np.mean(scores)) for scores in by_seed.values()] if is_over_seeds else list(cell.scores.values())
    lines = lines if is_over_seeds else [f"one pre-training seed; fine-tuning seeds: {_listed(values)}"]
    count, deviation = len(values), float(np.std(values, ddof=1))
    quantile = float(stats.t.ppf(0.975, count - 1))
    half = quantile * deviation / math.sqrt(count)
    freedom = f"{count - 1} degree{'s' if count > 2 else ''} of freedom"
    return [
        *lines,
        f"mean over the {count} {found.basis.removesuffix(' only')}: {np.mean(values):.2f}",
        f"interval (95 %, Student's t, {freedom}): {quantile:.2f} x {deviation:.2f} / sqrt({count}) = {half:.2f}",
    ]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _apart(mine: Sequence[FinetuneRun], others: Sequence[FinetuneRun]) -> list[tuple[str, str, str]]:
    """Settings of this row that some other row of the column has otherwise, seeds aside."""
    configs = {run.row: _settings(run.state["config_resolved"]) for run in (*others, *mine)}
    if not mine:
        return []
    own = configs.pop(mine[0].row)
    keys = dict.fromkeys(key for config in (own, *configs.values()) for key in config)
    found = []
    for key in keys:
        theirs = dict.fromkeys(str(config.get(key, "(none)")) for config in configs.values())
        if set(theirs) - {str(own.get(key, "(none)"))}:
            found.append((key, str(own.get(key, "(none)")), ", ".join(theirs)))
    names = (*FINETUNE_MAY_DIFFER, "head", "initialisation")
    intended = [one for one in found if one[0] in names and one[0] != "row"]
    return intended + [one for one in found if one[0] not in names]


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({key: value for key, value in config.items() if key not in SEED_KEYS})


def _unknown(kind: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"no {kind} {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    )
