"""The report of an experiment at one scale: report.md, one self-contained report.html, plots and results.csv.

Reads run folders and paper.yaml and nothing else, so it can be made again at any time, also while runs are going on.
"""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.ledger.collect import Collected, FinetuneRun, PretrainRun, collect
from clozelab.ledger.experiment import Experiment
from clozelab.ledger.plots import draw_curves, draw_table
from clozelab.ledger.table import Cell, DataColumn, Table, build_table
from clozelab.ledger.verdicts import Judgement, judge, summarise
from clozelab.metrics.statistics import FINETUNING_SEEDS, PRETRAINING_SEEDS, Estimate

MINUS, PLUS_MINUS = "\u2212", "\u00b1"
RESULT_FIELDS = (
    "stage", "status", "name", "task", "pretrain_seed", "seed", "metric", "score_percent", "majority_percent",
    "collapsed", "tokens", "tokens_per_second", "hours", "commit", "folder",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    folder: Path
    table: Table
    judgements: list[Judgement]
    page: dict[str, Any]

    @property
    def html(self) -> Path:
        return self.folder / "report.html"


def write_report(experiment: Experiment, root: Path, folder: Path, *, scale: str) -> Report:
    """Collect the runs below `root`, judge them and write the report into `folder`.

    Raises:
        ValueError: there is no run at all.
    """
    collected = collect(root)
    if not collected.pretrain and not collected.finetune:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table = build_table(experiment, collected)
    judgements = judge(table)
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(experiment, collected, table, judgements, scale)
    page["plots"] = _plots(experiment, collected, table, folder)
    environment = Environment(
        loader=PackageLoader("clozelab.ledger", "templates"), autoescape=lambda name: bool(name and ".html" in name),
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    for name in ("report.md", "report.html"):
        text = environment.get_template(f"{name}.j2").render(page)
        (folder / name).write_text(text, encoding="utf-8")
    write_results(folder / "results.csv", collected)
    return Report(folder, table, judgements, page)


def build_page(
    experiment: Experiment, collected: Collected, table: Table, judgements: list[Judgement], scale: str
) -> dict[str, Any]:
    """Everything the templates show, as text."""
    return {
        "title": experiment.title,
        "name": experiment.name,
        "source": experiment.source,
        "split": experiment.split,
        "scale": scale,
        "made": datetime.now(UTC).isoformat(timespec="minutes").replace("+00:00", " UTC"),
        "synthetic": collected.synthetic,
        "summary": summarise(judgements),
        "interval_note": _interval_note(table),
        "headings": [_heading(column) for column in table.columns],
        "with_results": [table.has_results(column) for column in table.columns],
        "rows": [_row(table, row.name, row.label) for row in experiment.rows],
        "judgements": [_judgement(one, table) for one in judgements],
        "arms": _arm_costs(experiment, collected),
        "finetune_cost": _finetune_costs(experiment, collected),
        "missing": _missing(table),
        "troubled": _troubled(collected),
        "collapsed": _collapsed(table),
        "damaged": collected.damaged,
        "provenance": _provenance(collected),
    }


def percent(estimate: Estimate | None) -> str:
    """`67.4 ± 1.7`, or the mean alone where there is no interval."""
    if estimate is None:
        return "missing"
    half = estimate.half_width
    return f"{estimate.mean:.1f}" if half is None else f"{estimate.mean:.1f} {PLUS_MINUS} {half:.1f}"


def signed(value: float | None) -> str:
    """A difference with its sign; a dash for none."""
    if value is None:
        return "\u2013"
    return f"{'+' if value >= 0 else MINUS}{abs(value):.1f}"


def write_results(path: Path, collected: Collected) -> None:
    """Every run, complete or not, as one line."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, RESULT_FIELDS, lineterminator="\n")
        writer.writeheader()
        for one in collected.pretrain:
            writer.writerow(_common(one) | _pretrain_result(one))
        for run in collected.finetune:
            writer.writerow(_common(run) | _finetune_result(run))


def _common(run: PretrainRun | FinetuneRun) -> dict[str, Any]:
    return {
        "stage": run.state["stage"],
        "status": run.state["status"],
        "seed": run.seed,
        "hours": f"{float(run.state.get('seconds', 0.0)) / 3600:.4f}",
        "commit": (run.state.get("git") or {}).get("commit", ""),
        "folder": str(run.dir),
    }


def _pretrain_result(run: PretrainRun) -> dict[str, Any]:
    facts = run.facts
    loss = facts.get("validation/loss")
    return {
        "name": run.arm,
        "metric": "" if loss is None else f"validation/loss={loss:.4f}",
        "tokens": facts.get("tokens", ""),
        "tokens_per_second": facts.get("tokens_per_second", ""),
    }


def _finetune_result(run: FinetuneRun) -> dict[str, Any]:
    score = run.scores.get(run.metric)
    return {
        "name": run.row,
        "task": run.task,
        "pretrain_seed": run.pretrain_seed,
        "metric": run.metric,
        "score_percent": "" if score is None else f"{score:.4f}",
        "majority_percent": "" if run.majority is None else f"{run.majority:.4f}",
        "collapsed": run.collapsed if run.is_complete else "",
    }


def _plots(experiment: Experiment, collected: Collected, table: Table, folder: Path) -> list[dict[str, str]]:
    labels = {row.arm: row.label for row in reversed(experiment.rows) if row.arm is not None}
    labels = {row.arm: labels[row.arm] for row in experiment.rows if row.arm is not None}
    drawers = {
        "curves": ("Learning curves", lambda style: draw_curves(collected.pretrain, labels, style)),
        "table": ("The table as dots", lambda style: draw_table(table, style)),
    }
    plots = []
    for name, (caption, draw) in drawers.items():
        light, dark = draw("light"), draw("dark")
        if light is None or dark is None:
            continue
        (folder / f"{name}.png").write_bytes(light)
        encoded = {"light": base64.b64encode(light).decode(), "dark": base64.b64encode(dark).decode()}
        plots.append({"name": name, "caption": caption, **encoded})
    return plots


def _interval_note(table: Table) -> str:
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    if PRETRAINING_SEEDS in bases:
        return "Intervals: 95 %, Student's t over pre-training seeds; fine-tuning seeds are averaged inside each."
    if FINETUNING_SEEDS in bases:
        return (
            "Intervals: 95 %, Student's t over fine-tuning seeds only, as there is one pre-training seed an arm: they "
            "do not contain the spread between pre-training runs."
        )
    return "One run a cell: there are no intervals."


def _heading(column: DataColumn) -> dict[str, str]:
    note = ""
    if not column.is_paper:
        note = column.role or "not in the paper's table"
    metric = column.metric.rpartition("/")[2].replace("_", " ")
    examples = f", {column.num_examples:,} examples" if column.num_examples else ""
    return {
        "name": column.heading,
        "note": note,
        "metric": f"{metric}{examples}",
        "is_paper": "yes" if column.is_paper else "",
        "task": column.key,
    }


def _row(table: Table, row: str, label: str) -> dict[str, Any]:
    return {"label": label, "cells": [_shown(table, row, column) for column in table.columns]}


def _shown(table: Table, row: str, column: DataColumn) -> dict[str, str]:
    cell = table.cells[row, column.key]
    paper = ""
    if column.is_paper and column.column is not None:
        one = next(entry for entry in table.experiment.rows if entry.name == row)
        paper = _number(one.cells[table.experiment.columns.index(column.column)])
    ours = percent(cell.estimate) if table.has_results(column) else "no run"
    return {"paper": paper, "ours": ours, "note": _cell_note(cell)}


def _cell_note(cell: Cell) -> str:
    notes = [f"n = {cell.estimate.count}" if cell.estimate else "", cell.note]
    if cell.num_collapsed:
        without = f", {percent(cell.without_collapsed)} without" if cell.without_collapsed else ""
        notes.append(f"{cell.num_collapsed} collapsed{without}")
    if cell.missing and cell.scores:
        notes.append(f"{len(cell.missing)} missing")
    return "; ".join(note for note in notes if note)


def _judgement(one: Judgement, table: Table) -> dict[str, str]:
    difference = one.difference
    interval, basis = "", ""
    if difference is not None:
        basis = difference.basis
        if difference.low is not None and difference.high is not None:
            interval = f"[{signed(difference.low)}, {signed(difference.high)}]"
    compared = f"{table.experiment.label(one.claim.first)} against {table.experiment.label(one.claim.second)}"
    return {
        "text": one.claim.text,
        "compared": compared,
        "paper": signed(one.claim.paper_delta),
        "judged_on": one.judged_on,
        "ours": signed(difference.mean) if difference else "\u2013",
        "interval": interval,
        "basis": basis,
        "verdict": one.verdict,
        "kind": one.verdict.split()[0],
        "note": one.note,
    }


def _arm_costs(experiment: Experiment, collected: Collected) -> list[dict[str, str]]:
    labels = {row.arm: row.label for row in reversed(experiment.rows)}
    arms = sorted(
        {run.arm for run in collected.pretrain},
        key=[*dict.fromkeys(r.arm for r in experiment.rows), *_arms(collected)].index,
    )
    costs = []
    for arm in arms:
        runs = [run for run in collected.pretrain if run.arm == arm]
        done = [run for run in runs if run.is_complete]
        facts = [run.facts for run in done]
        costs.append(
            {
                "label": f"{labels.get(arm, arm)} ({arm})",
                "seeds": f"{len(done)} of {len(runs)}",
                "tokens": _mean(facts, "tokens", "{:,.0f}"),
                "hours": f"{sum(float(run.state.get('seconds', 0.0)) for run in runs) / 3600:.2f}",
                "speed": _mean(facts, "tokens_per_second", "{:,.0f}"),
                "mfu": _mean(facts, "mfu", "{:.0%}"),
                "parameters": _mean(facts, "parameters", "{:,.0f}"),
                "loss": _mean(facts, "validation/loss", "{:.3f}"),
                "accuracy": _mean(facts, "validation/accuracy", "{:.1%}"),
                "nsp": _mean(facts, "validation/nsp_accuracy", "{:.1%}"),
                "entropy": _mean(facts, "unigram_entropy", "{:.3f}"),
            }
        )
    return costs


def _arms(collected: Collected) -> list[str]:
    return [run.arm for run in collected.pretrain]


def _finetune_costs(experiment: Experiment, collected: Collected) -> list[dict[str, str]]:
    costs = []
    for row in experiment.rows:
        runs = [run for run in collected.finetune if run.row == row.name]
        if runs:
            hours = sum(float(run.state.get("seconds", 0.0)) for run in runs) / 3600
            done = sum(run.is_complete for run in runs)
            costs.append({"label": row.label, "runs": f"{done} of {len(runs)}", "hours": f"{hours:.2f}"})
    return costs


def _mean(facts: list[Any], key: str, shape: str) -> str:
    values = [float(one[key]) for one in facts if isinstance(one.get(key), int | float)]
    return shape.format(sum(values) / len(values)) if values else "\u2013"


def _missing(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        for column in (one for one in table.columns if table.has_results(one)):
            missing = table.cells[row.name, column.key].missing
            if missing:
                seeds = ", ".join(f"{first}/{second}" for first, second in missing)
                lines.append(f"{row.label} on {column.heading}: seeds {seeds} (pre-training/fine-tuning)")
    return lines + [f"{one.heading}: no run on this data set" for one in table.columns if not table.has_results(one)]


def _troubled(collected: Collected) -> list[str]:
    """Runs that began and did not end well, with the reason."""
    lines = []
    for run in collected.runs:
        if run.state["status"] != "complete":
            reason = f": {run.state['error']}" if run.state.get("error") else ""
            lines.append(f"{run.dir} ({run.state['status']}){reason}")
    return lines


def _collapsed(table: Table) -> list[str]:
    lines = []
    for row in table.experiment.rows:
        for column in table.columns:
            cell = table.cells[row.name, column.key]
            if cell.num_collapsed:
                without = percent(cell.without_collapsed) if cell.without_collapsed else "none left"
                lines.append(
                    f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)} runs give one label "
                    f"to every example; mean with them {percent(cell.estimate)}, without them {without}"
                )
    return lines


def _provenance(collected: Collected) -> list[tuple[str, str]]:
    states = collected.states
    commits = _distinct(
        f"{git['commit'][:12]}{' (with local changes)' if git.get('dirty') else ''}" if git else "not from a checkout"
        for git in (state.get("git") for state in states)
    )
    versions = _distinct(
        ", ".join(f"{name} {version}" for name, version in state.get("versions", {}).items()) for state in states
    )
    hosts = _distinct(_host(state.get("host", {})) for state in states)
    times = sorted(str(state["started"]) for state in states if state.get("started"))
    return [
        ("Commit", commits),
        ("Versions", versions),
        ("Machine", hosts),
        ("First run", times[0] if times else "\u2013"),
    ]


def _host(host: dict[str, Any]) -> str:
    gpus = f", {len(host['gpus'])} x {host['gpus'][0]}" if host.get("gpus") else ""
    return f"{host.get('cpu', 'unknown')}, {host.get('cores', '?')} cores{gpus}"


def _distinct(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value)) or "\u2013"


def _number(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:.1f}"
