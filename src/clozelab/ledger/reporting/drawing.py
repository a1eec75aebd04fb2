"""How the report's pictures look, and how they are saved: as PNG and as SVG, for a light and a dark page.

A colour means a pre-trained encoder, the same one in every picture; what has no pre-training is grey.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clozelab.ledger.reporting.columns import DataColumn
from clozelab.ledger.reporting.experiment import Row

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
