"""What a judgement rests on, and what the pages say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clozelab.analysis.claims import BaseClaim, read_claim
from clozelab.analysis.comparability import find_incomparability, provenance_differences
from clozelab.analysis.reasons import Incomparability, Missing
from clozelab.analysis.verdicts import Judgement
from clozelab.report import claims, wording
from clozelab.report.wording import (
    cell_note,
    crossover_interval,
    crossover_place,
    judgement_note,
    role_of,
    verdict_label,
)
from clozelab.results.table import ResultTable

__all__ = [
    "cell_note",
    "crossover_interval",
    "crossover_place",
    "forecast",
    "incomparability_of",
    "judgement_note",
    "made_apart",
    "make_claim",
    "missing_in",
    "role_of",
    "verdict_label",
    "why_barred",
    "why_not",
]


def make_claim(**entry: Any) -> BaseClaim:
    """A claim as paper.yaml has it."""
    return read_claim(entry)


def forecast(judgement: Judgement, table: ResultTable | None = None) -> str:
    """With a table also how long more seeds take."""
    if table is None:
        return wording.forecast(judgement, None)
    return claims.needs_of(judgement, table)


def incomparability_of(judgement: Judgement) -> Incomparability | None:
    """Why the claim's first contrast is barred; None where it is not."""
    return judgement.placed.contrasts[0].obstacles.incomparability


def missing_in(judgement: Judgement) -> Missing | None:
    """What the claim, or else its first contrast that lacks something, has no scores of."""
    if judgement.placed.missing:
        return judgement.placed.missing
    for contrast in judgement.placed.contrasts:
        if contrast.obstacles.missing:
            return contrast.obstacles.missing
    return None


def why_barred(
    table: ResultTable, first: str, second: str, tasks: Sequence[str]
) -> Incomparability | None:
    """Why two rows are not comparable; None where they are."""
    pair = table.evidence(first, second, tuple(tasks))
    return find_incomparability(pair) if pair else None


def why_not(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> str:
    """Why two rows are not comparable; empty where they are."""
    reason = why_barred(table, first, second, tasks)
    return wording.incomparability(reason) if reason else ""


def made_apart(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> str:
    pair = table.evidence(first, second, tuple(tasks))
    return wording.provenance(provenance_differences(pair)) if pair else ""
