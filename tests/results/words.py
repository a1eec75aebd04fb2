"""What the pages say of a judgement, for tests that look at sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clozelab.analysis.claims import BaseClaim, read_claim
from clozelab.analysis.comparability import find_incomparability, provenance_differences
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
    "judgement_note",
    "made_apart",
    "make_claim",
    "role_of",
    "verdict_label",
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


def why_not(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> str:
    """Why two rows are not comparable; empty where they are."""
    pair = table.evidence(first, second, tuple(tasks))
    reason = find_incomparability(pair) if pair else None
    return wording.incomparability(reason) if reason else ""


def made_apart(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> str:
    pair = table.evidence(first, second, tuple(tasks))
    return wording.provenance(provenance_differences(pair)) if pair else ""
