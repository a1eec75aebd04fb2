"""The pictures that every report has: learning curves against tokens, and the table as dots with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from clozelab.ledger.collect import PretrainRun
from clozelab.ledger.reporting.columns import DataColumn
from clozelab.ledger.reporting.drawing import (
    STYLES,
    WIDTH,
    Picture,
    colour_of,
    row_colour,
    saved,
    settings,
    write_title,
)
from clozelab.ledger.reporting.experiment import PERCENT
from clozelab.ledger.reporting.table import Table

LABEL_GAP = 0.055  # of the axes' height: two labels closer than that would overlap
LEAST_PERCENT = 2.0  # that an axis of percents spans: on a narrower one equal scores would get ticks of hundredths


def draw_curves(runs: Sequence[PretrainRun], labels: dict[str, str], style: str) -> Picture | None:
    """Held-out loss of each pre-training run against tokens, or None where no run has a curve.

    Args:
        runs: of every arm and seed.
        labels: arm -> what stands at the end of its curves; other arms go by their own name.
        style: light or dark.
    """
    drawn = [run for run in runs if run.curves.get("validation/loss")]
    if not drawn:
        return None
    arms = list(dict.fromkeys([*labels, *(run.arm for run in drawn)]))
    ends: dict[str, list[float]] = {}
    furthest = max(tokens for run in drawn for tokens, _ in run.curves["validation/loss"])
    with plt.rc_context(settings(style)):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
        for run in drawn:
            tokens, losses = zip(*run.curves["validation/loss"], strict=True)
            colour = colour_of(arms.index(run.arm), style)
            axes.plot(tokens, losses, color=colour, linewidth=1.6, alpha=0.9)
            # Leads the eye to the label where a run has not come as far as the others.
            axes.plot([tokens[-1], furthest], [losses[-1]] * 2, color=colour, linewidth=1.0, linestyle=(0, (1, 3)))
            ends.setdefault(run.arm, []).append(losses[-1])
        marks = [
            (sum(ends[arm]) / len(ends[arm]), labels.get(arm, arm), colour_of(index, style))
            for index, arm in enumerate(arms)
            if arm in ends
        ]
        entropies = [run.facts["unigram_entropy"] for run in drawn if "unigram_entropy" in run.facts]
        if entropies:
            height = sum(entropies) / len(entropies)
            axes.axhline(height, color=STYLES[style]["ink"], linestyle=(0, (4, 3)), linewidth=1.0)
            marks.append((height, f"unigram entropy ({height:.2f})", STYLES[style]["ink"]))
        for text, height in known_heights(drawn).items():
            axes.axhline(height, color=STYLES[style]["ink"], linestyle=(0, (1, 2)), linewidth=1.2)
            marks.append((height, text, STYLES[style]["ink"]))
        axes.set_xlabel("tokens seen")
        axes.set_ylabel("held-out loss (nats a predicted token)")
        axes.set_xlim(0.0, furthest)
        axes.xaxis.set_major_formatter(EngFormatter())
        _label_ends(axes, marks)
        return saved(figure)


def known_heights(runs: Sequence[PretrainRun]) -> dict[str, float]:
    """Label -> loss that no model can be below, of every kind of model, where the corpus's generator knows it."""
    known = [run.facts["known_loss"] for run in runs if run.facts.get("known_loss")]
    return {f"no {one['reader'].replace('_', '-')} below {one['nats']:.2f}": one["nats"] for one in known}


def _label_ends(axes: Any, marks: Sequence[tuple[float, str, str]]) -> None:
    """Write (height, text, colour) beside the right edge, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    heights = spread([(height - low) / (high - low) for height, _, _ in marks], LABEL_GAP)
    for height, (_, text, colour) in zip(heights, marks, strict=True):
        axes.text(1.01, height, text, color=colour, transform=axes.transAxes, va="center")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, moved as little as needed for neighbours to be `gap` apart; their order stays."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed = list(heights)
    for _ in range(200):
        for below, above in pairwise(order):
            overlap = max(0.0, gap - (placed[above] - placed[below]))
            placed[below] -= overlap / 2
            placed[above] += overlap / 2
    return placed


def draw_table(table: Table, style: str) -> Picture | None:
    """Every row on every data set as a dot with its interval; the paper's value as a hollow diamond; None for none."""
    rows = table.experiment.rows
    columns = sorted(table.with_results, key=lambda one: not one.is_paper)
    if not columns:
        return None
    down = -(-len(columns) // 5)
    across = -(-len(columns) // down)
    with plt.rc_context(settings(style)):
        size = (WIDTH, 0.6 + (0.9 + 0.3 * len(rows)) * down)
        figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
        for axes, column in zip(grid.flat, columns, strict=False):
            _draw_column(axes, table, column, style)
        for axes in list(grid.flat)[len(columns) :]:
            axes.set_visible(False)
        grid[0, 0].set_yticks(range(len(rows)), [row.label for row in rows])
        grid[0, 0].set_ylim(len(rows) - 0.5, -0.5)
        collapsed = any(table.cells[row.name, one.key].is_collapsed for row in rows for one in columns)
        has_paper = any(table.paper_value(row.name, one) is not None for row in rows for one in columns)
        figure.legend(
            handles=_legend(columns, style, collapsed, has_paper), loc="outside lower center", ncols=3, fontsize=9
        )
        return saved(figure)


def _draw_column(axes: Any, table: Table, column: DataColumn, style: str) -> None:
    faint = STYLES[style]["faint"]
    for height, row in enumerate(table.experiment.rows):
        colour = row_colour(table.experiment.rows, row, style)
        cell = table.cells[row.name, column.key]
        estimate = cell.estimate
        if estimate is None:
            word = "missing" if column.task or cell.missing else "\u2013"
            axes.text(
                0.03, height, word, color=faint, backgroundcolor=STYLES[style]["paper"], fontsize=8, va="center",
                transform=axes.get_yaxis_transform(),
            )  # fmt: skip
        elif cell.is_collapsed:
            axes.plot(estimate.mean, height, marker="x", markersize=6, color=colour)
        else:
            axes.errorbar(
                estimate.mean, height, xerr=estimate.half_width, fmt="o", color=colour, markersize=6, capsize=3,
                linewidth=1.6,
            )  # fmt: skip
        paper = table.paper_value(row.name, column)
        if paper is not None:
            axes.plot(paper, height, marker="D", markersize=6, markerfacecolor="none", markeredgecolor=colour)
    if column.majority is not None:
        axes.axvline(column.majority, color=faint, linestyle=(0, (1, 2)), linewidth=1.2)
    if column.unit == PERCENT:
        _cut_at_percent(axes, table, column, style)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=column.unit == PERCENT))
    write_title(axes, column, style)


def _cut_at_percent(axes: Any, table: Table, column: DataColumn, style: str) -> None:
    """Show what a percentage can be; an interval that goes on ends in an arrow."""
    low, high = axes.get_xlim()
    spare = max(0.0, LEAST_PERCENT - (high - low)) / 2
    low, high = (min(max(edge, -2.0), 102.0) for edge in (low - spare, high + spare))
    axes.set_xlim(low, high)
    for height, row in enumerate(table.experiment.rows):
        cell = table.cells[row.name, column.key]
        if cell.estimate is None or cell.is_collapsed or not cell.estimate.half_width:
            continue
        colour = row_colour(table.experiment.rows, row, style)
        ends = (cell.estimate.mean - cell.estimate.half_width, cell.estimate.mean + cell.estimate.half_width)
        for edge, marker, is_cut in ((low, "<", ends[0] < low), (high, ">", ends[1] > high)):
            if is_cut:
                axes.plot(edge, height, marker=marker, markersize=5, color=colour, clip_on=False)


def _legend(columns: Sequence[DataColumn], style: str, collapsed: bool, has_paper: bool) -> list[Line2D]:
    ink, faint = STYLES[style]["ink"], STYLES[style]["faint"]
    unit = ", percent" if all(column.unit == PERCENT for column in columns) else ""
    entries = [Line2D([], [], color=ink, marker="o", label=f"ours{unit}, with 95 % interval")]
    if has_paper:
        entries.append(Line2D([], [], color=ink, marker="D", markerfacecolor="none", linestyle="", label="the paper"))
    if any(column.majority is not None for column in columns):
        entries.append(Line2D([], [], color=faint, linestyle=(0, (1, 2)), label="always the most frequent label"))
    if collapsed:
        entries.append(Line2D([], [], color=ink, marker="x", linestyle="", label="collapsed in every run"))
    return entries


def draw_two(curves: Sequence[tuple[str, Sequence[tuple[int, float]]]], name: str, style: str = "light") -> bytes:
    """Curves of (label, [(tokens, value)]) on one pair of axes, as PNG; `name` is what the values are."""
    with plt.rc_context(settings(style)):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
        for index, (label, curve) in enumerate(curves):
            tokens, values = zip(*curve, strict=True)
            axes.plot(
                tokens, values, color=colour_of(index, style), linewidth=1.6, marker="o", markersize=3, label=label
            )
        axes.set_xlabel("tokens seen")
        axes.set_ylabel(name)
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.legend()
        return saved(figure).png
