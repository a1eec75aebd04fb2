"""What a report says, as text: the one dictionary that the HTML, the Markdown and the terminal page are laid out from.

Data sets of the paper come in one group of columns, stand-ins and generated tasks in another: the paper's number never
stands beside a score on other data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozelab.ledger.accounts import arms_run, costs, known_losses, learnt, problems, provenance, seed_counts
from clozelab.ledger.collect import Collected
from clozelab.ledger.experiment import Experiment
from clozelab.ledger.table import Cell, DataColumn, Table
from clozelab.ledger.verdicts import FAILS, HOLDS, INCONCLUSIVE, NOT_COMPARABLE, ONE_SEED, Judgement, summarise
from clozelab.ledger.wording import DASH, distinct, half_width, percent, rough, signed
from clozelab.metrics.statistics import FINETUNING_SEEDS, ONE_RUN, PRETRAINING_SEEDS

QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
VERDICTS = (HOLDS, FAILS, INCONCLUSIVE, ONE_SEED, NOT_COMPARABLE)
INTERVALS = {
    PRETRAINING_SEEDS: (
        "ours is the mean ± the 95 % interval over pre-training seeds, the fine-tuning seeds averaged inside each"
    ),
    FINETUNING_SEEDS: (
        "ours is the mean ± the 95 % interval over fine-tuning seeds only: with one pre-training seed an arm it does "
        "not contain the spread between pre-training runs"
    ),
    ONE_RUN: "ours is one run a cell, without an interval",
}
READING = (
    (
        "An interval is Student's t at 95 %: with 2 seeds its half-width is 12.7 standard errors, with 3 it is 4.3, "
        "with 5 it is 2.8. A wide interval may mean few seeds rather than much noise."
    ),
    (
        "A difference is paired: the same pre-training seed (and fine-tuning seeds) in both rows. The intervals of two "
        "cells may overlap while that of their difference excludes zero."
    ),
    (
        "A claim holds (fails) if the interval of the difference lies on the claimed (other) side of zero. Otherwise "
        "it is inconclusive, with a single pre-training seed always. Not comparable: a row or a data set has no run."
    ),
    "Claims are judged one by one: nothing is corrected for their number.",
    "A stand-in or generated data set judges the direction of a claim and never its size.",
)


def build_page(
    experiment: Experiment, collected: Collected, table: Table, judgements: Sequence[Judgement], scale: str
) -> dict[str, Any]:
    """Everything the templates show."""
    return {
        "title": experiment.title,
        "name": experiment.name,
        "source": experiment.source,
        "split": experiment.split,
        "scale": scale,
        "question": _question(experiment.folder),
        "synthetic": collected.synthetic,
        "setup": _setup(collected, table),
        "runs": _run_counts(collected, table),
        "summary": summarise(judgements),
        "verdicts": [
            {"kind": verdict.split()[0], "text": summarise([one for one in judgements if one.verdict == verdict])}
            for verdict in VERDICTS
            if any(one.verdict == verdict for one in judgements)
        ],
        "interval": INTERVALS[_basis(table)],
        "reading": READING,
        "groups": _groups(table, collected.synthetic),
        "judgements": [_judgement(one, table, _axis(judgements)) for one in judgements],
        "axis": f"{_axis(judgements):.0f}",
        "arms": [learnt(arm, label, collected) for arm, label in arms_run(experiment, collected).items()],
        "bounds": known_losses(collected),
        "costs": costs(experiment, collected),
        "problems": problems(collected, table),
        "provenance": provenance(experiment, collected, table, scale),
    }


def _question(folder: Path) -> str:
    """The question as the experiment's README puts it; empty where it has none."""
    readme = folder / "README.md"
    found = QUESTION.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    return " ".join(found[1].split()) if found else ""


def _setup(collected: Collected, table: Table) -> str:
    """What was trained, in one line: a reader must see at once how far it is from the paper's size."""
    configs = [run.state["config_resolved"] for run in collected.pretrain]
    models = [config["model"] for config in configs if config.get("model")]
    facts = [run.facts for run in collected.pretrain]
    parts = (
        distinct(f"{one['num_hidden_layers']} layers of {one['hidden_size']}" for one in models),
        distinct(f"{rough(one['parameters'])} parameters" for one in facts if one.get("parameters")),
        distinct(f"{rough(one['tokens'])} tokens a pre-training run" for one in facts if one.get("tokens")),
        distinct(f"corpus {config['corpus']['name']}" for config in configs if config.get("corpus")),
        seed_counts(table),
    )
    return ", ".join(part for part in parts if part != DASH)


def _run_counts(collected: Collected, table: Table) -> str:
    done = [f"{sum(run.is_complete for run in runs)} of {len(runs)} {stage}" for stage, runs in (
        ("pre-training", collected.pretrain), ("fine-tuning", collected.finetune)) if runs]  # fmt: skip
    states = [run.state["status"] for run in collected.runs if run.state["status"] != "complete"]
    parts = [f"{' and '.join(done)} runs complete"]
    parts += [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    missing = sum(
        bool(table.cells[row.name, one.key].missing) for row in table.experiment.rows for one in table.with_results
    )
    collapsed = sum(cell.num_collapsed for cell in table.cells.values())
    parts += [f"{missing} cells lack runs"] if missing else []
    parts += [f"{collapsed} collapsed"] if collapsed else []
    parts += [f"{len(collected.damaged)} unreadable"] if collected.damaged else []
    return ", ".join(parts)


def _basis(table: Table) -> str:
    """What most intervals can be over; cells of another basis say so themselves."""
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    return next((basis for basis in INTERVALS if basis in bases), ONE_RUN)


def _groups(table: Table, synthetic: str | None) -> list[dict[str, Any]]:
    """The table in groups of columns, those with results of ours first."""
    own = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_own = any(table.has_results(column) for column in own)
    own_title = (
        "The paper's data sets" if has_own else "The paper's own numbers, on data that none of our runs has seen"
    )
    apart_title = f"Generated tasks of {synthetic}" if synthetic else "Stand-ins and other data sets"
    groups = [(own_title, own), (apart_title, apart)] if has_own else [(apart_title, apart), (own_title, own)]
    return [_group(title, columns, table) for title, columns in groups if columns]


def _group(title: str, columns: list[DataColumn], table: Table) -> dict[str, Any]:
    rows = [
        {"label": row.label, "is_floor": row.arm is None, "cells": [_cell(row.name, one, table) for one in columns]}
        for row in table.experiment.rows
    ]
    majority = [DASH if one.majority is None else f"{one.majority:.1f}" for one in columns]
    known = any(one.majority is not None for one in columns)
    surface = [
        {"mean": f"{one.baseline[1]:.1f}", "note": one.baseline[0]} if one.baseline else {"mean": DASH, "note": ""}
        for one in columns
    ]
    return {
        "title": title,
        "headings": [_heading(one, table) for one in columns],
        "rows": rows,
        "majority": majority if known else None,
        "surface": surface if any(one.baseline for one in columns) else None,
    }


def _heading(column: DataColumn, table: Table) -> dict[str, Any]:
    has_results = table.has_results(column)
    metric = column.metric.rpartition("/")[2].replace("_", " ")
    metric = {"f1": "F1", "matthews": "Matthews"}.get(metric, metric)
    note = "" if column.is_paper else column.role or "not in the paper's table"
    return {
        "name": column.heading,
        "note": note if has_results or not column.is_paper else "no run",
        "metric": metric,
        "examples": f"{column.num_examples:,} examples" if column.num_examples else "",
        "has_paper": column.is_paper,
        "has_ours": has_results or not column.is_paper,
    }


def _cell(row: str, column: DataColumn, table: Table) -> dict[str, str]:
    cell = table.cells[row, column.key]
    paper = table.paper_value(row, column)
    return {
        "paper": DASH if paper is None else f"{paper:.1f}",
        "mean": f"{cell.estimate.mean:.1f}" if cell.estimate else "missing",
        "half": half_width(cell.estimate),
        "note": _cell_note(cell, _basis(table)),
        "seeds": ", ".join(f"{first}/{second}: {score:.1f}" for (first, second), score in sorted(cell.scores.items())),
    }


def _cell_note(cell: Cell, basis: str) -> str:
    """What sets this cell apart from the others."""
    notes = [cell.note]
    if cell.estimate and cell.missing:
        notes.append(f"{len(cell.scores)} of {len(cell.scores) + len(cell.missing)} runs")
    if cell.estimate and cell.estimate.basis != basis:
        notes.append(cell.estimate.basis)
    if cell.num_collapsed:
        without = f", {percent(cell.without_collapsed)} without" if cell.without_collapsed else ""
        notes.append(f"{cell.num_collapsed} collapsed{without}")
    return "; ".join(note for note in notes if note)


def _axis(judgements: Sequence[Judgement]) -> float:
    """Half the width of the claims' common axis in points: shows every mean, and cuts an interval that dwarfs them."""
    differences = [one.difference for one in judgements if one.difference]
    means = [abs(one.mean) for one in differences] + [abs(one.claim.paper_delta or 0.0) for one in judgements]
    ends = [abs(end) for one in differences for end in (one.low, one.high) if end is not None]
    return max(1.0, min(1.05 * max([*means, *ends], default=0.0), 2.0 * max(means, default=0.0)))


def _judgement(one: Judgement, table: Table, axis: float) -> dict[str, Any]:
    difference, interval = one.difference, ""
    marks = {"paper": None if one.column and not one.column.is_paper else one.claim.paper_delta}
    if difference is not None:
        marks["ours"] = difference.mean
        if difference.low is not None and difference.high is not None:
            interval = f"[{signed(difference.low)}, {signed(difference.high)}]"
            marks |= {"low": difference.low, "high": difference.high}
    return {
        "text": one.claim.text,
        "compared": f"{table.experiment.label(one.claim.first)} against {table.experiment.label(one.claim.second)}",
        # A stand-in judges the direction alone: the paper's size is about other data.
        "paper": signed(one.claim.paper_delta) if one.column is None or one.column.is_paper else one.claim.direction,
        "judged_on": one.judged_on,
        "ours": signed(difference.mean if difference else None),
        "interval": interval,
        "basis": difference.basis if difference and difference.basis != _basis(table) else "",
        "marks": {key: _share(value, axis) for key, value in marks.items() if value is not None},
        "verdict": one.verdict,
        "kind": one.verdict.split()[0],
        "note": one.note,
    }


def _share(value: float, axis: float) -> float:
    """Where a value lies on the axis, in percent of its width."""
    return round(min(100.0, max(0.0, 50.0 + 50.0 * value / axis)), 2)
