"""What is judged where every run answers every example: scores that have no spread left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats
from tests.results.words import read_claim

from clozelab.analysis.score_file import ScoreLine, make_score_table
from clozelab.analysis.verdicts import Judgement, Verdict, detectable_difference, judge

SEEDS = (1, 2, 3, 4, 5)
ALIKE = {"id": "alike", "text": "t", "rows": ["a", "b"], "column": "kinds", "direction": "within"}
BETTER = {"id": "better", "text": "t", "compare": ["a", "b", "kinds"], "direction": "higher"}


def judged(
    claim: dict[str, object],
    first: list[float],
    second: list[float],
    num_examples: int | None = 800,
    metric: str = "validation/accuracy",
) -> Judgement:
    lines: list[ScoreLine] = []
    for arm, scores in (("a", first), ("b", second)):
        for seed, score in zip(SEEDS, scores, strict=True):
            lines.append(ScoreLine(len(lines), arm, (seed, 0), "kinds", score))
    table = make_score_table(lines, [read_claim(claim)])
    columns = [
        replace(column, num_examples=num_examples, metric=metric) for column in table.columns
    ]
    table = replace(table, columns=tuple(columns))
    assert detectable_difference(table, 5) is not None
    (judgement,) = judge(table)
    return judgement


def test_what_answers_all_of_many_examples_is_alike() -> None:
    judgement = judged({**ALIKE, "points": 3.0}, [100.0] * 5, [100.0] * 5)
    assert judgement.verdict is Verdict.HOLDS
    difference = judgement.difference
    assert difference is not None and difference.is_at_ceiling and difference.mean == 0.0

    # Two scores of 800 examples, each one example lower: 0.25 points from seed to seed.
    standard_error = 0.25 / 5**0.5
    assert difference.high == pytest.approx(stats.t.ppf(0.975, df=4) * standard_error)
    assert judgement.p_value == pytest.approx(2.0 * stats.t.sf(3.0 / standard_error, df=4))


def test_few_examples_decide_nothing() -> None:
    judgement = judged({**ALIKE, "points": 3.0}, [100.0] * 5, [100.0] * 5, num_examples=20)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.difference is not None and judgement.difference.is_at_ceiling


@pytest.mark.parametrize(
    ("first", "second", "num_examples", "metric"),
    [
        # Two rows that answer the same whatever they read agree, too.
        ([50.0] * 5, [50.0] * 5, 800, "validation/accuracy"),
        ([0.0] * 5, [0.0] * 5, 800, "validation/accuracy"),
        # One that lies below the other by the same number of examples.
        ([100.0] * 5, [99.0] * 5, 800, "validation/accuracy"),
        ([100.0] * 5, [100.0] * 5, None, "validation/accuracy"),
        # One example weighs more than 100 / N in a correlation.
        ([100.0] * 5, [100.0] * 5, 800, "validation/matthews"),
    ],
)
def test_other_scores_without_spread_decide_nothing(
    first: list[float], second: list[float], num_examples: int | None, metric: str
) -> None:
    judgement = judged({**ALIKE, "points": 3.0}, first, second, num_examples, metric)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.difference is not None and judgement.difference.has_no_spread


def test_no_row_is_better_at_the_ceiling() -> None:
    judgement = judged(BETTER, [100.0] * 5, [100.0] * 5)
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_a_spread_of_their_own_is_what_counts() -> None:
    judgement = judged({**ALIKE, "points": 3.0}, [100.0] * 5, [100.0, 100.0, 100.0, 100.0, 99.75])
    assert judgement.difference is not None and not judgement.difference.is_at_ceiling
    assert judgement.verdict is Verdict.HOLDS
