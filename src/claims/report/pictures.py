"""What the report's pictures share: styles for a light and a dark page, formats, legends."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

matplotlib.use("Agg")

# inches; the page is about a hundred pixels an inch wide
WIDTH = 10.5
# arms, or claims, that a picture can tell apart; the page and its tables have all
MOST_DRAWN = 30
STYLES = ("light", "dark")
STYLE_FOLDER = Path(__file__).parent / "templates"
# where a style keeps its colours
INK: Final = "text.color"
FAINT: Final = "axes.edgecolor"
PAPER: Final = "figure.facecolor"
# what matplotlib's vector formats measure in
POINTS_AN_INCH = 72
NO_DATE: Final[Mapping[str, dict[str, None]]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


@dataclass(frozen=True)
class Picture:
    """One drawing in two formats; the same data give the same bytes."""

    png: bytes
    svg: bytes


def use_style(style: str) -> AbstractContextManager[None]:
    """The context that every picture is drawn in: STYLE.mplstyle has the colours."""
    return plt.style.context(STYLE_FOLDER / f"{style}.mplstyle")


def save_picture(figure: Figure, entries: Sequence[Line2D], columns: int) -> Picture:
    """Both formats of a figure, which is closed.

    Empty panels are hidden; the `entries` of the legend stand below it.
    """
    files = picture_files(figure, entries, columns, ("png", "svg"))
    return Picture(files["png"], files["svg"])


def picture_files(
    figure: Figure, entries: Sequence[Line2D], columns: int, formats: Iterable[str]
) -> dict[str, bytes]:
    """Format -> file of a figure, which is closed."""
    for axes in figure.axes:
        # A grid may have more panels than there are data sets.
        axes.set_visible(axes.has_data())
    figure.legend(handles=entries, loc="outside lower center", ncols=columns, fontsize=9)
    layout = figure.get_layout_engine()
    assert layout is not None, "every picture is laid out"
    # As long as a figure has a layout engine, saving draws it twice: first to lay it out.
    figure.set_layout_engine(None)
    files = {}
    for name in formats:
        canvas = get_registered_canvas_class(name)(figure)
        figure.set_dpi(plt.rcParams["savefig.dpi"] if name == "png" else POINTS_AN_INCH)
        layout.execute(figure)
        buffer = io.BytesIO()
        # Without the date, so that equal data give equal bytes.
        canvas.print_figure(buffer, format=name, metadata=NO_DATE.get(name))
        files[name] = buffer.getvalue()
    plt.close(figure)
    return files


entry = partial(Line2D, [], [])
"""An entry of a legend."""
