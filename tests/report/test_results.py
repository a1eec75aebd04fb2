"""results.csv alone gives every cell of the table again: means over seeds, means of columns, facts
of pre-training.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from claims.analysis.scores import Cell, DataColumn
from clozelab.report.render import RESULT_FIELDS, write_results
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find

Line = Mapping[str, str]
Scores = dict[tuple[str, str], float]
"""(pre-training seed, fine-tuning seed) -> score."""


def written(root: Path, name: str) -> tuple[ResultTable, list[Line]]:
    table = build_table(load_experiment(find_experiment(name)), find(root))
    write_results(root / "results.csv", table, "demo")
    with (root / "results.csv").open(newline="") as file:
        return table, list(csv.DictReader(file))


def scores_of(lines: list[Line], **wanted: str) -> Scores:
    """What docs/runs.md tells readers to take."""
    wanted |= {"counts": "True"}
    mine = [one for one in lines if one["score"] and wanted.items() <= one.items()]
    found = {(one["pretrain_seed"], one["seed"]): float(one["score"]) for one in mine}
    assert len(found) == len(mine), "one line a pair of seeds"
    return found


def averaged(parts: list[Scores]) -> Scores:
    common = set.intersection(*(set(part) for part in parts))
    means: Scores = {}
    for seeds in common:
        means[seeds] = fmean(part[seeds] for part in parts)
    return means


def mean_over_seeds(scores: Scores) -> float:
    """Fine-tuning seeds inside a pre-training seed first."""
    means: list[float] = []
    for _, inside in groupby(sorted(scores), key=lambda seeds: seeds[0]):
        means.append(fmean(scores[seeds] for seeds in inside))
    return fmean(means)


def rebuilt(
    lines: list[Line], table: ResultTable, row: str, column: DataColumn, cell: Cell
) -> Scores:
    if column.is_pretraining:
        arm = next(one.arm for one in table.experiment.rows if one.name == row)
        return scores_of(lines, stage="pretrain", arm=str(arm), metric=column.metric)
    if not cell.groups:
        return scores_of(lines, row=row, column=column.heading)
    groups: list[Scores] = []
    for group in cell.groups:
        parts = [scores_of(lines, row=row, task=part.task, metric=part.metric) for part, _ in group]
        groups.append(averaged(parts))
    return averaged(groups)


def check_every_cell(table: ResultTable, lines: list[Line]) -> list[str]:
    """Returns the headings of the columns that were checked."""
    for column in table.with_results:
        for row in table.experiment.rows:
            cell = table.cells[row.name, column.key]
            if cell.estimate is None:
                continue
            scores = rebuilt(lines, table, row.name, column, cell)
            expected = {tuple(map(str, seeds)): score for seeds, score in cell.scores.items()}
            if column.is_pretraining:
                expected = {(seed, ""): score for (seed, _), score in expected.items()}
            assert scores == pytest.approx(expected), (row.name, column.heading)
            assert mean_over_seeds(scores) == pytest.approx(cell.estimate.mean), (
                row.name,
                column.heading,
            )
    return [column.heading for column in table.with_results]


def test_scores_of_one_run_and_means_of_columns(tmp_path: Path, writers: Any) -> None:
    tasks = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
    for number, task in enumerate(tasks):
        for seeds in ((1, 1), (1, 2), (2, 1)):
            writers.scored(
                tmp_path, "mlm_nsp", task, seeds, 50.0 + number + seeds[0] + seeds[1] / 3
            )
    for rate, score in ((5e-5, 66.0), (2e-5, 70.0)):
        for seed in (1, 2):
            config = {"learning_rate": rate}
            writers.finetune(
                tmp_path, "given", "rte", (1, seed), score + seed, config=config, sub=str(rate)
            )
    writers.scored(tmp_path, "a_row_of_nobody", "rte", (1, 1), 10.0)
    writers.finetune(tmp_path, "mlm_nsp", "rte", (2, 2), 0.0, status="failed")
    table, lines = written(tmp_path, "table1_glue")
    checked = check_every_cell(table, lines)
    assert (
        len(checked) == 11
        and "Average (dev)" in checked
        and "GLUE score without WNLI (dev)" in checked
    )
    assert {one["metric"] for one in lines if one["task"] == "mrpc"} == {
        "validation/accuracy",
        "validation/f1",
    }
    assert [
        one["learning_rate"] for one in lines if one["row"] == "given" and one["counts"] == "True"
    ] == ["2e-05"] * 2
    assert [one["counts"] for one in lines if one["row"] == "a_row_of_nobody"] == ["False"]
    assert [
        (one["metric"], one["score"], one["collapsed"])
        for one in lines
        if one["status"] == "failed"
    ] == [("",) * 3]


def test_facts_of_pretraining(tmp_path: Path, writers: Any) -> None:
    for index, arm in enumerate(("base", "wide")):
        for seed in (1, 2):
            facts = {"validation/perplexity": 11.5 - index + seed / 7, "validation/accuracy": 0.4}
            facts |= {"validation/nsp_accuracy/wiki": 0.9}  # that no record declares
            writers.pretrain(tmp_path, arm, seed, known=facts, generator="microworld")
            writers.scored(tmp_path, arm, "mrpc", (seed, 1), 60.0 + index + seed, synthetic="text")
    writers.pretrain(tmp_path, "base", 3, status="running", generator="microworld")
    table, lines = written(tmp_path, "table6_model_size")
    assert set(check_every_cell(table, lines)) == {"text LM perplexity", "text MRPC"}
    assert {one["synthetic"] for one in lines} == {"text"}
    own = [one for one in lines if one["folder"] == "pretrain/base/seed-1"]
    figures = [
        ("validation/loss", "nats", "False", "4.4"),
        ("validation/accuracy", "percent", "True", "40"),
        ("validation/nsp_accuracy/wiki", "percent", "True", "90"),
        ("validation/perplexity", "", "False", "11.64285714"),
    ]
    keys = ("metric", "unit", "higher_is_better", "score")
    assert [tuple(one[key] for key in keys) for one in own] == figures
    assert [one["is_headline"] for one in own] == ["True", "False", "False", "False"]
    assert [one["score"] for one in lines if one["status"] == "killed"] == [""]


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@x", "-2+3+cmd|' /C calc'!A0", "\t=1"])
def test_no_cell_is_a_formula(tmp_path: Path, writers: Any, name: str) -> None:
    """A spreadsheet would compute it; numbers stay numbers."""
    writers.finetune(
        tmp_path, "ltr", "cola", (1, 1), -12.5, config={"experiment": name}, synthetic=name
    )
    path = next(tmp_path.rglob("run.json"))
    state = json.loads(path.read_text())
    state["git"]["commit"] = name
    path.write_text(json.dumps(state))
    _, (line,) = written(tmp_path, "table1_glue")
    assert line["synthetic"] == line["commit"] == f"'{name}" and float(line["score"]) == -12.5
    assert not [
        cell
        for cell in line.values()
        if cell.startswith(("=", "+", "@", "\t")) or cell[:2] in ("-x", "-2")
    ]


def test_every_column_is_described_and_every_line_has_a_run(tmp_path: Path, writers: Any) -> None:
    writers.scored(tmp_path, "mlm", "snli_95k", (1, 1), 60.0)
    writers.scored(tmp_path, "mlm", "squad_v1", (1, 1), 70.0)
    writers.pretrain(tmp_path, "mlm", 1)
    _, lines = written(tmp_path, "table5_pretraining_tasks")
    assert [(one["stage"], one["metric"].removeprefix("validation/")) for one in lines] == [
        ("pretrain", "loss"),
        ("finetune", "accuracy"),
        ("finetune", "f1"),
        ("finetune", "exact_match"),
    ]
    assert [one["stand_in_for"] for one in lines] == ["", "mnli", "", ""]
    assert [one["higher_is_better"] for one in lines] == ["False", "True", "True", "True"]
    assert all((tmp_path / one["folder"] / "run.json").is_file() and one["commit"] for one in lines)
    docs = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
    section = docs.partition("## results.csv")[2].partition("\n## ")[0]
    assert [field for field in RESULT_FIELDS if f"`{field}`" not in section] == []
