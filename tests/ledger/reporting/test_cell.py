"""A cell taken apart: its runs and its arithmetic are the table's own, and a proved command composes to the record."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.ledger.collect import collect
from clozelab.ledger.commands import remake
from clozelab.ledger.fingerprint import canonical
from clozelab.ledger.reporting.cell import explain, find_columns, find_row
from clozelab.ledger.reporting.experiment import find_experiment, load_experiment
from clozelab.ledger.reporting.table import build_table
from clozelab.ledger.sweep import compose, hydra_config, without_hydra
from clozelab.stages.explain_cell import main

FOLDER = find_experiment("table5_pretraining_tasks")
EXPERIMENT = load_experiment(FOLDER)


@pytest.fixture
def root(make_runs: Callable[..., Path], writers: Any) -> Path:
    scale = make_runs({(row, task): 60.0 for row in ("mlm", "ltr") for task in ("mrpc", "snli_95k")})
    writers.finetune(scale, "mlm", "mrpc", (1, 9), 0.0, status="failed")
    return scale


def test_arithmetic_is_that_of_the_table(root: Path) -> None:
    collected = collect(root)
    table = build_table(EXPERIMENT, collected)
    (column,) = find_columns(table, "MRPC")
    found = explain(table, collected, "mlm", column)
    estimate = table.cells["mlm", "mrpc"].estimate
    assert estimate is not None and estimate.half_width is not None
    numbers = re.findall(r"[\d.]+", found.arithmetic[-1])
    assert float(numbers[-1]) == pytest.approx(estimate.half_width, abs=0.005)
    assert f"{estimate.mean:.2f}" in found.arithmetic[-2] and "3 pre-training seeds" in found.arithmetic[-2]
    assert found.paper == 86.5 and len(found.arithmetic) == 5
    assert [why for _, why in found.runs].count("") == 6
    assert "not complete (failed)" in [why for _, why in found.runs]
    assert ("encoder_arm", "(none)", "(none)") not in found.apart


def test_names_of_rows_and_columns(root: Path) -> None:
    table = build_table(EXPERIMENT, collect(root))
    assert find_row(EXPERIMENT, "No NSP") == find_row(EXPERIMENT, "mlm") == "mlm"
    for name in ("MNLI-m", "snli_95k", "SNLI-95k"):
        assert [one.task for one in find_columns(table, name)] == ["snli_95k"]
    with pytest.raises(ValueError, match="did you mean 'mlm_nsp'"):
        find_row(EXPERIMENT, "mlm-nsp")
    with pytest.raises(ValueError, match="has no run; with runs there are: MNLI-m, MRPC"):
        find_columns(table, "QNLI")
    with pytest.raises(ValueError, match="did you mean 'mrpc'"):
        find_columns(table, "mrcp")


def recorded(words: list[str]) -> dict[str, Any]:
    """What a run's record would say of a composed fine-tuning job."""
    composed = compose("sweep_finetune", words, folder=FOLDER)
    with hydra_config(composed):
        return dict(json.loads(json.dumps(canonical(without_hydra(composed)))))


@pytest.mark.parametrize(
    "extra", [[], ["learning_rate=3e-4"], ["task.data.max_seq_length=77", "gradient_clip_norm=0.5"]]
)
def test_a_command_is_proved_by_composing_it(tmp_path: Path, extra: list[str]) -> None:
    words = ["scale=demo", "row=ltr_bilstm", "task=mrpc", "pretrain_seed=2", "seed=1"]
    config = recorded([*words, *extra])
    line, lacking = remake(FOLDER, {"stage": "finetune", "config_resolved": config}, tmp_path, "elsewhere", "demo")
    assert lacking == ""
    said = shlex.split(line)
    assert said[:2] == ["clozelab", "finetune"] and "runs_dir=elsewhere" in said
    assert recorded([word for word in said if "=" in word and not word.startswith("hydra.")]) == config
    if not extra:
        assert len([word for word in said if "=" in word]) == 7  # no override without need


def test_a_command_that_cannot_be_proved_says_so(tmp_path: Path) -> None:
    config = recorded(["scale=demo", "row=mlm", "task=mrpc"]) | {"an_option_that_has_gone": 3}
    _, lacking = remake(FOLDER, {"stage": "finetune", "config_resolved": config}, tmp_path, "runs", "demo")
    assert "an_option_that_has_gone" in lacking
    config["task"]["name"] = "gone"
    _, lacking = remake(FOLDER, {"stage": "finetune", "config_resolved": config}, tmp_path, "runs", "demo")
    assert lacking.startswith("cannot be composed now")


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
