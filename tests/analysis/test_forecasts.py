"""What a claim still needs, where the plan of seeds is at its end."""

from __future__ import annotations

from tests.results.words import read_claim

from clozelab.analysis.schema import SequentialDesign
from clozelab.analysis.score_file import ScoreLine, make_score_table
from clozelab.analysis.verdict_codes import Verdict
from clozelab.analysis.verdicts import judge
from clozelab.report import wording

WOBBLE = (1.0, -1.2, 0.4, -0.3, 0.2)


def test_seeds_after_the_last_analysis_are_not_counted_as_lacking() -> None:
    lines: list[ScoreLine] = []
    for seed, wobble in enumerate(WOBBLE, 1):
        lines.append(ScoreLine(len(lines), "a", (seed, 0), "t", 70.0 + wobble))
        lines.append(ScoreLine(len(lines), "b", (seed, 0), "t", 70.0))
    claim = read_claim({"text": "c", "compare": ["a", "b", "t"], "direction": "higher"})
    design = SequentialDesign(first=2, most=3)
    (judgement,) = judge(make_score_table(lines, [claim], design))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.forecast is not None
    assert (judgement.forecast.short, judgement.forecast.additional_seeds) == (">3 seeds", 0)
    assert "take about" not in wording.forecast(judgement, 60.0)
