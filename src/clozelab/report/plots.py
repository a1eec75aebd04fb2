"""The report's pictures of the table, as PNG and as SVG, for a light and a dark page.

The table as dots with intervals, and scores against the encoder's size; training_plots.py has what
is drawn along pre-training. A colour means a pre-trained encoder, the same one in every picture;
what has no pre-training is grey.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from clozelab.analysis.schema import PERCENT, Row
from clozelab.analysis.scores import Cell, DataColumn
from clozelab.analysis.statistics import Estimate
from clozelab.report import wording
from clozelab.results.table import ResultTable
from clozelab.text.formatting import DASH, with_direction

matplotlib.use("Agg")

# inches; the page is about a hundred pixels an inch wide
WIDTH = 10.5
STYLES = ("light", "dark")
STYLE_FOLDER = Path(__file__).parent / "templates"
# where a style keeps its colours
INK: Final = "text.color"
FAINT: Final = "axes.edgecolor"
PAPER: Final = "figure.facecolor"
DOTTED = (0, (1, 2))
# of rows, whose colours alone are hard to tell apart
MARKERS = "osv^DP"
# data sets side by side: in the picture of the table, and where each has axes of its own
DOT_PANELS_ACROSS = 5
PANELS_ACROSS = 3
# that an axis of percents spans: on a narrower one equal scores would get ticks of hundredths
LEAST_PERCENT = 2.0
# how far rows of one size are drawn from each other, on the logarithmic axis
BESIDE = 1.04


@dataclass(frozen=True)
class Picture:
    """One drawing in two formats; the same data give the same bytes."""

    png: bytes
    svg: bytes


def look(style: str) -> Any:
    """The context that every picture is drawn in: STYLE.mplstyle has the colours."""
    return plt.style.context(STYLE_FOLDER / f"{style}.mplstyle")


def saved(figure: Figure, entries: Sequence[Line2D] = (), **legend: Any) -> Picture:
    """Both formats of a figure, which is closed.

    Empty panels are hidden; where there are `entries` they make a legend.
    """
    for axes in figure.axes:
        axes.set_visible(axes.has_data())
    if entries:
        figure.legend(handles=entries, loc="outside lower center", **legend)
    png = io.BytesIO()
    svg = io.BytesIO()
    figure.savefig(png, format="png")
    figure.savefig(svg, format="svg", metadata={"Date": None})
    plt.close(figure)
    return Picture(png.getvalue(), svg.getvalue())


# -- what pictures share ---------------------------------------------------------------------------


def colour_of(index: int) -> str:
    """A colour of the style; they come round again."""
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return str(colours[index % len(colours)])


def row_colour(table: ResultTable, row: Row) -> str:
    """The colour of the arm that a row takes; grey for a row without one."""
    if row.arm is None:
        return str(plt.rcParams[FAINT])
    arms = [known.arm for known in table.experiment.rows if known.arm is not None]
    return colour_of(list(dict.fromkeys(arms)).index(row.arm))


def write_title(axes: Axes, column: DataColumn) -> None:
    """Write a data set's name over its panel, and below it what it is to the paper's."""
    role = wording.role_of(column)
    axes.set_title(column.heading, fontsize=10, fontweight="bold", pad=20 if role else 6)
    if role:
        axes.text(
            0.5,
            1.02,
            role,
            transform=axes.transAxes,
            color=plt.rcParams[FAINT],
            fontsize=8.5,
            ha="center",
            va="bottom",
        )


def draw_point(
    axes: Axes,
    x: float,
    estimate: Estimate,
    *,
    colour: str,
    marker: str = "o",
    is_collapsed: bool = False,
    face: str | None = None,
) -> None:
    """Draw a mean with its interval, or with both of two values.

    Where every run collapsed it is a cross without an interval. `face` fills the marker.
    """
    axes.errorbar(
        x,
        estimate.mean,
        None if is_collapsed else estimate.reach,
        fmt="x" if is_collapsed else marker,
        color=colour,
        markersize=6,
        markerfacecolor=face,
        capsize=3,
        linewidth=1.4,
    )


def within_percent(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """The ends of an axis that shows what a percentage can be, and spans `least`."""
    spare = max(0.0, least - (high - low)) / 2
    return min(max(low - spare, -2.0), 102.0), min(max(high + spare, -2.0), 102.0)


def finish_panel(axes: Axes, column: DataColumn) -> None:
    """Complete a panel of scores: the best trivial rule, the range of a percentage, the title."""
    if column.trivial is not None:
        axes.axhline(column.trivial, color=plt.rcParams[FAINT], linestyle=DOTTED, linewidth=1.2)
    if column.unit == PERCENT:
        axes.set_ylim(within_percent(*axes.get_ylim()))
    write_title(axes, column)


def common_entries(
    columns: Sequence[DataColumn], rows: Sequence[str], table: ResultTable
) -> list[Line2D]:
    """What a legend of these rows and data sets has to explain, where it occurs."""
    entries: list[Line2D] = []
    if any(column.trivial is not None for column in columns):
        entries.append(_entry("best trivial rule", color=plt.rcParams[FAINT], linestyle=DOTTED))
    cells = product(rows, columns)
    if any(table.cells[row, column.key].is_collapsed for row, column in cells):
        ink = plt.rcParams[INK]
        entries.append(_entry("collapsed in every run", color=ink, marker="x", linestyle=""))
    return entries


def _entry(label: str, **style: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], label=label, **style)


# -- the table -------------------------------------------------------------------------------------


def draw_table(table: ResultTable) -> Picture | None:
    """Draw every row on every data set as a dot with its interval; None where there is no score.

    The paper's value is a hollow diamond.
    """
    rows = table.experiment.rows
    columns = sorted(table.with_results, key=lambda column: not column.is_paper)
    if not columns:
        return None
    down = math.ceil(len(columns) / DOT_PANELS_ACROSS)
    across = math.ceil(len(columns) / down)
    size = (WIDTH, 0.6 + (0.9 + 0.3 * len(rows)) * down)
    figure, grid = plt.subplots(
        down, across, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for axes, column in zip(grid.flat, columns, strict=False):
        _draw_column(axes, table, column)
    # All panels share this axis; the first row is on top.
    grid[0, 0].set_yticks(range(len(rows)), [row.label for row in rows])
    grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    return saved(figure, _table_entries(table, columns), ncols=3, fontsize=9)


def _table_entries(table: ResultTable, columns: Sequence[DataColumn]) -> list[Line2D]:
    ink = plt.rcParams[INK]
    cells = product(table.rows, columns)
    has_paper = any(table.paper_value(row, column) is not None for row, column in cells)
    unit = ", percent" if all(column.unit == PERCENT for column in columns) else ""
    estimates = [cell.estimate for cell in table.cells.values() if cell.estimate]
    reach = "with 95 % interval"
    if any(len(estimate.values) == 2 for estimate in estimates):
        reach = "from one seed to the other"
    name = "ours" if has_paper else "mean"
    entries = [_entry(f"{name}{unit}, {reach}", color=ink, marker="o")]
    if has_paper:
        hollow: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": ""}
        entries.append(_entry("the paper", color=ink, **hollow))
    return entries + common_entries(columns, table.rows, table)


@dataclass(frozen=True)
class _Bar:
    """The interval of a row, on the axis of scores."""

    height: int
    colour: str
    low: float
    high: float


def _draw_column(axes: Axes, table: ResultTable, column: DataColumn) -> None:
    """Draw a panel of the table: scores to the right, a row at each height."""
    bars: list[_Bar] = []
    for height, row in enumerate(table.experiment.rows):
        colour = row_colour(table, row)
        cell = table.cells[row.name, column.key]
        if cell.estimate is None:
            _write_absence(axes, height, column, cell)
        elif cell.is_collapsed:
            axes.plot(cell.estimate.mean, height, marker="x", markersize=6, color=colour)
        else:
            bars += _draw_bar(axes, height, cell.estimate, colour)
        paper_value = table.paper_value(row.name, column)
        if paper_value is not None:
            axes.plot(
                paper_value,
                height,
                marker="D",
                markersize=6,
                markerfacecolor="none",
                markeredgecolor=colour,
            )

    if column.trivial is not None:
        axes.axvline(column.trivial, color=plt.rcParams[FAINT], linestyle=DOTTED, linewidth=1.2)
    if column.unit == PERCENT:
        _cut_to_percent(axes, bars)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=column.unit == PERCENT))
    write_title(axes, column)


def _write_absence(axes: Axes, height: int, column: DataColumn, cell: Cell) -> None:
    """Write a word instead of a dot; a fact that a row does not have is not missing."""
    axes.text(
        0.03,
        height,
        "missing" if column.task or cell.missing else DASH,
        color=plt.rcParams[FAINT],
        backgroundcolor=plt.rcParams[PAPER],
        fontsize=8,
        va="center",
        transform=axes.get_yaxis_transform(),
    )


def _draw_bar(axes: Axes, height: int, estimate: Estimate, colour: str) -> list[_Bar]:
    """Draw a mean with its interval; returns that, or nothing where there is none."""
    mean = estimate.mean
    reach = estimate.reach
    axes.errorbar(
        mean,
        height,
        xerr=reach,
        fmt="o",
        color=colour,
        markersize=6,
        capsize=3,
        linewidth=1.6,
    )
    return [_Bar(height, colour, mean - reach, mean + reach)] if reach else []


def _cut_to_percent(axes: Axes, bars: Iterable[_Bar]) -> None:
    """Keep an axis to what a percentage can be; an interval that goes on ends in an arrow."""
    low, high = within_percent(*axes.get_xlim(), least=LEAST_PERCENT)
    axes.set_xlim(low, high)
    for bar in bars:
        arrow: dict[str, Any] = {"markersize": 5, "color": bar.colour, "clip_on": False}
        if bar.low < low:
            axes.plot(low, bar.height, marker="<", **arrow)
        if bar.high > high:
            axes.plot(high, bar.height, marker=">", **arrow)


# -- sizes -----------------------------------------------------------------------------------------


def draw_sizes(
    rows: Sequence[Row], sizes: Mapping[str, float], table: ResultTable
) -> Picture | None:
    """Draw the scores of `rows` against the parameters of their encoders.

    `sizes` is arm -> parameters. None where there is no row or no score.
    """
    columns = table.with_results
    if not rows or not columns:
        return None
    across = min(PANELS_ACROSS, len(columns))
    down = math.ceil(len(columns) / PANELS_ACROSS)
    size = (WIDTH, 0.9 + 2.9 * down)
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    places = _places_by_size(rows, sizes)
    for axes, column in zip(grid.flat, columns, strict=False):
        for index, row in enumerate(rows):
            cell = table.cells[row.name, column.key]
            if cell.estimate is not None:
                draw_point(
                    axes,
                    places[row.name],
                    cell.estimate,
                    colour=row_colour(table, row),
                    marker=MARKERS[index % len(MARKERS)],
                    is_collapsed=cell.is_collapsed,
                )
        finish_panel(axes, column)
        _scale_to_sizes(axes, sizes)
        axes.set_ylabel(with_direction(column.unit))

    entries: list[Line2D] = []
    for index, row in enumerate(rows):
        marker = MARKERS[index % len(MARKERS)]
        colour = row_colour(table, row)
        entries.append(_entry(row.label, color=colour, marker=marker, linestyle=""))
    entries += common_entries(columns, [row.name for row in rows], table)
    return saved(figure, entries, ncols=4, fontsize=9)


def _places_by_size(rows: Sequence[Row], sizes: Mapping[str, float]) -> dict[str, float]:
    """Row -> its place on the axis of parameters; rows of one size stand side by side."""
    by_size: dict[float, list[str]] = {}
    for row in rows:
        by_size.setdefault(sizes[str(row.arm)], []).append(row.name)
    places: dict[str, float] = {}
    for size, names in by_size.items():
        for index, name in enumerate(names):
            places[name] = size * BESIDE ** (index - (len(names) - 1) / 2)
    return places


def _scale_to_sizes(axes: Axes, sizes: Mapping[str, float]) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(sizes.values()) / 1.25, max(sizes.values()) * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("parameters of the encoder")
