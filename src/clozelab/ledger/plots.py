"""The report's two pictures: learning curves against tokens, and the table as dots with intervals.

Each is drawn twice, for a light and a dark page.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from clozelab.ledger.collect import PretrainRun
from clozelab.ledger.table import DataColumn, Table

# Okabe and Ito's colours: told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STYLES: dict[str, dict[str, Any]] = {
    "light": {"figure.facecolor": "#ffffff", "axes.facecolor": "#ffffff", "text.color": "#1a1a1a"},
    "dark": {"figure.facecolor": "#16181c", "axes.facecolor": "#16181c", "text.color": "#e6e6e6"},
}
BASE_STYLE = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


def draw_curves(runs: Sequence[PretrainRun], labels: dict[str, str], style: str) -> bytes | None:
    """Held-out loss of each pre-training run against tokens, as PNG; None where no run has a curve.

    Args:
        runs: of every arm and seed.
        labels: arm -> name in the legend.
        style: light or dark.
    """
    drawn = [run for run in runs if run.curves.get("validation/loss")]
    if not drawn:
        return None
    with plt.rc_context(_rc(style)):
        figure, axes = plt.subplots(figsize=(8.0, 4.2), layout="constrained")
        arms = sorted({run.arm for run in drawn}, key=[*labels, *(run.arm for run in drawn)].index)
        drawn.sort(key=lambda run: (arms.index(run.arm), run.seed))
        for run in drawn:
            tokens, losses = zip(*run.curves["validation/loss"], strict=True)
            colour = COLOURS[arms.index(run.arm) % len(COLOURS)]
            label = labels.get(run.arm, run.arm) if run is next(one for one in drawn if one.arm == run.arm) else None
            axes.plot([count / 1e6 for count in tokens], losses, color=colour, linewidth=1.6, alpha=0.85, label=label)
        entropies = [run.facts["unigram_entropy"] for run in drawn if "unigram_entropy" in run.facts]
        if entropies:
            height = sum(entropies) / len(entropies)
            axes.axhline(
                height, color=plt.rcParams["text.color"], linestyle=(0, (4, 3)), linewidth=1.0, label="unigram entropy"
            )
        axes.set_xlabel("tokens seen (millions)")
        axes.set_ylabel("held-out loss (nats a predicted token)")
        axes.set_xlim(left=0.0)
        axes.legend(fontsize=9, title="one line a seed", title_fontsize=8)
        return _png(figure)


def draw_table(table: Table, style: str) -> bytes | None:
    """Every row on every data set as a dot with its interval; the paper's value as a hollow diamond. PNG or None."""
    if not any(cell.estimate for cell in table.cells.values()):
        return None
    rows = table.experiment.rows
    columns = [column for column in table.columns if table.has_results(column)]
    across = min(3, len(columns))
    down = -(-len(columns) // across)
    with plt.rc_context(_rc(style)):
        size = (0.6 + 3.3 * across, 0.9 + (0.8 + 0.32 * len(rows)) * down)
        figure, grid = plt.subplots(down, across, figsize=size, squeeze=False, sharey=True, layout="constrained")
        for axes, column in zip(grid.flat, columns, strict=False):
            _draw_column(axes, table, column)
            role = f"\n({column.role})" if column.role else ""
            axes.set_title(column.heading + role, fontsize=10)
        for axes in list(grid.flat)[len(columns) :]:
            axes.set_visible(False)
        grid[0, 0].set_yticks(range(len(rows)), [row.label for row in rows])
        grid[0, 0].invert_yaxis()
        figure.supxlabel(
            "score in percent: dot = ours with 95 % interval, diamond = the paper, dotted line = majority class",
            fontsize=9,
        )
        return _png(figure)


def _draw_column(axes: Any, table: Table, column: DataColumn) -> None:
    for height, row in enumerate(table.experiment.rows):
        colour = COLOURS[height % len(COLOURS)]
        estimate = table.cells[row.name, column.key].estimate
        if estimate is not None:
            width = estimate.half_width or 0.0
            axes.errorbar(
                estimate.mean, height, xerr=width, fmt="o", color=colour, markersize=5, capsize=3, linewidth=1.4
            )
        if column.is_paper and column.column is not None:
            paper = row.cells[table.experiment.columns.index(column.column)]
            if paper is not None:
                axes.plot(paper, height, marker="D", markersize=6, markerfacecolor="none", markeredgecolor=colour)
    if column.majority is not None:
        axes.axvline(column.majority, color=plt.rcParams["text.color"], linestyle=(0, (1, 2)), linewidth=0.9)
    axes.margins(y=0.12)


def _rc(style: str) -> Any:
    text = STYLES[style]["text.color"]
    return {
        **BASE_STYLE,
        **STYLES[style],
        "axes.edgecolor": text,
        "axes.labelcolor": text,
        "xtick.color": text,
        "ytick.color": text,
        "grid.color": text,
    }


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    plt.close(figure)
    return buffer.getvalue()
