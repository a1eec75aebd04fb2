"""`clozelab report`: judge an experiment from its run folders, or make a table of any sweep's, and
print it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozelab.launch.sweep import compose
from clozelab.planning.steps import runs_root, sweeps_of
from clozelab.report.tracked import track_report
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.suggestions import DASH
from clozelab.terminal import Words, say, verb

if TYPE_CHECKING:
    from clozelab.report.claims import ClaimView
    from clozelab.report.page import Page
    from clozelab.report.render import Report
    from clozelab.report.tables import CellView, ColumnGroup, Heading

HELP = """clozelab report EXPERIMENT [scale=NAME] [runs_dir=FOLDER] [report_dir=FOLDER] [logger=wandb] [--latex]
clozelab report FOLDER [report_dir=FOLDER] [--latex]

Judges an experiment from its run folders: report.html, report.md, plots and results.csv. With
logger=wandb they also go to Weights & Biases, as an artifact. Of a FOLDER with any sweep's runs it makes
the same page without an experiment: a row for whatever differs, means over seeds, paired differences.

  --latex    also report.tex: scores and verdicts as tables to \\input (needs the package booktabs)"""
STYLES = {"holds": "green", "contradicted": "red", "inconclusive": "yellow", "not": "dim"}
PADDING = 2
LONGEST_WORD = 30  # characters: what is longer may break inside
HARD = "\N{NO-BREAK SPACE}"  # no line ends inside an interval
TEXTS = {"arm": len("MLM & NSP"), "row": 0, "column": 0, "verdict": len("inconclusive")}
"""Columns that are no numbers, and the least width of each."""
MOST_LINES = {"Collapsed": 3, "Below the floor": 3}
"""Of a kind of trouble that small encoders may have in every cell of a row."""


@verb("report", HELP, names=(1, 1), keys=("report_dir",), flags=("latex",), takes_overrides=True)
def main(said: Words) -> int:
    """Write the report and print its table; returns the exit status."""
    from clozelab.report import render  # matplotlib and scipy: not for --help

    report = make(said.names[0], said.overrides, said.values.get("report_dir"))
    if "latex" in said.flags:
        say(
            Console(),
            f"LaTeX: {render.write_latex(report.page, report.folder / 'report.tex').resolve()}",
        )
    return 0


def make(name: str, overrides: Sequence[str], target: str | None) -> Report:
    """Write and print the report of an experiment or of a folder of runs."""
    from clozelab.report.render import write_sweep_report

    place = Path(name)
    if not place.is_dir() or (place / "paper.yaml").is_file():
        return judge(find_experiment(name), overrides, target=target)
    if overrides:
        raise ValueError(
            f"{overrides[0]}: the report of a folder takes report_dir= and --latex alone"
        )
    report = write_sweep_report(place, Path(target or place / "report"))
    show(report)
    return report


def judge(
    folder: Path,
    overrides: Sequence[str],
    config_name: str | None = None,
    target: str | None = None,
) -> Report:
    """Write an experiment's report, print it, and give it to the tracker that the overrides choose
    (logger=wandb).

    `overrides` and `config_name` are of one of its sweeps (None: the first). It goes to `target`,
    or beside the runs.
    """
    from clozelab.report.render import write_report

    name = config_name or next(iter(sweeps_of(folder).values()))
    root, scale = runs_root(folder, overrides, name)
    report = write_report(
        load_experiment(folder), root, Path(target or root / "report"), scale=scale
    )
    show(report)
    track_report(
        compose(name, overrides, folder=folder, sweep=True),
        report,
        experiment=folder.name,
        scale=scale,
    )
    return report


def show(report: Report) -> None:
    """Print table, verdicts and where the report lies."""
    console = Console()
    print_page(report.page, console)
    say(console, f"Report: {(report.folder / 'report.html').resolve()}")


def print_page(page: Page, console: Console) -> None:
    """Scores, verdicts, and what went wrong."""
    if page.about.synthetic:
        console.print(
            "[bold yellow]Synthetic data: encoders were trained or scored on generated text.[/]"
        )
    console.print(f"[bold]{escape(page.about.title)}[/] ({escape(page.about.scale)})")
    looks = f"; looks: {page.overview.analyses}" if page.overview.analyses else ""
    console.print(
        escape(f"{page.overview.setup}\n{page.overview.runs}{looks}; {page.table.interval}"),
        style="dim",
        highlight=False,
    )
    if page.overview.registered:
        console.print(escape(page.overview.registered), style="dim", highlight=False)
    columns: Sequence[str]
    if page.bounds:  # how far each arm is from the best that a generated corpus allows
        columns = (
            "arm",
            "held-out\nloss",
            "no model\nbelow",
            "above by\nat most",
            "NSP\naccuracy",
            "by the\nsources",
            "inside\none",
        )
        keys = "label", "loss", "bound", "above", "nsp", "nsp_rule", "nsp_inside"
        rows = [tuple(getattr(arm, key) for key in keys) for arm in page.arms]
        console.print(_table(columns, rows, "pre-training, nats a predicted token"))
    for heading, lines in page.problems.items():
        shown = lines[: MOST_LINES.get(heading, len(lines))]
        more = len(lines) - len(shown)
        rest = [f"{more} more cell{'s' if more > 1 else ''}, in report.md"] if more else []
        for line in [*shown, *rest]:
            console.print(escape(f"{heading.lower()}: {line}"), style="yellow", highlight=False)
    for group in page.table.groups:
        if any(heading.has_ours for heading in group.headings):
            console.print(f"\n[bold]{escape(group.title)}[/]")
            for table in _score_tables(group, console.width):
                console.print(table)
    if page.judged.claims:
        console.print(_verdicts(page.judged.claims))
    if page.judged.differences:
        columns = "row", "column", "difference,\n95 % interval", "corrected p"
        rows = [
            (
                one.row,
                one.judged_on,
                f"{one.ours} {one.unit}\n{one.interval}",
                one.p,
            )
            for one in page.judged.differences
        ]
        console.print(
            _table(
                columns,
                rows,
                f"differences from {page.judged.differences[0].first}, paired by seed",
            )
        )
        for one in (one for one in page.judged.differences if one.note and not one.p):
            console.print(
                escape(f"{one.row} on {one.judged_on}: {one.note}"),
                style="dim",
                highlight=False,
            )


def _score_tables(group: ColumnGroup, width: int) -> Iterator[Table]:
    """The rows with as many data sets at once as stand side by side; below them what needs no
    encoder.
    """
    rows = [*group.rows, *([group.surface] if group.surface else [])]
    labels = ["", *(row.label for row in rows)]
    longest = max(len(word) for label in labels for word in label.split() or [""])
    # longer ones fold between words
    label_width = min(max(map(len, labels)), max(longest, width // 3))
    empty = label_width + 2 * PADDING
    chosen, used = [labels], empty
    for index, heading in enumerate(group.headings):
        columns = _columns(heading, [row.cells[index] for row in rows])
        needed = sum(
            max(len(line) for text in column for line in text.split("\n")) + PADDING
            for column in columns
        )
        if len(chosen) > 1 and used + needed > width:
            yield _side_by_side(chosen, label_width)
            chosen, used = [labels], empty
        chosen += columns
        used += needed
    yield _side_by_side(chosen, label_width)


def _columns(heading: Heading, cells: Sequence[CellView]) -> list[list[str]]:
    """The one or two columns of a data set, each with its heading first."""
    columns = []
    if heading.has_paper:
        name = "paper" if heading.has_ours else f"{heading.name}\npaper"
        columns.append([name, *(cell.paper for cell in cells)])
    if heading.has_ours:
        title = "\n".join(filter(None, (heading.name, heading.note)))
        columns.append([title, *(cell.ours for cell in cells)])
    return columns


def _side_by_side(columns: Sequence[Sequence[str]], label_width: int) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(max_width=label_width)
    for heading, *_ in columns[1:]:
        style = "dim" if heading.endswith("paper") else None
        table.add_column(escape(heading), justify="right", style=style, no_wrap=True)
    for cells in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*map(escape, cells))
    return table


def _verdicts(claims: Iterable[ClaimView]) -> Table:
    """A verdict, what it is about, and below that its figures."""
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(min_width=TEXTS["verdict"], max_width=2 * TEXTS["verdict"])
    table.add_column(overflow="fold")
    for one in claims:
        needs = f"\n{one.needs_short}" * bool(one.needs_short)
        figures = one.figures
        interval = figures.interval.replace(" ", HARD)
        size = f"{one.judged_on}: {figures.ours} {interval}".rstrip()
        notes = one.note.split("; ")
        why = (
            ""
            if figures.corrected
            else next((part for part in notes if part.endswith("measured nothing")), notes[0])
        )
        said = ", ".join(
            filter(None, (size * (figures.ours != DASH), figures.corrected, one.claimed, why))
        )
        sentence = Text(one.text).append(f"\n{said}", "dim")
        table.add_row(Text(one.verdict, STYLES[one.badge]).append(needs, "default"), sentence)
    return table


def _table(
    names: Sequence[str], rows: Sequence[Sequence[str | Text]], title: str | None = None
) -> Table:
    table = Table(box=box.SIMPLE, title=title and escape(title), title_justify="left")
    for name, *cells in zip(names, *rows, strict=True):
        is_number, words = name not in TEXTS, [word for cell in cells for word in str(cell).split()]
        least = max(
            [
                TEXTS.get(name, 0),
                *(len(word) for word in words if not is_number and len(word) <= LONGEST_WORD),
            ]
        )
        how = {
            "justify": "right" if is_number else "left",
            "no_wrap": is_number,
            "min_width": least or None,
        }
        table.add_column(name, overflow="fold", **how)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else escape(cell) for cell in row))
    return table
