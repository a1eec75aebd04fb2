"""A claim of the paper against our runs: holds, fails, inconclusive or not comparable, and on what.

A claim rests on one difference between rows or on several (its links). A link is decided by Student's t over
pre-training seeds, after Holm's correction for every difference that the table's claims rest on. One pre-training seed
cannot tell an arm from its luck: then the difference over fine-tuning seeds is shown and the verdict is
"inconclusive (one seed)". Rows that were not made in the same way are not comparable, whatever their scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clozelab.ledger.claims import ALL_COLUMNS, CONTRAST, ORDER, SPREAD, Claim
from clozelab.ledger.examples import compare_examples
from clozelab.ledger.table import Cell, DataColumn, Table
from clozelab.ledger.wording import MINUS, interval, signed
from clozelab.metrics.statistics import MOST_SEEDS, PRETRAINING_SEEDS, Estimate, contrast, holm, seeds_needed

HOLDS, FAILS, INCONCLUSIVE = "holds", "fails", "inconclusive"
ONE_SEED, NOT_COMPARABLE = "inconclusive (one seed)", "not comparable"
FLOOR_ROWS = ("random", "random_bilstm")
SIGNIFICANCE = 0.05

Term = tuple[float, str, DataColumn]
"""(factor, row, column): a link's difference is the sum of factor x cell."""


@dataclass(frozen=True)
class Link:
    """One difference that a verdict rests on.

    Attributes:
        name: in words.
        terms: what it is the sum of.
        difference: with its interval, in the column's unit; None where no seed is common to all cells.
        point: what the difference is tested against: zero, or the nearer end of a SPREAD's margin.
        barred: why its cells must not be compared.
        absent: what is not there, where something is not there.
        is_collapsed: a cell of it has no run that read its input.
    """

    name: str
    terms: tuple[Term, ...]
    difference: Estimate | None
    point: float
    barred: str
    absent: str
    is_collapsed: bool

    @property
    def key(self) -> tuple[object, ...]:
        """The same for two links that test the same thing, also with the rows exchanged."""
        there = frozenset((factor, row, column.key) for factor, row, column in self.terms)
        back = frozenset((-factor, row, key) for factor, row, key in there)
        return frozenset((there, back)), abs(self.point)

    @property
    def is_tested(self) -> bool:
        """Whether there is an interval over pre-training seeds that may decide something."""
        found = self.difference
        if found is None or self.barred or self.absent or self.is_collapsed:
            return False
        return found.basis == PRETRAINING_SEEDS and not is_suspicious(found)

    @property
    def p(self) -> float | None:
        return self.difference.p_value(self.point) if self.difference and self.is_tested else None


@dataclass(frozen=True)
class Correction:
    """Holm's correction of one table: key of a link -> its p-value, and how much stricter its test has become."""

    corrected: Mapping[tuple[object, ...], float]
    factors: Mapping[tuple[object, ...], int]

    @property
    def size(self) -> int:
        return len(self.corrected)


@dataclass(frozen=True)
class Judgement:
    """One claim on one data set (or on all of them).

    Attributes:
        claim: what the paper says.
        column: the data set; None where there is none, or for a claim about all columns.
        judged_on: in words, for the table.
        difference: first - second in the column's unit, with its interval; of several, the one that supports the claim
            least. None where there is no pair of runs.
        verdict: HOLDS, FAILS, INCONCLUSIVE, ONE_SEED or NOT_COMPARABLE.
        note: the reason, or what to keep in mind.
        shown: which difference that is, where there are several.
        p, corrected: of that difference, without and with the correction for the table; None where nothing is tested.
        decisive_seeds: pre-training seeds in all that would decide it; None where no number can be given.
        needs: the same in words; empty where more seeds are not what is lacking.
        family: differences that are tested together.
    """

    claim: Claim
    column: DataColumn | None
    judged_on: str
    difference: Estimate | None
    verdict: str
    note: str = ""
    shown: str = ""
    p: float | None = None
    corrected: float | None = None
    decisive_seeds: int | None = None
    needs: str = ""
    family: int = 0


@dataclass(frozen=True)
class _Case:
    """A claim and the links that it rests on here; `silent` names columns that nothing speaks for."""

    claim: Claim
    column: DataColumn | None
    judged_on: str
    links: tuple[Link, ...]
    silent: tuple[str, ...] = ()


def judge(table: Table) -> list[Judgement]:
    """Every claim on every data set that speaks for its column; at least one judgement a claim."""
    cases = [case for claim in table.experiment.claims for case in _cases(claim, table)]
    correction = correct(link for case in cases for link in case.links)
    return [_judgement(case, correction, table) for case in cases]


def correct(links: Iterable[Link]) -> Correction:
    """Holm's correction over all different links that are tested."""
    p_values = {link.key: link.p for link in links if link.is_tested}
    known = {key: p for key, p in p_values.items() if p is not None}
    order = sorted(known, key=known.__getitem__)
    factors = {key: len(order) - rank for rank, key in enumerate(order)}
    return Correction(dict(zip(known, holm(list(known.values())), strict=True)), factors)


def summarise(judgements: Sequence[Judgement]) -> str:
    """The verdicts counted: "2 hold, 1 fails, 3 inconclusive"."""
    parts = []
    for verdict in (HOLDS, FAILS, INCONCLUSIVE, ONE_SEED, NOT_COMPARABLE):
        count = sum(one.verdict == verdict for one in judgements)
        is_verb = verdict in (HOLDS, FAILS)
        parts += [f"{count} {verdict.removesuffix('s') if is_verb and count > 1 else verdict}"] if count else []
    return ", ".join(parts) or "no claims"


def link_verdict(link: Link, claim: Claim, corrected: float | None) -> str:
    """The verdict on one link of a claim; `corrected` is its p-value after the table's correction."""
    if link.difference is None or link.barred or link.absent:
        return NOT_COMPARABLE
    if link.difference.basis != PRETRAINING_SEEDS:
        return ONE_SEED
    # A row that answers the same whatever it reads has measured nothing, however small its spread.
    if not link.is_tested or corrected is None or corrected >= SIGNIFICANCE:
        return INCONCLUSIVE
    return HOLDS if _supports(link, claim) else FAILS


def is_suspicious(difference: Estimate) -> bool:
    """No spread at all over seeds: copies of one run rather than independent ones."""
    return difference.count >= 2 and difference.half_width is not None and difference.half_width < 1e-9


def _supports(link: Link, claim: Claim) -> bool:
    """Whether the mean is on the claimed side."""
    mean = link.difference.mean if link.difference else math.nan
    if claim.kind == SPREAD:
        return abs(mean) < claim.points
    return mean < 0.0 if claim.is_lower else mean > 0.0


def _cases(claim: Claim, table: Table) -> list[_Case]:
    if claim.column == ALL_COLUMNS:
        return [_case_of_all(claim, table)]
    column = next(one for one in table.experiment.columns if one.name == claim.column)
    data = table.of_column(column)
    if not data:
        return [_Case(claim, None, "nothing", (), (_no_run(column.name, table),))]
    if claim.kind == CONTRAST and claim.against:
        return _contrasts(claim, claim.against, data, table)
    return [_Case(claim, one, one.heading, _links(claim, one, table)) for one in data]


def _no_run(name: str, table: Table) -> str:
    """Why a column has no results: no run at all, or runs that were scored by something else."""
    for one in table.columns:
        if one.column and one.column.name == name:
            count = sum(table.cells[row.name, one.key].num_unscored for row in table.experiment.rows)
            if count:
                return f"another metric: {count} complete run(s) have no {one.metric}"
    return f"no run on {name} or a stand-in for it"


def _contrasts(claim: Claim, against: tuple[str, str, str], data: list[DataColumn], table: Table) -> list[_Case]:
    column = next(one for one in table.experiment.columns if one.name == against[2])
    others = table.of_column(column)
    if not others:
        return [_Case(claim, None, "nothing", (), (_no_run(column.name, table),))]
    cases = []
    for one in data:
        other = next((other for other in others if other.is_paper == one.is_paper), others[0])
        rows = claim.rows
        terms = ((1.0, rows[0], one), (-1.0, rows[1], one), (-1.0, against[0], other), (1.0, against[1], other))
        # Where either is not the paper's data, the paper's size says nothing about the difference.
        speaks = other if one.is_paper and not other.is_paper else one
        judged_on = one.heading if one.key == other.key else f"{one.heading} against {other.heading}"
        cases.append(_Case(claim, speaks, judged_on, (_link(claim, terms, "", table),)))
    return cases


def _case_of_all(claim: Claim, table: Table) -> _Case:
    """Every column of a task, by the first data set that speaks for it."""
    tasks = [column for column in table.experiment.columns if column.is_task]
    links: list[Link] = []
    silent = []
    for column in tasks:
        data = table.of_column(column)
        links += _links(claim, data[0], table, with_column=True) if data else []
        silent += [] if data else [column.name]
    spoken = {link.terms[0][2].key for link in links if not link.barred and not link.absent}
    return _Case(claim, None, f"{len(spoken)} of {len(tasks)} columns", tuple(links), tuple(silent))


def _links(claim: Claim, column: DataColumn, table: Table, *, with_column: bool = False) -> tuple[Link, ...]:
    links = []
    for first, second in claim.pairs:
        names = (
            [f"{table.experiment.label(first)} {MINUS} {table.experiment.label(second)}"] if _is_chain(claim) else []
        )
        names += [column.heading] if with_column else []
        links.append(_link(claim, ((1.0, first, column), (-1.0, second, column)), " on ".join(names), table))
    return tuple(links)


def _is_chain(claim: Claim) -> bool:
    return claim.kind not in (ORDER, CONTRAST)


def _link(claim: Claim, terms: tuple[Term, ...], name: str, table: Table) -> Link:
    cells = [table.cells[row, column.key] for _, row, column in terms]
    difference = contrast([(factor, cell.scores) for (factor, _, _), cell in zip(terms, cells, strict=True)])
    point = math.copysign(claim.points, difference.mean) if claim.kind == SPREAD and difference else 0.0
    absent = _absent(terms, cells, table)
    if difference is None and not absent:
        absent = "the rows have no seed in common" if claim.kind == CONTRAST else "the two rows have no seed in common"
    is_collapsed = any(cell.is_collapsed for cell in cells)
    return Link(name, terms, difference, point, _barred(terms, table), absent, is_collapsed)


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
    """Another split, another metric or another protocol; empty where the cells may be compared."""
    for _, _, column in terms:
        if column.is_other_split:
            return column.role
        if column.column and column.tasks and column.metric != column.column.metric:
            return f"another metric: {column.metric}, where the claim is about {column.column.metric}"
    for (_, first, column), (_, second, _) in zip(terms[::2], terms[1::2], strict=True):
        reason = table.comparability.why_not(first, second, column.tasks)
        if reason:
            return reason
    return ""


def _judgement(case: _Case, correction: Correction, table: Table) -> Judgement:
    verdicts = [link_verdict(link, case.claim, correction.corrected.get(link.key)) for link in case.links]
    verdict = _conjunction(case, verdicts)
    weakest = _weakest(case, verdicts, correction, verdict)
    count, needs = _needs(case, verdicts, verdict, correction)
    notes = _notes(case, verdicts, verdict, weakest, correction, table)
    is_tested = weakest is not None and weakest.is_tested
    return Judgement(
        claim=case.claim,
        column=case.column,
        judged_on=case.judged_on,
        difference=weakest.difference if weakest else None,
        verdict=verdict,
        note="; ".join(dict.fromkeys(note for note in notes if note)),
        shown=weakest.name if weakest and len(case.links) > 1 else "",
        p=weakest.p if weakest else None,
        corrected=correction.corrected.get(weakest.key) if weakest and is_tested else None,
        decisive_seeds=count,
        needs=needs,
        family=correction.size,
    )


def _conjunction(case: _Case, verdicts: Sequence[str]) -> str:
    """All links must hold; one that confidently goes the other way is enough to fail."""
    spoken = [verdict for verdict in verdicts if verdict != NOT_COMPARABLE]
    is_barred = case.claim.column != ALL_COLUMNS and any(link.barred for link in case.links)
    if FAILS in spoken:
        return FAILS
    if not spoken or is_barred:
        return NOT_COMPARABLE
    if ONE_SEED in spoken:
        return ONE_SEED
    is_whole = len(spoken) == len(verdicts) and not case.silent
    return HOLDS if is_whole and set(spoken) == {HOLDS} else INCONCLUSIVE


def _weakest(case: _Case, verdicts: Sequence[str], correction: Correction, verdict: str) -> Link | None:
    """The link that supports the claim least, of those that there is a difference for."""
    if len(case.links) == 1:
        return case.links[0]
    spoken = [link for link, one in zip(case.links, verdicts, strict=True) if one != NOT_COMPARABLE]

    def doubt(link: Link) -> tuple[float, float]:
        """From 0, surely as claimed, to 2, surely the other way; then by the size."""
        mean = link.difference.mean if link.difference else 0.0
        p = link.p if link.p is not None else 1.0
        against = -1.0 if _supports(link, case.claim) else 1.0
        size = abs(mean) if case.claim.kind == SPREAD else against * abs(mean)
        return (p if against < 0 else 2.0 - p), size

    return max(spoken, key=doubt, default=None)


def _needs(case: _Case, verdicts: Sequence[str], verdict: str, correction: Correction) -> tuple[int | None, str]:
    """How many pre-training seeds would decide an undecided claim, as a number and in words."""
    if verdict == ONE_SEED:
        return None, "needs at least 2 pre-training seeds, better 3 or more"
    open_links = [link for link, one in zip(case.links, verdicts, strict=True) if one == INCONCLUSIVE]
    if verdict != INCONCLUSIVE or not open_links or case.silent or NOT_COMPARABLE in verdicts:
        return None, ""
    if not all(link.is_tested for link in open_links):
        return None, ""  # copies or collapsed runs: more of them decide nothing
    counts = []
    for link in open_links:
        assert link.difference is not None and link.difference.sd is not None
        confidence = 1.0 - SIGNIFICANCE / correction.factors[link.key]
        counts.append(seeds_needed(link.difference.mean - link.point, link.difference.sd, confidence))
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None, f"more than {MOST_SEEDS} pre-training seeds at this difference and spread"
    # A test may fail its correction because of its rank; the next seed cannot make it fewer than there are.
    least = 1 + max(link.difference.count for link in open_links if link.difference)
    count = max(least, *known) if known else None
    return count, f"about {count} pre-training seeds would decide at this difference and spread"


def _notes(
    case: _Case,
    verdicts: Sequence[str],
    verdict: str,
    weakest: Link | None,
    correction: Correction,
    table: Table,
) -> list[str]:
    if case.claim.column == ALL_COLUMNS:
        return _notes_on_all(case, verdicts)
    notes = [_kind_of_data(case)] if case.column and case.links and not case.links[0].barred else []
    if verdict == NOT_COMPARABLE:
        reasons = [link.barred for link in case.links if link.barred]
        reasons = reasons or [link.absent for link in case.links] or list(case.silent)
        return [*notes, *reasons]
    if len(case.links) > 1:
        notes.append(_tally(verdicts))
        notes += [f"{link.name}: {link.absent}" for link in case.links if link.absent]
    notes += [_uncorrected(weakest, correction)] if weakest else []
    for link in case.links:
        notes += _cautions(link, table)
    if verdict == ONE_SEED and case.claim.kind == ORDER:
        notes.append(_on_examples(case.links[0], table))
    return notes


def _notes_on_all(case: _Case, verdicts: Sequence[str]) -> list[str]:
    pairs = list(zip(case.links, verdicts, strict=True))
    names = [link.name or case.judged_on for link in case.links]
    notes = [f"{name}: {one}" for name, (_, one) in zip(names, pairs, strict=True) if one != NOT_COMPARABLE]
    absent = [name for name, (link, _) in zip(names, pairs, strict=True) if link.absent and not link.barred]
    absent += [name for name in case.silent if name not in absent]
    notes += [f"no runs for {', '.join(absent)}"] if absent else []
    return notes + [
        f"not comparable on {name} ({link.barred})" for name, link in zip(names, case.links, strict=True) if link.barred
    ]


def _kind_of_data(case: _Case) -> str:
    column = case.column
    if column is None or column.is_paper or column.is_other_split:
        return ""
    if column.column and column.column.is_pretraining:
        return "our own held-out text: direction only"
    kind = "synthetic" if column.role.startswith("synthetic") else "stand-in"
    return f"{kind}: {'says nothing of the sizes in the paper' if case.claim.kind == SPREAD else 'direction only'}"


def _tally(verdicts: Sequence[str]) -> str:
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    return f"of {len(verdicts)} differences " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _uncorrected(link: Link, correction: Correction) -> str:
    """Said where the plain interval and the verdict would seem to contradict each other."""
    p, corrected = link.p, correction.corrected.get(link.key)
    if not link.is_tested or p is None or corrected is None or p >= SIGNIFICANCE or corrected < SIGNIFICANCE:
        return ""
    what = "the margin" if link.point else "zero"
    return f"the plain interval excludes {what}, the test corrected for {correction.size} differences does not"


def _cautions(link: Link, table: Table) -> list[str]:
    """What a reader must know beside the verdict."""
    notes = []
    cells = {(row, column.key): table.cells[row, column.key] for _, row, column in link.terms}
    for (row, _), cell in cells.items():
        if cell.missing:
            notes.append(f"{len(cell.missing)} run(s) of {table.experiment.label(row)} missing")
        if cell.num_collapsed:
            notes.append(f"{cell.num_collapsed} collapsed run(s) of {table.experiment.label(row)}")
    if any(cell.num_collapsed for cell in cells.values()) and not link.is_collapsed:
        healthy = contrast([(factor, table.cells[row, column.key].healthy) for factor, row, column in link.terms])
        without = f"{signed(healthy.mean)} {interval(healthy)}".rstrip() if healthy else "no pair of seeds left"
        notes.append(f"without collapsed runs {without}")
    if link.difference is not None and is_suspicious(link.difference) and not link.is_collapsed:
        notes.append("no spread at all between seeds: are these independent runs?")
    if link.difference is not None and not link.difference.is_balanced:
        notes.append("pre-training seeds have unequally many runs and weigh the same")
    return notes + _floor(link, table)


def _floor(link: Link, table: Table) -> list[str]:
    notes = []
    for column in {column.key: column for _, _, column in link.terms if column.tasks}.values():
        floors = [table.cells[row, column.key].estimate for row in FLOOR_ROWS if (row, column.key) in table.cells]
        floor = max((one.mean for one in floors if one is not None), default=None)
        means = [table.cells[row, one.key].estimate for _, row, one in link.terms if one.key == column.key]
        if floor is not None and all(one is not None and one.mean <= floor for one in means):
            notes.append("neither row is above the no-pre-training floor")
    return notes


def _on_examples(link: Link, table: Table) -> str:
    """The two rows' answers to the same examples, by the first pair of runs that both have."""
    cells = [table.cells[row, column.key] for _, row, column in link.terms]
    common = sorted(cells[0].runs.keys() & cells[1].runs.keys())
    return (
        compare_examples(cells[0].runs[common[0]], cells[1].runs[common[0]], link.terms[0][2].metric) if common else ""
    )
