"""Primary claims are tested first, at 4 %, the others keep 1 % and inherit the rest: no more
verdicts are wrong.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.results.words import forecast, judgement_note
from tests.screens import shows
from tests.simulation import benchmark

from claims.analysis.history import allowed_for, statement
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from clozelab.results.experiment import Experiment

simulation = benchmark("looks")
OPEN = [Verdict.INCONCLUSIVE]


@pytest.fixture(scope="module")
def experiments(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Experiment]:
    """Number of primary claims -> an experiment with five claims."""
    root = tmp_path_factory.mktemp("primary")
    return {
        primary: simulation.make_experiment(root / str(primary), 5, primary) for primary in (0, 2)
    }


def judged(experiment: Experiment, means: list[float], p: float = 0.02) -> list[Judgement]:
    """Five seeds whose differences have these means, in the unit in which 1 has this p alone, and
    -1 too.
    """
    shape = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    standard = shape.std(ddof=1) / 5**0.5 * stats.t.isf(p / 2, 4)
    return list(simulation.judged(experiment, shape + standard * np.array(means)[:, None], 5))


def test_a_primary_claim_is_tested_almost_as_if_it_were_alone(
    experiments: dict[int, Experiment],
) -> None:
    found = judged(experiments[0], [1.0, 0.1, 0.1, 0.1, 0.1])
    assert {one.verdict for one in found} == {Verdict.INCONCLUSIVE} and found[
        0
    ].corrected_p == pytest.approx(0.1)
    found = judged(experiments[2], [1.0, 0.1, 0.1, 0.1, 0.1])
    assert [one.verdict for one in found] == [Verdict.HOLDS, *OPEN * 4]
    assert found[0].corrected_p == pytest.approx(0.02 / 0.8)


def test_the_order_is_that_of_the_claims(experiments: dict[int, Experiment]) -> None:
    """The first undecided one stops the primary claims behind it, however sure they are."""
    found = judged(experiments[2], [0.6, 5.0, 1.0, 1.0, 1.0])
    assert {one.verdict for one in found} == {Verdict.INCONCLUSIVE}
    assert found[1].corrected_p == pytest.approx(
        found[0].p_value / 0.8 if found[0].p_value else None
    )
    assert forecast(found[1]) == "first the primary claim 'claim 0' has to be decided"
    shows(
        judgement_note(found[1]),
        "the plain interval excludes zero, the test waits for the primary claim",
    )
    assert found[0].decisive_seeds


def test_primary_claims_together_wait_for_none_of_them(tmp_path: Path) -> None:
    """Holm at 4 % among two, whatever their order; an open one keeps the others at 1 %."""
    experiment = simulation.make_experiment(tmp_path / "together", 5, 2, primary="together")
    for means in ([0.6, 5.0], [5.0, 0.6]):
        found = judged(experiment, [*means, 1.0, 1.0, 4.0])
        sure, unsure = found[means.index(5.0)], found[means.index(0.6)]
        assert sure.p_value is not None and unsure.p_value is not None
        assert sure.corrected_p == pytest.approx(2 * sure.p_value / 0.8)
        assert unsure.corrected_p == pytest.approx(unsure.p_value / 0.8)
        assert (sure.verdict, unsure.verdict) == (Verdict.HOLDS, Verdict.INCONCLUSIVE)
        assert forecast(unsure).startswith("with ")
        shows(judgement_note(found[2]), "the test at 1 % does not: it has 5 % once every primary")
        assert forecast(found[2]).endswith("; with fewer once every primary claim is decided")
    both = judged(experiment, [1.5, 1.5, 1.0, 1.0, 4.0])
    assert [one.verdict for one in both[:2]] == [Verdict.HOLDS] * 2


def test_a_claim_that_is_primary_together_allows_for_all_of_them(tmp_path: Path) -> None:
    """With another task beside it the test is another one, wherever that stands."""
    for primary, is_allowed in (("together", True), (True, False)):
        experiment = simulation.make_experiment(tmp_path / str(primary), 3, 2, primary=primary)
        first, second, other = map(statement, experiment.claims)
        without = allowed_for(first, [first, other])
        assert (allowed_for(first, [first, second, other]) != without) is is_allowed
        assert allowed_for(second, [first, second, other]) >= without


def test_the_others_have_one_percent_whatever_is_open_before_them(
    experiments: dict[int, Experiment],
) -> None:
    """A plain effect is found though the claim in front is hard: Holm among three, at a fifth of
    the 5 %.
    """
    found = judged(experiments[2], [0.6, 0.6, 4.0, 1.0, 1.0])
    assert [one.verdict for one in found] == [*OPEN * 2, Verdict.HOLDS, *OPEN * 2]
    assert found[2].p_value is not None
    assert found[2].corrected_p == pytest.approx(found[2].p_value * 3 / 0.2)
    shows(
        judgement_note(found[3]),
        "the plain interval excludes zero, the test at 1 % does not: it has 5 %",
    )
    assert (
        forecast(found[3]).endswith("; with fewer once the primary claim 'claim 0' is decided")
        and found[3].decisive_seeds
    )
    # p 0.028: Holm's first step is all that is lacking
    free = judged(experiments[2], [3.0, 3.0, 4.0, 0.9, 0.9])
    shows(
        judgement_note(free[3]),
        "the plain interval excludes zero, the test corrected for 5 differences",
    )
    assert free[3].decisive_seeds and free[3].decisive_seeds < found[3].decisive_seeds


def test_a_claim_that_fails_is_decided_too(experiments: dict[int, Experiment]) -> None:
    found = judged(experiments[2], [-1.0, 1.0, 2.0, 0.6, 0.6])
    decided = [Verdict.CONTRADICTED, Verdict.HOLDS, Verdict.HOLDS]
    assert [one.verdict for one in found] == [*decided, *OPEN * 2]
    assert found[3].decisive_seeds


def test_the_others_are_corrected_among_themselves(experiments: dict[int, Experiment]) -> None:
    found = judged(experiments[2], [1.0, 1.0, 1.0, 0.1, 0.1])
    assert [one.verdict for one in found] == [Verdict.HOLDS, Verdict.HOLDS, *OPEN * 3]
    assert found[2].corrected_p == pytest.approx(0.06), "of three, not of five"


def test_what_nothing_was_measured_for_stops_no_other(experiments: dict[int, Experiment]) -> None:
    differences = np.array([[np.nan] * 4, *[[4.0, 5.0, 6.0, 5.0]] * 4])
    records = [one for one in simulation.records(differences, 4) if one.name not in ("a0", "b0")]
    found = simulation.judge_records(experiments[2], records)
    assert [one.verdict for one in found] == [Verdict.NOT_COMPARABLE, *[Verdict.HOLDS] * 4]


@pytest.mark.slow
@pytest.mark.parametrize("primary", [True, "together"])
def test_one_table_in_twenty_is_false_at_most(tmp_path: Path, primary: bool | str) -> None:
    """Whichever of the claims are true: none, the primary ones, one of each kind, or an other one
    alone.
    """
    tables, draw = 4000, np.random.default_rng(5)
    experiment = simulation.make_experiment(tmp_path / "table", 5, 2, primary=primary)
    for truth in (
        [0.0] * 5,
        [9.0, 9.0, 0.0, 0.0, 0.0],
        [9.0, 0.0, 9.0, 0.0, 0.0],
        [0.0, 0.0, 30.0, 0.0, 0.0],
    ):
        wrong = 0
        for _ in range(tables):
            found = simulation.judged(
                experiment, np.array(truth)[:, None] + draw.normal(size=(5, 3)), 3
            )
            wrong += any(
                not mean and one.verdict != Verdict.INCONCLUSIVE
                for mean, one in zip(truth, found, strict=True)
            )
        assert wrong <= stats.binom.ppf(0.999, tables, 0.05), f"{wrong} of {tables} with {truth}"


@pytest.mark.slow
def test_it_would_be_more_without_the_gate(experiments: dict[int, Experiment]) -> None:
    """The negative control: each claim alone at 5 %."""
    draw, tables = np.random.default_rng(5), 150
    wrong = 0
    for _ in range(tables):
        judgements = simulation.judged(experiments[2], draw.normal(size=(5, 3)), 3)
        wrong += min(one.p_value for one in judgements) < 0.05
    assert wrong > stats.binom.ppf(0.999, tables, 0.05)
