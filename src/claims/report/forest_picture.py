"""The forest plot as a picture: a line a claim, a panel a unit (forest.py)."""

from __future__ import annotations

from dataclasses import replace
from textwrap import fill

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from claims.report.forest import Forest, ForestGroup, ForestLine
from claims.report.pictures import (
    FAINT,
    INK,
    MOST_DRAWN,
    PAPER,
    WIDTH,
    Picture,
    entry,
    picture_files,
    save_picture,
)
from claims.report.verdict_styles import COLOURS
from claims.text.phrases import count_noun

# inches a claim of the forest plot, characters of a line of its text, and how faint a margin is
CLAIM_HEIGHT = 0.48
CLAIM_CHARACTERS = 44
BAND_ALPHA = 0.25
# shape of a verdict's mark -> matplotlib's marker, and whether it is filled
VERDICT_MARKERS = {
    "circle": ("o", True),
    "cross": ("X", True),
    "ring": ("o", False),
    "square": ("s", False),
}


def draw_forest(forest: Forest) -> Picture | None:
    """Draw the claims' differences with their intervals, a panel a unit; None without any.

    Beside each line stands what is claimed, the figures and the verdict.
    """
    if not forest.groups:
        return None
    return save_picture(*_forest_figure(forest), columns=4)


def forest_files(forest: Forest) -> dict[str, bytes]:
    """Suffix -> file of the forest plot, as papers take pictures."""
    return picture_files(*_forest_figure(forest), columns=4, formats=("pdf", "svg", "png"))


def _forest_figure(forest: Forest) -> tuple[Figure, list[Line2D]]:
    """The first claims' forest plot as a figure, and the entries of its legend."""
    num_hidden = len(forest.lines) - MOST_DRAWN
    groups = []
    num_left = MOST_DRAWN
    for group in forest.groups:
        groups.append(replace(group, lines=group.lines[:num_left]))
        num_left -= len(groups[-1].lines)
    forest = replace(forest, groups=[group for group in groups if group.lines])
    heights = [len(group.lines) for group in forest.groups]
    size = (WIDTH, 0.7 + CLAIM_HEIGHT * sum(heights) + 0.6 * len(heights))
    figure, grid = plt.subplots(
        len(heights), 1, figsize=size, squeeze=False, height_ratios=heights, layout="constrained"
    )
    for axes, group in zip(grid.flat, forest.groups, strict=True):
        _draw_claims(axes, group)

    ink = plt.rcParams[INK]
    entries = [entry(label="difference with 95 % interval", color=ink, marker="o")]
    if forest.has_paper_values:
        entries.append(
            entry(label="the paper", color=ink, marker="D", markerfacecolor="none", linestyle="")
        )
    if forest.has_margins:
        shade = plt.rcParams[FAINT]
        entries.append(entry(label="within the margin", color=shade, linewidth=8, alpha=BAND_ALPHA))
    if num_hidden > 0:
        more = f"and {count_noun(num_hidden, 'claim')} more, on the page"
        entries.append(entry(label=more, linestyle=""))
    return figure, entries


def _draw_claims(axes: Axes, group: ForestGroup) -> None:
    """Draw a panel: the first claim on top, words on both sides."""
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=plt.rcParams[FAINT], linewidth=1.0)
    for height, line in enumerate(group.lines):
        _draw_claim(axes, height, line)
    labels = [fill(line.claim.text, CLAIM_CHARACTERS) for line in group.lines]
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlim(group.axis.low, group.axis.high)
    axes.set_xlabel(f"difference in {group.axis.unit}")


def _draw_claim(axes: Axes, height: int, line: ForestLine) -> None:
    style = COLOURS[line.claim.verdict]
    # The page of this style is dark where its ink is light.
    colour = style.light if matplotlib.colors.to_rgb(plt.rcParams[INK])[0] < 0.5 else style.dark
    if line.band is not None:
        least, most = line.band
        axes.barh(
            height, most - least, 0.8, least, color=plt.rcParams[FAINT], alpha=BAND_ALPHA, zorder=0
        )
    if line.low is not None and line.high is not None:
        axes.plot([line.low, line.high], [height, height], color=colour, linewidth=1.8)
    if line.paper is not None:
        axes.plot(
            line.paper, height, "D", color=plt.rcParams[INK], markersize=6, markerfacecolor="none"
        )
    marker, is_filled = VERDICT_MARKERS[style.shape]
    face = colour if is_filled else plt.rcParams[PAPER]
    axes.plot(line.mean, height, marker, color=colour, markersize=8, markerfacecolor=face)

    figures = line.claim.figures
    seeds = count_noun(line.num_seeds, "seed")
    caption = f"{figures.ours} {figures.interval}, {seeds}\n{line.claim.label}"
    axes.text(
        # across in shares of the axis, up and down in claims
        1.02,
        height,
        caption,
        color=colour,
        fontsize=9,
        va="center",
        transform=axes.get_yaxis_transform(),
    )
