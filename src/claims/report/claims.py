"""The claims, and the differences of a table without claims, as a page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

from claims.analysis.contrasts import Contrast, contrast_rows
from claims.analysis.multiplicity import fallback_procedure
from claims.analysis.schema import (
    BaseClaim,
    ContrastClaim,
    CrossingClaim,
    EquivalenceClaim,
    NoninferiorityClaim,
    OrderClaim,
    SuperiorityClaim,
    TrendClaim,
)
from claims.analysis.scores import DataColumn, ScoreTable
from claims.analysis.statistics import PRETRAINING_SEEDS, Estimate
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from claims.report import wording
from claims.report.estimates import interval, probability
from claims.text.phrases import signed

POINTS = "points"
DIRECTIONS = {
    "increasing": "rising",
    "decreasing": "falling",
    "not_lower": "not lower",
    "not_higher": "not higher",
}


@dataclass(frozen=True)
class ClaimFigures:
    """The numbers of a claim, in words; empty texts for what there is not."""

    # the claimed difference, or its direction
    paper: str
    ours: str
    interval: str
    # "p = 0.012, corrected 0.024", and the corrected one alone
    p: str
    corrected: str
    # what the interval is over, where that is not what most of the table's are over
    basis: str
    # which difference it is, where a claim has several
    weakest: str
    # what resampling or McNemar's test says, which decides nothing
    resampled: str


@dataclass(frozen=True)
class ClaimView:
    """A claim with its verdict and what both rest on, in words."""

    number: int
    judgement: Judgement
    # the answer as one sentence
    sentence: str
    # what the paper says, or who claims it: "the paper −10.1", "claimed: higher"
    claimed: str
    # the rows in the order of the claim
    compared: str
    # the verdict as a reader sees it
    label: str
    figures: ClaimFigures
    # what would decide it, and the same for a narrow page
    needs: str
    needs_short: str
    note: str

    @property
    def is_answer(self) -> bool:
        """It is a primary claim or a decided one: the first screen has it."""
        return bool(self.judgement.claim.primary) or self.verdict.is_decided

    @property
    def text(self) -> str:
        return self.judgement.claim.text

    @property
    def judged_on(self) -> str:
        return self.judgement.judged_on

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def is_exploratory(self) -> bool:
        return self.judgement.is_exploratory


@dataclass(frozen=True)
class DifferenceView:
    """The difference of a row from the first one, on a data set."""

    row: str
    first: str
    judged_on: str
    ours: str
    unit: str
    interval: str
    p: str
    note: str


def claim_views(judgements: Sequence[Judgement], table: ScoreTable) -> list[ClaimView]:
    """The judgements in words."""
    views = []
    for number, judgement in enumerate(judgements, 1):
        views.append(_claim_view(number, judgement, table))
    return views


def _claim_view(number: int, judgement: Judgement, table: ScoreTable) -> ClaimView:
    figures = _figures(judgement, table)
    claimed = _claimed(judgement, table)
    note = wording.seed_words(wording.judgement_note(judgement), table)
    needs_short = judgement.forecast.short if judgement.forecast else ""
    if judgement.weakest and judgement.weakest.depends_on_collapsed_runs:
        needs_short = "rests on collapsed runs"
    sentence = _sentence(judgement, figures, claimed, note)
    compared = _compared(judgement.claim, table)
    label = wording.verdict_label(judgement)
    needs = wording.seed_words(needs_of(judgement, table), table)
    return ClaimView(
        number,
        judgement,
        sentence,
        claimed,
        compared,
        label,
        figures,
        needs,
        needs_short,
        note,
    )


# -- what is claimed -------------------------------------------------------------------------------


def _is_our_measure(judgement: Judgement, table: ScoreTable) -> bool:
    """Whether the claim is about a column that no paper has a number of."""
    columns = table.spec.columns
    return any(column.is_measured and column.name == judgement.claim.column for column in columns)


def _claimed_size(judgement: Judgement) -> str:
    """The paper's difference; its direction where ours may not be held against its size."""
    if judgement.paper_size is not None:
        return signed(judgement.paper_size, _decimals(judgement.column))
    claim = judgement.claim
    if isinstance(claim, EquivalenceClaim):
        return f"within {claim.points:g}"
    if claim.has_margin:
        return f"{DIRECTIONS.get(claim.direction, claim.direction)} by {claim.points:g} or more"
    return DIRECTIONS.get(claim.direction, claim.direction)


def _claimed(judgement: Judgement, table: ScoreTable) -> str:
    """`the paper −10.1`, `claimed: higher`."""
    author = "claimed"
    if table.has_paper and not _is_our_measure(judgement, table):
        author = "the paper"
    separator = ": " if judgement.paper_size is None else " "
    return f"{author}{separator}{_claimed_size(judgement)}"


def _compared(claim: BaseClaim, table: ScoreTable) -> str:
    labels = [table.label(row) for row in claim.rows]
    first, *other_labels = labels
    if isinstance(claim, TrendClaim):
        return f"{', '.join(labels)}: {claim.direction}"
    if isinstance(claim, EquivalenceClaim):
        return f"{', '.join(labels)}: within {claim.points:g} of each other"
    if isinstance(claim, CrossingClaim):
        return f"along the lines up to {first} and {other_labels[0]}"
    each_of = "each of " if len(other_labels) > 1 else ""
    if isinstance(claim, NoninferiorityClaim):
        side = DIRECTIONS.get(claim.direction, claim.direction).removeprefix("not ")
        others = f"{each_of}{', '.join(other_labels)}"
        amount = "more" if isinstance(claim, SuperiorityClaim) else "less"
        return f"{first} {amount} than {claim.points:g} {side} than {others}"
    if not isinstance(claim, OrderClaim | ContrastClaim):
        raise TypeError(f"no words for what a {type(claim).__name__} compares")
    text = f"{first} against {each_of}{', '.join(other_labels)}"
    if claim.against is None:
        return text
    base, other_base, column = claim.against
    less = f"{table.label(base)} against {table.label(other_base)}"
    return f"{text} on {claim.column}, less {less} on {column}"


# -- figures ---------------------------------------------------------------------------------------


def _column_of(judgement: Judgement) -> DataColumn | None:
    """The data set of the shown difference; of a claim about all columns, that of the weakest."""
    if judgement.weakest:
        return judgement.weakest.terms[0].column
    return judgement.column


def unit_of(judgement: Judgement) -> str:
    """The unit of a claim's difference: points of percent, or the column's own."""
    column = _column_of(judgement)
    return column.unit_of_difference if column else POINTS


def _decimals(column: DataColumn | None) -> int:
    return column.decimals if column else 1


def _figures(judgement: Judgement, table: ScoreTable) -> ClaimFigures:
    difference = judgement.difference
    decimals = _decimals(_column_of(judgement))
    paper = _claimed_size(judgement)
    if table.has_paper and _is_our_measure(judgement, table):
        paper = f"{paper} (ours)"
    ours = signed(difference.mean if difference else None, decimals)
    interval_text = interval(difference, decimals, judgement.claim.boundaries)
    weakest = ""
    if judgement.crossover:
        ours = wording.crossover_place(judgement.crossover)
        interval_text = wording.crossover_interval(judgement.crossover)
    elif judgement.reported_contrast:
        weakest = f"weakest: {judgement.reported_contrast}"
    basis = difference.basis if difference else table.most_common_basis
    if basis == table.most_common_basis:
        basis = ""
    return ClaimFigures(
        paper=paper,
        ours=ours,
        interval=interval_text,
        p=_p_values(judgement),
        corrected=probability(judgement.corrected_p),
        basis=basis,
        weakest=weakest,
        resampled=wording.resampled(judgement.weakest, table),
    )


def _p_values(judgement: Judgement) -> str:
    """`p = 0.012, corrected 0.024`, as far as they are known; empty where nothing is tested."""
    if judgement.p_value is None:
        return ""
    if judgement.corrected_p is None:
        return probability(judgement.p_value)
    corrected = probability(judgement.corrected_p).removeprefix("p ").removeprefix("= ")
    return f"{probability(judgement.p_value)}, corrected {corrected}"


# -- words -----------------------------------------------------------------------------------------


def _sentence(judgement: Judgement, figures: ClaimFigures, claimed: str, note: str) -> str:
    """`Left-to-right costs SQuAD: contradicted here, +36.3 F1 [+35.0, +37.6]; the paper −10.1`."""
    text = judgement.claim.text
    where = " here"
    if judgement.column and not judgement.column.is_paper:
        where = f" on {judgement.judged_on}"
    result = f" ({note})" if note else ""
    if judgement.difference or judgement.crossover:
        weakest = f"{figures.weakest}, " if figures.weakest else ""
        size = f"{figures.ours}{_unit_in_sentence(judgement)}"
        result = f", {weakest}{size} {figures.interval}".rstrip()
    answer = f"{wording.verdict_label(judgement)}{where}{result}"
    return f"{text[:1].upper()}{text[1:]}: {answer}; {claimed}"


def _unit_in_sentence(judgement: Judgement) -> str:
    if judgement.crossover:
        return ""
    if judgement.column and judgement.column.metric.rpartition("/")[2] == "f1":
        return " F1"
    return f" {unit_of(judgement)}"


def needs_of(judgement: Judgement, table: ScoreTable) -> str:
    """How many seeds would decide a claim, and how long these rows' runs take for them."""
    seconds = None
    if judgement.forecast and judgement.forecast.additional_seeds:
        seconds = table.seconds_a_seed(judgement.rows, judgement.tasks)
    return wording.forecast(judgement, seconds)


# -- a table without claims ------------------------------------------------------------------------


def differences(table: ScoreTable, *, every_pair: bool = False) -> list[DifferenceView]:
    """Every other row against the first one, on every data set: for a table without claims.

    With `every_pair` every row against each of those before it.
    """
    contrasts = []
    for column, (first, row) in product(table.with_results, pairs_of_rows(table, every_pair)):
        contrasts.append(contrast_rows(table, row, first, column))
    corrected = fallback_procedure({"": contrasts}).corrected
    views = []
    for contrast in contrasts:
        if contrast.difference:
            p_value = corrected.get(contrast.key)
            views.append(_difference_view(contrast, contrast.difference, p_value, table))
    return views


def pairs_of_rows(table: ScoreTable, every_pair: bool) -> list[tuple[str, str]]:
    """The rows that are compared without claims: each with the first one, or all with all."""
    pairs = list(combinations(table.rows, 2))
    if every_pair:
        return pairs
    return [pair for pair in pairs if pair[0] == table.rows[0]]


def _seeds_left_out(contrast: Contrast, table: ScoreTable) -> list[str]:
    """Which pre-training seeds of a row have no run of the other row beside them."""
    seeds = []
    for term in contrast.terms:
        seeds.append(table.cells[term.row, term.column.key].pretraining_seeds)
    common = set.intersection(*seeds)
    notes = []
    for term, own in zip(contrast.terms, seeds, strict=True):
        if own - common:
            numbers = ", ".join(map(str, sorted(own - common)))
            notes.append(f"seeds {numbers} of {table.label(term.row)} are left out")
    return notes


def _difference_view(
    contrast: Contrast, difference: Estimate, p_value: float | None, table: ScoreTable
) -> DifferenceView:
    row, first = (table.label(term.row) for term in contrast.terms)
    column = contrast.terms[0].column
    notes = wording.contrast_notes(contrast)
    cells = [table.cells[term.row, term.column.key] for term in contrast.terms]
    if not any(cell.missing for cell in cells):
        notes += _seeds_left_out(contrast, table)
    if difference.basis != PRETRAINING_SEEDS:
        notes.append(f"over {difference.basis}")
    notes.append(wording.seed_words(wording.untested(contrast), table))
    notes.append(wording.resampled(contrast, table))
    note = "; ".join(filter(None, notes))
    ours = signed(difference.mean, column.decimals)
    return DifferenceView(
        row,
        first,
        column.heading,
        ours,
        column.unit_of_difference,
        interval=interval(difference, column.decimals),
        p=probability(p_value),
        note=note,
    )
