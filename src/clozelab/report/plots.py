"""The report's pictures, as PNG and as SVG, for a light and a dark page.

Learning curves, scores of encoders kept along pre-training, and of layers. A colour means a
pre-trained encoder, the same one in every picture; a given encoder has the text's, and what has no
pre-training is grey.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from statistics import fmean
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from claims.analysis.contrasts import Contrast, ContrastKey, contrast_rows
from claims.analysis.grouping import group_by
from claims.analysis.multiplicity import fallback_procedure
from claims.analysis.schema import PERCENT, Row
from claims.analysis.scores import CheckpointSeries, DataColumn
from claims.analysis.statistics import SIGNIFICANCE, Estimate, Seeds, estimate
from claims.report.pictures import (
    FAINT,
    INK,
    MOST_DRAWN,
    PAPER,
    WIDTH,
    Picture,
    entry,
    save_picture,
)
from claims.text.phrases import MINUS, with_direction
from clozelab.report.summaries import LossBound, arm_labels
from clozelab.results.evidence import seeds_of
from clozelab.results.table import ResultTable
from clozelab.runs.loss_bands import expected_range, match_of
from clozelab.runs.outcome import context_free, same_fraction
from clozelab.runs.record import Record

DOTTED = (0, (1, 2))
DASHED = (0, (4, 3))
# of rows, whose colours alone are hard to tell apart
MARKERS = "osv^DP"
# data sets side by side
PANELS_ACROSS = 3
# of the axis: how far intervals of two lines at one place are drawn from each other
APART = 0.006
# of the axis: what is left of zero, so that points there are whole
EDGE = 0.015
# inches: panels of scores, and of differences below them
SCORES_HEIGHT = 3.0
DIFFERENCES_HEIGHT = 1.7


# -- what pictures share ---------------------------------------------------------------------------


def _colour_of(index: int) -> str:
    """A colour of the style; they come round again."""
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    return str(colours[index % len(colours)])


def _row_colour(table: ResultTable, row: Row) -> str:
    """The colour of the arm that a row takes; the text's for a given encoder, grey for none."""
    if row.fixed_encoder:
        return str(plt.rcParams[INK])
    if row.arm is None:
        return str(plt.rcParams[FAINT])
    return _arm_colours(table)[row.arm]


def _arm_colours(table: ResultTable) -> dict[str, str]:
    """Arm -> its colour, also of one without a run yet, so that the others keep theirs."""
    arms = [row.arm for row in table.experiment.rows if row.arm is not None]
    arms += [run.name for run in table.runs.pretrain]
    return {arm: _colour_of(index) for index, arm in enumerate(dict.fromkeys(arms))}


def _draw_point(
    axes: Axes,
    x: float,
    estimate: Estimate,
    *,
    colour: str,
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
        fmt="x" if is_collapsed else "o",
        color=colour,
        markersize=6,
        markerfacecolor=face,
        capsize=3,
        linewidth=1.4,
    )


def within_percent(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis that shows what a percentage can be."""
    return max(low, -2.0), min(high, 102.0)


def _finish_panel(axes: Axes, column: DataColumn) -> None:
    """Complete a panel of scores: the best trivial rule, the range of a percentage, the title."""
    if column.trivial is not None:
        axes.axhline(column.trivial, color=plt.rcParams[FAINT], linestyle=DOTTED, linewidth=1.2)
    if column.unit == PERCENT:
        axes.set_ylim(within_percent(*axes.get_ylim()))
    role = column.role
    axes.set_title(column.heading, fontsize=10, fontweight="bold", pad=20 if role else 6)
    axes.text(
        0.5,
        1.02,
        role,
        color=plt.rcParams[FAINT],
        fontsize=8.5,
        ha="center",
        va="bottom",
        transform=axes.transAxes,
    )


def _common_entries(
    columns: Sequence[DataColumn], rows: Iterable[str], table: ResultTable
) -> list[Line2D]:
    """What a legend of these rows and data sets has to explain, where it occurs."""
    entries = []
    if any(column.trivial is not None for column in columns):
        entries.append(
            entry(label="best trivial rule", color=plt.rcParams[FAINT], linestyle=DOTTED)
        )
    cells = product(rows, columns)
    if any(table.cells[row, column.key].is_collapsed for row, column in cells):
        ink = plt.rcParams[INK]
        entries.append(entry(label="collapsed in every run", color=ink, marker="x", linestyle=""))
    return entries


# -- learning curves -------------------------------------------------------------------------------


def draw_curves(table: ResultTable) -> Picture | None:
    """Draw the held-out loss of each pre-training run against tokens; None without a curve.

    Of many arms the first ones are drawn.
    """
    labels = arm_labels(table)
    arms = list(labels)[:MOST_DRAWN]
    runs = []
    for run in table.runs.pretrain:
        if run.name in arms and run.curves.get("validation/loss"):
            runs.append(run)
    if not runs:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
    axes.set(xlabel="tokens seen", ylabel="held-out loss (nats a predicted token)")
    axes.xaxis.set_major_formatter(EngFormatter())
    entries = []
    by_arm = group_by(runs, lambda run: run.name)
    colours = _arm_colours(table)
    for arm in arms:
        if arm in by_arm:
            colour = colours[arm]
            _draw_losses(axes, by_arm[arm], colour)
            entries.append(entry(label=labels[arm], color=colour))
    if len(labels) > len(arms):
        more = f"and {len(labels) - len(arms)} arms more, not drawn"
        entries.append(entry(label=more, linestyle=""))
    entries += _draw_reference_losses(axes, runs)
    axes.set_xlim(0.0, axes.get_xlim()[1])
    entries += _draw_bands(axes, runs)
    return save_picture(figure, entries, 3)


def _draw_losses(axes: Axes, runs: Iterable[Record], colour: str) -> None:
    for run in runs:
        tokens, losses = zip(*run.curves["validation/loss"], strict=True)
        # a line through one point has no length
        marker = "o" if len(tokens) == 1 else ""
        axes.plot(
            tokens, losses, color=colour, linewidth=1.6, alpha=0.9, marker=marker, markersize=4
        )


def _draw_bands(axes: Axes, runs: Iterable[Record]) -> list[Line2D]:
    """Shade where another seed of the runs' kinds is expected, as far as published runs tell."""
    look = {"color": plt.rcParams[FAINT], "alpha": 0.25}
    bands = {id(match.band): match.band for match in filter(None, map(match_of, runs))}
    for band in bands.values():
        lows, highs = zip(*map(expected_range, band.losses), strict=True)
        axes.fill_between(band.tokens, lows, highs, linewidth=0, **look)
    if not bands:
        return []
    return [entry(label="another seed is expected here", linewidth=6, **look)]


def _draw_reference_losses(axes: Axes, runs: Sequence[Record]) -> list[Line2D]:
    """Draw what frequencies alone reach, and what no model can be below, where that is known."""
    heights = {}
    # Masks that leave words in place make the loss without context lower, as `curves` says it.
    for same_masks in group_by(runs, same_fraction).values():
        losses = [loss for loss in map(context_free, same_masks) if loss is not None]
        if losses:
            loss = fmean(losses)
            heights[f"frequencies alone ({loss:.2f})"] = loss
    bounds = known_heights(runs)
    entries = []
    for label, height in (heights | bounds).items():
        linestyle = DOTTED if label in bounds else DASHED
        axes.axhline(height, color=plt.rcParams[INK], linewidth=1.2, linestyle=linestyle)
        entries.append(
            entry(label=label, color=plt.rcParams[INK], linewidth=1.2, linestyle=linestyle)
        )
    return entries


def known_heights(runs: Iterable[Record]) -> dict[str, float]:
    """Label -> loss that no model can be below, for every kind of model whose bound is known."""
    heights = {}
    for run in runs:
        bound = LossBound.from_run(run)
        if bound is not None:
            kind = bound.reader.replace("_", "-")
            heights[f"no {kind} below {bound.nats:.2f}"] = bound.nats
    return heights


# -- scores along pre-training ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """The points of an arm along its pre-training."""

    series: CheckpointSeries
    colour: str
    # fraction (0: the floor) -> its place on the axis
    places: Mapping[float, float]

    @property
    def rows(self) -> dict[float, str]:
        """Fraction -> row; the floor, before any step, comes first."""
        rows = dict(self.series.rows)
        return {0.0: self.series.floor} | rows if self.series.floor else rows


def draw_lines(table: ResultTable) -> Picture | None:
    """Draw scores with intervals along pre-training, a line an arm; None without any.

    Where there are two lines, their difference stands below each panel.
    """
    columns = [column for column in table.with_results if column.tasks]
    has_tokens = all(series.reached(series.rows) for series in table.checkpoint_series)
    lines = _lines(table, has_tokens=has_tokens)
    if not lines or not columns:
        return None
    heights = [SCORES_HEIGHT]
    contrasts = {}
    if len(lines) == 2:
        heights.append(DIFFERENCES_HEIGHT)
        contrasts = {column.key: _differences(lines, column, table) for column in columns}
    across = min(PANELS_ACROSS, len(columns))
    down = math.ceil(len(columns) / PANELS_ACROSS)
    figure, grid = plt.subplots(
        down * len(heights),
        across,
        squeeze=False,
        layout="constrained",
        figsize=(WIDTH, 0.5 + down * (sum(heights) + 0.6)),
        height_ratios=heights * down,
    )
    significant = _significant(contrasts.values())
    for number, column in enumerate(columns):
        # Where differences stand below the scores, a data set has two panels.
        first_panel = len(heights) * (number // across)
        panels = grid[first_panel : first_panel + len(heights), number % across]
        for line in lines:
            _draw_line(panels[0], line, table, column)
        _finish_panel(panels[0], column)
        panels[0].set_ylabel(with_direction(column.unit, falls=column.falls))
        panels[0].set_xlim(left=-EDGE * panels[0].get_xlim()[1])
        if contrasts:
            _draw_differences(panels[1], lines, column, contrasts[column.key], significant)
        _scale(list(panels), has_tokens=has_tokens)
    return save_picture(figure, _line_entries(lines, columns, table), 4)


def _scale(panels: Sequence[Axes], *, has_tokens: bool) -> None:
    for axes in panels:
        axes.set_xlim(panels[0].get_xlim())
        axes.xaxis.set_major_locator(MaxNLocator(5))
        if has_tokens:
            axes.xaxis.set_major_formatter(EngFormatter())
    unit = "tokens seen in pre-training" if has_tokens else "percent of pre-training's steps"
    panels[-1].set_xlabel(unit)


def _lines(table: ResultTable, *, has_tokens: bool) -> list[_Line]:
    """The lines, each in the colour of the first row of its arm.

    They are moved a little from each other, so that their intervals do not cover each other.
    """
    series = table.checkpoint_series
    first_rows = {row.arm: row for row in reversed(table.experiment.rows)}
    amounts = []
    for one_arm in series:
        percents = {fraction: 100.0 * fraction for fraction in one_arm.rows}
        amounts.append(one_arm.reached(one_arm.rows) if has_tokens else percents)
    furthest = max((max(amount_of.values()) for amount_of in amounts), default=0.0)
    lines = []
    for index, (one_arm, amount_of) in enumerate(zip(series, amounts, strict=True)):
        # Two lines: half of APART to the left, half to the right.
        shift = APART * furthest * (index - (len(series) - 1) / 2)
        shifted = {}
        for fraction, amount in ({0.0: 0.0} | amount_of).items():
            shifted[fraction] = amount + shift
        lines.append(_Line(one_arm, _row_colour(table, first_rows[one_arm.arm]), shifted))
    return lines


def _differences(
    lines: Sequence[_Line], column: DataColumn, table: ResultTable
) -> dict[float, Contrast]:
    """Fraction -> first line - second, where both have points that may be compared."""
    first, second = (line.series.rows for line in lines)
    contrasts = {}
    for fraction in first.keys() & second.keys():
        contrast = contrast_rows(table, first[fraction], second[fraction], column)
        if contrast.exclusions.incomparability is None:
            contrasts[fraction] = contrast
    return dict(sorted(contrasts.items()))


def _significant(contrasts: Iterable[Mapping[float, Contrast]]) -> set[ContrastKey]:
    """The differences that are not zero, corrected for the whole picture."""
    tested = chain.from_iterable(by_fraction.values() for by_fraction in contrasts)
    corrected = fallback_procedure({"": list(tested)}).corrected
    return {key for key, p_value in corrected.items() if p_value < SIGNIFICANCE}


def _draw_line(axes: Axes, line: _Line, table: ResultTable, column: DataColumn) -> None:
    """Draw a line through its points; the floor, before any step, is a hollow one."""
    means = {}
    for fraction, row in line.rows.items():
        cell = table.cells[row, column.key]
        if cell.estimate is None:
            continue
        x = line.places[fraction]
        face = None if fraction else plt.rcParams[PAPER]
        _draw_point(
            axes, x, cell.estimate, colour=line.colour, is_collapsed=cell.is_collapsed, face=face
        )
        means[x] = cell.estimate.mean
    axes.plot(
        list(means), list(means.values()), color=line.colour, linewidth=1.4, alpha=0.8, zorder=1.5
    )


def _draw_differences(
    axes: Axes,
    lines: Sequence[_Line],
    column: DataColumn,
    contrasts: Mapping[float, Contrast],
    significant: set[ContrastKey],
) -> None:
    """Draw first - second: a filled dot where it is not zero."""
    ink = plt.rcParams[INK]
    faint = plt.rcParams[FAINT]
    first, second = lines
    axes.axhline(0.0, color=faint, linewidth=1.0)
    for fraction, contrast in contrasts.items():
        if contrast.difference is None:
            continue
        x = fmean((first.places[fraction], second.places[fraction]))
        is_filled = contrast.key in significant and not contrast.context.below_baseline
        face = ink if is_filled else plt.rcParams[PAPER]
        _draw_point(axes, x, contrast.difference, colour=ink, face=face)
    title = f"{first.series.name} {MINUS} {second.series.name}, {column.unit_of_difference}"
    axes.set_title(title, fontsize=9, color=faint)


def _line_entries(
    lines: Sequence[_Line], columns: Sequence[DataColumn], table: ResultTable
) -> list[Line2D]:
    entries = []
    for line in lines:
        entries.append(entry(label=line.series.name, color=line.colour, marker="o"))
    floors = product([line.series.floor for line in lines if line.series.floor], columns)
    if any(table.cells[floor, column.key].estimate for floor, column in floors):
        entries.append(
            entry(
                label="before any step",
                color=plt.rcParams[INK],
                marker="o",
                markerfacecolor=plt.rcParams[PAPER],
                linestyle="",
            )
        )
    rows = chain.from_iterable(line.series.rows.values() for line in lines)
    return entries + _common_entries(columns, list(rows), table)


# -- scores of layers ------------------------------------------------------------------------------


def draw_layers(table: ResultTable) -> Picture | None:
    """Draw a measure's score of each layer with intervals, a line a row; None without any."""
    panels: list[tuple[DataColumn, dict[str, dict[int, Estimate]]]] = []
    for column in table.with_results:
        lines = {row: _layer_estimates(table, row, column) for row in table.rows}
        if any(lines.values()):
            panels.append((column, lines))
    if not panels:
        return None
    across = min(PANELS_ACROSS, len(panels))
    down = math.ceil(len(panels) / PANELS_ACROSS)
    size = (WIDTH, 0.9 + 2.9 * down)
    figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    entries = {}
    for axes, (column, lines) in zip(grid.flat, panels, strict=False):
        for index, row in enumerate(table.experiment.rows):
            if not lines[row.name]:
                continue
            look: dict[str, Any] = {"color": _row_colour(table, row)}
            look["marker"] = MARKERS[index % len(MARKERS)]
            _draw_layer_line(axes, lines[row.name], look)
            entries[row.name] = entry(label=row.label, **look)
        _finish_panel(axes, column)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("layer (0: the embeddings)")
        axes.set_ylabel(with_direction(column.unit, falls=column.falls))
    return save_picture(figure, list(entries.values()), 4)


def _draw_layer_line(
    axes: Axes, estimates: Mapping[int, Estimate], look: Mapping[str, Any]
) -> None:
    means = [of_layer.mean for of_layer in estimates.values()]
    reaches = [of_layer.reach or 0.0 for of_layer in estimates.values()]
    axes.errorbar(list(estimates), means, reaches, capsize=3, linewidth=1.4, **look)


def _layer_estimates(table: ResultTable, row: str, column: DataColumn) -> dict[int, Estimate]:
    """Layer -> the mean over a row's runs of its score by the column's metric, METRIC/layer_N."""
    scores: dict[int, dict[Seeds, float]] = {}
    for run in table.runs_on(row, column.task):
        for key, value in run.values.items():
            metric, _, layer = key.rpartition("/layer_")
            if metric == column.metric:
                scores.setdefault(int(layer), {})[seeds_of(run)] = value
    of_one_encoder = table.row(row).fixed_encoder
    estimates = {}
    for number, of_runs in sorted(scores.items()):
        estimates[number] = estimate(of_runs, of_one_encoder=of_one_encoder)
    return estimates
