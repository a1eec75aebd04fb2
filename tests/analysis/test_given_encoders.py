"""A stopping rule where every row is one given encoder: its fine-tunings are the replications."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats
from tests.results.words import read_claim

from claims.analysis.schema import SequentialDesign
from claims.analysis.scores import ScoreTable
from claims.analysis.statistics import sequential_p
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Forecast, run_interim_analysis
from claims.tables.score_file import Scores, make_score_table

DIFFERENCES = (2.2, 1.0, 3.1, 1.8, 2.4, 1.5, 2.9, 2.0, 1.9)
DESIGN = SequentialDesign(first=3, most=8)


def table(seeds: int) -> ScoreTable:
    first = {(1, seed): 70.0 + one for seed, one in enumerate(DIFFERENCES[:seeds], 1)}
    second = dict.fromkeys(first, 70.0)
    claim = read_claim({"text": "c", "compare": ["a", "b", "t"], "direction": "higher"})
    made = make_score_table(Scores({("a", "t"): first, ("b", "t"): second}), [claim], DESIGN)
    rows = tuple(row.model_copy(update={"fixed_encoder": True}) for row in made.spec.rows)
    return replace(made, spec=made.spec.model_copy(update={"rows": rows}))


def test_the_p_is_that_of_all_analyses_of_fine_tuning_seeds(tmp_path: Path) -> None:
    plain = [float(stats.ttest_1samp(DIFFERENCES[:count], 0.0).pvalue) for count in range(3, 9)]
    for count in (3, 5, 8):
        (judgement,) = run_interim_analysis(table(count), tmp_path).judgements
        assert judgement.corrected_p == pytest.approx(sequential_p(plain[: count - 2], 3, 8))
        assert not judgement.is_exploratory, "the rule allows for these analyses"
    assert judgement.verdict is Verdict.HOLDS
    (later,) = run_interim_analysis(table(9), tmp_path).judgements
    assert later.corrected_p == judgement.corrected_p


def test_before_the_first_analysis_the_forecast_counts_fine_tuning_seeds(tmp_path: Path) -> None:
    (judgement,) = run_interim_analysis(table(2), tmp_path).judgements
    text = "the first interim analysis is at 3 fine-tuning seeds"
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.forecast == Forecast(text, "waits", additional_seeds=1)


def test_other_fine_tuning_seeds_than_the_first_ones_count(tmp_path: Path) -> None:
    whole = table(8)
    cells = {}
    for key, cell in whole.cells.items():
        scores = {seeds: score for seeds, score in cell.scores.items() if seeds[1] > 1}
        cells[key] = replace(cell, scores=scores, healthy=scores)
    run_interim_analysis(replace(whole, cells=cells), tmp_path)
    (judgement,) = run_interim_analysis(whole, tmp_path).judgements
    assert judgement.is_exploratory
