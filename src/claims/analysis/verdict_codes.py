"""The codes of verdicts, as claims.csv and the analysis log hold them.

A code is never shown: report/verdict_styles.py has the label and the colours of each.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

# behind the label of an exploratory verdict, in files of earlier versions
_EXPLORATORY_SUFFIX = " (exploratory)"


class Verdict(StrEnum):
    """What our scores say of a claim."""

    HOLDS = "holds"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"
    ONE_SEED = "one_seed"
    BELOW_FLOOR = "below_floor"
    NOT_COMPARABLE = "not_comparable"

    @property
    def is_decided(self) -> bool:
        return self in (Verdict.HOLDS, Verdict.CONTRADICTED)


# Files of earlier versions hold these labels where today's hold the code.
_FORMER_LABELS = {
    "inconclusive (one seed)": Verdict.ONE_SEED,
    "inconclusive (below its floor)": Verdict.BELOW_FLOOR,
    "not comparable": Verdict.NOT_COMPARABLE,
}


class StoredVerdict(NamedTuple):
    """A verdict as a file holds it."""

    code: Verdict
    is_exploratory: bool


def read_verdict(text: str) -> StoredVerdict:
    """Read a code, or the label that an earlier version wrote. ValueError: it is neither."""
    is_exploratory = text.endswith(_EXPLORATORY_SUFFIX)
    name = text.removesuffix(_EXPLORATORY_SUFFIX)
    if name in _FORMER_LABELS:
        return StoredVerdict(_FORMER_LABELS[name], is_exploratory)
    return StoredVerdict(Verdict(name), is_exploratory)
