"""The report of an experiment at one scale: report.md, one self-contained report.html, plots and results.csv.

Reads run folders and the experiment's own files and nothing else, so it can be made again at any time, also while runs
are going on. What the pages say is in page.py, how they look in templates/.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.ledger.collect import Collected, collect
from clozelab.ledger.reporting.accounts import arm_labels, encoder_sizes, rows_by_size
from clozelab.ledger.reporting.drawing import STYLES, Picture
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.reporting.page import build_page
from clozelab.ledger.reporting.plots import draw_curves, draw_table
from clozelab.ledger.reporting.point_plots import draw_lines, draw_sizes
from clozelab.ledger.reporting.points import find_lines, find_races
from clozelab.ledger.reporting.results import write_results
from clozelab.ledger.reporting.table import Table, build_table
from clozelab.ledger.reporting.verdicts import Judgement, judge


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
    if not collected.runs:
        raise ValueError(f"no run below {root}; `clozelab reproduce {experiment.name} scale={scale}` makes them")
    table = build_table(experiment, collected)
    judgements = judge(table)
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(experiment, collected, table, judgements, scale)
    page["plots"] = _plots(experiment, collected, table, folder)
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("report.md", "report.html"):
        text = environment.get_template(f"{name}.j2").render(page)
        (folder / name).write_text(text, encoding="utf-8")
    write_results(folder / "results.csv", collected, table, scale)
    return Report(folder, table, judgements, page)


def _plots(experiment: Experiment, collected: Collected, table: Table, folder: Path) -> dict[str, dict[str, str]]:
    """Write NAME.png and NAME.svg, and the same with -dark, of every plot there is data for.

    Returns name -> style -> the SVG as base64: sharp at any size, and smaller than the PNG.
    """
    lines = find_lines(experiment, collected)
    races = find_races(lines, table)
    rows, sizes = rows_by_size(experiment, collected), encoder_sizes(collected)
    draw: dict[str, Callable[[str], Picture | None]] = {
        "table": lambda style: draw_table(table, style),
        "points": lambda style: draw_lines(lines, races, table, style),
        "sizes": lambda style: draw_sizes(rows, sizes, table, style),
        "curves": lambda style: draw_curves(collected.pretrain, arm_labels(experiment), style),
    }
    plots: dict[str, dict[str, str]] = {}
    for name, style in product(draw, STYLES):
        picture = draw[name](style)
        if picture is not None:
            stem = name if style == "light" else f"{name}-{style}"
            (folder / f"{stem}.png").write_bytes(picture.png)
            (folder / f"{stem}.svg").write_bytes(picture.svg)
            plots.setdefault(name, {})[style] = base64.b64encode(picture.svg).decode()
    return plots
