"""The files of a report of any judged table: pages, pictures, and verdicts as CSV."""

from __future__ import annotations

import base64
import csv
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path

from jinja2 import Template

from claims.analysis.scores import ScoreTable
from claims.analysis.verdicts import Judgement
from claims.report.claims import ClaimView, unit_of
from claims.report.page import JudgedPage
from claims.report.pictures import STYLES, Picture, use_style
from claims.text.phrases import FORMULA

Drawing = Callable[[], Picture | None]
CLAIM_FIELDS = (
    "text",
    "judged_on",
    "verdict",
    "exploratory",
    "ours",
    "interval",
    "p",
    "needs",
    "note",
    # the same as numbers, where the columns above are for readers
    "unit",
    "difference",
    "low",
    "high",
    "p_value",
    "corrected_p",
)
SCORE_FIELDS = ("arm", "seed", "finetuning_seed", "task", "unit", "higher_is_better", "score")


def write_page(page: JudgedPage, template: Template, path: Path) -> None:
    """Write a page; its template sees the page's fields as variables."""
    path.write_text(template.render(vars(page)), encoding="utf-8")


def write_pictures(drawings: Mapping[str, Drawing], folder: Path) -> dict[str, dict[str, str]]:
    """Write the pictures that there are data for: NAME.png and NAME.svg, and both with -dark.

    Returns name -> style -> the SVG as base64.
    """
    plots: dict[str, dict[str, str]] = {}
    for name, style in product(drawings, STYLES):
        with use_style(style):
            picture = drawings[name]()
        if picture is None:
            continue
        stem = name if style == "light" else f"{name}-{style}"
        (folder / f"{stem}.png").write_bytes(picture.png)
        (folder / f"{stem}.svg").write_bytes(picture.svg)
        plots.setdefault(name, {})[style] = base64.b64encode(picture.svg).decode()
    return plots


def write_scores(path: Path, table: ScoreTable) -> None:
    """Write every score of a table, in the form that `claims judge` reads."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SCORE_FIELDS)
        for column, row in product(table.columns, table.rows):
            scale = (column.unit, not column.falls)
            cell = table.cells[row, column.key]
            for (seed, finetune_seed), score in sorted(cell.scores.items()):
                values = (row, seed, finetune_seed, column.key, *scale, score)
                writer.writerow([spreadsheet_text(value) for value in values])


def write_claims(path: Path, claims: list[ClaimView]) -> None:
    """Write a line a claim: its verdict and what it rests on."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CLAIM_FIELDS)
        for claim in claims:
            figures = claim.figures
            texts = [claim.text, claim.judged_on, claim.verdict, claim.is_exploratory]
            texts += [figures.ours, figures.interval, figures.p, claim.needs, claim.note]
            values = [*texts, *_numbers_of(claim.judgement)]
            writer.writerow([spreadsheet_text(value) for value in values])


def _numbers_of(judgement: Judgement) -> list[object]:
    """A claim's unit, difference, interval, p and corrected p; nothing for what there is not.

    What a crossing rests on is in no one difference.
    """
    difference = judgement.difference
    if difference is None or judgement.crossover:
        return [None] * 6
    interval = [difference.low, difference.high]
    p_values = [judgement.p_value, judgement.corrected_p]
    return [unit_of(judgement), difference.mean, *interval, *p_values]


def spreadsheet_text(value: object) -> str:
    """A value as a spreadsheet shows it; nothing for None.

    A text that it would take for a formula begins with an apostrophe.
    """
    if value is None:
        return ""
    # Ten digits: more of a score is the noise of its arithmetic.
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    if text.startswith(tuple(FORMULA)) and not _is_number(text):
        return f"'{text}"
    return text


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False
