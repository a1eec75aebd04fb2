"""What is judged where every run answers every example: scores that have no spread left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats
from tests.results.words import read_claim

from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, detectable_difference, judge
from claims.tables.score_file import Scores, make_score_table
from clozelab.metrics.entities import entity_scores

SEEDS = (1, 2, 3, 4, 5)
ALIKE = {"id": "alike", "text": "t", "rows": ["a", "b"], "column": "kinds", "direction": "within"}
BETTER = {"id": "better", "text": "t", "compare": ["a", "b", "kinds"], "direction": "higher"}


def judged(
    claim: dict[str, object],
    first: list[float],
    second: list[float],
    num_examples: int | None = 800,
    metric: str = "validation/accuracy",
    num_entities: int | None = None,
) -> Judgement:
    cells = {}
    for arm, scores in (("a", first), ("b", second)):
        seeds = [(seed, 0) for seed in SEEDS]
        cells[arm, "kinds"] = dict(zip(seeds, scores, strict=True))
    table = make_score_table(Scores(cells), [read_claim(claim)])
    columns = []
    for column in table.columns:
        columns.append(
            replace(column, num_examples=num_examples, num_entities=num_entities, metric=metric)
        )
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
        # An F1 of labels, or of entities that nobody has counted.
        ([100.0] * 5, [100.0] * 5, 800, "validation/f1"),
    ],
)
def test_other_scores_without_spread_decide_nothing(
    first: list[float], second: list[float], num_examples: int | None, metric: str
) -> None:
    judgement = judged({**ALIKE, "points": 3.0}, first, second, num_examples, metric)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.difference is not None and judgement.difference.has_no_spread


def test_an_f1_of_entities_is_weighed_by_its_entities() -> None:
    claim = {**ALIKE, "points": 3.0}
    scores = [100.0] * 5
    # 800 sentences with an entity in every second one: two scores, each 2 x 100 / 400 points lower.
    judgement = judged(claim, scores, scores, 800, "validation/f1", num_entities=400)
    assert judgement.verdict is Verdict.HOLDS
    assert judgement.difference is not None and judgement.difference.is_at_ceiling
    assert judgement.difference.high == pytest.approx(stats.t.ppf(0.975, df=4) * 1.0 / 5**0.5)

    # Most sentences have no entity: a single one weighs too much.
    few = judged(claim, scores, scores, 800, "validation/f1", num_entities=40)
    assert few.verdict is Verdict.INCONCLUSIVE
    # Its precision alone would not show an entity that nobody saw.
    precision = judged(claim, scores, scores, 800, "validation/precision", num_entities=400)
    assert precision.verdict is Verdict.INCONCLUSIVE


def test_one_wrong_tag_costs_no_more_than_the_rule_says() -> None:
    """Every other tag in every place of sentences whose entities have one to four words."""
    labels = [["B-LOC", "O", "B-PER", "I-PER"], ["B-LOC", "I-LOC", "I-LOC", "B-LOC", "O"]]
    labels += [["B-PER", "I-PER", "I-PER", "I-PER"]]
    num_entities = 5
    costs: list[float] = []
    for sentence, tags in enumerate(labels):
        for place in range(len(tags)):
            for tag in ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"):
                wrong = [list(words) for words in labels]
                wrong[sentence][place] = tag
                costs.append(1.0 - entity_scores(wrong, labels)["f1"])
    assert 1.0 / num_entities < max(costs) <= 2.0 / num_entities


def test_no_row_is_better_at_the_ceiling() -> None:
    judgement = judged(BETTER, [100.0] * 5, [100.0] * 5)
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_a_spread_of_their_own_is_what_counts() -> None:
    judgement = judged({**ALIKE, "points": 3.0}, [100.0] * 5, [100.0, 100.0, 100.0, 100.0, 99.75])
    assert judgement.difference is not None and not judgement.difference.is_at_ceiling
    assert judgement.verdict is Verdict.HOLDS
