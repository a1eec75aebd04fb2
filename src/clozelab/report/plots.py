"""The report's pictures, as PNG and as SVG, for a light and a dark page.

Learning curves against tokens, the table as dots with intervals, scores along pre-training and
against the encoder's size. A colour means a pre-trained encoder, the same one in every picture;
what has no pre-training is grey.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from clozelab.analysis.contrasts import Contrast, contrast_rows
from clozelab.analysis.multiplicity import fallback_procedure
from clozelab.analysis.schema import PERCENT, Row
from clozelab.analysis.scores import Cell, CheckpointSeries, DataColumn
from clozelab.analysis.statistics import SIGNIFICANCE, Estimate
from clozelab.report import wording
from clozelab.results.table import ResultTable
from clozelab.runs.record import Record
from clozelab.text.formatting import MINUS, with_direction

matplotlib.use("Agg")

WIDTH = 10.5  # inches; the page is about a hundred pixels an inch wide
STYLES = ("light", "dark")
# Where a style keeps its colours.
INK: Final = "text.color"
FAINT: Final = "axes.edgecolor"
PAPER: Final = "figure.facecolor"
LOOKS = Path(__file__).parent / "templates"
DOTTED, DASHED = (0, (1, 2)), (0, (4, 3))
MARKERS = "osv^DP"  # of the rows, whose colours alone are hard to tell apart
ACROSS = 3  # data sets side by side, of scores along pre-training and against sizes
LABEL_GAP = 0.055  # of the axes' height: two labels closer than that would overlap
# that an axis of percents spans: on a narrower one equal scores would get ticks of hundredths
LEAST_PERCENT = 2.0
APART = 0.006  # of the axis: how far intervals of two lines at one place are drawn from each other
EDGE = 0.015  # of the axis: what is left of zero, so that points there are whole
BESIDE = 1.04  # how far rows of one size are drawn from each other, on the logarithmic axis


@dataclass(frozen=True)
class Picture:
    """One drawing in two formats; the same data give the same bytes."""

    png: bytes
    svg: bytes


def _saved(figure: Figure, entries: Sequence[Line2D] = (), **legend: Any) -> Picture:
    """Both formats of a figure without its empty panels, with a legend where there are entries; it
    is closed.
    """
    for axes in figure.axes:
        axes.set_visible(axes.has_data())
    if entries:
        figure.legend(handles=entries, loc="outside lower center", **legend)
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png")
    figure.savefig(svg, format="svg", metadata={"Date": None})
    plt.close(figure)
    return Picture(png.getvalue(), svg.getvalue())


def look(style: str) -> Any:
    """What everything here is called in: STYLE.mplstyle has the colours, and matplotlib is asked
    for them.
    """
    return plt.style.context(LOOKS / f"{style}.mplstyle")


def _colour(index: int) -> str:
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return str(colours[index % len(colours)])


def _row_colour(table: ResultTable, row: Row) -> str:
    arms = list(dict.fromkeys(one.arm for one in table.experiment.rows if one.arm is not None))
    return plt.rcParams[FAINT] if row.arm is None else _colour(arms.index(row.arm))


def _write_title(axes: Axes, column: DataColumn) -> None:
    """The name of a data set over its panel, and below it what it is where it is not the
    paper's.
    """
    axes.set_title(
        column.heading, fontsize=10, fontweight="bold", pad=20 if wording.role_of(column) else 6
    )
    if role := wording.role_of(column):
        small: dict[str, Any] = {
            "color": plt.rcParams[FAINT],
            "fontsize": 8.5,
            "ha": "center",
            "va": "bottom",
        }
        axes.text(0.5, 1.02, role, transform=axes.transAxes, **small)


def _point(
    axes: Axes,
    place: float,
    found: Estimate,
    cell: Cell | None,
    colour: str,
    marker: str,
    **how: Any,
) -> None:
    """A mean with its interval, or both of two values; a cross without one where every run
    collapsed.
    """
    half, marker = (None, "x") if cell is not None and cell.is_collapsed else (found.reach, marker)
    axes.errorbar(
        place,
        found.mean,
        half,
        fmt=marker,
        color=colour,
        markersize=6,
        capsize=3,
        linewidth=1.4,
        **how,
    )


def within_percent(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """The ends of an axis that shows what a percentage can be, and spans `least`."""
    spare = max(0.0, least - (high - low)) / 2
    return min(max(low - spare, -2.0), 102.0), min(max(high + spare, -2.0), 102.0)


def _finish(axes: Axes, column: DataColumn) -> None:
    """Of a panel of scores: the best trivial rule, what a percentage can be, the title."""
    if column.trivial is not None:
        axes.axhline(column.trivial, color=plt.rcParams[FAINT], linestyle=DOTTED, linewidth=1.2)
    if column.unit == PERCENT:
        axes.set_ylim(within_percent(*axes.get_ylim()))
    _write_title(axes, column)


def _marks(columns: Sequence[DataColumn], rows: Sequence[str], table: ResultTable) -> list[Line2D]:
    """What every legend has to explain where it occurs."""
    ink, faint = plt.rcParams[INK], plt.rcParams[FAINT]
    has_rule = any(column.trivial is not None for column in columns)
    entries = [Line2D([], [], color=faint, linestyle=DOTTED, label="best trivial rule")] * has_rule
    if any(table.cells[row, column.key].is_collapsed for row in rows for column in columns):
        entries.append(
            Line2D([], [], color=ink, marker="x", linestyle="", label="collapsed in every run")
        )
    return entries


def draw_curves(runs: Sequence[Record], labels: dict[str, str]) -> Picture | None:
    """Held-out loss of each pre-training run against tokens, each arm by its label or name; None
    without a curve.
    """
    drawn = [run for run in runs if run.curves.get("validation/loss")]
    if not drawn:
        return None
    arms = list(dict.fromkeys([*labels, *(run.name for run in drawn)]))
    ends: dict[str, list[float]] = {}
    ink = plt.rcParams[INK]
    furthest = max(tokens for run in drawn for tokens, _ in run.curves["validation/loss"])
    figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
    axes.set(xlabel="tokens seen", ylabel="held-out loss (nats a predicted token)")
    axes.xaxis.set_major_formatter(EngFormatter())
    for run in drawn:
        tokens, losses = zip(*run.curves["validation/loss"], strict=True)
        colour = _colour(arms.index(run.name))
        axes.plot(tokens, losses, color=colour, linewidth=1.6, alpha=0.9)
        # Leads the eye to the label where a run has not come as far as the others.
        axes.plot(
            [tokens[-1], furthest],
            [losses[-1]] * 2,
            color=colour,
            linewidth=1.0,
            linestyle=(0, (1, 3)),
        )
        ends.setdefault(run.name, []).append(losses[-1])
    marks = [
        (fmean(ends[arm]), labels.get(arm, arm), _colour(i))
        for i, arm in enumerate(arms)
        if arm in ends
    ]
    if alone := [run.facts["unigram_loss"] for run in drawn if "unigram_loss" in run.facts]:
        height = fmean(alone)
        axes.axhline(height, color=ink, linestyle=DASHED, linewidth=1.0)
        marks.append((height, f"frequencies alone ({height:.2f})", ink))
    for text, height in known_heights(drawn).items():
        axes.axhline(height, color=ink, linestyle=DOTTED, linewidth=1.2)
        marks.append((height, text, ink))
    axes.set_xlim(0.0, furthest)
    low, high = axes.get_ylim()
    heights = spread([(height - low) / (high - low) for height, _, _ in marks], LABEL_GAP)
    for height, (_, text, colour) in zip(heights, marks, strict=True):
        axes.text(1.01, height, text, color=colour, transform=axes.transAxes, va="center")
    return _saved(figure)


def known_heights(runs: Sequence[Record]) -> dict[str, float]:
    """Label -> loss that no model can be below, of every kind of model, where the corpus's
    generator knows it.
    """
    known = [run.facts["known_loss"] for run in runs if run.facts.get("known_loss")]
    return {
        f"no {one['reader'].replace('_', '-')} below {one['nats']:.2f}": one["nats"]
        for one in known
    }


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, moved as little as needed for neighbours to be `gap` apart; their order
    stays.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for _ in range(200):
        for below, above in pairwise(order):
            overlap = max(0.0, gap - (placed[above] - placed[below]))
            placed[below] -= overlap / 2
            placed[above] += overlap / 2
    return placed


def draw_table(table: ResultTable) -> Picture | None:
    """Every row on every data set as a dot with its interval; the paper's value as a hollow
    diamond; None for none.
    """
    rows = table.experiment.rows
    columns = sorted(table.with_results, key=lambda one: not one.is_paper)
    if not columns:
        return None
    down = -(-len(columns) // 5)
    across = -(-len(columns) // down)
    ink = plt.rcParams[INK]
    size = (WIDTH, 0.6 + (0.9 + 0.3 * len(rows)) * down)
    figure, grid = plt.subplots(
        down, across, figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for axes, column in zip(grid.flat, columns, strict=False):
        _draw_column(axes, table, column)
    grid[0, 0].set_yticks(range(len(rows)), [row.label for row in rows])
    grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
    has_paper = any(table.paper_value(row.name, one) is not None for row in rows for one in columns)
    unit = ", percent" if all(column.unit == PERCENT for column in columns) else ""
    found = [cell.estimate for cell in table.cells.values() if cell.estimate]
    reach = (
        "from one seed to the other"
        if any(len(one.values) == 2 for one in found)
        else "with 95 % interval"
    )
    entries = [
        Line2D(
            [], [], color=ink, marker="o", label=f"{'ours' if has_paper else 'mean'}{unit}, {reach}"
        )
    ]
    if has_paper:
        hollow: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": ""}
        entries.append(Line2D([], [], color=ink, label="the paper", **hollow))
    entries += _marks(columns, table.rows, table)
    return _saved(figure, entries, ncols=3, fontsize=9)


def _draw_column(axes: Axes, table: ResultTable, column: DataColumn) -> None:
    faint, paper = plt.rcParams[FAINT], plt.rcParams[PAPER]
    whole: list[tuple[int, str, float, float]] = []
    for height, row in enumerate(table.experiment.rows):
        colour, cell = _row_colour(table, row), table.cells[row.name, column.key]
        if cell.estimate is None:
            word = "missing" if column.task or cell.missing else "\u2013"
            place = axes.get_yaxis_transform()
            axes.text(
                0.03,
                height,
                word,
                color=faint,
                backgroundcolor=paper,
                fontsize=8,
                va="center",
                transform=place,
            )
        elif cell.is_collapsed:
            axes.plot(cell.estimate.mean, height, marker="x", markersize=6, color=colour)
        else:
            mean, half = cell.estimate.mean, cell.estimate.reach
            axes.errorbar(
                mean,
                height,
                xerr=half,
                fmt="o",
                color=colour,
                markersize=6,
                capsize=3,
                linewidth=1.6,
            )
            whole += [(height, colour, mean - half, mean + half)] if half else []
        if (printed := table.paper_value(row.name, column)) is not None:
            axes.plot(
                printed,
                height,
                marker="D",
                markersize=6,
                markerfacecolor="none",
                markeredgecolor=colour,
            )
    if column.trivial is not None:
        axes.axvline(column.trivial, color=faint, linestyle=DOTTED, linewidth=1.2)
    if column.unit == PERCENT:
        # An interval that goes on ends in an arrow.
        low, high = within_percent(*axes.get_xlim(), least=LEAST_PERCENT)
        axes.set_xlim(low, high)
        for height, colour, first, last in whole:
            for edge, marker, is_cut in ((low, "<", first < low), (high, ">", last > high)):
                if is_cut:
                    axes.plot(
                        edge, height, marker=marker, markersize=5, color=colour, clip_on=False
                    )
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=column.unit == PERCENT))
    _write_title(axes, column)


def draw_lines(lines: Sequence[CheckpointSeries], table: ResultTable) -> Picture | None:
    """Score with interval along pre-training, one line an arm; below it the difference, where there
    are two lines.
    """
    columns = [one for one in table.with_results if one.tasks]
    if not lines or not columns:
        return None
    heights = (3.0, 1.7) if len(lines) == 2 else (3.0,)
    across, down = min(ACROSS, len(columns)), -(-len(columns) // ACROSS)
    xlabel = (
        "tokens seen in pre-training" if _has_tokens(lines) else "percent of pre-training's steps"
    )
    ink, paper = plt.rcParams[INK], plt.rcParams[PAPER]
    arms = {row.arm: row for row in reversed(table.experiment.rows)}
    colours = {line.name: _row_colour(table, arms[line.arm]) for line in lines}
    links = [
        (column.key, key, contrast_rows(table, lines[0].rows[key], lines[1].rows[key], column))
        for column in (columns if len(lines) == 2 else ())
        for key in lines[0].rows
        if key in lines[1].rows
    ]
    corrected = fallback_procedure(
        {"": [link for *_, link in links if not link.obstacles.incomparability]}
    ).corrected
    figure, grid = plt.subplots(
        down * len(heights),
        across,
        squeeze=False,
        layout="constrained",
        figsize=(WIDTH, 0.5 + down * (sum(heights) + 0.6)),
        height_ratios=heights * down,
    )
    for number, column in enumerate(columns):
        panels = grid[len(heights) * (number // across) :, number % across][: len(heights)]
        _draw_scores(panels[0], lines, colours, table, column)
        if len(lines) == 2:
            _draw_gaps(
                panels[1],
                lines,
                {key: link for where, key, link in links if where == column.key},
                corrected,
            )
            panels[1].set_xlim(panels[0].get_xlim())
        panels[-1].set_xlabel(xlabel)
    grid[0, 0].set_ylabel("percent")
    entries = [Line2D([], [], color=colours[one.name], marker="o", label=one.name) for one in lines]
    if any(
        table.cells[line.floor, one.key].estimate for line in lines if line.floor for one in columns
    ):
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": paper, "linestyle": ""}
        entries.append(Line2D([], [], color=ink, label="before any step", **hollow))
    entries += _marks(columns, [row for line in lines for row in line.rows.values()], table)
    return _saved(figure, entries, ncols=4)


def _has_tokens(lines: Sequence[CheckpointSeries]) -> bool:
    return all(line.reached(line.rows) for line in lines)


def _places(line: CheckpointSeries, lines: Sequence[CheckpointSeries]) -> dict[float, float]:
    """Fraction (0: the floor) -> its place on the axis, moved a little so that intervals do not
    cover each other.
    """
    known = {
        one.name: one.reached(one.rows)
        if _has_tokens(lines)
        else {key: 100.0 * key for key in one.rows}
        for one in lines
    }
    furthest = max(known[one.name][fraction] for one in lines for fraction in one.rows)
    shift = APART * furthest * (lines.index(line) - (len(lines) - 1) / 2)
    return {fraction: at + shift for fraction, at in {0.0: 0.0, **known[line.name]}.items()}


def _draw_scores(
    axes: Axes,
    lines: Sequence[CheckpointSeries],
    colours: dict[str, str],
    table: ResultTable,
    column: DataColumn,
) -> None:
    for line in lines:
        places, drawn = _places(line, lines), []
        for fraction, row in {**({0.0: line.floor} if line.floor else {}), **line.rows}.items():
            cell, face = table.cells[row, column.key], None if fraction else plt.rcParams[PAPER]
            if cell.estimate is not None:
                _point(
                    axes,
                    places[fraction],
                    cell.estimate,
                    cell,
                    colours[line.name],
                    "o",
                    markerfacecolor=face,
                )
                drawn.append((places[fraction], cell.estimate.mean))
        axes.plot(
            *zip(*drawn, strict=True),
            color=colours[line.name],
            linewidth=1.4,
            alpha=0.8,
            zorder=1.5,
        )
    _finish(axes, column)
    _scale(axes, lines)


def _draw_gaps(
    axes: Axes,
    lines: Sequence[CheckpointSeries],
    links: Mapping[float, Contrast],
    corrected: Mapping[Any, float],
) -> None:
    """First - second where they may be compared: a filled dot where it is not zero, corrected for
    the picture.
    """
    ink, faint = plt.rcParams[INK], plt.rcParams[FAINT]
    first, second = lines
    places = [_places(line, lines) for line in lines]
    axes.axhline(0.0, color=faint, linewidth=1.0)
    for fraction, link in links.items():
        if link.difference is not None and not link.obstacles.incomparability:
            is_sure = corrected.get(link.key, 1.0) < SIGNIFICANCE and not link.context.below_floor
            face = ink if is_sure else plt.rcParams[PAPER]
            _point(
                axes,
                fmean(one[fraction] for one in places),
                link.difference,
                None,
                ink,
                "o",
                markerfacecolor=face,
            )
    axes.set_title(f"{first.name} {MINUS} {second.name}, points", fontsize=9, color=faint)
    _scale(axes, lines)


def _scale(axes: Axes, lines: Sequence[CheckpointSeries]) -> None:
    axes.set_xlim(left=-EDGE * axes.get_xlim()[1])
    if _has_tokens(lines):
        axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5))


def draw_sizes(
    rows: Sequence[Row], sizes: Mapping[str, float], table: ResultTable
) -> Picture | None:
    """Score of each of `rows` with interval against the parameters of its encoder (`sizes`: arm ->
    parameters).
    """
    columns = table.with_results
    if not rows or not columns:
        return None
    across, down = min(ACROSS, len(columns)), -(-len(columns) // ACROSS)
    looks = {
        row.name: (_row_colour(table, row), MARKERS[i % len(MARKERS)]) for i, row in enumerate(rows)
    }
    figure, grid = plt.subplots(
        down, across, figsize=(WIDTH, 0.9 + 2.9 * down), squeeze=False, layout="constrained"
    )
    for axes, column in zip(grid.flat, columns, strict=False):
        for row in rows:
            cell, size = table.cells[row.name, column.key], sizes[str(row.arm)]
            # Rows of one size stand side by side.
            same = [one.name for one in rows if sizes[str(one.arm)] == size]
            place = size * BESIDE ** (same.index(row.name) - (len(same) - 1) / 2)
            if cell.estimate is not None:
                _point(axes, place, cell.estimate, cell, *looks[row.name])
        _finish(axes, column)
        axes.set_xscale("log")
        axes.set_xlim(min(sizes.values()) / 1.25, max(sizes.values()) * 1.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("parameters of the encoder")
        axes.set_ylabel(with_direction(column.unit))
    entries = [
        Line2D(
            [],
            [],
            color=looks[row.name][0],
            marker=looks[row.name][1],
            linestyle="",
            label=row.label,
        )
        for row in rows
    ]
    entries += _marks(columns, [row.name for row in rows], table)
    return _saved(figure, entries, ncols=4, fontsize=9)
