"""The report of an experiment or a sweep: report.md, one self-contained report.html, plots,
results.csv, claims.csv, and report.tex on demand.

It reads run folders and the experiment's own files and nothing else, so it can be made again at any
time, also while runs are going on. What the pages say is in page.py, how they look in templates/.
"""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from os.path import relpath
from pathlib import Path
from typing import Any

from clozelab.analysis.verdicts import Judgement
from clozelab.report.claims import ClaimView
from clozelab.report.latex import latex_tables, latex_templates
from clozelab.report.page import Page, build_page, templates
from clozelab.report.plots import (
    STYLES,
    Picture,
    draw_sizes,
    draw_table,
    look,
)
from clozelab.report.registration import registration_summary
from clozelab.report.results_csv import RESULT_FIELDS, result_lines, spreadsheet_text
from clozelab.report.summaries import arm_labels, encoder_sizes, rows_by_size, with_own_sizes
from clozelab.report.training_plots import draw_curves, draw_lines
from clozelab.results.adhoc import infer_table
from clozelab.results.analyses import run_interim_analysis
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find

CLAIM_FIELDS = ("text", "judged_on", "verdict", "ours", "interval", "p", "needs", "note")
# where a reader of Markdown would take a "<" for the beginning of HTML
HTML_START = re.compile(r"<(?=[A-Za-z/!?])")


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    folder: Path
    table: ResultTable
    judgements: list[Judgement]
    page: Page


def write_report(experiment: Experiment, root: Path, folder: Path, *, scale: str) -> Report:
    """Judge an experiment from the runs below `root` and write the report into `folder`.

    ValueError: there is no run at all.
    """
    runs = find(root) if root.is_dir() else None
    if runs is None or not runs.runs:
        raise ValueError(
            f"no run below {root}; `clozelab reproduce {relpath(experiment.folder)} scale={scale}`"
            " makes them"
        )
    return write_table(build_table(experiment, runs), folder, scale=scale)


def write_sweep_report(root: Path, folder: Path) -> Report:
    """Write the report of any sweep's runs, without an experiment.

    There is a row for whatever differs between them.
    """
    table = infer_table(find(root))
    scales = {run.scale for run in table.runs.runs if run.scale}
    return write_table(table, folder, scale=", ".join(sorted(scales)))


def write_table(table: ResultTable, folder: Path, *, scale: str) -> Report:
    """Judge a table and write its page, plots, results.csv and claims.csv."""
    registered = registration_summary(table.experiment, table.runs)
    paper_labels = {row.name: row.label for row in table.experiment.rows}
    table = with_own_sizes(table)
    analysed = run_interim_analysis(table)
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(
        table,
        analysed,
        scale,
        registered=registered,
        paper_labels=paper_labels,
        plots=_plots(table, folder),
    )
    _write_page(page, "report.html", folder)
    _write_page(without_html(page), "report.md", folder)
    write_results(folder / "results.csv", table, scale)
    write_claims(folder / "claims.csv", page.judged.claims)
    return Report(folder, table, analysed.judgements, page)


def _write_page(page: Page, name: str, folder: Path) -> None:
    # The templates see the page's fields as their variables.
    text = templates().get_template(f"{name}.j2").render(vars(page))
    (folder / name).write_text(text, encoding="utf-8")


def without_html(value: Any) -> Any:
    """The value with every "<" in words that Markdown would take for HTML, wherever texts are."""
    if isinstance(value, str):
        return HTML_START.sub("&lt;", value)
    if isinstance(value, Mapping):
        return {key: without_html(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_html(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(value, **{name: without_html(getattr(value, name)) for name in names})
    return value


# -- files of numbers ------------------------------------------------------------------------------


def write_results(path: Path, table: ResultTable, scale: str) -> None:
    """Write every run of an experiment at one scale, complete or not."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, RESULT_FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(result_lines(table, scale))


def write_claims(path: Path, claims: list[ClaimView]) -> None:
    """Write a line a claim: its verdict and what it rests on."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CLAIM_FIELDS)
        for claim in claims:
            figures = claim.figures
            texts = [claim.text, claim.judged_on, claim.verdict]
            texts += [figures.ours, figures.interval, figures.p, claim.needs, claim.note]
            writer.writerow([spreadsheet_text(text) for text in texts])


def write_latex(page: Page, path: Path) -> Path:
    """Write scores and verdicts as LaTeX tables; returns the path."""
    template = latex_templates().get_template("report.tex.j2")
    text = template.render(vars(page), scores=list(latex_tables(page)))
    path.write_text(text, encoding="utf-8")
    return path


# -- pictures --------------------------------------------------------------------------------------


def _plots(table: ResultTable, folder: Path) -> dict[str, dict[str, str]]:
    """Write the pictures that there are data for: NAME.png and NAME.svg, and both with -dark.

    Returns name -> style -> the SVG as base64.
    """
    series = table.checkpoint_series
    rows = rows_by_size(table)
    sizes = encoder_sizes(table)
    labels = arm_labels(table)
    draw: dict[str, Callable[[], Picture | None]] = {}
    draw["table"] = lambda: draw_table(table)
    draw["points"] = lambda: draw_lines(series, table)
    draw["sizes"] = lambda: draw_sizes(rows, sizes, table)
    draw["curves"] = lambda: draw_curves(table.runs.pretrain, labels)
    plots: dict[str, dict[str, str]] = {}
    for name, style in product(draw, STYLES):
        with look(style):
            picture = draw[name]()
        if picture is None:
            continue
        stem = name if style == "light" else f"{name}-{style}"
        (folder / f"{stem}.png").write_bytes(picture.png)
        (folder / f"{stem}.svg").write_bytes(picture.svg)
        plots.setdefault(name, {})[style] = base64.b64encode(picture.svg).decode()
    return plots
