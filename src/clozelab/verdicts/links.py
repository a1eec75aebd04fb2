"""The differences that claims rest on: which cells each is made of, whether they may be compared, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clozelab.metrics.statistics import PRETRAINING_SEEDS, Estimate, contrast, holm
from clozelab.verdicts.comparability import copied_seeds, why_not
from clozelab.verdicts.experiment import ALL_COLUMNS, CONTRAST, SPREAD, Claim, Column
from clozelab.verdicts.table import Cell, DataColumn, Table
from clozelab.verdicts.wording import MINUS, interval, signed

Term = tuple[float, str, DataColumn]
"""(factor, row, column): a link's difference is the sum of factor x cell."""


@dataclass(frozen=True)
class Link:
    """One difference that a verdict rests on.

    Attributes:
        name: in words.
        terms: what it is the sum of.
        difference: with its interval, in the column's unit; None where no seed is common to all cells.
        margin: of a SPREAD: the difference is tested against the end that is nearer to it; 0: against zero.
        barred: why its cells must not be compared.
        absent: what is not there, where something is not there.
        is_collapsed: a cell of it has no run that read its input.
        copies: which seeds of its cells are one and the same run, where some are.
        has_collapsed: some run behind it gave one answer to everything.
        healthy: the difference over the runs that did not, where some did; None where no pair of seeds is left.
        lengths: to what its cells' texts were cut, where that is not the same.
    """

    name: str
    terms: tuple[Term, ...]
    difference: Estimate | None
    margin: float
    barred: str
    absent: str
    is_collapsed: bool
    copies: str = ""
    has_collapsed: bool = False
    healthy: Estimate | None = None
    lengths: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """The same for two links that test the same thing, also with the rows exchanged."""
        there = frozenset((factor, row, column.key) for factor, row, column in self.terms)
        back = frozenset((-factor, row, key) for factor, row, key in there)
        return frozenset((there, back)), self.margin

    @property
    def is_tested(self) -> bool:
        """Whether there is an interval over pre-training seeds that may decide something."""
        found = self.difference
        if found is None or self.barred or self.absent or self.is_collapsed or self.copies:
            return False
        return found.basis == PRETRAINING_SEEDS and not found.has_no_spread

    @property
    def p(self) -> float | None:
        """Two-sided; where some runs collapsed the larger of those with and without them: none may decide a claim."""
        if self.difference is None or not self.is_tested:
            return None
        if self.rests_on_collapsed:
            return 1.0
        known = [one.p_value(self.point_for(one)) for one in (self.difference, self.healthy) if one]
        return max((p for p in known if p is not None), default=None)

    def point_for(self, found: Estimate) -> float:
        """What an estimate of the difference is tested against."""
        return math.copysign(self.margin, found.mean)

    @property
    def rests_on_collapsed(self) -> bool:
        """Without the runs that collapsed there is no interval over pre-training seeds, or a mean on the other side."""
        if self.difference is None or not self.has_collapsed:
            return False
        if self.healthy is None or self.healthy.basis != PRETRAINING_SEEDS or self.healthy.has_no_spread:
            return True
        return self._is_on_the_near_side(self.healthy) != self._is_on_the_near_side(self.difference)

    def _is_on_the_near_side(self, found: Estimate) -> bool:
        """Below zero, or inside the margin."""
        return abs(found.mean) < self.margin if self.margin else found.mean < 0.0

    def without_collapsed(self, decimals: int = 1) -> str:
        """The difference over the runs that did not collapse, in words; empty where none or all did."""
        if self.is_collapsed or not self.has_collapsed:
            return ""
        if self.healthy is None:
            return "without collapsed runs no pair of seeds is left"
        found = f"{signed(self.healthy.mean, decimals)} {interval(self.healthy, decimals)}"
        return f"without collapsed runs {found}".rstrip()


@dataclass(frozen=True)
class Correction:
    """Holm's correction of one table: key of a link -> its p-value, and how much stricter its test has become."""

    corrected: Mapping[tuple[object, ...], float]
    factors: Mapping[tuple[object, ...], int]

    @property
    def size(self) -> int:
        return len(self.corrected)


@dataclass(frozen=True)
class Case:
    """A claim and the links that it rests on here; `silent` names columns that nothing speaks for."""

    claim: Claim
    column: DataColumn | None
    judged_on: str
    links: tuple[Link, ...]
    silent: tuple[str, ...] = ()


def correct(links: Iterable[Link]) -> Correction:
    """Holm's correction over all different links that are tested."""
    p_values = {link.key: link.p for link in links if link.is_tested}
    known = {key: p for key, p in p_values.items() if p is not None}
    order = sorted(known, key=known.__getitem__)
    factors = {key: len(order) - rank for rank, key in enumerate(order)}
    return Correction(dict(zip(known, holm(list(known.values())), strict=True)), factors)


def find_cases(claim: Claim, table: Table) -> list[Case]:
    if claim.column == ALL_COLUMNS:
        return [_case_of_all(claim, table)]
    column = next(one for one in table.experiment.columns if one.name == claim.column)
    data = table.of_column(column)
    if not data:
        return [Case(claim, None, "nothing", (), (_no_run(column.name, table),))]
    if claim.kind == CONTRAST and claim.against:
        return _contrasts(claim, claim.against, data, table)
    return [Case(claim, one, one.heading, _links(claim, one, table)) for one in data]


def _no_run(name: str, table: Table) -> str:
    """Why a column has no results: no run at all, or runs that were scored by something else."""
    for one in table.columns:
        if one.column and one.column.name == name:
            count = sum(table.cells[row.name, one.key].num_unscored for row in table.experiment.rows)
            if count:
                return f"another metric: {count} complete run(s) have no {one.metric}"
    return f"no run on {name} or a stand-in for it"


def _contrasts(claim: Claim, against: tuple[str, str, str], data: list[DataColumn], table: Table) -> list[Case]:
    """One case for each pair of data sets that belong together, and one for each that has no counterpart.

    The paper's data set goes with the paper's, and a stand-in with the one at its place in the other column's list:
    whatever else has runs would be another comparison under the claim's name. A column with a single data set by
    nature (no stand-ins in paper.yaml, a mean, a fact of pre-training) goes with every one of the other column.
    """
    mine, theirs = (next(o for o in table.experiment.columns if o.name == name) for name in (claim.column, against[2]))
    others = table.of_column(theirs)
    if not others:
        return [Case(claim, None, "nothing", (), (_no_run(theirs.name, table),))]
    is_single = any(len(sets) == 1 and not column.stand_ins for sets, column in ((data, mine), (others, theirs)))
    pairs = [(one, other) for one in data for other in others if is_single or _place(one) == _place(other)]
    cases = [_contrast(claim, against, one, other, table) for one, other in pairs]
    for alone, column in (*((one, theirs) for one in data), *((other, mine) for other in others)):
        if not any(alone.key in (one.key, other.key) for one, other in pairs):
            cases.append(Case(claim, alone, alone.heading, (), (_no_counterpart(alone, column),)))
    return cases


def _place(one: DataColumn) -> int | str:
    """Where the paper.yaml lists a data set in its column (the paper's own is 0); its name where it does not."""
    assert one.column is not None
    names = (one.column.task, *one.column.stand_ins)
    return names.index(one.task) if one.task in names else one.task


def _no_counterpart(one: DataColumn, column: Column) -> str:
    names, place = (column.task, *column.stand_ins), _place(one)
    if isinstance(place, int) and place < len(names):
        return f"no run on {names[place]}, the counterpart of {one.heading} in {column.name}"
    return f"{column.name} has no counterpart of {one.heading} in paper.yaml"


def _contrast(claim: Claim, against: tuple[str, str, str], one: DataColumn, other: DataColumn, table: Table) -> Case:
    rows = claim.rows
    terms = ((1.0, rows[0], one), (-1.0, rows[1], one), (-1.0, against[0], other), (1.0, against[1], other))
    # Where either is not the paper's data, the paper's size says nothing about the difference.
    speaks = other if one.is_paper and not other.is_paper else one
    judged_on = one.heading if one.key == other.key else f"{one.heading} against {other.heading}"
    return Case(claim, speaks, judged_on, (_link(terms, "", table),))


def _case_of_all(claim: Claim, table: Table) -> Case:
    """Every column of a task, by the first data set that speaks for it."""
    tasks = [column for column in table.experiment.columns if column.is_task]
    links: list[Link] = []
    silent = []
    for column in tasks:
        data = table.of_column(column)
        links += _links(claim, data[0], table, with_column=True) if data else []
        silent += [] if data else [column.name]
    spoken = {link.terms[0][2].key for link in links if not link.barred and not link.absent}
    return Case(claim, None, f"{len(spoken)} of {len(tasks)} columns", tuple(links), tuple(silent))


def _links(claim: Claim, column: DataColumn, table: Table, *, with_column: bool = False) -> tuple[Link, ...]:
    links = []
    label = table.experiment.label
    for first, second in claim.pairs:
        names = [] if claim.rows == (first, second) else [f"{label(first)} {MINUS} {label(second)}"]
        names += [column.heading] if with_column else []
        terms = ((1.0, first, column), (-1.0, second, column))
        margin = claim.points if claim.kind == SPREAD else 0.0
        links.append(_link(terms, " on ".join(names), table, margin))
    return tuple(links)


def link_between(first: str, second: str, column: DataColumn, table: Table) -> Link:
    """The difference of two rows on one data set that no claim need be about."""
    return _link(((1.0, first, column), (-1.0, second, column)), "", table)


def _link(terms: tuple[Term, ...], name: str, table: Table, margin: float = 0.0) -> Link:
    cells = [table.cells[row, column.key] for _, row, column in terms]
    difference = contrast([(factor, cell.scores) for (factor, _, _), cell in zip(terms, cells, strict=True)])
    absent = _absent(terms, cells, table)
    if difference is None and not absent:
        absent = "the rows have no seed in common"
    has_collapsed = any(cell.num_collapsed for cell in cells)
    factors = [factor for factor, _, _ in terms]
    return Link(
        name=name,
        terms=terms,
        difference=difference,
        margin=margin,
        barred=_barred(terms, table),
        absent=absent,
        is_collapsed=any(cell.is_collapsed for cell in cells),
        copies=_copies(terms, table),
        has_collapsed=has_collapsed,
        healthy=contrast([(factor, cell.healthy) for factor, cell in zip(factors, cells, strict=True)])
        if has_collapsed
        else None,
        lengths=_lengths(cells),
    )


def _lengths(cells: Sequence[Cell]) -> str:
    """Rows are cut to what their encoder was trained on: one from the middle of a run may have seen short rows only."""
    runs = [[run for part in cell.parts for run in part.runs.values()] for cell in cells]
    known = [[(run.facts.get("data") or {}).get("max_seq_length") for run in own] for own in runs]
    found = [sorted({length for length in own if length}) for own in known]
    parts = ["/".join(map(str, one)) for one in found]
    return f"texts cut to {' against '.join(dict.fromkeys(parts))} tokens" if all(parts) and len(set(parts)) > 1 else ""


def _copies(terms: Sequence[Term], table: Table) -> str:
    parts = [(row, part) for _, row, column in terms for part in table.cells[row, column.key].parts]
    found = [(row, copied_seeds(part.runs.values())) for row, part in parts]
    return "; ".join(dict.fromkeys(f"{table.experiment.label(row)}: {what}" for row, what in found if what))


def _absent(terms: Sequence[Term], cells: Sequence[Cell], table: Table) -> str:
    empty = {row: cell for (_, row, _), cell in zip(terms, cells, strict=True) if not cell.scores}
    for row, cell in empty.items():
        if cell.num_unscored:
            metric = next(column.metric for _, name, column in terms if name == row)
            return (
                f"another metric: {cell.num_unscored} complete run(s) of {table.experiment.label(row)} have no {metric}"
            )
    names = " and ".join(table.experiment.label(row) for row in empty)
    return f"no complete run of {names}" if names else ""


def _barred(terms: Sequence[Term], table: Table) -> str:
    """Another split, another metric or another protocol; empty where the cells may be compared.

    Cells that are all of one split may be, whatever split the paper's numbers are on: only their size says nothing.
    """
    splits = dict.fromkeys(column.metric.partition("/")[0] for _, _, column in terms if column.metric)
    if len(splits) > 1:
        return f"another split: cells of {' against cells of '.join(splits)}"
    for _, _, column in terms:
        if column.column and column.column.metric and column.tasks and column.metric != column.column.metric:
            return f"another metric: {column.metric}, where the claim is about {column.column.metric}"
    for (_, first, column), (_, second, _) in zip(terms[::2], terms[1::2], strict=True):
        reason = why_not(table, first, second, column.tasks)
        if reason:
            return reason
    return ""
