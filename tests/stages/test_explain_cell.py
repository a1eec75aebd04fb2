"""A cell taken apart: which runs it is made of, which not and why, and the commands that make them
again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.results.words import cell_note
from tests.screens import refuses, shows

from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.stages.explain_cell import main as explain_cell
from clozelab.stages.explain_cell import runs_of_cell

EXPERIMENT = load_experiment(find_experiment("table5_pretraining_tasks"))


@pytest.fixture
def root(make_runs: Callable[..., Path], writers: Any) -> Path:
    scale = make_runs(dict.fromkeys(product(("mlm", "ltr"), ("mrpc", "snli_95k")), 60.0))
    writers.finetune(scale, "mlm", "mrpc", (1, 9), 0.0, status="failed")
    return scale


def test_names_of_rows_and_columns(root: Path) -> None:
    table = build_table(EXPERIMENT, find(root))
    for name in ("MNLI-m", "snli_95k", "SNLI-95k"):
        assert [one.task for one in table.find_columns(name)] == ["snli_95k"]
    with refuses("no column 'QNLI' with a run; did you mean 'MNLI-m'?"):
        table.find_columns("QNLI")
    with refuses("no column 'mrcp' with a run; did you mean 'mrpc'?"):
        table.find_columns("mrcp")
    with refuses("no row 'mlm-nsp'; did you mean 'mlm_nsp'?"):
        explain_cell(
            [
                "table5_pretraining_tasks",
                "mlm-nsp",
                "MRPC",
                "scale=demo",
                f"runs_dir={root.parents[1]}",
            ]
        )


def test_an_equal_score_at_another_rate_does_not_count(tmp_path: Path, writers: Any) -> None:
    """The cell is of one rate: a run of another one is left out also where its score is the
    same.
    """
    glue = load_experiment(find_experiment("table1_glue"))
    scores = {5e-5: (66.0, 58.0), 2e-5: (66.0, 67.0)}
    for rate, values in scores.items():
        for seed, score in enumerate(values, 1):
            writers.finetune(
                tmp_path,
                "given",
                "rte",
                (1, seed),
                score,
                config={"learning_rate": rate},
                sub=str(rate),
            )
    writers.finetune(tmp_path, "large", "rte", (1, 1), 70.0, config={"learning_rate": 5e-5})
    table = build_table(glue, find(tmp_path))
    (column,) = table.find_columns("RTE")
    assert cell_note(table.cells["given", column.key]).startswith("learning rate 2e-05")
    notes = {
        run.record.folder.parent.name: run.note
        for run in runs_of_cell(table, "given", column)
        if run.record.seed == 1
    }
    assert notes["2e-05"] == "" and notes["5e-05"].startswith(
        "does not count: of learning rate 5e-05"
    )


def test_a_fact_of_pretraining_has_the_arms_runs(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "table6_model_size" / "demo"
    for arm, layers in (("base", 4), ("wide", 6)):
        for seed in (1, 2):
            facts = {"validation/perplexity": 10.0 + layers / 8 + seed / 4}
            writers.pretrain(
                root, arm, seed, known=facts, model={"num_hidden_layers": layers, "hidden_size": 96}
            )
    writers.pretrain(root, "base", 3, status="failed")
    assert (
        explain_cell(
            ["table6_model_size", "base", "LM perplexity", "scale=demo", f"runs_dir={tmp_path}"]
        )
        == 0
    )
    out = capsys.readouterr().out
    shows(
        out,
        "L=12, H=768, A=12 on LM perplexity: 10.88 (10.75, 11.00) (perplexity)",
        "pretrain/base/seed-1 10.75",
    )
    assert re.search(r"pretrain/base/seed-1 +10\.75 +0123456789ab", out)
    assert re.search(r"pretrain/base/seed-3 .*does not count: not complete \(failed\)", out)
    assert out.count("clozelab pretrain --config-dir") == 3


def test_a_mean_has_the_runs_of_its_parts(tmp_path: Path, writers: Any) -> None:
    tasks = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
    for number, task in enumerate(tasks):
        for seed in (1, 2):
            writers.scored(tmp_path, "mlm_nsp", task, (1, seed), 60.0 + number + seed)
    writers.scored(tmp_path, "mlm_nsp", "rte", (1, 3), 10.0)
    table = build_table(load_experiment(find_experiment("table1_glue")), find(tmp_path))
    (column,) = table.find_columns("Average")
    runs = runs_of_cell(table, "mlm_nsp", column)
    assert sum(not run.note for run in runs) == 16, "eight tasks, two seeds"
    for seeds, score in table.cells["mlm_nsp", column.key].scores.items():
        mine = [
            run.scores.split(", ")
            for run in runs
            if not run.note and (run.record.pretrain_seed, run.record.seed) == seeds
        ]
        flat = []
        for scores in mine:
            for one in scores:
                flat.append(float(one))
        assert len(flat) == 9 and sum(flat) / 9 == pytest.approx(score, abs=0.01)
    (left,) = [run for run in runs if run.note]
    assert left.record.seed == 3
    shows(left.note, "does not count: of learning rate None, or other parts of the mean lack")


def test_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table5_pretraining_tasks", "mlm", "MRPC", "scale=demo", f"runs_dir={root.parents[1]}"]
    assert explain_cell(words) == 0
    out = capsys.readouterr().out
    shows(
        out,
        "No NSP on MRPC: 60.0 ± 1.0, the paper 86.5 (percent)",
        "finetune/mlm/pretrain-seed-1/mrpc/seed-1 59.70",
        "finetune/mlm/pretrain-seed-1/mrpc/seed-2 59.60",
        "finetune/mlm/pretrain-seed-2/mrpc/seed-1 60.10",
    )
    assert out.count("clozelab finetune --config-dir") == 7 and out.count("clozelab pretrain") == 0
    with refuses("`clozelab reproduce table5_pretraining_tasks scale=laptop`"):
        explain_cell([*words[:3], "scale=laptop", words[-1]])
