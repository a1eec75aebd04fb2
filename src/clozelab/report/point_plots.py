"""The pictures that some reports have: scores along pre-training, and scores against the size of the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from clozelab.report.plots import STYLES, WIDTH, Picture, row_colour, saved, settings, write_title
from clozelab.verdicts.experiment import PERCENT, Row
from clozelab.verdicts.points import Line, Race
from clozelab.verdicts.table import DataColumn, Table
from clozelab.verdicts.wording import with_direction

ACROSS = 3
"""Data sets side by side."""
APART = 0.006
"""Of the axis: how far intervals of two lines at one place are drawn from each other."""
EDGE = 0.015
"""Of the axis: what is left of zero, so that points there are whole."""
BESIDE = 1.04
"""The same for rows of one size, on the logarithmic axis."""
MARKERS = "osv^DP"
"""Of the rows, whose colours alone are hard to tell apart."""


def draw_lines(lines: Sequence[Line], races: Sequence[Race], table: Table, style: str) -> Picture | None:
    """Score with interval along pre-training, one line an arm; below it the difference, where there are two arms."""
    columns = [one for one in table.with_results if one.tasks]
    if not lines or not columns:
        return None
    leads = races_to_draw(races)
    heights = (3.0, 1.7) if leads else (3.0,)
    across, down = min(ACROSS, len(columns)), -(-len(columns) // ACROSS)
    with plt.rc_context(settings(style)):
        figure, grid = plt.subplots(
            down * len(heights), across, squeeze=False, layout="constrained",
            figsize=(WIDTH, 0.5 + down * (sum(heights) + 0.6)), height_ratios=heights * down,
        )  # fmt: skip
        for axes in grid.flat:
            axes.set_visible(False)
        for number, column in enumerate(columns):
            panels = grid[len(heights) * (number // across) :, number % across][: len(heights)]
            _draw_scores(panels[0], lines, table, column, style)
            if column.key in leads:
                _draw_leads(panels[1], leads[column.key], style)
                panels[1].set_xlim(panels[0].get_xlim())
            last = [axes for axes in panels if axes.get_visible()][-1]
            last.set_xlabel("tokens seen in pre-training" if _has_tokens(lines) else "percent of pre-training's steps")
        grid[0, 0].set_ylabel("percent")
        figure.legend(handles=_line_legend(lines, columns, table, style), loc="outside lower center", ncols=4)
        return saved(figure)


def races_to_draw(races: Sequence[Race]) -> dict[str, Race]:
    """Key of a data set -> its one race, with something to compare; none where more than two arms race."""
    found = {race.column.key: race for race in races}
    return {key: race for key, race in found.items() if race.comparable} if len(found) == len(races) else {}


def _has_tokens(lines: Sequence[Line]) -> bool:
    return all(line.tokens for line in lines)


def _places(line: Line, lines: Sequence[Line]) -> dict[float, float]:
    """Fraction -> where it lies on the axis, moved a little so that lines' intervals do not cover each other.

    The fraction 0 is the floor.
    """
    has_tokens = _has_tokens(lines)
    furthest = max(one.tokens[fraction] if has_tokens else 100.0 * fraction for one in lines for fraction in one.rows)
    shift = APART * furthest * (lines.index(line) - (len(lines) - 1) / 2)
    places = {fraction: line.tokens[fraction] if has_tokens else 100.0 * fraction for fraction in line.rows}
    return {fraction: at + shift for fraction, at in {0.0: 0.0, **places}.items()}


def _draw_scores(axes: Axes, lines: Sequence[Line], table: Table, column: DataColumn, style: str) -> None:
    axes.set_visible(True)
    for line in lines:
        places, colour, drawn = _places(line, lines), _line_colour(line, table, style), []
        for fraction, row in _rows_with_floor(line).items():
            cell = table.cells[row, column.key]
            if cell.estimate is None:
                continue
            at = (places[fraction], cell.estimate.mean)
            half, marker = (None, "x") if cell.is_collapsed else (cell.estimate.half_width, "o")
            _point(axes, at, half, colour, marker, markerfacecolor=None if fraction else STYLES[style]["paper"])
            drawn.append(at)
        axes.plot(*zip(*drawn, strict=True), color=colour, linewidth=1.4, alpha=0.8, zorder=1.5)
    if column.majority is not None:
        axes.axhline(column.majority, color=STYLES[style]["faint"], linestyle=(0, (1, 2)), linewidth=1.2)
    _within_percent(axes, column)
    write_title(axes, column, style)
    _scale(axes, has_tokens=_has_tokens(lines))


def _rows_with_floor(line: Line) -> dict[float, str]:
    """Fraction -> row, from the floor at 0 on."""
    return {**({0.0: line.floor} if line.floor else {}), **line.rows}


def _point(axes: Axes, place: tuple[float, float], half: float | None, colour: str, marker: str, **how: Any) -> None:
    axes.errorbar(
        *place, yerr=half, fmt=marker, color=colour, markersize=6, capsize=3, linewidth=1.4, **how
    )  # fmt: skip


def _draw_leads(axes: Axes, race: Race, style: str) -> None:
    """A filled dot where the interval excludes zero, a hollow one where it does not."""
    ink, faint = STYLES[style]["ink"], STYLES[style]["faint"]
    axes.set_visible(True)
    both = (race.first, race.second)
    places = [_places(line, both) for line in both]
    axes.axhline(0.0, color=faint, linewidth=1.0)
    for lead in race.comparable:
        at = sum(one[lead.fraction] for one in places) / 2
        found = lead.link.difference
        if found is not None:
            face = ink if lead.side else STYLES[style]["paper"]
            _point(axes, (at, found.mean), found.half_width, ink, "o", markerfacecolor=face)
    axes.set_title(f"{race.name}, points", fontsize=9, color=faint)
    _scale(axes, has_tokens=_has_tokens(both))


def _scale(axes: Axes, *, has_tokens: bool) -> None:
    axes.set_xlim(left=-EDGE * axes.get_xlim()[1])
    if has_tokens:
        axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _within_percent(axes: Axes, column: DataColumn) -> None:
    """Show what a percentage can be, however far an interval goes on."""
    if column.unit == PERCENT:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))


def _line_colour(line: Line, table: Table, style: str) -> str:
    rows = table.experiment.rows
    return row_colour(rows, next(row for row in rows if row.arm == line.arm), style)


def _line_legend(lines: Sequence[Line], columns: Sequence[DataColumn], table: Table, style: str) -> list[Line2D]:
    entries = [Line2D([], [], color=_line_colour(one, table, style), marker="o", label=one.name) for one in lines]
    if any(table.cells[line.floor, one.key].estimate for line in lines if line.floor for one in columns):
        look: dict[str, Any] = {"color": STYLES[style]["ink"], "marker": "o", "markerfacecolor": STYLES[style]["paper"]}
        entries.append(Line2D([], [], **look, linestyle="", label="before any step"))
    return entries + _marks(columns, [row for line in lines for row in line.rows.values()], table, style)


def _marks(columns: Sequence[DataColumn], rows: Sequence[str], table: Table, style: str) -> list[Line2D]:
    """What else the legend has to explain."""
    entries = []
    if any(column.majority is not None for column in columns):
        look: dict[str, Any] = {"color": STYLES[style]["faint"], "linestyle": (0, (1, 2))}
        entries.append(Line2D([], [], **look, label="always the most frequent label"))
    if any(table.cells[row, column.key].is_collapsed for row in rows for column in columns):
        entries.append(
            Line2D([], [], color=STYLES[style]["ink"], marker="x", linestyle="", label="collapsed in every run")
        )
    return entries


def draw_sizes(rows: Sequence[Row], sizes: Mapping[str, float], table: Table, style: str) -> Picture | None:
    """Score with interval against the parameters of the encoder, for the rows whose arm's size is known.

    Args:
        rows: to draw, none where the arms do not differ in size.
        sizes: arm -> parameters.
        table: of all rows.
        style: light or dark.
    """
    columns = table.with_results
    if not rows or not columns:
        return None
    across = min(ACROSS, len(columns))
    down = -(-len(columns) // across)
    with plt.rc_context(settings(style)):
        figure, grid = plt.subplots(
            down, across, figsize=(WIDTH, 0.9 + 2.9 * down), squeeze=False, layout="constrained"
        )
        for axes in list(grid.flat)[len(columns) :]:
            axes.set_visible(False)
        for axes, column in zip(grid.flat, columns, strict=False):
            _draw_by_size(axes, rows, sizes, table, column, style)
        entries = [_row_entry(row, rows, table, style) for row in rows]
        entries += _marks(columns, [row.name for row in rows], table, style)
        figure.legend(handles=entries, loc="outside lower center", ncols=4, fontsize=9)
        return saved(figure)


def _marker(row: Row, rows: Sequence[Row]) -> str:
    return MARKERS[rows.index(row) % len(MARKERS)]


def _row_entry(row: Row, rows: Sequence[Row], table: Table, style: str) -> Line2D:
    colour = row_colour(table.experiment.rows, row, style)
    return Line2D([], [], color=colour, marker=_marker(row, rows), linestyle="", label=row.label)


def _size(row: Row, rows: Sequence[Row], sizes: Mapping[str, float]) -> float:
    """Where a row lies on the axis: rows of one size stand side by side."""
    same = [one.name for one in rows if sizes[str(one.arm)] == sizes[str(row.arm)]]
    return sizes[str(row.arm)] * BESIDE ** (same.index(row.name) - (len(same) - 1) / 2)


def _draw_by_size(
    axes: Axes, rows: Sequence[Row], sizes: Mapping[str, float], table: Table, column: DataColumn, style: str
) -> None:
    for row in rows:
        cell = table.cells[row.name, column.key]
        if cell.estimate is not None and row.arm is not None:
            colour = row_colour(table.experiment.rows, row, style)
            marker = "x" if cell.is_collapsed else _marker(row, rows)
            half = None if cell.is_collapsed else cell.estimate.half_width
            _point(axes, (_size(row, rows, sizes), cell.estimate.mean), half, colour, marker)
    if column.majority is not None:
        axes.axhline(column.majority, color=STYLES[style]["faint"], linestyle=(0, (1, 2)), linewidth=1.2)
    least, most = min(sizes.values()), max(sizes.values())
    axes.set_xscale("log")
    axes.set_xlim(least / 1.25, most * 1.25)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("parameters of the encoder")
    axes.set_ylabel(with_direction(column.unit))
    _within_percent(axes, column)
    write_title(axes, column, style)
