"""A stopping rule, over pre-training seeds and where every row is one given encoder: its
fine-tunings are the replications.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from scipy import stats
from tests.results.words import read_claim

from claims.analysis.schema import Scale, SequentialDesign, TableSpec
from claims.analysis.scores import ScoreTable
from claims.analysis.statistics import sequential_p
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Forecast, run_interim_analysis
from claims.report import wording
from claims.tables.score_file import Scores, make_score_table
from clozelab.planning.next_seed import nearest, next_seed
from clozelab.results.experiment import Experiment

DIFFERENCES = (2.2, 1.0, 3.1, 1.8, 2.4, 1.5, 2.9, 2.0, 1.9)
DESIGN = SequentialDesign(first=3, most=8)


def of_given_encoders(made: ScoreTable) -> ScoreTable:
    rows = [row.model_copy(update={"fixed_encoder": True, "arm": None}) for row in made.spec.rows]
    return replace(made, spec=made.spec.model_copy(update={"rows": tuple(rows)}))


def table(seeds: int, *, is_given: bool = True) -> ScoreTable:
    first = {}
    for seed, one in enumerate(DIFFERENCES[:seeds], 1):
        pair = (1, seed) if is_given else (seed, 1)
        first[pair] = 70.0 + one
    second = dict.fromkeys(first, 70.0)
    claim = read_claim({"text": "c", "compare": ["a", "b", "t"], "direction": "higher"})
    scores = Scores({("a", "t"): first, ("b", "t"): second})
    made = make_score_table(scores, [claim], DESIGN)
    return of_given_encoders(made) if is_given else made


@pytest.mark.parametrize("is_given", [True, False])
def test_the_p_is_that_of_all_analyses(tmp_path: Path, is_given: bool) -> None:
    plain = [float(stats.ttest_1samp(DIFFERENCES[:count], 0.0).pvalue) for count in range(3, 9)]
    for count in (3, 5, 8):
        whole = table(count, is_given=is_given)
        (judgement,) = run_interim_analysis(whole, tmp_path).judgements
        assert judgement.p_value == pytest.approx(plain[count - 3])
        assert judgement.corrected_p == pytest.approx(sequential_p(plain[: count - 2], 3, 8))
        assert not judgement.is_exploratory, "the rule allows for these analyses"
    assert judgement.verdict is Verdict.HOLDS
    (later,) = run_interim_analysis(table(9, is_given=is_given), tmp_path).judgements
    assert later.corrected_p == judgement.corrected_p
    note = "seeds after the last interim analysis (8) decide nothing"
    assert wording.judgement_note(later).endswith(note)


@pytest.mark.parametrize(("is_given", "seeds"), [(True, "fine-tuning"), (False, "pre-training")])
def test_before_the_first_analysis_the_forecast_counts_seeds(
    tmp_path: Path, is_given: bool, seeds: str
) -> None:
    (judgement,) = run_interim_analysis(table(2, is_given=is_given), tmp_path).judgements
    text = f"the first interim analysis is at 3 {seeds} seeds"
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


@pytest.mark.parametrize(("majority", "is_below"), [(75.0, True), (60.0, False)])
def test_a_given_encoder_below_its_baseline_decides_nothing(
    tmp_path: Path, majority: float, is_below: bool
) -> None:
    whole = table(8)
    columns = [replace(column, majority=majority, tasks=("t",)) for column in whole.columns]
    whole = replace(whole, columns=tuple(columns))
    (judgement,) = run_interim_analysis(whole, tmp_path).judgements
    assert judgement.verdict is (Verdict.BELOW_FLOOR if is_below else Verdict.HOLDS)


def test_what_is_neither_good_nor_bad_has_no_baseline(tmp_path: Path) -> None:
    """The share of a layer, which nobody has declared to be better when it is higher."""
    whole = table(8)
    scale = Scale(unit="share", higher_is_better=None)
    columns = [
        replace(column, majority=75.0, tasks=("t",), scale=scale) for column in whole.columns
    ]
    (judgement,) = run_interim_analysis(replace(whole, columns=tuple(columns)), tmp_path).judgements
    assert judgement.verdict is not Verdict.BELOW_FLOOR


def test_a_missing_run_takes_one_pair_from_a_difference_of_differences(tmp_path: Path) -> None:
    scores = {}
    for row, column in product("ab", "tu"):
        is_better = row == "a" and column == "t"
        gains = DIFFERENCES if is_better else (0.0,) * len(DIFFERENCES)
        scores[row, column] = {(1, seed): 70.0 + gain for seed, gain in enumerate(gains, 1)}
    del scores["a", "u"][1, 9]
    words = {"text": "c", "compare": ["a", "b", "t"], "against": ["a", "b", "u"]}
    claim = read_claim(words | {"direction": "higher"})
    whole = of_given_encoders(make_score_table(Scores(scores), [claim]))
    (judgement,) = run_interim_analysis(whole, tmp_path).judgements
    expected = float(stats.ttest_1samp(DIFFERENCES[:8], 0.0).pvalue)
    assert judgement.p_value == pytest.approx(expected)
    assert judgement.verdict is Verdict.HOLDS


def test_the_next_seed_of_given_encoders_is_one_of_fine_tuning(tmp_path: Path) -> None:
    """Of pre-training nothing is run: there is no arm."""
    whole = table(3)
    differences = {(1, 1): 70.4, (2, 1): 71.2, (3, 1): 69.1}
    cells = {}
    for (row, column), cell in whole.cells.items():
        scores = differences if row == "a" else dict.fromkeys(differences, 70.0)
        cells[row, column] = replace(cell, scores=scores, healthy=scores)
    whole = replace(whole, cells=cells)
    rows = [{"row": row, "cells": [None], "fixed_encoder": True} for row in "ab"]
    experiment = Experiment(
        folder=tmp_path, name="x", columns=whole.spec.columns, rows=rows, stopping=DESIGN
    )
    (judgement,) = run_interim_analysis(whole, tmp_path).judgements
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert nearest([judgement], experiment) is judgement
    tasks = ",".join(judgement.column.tasks) if judgement.column else ""
    assert next_seed(judgement, experiment) == [
        "finetune.pretrain_seed=4",
        "finetune.row=a,b",
        f"finetune.task={tasks}",
    ]


def test_a_plan_counts_the_seeds_that_claims_are_tested_over() -> None:
    spec = table(3).spec
    first, second = spec.rows
    mixed = (first, second.model_copy(update={"fixed_encoder": False, "arm": "b"}))
    floor = first.model_copy(update={"name": "floor", "fixed_encoder": False})
    kinds = []
    for rows in (spec.rows, (*spec.rows, floor), mixed):
        changed: TableSpec = spec.model_copy(update={"rows": rows})
        kinds.append(changed.replication)
    assert kinds == ["fine-tuning seed", "fine-tuning seed", "pre-training seed"]
    none = wording.detectable_difference(None, kinds[0])
    assert none.endswith("none; one fine-tuning seed cannot tell a row from its luck")
