"""Scores of single examples: how they are read, and what the page says of them."""

from __future__ import annotations

from itertools import product
from math import comb
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.screens import refuses

from claims.analysis.examples import RESAMPLES, mcnemar, multi_bootstrap
from claims.analysis.schema import Column
from claims.report.score_page import judge_files
from claims.tables.score_file import read_scores

CLAIM = "claims: [{text: b is better, compare: [b, a, qa], direction: higher}]\n"


def write_examples(path: Path, scores: dict[str, np.ndarray], column: str = "example") -> Path:
    """System -> [pre-training seeds, fine-tuning seeds, examples] as a long table."""
    lines = [f"arm,pretrain_seed,finetune_seed,task,{column},score"]
    for arm, values in scores.items():
        for (seed, fine, example), value in np.ndenumerate(values):
            lines.append(f"{arm},{seed},{fine + 1},qa,e{example},{value}")
    path.write_text("\n".join(lines))
    return path


def judged(folder: Path, scores: dict[str, np.ndarray]) -> tuple[str, str]:
    """(verdict, what resampling says) of one claim."""
    (folder / "claims.yaml").write_text(CLAIM)
    path = write_examples(folder / "scores.csv", scores)
    (claim,) = judge_files(path, folder / "claims.yaml", folder / "report").judged.claims
    for page in ("report.html", "report.md"):
        text = (folder / "report" / page).read_text(encoding="utf-8")
        assert (claim.figures.resampled in text) and ("Verdicts rest on Student" in text)
    return claim.label, claim.figures.resampled


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["example", "item"])
def test_a_run_has_the_mean_of_its_examples(tmp_path: Path, column: str) -> None:
    """In percent; a declared unit keeps them."""
    right = np.array([[[1, 0, 1, 1]], [[0, 0, 1, 0]]])
    found = read_scores(write_examples(tmp_path / "right.csv", {"a": right}, column))
    assert found.cells == {("a", "qa"): {(0, 1): 75.0, (1, 1): 25.0}}
    assert found.examples["a", "qa"][0, 1].tolist() == [100.0, 0.0, 100.0, 100.0]
    truth = write_examples(tmp_path / "truth.csv", {"a": right.astype(bool)}, column)
    assert read_scores(truth).cells == found.cells

    graded = write_examples(tmp_path / "graded.csv", {"a": np.array([[[0.5, 1.0]]])}, column)
    assert read_scores(graded).cells == {("a", "qa"): {(0, 1): 75.0}}
    column = Column(name="qa", task="qa", unit="points", higher_is_better=True)
    assert read_scores(graded, declared=[column]).cells == {("a", "qa"): {(0, 1): 0.75}}


def test_columns_with_other_names_are_named(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("arm,run,head,question,qa\na,1,2,x,0.5\na,1,2,y,1.5\n")
    (tmp_path / "claims.yaml").write_text(
        "compare: all\nscores: {seed: run, finetuning_seed: head, example: question}\n"
    )
    page = judge_files(tmp_path / "scores.csv", tmp_path / "claims.yaml", None)
    assert page.table.groups[0].rows[0].cells[0].seeds == "1/2: 1.0"


def test_runs_on_other_examples_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("arm,seed,task,item,score\na,1,qa,x,1\na,1,qa,y,0\nb,1,qa,x,1\n")
    with refuses("b on qa, seed 1, is not scored on the examples of the first run (1 and 2)"):
        read_scores(path)
    path.write_text("arm,seed,task,item,score\na,1,qa,x,1\na,1,qa,x,0\n")
    with refuses("line 3: a second score of a on qa, seed 1, example x: keep one"):
        read_scores(path)


# -- two runs --------------------------------------------------------------------------------------


def test_mcnemar_agrees_with_the_sum_of_the_binomial() -> None:
    """The counts 59 and 6 of a textbook's approval survey, of which all below are the tail."""
    for only_first, only_second in product((0, 3, 6, 20), (0, 1, 9, 59)):
        first = [True] * only_first + [False] * only_second + [True] * 7
        second = [False] * only_first + [True] * only_second + [True] * 7
        total = only_first + only_second
        tail = sum(comb(total, k) for k in range(min(only_first, only_second) + 1)) / 2**total
        assert mcnemar(first, second).p_value == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


def test_one_run_each_has_mcnemar_beside_an_open_verdict(tmp_path: Path) -> None:
    a = np.array([[[0] * 9 + [1] * 2 + [1] * 9]])
    b = np.array([[[1] * 9 + [0] * 2 + [1] * 9]])
    label, text = judged(tmp_path, {"a": a, "b": b})
    assert label == "inconclusive (one seed)"
    counts = "of 20 examples only b has 9 right, only a 2"
    assert text == f"these two runs alone: {counts}; exact McNemar p = 0.065"


@pytest.mark.parametrize(("unit", "difference"), [("percent", "+100.0"), ("errors", "+1.00")])
def test_errors_are_counted_as_wrong(tmp_path: Path, unit: str, difference: str) -> None:
    """A declared unit keeps 1 and 0; of percent they become 100 and 0."""
    rows = [f"{arm},1,err,q{number},{int(arm == 'a')}" for arm, number in product("ab", range(8))]
    (tmp_path / "scores.csv").write_text("\n".join(["arm,seed,task,example,score", *rows]))
    (tmp_path / "claims.yaml").write_text(
        f"columns: [{{name: err, unit: {unit}, higher_is_better: false}}]\n"
        "claims: [{text: a errs more, compare: [a, b, err], direction: higher}]\n"
    )
    judge_files(tmp_path / "scores.csv", tmp_path / "claims.yaml", tmp_path / "report")
    text = (tmp_path / "report/report.md").read_text()
    assert "only a has 8 wrong, only b 0" in text and difference in text


def test_one_run_each_with_graded_scores_has_the_bootstrap(tmp_path: Path) -> None:
    """Its interval is scipy's, but for the draws."""
    draw = np.random.default_rng(0)
    a = draw.normal(50.0, 10.0, (1, 1, 300))
    b = a + draw.normal(1.0, 5.0, (1, 1, 300))
    label, text = judged(tmp_path, {"a": a, "b": b})
    assert label == "inconclusive (one seed)"
    assert text.startswith("these two runs alone: paired bootstrap over 300 examples: [")
    of_examples = (b - a)[0, 0]
    scipys = stats.bootstrap(
        (of_examples,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=draw
    ).confidence_interval
    ours = multi_bootstrap([(b - a)[0]])
    assert ours.difference == pytest.approx(of_examples.mean())
    assert (ours.low, ours.high) == pytest.approx((scipys.low, scipys.high), abs=0.1)


# -- nested seeds ----------------------------------------------------------------------------------


def test_nested_seeds_have_the_multi_bootstrap_beside_students_interval(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    a = draw.normal(70.0, 1.0, (5, 3, 40))
    b = a + 2.0 + draw.normal(0.0, 0.5, (5, 1, 1)) + draw.normal(0.0, 0.5, (5, 3, 40))
    label, text = judged(tmp_path, {"a": a, "b": b})
    assert label == "holds"
    over = "multi-bootstrap over 5 pre-training seeds, 15 fine-tunings and 40 examples: ["
    assert text.startswith(over)


def test_the_variance_is_that_of_three_sources() -> None:
    """Of the mean of seeds, runs and examples that are drawn apart, worked out by hand.

    With effects u, v, w of seed, run and example the variance of a resampled mean is var(u) / S
    + var(v) / (S F) + var(w) / E, each with the divisor n of the bootstrap.
    """
    draw = np.random.default_rng(5)
    num_seeds, num_runs, num_examples = 30, 20, 50
    seeds = draw.normal(0.0, 3.0, num_seeds)
    runs = draw.normal(0.0, 5.0, (num_seeds, num_runs))
    runs -= runs.mean(axis=1, keepdims=True)
    examples = draw.normal(0.0, 4.0, num_examples)
    values = seeds[:, None, None] + runs[:, :, None] + examples
    found = multi_bootstrap(list(values))
    variance = seeds.var() / num_seeds + examples.var() / num_examples
    variance += runs.var() / (num_seeds * num_runs)
    half = stats.norm.ppf(0.975) * variance**0.5
    assert found.difference == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_seeds_with_unequally_many_runs_weigh_the_same() -> None:
    one = multi_bootstrap([np.full((1, 1), 1.0), np.full((9, 1), 3.0)])
    assert one.difference == 2.0 and (one.low, one.high) == (1.0, 3.0)
