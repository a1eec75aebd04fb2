"""What a report says, as text: the one dictionary that the HTML, the Markdown and the terminal page are laid out from.

Data sets of the paper come in one group of columns, stand-ins and generated tasks in another: the paper's number never
stands beside a score on other data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clozelab.metrics.statistics import FINETUNING_SEEDS, MOST_SEEDS, ONE_RUN, PRETRAINING_SEEDS
from clozelab.verdicts.accounts import costs, known_losses, learnt, problems, provenance, seed_counts
from clozelab.verdicts.experiment import MONOTONE, OUR_SPLIT, PERCENT, SPREAD
from clozelab.verdicts.judging import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_COMPARABLE,
    ONE_SEED,
    Judgement,
    summarise,
)
from clozelab.verdicts.links import correct, link_between
from clozelab.verdicts.points import find_lines, find_races, race_page
from clozelab.verdicts.table import Cell, DataColumn, Table
from clozelab.verdicts.wording import (
    DASH,
    distinct,
    half_width,
    in_units,
    interval,
    percent,
    probability,
    signed,
    span,
    with_direction,
)

POINTS = "points"


def axis_of(judgements: Sequence[Judgement]) -> float:
    """Half the width of the claims' common axis in points: shows every mean, and cuts an interval that dwarfs them."""
    judgements = [one for one in judgements if _in_points(one)]
    differences = [one.difference for one in judgements if one.difference]
    means = [abs(one.mean) for one in differences]
    means += [max(abs(one.paper_size or 0.0), one.claim.points) for one in judgements]
    ends = [abs(end) for one in differences for end in (one.low, one.high) if end is not None]
    return max(1.0, min(1.05 * max([*means, *ends], default=0.0), 2.0 * max(means, default=0.0)))


def unit_of(one: Judgement) -> str:
    """What the difference is in."""
    return POINTS if one.column is None or one.column.unit == PERCENT else one.column.unit


def _in_points(one: Judgement) -> bool:
    """Whether the difference is in percent points, as the common axis is."""
    return unit_of(one) == POINTS


def judgement_page(one: Judgement, table: Table, *, axis: float, basis: str) -> dict[str, Any]:
    """What a report shows of a judgement; `basis` is what most of its intervals are over."""
    difference, decimals = one.difference, one.column.decimals if one.column else 1
    corrected = f"corrected {probability(one.corrected).removeprefix('p ').removeprefix('= ')}"
    return {
        "text": one.claim.text,
        "compared": _compared(one, table),
        "paper": one.claim.in_words() if one.paper_size is None else signed(one.paper_size, decimals),
        "judged_on": one.judged_on,
        "ours": signed(difference.mean if difference else None, decimals),
        "interval": interval(difference, decimals),
        "shown": f"weakest: {one.shown}" if one.shown else "",
        "p": f"{probability(one.p)}, {corrected}" if one.p is not None else "",
        "corrected": probability(one.corrected),
        "basis": difference.basis if difference and difference.basis != basis else "",
        "marks": {key: _share(value, axis) for key, value in _marks(one).items() if value is not None},
        "verdict": one.verdict,
        "kind": one.verdict.split()[0],
        "needs": one.needs,
        "needs_short": _needs_short(one),
        "note": one.note,
    }


def _compared(one: Judgement, table: Table) -> str:
    """What stands against what, in the labels of the table."""
    claim, label = one.claim, table.experiment.label
    if claim.kind == MONOTONE:
        return f"{', '.join(map(label, claim.rows))}: {claim.direction}"
    if claim.kind == SPREAD:
        return f"{', '.join(map(label, claim.rows))}: within {claim.points:g} of each other"
    others = claim.rows[1:]
    text = f"{label(claim.rows[0])} against {'each of ' if len(others) > 1 else ''}{', '.join(map(label, others))}"
    if claim.against is None:
        return text
    first, second, column = claim.against
    return f"{text} on {claim.column}, less {label(first)} against {label(second)} on {column}"


def _marks(one: Judgement) -> dict[str, float | None]:
    """What is drawn on the axis of points; nothing for a difference in another unit."""
    if not _in_points(one):
        return {}
    marks: dict[str, float | None] = {"paper": one.paper_size}
    if one.claim.kind == SPREAD:
        marks |= {"least": -one.claim.points, "most": one.claim.points}
    if one.difference is not None:
        marks["ours"] = one.difference.mean
        if one.difference.low is not None and one.difference.high is not None:
            marks |= {"low": one.difference.low, "high": one.difference.high}
    return marks


def _needs_short(one: Judgement) -> str:
    """The same for a narrow page."""
    if one.verdict == ONE_SEED or not one.needs:
        return ""
    return f"~{one.decisive_seeds} seeds" if one.decisive_seeds else f">{MOST_SEEDS} seeds"


def _share(value: float, axis: float) -> float:
    """Where a value lies on the axis, in percent of its width."""
    return round(min(100.0, max(0.0, 50.0 + 50.0 * value / axis)), 2)


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
FEW_SEEDS = "; with two of them it reaches 12.7 standard errors to each side, with three 4.3"
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
        "A claim holds (fails) if its difference lies on the claimed (other) side of zero and its corrected p is below "
        "0.05. A claim that rests on several differences holds only if each of them does, and fails with one that "
        "surely goes the other way; the one that supports it least is shown. Otherwise it is inconclusive, with a "
        "single pre-training seed always."
    ),
)
SELECTED = (
    "A fine-tuning run was scored several times on the way, and stands here with its best score on the very set that "
    "it is scored on, as the paper selects too: a little better than on new examples, most so where scores jump about."
)
CORRECTED = (
    "The p of a difference is corrected by Holm's method for all differences of the table. The interval is the plain "
    "one of its difference alone; it may exclude zero where the corrected p says no."
)
EQUALITY = (
    "That rows differ by less than a margin holds only if the whole interval lies within it: a difference that is not "
    "significant is not yet equality."
)
SEEDS = (
    "How many pre-training seeds would decide a claim is a forecast: the number at which a corrected interval of the "
    "present mean and spread would exclude zero (or the margin). Both are estimated from few seeds."
)
STAND_INS = (
    "A stand-in or generated data set judges the direction of a claim and never its size; so does another split than "
    "the paper's."
)


def build_page(table: Table, judgements: Sequence[Judgement], scale: str) -> dict[str, Any]:
    """Everything the templates show."""
    axis, experiment = axis_of(judgements), table.experiment
    return {
        "title": experiment.title,
        "name": experiment.name,
        "source": experiment.source,
        "has_paper": experiment.has_paper,
        "sets": _sets(table),
        "statistic": f"; the paper's numbers are {experiment.statistic}" if experiment.statistic else "",
        "scale": scale,
        "question": _question(experiment.folder),
        "synthetic": table.runs.synthetic,
        "setup": _setup(table),
        "runs": _run_counts(table),
        "summary": summarise(judgements),
        "verdicts": [
            {"kind": verdict.split()[0], "text": summarise([one for one in judgements if one.verdict == verdict])}
            for verdict in VERDICTS
            if any(one.verdict == verdict for one in judgements)
        ],
        "interval": _interval_words(table),
        "reading": _reading(table, judgements),
        "units": in_units(PERCENT, {one.heading: one.unit for one in table.with_results}),
        "difference_units": in_units(POINTS, {one.judged_on: unit_of(one) for one in judgements}),
        "groups": _groups(table),
        "races": [race_page(race, table) for race in find_races(find_lines(experiment, table.runs), table)],
        "judgements": [judgement_page(one, table, axis=axis, basis=_basis(table)) for one in judgements],
        "differences": [] if experiment.claims else differences(table),
        "axis": f"{axis:.0f}",
        "arms": learnt(table),
        "bounds": known_losses(table),
        "costs": costs(table),
        "problems": problems(table),
        "provenance": provenance(table),
    }


def differences(table: Table) -> list[dict[str, str]]:
    """Every other row against the first one, on every data set: for a table without claims."""
    first, *others = table.rows
    links = [(row, one, link_between(row, first, one, table)) for one in table.with_results for row in others]
    correction = correct(link for _, _, link in links)
    return [
        {
            "row": table.experiment.label(row),
            "first": table.experiment.label(first),
            "judged_on": one.heading,
            "ours": signed(link.difference.mean, one.decimals),
            "unit": POINTS if one.unit == PERCENT else one.unit,
            "interval": interval(link.difference, one.decimals),
            "p": probability(correction.corrected.get(link.key)),
            "note": "; ".join(filter(None, (link.barred, link.copies, link.lengths, _over(link.difference.basis)))),
        }
        for row, one, link in links
        if link.difference is not None
    ]


def _over(basis: str) -> str:
    return "" if basis == PRETRAINING_SEEDS else f"over {basis}"


def _reading(table: Table, judgements: Sequence[Judgement]) -> list[str]:
    """How to read the intervals and verdicts of this very page."""
    experiment, size = table.experiment, max((one.family for one in judgements), default=0)
    selected = [SELECTED] if any(run.facts.get("num_evaluations", 0) > 1 for run in table.runs.finetune) else []
    if not experiment.claims:
        return [*READING[:2], CORRECTED, *selected]
    tested = f"the {size} different differences here are" if size > 1 else "all differences of a table are"
    correction = (
        f"Verdicts are corrected for their number by Holm's method: {tested} tested together. Of twenty tables without "
        "any true difference, at most one shows a false \u201cholds\u201d or \u201cfails\u201d anywhere. The interval "
        "shown is the plain one of its difference alone; it may exclude zero where the corrected p says no."
    )
    matched = " and ".join(experiment.matched).replace("_", " ")
    rule = f"arms that differ in {matched} of pre-training by more than 2 %" if matched else "nothing else"
    reason = f" (arms are not matched here: {experiment.matched_by_reason})" if experiment.matched_by_reason else ""
    barred = (
        "Not comparable: a row or a data set has no run, the cells are of two splits or of another metric, the "
        f"rows were made by another protocol than what they are about, or {rule}{reason}."
    )
    lines = [*READING, correction, *selected]
    lines += [EQUALITY] if any(claim.kind == SPREAD for claim in experiment.claims) else []
    lines += [SEEDS] if any(one.needs for one in judgements) else []
    return [*lines, barred, *([STAND_INS] if experiment.has_paper else [])]


def _sets(table: Table) -> str:
    """Which sets the numbers are on; ours are always on the labelled ones, or on held-out text."""
    if all(one.is_pretraining for one in table.columns):
        return "on held-out text"
    if (split := table.experiment.split) == OUR_SPLIT:
        return f"on the {split} sets"
    return f"ours on the {OUR_SPLIT} sets and the paper's on the {split} sets"


def _question(folder: Path) -> str:
    """The question as the experiment's README puts it; empty where it has none."""
    readme = folder / "README.md"
    found = QUESTION.search(readme.read_text(encoding="utf-8")) if readme.is_file() else None
    return " ".join(found[1].split()) if found else ""


def _setup(table: Table) -> str:
    """What was trained, in one line: a reader must see at once how far it is from the paper's size."""
    # The arms that the table has; before the first is complete, those to come.
    runs = [run for run in table.runs.pretrain if run.is_complete] or table.runs.pretrain
    models = [run.config["model"] for run in runs if run.config.get("model")]
    layers, widths = (span((one[key] for one in models), str) for key in ("num_hidden_layers", "hidden_size"))
    known = {key: span(run.facts[key] for run in runs if run.facts.get(key)) for key in ("parameters", "tokens")}
    parts = (
        f"{layers} layer{'' if layers == '1' else 's'} of {widths}" if models else DASH,
        f"{known['parameters']} parameters" if known["parameters"] else DASH,
        f"{known['tokens']} tokens a pre-training run" if known["tokens"] else DASH,
        distinct(f"corpus {run.config['corpus']['name']}" for run in runs if run.config.get("corpus")),
        seed_counts(table),
    )
    return ", ".join(part for part in parts if part != DASH)


def _run_counts(table: Table) -> str:
    runs = table.runs
    done = [f"{sum(run.is_complete for run in mine)} of {len(mine)} {stage}" for stage, mine in (
        ("pre-training", runs.pretrain), ("fine-tuning", runs.finetune)) if mine]  # fmt: skip
    states = [run.status for run in runs.runs if run.status != "complete"]
    parts = [f"{' and '.join(done)} runs complete"]
    parts += [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    columns = [one for one in table.with_results if one.task]
    missing = sum(bool(table.cells[row, one.key].missing) for row in table.rows for one in columns)
    tuned = [run for cell in table.cells.values() for run in cell.runs.values()]
    collapsed = len({run.folder for run in tuned if run.facts.get("collapsed")})
    parts += [f"{missing} cell{' lacks' if missing == 1 else 's lack'} runs"] if missing else []
    parts += [f"{collapsed} collapsed"] if collapsed else []
    parts += [f"{len(runs.damaged)} unreadable"] if runs.damaged else []
    return ", ".join(parts)


def _interval_words(table: Table) -> str:
    """What stands behind "\u00b1", before anybody wonders at its size."""
    basis = _basis(table)
    has_two = basis == PRETRAINING_SEEDS and len(table.pretrain_seeds) == 2
    words = INTERVALS[basis] + (FEW_SEEDS if has_two else "")
    return words if table.experiment.has_paper else words.replace("ours is", "a cell is", 1)


def _basis(table: Table) -> str:
    """What most intervals can be over; cells of another basis say so themselves."""
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    return next((basis for basis in INTERVALS if basis in bases), ONE_RUN)


def _groups(table: Table) -> list[dict[str, Any]]:
    """The table in groups of columns, those with results of ours first."""
    own = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_own = any(table.has_results(column) for column in own)
    if apart and not has_own and not table.experiment.has_numbers:  # nothing but dashes
        own = []
    own_title = (
        "The paper's data sets" if has_own else "The paper's own numbers, on data that none of our runs has seen"
    )
    if not table.experiment.has_paper:
        own_title = "Data sets"
    is_generated = bool(apart) and all(column.role.startswith("synthetic") for column in apart)
    apart_title = f"Generated tasks of {table.runs.synthetic}" if is_generated else "Stand-ins and other data sets"
    if not table.experiment.has_paper and not is_generated:
        apart_title = "Data sets" if not has_own else "Other data sets"
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
    apart = "not in the paper's table" if table.experiment.has_paper else ""
    note = "" if column.is_paper else column.role or apart
    note = "" if column.is_pretraining and not table.experiment.has_paper else note
    absent = "held-out text of the paper's" if column.column and column.column.is_pretraining else "no run"
    return {
        "name": column.heading,
        "note": note if has_results or not column.is_paper else absent,
        "metric": with_direction(metric),
        "unit": column.unit,
        "examples": f"{column.num_examples:,} examples" if column.num_examples else "",
        "trained_on": column.trained_on,
        "has_paper": column.is_paper and table.experiment.has_numbers,
        "has_ours": has_results or not column.is_paper or not table.experiment.has_numbers,
    }


def _cell(row: str, column: DataColumn, table: Table) -> dict[str, Any]:
    cell, decimals = table.cells[row, column.key], column.decimals
    paper = table.paper_value(row, column)
    # A row without an arm of its own has no pre-training to report, which is not a lack.
    is_lacking = column.task or cell.missing
    seeds = {f"{first}/{second}" if second else f"seed {first}": one for (first, second), one in cell.scores.items()}
    return {
        "paper": DASH if paper is None else f"{paper:.{decimals}f}",
        "mean": f"{cell.estimate.mean:.{decimals}f}" if cell.estimate else "missing" if is_lacking else DASH,
        "is_absent": cell.estimate is None and bool(is_lacking),
        # The same answer whatever the input: its spread is no measure of anything.
        "half": "collapsed" if cell.is_collapsed else half_width(cell.estimate, decimals),
        "note": _cell_note(cell, column, _basis(table)),
        "seeds": ", ".join(f"{name}: {score:.{decimals}f}" for name, score in sorted(seeds.items())),
    }


def _cell_note(cell: Cell, column: DataColumn, basis: str) -> str:
    """What sets this cell apart from the others."""
    notes = [cell.note]
    if cell.estimate and cell.missing:
        notes.append(f"{len(cell.scores)} of {len(cell.scores) + len(cell.missing)} runs")
    if cell.estimate and cell.estimate.basis != basis and not cell.is_collapsed:
        notes.append(cell.estimate.basis)
    if cell.is_collapsed:
        notes.append("every run" if len(cell.scores) > 1 else "the only run")
    elif cell.num_collapsed:
        without = f", {percent(cell.without_collapsed, column.decimals)} without" if cell.without_collapsed else ""
        notes.append(f"{cell.num_collapsed} {'collapsed' if cell.runs else 'with collapsed parts'}{without}")
    return "; ".join(note for note in notes if note)
