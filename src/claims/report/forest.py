"""The claims as a forest plot: a line a claim, its interval beside zero and its margin.

The lines of one unit share an axis. templates/forest.html.j2 draws them on the page,
forest_picture.py as a picture, screen.py in a terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from matplotlib.ticker import MaxNLocator

from claims.analysis.grouping import group_by
from claims.analysis.schema import BaseClaim
from claims.analysis.scores import ScoreTable
from claims.analysis.verdicts import Judgement
from claims.report.claims import ClaimView, unit_of
from claims.report.estimates import percent, scores_by_seed

NUM_TICKS = 5
# of the widest mean: intervals beyond it are cut
CUT_AT = 2.0
# of an axis: what is left free at its ends
SPARE = 0.04


@dataclass(frozen=True)
class Axis:
    """The common axis of the claims of one unit; zero is on it."""

    unit: str
    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where a value lies, in percent of the width; what is beyond the axis lies at its end."""
        share = (value - self.low) / (self.high - self.low)
        return round(100.0 * min(1.0, max(0.0, share)), 2)

    def shows(self, value: float) -> bool:
        """Whether a value lies on the axis: an interval that does not is cut."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class ForestLine:
    """A claim and what is drawn of it, in the axis's unit."""

    claim: ClaimView
    # ours, and the ends of its interval; None of one seed
    mean: float
    low: float | None
    high: float | None
    paper: float | None
    # where a claim with a margin holds
    band: tuple[float, float] | None
    # how many seeds our difference is over
    num_seeds: int
    # "Masked LM: 67.4 ± 1.7 (1/1: 65.7, 2/1: 69.1)" for each of the compared cells
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ForestGroup:
    """Claims that share an axis."""

    axis: Axis
    lines: list[ForestLine]


@dataclass(frozen=True)
class Forest:
    """The claims with an estimate by their axes, and those of which nothing can be drawn."""

    groups: list[ForestGroup]
    undrawn: list[ClaimView]

    @property
    def lines(self) -> list[ForestLine]:
        return list(chain.from_iterable(group.lines for group in self.groups))

    @property
    def has_margins(self) -> bool:
        return any(line.band is not None for line in self.lines)

    @property
    def has_paper_values(self) -> bool:
        return any(line.paper is not None for line in self.lines)


def forest_of(claims: Sequence[ClaimView], table: ScoreTable) -> Forest:
    """Sort the claims by the unit of their difference; within a unit they keep their order."""
    drawn = []
    undrawn = []
    for claim in claims:
        # Where two lines cross is no difference.
        if claim.judgement.difference is None or claim.judgement.crossover is not None:
            undrawn.append(claim)
        else:
            drawn.append(claim)
    groups = []
    for unit, of_unit in group_by(drawn, lambda claim: unit_of(claim.judgement)).items():
        axis = _axis(unit, [claim.judgement for claim in of_unit])
        lines = [_line(claim, axis, table) for claim in of_unit]
        groups.append(ForestGroup(axis, lines))
    return Forest(groups, undrawn)


def _axis(unit: str, judgements: Iterable[Judgement]) -> Axis:
    """An axis that shows zero, all means, margins and the paper's values.

    It cuts intervals that dwarf them.
    """
    means = [0.0]
    ends = []
    for judgement in judgements:
        means += judgement.claim.boundaries
        if judgement.paper_size is not None:
            means.append(judgement.paper_size)
        difference = judgement.difference
        if difference is not None:
            means.append(difference.mean)
            ends += [end for end in (difference.low, difference.high) if end is not None]
    reach = CUT_AT * max(abs(mean) for mean in means)
    values = means + [min(reach, max(-reach, end)) for end in ends]
    spare = SPARE * (max(values) - min(values))
    # Every seed of every claim may be equal.
    if spare == 0.0:
        spare = 1.0
    low = min(values) - spare
    high = max(values) + spare
    ticks = MaxNLocator(NUM_TICKS).tick_values(low, high)
    return Axis(unit, low, high, tuple(float(tick) for tick in ticks if low <= tick <= high))


def _line(claim: ClaimView, axis: Axis, table: ScoreTable) -> ForestLine:
    judgement = claim.judgement
    difference = judgement.difference
    assert difference is not None, "the others are not drawn"
    band = None
    if judgement.claim.has_margin:
        band = _band(judgement.claim, axis)
    estimate = (difference.mean, difference.low, difference.high)
    num_seeds = len(difference.values)
    cells = tuple(_cells(judgement, table))
    return ForestLine(claim, *estimate, judgement.paper_size, band, num_seeds, cells)


def _band(claim: BaseClaim, axis: Axis) -> tuple[float, float]:
    """Where a claim with a margin holds; with one boundary up to the end of the axis."""
    least = claim.boundaries[0]
    most = claim.boundaries[-1]
    if least < most:
        return least, most
    if claim.is_supported_by(axis.high):
        return least, axis.high
    return axis.low, most


def _cells(judgement: Judgement, table: ScoreTable) -> Iterator[str]:
    """The cells behind the difference that is drawn."""
    contrast = judgement.weakest
    for term in contrast.terms if contrast else ():
        cell = table.cells[term.row, term.column.key]
        decimals = term.column.decimals
        score = percent(cell.estimate, decimals)
        name = f"{table.label(term.row)}, {term.column.heading}"
        yield f"{name}: {score} ({scores_by_seed(cell, decimals)})"
