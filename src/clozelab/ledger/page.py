"""What a report says, as text: the one dictionary that the HTML, the Markdown and the terminal page are laid out from.

Data sets of the paper come in one group of columns, stand-ins and generated tasks in another: the paper's number never
stands beside a score on other data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clozelab.ledger.collect import Collected, FinetuneRun, PretrainRun
from clozelab.ledger.experiment import Experiment
from clozelab.ledger.table import Cell, DataColumn, Table
from clozelab.ledger.verdicts import Judgement, summarise
from clozelab.metrics.statistics import FINETUNING_SEEDS, ONE_RUN, PRETRAINING_SEEDS, Estimate

MINUS, PLUS_MINUS, DASH = "\u2212", "\u00b1", "\u2013"
QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
INTERVALS = {
    PRETRAINING_SEEDS: "95 % interval over pre-training seeds, the fine-tuning seeds averaged inside each",
    FINETUNING_SEEDS: "95 % interval over fine-tuning seeds only, as there is one pre-training seed an arm: "
    "it does not contain the spread between pre-training runs",
    ONE_RUN: "one run a cell: there are no intervals",
}
READING = (
    "An interval is Student's t at 95 %: with 2 seeds its half-width is 12.7 standard errors, with 3 it is 4.3, with 5 "
    "it is 2.8. Wide intervals mean few seeds, not noise alone.",
    "A difference is paired: the same pre-training seed (and fine-tuning seeds) in both rows. Intervals of two cells "
    "may overlap while that of their difference excludes zero.",
    "A claim holds (fails) if the interval of the difference lies on the claimed (other) side of zero. Otherwise it is "
    "inconclusive, with a single pre-training seed always. Not comparable: a row or a data set has no run.",
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
        "interval": INTERVALS[_basis(table)],
        "reading": READING,
        "groups": _groups(table, collected.synthetic),
        "judgements": [_judgement(one, table, _axis(judgements)) for one in judgements],
        "axis": f"{_axis(judgements):.0f}",
        "arms": [_learnt(arm, label, collected) for arm, label in _arms(experiment, collected).items()],
        "costs": _costs(experiment, collected),
        "missing": _missing(table),
        "troubled": _troubled(collected),
        "collapsed": _collapsed(table),
        "damaged": [line.replace(f"{collected.root}/", "") for line in collected.damaged],
        "provenance": _provenance(experiment, collected, table, scale),
    }


def percent(estimate: Estimate | None) -> str:
    """`67.4 ± 1.7`, or the mean alone where there is no interval."""
    if estimate is None:
        return "missing"
    return f"{estimate.mean:.1f} {_half(estimate)}".rstrip()


def signed(value: float | None) -> str:
    """A difference with its sign; a dash for none."""
    if value is None:
        return DASH
    text = f"{abs(value):.1f}"
    return text if text == "0.0" else f"{'+' if value > 0 else MINUS}{text}"


def rough(value: float) -> str:
    """A count to three digits: 1.53 M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def place(run: PretrainRun | FinetuneRun, collected: Collected) -> str:
    """The run's folder below the experiment's, which is the same on every machine."""
    return run.dir.relative_to(collected.root).as_posix()


def arm_labels(experiment: Experiment) -> dict[str, str]:
    """Arm -> label of the first row that uses it, in the table's order."""
    labels: dict[str, str] = {}
    for row in experiment.rows:
        if row.arm is not None:
            labels.setdefault(row.arm, row.label)
    return labels


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
        _distinct(f"{one['num_hidden_layers']} layers of {one['hidden_size']}" for one in models),
        _distinct(f"{rough(one['parameters'])} parameters" for one in facts if one.get("parameters")),
        _distinct(f"{rough(one['tokens'])} tokens" for one in facts if one.get("tokens")),
        _distinct(str(config.get("corpus", {}).get("name", "")) for config in configs),
        f"pre-training seeds {_seeds(table.pretrain_seeds)}",
        f"fine-tuning seeds {_seeds(table.finetune_seeds)}",
    )
    return ", ".join(part for part in parts if part != DASH)


def _run_counts(collected: Collected, table: Table) -> str:
    done = [f"{sum(run.is_complete for run in runs)} of {len(runs)} {stage}" for stage, runs in (
        ("pre-training", collected.pretrain), ("fine-tuning", collected.finetune)) if runs]  # fmt: skip
    states = [run.state["status"] for run in collected.runs if run.state["status"] != "complete"]
    parts = [f"{' and '.join(done)} runs complete"]
    parts += [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    missing = sum(bool(table.cells[row.name, one.key].missing) for row in table.experiment.rows for one in _used(table))
    collapsed = sum(cell.num_collapsed for cell in table.cells.values())
    parts += [f"{missing} cells lack runs"] if missing else []
    parts += [f"{collapsed} collapsed"] if collapsed else []
    parts += [f"{len(collected.damaged)} unreadable"] if collected.damaged else []
    return ", ".join(parts)


def _basis(table: Table) -> str:
    """What most intervals can be over; cells of another basis say so themselves."""
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    return next((basis for basis in INTERVALS if basis in bases), ONE_RUN)


def _used(table: Table) -> list[DataColumn]:
    return [column for column in table.columns if table.has_results(column)]


def _groups(table: Table, synthetic: str | None) -> list[dict[str, Any]]:
    """The table in groups of columns, those with results of ours first."""
    own = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_own = any(table.has_results(column) for column in own)
    own_title = "The paper's data sets" if has_own else "The paper's own numbers, on data that none of our runs has seen"
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
    headings = [_heading(one, table) for one in columns]
    return {"title": title, "headings": headings, "rows": rows, "majority": majority if known else None}


def _heading(column: DataColumn, table: Table) -> dict[str, Any]:
    has_results = table.has_results(column)
    metric = column.metric.rpartition("/")[2].replace("_", " ")
    metric = {"f1": "F1", "matthews": "Matthews"}.get(metric, metric)
    note = "" if column.is_paper else column.role or "not in the paper's table"
    return {
        "name": column.heading,
        "note": note if has_results or not column.is_paper else "no run",
        "metric": metric + (f", {column.num_examples:,} examples" if column.num_examples else ""),
        "has_paper": column.is_paper,
        "has_ours": has_results or not column.is_paper,
    }


def _cell(row: str, column: DataColumn, table: Table) -> dict[str, str]:
    cell = table.cells[row, column.key]
    paper = None
    if column.is_paper and column.column is not None:
        one = next(entry for entry in table.experiment.rows if entry.name == row)
        paper = one.cells[table.experiment.columns.index(column.column)]
    return {
        "paper": DASH if paper is None else f"{paper:.1f}",
        "mean": f"{cell.estimate.mean:.1f}" if cell.estimate else "missing",
        "half": _half(cell.estimate),
        "note": _cell_note(cell, _basis(table)),
        "seeds": ", ".join(f"{first}/{second}: {score:.1f}" for (first, second), score in sorted(cell.scores.items())),
    }


def _half(estimate: Estimate | None) -> str:
    return f"{PLUS_MINUS} {estimate.half_width:.1f}" if estimate and estimate.half_width is not None else ""


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
    marks = {"paper": one.claim.paper_delta}
    if difference is not None:
        marks["ours"] = difference.mean
        if difference.low is not None and difference.high is not None:
            interval = f"[{signed(difference.low)}, {signed(difference.high)}]"
            marks |= {"low": difference.low, "high": difference.high}
    return {
        "text": one.claim.text,
        "compared": f"{table.experiment.label(one.claim.first)} against {table.experiment.label(one.claim.second)}",
        "paper": signed(one.claim.paper_delta),
        "judged_on": one.judged_on,
        "ours": signed(difference.mean if difference else None),
        "interval": interval,
        "basis": difference.basis if difference else "",
        "marks": {key: _share(value, axis) for key, value in marks.items() if value is not None},
        "verdict": one.verdict,
        "kind": one.verdict.split()[0],
        "note": one.note,
    }


def _share(value: float, axis: float) -> float:
    """Where a value lies on the axis, in percent of its width."""
    return round(min(100.0, max(0.0, 50.0 + 50.0 * value / axis)), 2)


def _arms(experiment: Experiment, collected: Collected) -> dict[str, str]:
    """Arm -> label, of every arm with a run: the table's first, then any other."""
    labels = arm_labels(experiment) | {run.arm: run.arm for run in collected.pretrain if run.arm not in arm_labels(experiment)}
    return {arm: label for arm, label in labels.items() if any(run.arm == arm for run in collected.pretrain)}


def _learnt(arm: str, label: str, collected: Collected) -> dict[str, str]:
    """What an arm's finished pre-training runs reached on held-out text, as means over seeds."""
    facts = [run.facts for run in collected.pretrain if run.arm == arm and run.is_complete]
    return {
        "label": f"{label} ({arm})",
        "loss": _mean(facts, "validation/loss", "{:.3f}"),
        "entropy": _mean(facts, "unigram_entropy", "{:.3f}"),
        "accuracy": _mean(facts, "validation/accuracy", "{:.1%}"),
        "nsp": _mean(facts, "validation/nsp_accuracy", "{:.1%}"),
    }


def _costs(experiment: Experiment, collected: Collected) -> list[dict[str, str]]:
    """One line an arm's pre-training, one line a row's fine-tuning, and the sum."""
    lines: list[tuple[str, list[Any]]] = [
        (f"pre-training {label}", [run for run in collected.pretrain if run.arm == arm])
        for arm, label in _arms(experiment, collected).items()
    ]
    lines += [
        (f"fine-tuning {row.label}", [run for run in collected.finetune if run.row == row.name])
        for row in experiment.rows
    ]
    return [_cost(label, runs) for label, runs in [*lines, ("all", collected.runs)] if runs]


def _cost(label: str, runs: Sequence[PretrainRun | FinetuneRun]) -> dict[str, str]:
    facts = [run.state.get("facts", {}) for run in runs if run.is_complete]
    return {
        "label": label,
        "runs": f"{len(facts)} of {len(runs)}",
        "tokens": _mean(facts, "tokens"),
        "speed": _mean(facts, "tokens_per_second"),
        "mfu": _mean(facts, "mfu", "{:.0%}"),
        "time": duration(sum(float(run.state.get("seconds", 0.0)) for run in runs)),
    }


def _mean(facts: Sequence[Mapping[str, Any]], key: str, shape: str = "") -> str:
    values = [float(one[key]) for one in facts if isinstance(one.get(key), int | float)]
    if not values:
        return DASH
    mean = sum(values) / len(values)
    return shape.format(mean) if shape else rough(mean)


def _missing(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        gaps = []
        for column in _used(table):
            cell = table.cells[row.name, column.key]
            if cell.missing:
                seeds = ", ".join(f"{first}/{second}" for first, second in cell.missing)
                gaps.append(f"{column.heading} ({f'seeds {seeds}' if cell.scores else 'every seed'})")
        if gaps:
            lines.append(f"{row.label} on {'; '.join(gaps)}")
    unused = [one.heading for one in table.columns if not table.has_results(one)]
    return lines + ([f"every row on {', '.join(unused)}: no run on this data"] if unused else [])


def _troubled(collected: Collected) -> list[str]:
    """Runs that began and did not end well, with the reason."""
    lines = []
    for run in collected.runs:
        if run.state["status"] != "complete":
            reason = " ".join(str(run.state.get("error") or "").replace(f"{collected.root}/", "").split())
            lines.append(f"{place(run, collected)} ({run.state['status']}){': ' if reason else ''}{reason}")
    return lines


def _collapsed(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        for column in table.columns:
            cell = table.cells[row.name, column.key]
            if cell.num_collapsed:
                without = percent(cell.without_collapsed) if cell.without_collapsed else "none left"
                lines.append(
                    f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)} runs give one answer "
                    f"to every example; mean with them {percent(cell.estimate)}, without them {without}"
                )
    return lines


def _provenance(experiment: Experiment, collected: Collected, table: Table, scale: str) -> list[tuple[str, str]]:
    states = collected.states
    times = sorted(str(state[key])[:16].replace("T", " ") for state in states for key in ("started", "finished") if state.get(key))
    return [
        ("Command", f"clozelab reproduce {experiment.name} scale={scale}"),
        ("Commit", _distinct(_commit(state.get("git")) for state in states)),
        ("Versions", _distinct(", ".join(map(" ".join, state.get("versions", {}).items())) for state in states)),
        ("Machine", _distinct(_host(state.get("host", {})) for state in states)),
        ("Seeds", f"pre-training {_seeds(table.pretrain_seeds)}; fine-tuning {_seeds(table.finetune_seeds)}"),
        ("Runs", f"{times[0]} to {times[-1]} UTC" if times else DASH),
        ("Report", f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from run folders alone"),
    ]


def _commit(git: Mapping[str, Any] | None) -> str:
    return f"{git['commit'][:12]}{' with local changes' if git.get('dirty') else ''}" if git else "not from a checkout"


def _host(host: Mapping[str, Any]) -> str:
    gpus = f", {len(host['gpus'])} x {host['gpus'][0]}" if host.get("gpus") else ""
    return f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{gpus}"


def _seeds(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "none"


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value)) or DASH
