"""`clozelab report EXPERIMENT scale=NAME`: judge an experiment from its run folders, and print the table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.ledger.lists import say
from clozelab.ledger.plan import runs_root, sweep_names
from clozelab.ledger.reporting.experiment import find_experiment, load_experiment
from clozelab.ledger.reporting.latex import write_latex
from clozelab.ledger.reporting.terminal import print_page
from clozelab.ledger.reporting.tracked import track_report
from clozelab.ledger.sweep import compose
from clozelab.ledger.words import parse, wants_help

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER] [report_dir=FOLDER] [logger=wandb] [--latex]

Judges an experiment from its run folders: report.html, report.md, plots and results.csv. With
logger=wandb they also go to Weights & Biases, as an artifact.

  --latex    also report.tex: scores and verdicts as tables to \\input (needs the package booktabs)"""
if TYPE_CHECKING:
    from clozelab.ledger.reporting.report import Report


def main(words: Sequence[str]) -> int:
    """Write the report and print its table; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    from clozelab.ledger.reporting.report import write_report  # matplotlib and scipy: not for --help

    said = parse("report", words, names=(1, 1), keys=("report_dir",), flags=("latex",), takes_overrides=True)
    folder = find_experiment(said.names[0])
    name = sweep_names(folder)[0]
    root, scale = runs_root(folder, said.overrides, name)
    target = Path(said.values.get("report_dir", root / "report"))
    report = write_report(load_experiment(folder), root, target, scale=scale)
    show(report)
    if "latex" in said.flags:
        say(Console(), f"LaTeX: {write_latex(report.page, report.folder / 'report.tex').resolve()}")
    track(report, folder, said.overrides, scale, name)
    return 0


def track(report: Report, folder: Path, overrides: Sequence[str], scale: str, config_name: str) -> None:
    """Give the report to the tracker, where the overrides choose one (logger=wandb)."""
    composed = compose(config_name, overrides, folder=folder, sweep=True)
    track_report(composed, report, experiment=folder.name, scale=scale)


def show(report: Report) -> None:
    """Print table, verdicts and where the report lies."""
    console = Console()
    print_page(report.page, console)
    console.print(f"Report: {report.html.resolve()}", soft_wrap=True, highlight=False, markup=False)
