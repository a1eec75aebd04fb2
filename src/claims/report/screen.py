"""A judged table on the screen: its scores and its verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from claims.analysis.grouping import group_by
from claims.analysis.verdict_codes import Verdict
from claims.report.verdict_styles import COLOURS, LABELS
from claims.text.phrases import DASH, signed
from claims.text.terminal import Heading, fitting, make_table

if TYPE_CHECKING:
    from claims.report.claims import ClaimView, DifferenceView
    from claims.report.forest import Axis, Forest, ForestLine
    from claims.report.page import ColumnGroup, JudgedPage, RowView

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # no line ends inside an interval
VERDICT_WIDTH = len(LABELS[Verdict.INCONCLUSIVE])
# characters of the widest drawing of an interval, with the ends of its axis
PLOT_WIDTH = 48
# between the ends of its axis: an interval's two ends and its mean
LEAST_CELLS = 3
SHADE = "\u2591"


def print_judged(page: JudgedPage, console: Console) -> None:
    """Print the scores, and the verdicts or the differences."""
    for group in page.table.groups:
        if any(heading.has_ours for heading in group.headings):
            console.print(f"\n[bold]{escape(group.title)}[/]")
            for table in score_tables(group, console.width):
                console.print(table)
    if page.judged.claims:
        console.print(verdict_table(page.judged.claims, page.judged.forest, console.width))
    if page.judged.differences:
        print_differences(page.judged.differences, console, every_pair=page.judged.every_pair)


def print_differences(
    differences: Sequence[DifferenceView], console: Console, *, every_pair: bool = False
) -> None:
    """Print paired differences from the first row or of all pairs, and why some have no p-value."""
    headings = [
        Heading("row", folds=True),
        Heading("column", folds=True),
        Heading("difference", is_number=True),
        Heading("95 % interval", is_number=True),
        Heading("corrected p", is_number=True, drop=1),
    ]
    rows = []
    for difference in differences:
        estimate = f"{difference.ours} {difference.unit}"
        figures = [estimate, difference.interval, difference.p]
        row = difference.row
        if every_pair:
            row += f" against {difference.first}"
        rows.append([row, difference.judged_on, *figures])
    which = "of all pairs" if every_pair else f"from {differences[0].first}"
    if not every_pair and len({difference.row for difference in differences}) > 1:
        which += " alone: other pairs are not compared"
    print_plain(f"differences {which}; paired by seed", console, "bold")
    console.print(make_table(headings, rows, console.width))
    untested = [difference for difference in differences if difference.note and not difference.p]
    for (row, note), same in group_by(untested, attrgetter("row", "note")).items():
        columns = ", ".join(difference.judged_on for difference in same)
        print_plain(f"{row} on {columns}: {note}", console, "dim")


def print_plain(text: str, console: Console, style: str) -> None:
    """Print text that is no markup, and whose numbers get no colour."""
    console.print(escape(text), style=style, highlight=False)


def score_tables(group: ColumnGroup, width: int) -> Iterator[Table]:
    """Make tables of a group's rows, each with as many columns as stand side by side.

    Below the rows is what needs no encoder.
    """
    rows = list(group.rows)
    rows += group.baselines
    labels = [row.label for row in rows]
    columns = _score_columns(group, rows)
    while columns:
        # The last ones are left out first, and make the next table.
        headings = [Heading("", folds=True)]
        for number, (name, _) in enumerate(columns):
            headings.append(Heading(name, is_number=True, drop=number))
        lines = list(zip(labels, *(cells for _, cells in columns), strict=True))
        yield make_table(headings, lines, width)
        shown = fitting(headings, lines, width)
        # Counted from 1: the labels stand in column 0.
        columns = [column for number, column in enumerate(columns, 1) if number not in shown]


def _score_columns(group: ColumnGroup, rows: Sequence[RowView]) -> list[tuple[str, list[str]]]:
    """The one or two columns of each data set: (name, a cell for each row)."""
    columns = []
    for index, heading in enumerate(group.headings):
        cells = [row.cells[index] for row in rows]
        if heading.has_paper:
            columns.append((f"{heading.name}\npaper", [cell.paper for cell in cells]))
        if heading.has_ours:
            title = "\n".join(filter(None, (heading.name, heading.of_class, heading.note)))
            columns.append((title, [cell.ours for cell in cells]))
    return columns


def verdict_table(claims: Iterable[ClaimView], forest: Forest, width: int) -> Table:
    """A verdict and what it needs, beside it what it is about, its figures and its interval."""
    drawings = {}
    # Beside the verdict's column and the margins of both.
    room = min(PLOT_WIDTH, width - 2 * VERDICT_WIDTH - 6)
    for group in forest.groups:
        for line in group.lines:
            drawings[line.claim.number] = interval_line(line, group.axis, room)
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column(min_width=VERDICT_WIDTH, max_width=2 * VERDICT_WIDTH)
    table.add_column(overflow="fold")
    for claim in claims:
        verdict = Text(claim.label, COLOURS[claim.verdict].terminal)
        if claim.needs_short:
            verdict.append(f"\n{claim.needs_short}", "default")
        sentence = Text(claim.text).append(f"\n{_figures(claim)}", "dim")
        if drawings.get(claim.number):
            sentence.append(f"\n{drawings[claim.number]}", COLOURS[claim.verdict].terminal)
        table.add_row(verdict, sentence)
    return table


def _figures(claim: ClaimView) -> str:
    """A claim's difference, its p-value and what the paper claims; or why there is none."""
    figures = claim.figures
    texts = []
    if figures.ours != DASH:
        interval = figures.interval.replace(" ", NO_BREAK_SPACE)
        texts.append(f"{claim.judged_on}: {figures.ours} {interval}".rstrip())
    texts += [figures.p, claim.claimed, figures.resampled]
    # Nothing was tested: that a measure measured nothing is the reason that matters most.
    if not figures.corrected:
        notes = claim.note.split("; ")
        reason = (note for note in notes if note.endswith("measured nothing"))
        texts.append(next(reason, notes[0]))
    return ", ".join(filter(None, texts))


def interval_line(line: ForestLine, axis: Axis, width: int) -> str:
    """Draw a claim between the ends of its axis: `−2.0   │░░├──●──┤░░◇░ +6.0`.

    The upright bar is zero, the diamond the paper's value, and in the shade a claim with a margin
    holds. An arrow ends an interval that goes on beyond the axis. Empty where there is no room.
    """
    low_end = signed(axis.low)
    high_end = signed(axis.high)
    inner = width - len(low_end) - len(high_end) - 2
    if inner < LEAST_CELLS:
        return ""
    cells = [" "] * inner

    def column(value: float) -> int:
        return round(axis.place(value) / 100.0 * (inner - 1))

    if line.band is not None:
        least, most = map(column, line.band)
        cells[least : most + 1] = SHADE * (most + 1 - least)
    cells[column(0.0)] = "\u2502"
    if line.low is not None and line.high is not None:
        first = column(line.low)
        last = column(line.high)
        cells[first : last + 1] = "\u2500" * (last + 1 - first)
        cells[first] = "\u251c" if axis.shows(line.low) else "\u25c4"
        cells[last] = "\u2524" if axis.shows(line.high) else "\u25ba"
    if line.paper is not None:
        cells[column(line.paper)] = "\u25c7"
    cells[column(line.mean)] = COLOURS[line.claim.verdict].character
    return f"{low_end} {''.join(cells)} {high_end}"
