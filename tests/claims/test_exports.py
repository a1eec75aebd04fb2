"""Exports that other libraries wrote themselves are judged (make_exports.py made them)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from claims.cli import main
from claims.tables.score_file import read_scores

EXPORTS = Path(__file__).with_name("exports")


def test_a_cache_of_mteb_has_a_column_for_each_task() -> None:
    cells = read_scores(EXPORTS / "mteb").cells
    assert set(cells) == set(product(("lab__narrow", "lab__wide"), ("STS17", "STSBenchmark")))
    for seed in (1, 2, 3):
        file = EXPORTS / f"mteb/lab__wide-seed-{seed}/main/STS17.json"
        subsets = json.loads(file.read_text())["scores"]["test"]
        mean = 100.0 * fmean(subset["main_score"] for subset in subsets)
        assert cells["lab__wide", "STS17"][seed, 0] == pytest.approx(mean)


def test_a_tree_of_the_trainer_has_its_last_evaluations() -> None:
    """One arm saved its metrics, the other its state alone."""
    found = read_scores(EXPORTS / "trainer")
    assert set(found.cells) == set(product(("narrow", "wide"), ("toy accuracy", "toy loss")))
    for seed in (1, 2, 3):
        metrics = EXPORTS / f"trainer/wide/toy/seed-{seed}/eval_results.json"
        saved = json.loads(metrics.read_text())
        assert found.cells["wide", "toy accuracy"][seed, 0] == 100.0 * saved["eval_accuracy"]
        state = EXPORTS / f"trainer/narrow/toy/seed-{seed}/trainer_state.json"
        last = json.loads(state.read_text())["log_history"][-1]
        assert found.cells["narrow", "toy loss"][seed, 0] == last["eval_loss"]
    assert [column.name for column in found.columns] == ["toy loss"]


@pytest.mark.parametrize("name", ["search_runs.csv", "cli.csv"])
def test_exports_of_mlflow_have_the_last_values_of_finished_runs(name: str) -> None:
    """A metric is between 0 and 1, so percent; a loss stays, and less of it is better."""
    found = read_scores(EXPORTS / "mlflow" / name)
    assert set(found.cells) == set(product(("narrow", "wide"), ("eval/f1", "loss")))
    for seed in (1, 2, 3, 4, 5):
        score = found.cells["wide", "eval/f1"][seed, 0]
        assert 60.0 < score < 70.0
        assert found.cells["wide", "loss"][seed, 0] == pytest.approx(1.0 - score / 100.0)
    assert found.fractions == ["eval/f1"] and found.notes == ["1 unfinished run"]
    assert [column.name for column in found.columns] == ["loss"]


def test_results_of_the_harness_say_what_is_better() -> None:
    found = read_scores(EXPORTS / "harness")
    columns = ("toy acc", "toy brier_score")
    assert set(found.cells) == set(product(("narrow", "wide"), columns))
    for path in EXPORTS.glob("harness/lab__wide-seed-1/results*.json"):
        scores = json.loads(path.read_text())["results"]["toy"]
        assert found.cells["wide", "toy acc"][1, 0] == 100.0 * scores["acc,none"]
        assert found.cells["wide", "toy brier_score"][1, 0] == scores["brier_score,none"]
    assert [column.higher_is_better for column in found.columns] == [False]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("mteb", "lab__wide"),
        ("trainer", "wide"),
        ("harness", "narrow"),
        ("mlflow/cli.csv", "narrow"),
        ("mlflow/search_runs.csv", "narrow"),
    ],
)
def test_they_are_judged_without_a_file_of_claims(
    name: str, label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["judge", str(EXPORTS / name), "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "3 seeds" in out or "5 seeds" in out
    assert label in out
    assert (tmp_path / "report.html").is_file()
