"""What is said of verdicts, each built by hand: no run is needed to say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.results.words import read_claim

from claims.analysis.comparability import Exclusion
from claims.analysis.contrasts import Context, Contrast, ContrastTerm, Exclusions
from claims.analysis.crossover import Crossover
from claims.analysis.history import Breach, BreachKind
from claims.analysis.hypotheses import NOTHING, ResolvedClaim
from claims.analysis.schema import IN_PERCENT, BaseClaim, Column, SequentialDesign
from claims.analysis.scores import DataColumn, Origin
from claims.analysis.statistics import PRETRAINING_SEEDS, Estimate
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, run_interim_analysis
from claims.report import claims, verdict_styles, wording
from claims.report.claims import _p_values
from claims.report.estimates import interval, probability
from claims.report.page import templates
from claims.tables.score_file import Scores, make_score_table

NO_RUN = Exclusion("no run", "no complete run of LTR")


# -- verdicts --------------------------------------------------------------------------------------

MRPC = Column(name="MRPC", metric="validation/accuracy", task="mrpc")
DATASET = DataColumn("MRPC", "mrpc", "validation/accuracy", MRPC, Origin.PAPER, scale=IN_PERCENT)
ESTIMATE = Estimate(-2.9, -4.0, -1.8, 3, PRETRAINING_SEEDS, sd=0.4)
CONTRAST = Contrast(
    label="",
    terms=(ContrastTerm(1.0, "ltr", DATASET), ContrastTerm(-1.0, "mlm", DATASET)),
    difference=ESTIMATE,
)


def judgement(*contrasts: Contrast, **changes: Any) -> Judgement:
    """A claim on one data set that stays open."""
    claim = read_claim({"text": "t", "compare": ["ltr", "mlm", "MRPC"], "direction": "lower"})
    judged = Judgement(
        resolved=ResolvedClaim(claim, DATASET, "MRPC", contrasts),
        verdict=Verdict.INCONCLUSIVE,
        verdicts=(Verdict.INCONCLUSIVE,) * len(contrasts),
        weakest=None,
        corrected_p=None,
        num_tests=0,
        gated_by="",
        forecast=None,
    )
    return replace(judged, **changes)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.04, 1.2, "[+0.04, +1.20]"),
        (-1.2, -0.004, "[−1.200, −0.004]"),
        (0.0, 1.2, "[0.0, +1.2]"),
        (-0.04, 1.2, "[0.0, +1.2]"),
    ],
)
def test_an_interval_without_zero_is_written_without_it(
    low: float, high: float, expected: str
) -> None:
    assert interval(replace(ESTIMATE, low=low, high=high)) == expected


@pytest.mark.parametrize(
    ("low", "high", "boundaries", "expected"),
    [
        (1.04, 2.5, (1.0,), "[+1.04, +2.50]"),
        (0.004, 0.96, (-1.0, 1.0), "[+0.004, +0.960]"),
        (-0.996, 0.3, (-1.0,), "[−0.996, +0.300]"),
        (-1.003, 0.3, (-1.0, 1.0), "[−1.003, +0.300]"),
        (-1.0, 0.3, (-1.0, 1.0), "[−1.0, +0.3]"),
        (0.24, 0.27, (0.25,), "[+0.2, +0.3]"),
        (-0.04, 1.2, (0.0,), "[0.0, +1.2]"),
    ],
)
def test_an_interval_shows_on_which_side_of_a_margin_it_ends(
    low: float, high: float, boundaries: tuple[float, ...], expected: str
) -> None:
    assert interval(replace(ESTIMATE, low=low, high=high), 1, boundaries) == expected


def test_what_makes_a_verdict_exploratory_and_bars_its_size_is_said() -> None:
    breach = Breach(BreachKind.CLAIMED_LATE, "2026-01-01")
    judged = judgement(CONTRAST, breaches=(breach,), size_obstacle="direction only")
    late = "claimed after an interim analysis of it (2026-01-01)"
    assert wording.judgement_note(judged) == f"{late}; direction only"


def test_the_answer_says_what_is_exploratory_and_what_is_open() -> None:
    claim = read_claim(
        {
            "text": "t",
            "compare": ["ltr", "mlm", "MRPC"],
            "direction": "higher",
            "points": 1.0,
            "primary": True,
        }
    )
    resolved = ResolvedClaim(claim, DATASET, "MRPC", (CONTRAST,))
    late = (Breach(BreachKind.CLAIMED_LATE, "2026-01-01"),)
    answers = []
    for verdict in (Verdict.HOLDS, Verdict.CONTRADICTED, Verdict.INCONCLUSIVE):
        for breaches in ((), late):
            judged = judgement(resolved=resolved, verdict=verdict, breaches=breaches)
            answers.append(wording.answer([judged]))
    assert answers == [
        "Yes on MRPC",
        "Yes on MRPC (exploratory)",
        "No on MRPC",
        "No on MRPC (exploratory)",
        "Not decided on MRPC",
        "Not decided on MRPC",
    ]
    # before any run is scored
    unscored = judgement(
        resolved=ResolvedClaim(claim, DATASET, NOTHING, ()), verdict=Verdict.NOT_COMPARABLE
    )
    assert wording.answer([unscored]) == "Not decided on 't'"


@pytest.mark.parametrize(
    ("stored", "label"),
    [
        ("one_seed", "inconclusive (one seed)"),
        ("inconclusive (one seed)", "inconclusive (one seed)"),  # of an earlier version
        ("holds (exploratory)", "holds"),
        ("", "another claim"),
        ("a word of nobody", "a word of nobody"),
    ],
)
def test_a_verdict_of_the_log_is_shown_by_its_label(stored: str, label: str) -> None:
    breach = Breach(BreachKind.SEEDS_ADDED, "2026-01-01", "1 2", stored)
    assert wording.breach_text(breach).endswith(
        f"after an interim analysis of 1 2 (2026-01-01: {label})"
    )


def test_every_verdict_has_a_label_and_colours_and_labels_differ() -> None:
    assert set(verdict_styles.LABELS) == set(verdict_styles.COLOURS) == set(Verdict)
    assert len(set(verdict_styles.LABELS.values())) == len(Verdict)


CAUTIONS = {
    "2 run(s) of LTR missing; more": {
        "context": Context(cells=("2 run(s) of LTR missing", "more"))
    },
    "LTR: one encoder: copies decide nothing": {
        "exclusions": Exclusions(duplicates="LTR: one encoder")
    },
    "the same difference for every seed: no spread to judge it by, as may happen on few examples": {
        "difference": replace(ESTIMATE, low=-2.9, high=-2.9, sd=0.0)
    },
    "pre-training seeds have unequally many runs and weigh the same": {
        "difference": replace(ESTIMATE, is_balanced=False)
    },
    "texts cut; with torch": {
        "context": Context(text_lengths="texts cut", provenance="with torch")
    },
    "below its baseline: LTR has 12.9; such a row decides nothing about what pre-training gives": {
        "context": Context(below_baseline="LTR has 12.9")
    },
}


@pytest.mark.parametrize("sentence", CAUTIONS)
def test_what_a_reader_must_know_beside_a_verdict(sentence: str) -> None:
    contrast = replace(CONTRAST, **CAUTIONS[sentence])
    assert wording.judgement_note(judgement(contrast)) == sentence


OTHER_SIDE = replace(ESTIMATE, mean=0.4, low=-0.1, high=0.9)


@pytest.mark.parametrize(
    ("healthy", "sentence"),
    [
        (ESTIMATE, "−2.9 [−4.0, −1.8]; p is the larger one, with or without"),
        (OTHER_SIDE, "+0.4 [−0.1, +0.9]: the difference rests on them and decides nothing"),
        (None, "no pair of seeds is left: the difference rests on them and decides nothing"),
    ],
)
def test_the_difference_without_collapsed_runs(healthy: Estimate | None, sentence: str) -> None:
    contrast = replace(CONTRAST, has_collapsed=True, without_collapsed=healthy)
    note = wording.judgement_note(judgement(contrast, weakest=contrast))
    assert note == f"without collapsed runs {sentence}"


def test_why_a_plain_interval_is_not_the_verdict() -> None:
    """Beside a margin and of a primary claim; test_primary.py has what waits for another one."""
    judged = judgement(CONTRAST, weakest=CONTRAST, corrected_p=0.2, num_tests=9)
    within = {"text": "t", "rows": ["ltr", "mlm"], "column": "MRPC", "direction": "within"}
    for claim, words in (
        (read_claim(within | {"points": 1.0}), "the margin, the test corrected for 9 differences"),
        (judged.claim.model_copy(update={"primary": True}), "zero, the test as a primary one"),
    ):
        again = replace(judged, resolved=replace(judged.resolved, claim=claim))
        note = wording.judgement_note(again)
        assert note == f"the plain interval excludes {words} does not"


def test_where_planned_analyses_are_the_price_the_note_names_them(tmp_path: Path) -> None:
    gains = {(seed, 1): gain for seed, gain in enumerate((0.5, 0.9, 0.3, 0.7), 1)}
    scores = {("a", "q"): gains, ("b", "q"): dict.fromkeys(gains, 0.0)}
    claim = read_claim({"text": "t", "compare": ["a", "b", "q"], "direction": "higher"})
    table = make_score_table(Scores(scores), [claim], SequentialDesign(first=3, most=8))
    (judged,) = run_interim_analysis(table, tmp_path).judgements
    note = "the plain interval excludes zero, the test corrected for all planned analyses does not"
    assert note in wording.judgement_note(judged)


@pytest.mark.parametrize(
    ("p_value", "text"), [(0.0496, "p = 0.0496"), (0.0504, "p = 0.050"), (0.0121, "p = 0.012")]
)
def test_a_p_below_the_level_is_written_below_it(p_value: float, text: str) -> None:
    assert probability(p_value) == text


def test_a_difference_that_no_claim_is_about_says_what_it_rests_on() -> None:
    scores = {("a", "q"): {(seed, 0): 80.0 + seed for seed in range(1, 6)}}
    scores["b", "q"] = {(seed, 0): 70.0 for seed in range(1, 4)}
    table = make_score_table(Scores(scores), [])
    # As a report on run folders has them: nobody asked for more runs.
    cells = {key: replace(cell, missing=()) for key, cell in table.cells.items()}
    (view,) = claims.differences(replace(table, cells=cells))
    assert "seeds 4, 5 of a are left out" in view.note
    healthy = {(1, 0): 81.0, (2, 0): 82.0}
    cells["a", "q"] = replace(cells["a", "q"], healthy=healthy)
    (view,) = claims.differences(replace(table, cells=cells))
    assert "3 collapsed run(s) of a" in view.note and "without collapsed runs" in view.note


def test_several_differences_are_counted() -> None:
    lacking = replace(
        CONTRAST, label="LTR − No NSP", difference=None, exclusions=Exclusions(missing=NO_RUN)
    )
    judged = judgement(CONTRAST, lacking, verdicts=(Verdict.HOLDS, Verdict.INCONCLUSIVE))
    assert wording.judgement_note(judged) == (
        "of 2 differences 1 holds, 1 inconclusive; LTR − No NSP: no complete run of LTR"
    )
    below = (Verdict.BELOW_FLOOR, Verdict.HOLDS)
    judged = judgement(CONTRAST, CONTRAST, verdicts=below)
    assert wording.judgement_note(judged) == (
        "of 2 differences 1 inconclusive (below its baseline), 1 holds"
    )


def test_a_claim_about_all_columns_names_each() -> None:
    claim = read_claim({"text": "t", "compare": ["ltr", "mlm", "all"], "direction": "lower"})
    lacking = Exclusions(missing=NO_RUN)
    barred = Exclusions(incomparability=Exclusion("other code", "other code"))
    contrasts = (
        replace(CONTRAST, label="MRPC"),
        replace(CONTRAST, label="QNLI", exclusions=lacking, difference=None),
        replace(CONTRAST, label="SST-2", exclusions=barred),
    )
    judged = judgement(verdicts=(Verdict.HOLDS, Verdict.NOT_COMPARABLE, Verdict.NOT_COMPARABLE))
    resolved = ResolvedClaim(
        claim, None, "1 of 4 columns", contrasts, columns_without_data=("SQuAD F1",)
    )
    assert wording.judgement_note(replace(judged, resolved=resolved)) == (
        "MRPC: holds; no runs for QNLI, SQuAD F1; not comparable on SST-2 (other code)"
    )


# -- crossing lines --------------------------------------------------------------------------------

LINES = Crossover("new", "old", "", 0.05, 1.0, point=None, level_stretches=(), leader=None)
IN_TOKENS = replace(LINES, unit="tokens", start=5e4, end=1e6, point=2.5e5)
IN_FLOPS = replace(IN_TOKENS, unit="flops", point=2.5e12)
IN_SECONDS = replace(IN_TOKENS, unit="seconds", point=600.0)
WHOLE = "5 % of the steps to 100 % of the steps"
CROSSINGS = {
    "new overtakes old at 250 k tokens; 95 % interval: [207 k tokens, 288 k tokens]": replace(
        IN_TOKENS, level_stretches=((2.07e5, 2.88e5),)
    ),
    "new overtakes old at 2.5e+12 FLOPs; 95 % interval: up to 1e+05 FLOPs": replace(
        IN_FLOPS, level_stretches=((5e4, 1e5),)
    ),
    "new overtakes old at 10.0 min; 95 % interval: anywhere": replace(
        IN_SECONDS, level_stretches=((5e4, 1e6),)
    ),
    "new goes past, in the mean, old at 250 k tokens": IN_TOKENS,
    "no crossing in the claimed direction between 5 % of the steps and 100 % of the steps": LINES,
    f"no crossing: old leads at every point from {WHOLE}": replace(LINES, leader="old"),
    f"no crossing: old leads at every point from {WHOLE}; that both are level is not excluded up to"
    " 10 % of the steps or from 50 % of the steps on": replace(
        LINES, leader="old", level_stretches=((0.05, 0.1), (0.5, 1.0))
    ),
}


@pytest.mark.parametrize("sentence", CROSSINGS)
def test_where_lines_cross(sentence: str) -> None:
    verdict = Verdict.HOLDS if "overtakes" in sentence else Verdict.CONTRADICTED
    judged = judgement(crossover=CROSSINGS[sentence], verdict=verdict)
    assert wording.judgement_note(judged) == sentence


# -- types of claims -------------------------------------------------------------------------------

PAIR = {"text": "t", "compare": ["a", "b", "MRPC"]}
THREE = {"text": "t", "rows": ["a", "b", "c"], "column": "MRPC"}
TYPES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "OrderClaim": ({**PAIR, "direction": "higher"}, "a against b", False),
    "TrendClaim": ({**THREE, "direction": "increasing"}, "a, b, c: increasing", False),
    "EquivalenceClaim": (
        {**THREE, "direction": "within", "points": 1},
        "a, b, c: within 1 of each other",
        True,
    ),
    "NoninferiorityClaim": (
        {**PAIR, "direction": "not_lower", "points": 1},
        "a less than 1 lower than b",
        True,
    ),
    "SuperiorityClaim": (
        {**PAIR, "direction": "higher", "points": 1},
        "a more than 1 higher than b",
        False,
    ),
    "CrossingClaim": ({**PAIR, "direction": "crosses"}, "along the lines up to a and b", False),
    "ContrastClaim": (
        {**PAIR, "direction": "higher", "against": ["c", "d", "RTE"]},
        "a against b on MRPC, less c against d on RTE",
        False,
    ),
}
"""Type -> a claim, what it compares, and whether plans expect no difference."""
TABLE: Any = SimpleNamespace(label=str)


@pytest.mark.parametrize("name", TYPES)
def test_each_type_of_claim_has_its_words_and_what_plans_expect(name: str) -> None:
    entry, compared, expects_equality = TYPES[name]
    claim = read_claim(entry)
    assert type(claim).__name__ == name
    assert claims._compared(claim, TABLE) == compared
    assert claim.expects_equality is expects_equality


def test_every_type_of_claim_is_looked_at() -> None:
    """One without words of its own is refused, not taken for a comparison of two rows."""
    kinds = BaseClaim.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.__name__ for kind in kinds} == set(TYPES)

    class Unknown(BaseClaim):
        directions = ("higher",)

    unknown = Unknown.model_validate({**PAIR, "direction": "higher"})
    with pytest.raises(TypeError, match="no words for what a Unknown compares"):
        claims._compared(unknown, TABLE)


@pytest.mark.parametrize("name", TYPES)
def test_a_margin_is_explained_by_the_type_of_claim(name: str) -> None:
    claim = read_claim(TYPES[name][0])
    experiment = SimpleNamespace(claims=[claim], matched=[], matched_by_reason="", has_paper=False)
    reading = str(
        templates()
        .get_template("reading.txt.j2")
        .render(experiment=experiment, family=1, selection="", has_forecasts=False)
    )
    assert ("that rows differ by less than a margin" in reading) == (name == "EquivalenceClaim")
    assert ("A claim with one margin" in reading) == (
        name in ("NoninferiorityClaim", "SuperiorityClaim")
    )


def test_a_p_value_that_is_not_corrected_yet_stands_alone() -> None:
    told = {}
    for corrected in (None, 0.024):
        told[corrected] = _p_values(cast(Any, SimpleNamespace(p_value=0.5, corrected_p=corrected)))
    assert told == {None: "p = 0.500", 0.024: "p = 0.500, corrected 0.024"}
