"""What a report says, as text: the one dictionary that the HTML, the Markdown and the terminal page
are laid out from.

Stand-ins and generated tasks have columns apart: the paper's number never stands beside a score on
other data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.analysis.claims import CrossingClaim, EquivalenceClaim, TrendClaim
from clozelab.analysis.contrasts import contrast_rows
from clozelab.analysis.history import InterimAnalysis
from clozelab.analysis.multiplicity import fallback_procedure
from clozelab.analysis.power import MOST_SEEDS
from clozelab.analysis.schema import OUR_SPLIT, PERCENT
from clozelab.analysis.scores import DataColumn
from clozelab.analysis.statistics import FINETUNING_SEEDS, ONE_RUN, PRETRAINING_SEEDS
from clozelab.analysis.verdicts import Judgement, TooManySeedsNeeded, Verdict
from clozelab.report import wording
from clozelab.report.summaries import (
    costs,
    known_losses,
    learnt,
    not_learnt,
    problems,
    provenance,
    seed_counts,
    seed_seconds,
)
from clozelab.results.table import ResultTable
from clozelab.text.formatting import (
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
from clozelab.text.safe_yaml import own_text

POINTS = "points"
SELECTION = (
    "A fine-tuning run was scored several times on the way, and stands here with its best score on"
    " the very set that it is scored on, as the paper selects too: a little better than on new"
    " examples, most so where scores jump about."
)
DIRECTIONS = {"increasing": "rising", "decreasing": "falling"}
QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def build_page(
    table: ResultTable,
    judgements: Sequence[Judgement],
    scale: str,
    looks: Sequence[InterimAnalysis] = (),
) -> dict[str, Any]:
    """Everything the templates show."""
    axis, experiment = _axis(judgements), table.experiment
    # the paper's; ours are always on the labelled sets, or on held-out text
    split = experiment.split
    sets = f"on the {split} sets"
    if all(one.is_pretraining for one in table.columns):
        sets = "on held-out text"
    elif split != OUR_SPLIT:
        sets = f"ours on the {OUR_SPLIT} sets and the paper's on the {split} sets"
    seeds = {
        "has_paper": experiment.has_paper,
        "basis": _basis(table),
        "num_seeds": len(table.pretrain_seeds),
    }
    reading = {
        "experiment": experiment,
        "family": max((one.num_tests for one in judgements), default=0),
        "selection": (
            SELECTION * any(run.facts.get("num_evaluations", 0) > 1 for run in table.runs.finetune)
        ),
        "has_forecasts": any(one.forecast for one in judgements),
    }
    statistic = wording.statistic(experiment)
    (interval_words,) = _lines("interval.txt.j2", seeds)
    readme = experiment.folder / "README.md"
    question = QUESTION.search(own_text(readme, experiment.folder)) if readme.is_file() else None

    def claims_on(groups: Sequence[set[str]]) -> list[str]:
        sides = [{row.name for row in experiment.rows if row.arm in arms} for arms in groups]
        return [
            one.claim.text
            for one in judgements
            if all(rows.intersection(one.rows) for rows in sides)
        ]

    return {
        **{key: getattr(experiment, key) for key in ("title", "name", "source", "has_paper")},
        "sets": sets,
        "statistic": (f"; the paper's numbers are {statistic}" if statistic else ""),
        "scale": scale,
        "question": " ".join(question[1].split()) if question else "",
        "synthetic": table.runs.synthetic,
        "setup": _setup(table),
        "runs": _run_counts(table),
        "summary": wording.summarise(judgements),
        "unlearnt": [
            {"text": said, "claims": claims_on(groups)} for said, groups in not_learnt(table)
        ],
        "looks": f"{len(looks)} ({', '.join(one.time[:10] for one in looks)})" if looks else "",
        "selection": reading["selection"],
        "interval": interval_words,
        "reading": _lines("reading.txt.j2", reading),
        "units": in_units(PERCENT, {one.heading: one.unit for one in table.with_results}),
        "difference_units": in_units(POINTS, {one.judged_on: unit_of(one) for one in judgements}),
        "groups": _groups(table),
        "judgements": _judgement_pages(judgements, table, axis),
        "differences": [] if experiment.claims else differences(table),
        "axis": f"{axis:.0f}",
        "arms": learnt(table),
        "bounds": _lines("bounds.txt.j2", {"bounds": known_losses(table)}),
        "costs": costs(table),
        "problems": problems(table),
        "provenance": provenance(table),
    }


def _judgement_pages(
    judgements: Sequence[Judgement], table: ResultTable, axis: float
) -> list[dict[str, Any]]:
    pages = list[dict[str, Any]]()
    for one in judgements:
        found, decimals = one.difference, one.column.decimals if one.column else 1
        direction = (
            f"within {one.claim.points:g}"
            if isinstance(one.claim, EquivalenceClaim)
            else one.claim.direction
        )
        paper = (
            DIRECTIONS.get(direction, direction)
            if one.paper_size is None
            else signed(one.paper_size, decimals)
        )
        is_ours = one.claim.column in [
            column.name for column in table.experiment.columns if column.is_measured
        ]
        paper_or_claim = "the paper" if table.experiment.has_paper and not is_ours else "claimed"
        paper_or_claim += ": " if one.paper_size is None else " "
        corrected = (
            f"corrected {probability(one.corrected_p).removeprefix('p ').removeprefix('= ')}"
        )
        many = f">{MOST_SEEDS} seeds" if isinstance(one.forecast, TooManySeedsNeeded) else "waits"
        needs = forecast_of(one, table)
        seeds = f"~{one.decisive_seeds} seeds" if one.decisive_seeds else many
        ours, within = signed(found.mean if found else None, decimals), interval(found, decimals)
        if one.crossover:
            ours = wording.crossover_place(one.crossover)
            within = wording.crossover_interval(one.crossover)
        pages.append(
            {
                "id": one.claim.id,
                "number": len(pages) + 1,
                "is_answer": one.claim.primary or one.verdict.is_decided,
                "sentence": _sentence(one, f"{ours}{{unit}} {within}", f"{paper_or_claim}{paper}"),
                "claimed": f"{paper_or_claim}{paper}",
                "text": one.claim.text,
                "compared": _compared(one, table),
                "paper": f"{paper} (ours)" if table.experiment.has_paper and is_ours else paper,
                "judged_on": one.judged_on,
                "ours": ours,
                "interval": within,
                "shown": f"weakest: {one.reported_contrast}"
                if one.reported_contrast and not one.crossover
                else "",
                "p": f"{probability(one.p_value)}, {corrected}" if one.p_value is not None else "",
                "corrected": probability(one.corrected_p),
                "basis": found.basis if found and found.basis != _basis(table) else "",
                "marks": _marks(one, axis) if unit_of(one) == POINTS and not one.crossover else {},
                "verdict": wording.verdict_label(one),
                "kind": one.verdict.split()[0],
                "needs": needs,
                # for a narrow page
                "needs_short": seeds if needs and one.verdict is not Verdict.ONE_SEED else "",
                "note": wording.judgement_note(one),
            }
        )
    return pages


def _sentence(one: Judgement, ours: str, claimed: str) -> str:
    """`Left-to-right costs SQuAD: contradicted here, +36.3 F1 [+35.0, +37.6]; the paper -10.1`."""
    metric = one.column.metric.rpartition("/")[2] if one.column else ""
    unit = "" if one.crossover else " F1" if metric == "f1" else f" {unit_of(one)}"
    where = f" on {one.judged_on}" if one.column and not one.column.is_paper else " here"
    weakest = ""
    if one.reported_contrast and not one.crossover:
        weakest = f"weakest: {one.reported_contrast}, "
    note = wording.judgement_note(one)
    said = f" ({note})" if note else ""
    if one.difference or one.crossover:
        said = f", {weakest}{ours.format(unit=unit)}".rstrip()
    return f"{one.claim.text[:1].upper()}{one.claim.text[1:]}: {wording.verdict_label(one)}{where}{said}; {claimed}"


def forecast_of(one: Judgement, table: ResultTable) -> str:
    """How many seeds would decide a claim, and how long these rows' runs take for them."""
    tasks: dict[str, None] = {}
    for contrast in one.placed.contrasts:
        for term in contrast.terms:
            tasks |= dict.fromkeys(term.column.tasks)
    seconds = None
    if one.forecast and one.forecast.additional_seeds:
        seconds = seed_seconds(one.rows, tasks, table)
    return wording.forecast(one, seconds)


def unit_of(one: Judgement) -> str:
    return POINTS if one.column is None or one.column.unit == PERCENT else one.column.unit


def _axis(judgements: Sequence[Judgement]) -> float:
    """Half the width of the claims' common axis in points: shows every mean, and cuts an interval
    that dwarfs them.
    """
    judgements = [one for one in judgements if unit_of(one) == POINTS]
    differences = [one.difference for one in judgements if one.difference]
    means = [abs(one.mean) for one in differences]
    means += [max(abs(one.paper_size or 0.0), one.claim.points) for one in judgements]
    ends = [abs(end) for one in differences for end in (one.low, one.high) if end is not None]
    return max(1.0, min(1.05 * max([*means, *ends], default=0.0), 2.0 * max(means, default=0.0)))


def _marks(one: Judgement, axis: float) -> dict[str, float]:
    """Where what is drawn lies on the axis of points, in percent of its width."""
    marks: dict[str, float | None] = {"paper": one.paper_size}
    if margin := one.claim.points:
        marks |= {"least": -margin, "most": margin}
    if found := one.difference:
        marks |= {"ours": found.mean, "low": found.low, "high": found.high}
    places = {key: 50.0 + 50.0 * value / axis for key, value in marks.items() if value is not None}
    return {key: round(min(100.0, max(0.0, place)), 2) for key, place in places.items()}


def _compared(one: Judgement, table: ResultTable) -> str:
    claim, labels = one.claim, [table.experiment.label(row) for row in one.claim.rows]
    if isinstance(claim, TrendClaim):
        return f"{', '.join(labels)}: {claim.direction}"
    if isinstance(claim, EquivalenceClaim):
        return f"{', '.join(labels)}: within {claim.points:g} of each other"
    if isinstance(claim, CrossingClaim):
        return f"along the lines up to {labels[0]} and {labels[1]}"
    text = f"{labels[0]} against {'each of ' if len(labels) > 2 else ''}{', '.join(labels[1:])}"
    if claim.against is None:
        return text
    first, second = map(table.experiment.label, claim.against[:2])
    return f"{text} on {claim.column}, less {first} against {second} on {claim.against[2]}"


def differences(table: ResultTable) -> list[dict[str, str]]:
    """Every other row against the first one, on every data set: for a table without claims."""
    first, *others = table.rows
    links = [
        (row, one, contrast_rows(table, row, first, one))
        for one in table.with_results
        for row in others
    ]
    correction = fallback_procedure({"": [link for _, _, link in links]})
    found = []
    for row, one, link in links:
        if link.difference is None:
            continue
        basis = (
            "" if link.difference.basis == PRETRAINING_SEEDS else f"over {link.difference.basis}"
        )
        found.append(
            {
                "row": table.experiment.label(row),
                "first": table.experiment.label(first),
                "judged_on": one.heading,
                "ours": signed(link.difference.mean, one.decimals),
                "unit": POINTS if one.unit == PERCENT else one.unit,
                "interval": interval(link.difference, one.decimals),
                "p": probability(correction.corrected.get(link.key)),
                "note": "; ".join(filter(None, (*wording.contrast_notes(link), basis))),
            }
        )
    return found


def _lines(name: str, said: Mapping[str, Any]) -> list[str]:
    return [line for line in templates().get_template(name).render(said).splitlines() if line]


@cache
def templates() -> Environment:
    """How reports look; what goes into HTML is escaped."""
    return Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _setup(table: ResultTable) -> str:
    """What was trained, in one line: a reader must see at once how far it is from the paper's
    size.
    """
    # The arms that the table has; before the first is complete, those to come.
    runs = [run for run in table.runs.pretrain if run.is_complete] or table.runs.pretrain
    models = [run.config["model"] for run in runs if run.config.get("model")]
    layers, widths = (
        span((one[key] for one in models), str) for key in ("num_hidden_layers", "hidden_size")
    )
    known = {
        key: span(run.facts[key] for run in runs if run.facts.get(key))
        for key in ("parameters", "tokens")
    }
    parts = (
        f"{layers} layer{'' if layers == '1' else 's'} of {widths}" if models else DASH,
        f"{known['parameters']} parameters" if known["parameters"] else DASH,
        f"{known['tokens']} tokens a pre-training run" if known["tokens"] else DASH,
        distinct(
            f"corpus {run.config['corpus']['name']}" for run in runs if run.config.get("corpus")
        ),
        seed_counts(table),
    )
    return ", ".join(part for part in parts if part != DASH)


def _run_counts(table: ResultTable) -> str:
    runs = table.runs
    stages = {
        "pre-training": runs.pretrain,
        "fine-tuning": runs.finetune,
        "evaluation": runs.evaluate,
    }
    done = [
        f"{sum(run.is_complete for run in mine)} of {len(mine)} {stage}"
        for stage, mine in stages.items()
        if mine
    ]
    states = Counter(run.status for run in runs.runs if not run.is_complete)
    columns = [one.key for one in table.with_results if one.task]
    missing = sum(bool(table.cells[row, key].missing) for row in table.rows for key in columns)
    tuned = {run.folder: run for cell in table.cells.values() for run in cell.runs.values()}
    collapsed = sum(run.is_collapsed for run in tuned.values())
    parts = [
        f"{' and '.join(done)} runs complete",
        *(f"{count} {state}" for state, count in states.items()),
    ]
    parts += [f"{missing} cell{' lacks' if missing == 1 else 's lack'} runs"] if missing else []
    parts += [f"{collapsed} collapsed"] if collapsed else []
    return ", ".join([*parts, *([f"{len(runs.damaged)} unreadable"] if runs.damaged else [])])


def _basis(table: ResultTable) -> str:
    """What most intervals can be over; cells of another basis say so themselves."""
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    return next(
        (basis for basis in (PRETRAINING_SEEDS, FINETUNING_SEEDS) if basis in bases), ONE_RUN
    )


def _groups(table: ResultTable) -> list[dict[str, Any]]:
    """The table in groups of columns, those with results of ours first."""
    has_paper = table.experiment.has_paper
    own = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_own = any(table.has_results(column) for column in own)
    if apart and not has_own and not table.experiment.has_numbers:  # nothing but dashes
        own = []
    title = (
        "The paper's data sets"
        if has_own
        else "The paper's own numbers, on data that none of our runs has seen"
    )
    other = (
        "Stand-ins and other data sets"
        if has_paper
        else "Other data sets"
        if has_own
        else "Data sets"
    )
    if apart and all(column.is_synthetic for column in apart):
        other = f"Generated tasks of {table.runs.synthetic}"
    groups = [(title if has_paper else "Data sets", own), (other, apart)]
    found = []
    for title, columns in groups if has_own else reversed(groups):
        rows = [
            {
                "name": row.name,
                "label": row.label,
                "is_floor": row.arm is None,
                "cells": [_cell(row.name, one, table) for one in columns],
            }
            for row in table.experiment.rows
        ]
        majority = [DASH if one.majority is None else f"{one.majority:.1f}" for one in columns]
        best = [one.baseline or ("", None) for one in columns]
        surface = [
            {"mean": DASH if score is None else f"{score:.1f}", "note": name}
            for name, score in best
        ]
        found.append(
            {
                "title": title,
                "headings": [_heading(one, table) for one in columns],
                "rows": rows,
                "majority": majority if any(one != DASH for one in majority) else None,
                "surface": surface if any(one["note"] for one in surface) else None,
            }
        )
    return [group for group in found if group["headings"]]


def _heading(column: DataColumn, table: ResultTable) -> dict[str, Any]:
    has_paper, has_results = table.experiment.has_paper, table.has_results(column)
    metric = column.metric.rpartition("/")[2].replace("_", " ")
    note = (
        ""
        if column.is_paper
        else wording.role_of(column) or ("not in the paper's table" if has_paper else "")
    )
    # as the group's title says
    plain = column.column.name if column.column and not has_paper else ""
    is_plain = bool(plain) and column.is_synthetic
    note = "" if is_plain else note
    if column.is_paper and not has_results:
        note = "held-out text of the paper's" if column.is_pretraining and has_paper else "no run"
    elif column.is_pretraining and not has_paper:
        note = ""
    return {
        "name": plain if is_plain else column.heading,
        "note": note,
        "metric": with_direction({"f1": "F1", "matthews": "Matthews"}.get(metric, metric)),
        "unit": column.unit,
        "examples": f"{column.num_examples:,} examples" if column.num_examples else "",
        "trained_on": "{:,} of {:,}".format(*column.trained_on) if column.trained_on else "",
        "has_paper": column.is_paper and table.experiment.has_numbers,
        "has_ours": has_results or not column.is_paper or not table.experiment.has_numbers,
    }


def _cell(row: str, column: DataColumn, table: ResultTable) -> dict[str, Any]:
    cell, decimals, found = (
        table.cells[row, column.key],
        column.decimals,
        table.cells[row, column.key].estimate,
    )
    paper = table.paper_value(row, column)
    # A row without an arm of its own has no pre-training to report, which is not a lack.
    is_lacking = column.task or cell.missing
    seeds = {
        f"{first}/{second}" if second else f"seed {first}": one
        for (first, second), one in cell.scores.items()
    }
    # what sets it apart from the others
    notes = [
        wording.cell_note(cell),
        "below its floor" * bool(table.below_floor(row, column)),
    ]
    if found and cell.missing:
        notes.append(f"{len(cell.scores)} of {len(cell.scores) + len(cell.missing)} runs")
    if found and found.basis != _basis(table) and not cell.is_collapsed:
        notes.append(found.basis)
    if cell.is_collapsed:
        notes.append("every run" if len(cell.scores) > 1 else "the only run")
    elif cell.num_collapsed:
        without = (
            f", {percent(cell.without_collapsed, decimals)} without"
            if cell.without_collapsed
            else ""
        )
        notes.append(
            f"{cell.num_collapsed} {'collapsed' if cell.runs else 'with collapsed parts'}{without}"
        )
    return {
        "paper": DASH if paper is None else f"{paper:.{decimals}f}",
        "mean": f"{found.mean:.{decimals}f}" if found else "missing" if is_lacking else DASH,
        "is_absent": found is None and bool(is_lacking),
        # The same answer whatever the input: its spread is no measure of anything.
        "half": "collapsed" if cell.is_collapsed else half_width(found, decimals),
        "note": "; ".join(filter(None, notes)),
        "seeds": ", ".join(
            f"{name}: {score:.{decimals}f}" for name, score in sorted(seeds.items())
        ),
    }
