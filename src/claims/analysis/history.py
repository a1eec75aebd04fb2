"""The analysis log beside the runs: at which seeds claims were judged before, and which claims.

What is decided after seeds were added without a sequential design, or of a claim that was made
after its numbers were seen, is exploratory (docs/decisions/0015).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path

from claims.analysis.schema import BaseClaim, SequentialDesign

ANALYSIS_LOG = "looks.jsonl"
UNREADABLE = "unreadable"
TWO_SIDED = {"higher": "order", "lower": "order", "increasing": "trend", "decreasing": "trend"}
"""direction of a claim without a margin -> what its two-sided test is called"""


@dataclass(frozen=True)
class InterimAnalysis:
    """One time that claims were judged."""

    # ISO time, or UNREADABLE for a line that nobody can read
    time: str
    # ContrastKey.for_history() of every tested contrast -> its seeds, as SeedSet writes them
    seeds: Mapping[str, str]
    # claim, and what it is judged on -> verdict
    verdicts: Mapping[str, str]
    # the sequential design that its tests allowed for; empty for none
    rule: str = ""
    # id or text -> what was claimed of which rows, if tested; empty: nobody knows
    claims: Mapping[str, str] = field(default_factory=dict)


def read_log(folder: Path) -> list[InterimAnalysis]:
    """Earlier analyses, oldest first; a line that cannot be read stands for unknown seeds."""
    path = folder / ANALYSIS_LOG
    if not path.is_file():
        return []
    analyses = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line:
            continue
        try:
            analyses.append(InterimAnalysis(**json.loads(line)))
        except (TypeError, ValueError):
            analyses.append(InterimAnalysis(UNREADABLE, {}, {}))
    return analyses


def append_to_log(folder: Path, analysis: InterimAnalysis) -> None:
    """Note an analysis. OSError: the folder cannot be written."""
    path = folder / ANALYSIS_LOG
    content = path.read_bytes() if path.is_file() else b""
    # A line that was cut off by a full disk ends without a line break.
    is_cut_off = bool(content) and not content.endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        if is_cut_off:
            file.write("\n")
        file.write(json.dumps(asdict(analysis)) + "\n")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_stopping_rule(design: SequentialDesign | None) -> str:
    """A sequential design as the log has it; empty for none."""
    if design is None:
        return ""
    return f"a look after each of {design.first} to {design.most} pre-training seeds"


def statement(claim: BaseClaim) -> str:
    """A claim without its name and text, as JSON for the log."""
    return claim.model_dump_json(exclude={"id", "text", "paper_delta"}, exclude_defaults=True)


# -- what makes a verdict exploratory ------------------------------------------------------------


class BreachKind(StrEnum):
    """In which way an earlier analysis counts against a verdict."""

    CLAIMED_LATE = "claimed_late"
    CLAIM_DROPPED = "claim_dropped"
    SEEDS_ADDED = "seeds_added"
    SEEDS_LEFT_OUT = "seeds_left_out"
    RULE_CHANGED = "rule_changed"


@dataclass(frozen=True)
class Breach:
    """What makes a decided verdict exploratory."""

    kind: BreachKind
    # of the earlier analysis: YYYY-MM-DD
    day: str
    # its seeds, as SeedSet writes them, and its verdict as the log has it; both empty where
    # nothing depends on them, the verdict also where the claim was another one
    seeds: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class History:
    """Earlier analyses, as they count against the claims of now."""

    analyses: Sequence[InterimAnalysis]
    # those before the first one at the present seeds and design
    before: Sequence[InterimAnalysis]
    rule: str
    # statements of all claims of now
    claims: Sequence[str]

    @classmethod
    def from_analyses(
        cls,
        analyses: Sequence[InterimAnalysis],
        seeds: Mapping[str, str],
        design: SequentialDesign | None,
        claims: Iterable[BaseClaim],
    ) -> History:
        """The analyses against the present ones: `seeds` of every tested contrast."""
        rule = describe_stopping_rule(design)
        before = []
        for analysis in analyses:
            if analysis.seeds == seeds and analysis.rule == rule:
                break
            before.append(analysis)
        return cls(analyses, before, rule, [statement(claim) for claim in claims])

    def breaches(self, claim: BaseClaim, judged_on: str, seeds: Mapping[str, str]) -> list[Breach]:
        """What makes a decided verdict on a claim exploratory: dropped claims first.

        `seeds` are those of the claim's tested contrasts.
        """
        breaches = []
        with_claims = (analysis for analysis in self.analyses if analysis.claims)
        of_seeds = (analysis for analysis in with_claims if seeds.keys() & analysis.seeds.keys())
        first = next(of_seeds, None)
        if first is not None:
            day = first.time[:10]
            text = statement(claim)
            if text not in first.claims.values():
                breaches.append(Breach(BreachKind.CLAIMED_LATE, day))
            # What the claim's test allowed for then, it has to allow for still.
            elif not allowed_for(text, first.claims.values()) <= allowed_for(text, self.claims):
                breaches.append(Breach(BreachKind.CLAIM_DROPPED, day))
        breaches += self._unplanned_analysis(f"{claim.text} ({judged_on})", seeds)
        return breaches

    def _unplanned_analysis(self, claim: str, seeds: Mapping[str, str]) -> list[Breach]:
        """The first earlier analysis of these contrasts that the design did not plan."""
        for analysis in self.before:
            for key, present in seeds.items():
                if analysis.seeds and self._is_planned(analysis, key, present):
                    continue
                then = analysis.seeds.get(key, "unknown seeds")
                verdict = analysis.verdicts.get(claim, "")
                kind = _kind_of_change(then, present)
                return [Breach(kind, analysis.time[:10], then, verdict)]
        return []

    def _is_planned(self, analysis: InterimAnalysis, key: str, present: str) -> bool:
        """Whether an analysis counts for nothing against a contrast.

        It was of other contrasts, at the same seeds, or by the design at the first of these seeds.
        """
        if key not in analysis.seeds:
            return True
        if analysis.rule != self.rule:
            return False
        then = analysis.seeds[key]
        return then == present or (bool(self.rule) and _begins_with(present, then))


def _kind_of_change(then: str, present: str) -> BreachKind:
    """What changed since an analysis of other seeds, or of the same ones by another rule."""
    if then == present:
        return BreachKind.RULE_CHANGED
    for earlier, now in zip(then.split("/"), present.split("/"), strict=False):
        if not set(now.split()) <= set(earlier.split()):
            return BreachKind.SEEDS_ADDED
    return BreachKind.SEEDS_LEFT_OUT


def _begins_with(seeds: str, start: str) -> bool:
    """`1 2 3/1` begins with `1 2/1`: more pre-training seeds, and the same fine-tuning seeds.

    What is tested with one pre-training seed is of given encoders: `1/1 2 3` begins with `1/1 2`.
    """
    first, _, finetune_seeds = start.partition("/")
    later, _, later_finetune_seeds = seeds.partition("/")
    if first == later and " " not in first:
        return f"{later_finetune_seeds} ".startswith(f"{finetune_seeds} ")
    return f"{later} ".startswith(f"{first} ") and finetune_seeds == later_finetune_seeds


def allowed_for(claim: str, claims: Iterable[str]) -> set[str]:
    """The claims that a claim's test allows for: each by rows, column and kind of margin.

    Of a primary claim these are the primary ones before it (all, of claims that are primary
    together), and whether there are others. Of any other claim they are all claims, and which of
    them are primary. `claim` is among `claims`.
    """
    texts = tuple(claims)
    entry = json.loads(claim)
    if not entry.get("primary"):
        return set(_secondary_allowance(texts))
    entries = [json.loads(text) for text in texts]
    primary = [other for other in entries if other.get("primary")]
    end = None if entry["primary"] == "together" else primary.index(entry)
    before = {_name_of(other) for other in primary[:end]}
    return before | {"others"} if len(primary) < len(entries) else before


@cache
def _secondary_allowance(claims: tuple[str, ...]) -> frozenset[str]:
    """What every claim that is not primary allows for: one answer for all of a table's."""
    entries = [json.loads(text) for text in claims]
    names = {_name_of(entry) for entry in entries}
    primary = {f"first {_name_of(entry)}" for entry in entries if entry.get("primary")}
    return frozenset(names | primary)


def _name_of(entry: Mapping[str, object]) -> str:
    keys = [entry.get(key) for key in ("rows", "column", "against")]
    # within, not_lower and not_higher of the same rows are three tests. Without a margin higher and
    # lower are one, and so are increasing and decreasing.
    direction = entry.get("direction")
    if "points" not in entry:
        direction = TWO_SIDED.get(str(direction), direction)
    return json.dumps([*keys, direction])
