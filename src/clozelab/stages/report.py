"""`clozelab report EXPERIMENT scale=NAME`: judge an experiment from its run folders, and print the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.ledger.experiment import find_experiment, load_experiment
from clozelab.ledger.plan import runs_root
from clozelab.ledger.terminal import print_page

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER] [report_dir=FOLDER]

Judges an experiment from its run folders: report.html, report.md, plots and results.csv."""
if TYPE_CHECKING:
    from clozelab.ledger.report import Report


def main(words: Sequence[str]) -> int:
    """Write the report and print its table; returns the exit status."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    from clozelab.ledger.report import write_report  # matplotlib and scipy: not for --help

    folder = find_experiment(words[0])
    overrides = [word for word in words[1:] if not word.startswith("report_dir=")]
    root, scale = runs_root(folder, overrides)
    chosen = [word.partition("=")[2] for word in words[1:] if word.startswith("report_dir=")]
    target = Path(chosen[-1]) if chosen else root / "report"
    show(write_report(load_experiment(folder), root, target, scale=scale))
    return 0


def show(report: Report) -> None:
    """Print table, verdicts and where the report lies."""
    console = Console()
    print_page(report.page, console)
    console.print(f"Report: {report.html.resolve()}", soft_wrap=True, highlight=False, markup=False)
