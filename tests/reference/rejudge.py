"""Reads the results.csv of a published report and has its claims judged again, without run folders.

A results.csv lacks what tells whether rows may be compared (settings, steps, encoders' checksums),
how long the texts were, and the answers to single examples. So this proves the arithmetic of a
verdict: cells, paired differences, intervals, Holm's correction, and what collapsed runs do to
them. It proves nothing about comparability.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from tests.reference import doors

from claims.analysis.verdict_codes import read_verdict

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results"
REPORTS = {
    "2026-11-20-table5-laptop": "table5_pretraining_tasks",
    "2026-11-21-figure5-laptop": "figure5_training_steps",
    "2026-11-21-table5-laptop": "table5_pretraining_tasks",
    "2026-11-21-table6-laptop": "table6_model_size",
    "2026-11-21-table8-laptop": "table8_masking",
}
"""Published report -> the experiment whose claims it judges."""
FIRST_STAND_INS = {"snli_95k": "mnli", "qnli_derived": "qnli"}
"""What the first report's tasks stand in for, which its results.csv does not say."""


def rejudge(report: str) -> list[dict[str, Any]]:
    """Judgements as doors.judge gives them; AssertionError where report.md says otherwise."""
    with (RESULTS / report / "results.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert all(line["status"] == "complete" for line in lines), (
        f"{report}: a run that is not complete"
    )
    read = _read if "experiment" in lines[0] else _read_first
    old = dict.fromkeys(
        line["claim"] for line in published(report)
    )  # younger claims were not judged in it, nor in its corrections
    found = doors.judge(ROOT / "experiments" / REPORTS[report], *read(lines), claims=old)
    for mine, theirs in zip(found, published(report), strict=True):
        assert mine["verdict"] == read_verdict(theirs["verdict"]).code, (report, mine, theirs)
        numbers = {"ours": mine["difference"], "p, corrected for the table": mine["corrected"]}
        low, high = mine["interval"] or (None, None)
        shown = [(numbers[key], first_number(theirs[key])) for key in numbers]
        if "[" in theirs["95 % interval"]:
            shown += zip(
                (low, high), map(first_number, theirs["95 % interval"].split(",")), strict=True
            )
        assert all(is_rounded(value, text) for value, text in shown), (report, mine, theirs)
    return found


def first_number(text: str) -> str:
    """The first number of a cell of report.md as Python writes it; empty where there is none."""
    number = re.search(r"[-+]?\d+(\.\d+)?", text.replace("\N{MINUS SIGN}", "-"))
    return number.group() if number else ""


def is_rounded(value: float | None, text: str) -> bool:
    """Whether `text` is what `value` is rounded to; the first report has four decimals."""
    if value is None or not text:
        return value is None and not text
    decimals = len(text.partition(".")[2])
    return abs(value - float(text)) <= 0.5 * 10**-decimals + 1e-3


def published(report: str) -> list[dict[str, str]]:
    """The table of claims of a report.md: column -> text, one entry a claim and data set."""
    lines = (RESULTS / report / "report.md").read_text(encoding="utf-8").splitlines()
    cells: list[list[str]] = []
    for line in lines:
        between_bars = re.split(r"(?<!\\)\|", line)[1:-1]
        cells.append([cell.strip(" *") for cell in between_bars])
    first = next(i for i, line in enumerate(lines) if line.startswith("| verdict | claim |"))
    last = next(i for i, line in enumerate(lines) if i > first and not line.startswith("|"))
    return [dict(zip(cells[first], row, strict=True)) for row in cells[first + 2 : last]]


def _read(lines: list[dict[str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(pre-training runs, fine-tuning runs); a run is all lines of one folder."""
    by_folder: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        by_folder.setdefault(line["folder"], []).append(line)
    pretrainings, finetunings = [], []
    for mine in by_folder.values():
        one, scores = mine[0], {line["metric"]: float(line["score"]) for line in mine}
        if one["stage"] == "pretrain":
            about = {"arm": one["arm"], "seed": int(one["pretrain_seed"]), "facts": scores}
            pretrainings.append(about)
            continue
        assert one["is_headline"] == "True", one["folder"]
        tuned: dict[str, Any] = {key: one[key] for key in ("row", "task", "metric")}
        tuned |= {key: one[key] or None for key in ("stand_in_for", "synthetic")}
        tuned |= {key: int(one[key]) for key in ("pretrain_seed", "seed")}
        for key in ("learning_rate", "majority"):
            tuned[key] = float(one[key]) if one[key] else None
        finetunings.append(tuned | {"collapsed": one["collapsed"] == "True", "scores": scores})
    return pretrainings, finetunings


def _read_first(lines: list[dict[str, str]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same of the first report's file: one line a run, its headline score alone."""
    pretrainings, finetunings = [], []
    for line in lines:
        if line["stage"] == "pretrain":
            key, _, value = line["metric"].partition("=")
            pretrainings.append(
                {"arm": line["name"], "seed": int(line["seed"]), "facts": {key: float(value)}}
            )
            continue
        finetunings.append(
            {
                "row": line["name"],
                "task": line["task"],
                "metric": line["metric"],
                "stand_in_for": FIRST_STAND_INS.get(line["task"]),
                "synthetic": None,
                "pretrain_seed": int(line["pretrain_seed"]),
                "seed": int(line["seed"]),
                "learning_rate": None,
                "majority": float(line["majority_percent"]) if line["majority_percent"] else None,
                "collapsed": line["collapsed"] == "True",
                "scores": {line["metric"]: float(line["score_percent"])},
            }
        )
    return pretrainings, finetunings
