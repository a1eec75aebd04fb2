"""A cell taken apart: its runs and its arithmetic are the table's own, and a proved command composes to the record."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.runs.find import find
from clozelab.stages.explain_cell import arithmetic, explain, find_columns, find_row, main
from clozelab.verdicts.experiment import find_experiment, load_experiment
from clozelab.verdicts.table import build_table

FOLDER = find_experiment("table5_pretraining_tasks")
EXPERIMENT = load_experiment(FOLDER)


@pytest.fixture
def root(make_runs: Callable[..., Path], writers: Any) -> Path:
    scale = make_runs({(row, task): 60.0 for row in ("mlm", "ltr") for task in ("mrpc", "snli_95k")})
    writers.finetune(scale, "mlm", "mrpc", (1, 9), 0.0, status="failed")
    return scale


def test_arithmetic_is_that_of_the_table(root: Path) -> None:
    table = build_table(EXPERIMENT, find(root))
    (column,) = find_columns(table, "MRPC")
    found = explain(table, "mlm", column)
    estimate = table.cells["mlm", "mrpc"].estimate
    assert estimate is not None and estimate.half_width is not None
    lines = arithmetic(found.cell)
    numbers = re.findall(r"[\d.]+", lines[-1])
    assert float(numbers[-1]) == pytest.approx(estimate.half_width, abs=0.005)
    assert f"{estimate.mean:.2f}" in lines[-2] and "3 pre-training seeds" in lines[-2]
    assert found.paper == 86.5 and len(lines) == 5
    assert [one.why_not for one in found.runs].count("") == 6
    assert "not complete (failed)" in [one.why_not for one in found.runs]


def test_names_of_rows_and_columns(root: Path) -> None:
    table = build_table(EXPERIMENT, find(root))
    assert find_row(EXPERIMENT, "No NSP") == find_row(EXPERIMENT, "mlm") == "mlm"
    for name in ("MNLI-m", "snli_95k", "SNLI-95k"):
        assert [one.task for one in find_columns(table, name)] == ["snli_95k"]
    with pytest.raises(ValueError, match="did you mean 'mlm_nsp'"):
        find_row(EXPERIMENT, "mlm-nsp")
    with pytest.raises(ValueError, match="has no run; with runs there are: MNLI-m, MRPC"):
        find_columns(table, "QNLI")
    with pytest.raises(ValueError, match="did you mean 'mrpc'"):
        find_columns(table, "mrcp")


def test_an_equal_score_at_another_rate_does_not_count(tmp_path: Path, writers: Any) -> None:
    """The cell is of one rate: a run of another one is left out also where its score is the same."""
    glue = load_experiment(find_experiment("table1_glue"))
    scores = {5e-5: (66.0, 58.0), 2e-5: (66.0, 67.0)}
    for rate, values in scores.items():
        for seed, score in enumerate(values, 1):
            writers.finetune(tmp_path, "given", "rte", (1, seed), score, config={"learning_rate": rate}, sub=str(rate))
    writers.finetune(tmp_path, "large", "rte", (1, 1), 70.0, config={"learning_rate": 5e-5})
    table = build_table(glue, find(tmp_path))
    found = explain(table, "given", find_columns(table, "RTE")[0])
    assert found.cell.note.startswith("learning rate 2e-05")
    by_rate = {one.run.folder.parent.name: one.why_not for one in found.runs if one.run.seed == 1}
    assert by_rate == {"2e-05": "", "5e-05": "learning rate 5e-05, and the cell is of 2e-05"}


def test_a_fact_of_pretraining_has_the_arms_runs(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "table6_model_size" / "demo"
    for arm, layers in (("base", 4), ("wide", 6)):
        for seed in (1, 2):
            facts = {"validation/perplexity": 10.0 + layers / 8 + seed / 4}
            writers.pretrain(root, arm, seed, known=facts, model={"num_hidden_layers": layers, "hidden_size": 96})
    writers.pretrain(root, "base", 3, status="failed")
    assert main(["table6_model_size", "base", "LM perplexity", "scale=demo", f"runs_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "on LM perplexity: 10.88 \u00b1 1.59 (perplexity)" in out and "percent" not in out
    assert re.search(r"pretrain/base/seed-1 +10\.75 +0123456789ab", out)
    assert re.search(r"pretrain/base/seed-3 .*does not count: not complete \(failed\)", out)
    assert "pretrain/wide" not in out and "missing: pre-training seed 3\n" in out
    assert out.count("clozelab pretrain --config-dir") == 3 and "torch 2.13.0" in out


def test_a_mean_has_the_runs_of_its_parts(tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "table1_glue" / "demo"
    tasks = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
    for number, task in enumerate(tasks):
        for seed in (1, 2):
            writers.scored(root, "mlm_nsp", task, (1, seed), 60.0 + number + seed)
    writers.scored(root, "mlm_nsp", "rte", (1, 3), 10.0)
    table = build_table(load_experiment(find_experiment("table1_glue")), find(root))
    (column,) = find_columns(table, "Average")
    found = explain(table, "mlm_nsp", column)
    counting = [one for one in found.runs if not one.why_not]
    assert len(counting) == 18, "nine columns, two seeds"
    for seeds, score in found.cell.scores.items():
        mine = [one.score for one in counting if (one.run.pretrain_seed, one.run.seed) == seeds]  # type: ignore[union-attr]
        assert sum(filter(None, mine)) / len(mine) == pytest.approx(score)
    (left,) = [one for one in found.runs if one.why_not]
    assert left.run.seed == 3 and left.why_not == "another part of the mean has no run with its seeds"
    assert main(["table1_glue", "mlm_nsp", "GLUE score without WNLI", "scale=demo", f"runs_dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "[MRPC (dev) f1 66.00 and MRPC (dev) accuracy 67.00]" in out and "(percent)" in out
    assert out.count("clozelab finetune --config-dir") == 17, "a run in two parts is made once"


def test_verb(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["table5_pretraining_tasks", "mlm", "MRPC", "scale=demo", f"runs_dir={root.parents[1]}"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "No NSP on MRPC: 60.0 ± " in out and "the paper 86.5" in out
    assert "finetune/mlm/pretrain-seed-3/mrpc/seed-2" in out and "0123456789ab" in out
    assert "missing: pre-training seed 2, fine-tuning seed 9" in out
    assert out.count("clozelab finetune --config-dir") == 7 and out.count("clozelab pretrain") == 0
    with pytest.raises(ValueError, match="no run below"):
        main([*words[:3], "scale=laptop", words[-1]])
