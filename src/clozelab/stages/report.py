"""`clozelab report`: judge an experiment from its run folders, or make a table of any sweep's, and print it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clozelab.launch.sweep import compose
from clozelab.planning.steps import runs_root, sweep_names
from clozelab.report.latex import write_latex
from clozelab.report.tracked import track_report
from clozelab.terminal import parse, say, wants_help
from clozelab.verdicts.experiment import find_experiment, load_experiment

STYLES = {"holds": "green", "fails": "red", "inconclusive": "yellow", "not": "dim"}
PADDING = 2
MOST_LINES = {"Collapsed": 3}
"""Of a kind of trouble that small encoders may have in every cell of a row."""


def print_page(page: Mapping[str, Any], console: Console) -> None:
    """Scores, verdicts, and what went wrong."""
    if page["synthetic"]:
        console.print("[bold yellow]Synthetic data: encoders were trained or scored on generated text.[/]")
    console.print(f"[bold]{escape(page['title'])}[/] ({escape(page['scale'])})")
    console.print(escape(f"{page['setup']}\n{page['runs']}; {page['interval']}"), style="dim", highlight=False)
    for group in page["groups"]:
        if any(heading["has_ours"] for heading in group["headings"]):
            console.print(f"\n[bold]{escape(group['title'])}[/]")
            for columns in _fitting(group, console.width):
                console.print(_scores(group, columns))
    for race in page["races"]:
        console.print(escape(f"{race['judged_on']}. {race['sentence']}"), highlight=False)
    if page["judgements"]:
        console.print(_claims(page))
    if page["differences"]:
        console.print(_differences(page))
    if page["bounds"]:
        console.print(_learnt(page))
    for heading, lines in page["problems"].items():
        shown = lines[: MOST_LINES.get(heading, len(lines))]
        more = len(lines) - len(shown)
        rest = [f"{more} more cell{'s' if more > 1 else ''}, in report.md"] if more else []
        for line in [*shown, *rest]:
            console.print(escape(f"{heading.lower()}: {line}"), style="yellow", highlight=False)


def _fitting(group: Mapping[str, Any], width: int) -> Iterator[list[int]]:
    """Indices of the group's data sets, as many at once as stand side by side in `width` characters."""
    left = max(len(row["label"]) for row in _rows(group)) + 2 * PADDING
    chosen: list[int] = []
    used = left
    for index in range(len(group["headings"])):
        needed = sum(max(len(line) for text in column for line in text.split("\n")) + PADDING
                     for column in _columns(group, index))  # fmt: skip
        if chosen and used + needed > width:
            yield chosen
            chosen, used = [], left
        chosen.append(index)
        used += needed
    yield chosen


def _rows(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows, and below them what needs no encoder."""
    surface = [{"paper": "", "mean": one["mean"], "half": ""} for one in group["surface"] or ()]
    return [*group["rows"], *([{"label": "surface baseline", "cells": surface}] if surface else [])]


def _columns(group: Mapping[str, Any], index: int) -> list[list[str]]:
    """The one or two columns of a data set, each with its heading first."""
    heading, cells = group["headings"][index], [row["cells"][index] for row in _rows(group)]
    columns = []
    if heading["has_paper"]:
        name = "paper" if heading["has_ours"] else f"{heading['name']}\npaper"
        columns.append([name, *(cell["paper"] for cell in cells)])
    if heading["has_ours"]:
        title = "\n".join(filter(None, (heading["name"], heading["note"])))
        columns.append([title, *(f"{cell['mean']} {cell['half']}".rstrip() for cell in cells)])
    return columns


def _scores(group: Mapping[str, Any], indices: list[int]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("", no_wrap=True)
    bodies = []
    for index in indices:
        columns = _columns(group, index)
        for heading, *cells in columns:
            is_paper = heading.endswith("paper")
            table.add_column(escape(heading), justify="right", style="dim" if is_paper else None, no_wrap=True)
            bodies.append([escape(cell) for cell in cells])
    for row, *cells in zip(_rows(group), *bodies, strict=True):
        table.add_row(escape(row["label"]), *cells)
    return table


def _learnt(page: Mapping[str, Any]) -> Table:
    """How far each arm is from the best that a generated corpus allows."""
    table = Table(box=box.SIMPLE, title="pre-training, nats a predicted token", title_justify="left")
    table.add_column("arm")
    for name in ("held-out loss", "no model below", "above by at most", "NSP accuracy"):
        table.add_column(name, justify="right")
    for arm in page["arms"]:
        table.add_row(escape(arm["label"]), *(arm[key] for key in ("loss", "bound", "above", "nsp")))
    return table


def _differences(page: Mapping[str, Any]) -> Table:
    table = Table(
        box=box.SIMPLE,
        title=f"differences from {escape(page['differences'][0]['first'])}, paired by seed",
        title_justify="left",
    )
    for name in ("row", "column", "difference", "95 % interval", "corrected p"):
        table.add_column(name, justify="left" if name in ("row", "column") else "right")
    for one in page["differences"]:
        cells = (one["row"], one["judged_on"], f"{one['ours']} {one['unit']}", one["interval"], one["p"])
        table.add_row(*map(escape, cells))
    return table


def _claims(page: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("verdict", "claim", "judged on", "paper", "ours", "interval"):
        is_number = name in ("paper", "ours", "interval")
        heading = "interval\ncorrected p" if name == "interval" else name
        narrowest = {"verdict": len("inconclusive"), "claim": len("left-to-right")}.get(name)
        table.add_column(
            heading, justify="right" if is_number else "left", no_wrap=is_number, min_width=narrowest, overflow="fold"
        )
    for one in page["judgements"]:
        verdict = f"[{STYLES[one['kind']]}]{one['verdict']}[/]" + (
            f"\n{one['needs_short']}" if one["needs_short"] else ""
        )
        p = f"\n{one['corrected']}" if one["corrected"] else ""
        numbers = (one["paper"], one["ours"], escape(one["interval"] + p))
        table.add_row(verdict, escape(one["text"]), escape(one["judged_on"]), *numbers)
    return table


HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER] [report_dir=FOLDER] [logger=wandb] [--latex]
clozelab report FOLDER [report_dir=FOLDER] [--latex]

Judges an experiment from its run folders: report.html, report.md, plots and results.csv. With
logger=wandb they also go to Weights & Biases, as an artifact. Of a FOLDER with any sweep's runs it makes
the same page without an experiment: a row for whatever differs, means over seeds, paired differences.

  --latex    also report.tex: scores and verdicts as tables to \\input (needs the package booktabs)"""
if TYPE_CHECKING:
    from clozelab.report.render import Report


def main(words: Sequence[str]) -> int:
    """Write the report and print its table; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    from clozelab.report import render  # matplotlib and scipy: not for --help

    said = parse("report", words, names=(1, 1), keys=("report_dir",), flags=("latex",), takes_overrides=True)
    place = Path(said.names[0])
    is_sweep = place.is_dir() and not (place / "paper.yaml").is_file()
    if is_sweep:
        if said.overrides:
            raise ValueError(f"{said.overrides[0]}: the report of a folder takes report_dir= and --latex alone")
        report = render.write_sweep_report(place, Path(said.values.get("report_dir", place / "report")))
    else:
        folder = find_experiment(said.names[0])
        name = sweep_names(folder)[0]
        root, scale = runs_root(folder, said.overrides, name)
        target = Path(said.values.get("report_dir", root / "report"))
        report = render.write_report(load_experiment(folder), root, target, scale=scale)
    show(report)
    if "latex" in said.flags:
        say(Console(), f"LaTeX: {write_latex(report.page, report.folder / 'report.tex').resolve()}")
    if not is_sweep:
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
