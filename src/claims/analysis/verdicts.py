"""A claim against our scores: holds, contradicted, inconclusive or not comparable, and on what.

A claim rests on one contrast or on several. A contrast is decided by Student's t over pre-training
seeds, after the correction for every contrast that the table's claims rest on. One pre-training
seed cannot tell an arm from its luck: such a claim stays open. What is decided after seeds were
added without a sequential design is exploratory (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median

from claims.analysis.contrasts import Contrast, nearest_boundary
from claims.analysis.crossover import Crossover, find_crossover
from claims.analysis.history import (
    Breach,
    History,
    InterimAnalysis,
    append_to_log,
    describe_stopping_rule,
    now,
    read_log,
    statement,
)
from claims.analysis.hypotheses import ResolvedClaim, families_of, resolve_claim
from claims.analysis.multiplicity import Correction, fallback_procedure
from claims.analysis.power import MOST_SEEDS, minimum_detectable_difference, required_seeds
from claims.analysis.schema import ALL_COLUMNS, PERCENT, BaseClaim, SequentialDesign
from claims.analysis.scores import DataColumn, ScoreTable
from claims.analysis.statistics import SIGNIFICANCE, Estimate, nominal_level
from claims.analysis.verdict_codes import Verdict

# what a paper's cells are; ours are means
AVERAGES = {"mean": "means", "median": "medians", "best": "the best"}
# points, of the difference of two arms over pre-training seeds, where no finished run says more
ASSUMED_SD = 1.0


@dataclass(frozen=True)
class Forecast:
    """What would decide an open claim."""

    text: str
    # the same for a narrow page
    short: str
    additional_seeds: int = 0
    # pre-training seeds in all that would decide it, where a number can be given
    count: int | None = None


@dataclass(frozen=True)
class Judgement:
    """One claim on one data set (or on all of them)."""

    resolved: ResolvedClaim
    verdict: Verdict
    # of each contrast
    verdicts: tuple[Verdict, ...]
    # the contrast that supports the claim least, of those that there is a difference for
    weakest: Contrast | None
    # its p after the correction for the table; None where nothing is tested
    corrected_p: float | None
    # contrasts that are tested together
    num_tests: int
    # the primary claim that the weakest contrast's test waits for; empty for none
    gated_by: str
    forecast: Forecast | None
    # why the paper's size is not held against ours; empty where it is
    size_obstacle: str = ""
    # tested contrast, as the analysis log calls it -> its seeds
    seeds: Mapping[str, str] = field(default_factory=dict)
    # what makes the verdict exploratory, where it is decided
    breaches: tuple[Breach, ...] = ()
    crossover: Crossover | None = None

    @property
    def claim(self) -> BaseClaim:
        return self.resolved.claim

    @property
    def column(self) -> DataColumn | None:
        """The data set; None where there is none, or for a claim about all columns."""
        return self.resolved.column

    @property
    def judged_on(self) -> str:
        return self.resolved.judged_on

    @property
    def rows(self) -> list[str]:
        return self.resolved.rows

    @property
    def tasks(self) -> list[str]:
        """Those of every data set that it rests on."""
        tasks: dict[str, None] = {}
        for contrast in self.resolved.contrasts:
            for term in contrast.terms:
                tasks |= dict.fromkeys(term.column.tasks)
        return list(tasks)

    @property
    def is_exploratory(self) -> bool:
        """Decided after an earlier analysis at other seeds, or claimed after one."""
        return bool(self.breaches) and self.verdict.is_decided

    @property
    def difference(self) -> Estimate | None:
        """First - second in the column's unit; of several, what supports the claim least."""
        return self.weakest.difference if self.weakest else None

    @property
    def p_value(self) -> float | None:
        """Of that difference, without the correction for the table."""
        return self.weakest.p_value if self.weakest else None

    @property
    def reported_contrast(self) -> str:
        """Which difference that is, where there are several; else empty."""
        if self.weakest is None or len(self.resolved.contrasts) < 2:
            return ""
        return self.weakest.label

    @property
    def decisive_seeds(self) -> int | None:
        """Pre-training seeds in all that would decide it, where a number can be given."""
        return self.forecast.count if self.forecast else None

    @property
    def paper_size(self) -> float | None:
        """The paper's difference, where ours may be held against its size."""
        return None if self.size_obstacle else self.claim.paper_delta


# -- judging -------------------------------------------------------------------------------------


def judge(table: ScoreTable, analyses: Sequence[InterimAnalysis] = ()) -> list[Judgement]:
    """Every claim on every data set that speaks for its column; at least one judgement a claim.

    Of the earlier `analyses` those before the first one at these seeds count against it, unless
    the sequential design allows for them. So does the first analysis of a claim's contrasts, at
    whatever seeds, if the claim was another one then, or none.
    """
    claims = table.spec.claims
    placed_claims = []
    for claim in claims:
        placed_claims += resolve_claim(claim, table)
    correction = fallback_procedure(families_of(placed_claims))
    seeds = tested_seeds(placed_claims)
    history = History.from_analyses(analyses, seeds, table.spec.stopping, claims)
    return [judge_claim(resolved, correction, table, history) for resolved in placed_claims]


def judge_claim(
    resolved: ResolvedClaim, correction: Correction, table: ScoreTable, history: History
) -> Judgement:
    verdicts = tuple(
        contrast_verdict(contrast, resolved.claim, correction.corrected.get(contrast.key))
        for contrast in resolved.contrasts
    )
    verdict = intersection_union_verdict(resolved, verdicts)
    weakest = least_supported_contrast(resolved, verdicts)
    corrected_p = None
    gated_by = ""
    if weakest is not None:
        gated_by = correction.gated_by.get(weakest.key, "")
        if weakest.is_tested:
            corrected_p = correction.corrected.get(weakest.key)
    crossover = None
    if verdict is not Verdict.NOT_COMPARABLE:
        crossover = find_crossover(resolved, table)
    forecast = find_forecast(resolved, verdicts, verdict, correction)
    size_obstacle = size_comparison_obstacle(resolved, table)
    seeds = tested_seeds([resolved])
    breaches = tuple(history.breaches(resolved.claim, resolved.judged_on, seeds))
    return Judgement(
        resolved=resolved,
        verdict=verdict,
        verdicts=verdicts,
        weakest=weakest,
        corrected_p=corrected_p,
        num_tests=correction.num_tests,
        gated_by=gated_by,
        forecast=forecast,
        size_obstacle=size_obstacle,
        seeds=seeds,
        breaches=breaches,
        crossover=crossover,
    )


def tested_seeds(claims: Sequence[ResolvedClaim]) -> dict[str, str]:
    """Tested contrast, as the analysis log calls it -> the seeds that it is over."""
    seeds = {}
    for resolved in claims:
        for contrast in resolved.contrasts:
            if contrast.is_tested:
                seeds[contrast.key.for_history()] = contrast.seeds
    return seeds


def contrast_verdict(contrast: Contrast, claim: BaseClaim, corrected_p: float | None) -> Verdict:
    """The verdict on one contrast of a claim, by its p-value after the table's correction."""
    if contrast.difference is None or not contrast.exclusions.is_comparable:
        return Verdict.NOT_COMPARABLE
    if not contrast.has_replications(contrast.difference):
        return Verdict.ONE_SEED
    is_significant = corrected_p is not None and corrected_p < SIGNIFICANCE
    # What is not tested is open, however small its spread: a row that answers the same whatever it
    # reads has measured nothing.
    if not contrast.is_tested or not is_significant:
        return Verdict.INCONCLUSIVE
    if contrast.context.below_baseline:
        return Verdict.BELOW_FLOOR
    return Verdict.HOLDS if supports(contrast, claim) else Verdict.CONTRADICTED


def supports(contrast: Contrast, claim: BaseClaim) -> bool:
    """Whether a contrast's mean lies on the claimed side."""
    estimate = contrast.decided_on
    return estimate is not None and claim.is_supported_by(estimate.mean)


def intersection_union_verdict(resolved: ResolvedClaim, verdicts: Sequence[Verdict]) -> Verdict:
    """All contrasts must hold; one that confidently goes the other way is enough to fail."""
    comparable_verdicts = [verdict for verdict in verdicts if verdict is not Verdict.NOT_COMPARABLE]
    is_about_one_column = resolved.claim.column != ALL_COLUMNS
    is_incomparable = is_about_one_column and any(
        contrast.exclusions.incomparability for contrast in resolved.contrasts
    )
    if Verdict.CONTRADICTED in comparable_verdicts:
        return Verdict.CONTRADICTED
    if not comparable_verdicts or is_incomparable:
        return Verdict.NOT_COMPARABLE
    for open_verdict in (Verdict.ONE_SEED, Verdict.BELOW_FLOOR):
        if open_verdict in comparable_verdicts:
            return open_verdict
    is_whole = len(comparable_verdicts) == len(verdicts) and resolved.is_whole
    if is_whole and set(comparable_verdicts) == {Verdict.HOLDS}:
        return Verdict.HOLDS
    return Verdict.INCONCLUSIVE


def least_supported_contrast(
    resolved: ResolvedClaim, verdicts: Sequence[Verdict]
) -> Contrast | None:
    """Of the contrasts that there is a difference for; of a single one that one."""
    if len(resolved.contrasts) == 1:
        return resolved.contrasts[0]
    comparable_verdicts = [
        contrast
        for contrast, verdict in zip(resolved.contrasts, verdicts, strict=True)
        if verdict is not Verdict.NOT_COMPARABLE
    ]
    return max(
        comparable_verdicts,
        key=lambda contrast: evidence_rank(contrast, resolved.claim),
        default=None,
    )


def evidence_rank(contrast: Contrast, claim: BaseClaim) -> tuple[float, float]:
    """From 0, surely as claimed, to 2, surely the other way; then by the distance."""
    distance = 0.0
    if contrast.difference:
        mean = contrast.difference.mean
        distance = abs(mean - nearest_boundary(mean, contrast.boundaries))
    p_value = 1.0 if contrast.p_value is None else contrast.p_value
    if supports(contrast, claim):
        return p_value, -distance
    return 2.0 - p_value, distance


# -- forecasts -----------------------------------------------------------------------------------


def find_forecast(
    resolved: ResolvedClaim,
    verdicts: Sequence[Verdict],
    verdict: Verdict,
    correction: Correction,
) -> Forecast | None:
    """How many seeds would decide an undecided claim; None where seeds are not what
    is lacking.
    """
    seeds = _replications(resolved)
    if verdict is Verdict.ONE_SEED:
        return Forecast(f"needs 2 or more {seeds}", "", additional_seeds=1)
    open_contrasts = _open_contrasts(resolved, verdicts)
    if verdict is not Verdict.INCONCLUSIVE or not open_contrasts:
        return None

    design = resolved.contrasts[0].design
    counts = [contrast.difference.count for contrast in open_contrasts if contrast.difference]
    if design and not all(contrast.interim for contrast in open_contrasts):
        text = f"the first interim analysis is at {design.first} {seeds}"
        return Forecast(text, "waits", max(0, design.first - min(counts)))
    present = max(counts)
    gate = _first_gate(open_contrasts, correction)
    if gate and resolved.claim.primary:
        return Forecast(f"first {gate} has to be decided", "waits")

    most = design.most if design else MOST_SEEDS
    if any(contrast.has_no_spread for contrast in open_contrasts):
        text = f"needs more {seeds}: so far each has the same difference"
        return Forecast(text, "", min(1, max(0, most - present)))
    level = _level_of_next_step(open_contrasts, correction, design)
    needed = _seeds_that_decide(resolved, open_contrasts, level, most)
    # The next seed cannot make it fewer than there are.
    count = max(needed, 1 + present)
    if count > most:
        # Seeds after a design's last analysis are none that it could still use.
        text = f"more than {most} {seeds} at this difference and spread"
        return Forecast(text, f">{most} seeds", max(0, most - present))
    text = f"with {count} {seeds} 4 of 5 repetitions decide, at this difference and spread"
    if gate:
        text += f"; with fewer once {gate} is decided"
    return Forecast(text, f"~{count} seeds", count - present, count)


def _first_gate(contrasts: Sequence[Contrast], correction: Correction) -> str:
    """The primary claim that one of some tests waits for; empty for none."""
    gates = [correction.gated_by.get(contrast.key, "") for contrast in contrasts]
    return next(filter(None, gates), "")


def _replications(resolved: ResolvedClaim) -> str:
    """The seeds that a claim's differences are over; of given encoders, those of fine-tuning."""
    if all(contrast.has_fixed_encoders for contrast in resolved.contrasts):
        return "fine-tuning seeds"
    return "pre-training seeds"


def _open_contrasts(resolved: ResolvedClaim, verdicts: Sequence[Verdict]) -> list[Contrast]:
    """The inconclusive contrasts of a claim; none where more seeds alone could not decide it."""
    if not resolved.is_whole or Verdict.NOT_COMPARABLE in verdicts:
        return []
    contrasts = []
    for contrast, verdict in zip(resolved.contrasts, verdicts, strict=True):
        if verdict is Verdict.INCONCLUSIVE:
            contrasts.append(contrast)
    if any(_is_stuck(contrast) for contrast in contrasts):
        return []
    return contrasts


def _is_stuck(contrast: Contrast) -> bool:
    """Whether more seeds would not help: what is wrong with its runs stays wrong."""
    exclusions = contrast.exclusions
    return bool(
        exclusions.duplicates
        or exclusions.every_run_collapsed
        or contrast.depends_on_collapsed_runs
        or contrast.context.below_baseline
    )


def _level_of_next_step(
    contrasts: Sequence[Contrast], correction: Correction, design: SequentialDesign | None
) -> float:
    """The plain p that decides one of these at Holm's next step.

    A later step is easier, and comes only where those before it were decided.
    """
    level = min(correction.local_level.get(contrast.key, SIGNIFICANCE) for contrast in contrasts)
    return nominal_level(level, design.first, design.most) if design else level


def _seeds_that_decide(
    resolved: ResolvedClaim, open_contrasts: Sequence[Contrast], level: float, most: int
) -> int:
    """Seeds that decide the claim either way; `most` + 1 where it would take more.

    One contrast that goes the other way is enough to fail; to hold, all have to be shown.
    """
    against = [
        contrast.standardized_effects
        for contrast in open_contrasts
        if not supports(contrast, resolved.claim)
    ]
    ways = against
    if not ways:
        all_effects = []
        for contrast in resolved.contrasts:
            all_effects += contrast.standardized_effects
        ways = [all_effects]
    counts = [required_seeds(effects, 1.0 - level, most=most) for effects in ways]
    return min((count for count in counts if count is not None), default=most + 1)


# -- sizes ---------------------------------------------------------------------------------------


def size_comparison_obstacle(resolved: ResolvedClaim, table: ScoreTable) -> str:
    """Why our difference is not held against the size of the paper's; empty where it is."""
    column = resolved.column
    if not table.has_paper:
        return ""
    if column is None or column.is_paper:
        averaging = table.spec.averaging
        if averaging in ("", "mean"):
            return ""
        averages = AVERAGES[averaging]
        return f"the paper's numbers are {averages} of its runs, ours means: direction only"
    if column.is_other_split or column.is_measured:
        return f"{column.role}: direction only"
    if column.is_pretraining:
        return "our own held-out text: direction only"
    kind = "synthetic" if column.is_synthetic else "substitute"
    if resolved.claim.has_margin:
        return f"{kind}: says nothing of the sizes in the paper"
    return f"{kind}: direction only"


@dataclass(frozen=True)
class DetectableDifference:
    """The smallest difference between two rows that so many seeds can show."""

    difference: float
    seeds: int
    # of a difference between seeds, in points
    sd: float
    # contrasts that this is the median of; 0: it is assumed
    num_contrasts: int


def detectable_difference(table: ScoreTable, seeds: int) -> DetectableDifference | None:
    """By the median spread of the claims' contrasts so far; None for fewer than two seeds."""
    if seeds < 2:
        return None
    deviations: dict[object, float] = {}
    resolved = chain.from_iterable(resolve_claim(claim, table) for claim in table.spec.claims)
    for contrast in chain.from_iterable(each.contrasts for each in resolved):
        observed = contrast.difference
        if observed is None or observed.is_at_ceiling:
            continue
        if contrast.is_tested and _is_in_points(contrast):
            deviations[contrast.key] = observed.sd or 0.0
    sd = median(deviations.values()) if deviations else ASSUMED_SD
    design = table.spec.stopping
    level = SIGNIFICANCE
    if design:
        level = nominal_level(SIGNIFICANCE, design.first, design.most)
    difference = minimum_detectable_difference(sd, seeds, 1.0 - level)
    return DetectableDifference(difference, seeds, sd, len(deviations))


def _is_in_points(contrast: Contrast) -> bool:
    return all(term.column.tasks and term.column.unit == PERCENT for term in contrast.terms)


# -- one analysis after another ------------------------------------------------------------------


@dataclass(frozen=True)
class AnalysedTable:
    """Judgements, and the analyses up to this one."""

    judgements: list[Judgement]
    analyses: list[InterimAnalysis]
    # why this one could not be noted; None: it was, or it is there already
    error: OSError | None = None
    # it is of seeds that the log does not have, and was not to be noted
    is_unnoted: bool = False


def run_interim_analysis(
    table: ScoreTable, folder: Path, *, is_noted: bool = True
) -> AnalysedTable:
    """Judge a table and note the analysis beside its runs in `folder`, if its seeds are new.

    Without `is_noted` nothing is written, and nobody may be shown verdicts that are `is_unnoted`.
    """
    analyses = read_log(folder)
    judgements = judge(table, analyses)
    seeds: dict[str, str] = {}
    for judgement in judgements:
        seeds |= judgement.seeds
    rule = describe_stopping_rule(table.spec.stopping)
    is_known = any(analysis.seeds == seeds and analysis.rule == rule for analysis in analyses)
    if not seeds or is_known:
        return AnalysedTable(judgements, analyses)
    if not is_noted:
        return AnalysedTable(judgements, analyses, is_unnoted=True)

    verdicts = {f"{one.claim.text} ({one.judged_on})": str(one.verdict) for one in judgements}
    tested = [one.claim for one in judgements if one.seeds]
    claims = {claim.id or claim.text: statement(claim) for claim in tested}
    analysis = InterimAnalysis(now(), seeds, verdicts, rule, claims)
    analyses.append(analysis)
    try:
        append_to_log(folder, analysis)
    except OSError as error:
        return AnalysedTable(judgements, analyses, error)
    return AnalysedTable(judgements, analyses)
