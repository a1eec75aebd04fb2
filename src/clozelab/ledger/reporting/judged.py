"""What a report says of its claims: differences, their unit, and where they lie on the common axis of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clozelab.ledger.reporting.claims import MONOTONE, SPREAD
from clozelab.ledger.reporting.experiment import PERCENT
from clozelab.ledger.reporting.table import Table
from clozelab.ledger.reporting.verdicts import ONE_SEED, Judgement
from clozelab.ledger.reporting.wording import interval, probability, signed
from clozelab.metrics.statistics import MOST_SEEDS

POINTS = "points"


def axis_of(judgements: Sequence[Judgement]) -> float:
    """Half the width of the claims' common axis in points: shows every mean, and cuts an interval that dwarfs them."""
    judgements = [one for one in judgements if _in_points(one)]
    differences = [one.difference for one in judgements if one.difference]
    means = [abs(one.mean) for one in differences]
    means += [max(abs(one.paper_size or 0.0), one.claim.points) for one in judgements]
    ends = [abs(end) for one in differences for end in (one.low, one.high) if end is not None]
    return max(1.0, min(1.05 * max([*means, *ends], default=0.0), 2.0 * max(means, default=0.0)))


def unit_of(one: Judgement) -> str:
    """What the difference is in."""
    return POINTS if one.column is None or one.column.unit == PERCENT else one.column.unit


def _in_points(one: Judgement) -> bool:
    """Whether the difference is in percent points, as the common axis is."""
    return unit_of(one) == POINTS


def judgement_page(one: Judgement, table: Table, *, axis: float, basis: str) -> dict[str, Any]:
    """What a report shows of a judgement; `basis` is what most of its intervals are over."""
    difference, decimals = one.difference, one.column.decimals if one.column else 1
    corrected = f"corrected {probability(one.corrected).removeprefix('p ').removeprefix('= ')}"
    return {
        "text": one.claim.text,
        "compared": _compared(one, table),
        "paper": one.claim.in_words() if one.paper_size is None else signed(one.paper_size, decimals),
        "judged_on": one.judged_on,
        "ours": signed(difference.mean if difference else None, decimals),
        "interval": interval(difference, decimals),
        "shown": f"weakest: {one.shown}" if one.shown else "",
        "p": f"{probability(one.p)}, {corrected}" if one.p is not None else "",
        "corrected": probability(one.corrected),
        "basis": difference.basis if difference and difference.basis != basis else "",
        "marks": {key: _share(value, axis) for key, value in _marks(one).items() if value is not None},
        "verdict": one.verdict,
        "kind": one.verdict.split()[0],
        "needs": one.needs,
        "needs_short": _needs_short(one),
        "note": one.note,
    }


def _compared(one: Judgement, table: Table) -> str:
    """What stands against what, in the labels of the table."""
    claim, label = one.claim, table.experiment.label
    if claim.kind == MONOTONE:
        return f"{', '.join(map(label, claim.rows))}: {claim.direction}"
    if claim.kind == SPREAD:
        return f"{', '.join(map(label, claim.rows))}: within {claim.points:g} of each other"
    others = claim.rows[1:]
    text = f"{label(claim.rows[0])} against {'each of ' if len(others) > 1 else ''}{', '.join(map(label, others))}"
    if claim.against is None:
        return text
    first, second, column = claim.against
    return f"{text} on {claim.column}, less {label(first)} against {label(second)} on {column}"


def _marks(one: Judgement) -> dict[str, float | None]:
    """What is drawn on the axis of points; nothing for a difference in another unit."""
    if not _in_points(one):
        return {}
    marks: dict[str, float | None] = {"paper": one.paper_size}
    if one.claim.kind == SPREAD:
        marks |= {"least": -one.claim.points, "most": one.claim.points}
    if one.difference is not None:
        marks["ours"] = one.difference.mean
        if one.difference.low is not None and one.difference.high is not None:
            marks |= {"low": one.difference.low, "high": one.difference.high}
    return marks


def _needs_short(one: Judgement) -> str:
    """The same for a narrow page."""
    if one.verdict == ONE_SEED or not one.needs:
        return ""
    return f"~{one.decisive_seeds} seeds" if one.decisive_seeds else f">{MOST_SEEDS} seeds"


def _share(value: float, axis: float) -> float:
    """Where a value lies on the axis, in percent of its width."""
    return round(min(100.0, max(0.0, 50.0 + 50.0 * value / axis)), 2)
