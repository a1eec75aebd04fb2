"""The differences that claims rest on: which cells each is made of, whether they may be compared,
Holm's correction.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from statistics import fmean

from clozelab.metrics.statistics import (
    KEPT_FOR_OTHERS,
    PRETRAINING_SEEDS,
    Estimate,
    contrast,
    holm,
    sequential_p,
)
from clozelab.runs.record import grouped
from clozelab.text.formatting import MINUS, interval, signed
from clozelab.verdicts.comparability import FIGURES, TOLERANCE, copied_seeds, made_apart, why_not
from clozelab.verdicts.experiment import ALL_COLUMNS, CROSSES, SPREAD, Claim, Column, Stopping
from clozelab.verdicts.table import (
    Cell,
    DataColumn,
    Line,
    Seeds,
    Table,
    find_lines,
    reached,
    speakers,
)

SIGNIFICANCE = 0.05
# (factor, row, column): a link's difference is the sum of factor x cell
Term = tuple[float, str, DataColumn]


@dataclass(frozen=True)
class Link:
    """One difference that a verdict rests on."""

    name: str  # in words
    terms: tuple[Term, ...]  # what it is the sum of
    difference: Estimate | None  # in the column's unit; None where no seed is common to all cells
    # of a SPREAD: the difference is tested against the end that is nearer to it; 0: against zero
    margin: float
    barred: str  # why its cells must not be compared
    absent: str  # what is not there, where something is not there
    is_collapsed: bool  # a cell of it has no run that read its input
    copies: str = ""  # which seeds of its cells are one and the same run, where some are
    has_collapsed: bool = False  # some run behind it gave one answer to everything
    healthy: Estimate | None = None  # the difference over the runs that did not, where some did
    lengths: str = ""  # to what its cells' texts were cut, where that is not the same
    made: str = ""  # what its runs were made with unequally, where that bars nothing
    # which of its rows lie below their floor, unless it is the difference from that floor
    below: str = ""
    seeds: str = ""  # pre-training and fine-tuning seeds that all its cells have
    # at which seeds one may look and stop, where that was fixed before
    stopping: Stopping | None = None
    # it at those looks, the last one being over all seeds of the rule
    earlier: tuple[Link, ...] = ()

    @property
    def key(self) -> str:
        """The same for two links that test the same thing, also with the rows exchanged."""
        return self._key(lambda factor: factor)

    @property
    def key_of_looks(self) -> str:
        """The key without the weights between two points, which are other ones with every seed, and
        without a margin: who has seen a difference knows which margins hold it."""
        return self._key(
            lambda factor: math.copysign(0.5, factor) if factor % 1 else factor
        ).partition(" within ")[0]

    def _key(self, shown: Callable[[float], float]) -> str:
        there = [(shown(factor), row, column.key) for factor, row, column in self.terms]
        back = [(-factor, row, key) for factor, row, key in there]
        terms = min(sorted(there), sorted(back))
        return (
            " ".join(f"{factor:+g} {row} on {key}" for factor, row, key in terms)
            + f" within {self.margin:g}"
        )

    @cached_property
    def is_tested(self) -> bool:
        """Whether there is an interval over pre-training seeds that may decide something."""
        found = self.difference
        if found is None or self.barred or self.absent or self.is_collapsed or self.copies:
            return False
        return found.basis == PRETRAINING_SEEDS and not found.has_no_spread

    @cached_property
    def p(self) -> float | None:
        """Two-sided; where some runs collapsed the larger of those with and without them: none may
        decide a claim.
        """
        if self.difference is None or not self.is_tested:
            return None
        if self.rests_on_collapsed:
            return 1.0
        known = [
            one.p_value(math.copysign(self.margin, one.mean))
            for one in (self.difference, self.healthy)
            if one
        ]
        return max((p for p in known if p is not None), default=None)

    @cached_property
    def decisive_p(self) -> float | None:
        """What a verdict rests on: the plain p, or under a stopping rule that of all looks; None
        before the first. A look at which the mean lay on the other side of what is tested says
        nothing for where it lies now."""
        if self.stopping is None or self.p is None:
            return self.p
        is_low = self._is_low(self.decided_on)
        looks = [
            1.0 if one.p is None or self._is_low(one.difference) != is_low else one.p
            for one in self.earlier
        ]
        return sequential_p(looks, self.stopping.first, self.stopping.most) if looks else None

    @property
    def decided_on(self) -> Estimate | None:
        """The difference whose side a verdict names: under a stopping rule that of the last
        look.
        """
        return self.earlier[-1].difference if self.earlier else self.difference

    @property
    def effects(self) -> list[float]:
        """How far the nearer mean, with or without collapsed runs, lies from what a test has to
        exclude (within a margin both ends), in standard deviations."""
        found: list[list[float]] = []
        for one in (self.difference, self.healthy):
            size, sd = (abs(one.mean), one.sd or 0.0) if one else (0.0, 0.0)
            gaps = (
                [self.margin - size, self.margin + size]
                if size < self.margin
                else [size - self.margin]
            )
            found += (
                [[gap / sd if sd else math.inf if gap > 1e-9 else 0.0 for gap in gaps]]
                if one
                else []
            )
        return min(found, key=min, default=[])

    @property
    def rests_on_collapsed(self) -> bool:
        """Without the runs that collapsed there is no interval over pre-training seeds, or a mean
        on the other side.
        """
        if self.difference is None or not self.has_collapsed:
            return False
        if (
            self.healthy is None
            or self.healthy.basis != PRETRAINING_SEEDS
            or self.healthy.has_no_spread
        ):
            return True
        return self._is_low(self.difference) != self._is_low(self.healthy)

    def _is_low(self, found: Estimate | None) -> bool:
        mean = found.mean if found else math.nan
        return abs(mean) < self.margin if self.margin else mean < 0.0

    def without_collapsed(self, decimals: int = 1) -> str:
        """The difference over the runs that did not collapse, in words; empty where none or all
        did.
        """
        if self.is_collapsed or not self.has_collapsed:
            return ""
        if (one := self.healthy) is None:
            return "without collapsed runs no pair of seeds is left"
        return f"without collapsed runs {signed(one.mean, decimals)} {interval(one, decimals)}".rstrip()


@dataclass(frozen=True)
class Correction:
    """By a link's key: its corrected p, the plain p that would decide it, the undecided primary
    claim before it.
    """

    corrected: Mapping[str, float]
    level: Mapping[str, float]
    waits_for: Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """A claim and the links that it rests on here; `silent` names columns that nothing speaks
    for.
    """

    claim: Claim
    column: DataColumn | None
    judged_on: str
    links: tuple[Link, ...]
    silent: tuple[str, ...] = ()
    courses: tuple[Course, ...] = ()  # of a claim that one line crosses another: both lines

    @property
    def rows(self) -> list[str]:
        """All rows that it is about."""
        along = [row for course in self.courses for _, row in course.points]
        return list(dict.fromkeys([*self.claim.rows, *(self.claim.against or ())[:2], *along]))


@dataclass(frozen=True)
class Course:
    """One line on a data set: how far its arm was at each row, in order. `unit` is empty for shares
    of the steps.
    """

    name: str
    unit: str
    points: tuple[tuple[float, str], ...]  # (amount, row)

    def at(self, place: float) -> list[tuple[float, str]]:
        """(weight, row) of the rows around a place, between which scores are straight over the
        logarithm.
        """
        places = [amount for amount, _ in self.points]
        number = bisect_right(places, place) - 1
        (left, row), *after = self.points[number : number + 2]
        if left == place or not after:
            return [(1.0, row)]
        share = math.log(place / left) / math.log(after[0][0] / left)
        return [(1.0 - share, row), (share, after[0][1])]


def families_of(cases: Iterable[Case]) -> dict[str, list[Link]]:
    """Text of a primary claim -> its differences, in the order of the claims; last, under no name,
    all others.
    """
    found: dict[str, list[Link]] = {}
    for case in sorted(cases, key=lambda case: not case.claim.primary):
        found.setdefault(case.claim.text if case.claim.primary else "", []).extend(case.links)
    return found


def correct(families: Mapping[str, Iterable[Link]]) -> Correction:
    """Primary claims one after another at 4 %; all others by Holm at 1 %, and at 5 % once every
    primary one is decided.

    A primary claim is tested only where all differences of those before it are decided, whichever
    way. The others do not wait: they keep KEPT_FOR_OTHERS of the 5 %, and are given the rest after
    the last primary claim. So a table has a false verdict at most once in twenty tables (a fallback
    procedure: Wiens 2003). Differences of one claim are corrected among themselves by Holm. A
    difference that nothing was measured for is no test, and stops none.
    `families` are those of families_of: without primary claims there are only the others, at 5
    %."""
    found = Correction({}, {}, {})
    largest, undecided = 0.0, ""
    for name, its_links in families.items():
        links = {link.key: link for link in its_links if link.key not in found.corrected}
        # not NaN
        known = {
            key: p for key, link in links.items() if (p := link.decisive_p) is not None and p >= 0.0
        }
        alone = holm(list(known.values()))
        if name:
            share = 1.0 - KEPT_FOR_OTHERS * ("" in families)
            corrected = [min(1.0, max(largest, p / share)) for p in alone]
        else:
            share = KEPT_FOR_OTHERS if undecided else 1.0
            corrected = [min(1.0, p / KEPT_FOR_OTHERS, max(largest, p)) for p in alone]
        num_open = sum(p >= share * SIGNIFICANCE for p in alone)
        found = Correction(
            {**found.corrected, **dict(zip(known, corrected, strict=True))},
            {**found.level, **dict.fromkeys(known, share * SIGNIFICANCE / max(1, num_open))},
            {**found.waits_for, **dict.fromkeys(known, undecided)},
        )
        measured = [
            link
            for link in links.values()
            if link.difference and not link.barred and not link.absent
        ]
        # by collapsed runs, say: no p, and no verdict
        is_stuck = any(link.key not in known for link in measured)
        largest = max([largest, *corrected, float(is_stuck)])
        undecided = undecided or (name if largest >= SIGNIFICANCE else "")
    return found


def find_cases(claim: Claim, table: Table) -> list[Case]:
    """A case for each data set that speaks for the claim's column; one for a claim about all
    columns.
    """
    columns = {one.name: one for one in table.experiment.columns}
    if claim.column == ALL_COLUMNS:
        tasks = table.experiment.all_columns
        data = {one.name: speakers(one.name, table.with_results)[:1] for one in tasks}
        links = tuple(
            link
            for one in data.values()
            for found in one
            for link in _links(claim, found, table, "all")
        )
        spoken = {link.terms[0][2].key for link in links if not link.barred and not link.absent}
        silent = tuple(name for name, found in data.items() if not found)
        return [Case(claim, None, f"{len(spoken)} of {len(tasks)} columns", links, silent)]
    mine = columns[claim.column]
    data_sets = speakers(mine.name, table.with_results)
    if not data_sets:
        return [_case_of_none(claim, mine, table)]
    if claim.against:
        return _contrasts(claim, mine, columns[claim.against[2]], table)
    if claim.kind == CROSSES:
        lines = find_lines(table.experiment, table.runs)
        return [_crossing(claim, one, lines, table) for one in data_sets]
    return [Case(claim, one, one.heading, _links(claim, one, table)) for one in data_sets]


def _crossing(claim: Claim, column: DataColumn, lines: Sequence[Line], table: Table) -> Case:
    """Its two links: the second line is ahead at the first common point, and the first line at the
    last, which the claim's rows set. Points between that are barred or rest on collapsed runs are
    left out."""
    mine = [line for row in claim.rows for line in lines if row in line.rows.values()]
    if len(mine) < 2:
        return Case(
            claim,
            column,
            column.heading,
            (),
            ("no runs at two or more fractions of both arms' steps",),
        )
    first, second = mine
    last = min(key for line in mine for key, row in line.rows.items() if row in claim.rows)
    pairs = {
        key: (row, second.rows[key])
        for key, row in first.rows.items()
        if key in second.rows and key <= last
    }
    pairs = {
        key: rows
        for key, rows in pairs.items()
        if all(table.cells[row, column.key].scores for row in rows)
    }
    inner = {key: link_between(*rows, column, table) for key, rows in list(pairs.items())[1:-1]}
    bad = [
        key
        for key, link in inner.items()
        if link.barred or link.is_collapsed or link.rests_on_collapsed
    ]
    fractions = [key for key in pairs if key not in bad]
    if len(fractions) < 2:
        return Case(
            claim,
            column,
            column.heading,
            (),
            (f"{first.name} and {second.name} have less than two points",),
        )
    unit: str = claim.measured_in or "tokens"
    amounts = [reached(table.runs, line.arm, fractions, unit) for line in mine]
    if not all(amounts):
        unit, amounts = "", [{key: key for key in fractions}] * 2
    for key in fractions:  # arms are matched up to a tolerance: two rows at one place
        both = [known[key] for known in amounts]
        if max(both) <= (1.0 + TOLERANCE) * min(both):
            amounts = [known | {key: sum(both) / 2} for known in amounts]
    courses = tuple(
        Course(line.name, unit, tuple((known[key], line.rows[key]) for key in fractions))
        for line, known in zip(mine, amounts, strict=True)
    )
    start = max(course.points[0][0] for course in courses)
    end = min(course.points[-1][0] for course in courses)
    if start >= end:
        return Case(
            claim, column, column.heading, (), (f"the lines have no stretch of {unit} in common",)
        )
    # of losses the smaller one is ahead
    later = courses[:: -1 if column.column and column.column.falls else 1]
    links = (_lead(later[::-1], start, column, table), _lead(later, end, column, table))
    return Case(claim, column, column.heading, links, (), courses)


def _lead(courses: Sequence[Course], place: float, column: DataColumn, table: Table) -> Link:
    """What the first course is ahead of the second at a place where one of them has a row."""
    (one, other), label = (course.at(place) for course in courses), table.experiment.label
    weights = one if len(other) == 1 else other
    rows = [(one[0][1], row) if len(other) > 1 else (row, other[0][1]) for _, row in weights]
    terms = [
        (sign * weight, row, column)
        for (weight, _), both in zip(weights, rows, strict=True)
        for sign, row in zip((1.0, -1.0), both, strict=True)
    ]
    said = (" and ".join(dict.fromkeys(map(label, side))) for side in zip(*rows, strict=True))
    return _link(tuple(terms), table, f" {MINUS} ".join(said))


def _case_of_none(claim: Claim, column: Column, table: Table) -> Case:
    mine = [one for one in table.columns if one.column == column]
    counts = [
        (one.metric, sum(table.cells[row, one.key].num_unscored for row in table.rows))
        for one in mine
    ]
    unscored = [
        f"another metric: {count} complete run(s) have no {metric}"
        for metric, count in counts
        if count
    ]
    return Case(
        claim, None, "nothing", (), (*unscored, f"no run on {column.name} or a stand-in for it")[:1]
    )


def _contrasts(claim: Claim, mine: Column, theirs: Column, table: Table) -> list[Case]:
    """One case for each pair of data sets that belong together, and one for each that has no
    counterpart.

    The paper's data set goes with the paper's, and a stand-in with the one at its place in the
    other column's list. A column with a single data set by nature (no stand-ins, a mean, a fact of
    pre-training) goes with every one."""
    data, others = (speakers(one.name, table.with_results) for one in (mine, theirs))
    if not others:
        return [_case_of_none(claim, theirs, table)]
    is_single = any(
        len(sets) == 1 and not column.stand_ins for sets, column in ((data, mine), (others, theirs))
    )
    cases, paired = [], set()
    for one, other in ((one, other) for one in data for other in others):
        if is_single or _place(one, mine) == _place(other, theirs):
            sides = (one, one, other, other)
            terms = tuple(
                (factor, row, side)
                for (factor, row, _), side in zip(claim.terms, sides, strict=True)
            )
            # Where either is not the paper's data, the paper's size says nothing about the
            # difference.
            speaks = other if one.is_paper and not other.is_paper else one
            judged_on = (
                one.heading if one.key == other.key else f"{one.heading} against {other.heading}"
            )
            cases.append(Case(claim, speaks, judged_on, (_link(terms, table),)))
            paired |= {one.key, other.key}
    alone = [*((one, mine, theirs) for one in data), *((other, theirs, mine) for other in others)]
    for one, own, column in alone:
        if one.key not in paired:
            place, names = _place(one, own), (column.task, *column.stand_ins)
            why = f"{column.name} has no counterpart of {one.heading} in paper.yaml"
            if isinstance(place, int) and place < len(names):
                why = f"no run on {names[place]}, the counterpart of {one.heading} in {column.name}"
            cases.append(Case(claim, one, one.heading, (), (why,)))
    return cases


def _place(one: DataColumn, column: Column) -> int | str:
    """Where paper.yaml lists a data set in its column (the paper's own is 0); its name where it
    does not.
    """
    names = (column.task, *column.stand_ins)
    return names.index(one.task) if one.task in names else one.task


def _links(claim: Claim, column: DataColumn, table: Table, among: str = "") -> tuple[Link, ...]:
    label, links = table.experiment.label, []
    for first, second in claim.pairs:
        names = [] if claim.rows == (first, second) else [f"{label(first)} {MINUS} {label(second)}"]
        names += [column.heading] if among else []
        margin = claim.points if claim.kind == SPREAD else 0.0
        links.append(link_between(first, second, column, table, " on ".join(names), margin))
    return tuple(links)


def link_between(
    first: str, second: str, data: DataColumn, table: Table, name: str = "", margin: float = 0.0
) -> Link:
    """The difference of two rows on one data set, whether or not a claim is about it."""
    return _link(((1.0, first, data), (-1.0, second, data)), table, name, margin)


def _link(terms: tuple[Term, ...], table: Table, name: str = "", margin: float = 0.0) -> Link:
    label = table.experiment.label
    cells = [table.cells[row, column.key] for _, row, column in terms]
    columns = [column for _, _, column in terms]
    is_paired = (
        len({frozenset(seed for _, seed in cell.scores) for cell in cells if cell.scores}) < 2
    )
    paired = cells if is_paired or columns[1:] == columns[:-1] else _of_pretraining(columns, cells)
    sides = [
        (factor, label(row), column, cell)
        for (factor, row, column), cell in zip(terms, paired, strict=True)
    ]
    difference = contrast([(factor, cell.scores) for factor, _, _, cell in sides])
    common = set.intersection(*(set(cell.scores) for cell in paired))
    rows = {row for _, row, _ in terms}
    floors = {one.name: one.floor for one in table.experiment.rows}
    below = [table.below_floor(row, column) for _, row, column in terms if floors[row] not in rows]
    has_collapsed = any(cell.num_collapsed for cell in cells)
    empty = [(row, column, cell) for _, row, column, cell in sides if not cell.scores]
    unscored = [
        f"another metric: {cell.num_unscored} complete run(s) of {row} have no {column.metric}"
        for row, column, cell in empty
        if cell.num_unscored
    ]
    absent = (
        f"no complete run of {' and '.join(dict.fromkeys(row for row, _, _ in empty))}"
        if empty
        else ""
    )
    parts = [(row, part.runs.values()) for _, row, _, cell in sides for part in cell.parts]
    copies = [f"{row}: {copied}" for row, runs in parts if (copied := copied_seeds(runs))]
    # Rows are cut to what their encoder was trained on: one from the middle of a run may have seen
    # short rows only.
    own = [
        [run.facts.get("data") or {} for part in cell.parts for run in part.runs.values()]
        for cell in cells
    ]
    known = [{data.get("max_seq_length") or 0 for data in all_data} - {0} for all_data in own]
    # held-out text
    asked = {data["is_causal"] for all_data in own for data in all_data if "is_causal" in data}
    lengths = dict.fromkeys("/".join(map(str, sorted(found))) for found in known)
    link = Link(
        name=name,
        terms=terms,
        difference=difference,
        margin=margin,
        barred=_barred(terms, table)
        or ("one is asked from the left, one from both sides" if len(asked) > 1 else ""),
        absent=next(
            iter(unscored), absent or ("" if difference else "the rows have no seed in common")
        ),
        is_collapsed=any(cell.is_collapsed for cell in cells),
        copies="; ".join(dict.fromkeys(copies)),
        has_collapsed=has_collapsed,
        healthy=(
            contrast([(factor, cell.healthy) for factor, _, _, cell in sides])
            if has_collapsed
            else None
        ),
        lengths=(
            f"texts cut to {' against '.join(lengths)} tokens"
            if all(lengths) and len(lengths) > 1
            else ""
        ),
        made=_of_pairs(made_apart, terms, table),
        below="; ".join(dict.fromkeys(filter(None, below))),
        seeds="/".join(" ".join(map(str, sorted(set(kind)))) for kind in zip(*common, strict=True)),
    )
    rule = table.experiment.stopping
    return replace(link, stopping=rule, earlier=_at_looks(link, rule, sides)) if rule else link


def _of_pretraining(columns: Sequence[DataColumn], cells: Sequence[Cell]) -> list[Cell]:
    """Cells of several data sets, with means over those fine-tuning seeds that each set's cells
    have in common: a measure has one number a pre-training seed, a task may have several, and pairs
    would leave out all but one."""

    def means(column: DataColumn, cell: Cell, kind: str) -> dict[Seeds, float]:
        mine: Mapping[Seeds, float] = getattr(cell, kind)
        beside = [
            getattr(one, kind) for one, other in zip(cells, columns, strict=True) if other == column
        ]
        groups = grouped(sorted(set(mine).intersection(*filter(None, beside))), itemgetter(0))
        return {(first, 0): fmean(mine[one] for one in seeds) for first, seeds in groups.items()}

    return [
        replace(cell, scores=means(column, cell, "scores"), healthy=means(column, cell, "healthy"))
        for column, cell in zip(columns, cells, strict=True)
    ]


def _at_looks(
    link: Link, rule: Stopping, sides: Sequence[tuple[float, str, DataColumn, Cell]]
) -> tuple[Link, ...]:
    """A difference as it was over the first seeds, of each look that the rule allows; seeds come in
    their order.
    """
    seeds = sorted(
        {first for first, _ in set.intersection(*(set(cell.scores) for *_, cell in sides))}
    )

    def over(first: list[int], kind: str) -> Estimate | None:
        terms = [(factor, getattr(cell, kind)) for factor, *_, cell in sides]
        return contrast(
            [
                (factor, {key: one for key, one in of.items() if key[0] in first})
                for factor, of in terms
            ]
        )

    looks = []
    for count in range(rule.first, min(len(seeds), rule.most) + 1):
        healthy = over(seeds[:count], "healthy") if link.has_collapsed else None
        looks.append(replace(link, difference=over(seeds[:count], "scores"), healthy=healthy))
    return tuple(looks)


def _barred(terms: Sequence[Term], table: Table) -> str:
    """Another split, another metric, other tokens or another protocol; empty where the cells may be
    compared.
    """
    splits = dict.fromkeys(
        column.metric.partition("/")[0] for _, _, column in terms if column.metric
    )
    if len(splits) > 1:
        return f"another split: cells of {' against cells of '.join(splits)}"
    for _, _, column in terms:
        if (
            column.column
            and column.column.metric
            and column.tasks
            and column.metric != column.column.metric
        ):
            return (
                f"another metric: {column.metric}, where the claim is about {column.column.metric}"
            )
    arms = {one.name: str(one.arm) for one in table.experiment.rows}
    facts = [(row, one.metric) for _, row, one in terms if one.is_pretraining]
    losses = (row for row, metric in facts if metric.startswith(FIGURES[:3]))
    trained = (run for row in losses for run in table.trained.get(arms[row], []))
    if len({run.predicts for run in trained}) > 1:
        return (
            "their objectives predict other tokens, so losses do not compare: measure=held_out_text"
            " asks alike"
        )
    return _of_pairs(why_not, terms, table)


def _of_pairs(
    say: Callable[[Table, str, str, Iterable[str]], str], terms: Sequence[Term], table: Table
) -> str:
    """The first thing that is said of two rows whose cells stand against each other."""
    pairs = zip(terms[::2], terms[1::2], strict=True)
    said = (say(table, first, second, column.tasks) for (_, first, column), (_, second, _) in pairs)
    return next(filter(None, said), "")
