"""The forest plots of docs/findings.md: `python benchmarks/findings.py [FOLDER]`

A section of the page has a plot: a line for each 95 % confidence interval in its table. What is
drawn is read from claims.csv of the results that the table links, not from the page.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from claims.analysis.grouping import group_by
from claims.analysis.verdict_codes import Verdict, read_verdict
from claims.report.forest_picture import VERDICT_MARKERS
from claims.report.pictures import FAINT, INK, PAPER, STYLES, entry, picture_files, use_style
from claims.report.verdict_styles import COLOURS, label_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = DOCS / "assets"
NUMBER = r"([+\u2212]?\d+(?:\.\d+)?)"
INTERVAL = re.compile(rf"\[{NUMBER}, {NUMBER}\]")
LINK = re.compile(r"\(results/([\w-]+)\.md")
# Scores of these columns are no percentages; each has an axis of its own.
PERPLEXITY = "LM perplexity"
POINTS = "points"
# inches, and characters of a line of text
WIDTH = 6.4
CLAIM_HEIGHT = 0.62
CHARACTERS = 78


@dataclass(frozen=True)
class PublishedClaim:
    """A line of a result's claims.csv."""

    text: str
    judged_on: str
    verdict: Verdict
    # "holds (exploratory)"
    label: str
    # "+5.1 [+4.7, +5.6]"
    figures: str
    mean: float
    low: float
    high: float

    @property
    def caption(self) -> str:
        """The claim, and the column where the text does not name it."""
        is_named = self.unit != POINTS or self.judged_on.lower() in self.text.lower()
        return self.text if is_named else f"{self.text} ({self.judged_on})"

    @property
    def unit(self) -> str:
        return self.judged_on if self.judged_on.endswith(PERPLEXITY) else POINTS

    def has_interval(self, low: str, high: str) -> bool:
        """Whether the page's interval is this one, also of the difference the other way round."""
        decimals = len(low.partition(".")[2])
        ends = (round(self.low, decimals), round(self.high, decimals))
        reversed_ends = (round(-self.high, decimals), round(-self.low, decimals))
        return (number(low), number(high)) in (ends, reversed_ends)


def number(text: str) -> float:
    """A number with a typographic minus."""
    return float(text.replace("\u2212", "-"))


def published_claims(result: str) -> list[PublishedClaim]:
    """The claims of a result that have an interval; decided ones are first."""
    path = DOCS / "results" / result / "claims.csv"
    if not path.is_file():
        return []
    claims = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            ends = INTERVAL.fullmatch(line["interval"])
            if ends:
                claims.append(_published_claim(line, *map(number, ends.groups())))
    return sorted(claims, key=lambda claim: not claim.verdict.is_decided)


def _published_claim(line: dict[str, str], low: float, high: float) -> PublishedClaim:
    stored = read_verdict(line["verdict"])
    return PublishedClaim(
        text=line["text"],
        judged_on=line["judged_on"],
        verdict=stored.code,
        label=label_of(stored.code, is_exploratory=stored.is_exploratory),
        figures=f"{line['ours']} {line['interval']}",
        mean=number(line["ours"]),
        low=low,
        high=high,
    )


def sections(page: str) -> Iterator[tuple[str, str]]:
    """The name of each section with a table of intervals, and its table."""
    for section in page.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        name = re.sub(r"\W+", "-", heading).strip("-").lower()
        table = "\n".join(line for line in section.splitlines() if line.startswith("| "))
        if INTERVAL.search(table):
            yield name, table


def claims_of(table: str) -> tuple[list[PublishedClaim], list[str]]:
    """The claims behind a table's intervals, and the intervals that no linked result has.

    "The same table" of a row is one that is linked above it: the last link is asked first.
    """
    results: list[str] = []
    claims: dict[PublishedClaim, None] = {}
    unknown = []
    for row in table.splitlines():
        # The first link of a row is the most important one, so it is put last.
        results += reversed(LINK.findall(row))
        for low, high in INTERVAL.findall(row):
            claim = _find(low, high, results)
            if claim is None:
                unknown.append(f"[{low}, {high}]")
            else:
                claims[claim] = None
    return list(claims), unknown


def _find(low: str, high: str, results: list[str]) -> PublishedClaim | None:
    for result in reversed(results):
        for claim in published_claims(result):
            if claim.has_interval(low, high):
                return claim
    return None


def draw(claims: list[PublishedClaim], style: str) -> bytes:
    """The forest plot as SVG, on a light or a dark page."""
    # Text stays text: the picture is small, and its words can be searched.
    with use_style(style), plt.rc_context({"svg.fonttype": "none"}):
        return _draw(claims)


def _draw(claims: list[PublishedClaim]) -> bytes:
    """A panel a unit, and the claim above each interval."""
    groups = group_by(claims, lambda claim: claim.unit)
    heights = list(map(len, groups.values()))
    size = (WIDTH, 0.6 + CLAIM_HEIGHT * sum(heights) + 0.5 * len(heights))
    figure, grid = plt.subplots(
        len(heights), 1, figsize=size, squeeze=False, height_ratios=heights, layout="constrained"
    )
    for axes, (unit, of_unit) in zip(grid.flat, groups.items(), strict=True):
        _draw_panel(axes, unit, of_unit)
    ink = plt.rcParams[INK]
    entries = [entry(label="difference with 95 % confidence interval", color=ink, marker="o")]
    return picture_files(figure, entries, columns=1, formats=["svg"])["svg"]


def _draw_panel(axes: Axes, unit: str, claims: list[PublishedClaim]) -> None:
    axes.grid(visible=False, axis="y")
    axes.axvline(0.0, color=plt.rcParams[FAINT], linewidth=1.0)
    for height, claim in enumerate(claims):
        _draw_claim(axes, height, claim)
    axes.set_yticks([])
    axes.set_ylim(len(claims) - 0.5, -0.9)
    axes.set_xlabel(f"difference in {unit}", fontsize=9)


def _draw_claim(axes: Axes, height: int, claim: PublishedClaim) -> None:
    """Draw an interval, the claim above it, and figures and verdict on its right."""
    colour = _colour(claim.verdict)
    marker, is_filled = VERDICT_MARKERS[COLOURS[claim.verdict].shape]
    face = colour if is_filled else plt.rcParams[PAPER]
    axes.plot([claim.low, claim.high], [height, height], color=colour, linewidth=1.8)
    axes.plot(claim.mean, height, marker, color=colour, markersize=8, markerfacecolor=face)

    # across in shares of the axis, up and down in claims
    place = axes.get_yaxis_transform()
    text = fill(claim.caption, CHARACTERS)
    paper = {"facecolor": plt.rcParams[PAPER], "edgecolor": "none", "pad": 1.0}
    axes.text(0.0, height - 0.28, text, fontsize=9, va="bottom", transform=place, bbox=paper)
    figures = f"{claim.figures}\n{claim.label}"
    axes.text(
        1.03, height, figures, color=colour, fontsize=9, va="center", transform=place, zorder=4
    )


def _colour(verdict: Verdict) -> str:
    style = COLOURS[verdict]
    is_dark = matplotlib.colors.to_rgb(plt.rcParams[INK])[0] > 0.5
    return style.dark if is_dark else style.light


def main(folder: Path = PICTURES) -> None:
    """Draw all plots: findings-SECTION.svg, and the same with -dark."""
    page = (DOCS / "findings.md").read_text(encoding="utf-8")
    for name, table in sections(page):
        claims, _ = claims_of(table)
        for style in STYLES:
            suffix = "" if style == "light" else f"-{style}"
            path = folder / f"findings-{name}{suffix}.svg"
            path.write_bytes(draw(claims, style))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
