"""What a check says: a level, a result in words, the figure behind it, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """One result of one check."""

    check: str
    level: str
    """ok | warning (the run goes on) | error (it does not)."""
    what: str
    figure: str = ""
    remedy: str = ""


def worst(findings: Sequence[Finding]) -> str:
    """The highest level among them; ok for none."""
    levels = {finding.level for finding in findings}
    return next((level for level in (ERROR, WARNING) if level in levels), OK)


def share(count: float, total: float) -> str:
    """`12 of 300 (4.0 %)`."""
    return f"{count:,.0f} of {total:,.0f} ({100 * count / total:.1f} %)" if total else "none"


def deviation(probability: float, number: int, sigmas: float = 4.5) -> float:
    """How far an observed share of `number` draws may lie from its probability by chance."""
    return sigmas * float(probability * (1 - probability) / max(1, number)) ** 0.5
