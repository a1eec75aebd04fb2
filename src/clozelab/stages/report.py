"""`clozelab report EXPERIMENT scale=NAME`: judge an experiment from its run folders, and print the table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clozelab.ledger.experiment import find_experiment, load_experiment
from clozelab.ledger.plan import runs_root

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER] [report_dir=FOLDER]

Judges an experiment from its run folders: report.html, report.md, plots and results.csv."""
if TYPE_CHECKING:
    from clozelab.ledger.report import Report

STYLES = {"holds": "green", "fails": "red", "inconclusive": "yellow", "not": "dim"}


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
    page = report.page
    if page["synthetic"]:
        console.print("[bold yellow]Synthetic data: the encoders were trained on generated text.[/]")
    console.print(_scores(page))
    console.print(_claims(page))
    for key in ("troubled", "damaged"):
        for line in page[key]:
            console.print(f"[red]{escape(line)}[/]")
    if page["collapsed"]:
        console.print(
            f"[yellow]{len(page['collapsed'])} cells hold collapsed runs; the report has the means without them[/]"
        )
    console.print(escape(page["interval_note"]))
    console.print(
        f"{len(page['missing'])} cells incomplete. Report: {report.html.resolve()}", soft_wrap=True, highlight=False
    )


def _scores(page: dict[str, Any]) -> Table:
    table = Table(title=escape(f"{page['title']} ({page['scale']})"), box=box.SIMPLE)
    table.add_column("")
    shown = page["with_results"]
    for heading in itertools.compress(page["headings"], shown):
        if heading["is_paper"]:
            table.add_column("paper", justify="right", style="dim")
        note = f"\n{heading['note']}" if heading["note"] else ""
        table.add_column(escape(heading["name"] + note), justify="right")
    for row in page["rows"]:
        cells = []
        for heading, cell in itertools.compress(zip(page["headings"], row["cells"], strict=True), shown):
            cells += [cell["paper"], cell["ours"]] if heading["is_paper"] else [cell["ours"]]
        table.add_row(escape(row["label"]), *cells)
    return table


def _claims(page: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("claim", "judged on", "paper", "ours", "verdict"):
        table.add_column(name)
    for one in page["judgements"]:
        verdict = f"[{STYLES[one['kind']]}]{one['verdict']}[/]"
        table.add_row(
            escape(one["text"]),
            escape(one["judged_on"]),
            one["paper"],
            escape(f"{one['ours']} {one['interval']}"),
            verdict,
        )
    return table
