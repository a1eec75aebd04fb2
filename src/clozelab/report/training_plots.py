"""The report's pictures along pre-training: learning curves, and scores of encoders kept on the
way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import fmean

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from clozelab.analysis.contrasts import Contrast, ContrastKey, contrast_rows
from clozelab.analysis.multiplicity import fallback_procedure
from clozelab.analysis.scores import CheckpointSeries, DataColumn
from clozelab.analysis.statistics import SIGNIFICANCE
from clozelab.report.plots import (
    DOTTED,
    FAINT,
    INK,
    PANELS_ACROSS,
    PAPER,
    WIDTH,
    Picture,
    colour_of,
    common_entries,
    draw_point,
    finish_panel,
    row_colour,
    saved,
)
from clozelab.report.summaries import LossBound
from clozelab.results.table import ResultTable
from clozelab.runs.record import Record
from clozelab.text.formatting import MINUS

DASHED = (0, (4, 3))
LEADING = (0, (1, 3))
# of the axes' height: two labels closer than that would overlap
LABEL_GAP = 0.055
# how often labels push their neighbours; they have long come to rest by then
MOST_PUSHES = 200
# of the axis: how far intervals of two lines at one place are drawn from each other
APART = 0.006
# of the axis: what is left of zero, so that points there are whole
EDGE = 0.015
# inches: panels of scores, and of differences below them
SCORES_HEIGHT = 3.0
DIFFERENCES_HEIGHT = 1.7


# -- learning curves -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Label:
    """A text beside the axes, at the height in nats of what it names."""

    height: float
    text: str
    colour: str


def draw_curves(runs: Sequence[Record], arm_labels: Mapping[str, str]) -> Picture | None:
    """Draw the held-out loss of each pre-training run against tokens; None without a curve.

    An arm stands by its label, or by its name where it has none.
    """
    drawn = [run for run in runs if run.curves.get("validation/loss")]
    if not drawn:
        return None
    arms = list(dict.fromkeys([*arm_labels, *(run.name for run in drawn)]))
    colours = {arm: colour_of(index) for index, arm in enumerate(arms)}
    figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
    axes.set(xlabel="tokens seen", ylabel="held-out loss (nats a predicted token)")
    axes.xaxis.set_major_formatter(EngFormatter())

    last_losses = _draw_losses(axes, drawn, colours)
    labels: list[_Label] = []
    for arm in arms:
        if arm in last_losses:
            label = arm_labels.get(arm, arm)
            labels.append(_Label(fmean(last_losses[arm]), label, colours[arm]))
    labels += _draw_reference_losses(axes, drawn)
    axes.set_xlim(0.0, _furthest(drawn))
    _write_labels(axes, labels)
    return saved(figure)


def _furthest(runs: Iterable[Record]) -> int:
    """The most tokens that a run has seen."""
    last_points = [max(run.curves["validation/loss"]) for run in runs]
    return max(tokens for tokens, _ in last_points)


def _draw_losses(
    axes: Axes, runs: Sequence[Record], colours: Mapping[str, str]
) -> dict[str, list[float]]:
    """Draw the curves; returns arm -> the last loss of each of its runs."""
    furthest = _furthest(runs)
    last_losses: dict[str, list[float]] = {}
    for run in runs:
        tokens, losses = zip(*run.curves["validation/loss"], strict=True)
        colour = colours[run.name]
        # a line through one point has no length
        marker = "o" if len(tokens) == 1 else ""
        axes.plot(
            tokens, losses, color=colour, linewidth=1.6, alpha=0.9, marker=marker, markersize=4
        )
        # Leads the eye to the label where a run has not come as far as the others.
        last_loss = losses[-1]
        axes.plot(
            [tokens[-1], furthest],
            [last_loss, last_loss],
            color=colour,
            linewidth=1.0,
            linestyle=LEADING,
        )
        last_losses.setdefault(run.name, []).append(last_loss)
    return last_losses


def _draw_reference_losses(axes: Axes, runs: Sequence[Record]) -> list[_Label]:
    """Draw what frequencies alone reach, and what no model can be below, where that is known."""
    ink = plt.rcParams[INK]
    labels: list[_Label] = []
    unigram_losses = [run.facts["unigram_loss"] for run in runs if "unigram_loss" in run.facts]
    if unigram_losses:
        height = fmean(unigram_losses)
        axes.axhline(height, color=ink, linestyle=DASHED, linewidth=1.0)
        labels.append(_Label(height, f"frequencies alone ({height:.2f})", ink))
    for text, height in known_heights(runs).items():
        axes.axhline(height, color=ink, linestyle=DOTTED, linewidth=1.2)
        labels.append(_Label(height, text, ink))
    return labels


def known_heights(runs: Iterable[Record]) -> dict[str, float]:
    """Label -> loss that no model can be below, for every kind of model whose bound is known."""
    heights: dict[str, float] = {}
    for run in runs:
        bound = LossBound.of(run)
        if bound is not None:
            kind = bound.reader.replace("_", "-")
            heights[f"no {kind} below {bound.nats:.2f}"] = bound.nats
    return heights


def _write_labels(axes: Axes, labels: Sequence[_Label]) -> None:
    """Write labels to the right of the axes, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    # as shares of the axes' height
    heights = spread([(label.height - low) / (high - low) for label in labels], LABEL_GAP)
    for height, label in zip(heights, labels, strict=True):
        axes.text(
            1.01, height, label.text, color=label.colour, transform=axes.transAxes, va="center"
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, moved as little as needed for neighbours to be `gap` apart, in their order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for _ in range(MOST_PUSHES):
        for below, above in pairwise(order):
            overlap = max(0.0, gap - (placed[above] - placed[below]))
            placed[below] -= overlap / 2
            placed[above] += overlap / 2
    return placed


# -- scores along pre-training ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Differences:
    """What two lines differ by where both have points, corrected for the whole picture."""

    # key of the data set -> fraction of pre-training -> first - second
    contrasts: Mapping[str, Mapping[float, Contrast]]
    corrected: Mapping[ContrastKey, float]

    def is_significant(self, contrast: Contrast) -> bool:
        p_value = self.corrected.get(contrast.key, 1.0)
        return p_value < SIGNIFICANCE and not contrast.context.below_floor


def draw_lines(lines: Sequence[CheckpointSeries], table: ResultTable) -> Picture | None:
    """Draw scores with intervals along pre-training, a line an arm; None without any.

    Where there are two lines, their difference stands below each panel.
    """
    columns = [column for column in table.with_results if column.tasks]
    if not lines or not columns:
        return None
    has_differences = len(lines) == 2
    heights = [SCORES_HEIGHT, DIFFERENCES_HEIGHT] if has_differences else [SCORES_HEIGHT]
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
    colours = _line_colours(lines, table)
    places = _places(lines)
    differences = _differences(lines, columns, table) if has_differences else None
    for number, column in enumerate(columns):
        first_panel = len(heights) * (number // across)
        panels = grid[first_panel : first_panel + len(heights), number % across]
        _draw_scores(panels[0], lines, colours, places, table, column)
        _scale(panels[0], lines)
        if differences is not None:
            _draw_differences(panels[1], lines, places, differences, column)
            _scale(panels[1], lines)
            panels[1].set_xlim(panels[0].get_xlim())
        panels[-1].set_xlabel(_x_label(lines))
    grid[0, 0].set_ylabel("percent")
    return saved(figure, _line_entries(lines, colours, columns, table), ncols=4)


def _line_colours(lines: Sequence[CheckpointSeries], table: ResultTable) -> dict[str, str]:
    """Line -> the colour of the first row of its arm."""
    first_rows = {row.arm: row for row in reversed(table.experiment.rows)}
    return {line.name: row_colour(table, first_rows[line.arm]) for line in lines}


def _has_tokens(lines: Sequence[CheckpointSeries]) -> bool:
    """Whether all lines know how many tokens they had seen at each of their points."""
    return all(line.reached(line.rows) for line in lines)


def _x_label(lines: Sequence[CheckpointSeries]) -> str:
    if _has_tokens(lines):
        return "tokens seen in pre-training"
    return "percent of pre-training's steps"


def _places(lines: Sequence[CheckpointSeries]) -> dict[str, dict[float, float]]:
    """Line -> fraction (0: the floor) -> its place on the axis.

    Lines are moved a little from each other, so that their intervals do not cover each other.
    """
    has_tokens = _has_tokens(lines)
    amounts: dict[str, dict[float, float]] = {}
    for line in lines:
        amounts[line.name] = {fraction: 100.0 * fraction for fraction in line.rows}
        if has_tokens:
            amounts[line.name] = line.reached(line.rows)
    furthest = max(max(by_fraction.values()) for by_fraction in amounts.values())

    places: dict[str, dict[float, float]] = {}
    for index, line in enumerate(lines):
        shift = APART * furthest * (index - (len(lines) - 1) / 2)
        by_fraction = {0.0: 0.0, **amounts[line.name]}
        places[line.name] = {key: amount + shift for key, amount in by_fraction.items()}
    return places


def _differences(
    lines: Sequence[CheckpointSeries], columns: Sequence[DataColumn], table: ResultTable
) -> _Differences:
    first, second = lines
    contrasts: dict[str, dict[float, Contrast]] = {}
    tested: list[Contrast] = []
    for column in columns:
        by_fraction = contrasts.setdefault(column.key, {})
        for fraction, row in first.rows.items():
            if fraction in second.rows:
                contrast = contrast_rows(table, row, second.rows[fraction], column)
                by_fraction[fraction] = contrast
                if not contrast.obstacles.incomparability:
                    tested.append(contrast)
    return _Differences(contrasts, fallback_procedure({"": tested}).corrected)


def _draw_scores(
    axes: Axes,
    lines: Sequence[CheckpointSeries],
    colours: Mapping[str, str],
    places: Mapping[str, Mapping[float, float]],
    table: ResultTable,
    column: DataColumn,
) -> None:
    """Draw each line through its points; the floor, before any step, is a hollow one."""
    for line in lines:
        colour = colours[line.name]
        rows = dict(line.rows)
        if line.floor:
            rows = {0.0: line.floor, **rows}
        means: list[tuple[float, float]] = []
        for fraction, row in rows.items():
            cell = table.cells[row, column.key]
            if cell.estimate is None:
                continue
            x = places[line.name][fraction]
            draw_point(
                axes,
                x,
                cell.estimate,
                colour=colour,
                is_collapsed=cell.is_collapsed,
                face=None if fraction else plt.rcParams[PAPER],
            )
            means.append((x, cell.estimate.mean))
        if means:
            xs, ys = zip(*means, strict=True)
            axes.plot(xs, ys, color=colour, linewidth=1.4, alpha=0.8, zorder=1.5)
    finish_panel(axes, column)


def _draw_differences(
    axes: Axes,
    lines: Sequence[CheckpointSeries],
    places: Mapping[str, Mapping[float, float]],
    differences: _Differences,
    column: DataColumn,
) -> None:
    """Draw first - second where they may be compared: a filled dot where it is not zero."""
    ink = plt.rcParams[INK]
    faint = plt.rcParams[FAINT]
    first, second = lines
    axes.axhline(0.0, color=faint, linewidth=1.0)
    for fraction, contrast in differences.contrasts[column.key].items():
        if contrast.difference is None or contrast.obstacles.incomparability:
            continue
        x = fmean((places[first.name][fraction], places[second.name][fraction]))
        face = ink if differences.is_significant(contrast) else plt.rcParams[PAPER]
        draw_point(axes, x, contrast.difference, colour=ink, face=face)
    axes.set_title(f"{first.name} {MINUS} {second.name}, points", fontsize=9, color=faint)


def _scale(axes: Axes, lines: Sequence[CheckpointSeries]) -> None:
    axes.set_xlim(left=-EDGE * axes.get_xlim()[1])
    if _has_tokens(lines):
        axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _line_entries(
    lines: Sequence[CheckpointSeries],
    colours: Mapping[str, str],
    columns: Sequence[DataColumn],
    table: ResultTable,
) -> list[Line2D]:
    entries = [
        Line2D([], [], color=colours[line.name], marker="o", label=line.name) for line in lines
    ]
    floors = product([line.floor for line in lines if line.floor], columns)
    if any(table.cells[floor, column.key].estimate for floor, column in floors):
        entries.append(
            Line2D(
                [],
                [],
                color=plt.rcParams[INK],
                marker="o",
                markerfacecolor=plt.rcParams[PAPER],
                linestyle="",
                label="before any step",
            )
        )
    rows: list[str] = []
    for line in lines:
        rows += line.rows.values()
    return entries + common_entries(columns, rows, table)
