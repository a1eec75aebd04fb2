"""A row is not lower than another by a margin, or higher by one: against a margin with a sign."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats
from tests.results.words import read_claim

from claims.analysis.history import allowed_for, statement
from claims.analysis.power import required_seeds, simulate_decided
from claims.analysis.schema import BaseClaim
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, judge
from claims.tables.score_file import Scores, make_score_table

SPREAD = (0.3, -0.2, 0.1, -0.3, 0.1)


def claim(direction: str = "not_lower", **keys: object) -> BaseClaim:
    entry = {"text": direction, "compare": ["a", "b", "t"], "direction": direction, "points": 1.0}
    return read_claim(entry | keys)


def equivalence() -> BaseClaim:
    """The claim of the same margin on both sides."""
    rows = {"text": "w", "rows": ["a", "b"], "column": "t"}
    return read_claim(rows | {"direction": "within", "points": 1.0})


def judge_differences(differences: Sequence[float], *claims: BaseClaim) -> list[Judgement]:
    """The claims about rows a and b, whose scores differ by so much, a value a seed."""
    first, second = {}, {}
    for seed, difference in enumerate(differences, 1):
        first[seed, 0] = 70.0 + difference
        second[seed, 0] = 70.0
    return judge(make_score_table(Scores({("a", "t"): first, ("b", "t"): second}), claims))


@pytest.mark.parametrize(
    ("direction", "mean", "verdict"),
    [
        ("not_lower", 2.0, Verdict.HOLDS),
        ("not_lower", 0.0, Verdict.HOLDS),
        ("not_lower", -0.95, Verdict.INCONCLUSIVE),
        ("not_lower", -2.0, Verdict.CONTRADICTED),
        ("not_higher", 2.0, Verdict.CONTRADICTED),
        ("not_higher", 0.95, Verdict.INCONCLUSIVE),
        ("not_higher", 0.0, Verdict.HOLDS),
        ("not_higher", -2.0, Verdict.HOLDS),
        ("higher", 3.0, Verdict.HOLDS),
        ("higher", 1.05, Verdict.INCONCLUSIVE),
        ("higher", 0.5, Verdict.CONTRADICTED),
        ("lower", 0.5, Verdict.CONTRADICTED),
        ("lower", -1.05, Verdict.INCONCLUSIVE),
        ("lower", -3.0, Verdict.HOLDS),
    ],
)
def test_each_side_of_the_margin(direction: str, mean: float, verdict: Verdict) -> None:
    (judgement,) = judge_differences(np.add(SPREAD, mean).tolist(), claim(direction))
    assert judgement.verdict is verdict


@pytest.mark.parametrize(
    ("direction", "boundary"),
    [("not_lower", -1.0), ("not_higher", 1.0), ("higher", 1.0), ("lower", -1.0)],
)
@pytest.mark.parametrize("mean", [-2.0, -0.7, 0.0, 0.7, 2.0])
def test_its_p_is_that_of_one_boundary(direction: str, boundary: float, mean: float) -> None:
    """+2 with a margin of 1 is tested against -1, not against the nearer end of a band."""
    differences = np.add(SPREAD, mean).tolist()
    (judgement,) = judge_differences(differences, claim(direction))
    assert judgement.p_value == pytest.approx(stats.ttest_1samp(differences, boundary).pvalue)
    # The control: a claim of equivalence with the same margin is tested against the nearer end.
    (within,) = judge_differences(differences, equivalence())
    nearer = stats.ttest_1samp(differences, np.copysign(1.0, mean)).pvalue
    assert within.p_value == pytest.approx(nearer)
    is_same = np.copysign(1.0, np.mean(differences)) == boundary
    assert (within.p_value == pytest.approx(judgement.p_value)) == is_same or mean == 0.0


@pytest.mark.parametrize("draws", [200, pytest.param(40_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("direction", "margin", "seeds"),
    [("not_lower", -1.0, 3), ("higher", 1.0, 5), ("not_lower", -1.0, 10)],
)
def test_type_one_error_at_the_margin(
    direction: str, margin: float, seeds: int, draws: int
) -> None:
    """At a true difference of the margin 2.5 % hold, and 2.5 % are contradicted."""
    values = np.random.default_rng(seeds).normal(margin, 0.6, (draws, seeds))
    verdicts = [judge_differences(row.tolist(), claim(direction))[0].verdict for row in values]
    for verdict in (Verdict.HOLDS, Verdict.CONTRADICTED):
        share = verdicts.count(verdict) / draws
        assert share <= 0.025 + 2 * np.sqrt(0.025 * 0.975 / draws)
    decided = sum(verdict.is_decided for verdict in verdicts) / draws
    assert abs(decided - 0.05) <= 3 * np.sqrt(0.05 * 0.95 / draws)


def test_a_claim_and_its_mirror_are_one_test_and_equivalence_is_another() -> None:
    mirrored = claim("not_higher", text="mirrored", compare=["b", "a", "t"])
    within = equivalence()
    above = claim("higher", points=0.0)
    assert claim().hypotheses("t") == mirrored.hypotheses("t")
    keys = {each.hypotheses("t")[0] for each in (claim(), claim("not_higher"), within, above)}
    assert len(keys) == 4

    differences = np.add(SPREAD, 2.0).tolist()
    first, second = judge_differences(differences, claim(), mirrored)
    assert first.num_tests == second.num_tests == 1
    assert first.verdict is second.verdict is Verdict.HOLDS
    different = judge_differences(differences, claim(), claim("not_higher"), within, above)
    assert {judgement.num_tests for judgement in different} == {4}


def test_the_log_does_not_take_one_kind_of_margin_for_another() -> None:
    own, other = statement(claim()), statement(equivalence())
    assert json.loads(own)["direction"] == "not_lower"
    assert not allowed_for(own, [own, other]) <= allowed_for(own, [own])


def test_the_log_does_not_take_a_crossing_for_an_order() -> None:
    rows = {"text": "t", "compare": ["a", "b", "t"]}
    higher, lower, crossing = (
        statement(read_claim(rows | {"direction": direction}))
        for direction in ("higher", "lower", "crosses")
    )
    assert not allowed_for(higher, [higher, crossing]) <= allowed_for(higher, [higher])
    # Both directions are one two-sided test.
    assert allowed_for(higher, [higher, lower]) == allowed_for(higher, [higher])


def test_its_forecast_counts_from_the_margin() -> None:
    """The true mean lies 0.5 above -1, with a deviation of 0.5: one standard deviation away."""
    differences = [-0.5 + 0.5 * wobble for wobble in (1.0, -1.0, 0.0)]
    (judgement,) = judge_differences(differences, claim())
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.decisive_seeds == required_seeds([1.0])


def test_its_power_is_that_of_a_t_test_against_the_margin() -> None:
    decided = simulate_decided([(0.0, (-1.5,))], [[0]], 5, None).mean()
    critical = stats.t.ppf(0.975, 4)
    exact = stats.nct.sf(critical, 4, 1.5 * np.sqrt(5))
    assert decided == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 4000))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"points": 0.0}, "points, a number above 0"),
        ({"compare": None, "rows": ["a", "b"], "column": "t"}, "compare is"),
        ({"against": ["a", "b", "u"]}, "higher or lower"),
    ],
)
def test_what_it_cannot_mean(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        claim(**keys)  # type: ignore[arg-type]


def test_a_kind_of_claim_with_a_margin_says_on_which_side_it_holds() -> None:
    with pytest.raises(TypeError, match="Slack has a margin, and no `boundaries`"):
        type("Slack", (BaseClaim,), {"has_margin": True, "__module__": __name__})
    boundaries = property(lambda _: (1.0,))
    names = {"has_margin": True, "boundaries": boundaries, "__module__": __name__}
    with pytest.raises(TypeError, match="Slack has a margin, and no `is_supported_by`"):
        type("Slack", (BaseClaim,), names)
