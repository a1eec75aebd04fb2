"""The rows along an arm's pre-training: its kept encoders, in the order of their steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from clozelab.analysis.claims import CrossingClaim
from clozelab.analysis.comparability import group_by
from clozelab.analysis.scores import CheckpointSeries
from clozelab.training.measuring import read_rows

if TYPE_CHECKING:
    from clozelab.results.experiment import Experiment
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

# the setting of a row that says how far its encoder was trained
POINT = "encoder_fraction"
Settings = frozenset[tuple[str, str]]


def find_series(experiment: Experiment, runs: Runs) -> list[CheckpointSeries]:
    """Every arm with rows at two or more fractions of its steps that differ in nothing else."""
    series: list[CheckpointSeries] = []
    candidates = _rows_by_line(experiment, runs)
    lines = {key: rows for key, rows in candidates.items() if len(rows) > 1}
    for (arm, settings), rows in lines.items():
        # Of several lines of one arm, each is called by what sets it apart, too.
        of_arm = [others for other_arm, others in lines if other_arm == arm]
        shared = frozenset.intersection(*of_arm)
        apart = [f"{key} {value}" for key, value in sorted(settings - shared)]
        floors = {row.floor for row in experiment.rows if row.name in rows.values()}
        series.append(
            CheckpointSeries(
                name=", ".join([arm, *apart]),
                arm=arm,
                rows=rows,
                amounts=_amounts(experiment, runs, arm, rows),
                floor=floors.pop() if len(floors) == 1 else None,
            )
        )
    return series


def _rows_by_line(
    experiment: Experiment, runs: Runs
) -> dict[tuple[str, Settings], dict[float, str]]:
    """(arm, what else its rows set) -> fraction of the steps -> row, in the order of the steps."""
    lines: dict[tuple[str, Settings], dict[float, str]] = {}
    by_row = group_by([*runs.finetune, *runs.evaluate], lambda run: run.name)
    for row in experiment.rows:
        if row.arm is None or row.name not in by_row:
            continue
        run = by_row[row.name][0]
        settings = frozenset(
            (key, str(value)) for key, value in run.row_delta.items() if key not in ("row", POINT)
        )
        fraction = float(run.config.get(POINT, 1.0))
        lines.setdefault((row.arm, settings), {})[fraction] = row.name
    return {key: dict(sorted(rows.items())) for key, rows in lines.items()}


def _amounts(
    experiment: Experiment, runs: Runs, arm: str, fractions: Iterable[float]
) -> dict[str, dict[float, float]]:
    """Unit -> fraction -> amount: tokens, and what the claims are measured in."""
    units = {"tokens"}
    for claim in experiment.claims:
        if isinstance(claim, CrossingClaim) and claim.measured_in:
            units.add(claim.measured_in)
    pretrained = [run for run in runs.pretrain if run.name == arm and run.is_complete]
    wanted = list(fractions)
    return {unit: _mean_amounts(pretrained, wanted, unit) for unit in sorted(units)}


def _mean_amounts(
    runs: Iterable[Record], fractions: Iterable[float], unit: str
) -> dict[float, float]:
    """Tokens, FLOPs or seconds after each fraction of an arm's steps, a mean over its runs.

    A fraction that no run knows of is left out.
    """
    values: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    for run in runs:
        for fraction, amount in _amounts_of_run(run, list(values), unit).items():
            values[fraction].append(amount)
    return {fraction: float(np.mean(known)) for fraction, known in values.items() if known}


def _amounts_of_run(run: Record, fractions: Iterable[float], unit: str) -> Mapping[float, float]:
    """FLOPs grow as tokens do: they are read at the tokens of a step."""
    clock = "training_seconds" if unit == "seconds" else "tokens"
    steps = run.facts.get("steps")
    total = run.facts.get(clock)
    amount = run.facts.get("flops") if unit == "flops" else total
    if not steps or not total or not amount:
        return {}
    logged: dict[int, float] = {}
    for row in read_rows(run.folder / "metrics.csv"):
        logged[row.step] = float(row.seconds if unit == "seconds" else row.tokens)
    known = dict(sorted((logged | {0: 0.0, int(steps): float(total)}).items()))

    amounts: dict[float, float] = {}
    for fraction in fractions:
        step = round(fraction * steps)
        if len(known) > 2 or step in known:
            reached = float(np.interp(step, list(known), list(known.values())))
            amounts[fraction] = amount / total * reached
    return amounts
