"""How each verdict looks: its label, its mark and its colours, on a page and in a terminal.

This is the only place that has them. A label can be changed here and nothing else notices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from claims.analysis.verdict_codes import Verdict

EXPLORATORY = " (exploratory)"


@dataclass(frozen=True)
class VerdictColours:
    """The colours of a verdict."""

    # CSS colours, on a light page and on a dark one
    light: str
    dark: str
    # rich's name of a style
    terminal: str
    # the character before the label on a page
    mark: str
    # of a forest plot: how its estimate is drawn (circle, cross, ring, square), and in a terminal
    shape: str
    character: str


LABELS: Mapping[Verdict, str] = {
    Verdict.HOLDS: "holds",
    Verdict.CONTRADICTED: "contradicted",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.ONE_SEED: "inconclusive (one seed)",
    Verdict.BELOW_FLOOR: "inconclusive (below its baseline)",
    Verdict.NOT_COMPARABLE: "not comparable",
}
# labels that change with the number of claims
PLURALS = {"holds": "hold"}

_OPEN = VerdictColours(
    light="#7a5b00", dark="#e0bd55", terminal="yellow", mark="?", shape="ring", character="\u25cb"
)
_HOLDS = VerdictColours(
    light="#00694d",
    dark="#4cc9a0",
    terminal="green",
    mark="\u2713",
    shape="circle",
    character="\u25cf",
)
_CONTRADICTED = VerdictColours(
    light="#b3340f",
    dark="#ff8a66",
    terminal="red",
    mark="\u2717",
    shape="cross",
    character="\u2717",
)
_NOT_COMPARABLE = VerdictColours(
    light="#5f6570",
    dark="#a0a6b0",
    terminal="dim",
    mark="\u2013",
    shape="square",
    character="\u25a1",
)
COLOURS: Mapping[Verdict, VerdictColours] = {
    Verdict.HOLDS: _HOLDS,
    Verdict.CONTRADICTED: _CONTRADICTED,
    Verdict.INCONCLUSIVE: _OPEN,
    Verdict.ONE_SEED: _OPEN,
    Verdict.BELOW_FLOOR: _OPEN,
    Verdict.NOT_COMPARABLE: _NOT_COMPARABLE,
}


def label_of(verdict: Verdict, *, is_exploratory: bool = False, count: int = 1) -> str:
    """The verdict as a reader sees it: "holds (exploratory)"; of several claims "hold"."""
    label = LABELS[verdict]
    if count > 1:
        label = PLURALS.get(label, label)
    return f"{label}{EXPLORATORY}" if is_exploratory else label
