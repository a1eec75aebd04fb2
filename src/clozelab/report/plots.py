"""How the report's pictures look, and how they are saved: as PNG and as SVG, for a light and a dark page.

A colour means a pre-trained encoder, the same one in every picture; what has no pre-training is grey.

The pictures that every report has: learning curves against tokens, and the table as dots with intervals.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from clozelab.verdicts.experiment import PERCENT, Row
from clozelab.verdicts.table import DataColumn, Table

if TYPE_CHECKING:
    from clozelab.runs.record import Record

matplotlib.use("Agg")


WIDTH = 10.5  # inches; the page is about a hundred pixels an inch wide
# Okabe and Ito's hues, told apart by colour-blind readers too; darker on white and lighter on black, so that text in
# these colours can be read.
COLOURS = {
    "light": ("#0072b2", "#c24e00", "#007a59", "#a8487f", "#8a6a00", "#3d7fa6"),
    "dark": ("#56b4e9", "#ff9147", "#2fc79b", "#e398c2", "#e8b93c", "#a5d8f5"),
}
STYLES: dict[str, dict[str, str]] = {
    "light": {"paper": "#ffffff", "ink": "#1a1a1a", "faint": "#5f6570"},
    "dark": {"paper": "#16181c", "ink": "#e6e6e6", "faint": "#a0a6b0"},
}
BASE_STYLE = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "ytick.left": False,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "clozelab",
}


@dataclass(frozen=True)
class Picture:
    """One drawing in two formats; the same data give the same bytes."""

    png: bytes
    svg: bytes


def saved(figure: Figure) -> Picture:
    """Both formats of a figure, which is closed."""
    picture = Picture(*(_bytes(figure, kind, metadata) for kind, metadata in (("png", None), ("svg", {"Date": None}))))
    plt.close(figure)
    return picture


def _bytes(figure: Figure, kind: str, metadata: dict[str, Any] | None) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=metadata)
    return buffer.getvalue()


def write_title(axes: Axes, column: DataColumn, style: str) -> None:
    """The name of a data set over its panel, and below it what it is where it is not the paper's."""
    axes.set_title(column.heading, fontsize=10, fontweight="bold", pad=20 if column.role else 6)
    if column.role:
        faint = STYLES[style]["faint"]
        axes.text(0.5, 1.02, column.role, color=faint, fontsize=8.5, ha="center", va="bottom", transform=axes.transAxes)


def row_colour(rows: Sequence[Row], row: Row, style: str) -> str:
    """Of a row of the table; `rows` are all of it."""
    arms = list(dict.fromkeys(one.arm for one in rows if one.arm is not None))
    return STYLES[style]["faint"] if row.arm is None else colour_of(arms.index(row.arm), style)


def colour_of(index: int, style: str) -> str:
    return COLOURS[style][index % len(COLOURS[style])]


def settings(style: str) -> Any:
    """What matplotlib has to be set to while a picture is drawn and saved."""
    colours = STYLES[style]
    return {
        **BASE_STYLE,
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), colours["paper"]),
        **dict.fromkeys(("text.color", "axes.labelcolor", "ytick.color"), colours["ink"]),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "grid.color"), colours["faint"]),
    }


LABEL_GAP = 0.055  # of the axes' height: two labels closer than that would overlap
LEAST_PERCENT = 2.0  # that an axis of percents spans: on a narrower one equal scores would get ticks of hundredths


def draw_curves(runs: Sequence[Record], labels: dict[str, str], style: str) -> Picture | None:
    """Held-out loss of each pre-training run against tokens, or None where no run has a curve.

    Args:
        runs: of every arm and seed.
        labels: arm -> what stands at the end of its curves; other arms go by their own name.
        style: light or dark.
    """
    drawn = [run for run in runs if run.curves.get("validation/loss")]
    if not drawn:
        return None
    arms = list(dict.fromkeys([*labels, *(run.name for run in drawn)]))
    ends: dict[str, list[float]] = {}
    furthest = max(tokens for run in drawn for tokens, _ in run.curves["validation/loss"])
    with plt.rc_context(settings(style)):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.6), layout="constrained")
        for run in drawn:
            tokens, losses = zip(*run.curves["validation/loss"], strict=True)
            colour = colour_of(arms.index(run.name), style)
            axes.plot(tokens, losses, color=colour, linewidth=1.6, alpha=0.9)
            # Leads the eye to the label where a run has not come as far as the others.
            axes.plot([tokens[-1], furthest], [losses[-1]] * 2, color=colour, linewidth=1.0, linestyle=(0, (1, 3)))
            ends.setdefault(run.name, []).append(losses[-1])
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


def known_heights(runs: Sequence[Record]) -> dict[str, float]:
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
    name = "ours" if has_paper else "mean"
    entries = [Line2D([], [], color=ink, marker="o", label=f"{name}{unit}, with 95 % interval")]
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
