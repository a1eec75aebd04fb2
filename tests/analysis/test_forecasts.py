"""What a claim still needs, where the plan of seeds is at its end."""

from __future__ import annotations

from tests.results.words import read_claim

from claims.analysis.schema import SequentialDesign
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Forecast, judge
from claims.report import wording
from claims.tables.score_file import Scores, make_score_table

WOBBLE = (1.0, -1.2, 0.4, -0.3, 0.2)


def test_seeds_after_the_last_analysis_are_not_counted_as_lacking() -> None:
    first, second = {}, {}
    for seed, wobble in enumerate(WOBBLE, 1):
        first[seed, 0] = 70.0 + wobble
        second[seed, 0] = 70.0
    scores = Scores({("a", "t"): first, ("b", "t"): second})
    claim = read_claim({"text": "c", "compare": ["a", "b", "t"], "direction": "higher"})
    design = SequentialDesign(first=2, most=3)
    (judgement,) = judge(make_score_table(scores, [claim], design))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.forecast is not None
    assert (judgement.forecast.short, judgement.forecast.additional_seeds) == (">3 seeds", 0)
    assert "take about" not in wording.forecast(judgement, 60.0)


def test_a_difference_without_spread_has_no_number_of_seeds_that_would_decide() -> None:
    first = {(seed, 0): 70.0 + seed for seed in (1, 2, 3)}
    second = {(seed, 0): 68.0 + seed for seed in (1, 2, 3)}
    scores = Scores({("a", "t"): first, ("b", "t"): second})
    claim = read_claim({"text": "c", "compare": ["a", "b", "t"], "direction": "higher"})
    for design, additional in ((None, 1), (SequentialDesign(first=2, most=3), 0)):
        (judgement,) = judge(make_score_table(scores, [claim], design))
        text = "needs more pre-training seeds: so far each has the same difference"
        assert judgement.forecast == Forecast(text, "", additional)
        assert judgement.verdict is Verdict.INCONCLUSIVE and judgement.corrected_p is None
