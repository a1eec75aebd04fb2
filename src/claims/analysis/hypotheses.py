"""From a claim to the contrasts that it rests on, on each data set that speaks for its column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product

from claims.analysis.comparability import TOLERANCE, Exclusion
from claims.analysis.contrasts import (
    Contrast,
    ContrastTerm,
    LearningCurve,
    contrast_rows,
    exclude_missing_metric,
    make_contrast,
)
from claims.analysis.schema import ALL_COLUMNS, BaseClaim, Column, ContrastClaim, CrossingClaim
from claims.analysis.scores import CheckpointSeries, DataColumn, ScoreTable, datasets_for_column
from claims.text.phrases import MINUS

NOTHING = "nothing"


@dataclass(frozen=True)
class ResolvedClaim:
    """A claim and the contrasts that it rests on here."""

    claim: BaseClaim
    # None where there is none, or for a claim about all columns
    column: DataColumn | None
    # the data set, or data sets, as the page and the analysis log call them
    judged_on: str
    contrasts: tuple[Contrast, ...] = ()
    # why there is no contrast at all
    missing: Exclusion | None = None
    # of a claim about all columns: those that nothing speaks for
    columns_without_data: tuple[str, ...] = ()
    # of a claim that one line crosses another: both lines
    curves: tuple[LearningCurve, ...] = ()

    @property
    def rows(self) -> list[str]:
        """All rows that it is about."""
        points = chain.from_iterable(curve.points for curve in self.curves)
        return list(dict.fromkeys([*self.claim.all_rows, *(row for _, row in points)]))

    @property
    def is_whole(self) -> bool:
        """Whether something speaks for all that it is about."""
        return self.missing is None and not self.columns_without_data


def resolve_claim(claim: BaseClaim, table: ScoreTable) -> list[ResolvedClaim]:
    """The claim on each data set that speaks for its column; once if it is about all columns."""
    if claim.column == ALL_COLUMNS:
        return [_on_all_columns(claim, table)]
    column = table.spec.column(claim.column)
    datasets = datasets_for_column(column.name, table.with_results)
    if not datasets:
        return [_unresolved_claim(claim, column, table)]
    if isinstance(claim, ContrastClaim):
        return _contrast_claim(claim, table)
    if isinstance(claim, CrossingClaim):
        return [_crossing_claim(claim, dataset, table) for dataset in datasets]
    resolved = []
    for dataset in datasets:
        contrasts = _row_contrasts(claim, dataset, table)
        resolved.append(ResolvedClaim(claim, dataset, dataset.heading, contrasts))
    return resolved


def _row_contrasts(
    claim: BaseClaim, dataset: DataColumn, table: ScoreTable, name: str = ""
) -> tuple[Contrast, ...]:
    contrasts = []
    for first, second in claim.pairs:
        rows = ""
        if claim.rows != (first, second):
            rows = f"{table.label(first)} {MINUS} {table.label(second)}"
        label = " on ".join(filter(None, (rows, name)))
        contrasts.append(
            contrast_rows(table, first, second, dataset, label=label, boundaries=claim.boundaries)
        )
    return tuple(contrasts)


def _on_all_columns(claim: BaseClaim, table: ScoreTable) -> ResolvedClaim:
    contrasts: list[Contrast] = []
    without_data = []
    comparable_datasets = set()
    judged: list[DataColumn] = []
    for column in table.spec.all_columns:
        datasets = datasets_for_column(column.name, table.with_results)
        if not datasets:
            without_data.append(column.name)
            continue
        judged.append(datasets[0])
        added = _row_contrasts(claim, datasets[0], table, datasets[0].heading)
        contrasts += added
        if any(contrast.exclusions.is_comparable for contrast in added):
            comparable_datasets.add(datasets[0].key)
    missing = _mixed_directions(claim, judged)
    if missing:
        return ResolvedClaim(claim, None, NOTHING, missing=missing)
    judged_on = f"{len(comparable_datasets)} of {len(table.spec.all_columns)} columns"
    return ResolvedClaim(
        claim, None, judged_on, tuple(contrasts), columns_without_data=tuple(without_data)
    )


def _mixed_directions(claim: BaseClaim, datasets: Iterable[DataColumn]) -> Exclusion | None:
    """Why a claim has no one meaning: its direction is an advance on some columns alone."""
    falling = [dataset.heading for dataset in datasets if dataset.falls]
    rising = [dataset.heading for dataset in datasets if dataset.scale.higher_is_better]
    if claim.direction == "within" or not falling or not rising:
        return None
    return Exclusion(
        "mixed directions",
        f"lower is better in {', '.join(falling)}, higher in {', '.join(rising)}: claim a direction"
        " of each column by itself",
    )


def _unresolved_claim(claim: BaseClaim, column: Column, table: ScoreTable) -> ResolvedClaim:
    """Why no data set speaks for a column."""
    missing = Exclusion("no run in column", f"no run on {column.name} or a substitute for it")
    for dataset in reversed(table.columns):
        unscored = sum(table.cells[row, dataset.key].num_unscored for row in table.rows)
        if dataset.column == column and unscored:
            missing = exclude_missing_metric(unscored, dataset.metric)
    return ResolvedClaim(claim, None, NOTHING, missing=missing)


# -- differences of differences ------------------------------------------------------------------


def _contrast_claim(claim: ContrastClaim, table: ScoreTable) -> list[ResolvedClaim]:
    """One for each pair of data sets that belong together, and one for each without counterpart.

    The paper's data set goes with the paper's, and a stand-in with the one at its place in the
    other column's list. A column with a single data set by nature (no stand-ins, a mean, a fact of
    pre-training) goes with every one.
    """
    assert claim.against is not None
    column = table.spec.column(claim.column)
    other_column = table.spec.column(claim.against[2])
    datasets = datasets_for_column(column.name, table.with_results)
    other_datasets = datasets_for_column(other_column.name, table.with_results)
    if not other_datasets:
        return [_unresolved_claim(claim, other_column, table)]

    goes_with_all = _is_single(datasets, column) or _is_single(other_datasets, other_column)
    resolved = []
    paired = set()
    for dataset, other in product(datasets, other_datasets):
        if goes_with_all or _place(dataset, column) == _place(other, other_column):
            resolved.append(_contrast_on(claim, dataset, other, table))
            paired |= {dataset.key, other.key}

    alone = [(dataset, column, other_column) for dataset in datasets]
    alone += [(dataset, other_column, column) for dataset in other_datasets]
    for dataset, own_column, lacking_column in alone:
        if dataset.key not in paired:
            missing = _without_counterpart(dataset, own_column, lacking_column)
            resolved.append(ResolvedClaim(claim, dataset, dataset.heading, missing=missing))
    return resolved


def _is_single(datasets: Sequence[DataColumn], column: Column) -> bool:
    return len(datasets) == 1 and not column.stand_ins


def _contrast_on(
    claim: ContrastClaim, dataset: DataColumn, other: DataColumn, table: ScoreTable
) -> ResolvedClaim:
    columns = (dataset, dataset, other, other)
    terms = tuple(
        ContrastTerm(weight, row, column)
        for (weight, row, _), column in zip(claim.weighted_cells, columns, strict=True)
    )
    judged_on = dataset.heading
    if dataset.key != other.key:
        judged_on = f"{dataset.heading} against {other.heading}"
    # Where either is not the paper's data, the paper's size says nothing about the difference.
    speaks = other if dataset.is_paper and not other.is_paper else dataset
    return ResolvedClaim(claim, speaks, judged_on, (make_contrast(table, terms),))


def _place(dataset: DataColumn, column: Column) -> int | str:
    """Where paper.yaml lists a data set in its column (the paper's own is 0), or its name."""
    if dataset.task in column.tasks:
        return column.tasks.index(dataset.task)
    return dataset.task


def _without_counterpart(
    dataset: DataColumn, own_column: Column, lacking_column: Column
) -> Exclusion:
    code = "no counterpart"
    name = lacking_column.name
    place = _place(dataset, own_column)
    if isinstance(place, int) and place < len(lacking_column.tasks):
        task = lacking_column.tasks[place]
        return Exclusion(code, f"no run on {task}, the counterpart of {dataset.heading} in {name}")
    return Exclusion(code, f"{name} has no counterpart of {dataset.heading} in paper.yaml")


# -- crossing lines ------------------------------------------------------------------------------


def _crossing_claim(claim: CrossingClaim, dataset: DataColumn, table: ScoreTable) -> ResolvedClaim:
    """Its two contrasts are the second line's lead at the first common point, and the first line's
    at the last, which the claim's rows set.

    Points between them are left out where they may not be compared or rest on collapsed runs.
    """

    def without(code: str, text: str) -> ResolvedClaim:
        return ResolvedClaim(claim, dataset, dataset.heading, missing=Exclusion(code, text))

    def line_of(row: str) -> CheckpointSeries | None:
        series = table.checkpoint_series
        return next((line for line in series if row in line.rows.values()), None)

    if dataset.scale.higher_is_better is None:
        return without("no direction", "it is not declared whether a higher score is better")
    first, second = map(line_of, claim.rows)
    if first is None or second is None:
        return without("no checkpoints", "no runs at two or more fractions of both arms' steps")
    fractions = _common_fractions(claim, first, second, dataset, table)
    if len(fractions) < 2:
        return without("few points", f"{first.name} and {second.name} have less than two points")

    unit, amounts = _amounts_at(claim, (first, second), fractions)
    curves = []
    for line, by_fraction in zip((first, second), amounts, strict=True):
        points = tuple((by_fraction[fraction], line.rows[fraction]) for fraction in fractions)
        curves.append(LearningCurve(line.name, unit, points))
    start = max(curve.start for curve in curves)
    end = min(curve.end for curve in curves)
    if start >= end:
        return without("no stretch", f"the lines have no stretch of {unit} in common")

    # Of losses the smaller one is ahead.
    ahead, behind = curves[::-1] if dataset.falls else curves
    contrasts = (
        _lead(behind, ahead, start, dataset, table),
        _lead(ahead, behind, end, dataset, table),
    )
    return ResolvedClaim(claim, dataset, dataset.heading, contrasts, curves=tuple(curves))


def _common_fractions(
    claim: CrossingClaim,
    first: CheckpointSeries,
    second: CheckpointSeries,
    dataset: DataColumn,
    table: ScoreTable,
) -> list[float]:
    """Fractions at which both lines have comparable scores, up to the claim's rows."""
    series = (first.rows, second.rows)
    points = chain.from_iterable(rows.items() for rows in series)
    end = min(fraction for fraction, row in points if row in claim.rows)
    scored = []
    for fraction in first.rows:
        if fraction <= end and all(
            fraction in rows and table.cells[rows[fraction], dataset.key].scores for rows in series
        ):
            scored.append(fraction)

    usable = []
    for fraction in scored:
        is_end = fraction in (scored[0], scored[-1])
        if is_end or _is_usable(first.rows[fraction], second.rows[fraction], dataset, table):
            usable.append(fraction)
    return usable


def _is_usable(first: str, second: str, dataset: DataColumn, table: ScoreTable) -> bool:
    contrast = contrast_rows(table, first, second, dataset)
    is_comparable = contrast.exclusions.incomparability is None
    has_collapsed = contrast.exclusions.every_run_collapsed or contrast.depends_on_collapsed_runs
    return is_comparable and not has_collapsed


def _amounts_at(
    claim: CrossingClaim, lines: Sequence[CheckpointSeries], fractions: Sequence[float]
) -> tuple[str, list[dict[float, float]]]:
    """(unit, amount of each line at each fraction); shares of the steps where amounts are unknown.

    Arms are matched up to a tolerance: where two amounts are that near, both lines are put at
    their mean.
    """
    unit: str = claim.measured_in or "tokens"
    amounts = [line.reached(fractions, unit) for line in lines]
    if not all(amounts):
        unit = ""
        amounts = [dict(zip(fractions, fractions, strict=True)) for _ in lines]
    first, second = amounts
    for fraction in fractions:
        # Nearly equal amounts are taken for equal, so that the points of both lines meet.
        low, high = sorted((first[fraction], second[fraction]))
        if high <= (1.0 + TOLERANCE) * low:
            first[fraction] = second[fraction] = (low + high) / 2
    return unit, amounts


def _lead(
    leader: LearningCurve,
    other: LearningCurve,
    amount: float,
    dataset: DataColumn,
    table: ScoreTable,
) -> Contrast:
    """What one curve is ahead of another at an amount where one of them has a row.

    The other one may lie between two rows there; then the row stands against each of both, by
    their weights.
    """
    # A line without a point there lies between two: 0.3 of one row and 0.7 of the next.
    weighted_pairs = []
    for weight, row in leader.rows_around(amount):
        for other_weight, other_row in other.rows_around(amount):
            weighted_pairs.append((weight * other_weight, row, other_row))

    terms = []
    for weight, row, other_row in weighted_pairs:
        terms.append(ContrastTerm(weight, row, dataset))
        terms.append(ContrastTerm(-weight, other_row, dataset))
    label = table.spec.label
    firsts = dict.fromkeys(label(row) for _, row, _ in weighted_pairs)
    seconds = dict.fromkeys(label(row) for _, _, row in weighted_pairs)
    names = f"{' and '.join(firsts)} {MINUS} {' and '.join(seconds)}"
    return make_contrast(table, tuple(terms), label=names)


def families_of(claims: Iterable[ResolvedClaim]) -> Mapping[str, list[Contrast]]:
    """A primary claim in words -> its contrasts, in the order of the claims.

    Claims that are primary together are one family. Last, under no name, those of all others.
    """
    families: dict[str, list[Contrast]] = {}
    for resolved in sorted(claims, key=lambda resolved: not resolved.claim.primary):
        name = f"the primary claim '{resolved.claim.text}'" if resolved.claim.primary else ""
        if resolved.claim.primary == "together":
            name = "every primary claim"
        families.setdefault(name, []).extend(resolved.contrasts)
    return families
