"""Rows that are points of one pre-training run: the score along it, and where one arm overtakes another.

Such rows take their encoders after different fractions of an arm's steps (`encoder_fraction`) and set nothing else
differently. That a lead changes sign is said of means; that one arm overtakes another, only where intervals say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from clozelab.metrics.statistics import PRETRAINING_SEEDS, Estimate
from clozelab.suggestions import DASH, MINUS, distinct, interval, listed, percent, rough, signed
from clozelab.verdicts.links import Link, link_between
from clozelab.verdicts.table import DataColumn, Line, Table


@dataclass(frozen=True)
class Lead:
    """What one line is ahead of another after a fraction of their steps."""

    fraction: float
    tokens: str  # in words; empty where not known
    link: Link
    difference: Estimate  # of the link

    @property
    def sign(self) -> int:
        """Of the mean: -1, 0 or 1."""
        return int(np.sign(self.difference.mean))

    @property
    def side(self) -> int:
        """The sign where the interval (also without collapsed runs) over pre-training seeds excludes zero; else 0."""
        if not self.link.is_tested or self.link.rests_on_collapsed or self.link.below:
            return 0
        found = [self.difference, *filter(None, [self.link.healthy])]
        if all(one.low is not None and one.low > 0.0 for one in found):
            return 1
        return -1 if all(one.high is not None and one.high < 0.0 for one in found) else 0

    @property
    def place(self) -> str:
        return f"{self.tokens} tokens" if self.tokens else f"{100 * self.fraction:g} % of the steps"


@dataclass(frozen=True)
class Race:
    """Two lines on one data set, at every fraction where both have a score."""

    first: Line
    second: Line
    column: DataColumn
    leads: tuple[Lead, ...]

    @property
    def name(self) -> str:
        return f"{self.first.name} {MINUS} {self.second.name}"

    @property
    def comparable(self) -> list[Lead]:
        return [lead for lead in self.leads if not lead.link.barred]

    @property
    def telling(self) -> list[Lead]:
        """The leads that a sentence may rest on: comparable, and with a sign that runs which read their input gave."""
        return [one for one in self.comparable if not one.link.is_collapsed and not one.link.rests_on_collapsed]


def find_races(lines: Sequence[Line], table: Table) -> list[Race]:
    """Every two arms' lines on every data set where they have a fraction in common with scores of both."""
    races = []
    for column in (one for one in table.with_results if one.tasks):
        for first, second in combinations(lines, 2):
            leads = []
            for fraction in (one for one in first.rows if one in second.rows):
                seen = [line.tokens[fraction] for line in (first, second) if fraction in line.tokens]
                words = distinct(map(rough, seen)) if len(seen) == 2 else ""
                link = link_between(first.rows[fraction], second.rows[fraction], column, table)
                leads += [Lead(fraction, words, link, link.difference)] if link.difference else []
            races += [Race(first, second, column, tuple(leads))] if leads else []
    return races


def sentence(race: Race) -> str:
    """Where the first arm overtakes the second or the other way round, and how sure that is."""
    leads, left_out = race.telling, len(race.comparable) - len(race.telling)
    if not race.comparable:
        return f"{race.name}: not comparable ({race.leads[0].link.barred})."
    if not leads:
        return f"{race.name}: every point rests on collapsed runs, which say nothing."
    if len(leads) == 1:
        return f"{race.name}: only one point of both ({leads[0].place}), which shows no change."
    signed_leads = [lead for lead in leads if lead.sign]  # a mean of exactly zero has no sign
    changes = [(one, other) for one, other in pairwise(signed_leads) if one.sign != other.sign]
    said = f"The mean difference {race.name}"
    if changes:
        said += " changes sign " + ", and ".join(f"between {one.place} and {other.place}" for one, other in changes)
    elif signed_leads:
        ahead = race.first.name if signed_leads[0].sign > 0 else race.second.name
        where = "every" if len(signed_leads) == len(leads) else "each unequal"
        said += f" does not change sign within the run ({ahead} is ahead at {where} point)"
    else:
        said += " is zero at every point"
    said += f"; {_sureness(leads, bool(changes))}"
    return f"{said}; {left_out} point(s) that rest on collapsed runs are left out." if left_out else f"{said}."


def _sureness(leads: Sequence[Lead], has_changed: bool) -> str:
    if not any(lead.difference.basis == PRETRAINING_SEEDS for lead in leads):
        return "with one pre-training seed an arm, that may be the luck of two runs and shows no crossing"
    names, places = {-1: "below", 1: "above"}, {}
    for side in names:
        there = [lead for lead in leads if lead.side == side]
        if len(there) > 1 and there == list(leads[-len(there) :]):  # all of the rest
            places[side] = f"from {there[0].place} on"
        elif there:
            places[side] = f"at {listed(lead.place for lead in there)}"
    sides = list(places)
    if not sides:
        return f"no interval excludes zero{', so they do not support a crossing' if has_changed else ''}"
    said = f"intervals lie {' and '.join(f'{names[side]} zero {place}' for side, place in places.items())}"
    if len(sides) == 2:
        return f"{said}: they support a crossing"
    other = names[-sides[0]]
    return f"{said} and nowhere {other} it, so they do not support a crossing" if has_changed else said


def race_page(race: Race, table: Table) -> dict[str, Any]:
    """What a report shows of a race: its sentence and a line a point."""
    column, points = race.column, []
    for lead in race.leads:
        found, link = lead.difference, lead.link
        rows = (race.first.rows[lead.fraction], race.second.rows[lead.fraction])
        means = [percent(table.cells[row, column.key].estimate, column.decimals) for row in rows]
        notes = [link.barred, link.copies, link.lengths, link.made, link.below]
        notes += [found.basis] if found.basis != PRETRAINING_SEEDS else []
        notes += ["every run of one arm collapsed" if link.is_collapsed else link.without_collapsed(column.decimals)]
        points.append(
            {
                "fraction": f"{100 * lead.fraction:g} %",
                "tokens": lead.tokens or DASH,
                "first": means[0],
                "second": means[1],
                "difference": signed(found.mean, column.decimals),
                "interval": interval(found, column.decimals),
                "note": "; ".join(filter(None, notes)),
            }
        )
    return {
        "name": race.name,
        "first": race.first.name,
        "second": race.second.name,
        "judged_on": f"{column.heading} ({column.role})" if column.role else column.heading,
        "sentence": sentence(race),
        "points": points,
    }
