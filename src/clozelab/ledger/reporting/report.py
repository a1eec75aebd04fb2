"""The report of an experiment at one scale: report.md, one self-contained report.html, plots and results.csv.

Reads run folders, paper.yaml and the experiment's README and nothing else, so it can be made again at any time, also
while runs are going on. What the pages say is in page.py, how they look in templates/.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.ledger.collect import Collected, collect
from clozelab.ledger.reporting.accounts import arm_labels
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.reporting.page import build_page
from clozelab.ledger.reporting.plots import STYLES, draw_curves, draw_table
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
    """Write NAME.png and NAME-dark.png of every plot there is data for; returns name -> style -> base64."""
    drawn = {
        "table": {style: draw_table(table, style) for style in STYLES},
        "curves": {style: draw_curves(collected.pretrain, arm_labels(experiment), style) for style in STYLES},
    }
    plots: dict[str, dict[str, str]] = {}
    for name, images in drawn.items():
        for style, image in images.items():
            if image is not None:
                (folder / f"{name}{'' if style == 'light' else f'-{style}'}.png").write_bytes(image)
                plots.setdefault(name, {})[style] = base64.b64encode(image).decode()
    return plots
