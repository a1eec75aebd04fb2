"""Which runs stand in which column: several scores of one task, another split than the paper's, learning rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.collect import Collected, FinetuneRun
from clozelab.ledger.reporting.experiment import load_experiment
from clozelab.ledger.reporting.table import Cell, Table, build_table
from clozelab.ledger.reporting.verdicts import NOT_COMPARABLE, judge
from clozelab.metrics.glue import official_average


def run(row: str, task: str, metric: str, scores: dict[str, float], **changes: Any) -> FinetuneRun:
    state = {"status": "complete", "stage": "finetune"}
    about = {"pretrain_seed": 1, "seed": 1, "title": task.upper(), "learning_rate": 1e-4} | changes
    return FinetuneRun(dir=Path("x"), row=row, task=task, state=state, metric=metric, scores=scores, **about)


def table_of(name: str, *runs: FinetuneRun) -> Table:
    return build_table(load_experiment(EXPERIMENTS_DIR / name), Collected(Path("x"), [], list(runs), []))


def test_one_task_fills_several_columns() -> None:
    scores = {"validation/exact_match": 70.0, "validation/f1": 80.0}
    table = table_of("table2_squad_v1", run("large", "squad_v1", "validation/f1", scores))
    assert [(one.heading, one.is_paper) for one in table.columns] == [
        (name, True) for name in ("dev EM", "dev F1", "test EM", "test F1")
    ]
    assert len({one.key for one in table.columns}) == 4
    means = [table.cells["large", one.key].estimate for one in table.columns]
    assert [one and one.mean for one in means] == [70.0, 80.0, None, None]
    assert [table.paper_value("large_extra", one) for one in table.columns] == [84.2, 91.1, 85.1, 91.8]


def test_both_averages_of_glue() -> None:
    """BERT-Large's test scores as if they were ours: the paper's Average, and the benchmark's own score."""
    tasks = {
        "mnli": {"accuracy": 86.7, "mismatched_accuracy": 85.9}, "qqp": {"f1": 72.1, "accuracy": 89.3},
        "qnli": {"accuracy": 92.7}, "sst2": {"accuracy": 94.9}, "cola": {"matthews": 60.5},
        "stsb": {"spearman": 86.5, "pearson": 87.6}, "mrpc": {"f1": 89.3, "accuracy": 85.4}, "rte": {"accuracy": 70.1},
    }  # fmt: skip
    runs = []
    for task, scores in tasks.items():
        named = {f"validation/{key}": value for key, value in scores.items()}
        runs.append(run("large", task, next(iter(named)), named))
    table = table_of("table1_glue", *runs)
    found = {one.column.name: table.cells["large", one.key].estimate for one in table.with_results if one.column}
    average, score = found["Average"], found["GLUE score without WNLI"]
    assert average is not None and round(average.mean, 1) == 82.1
    columns = {"mnli": "MNLI", "qqp": "QQP", "qnli": "QNLI", "sst2": "SST-2", "cola": "CoLA", "stsb": "STS-B"}
    official = {columns.get(task, task.upper()): list(scores.values()) for task, scores in tasks.items()}
    assert score is not None and score.mean == pytest.approx(official_average(official, with_wnli=False))
    assert score.mean - average.mean > 0.3
    lacking = [one for one in runs if one.task != "stsb"]
    lacking.append(run("large", "stsb", "validation/spearman", {"validation/spearman": 86.5}))
    with_gap = table_of("table1_glue", *lacking)
    headings = [one.column.name for one in with_gap.with_results if one.column]
    assert "Average" in headings and "GLUE score without WNLI" not in headings, "a mean over fewer is another number"


def test_another_split_stands_apart_and_judges_nothing() -> None:
    scores = {"validation/accuracy": 80.0, "validation/mismatched_accuracy": 81.0}
    runs = [run(row, "mnli", "validation/accuracy", scores) for row in ("large", "mlm_nsp")]
    runs += [run(row, "rte", "validation/accuracy", {"validation/accuracy": 70.0}) for row in ("large", "mlm_nsp")]
    table = table_of("table1_glue", *runs)
    ours = {one.heading: one for one in table.with_results}
    assert list(ours) == ["MNLI-m (dev)", "MNLI-mm (dev)", "RTE (dev)"]
    cell = table.cells["large", ours["MNLI-mm (dev)"].key]
    assert cell.estimate is not None and cell.estimate.mean == 81.0
    assert all(table.paper_value("large", one) is None for one in ours.values())
    assert all(one.role == "dev; the paper's numbers are on test" for one in ours.values())
    paper = [table.paper_value("large", one) for one in table.columns if one.is_paper]
    assert paper == [86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 82.1, None]
    judgements = judge(table)
    assert {one.verdict for one in judgements} == {NOT_COMPARABLE}
    assert "paper's numbers are on test" in judgements[0].note


def test_stand_in_speaks_for_one_column_only() -> None:
    found = run("given", "snli_95k", "validation/accuracy", {"validation/accuracy": 80.0}, stand_in_for="mnli")
    table = table_of("table1_glue", found)
    assert [one.column.name for one in table.with_results if one.column] == ["MNLI-m"]


def test_best_learning_rate_is_chosen_by_its_mean() -> None:
    def at(rate: float, seed: int, accuracy: float, f1: float) -> FinetuneRun:
        scores = {"validation/accuracy": accuracy, "validation/f1": f1}
        return run("given", "mrpc", "validation/accuracy", scores, learning_rate=rate, seed=seed)

    runs = [at(5e-5, 1, 90.0, 92.0), at(5e-5, 2, 70.0, 95.0), at(3e-5, 1, 84.0, 88.0), at(3e-5, 2, 86.0, 89.0)]
    table = table_of("table1_glue", *runs, at(2e-5, 1, 99.0, 99.0))
    cell = table.cells["given", "mrpc"]
    assert dict(cell.scores) == {(1, 1): 88.0, (1, 2): 89.0}
    assert cell.note == "learning rate 3e-05, best of 2 on dev (1 more with fewer seeds left out)"


def test_learning_rates_are_compared_on_the_seeds_they_share() -> None:
    """Seed 9 is a lucky one and seed 1 an unlucky one, at any rate."""

    def cell_of(*scores: tuple[float, int, float]) -> Cell:
        runs = [
            run("given", "rte", "validation/accuracy", {"validation/accuracy": score}, learning_rate=rate, seed=seed)
            for rate, seed, score in scores
        ]
        return table_of("table1_glue", *runs).cells["given", "rte"]

    cell = cell_of((5e-5, 1, 50.0), (5e-5, 2, 72.0), (3e-5, 2, 70.0), (3e-5, 9, 90.0))
    assert dict(cell.scores) == {(1, 1): 50.0, (1, 2): 72.0}
    assert cell.note == "learning rate 5e-05, best of 2 on dev over 1 of 2 seeds"
    cell = cell_of((5e-5, 1, 50.0), (3e-5, 9, 90.0))
    assert dict(cell.scores) == {(1, 1): 50.0} and cell.note == "learning rate 5e-05, of 2 without a seed in common"


@pytest.mark.parametrize("name", ["table2_squad_v1", "table3_squad_v2"])
def test_no_runs(name: str) -> None:
    table = table_of(name)
    assert all(one.is_paper for one in table.columns) and not table.with_results
    assert {one.verdict for one in judge(table)} == {NOT_COMPARABLE}
