"""Rows that are points of one pre-training run: the score along it, and where one arm overtakes another.

Such rows take their encoders after different fractions of an arm's steps (`encoder_fraction` in their files) and set
nothing else differently. A lead of one arm over another is the difference of their rows at one fraction, paired by
seed; that it changes sign is said of means, that one arm overtakes another only where intervals say so on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from clozelab.metrics.statistics import PRETRAINING_SEEDS, Estimate
from clozelab.verdicts.experiment import Experiment
from clozelab.verdicts.links import Link, link_between
from clozelab.verdicts.table import DataColumn, Table
from clozelab.verdicts.wording import DASH, MINUS, distinct, interval, percent, rough, signed

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

POINT = "encoder_fraction"
ITS_OWN = ("row", POINT)
"""What one line's rows set differently."""


@dataclass(frozen=True)
class Line:
    """The rows along one arm's pre-training.

    Attributes:
        rows: fraction of the steps -> row, in the order of the steps; two or more.
        tokens: fraction -> tokens seen, as a mean over seeds; empty where that is not known of every fraction.
        floor: the row without pre-training that all of them name, where the line begins; None for none.
    """

    name: str
    arm: str
    rows: Mapping[float, str]
    tokens: Mapping[float, float]
    floor: str | None


@dataclass(frozen=True)
class Lead:
    """What one line is ahead of another after a fraction of their steps."""

    fraction: float
    tokens: str
    """In words; empty where not known."""
    link: Link

    @property
    def sign(self) -> int:
        """Of the mean: -1, 0 or 1."""
        return 0 if self.link.difference is None else int(np.sign(self.link.difference.mean))

    @property
    def side(self) -> int:
        """The sign where the interval over pre-training seeds excludes zero, 0 where it does not or there is none.

        Where runs collapsed, the interval without them has to say the same.
        """
        if not self.link.is_tested or self.link.rests_on_collapsed:
            return 0
        sides = {_side(found) for found in (self.link.difference, self.link.healthy) if found is not None}
        return sides.pop() if len(sides) == 1 else 0

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
        return [lead for lead in self.leads if lead.link.difference and not lead.link.barred]

    @property
    def telling(self) -> list[Lead]:
        """The leads that a sentence may rest on: comparable, and with a sign that runs which read their input gave."""
        return [one for one in self.comparable if not one.link.is_collapsed and not one.link.rests_on_collapsed]


def _side(found: Estimate) -> int:
    if found.low is None or found.high is None:
        return 0
    return 1 if found.low > 0.0 else -1 if found.high < 0.0 else 0


def find_lines(experiment: Experiment, runs: Runs) -> list[Line]:
    """Every arm with rows at two or more fractions of its steps."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], dict[float, str]] = {}
    for row in experiment.rows:
        run = next((run for run in runs.finetune if run.name == row.name), None)
        if row.arm is not None and run is not None:
            others = frozenset((key, str(value)) for key, value in run.row_delta.items() if key not in ITS_OWN)
            fraction = float(run.config.get(POINT, 1.0))
            found.setdefault((row.arm, others), {}).setdefault(fraction, row.name)
    long = {key: dict(sorted(rows.items())) for key, rows in found.items() if len(rows) > 1}
    return [
        Line(
            name=_name(arm, others, list(long)),
            arm=arm,
            rows=rows,
            tokens=_tokens([run for run in runs.pretrain if run.name == arm], list(rows)),
            floor=_floor(experiment, rows.values()),
        )
        for (arm, others), rows in long.items()
    ]


def _floor(experiment: Experiment, rows: Iterable[str]) -> str | None:
    """The one that all rows name."""
    named = {row.floor for row in experiment.rows if row.name in set(rows)}
    return named.pop() if len(named) == 1 else None


def _name(arm: str, others: frozenset[tuple[str, str]], lines: Sequence[tuple[str, frozenset[tuple[str, str]]]]) -> str:
    """The arm, with what sets this line apart from the arm's others."""
    shared = frozenset.intersection(*(one for other, one in lines if other == arm))
    apart = ", ".join(f"{key} {value}" for key, value in sorted(others - shared))
    return f"{arm}, {apart}" if apart else arm


def _tokens(runs: Sequence[Record], fractions: Sequence[float]) -> dict[float, float]:
    """Seen after each fraction of the steps, as a mean over the complete runs; empty where one is not known."""
    from clozelab.training.measuring import read_rows  # only for points of a run

    found: dict[float, list[float]] = {fraction: [] for fraction in fractions}
    for run in runs:
        steps, tokens = run.facts.get("steps"), run.facts.get("tokens")
        if not run.is_complete or not steps or not tokens:
            continue
        logged = {row.step: float(row.tokens) for row in read_rows(run.folder / "metrics.csv")}
        known = logged | {0: 0.0, int(steps): float(tokens)}
        at = sorted(known)
        for fraction, values in found.items():
            step = round(fraction * steps)
            if len(known) > 2 or step in known:
                values.append(float(np.interp(step, at, [known[one] for one in at])))
    return {key: float(np.mean(values)) for key, values in found.items()} if all(found.values()) else {}


def find_races(lines: Sequence[Line], table: Table) -> list[Race]:
    """Every two arms' lines on every data set where they have a fraction in common with scores of both."""
    races = []
    for column in (one for one in table.with_results if one.tasks):
        for first, second in combinations(lines, 2):
            common = [fraction for fraction in first.rows if fraction in second.rows]
            leads = tuple(_lead(first, second, fraction, column, table) for fraction in common)
            leads = tuple(lead for lead in leads if lead.link.difference is not None)
            races += [Race(first, second, column, leads)] if leads else []
    return races


def _lead(first: Line, second: Line, fraction: float, column: DataColumn, table: Table) -> Lead:
    tokens = [line.tokens.get(fraction) for line in (first, second)]
    words = "" if None in tokens else distinct(rough(one) for one in tokens if one is not None)
    return Lead(fraction, words, link_between(first.rows[fraction], second.rows[fraction], column, table))


def sentence(race: Race) -> str:
    """Where the first arm overtakes the second or the other way round, and how sure that is."""
    leads, left_out = race.telling, len(race.comparable) - len(race.telling)
    if not race.comparable:
        return f"{race.name}: not comparable ({race.leads[0].link.barred})."
    if not leads:
        return f"{race.name}: every point rests on collapsed runs, which say nothing."
    if len(leads) == 1:
        return f"{race.name}: only one point of both ({leads[0].place}), which shows no change."
    changes = _changes(leads)
    if changes:
        where = ", and ".join(f"between {one.place} and {other.place}" for one, other in changes)
        said = f"The mean difference {race.name} changes sign {where}"
    else:
        ahead = {1: race.first.name, -1: race.second.name}.get(next((one.sign for one in leads if one.sign), 0))
        said = f"The mean difference {race.name} does not change sign within the run"
        said += f" ({ahead} is ahead at {'every' if all(one.sign for one in leads) else 'each unequal'} point)"
        said = said if ahead else f"The mean difference {race.name} is zero at every point"
    said = f"{said}; {_sureness(leads, bool(changes))}"
    return f"{said}; {left_out} point(s) that rest on collapsed runs are left out." if left_out else f"{said}."


def _changes(leads: Sequence[Lead]) -> list[tuple[Lead, Lead]]:
    """The points around each change of the mean's sign; a mean of exactly zero has no sign."""
    return [(one, other) for one, other in pairwise([lead for lead in leads if lead.sign]) if one.sign != other.sign]


def _sureness(leads: Sequence[Lead], has_changed: bool) -> str:
    """What the intervals say of it."""
    if not any(lead.link.difference and lead.link.difference.basis == PRETRAINING_SEEDS for lead in leads):
        return "with one pre-training seed an arm, that may be the luck of two runs and shows no crossing"
    sides = {lead.side for lead in leads} - {0}
    if not sides:
        end = ", so they do not support a crossing" if has_changed else ""
        return f"no interval excludes zero{end}"
    parts = [f"{'above' if side > 0 else 'below'} zero {_where(leads, side)}" for side in sorted(sides)]
    said = f"intervals lie {' and '.join(parts)}"
    if len(sides) == 2:
        return f"{said}: they support a crossing"
    other = "below" if sides == {1} else "above"
    return f"{said} and nowhere {other} it, so they do not support a crossing" if has_changed else said


def _where(leads: Sequence[Lead], side: int) -> str:
    """The points at which intervals lie on a side: "from ... on" where that is all of the rest."""
    there = [lead.side == side for lead in leads]
    count = sum(there)
    if there[-1] and all(there[-count:]):
        return f"from {leads[-count].place} on" if count > 1 else f"at {leads[-1].place}"
    *most, last = (lead.place for lead, is_there in zip(leads, there, strict=True) if is_there)
    return f"at {', '.join(most)} and {last}" if most else f"at {last}"


def race_page(race: Race, table: Table) -> dict[str, Any]:
    """What a report shows of a race: its sentence and a line a point."""
    column = race.column
    return {
        "name": race.name,
        "first": race.first.name,
        "second": race.second.name,
        "judged_on": f"{column.heading} ({column.role})" if column.role else column.heading,
        "sentence": sentence(race),
        "points": [_lead_page(lead, race, table) for lead in race.leads],
    }


def _lead_page(lead: Lead, race: Race, table: Table) -> dict[str, str]:
    difference, decimals = lead.link.difference, race.column.decimals
    cells = [table.cells[line.rows[lead.fraction], race.column.key] for line in (race.first, race.second)]
    is_over_fewer = difference is not None and difference.basis != PRETRAINING_SEEDS
    notes = [lead.link.barred, lead.link.copies, lead.link.lengths]
    notes += [difference.basis if difference and is_over_fewer else ""]
    notes += ["every run of one arm collapsed" if lead.link.is_collapsed else lead.link.without_collapsed(decimals)]
    return {
        "fraction": f"{100 * lead.fraction:g} %",
        "tokens": lead.tokens or DASH,
        "first": percent(cells[0].estimate, decimals),
        "second": percent(cells[1].estimate, decimals),
        "difference": signed(difference.mean if difference else None, decimals),
        "interval": interval(difference, decimals),
        "note": "; ".join(note for note in notes if note),
    }
