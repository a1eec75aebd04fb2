"""What a judgement rests on, and what the pages say of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from claims.analysis.comparability import Exclusion, find_incomparability
from claims.analysis.schema import BaseClaim, Claim
from claims.analysis.scores import Cell, DataColumn
from claims.analysis.verdicts import Judgement
from claims.report import claims, wording
from claims.report.wording import crossover_interval, crossover_place, judgement_note, verdict_label
from claims.text.phrases import signed
from clozelab.results.table import ResultTable

__all__ = [
    "as_frozen",
    "cell_note",
    "crossover_interval",
    "crossover_place",
    "forecast",
    "incomparability_of",
    "judgement_note",
    "missing_in",
    "read_claim",
    "role_of",
    "verdict_label",
    "why_barred",
    "why_not",
]


def as_frozen(interval: str, frozen: str) -> str:
    """An interval with the digits of a frozen one, which hid on which side of zero it lies."""
    end_at_zero = re.search(r"[\[ ]0\.(0+)[,\]]", frozen)
    if end_at_zero is None:
        return interval
    decimals = len(end_at_zero[1])

    def shortened(end: re.Match[str]) -> str:
        return signed(float(end[0].replace("−", "-")), decimals)

    return re.sub(r"[+−]?\d+\.\d+", shortened, interval)


NOTHING = Exclusion("", "")
CLAIMS: TypeAdapter[BaseClaim] = TypeAdapter(Claim)


def read_claim(entry: Any) -> BaseClaim:
    """One entry of `claims:`. ValidationError: what it cannot mean."""
    return CLAIMS.validate_python(entry)


def role_of(column: DataColumn) -> str:
    return column.role


def cell_note(cell: Cell) -> str:
    return "; ".join(cell.notes)


def forecast(judgement: Judgement, table: ResultTable | None = None) -> str:
    """With a table also how long more seeds take."""
    if table is None:
        return wording.forecast(judgement, None)
    return claims.needs_of(judgement, table)


def incomparability_of(judgement: Judgement) -> Exclusion:
    """Why the claim's first contrast is barred; NOTHING where it is not."""
    return judgement.resolved.contrasts[0].exclusions.incomparability or NOTHING


def missing_in(judgement: Judgement) -> str:
    """What the claim, or else its first contrast that lacks something, has no scores of."""
    lacks = [judgement.resolved.missing]
    lacks += [contrast.exclusions.missing for contrast in judgement.resolved.contrasts]
    return next((reason.text for reason in lacks if reason), "")


def why_barred(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> Exclusion:
    """Why two rows are not comparable; NOTHING where they are."""
    pair = table.evidence(first, second, tuple(tasks))
    return (find_incomparability(pair) if pair else None) or NOTHING


def why_not(table: ResultTable, first: str, second: str, tasks: Sequence[str]) -> str:
    """Why two rows are not comparable; empty where they are."""
    return why_barred(table, first, second, tasks).text
