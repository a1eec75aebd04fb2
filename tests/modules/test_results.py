"""Result files: what they hold, and that they appear whole."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clozelab.metrics.metric import Metric
from clozelab.modules.finetuning import Evaluation, write_results
from clozelab.tasks.target import json_lines

ROW = {"id": "7", "prediction": "yes", "label": "no", "logits": [0.1, 0.2]}
TASK = {"name": "toy", "title": "Toy", "stand_in_for": "other"}


def module_with(predictions: list[Any], is_collapsed: bool = False) -> Any:
    best = Evaluation(4, {"validation/accuracy": 0.5}, predictions, is_collapsed)
    return SimpleNamespace(
        require_best=lambda: best,
        metric="validation/accuracy",
        positive_label=None,
        metrics=[Metric.share("accuracy")],
        score_name=lambda key: key,
        class_reports=lambda best: {},
        total_steps=9,
        history=[{"step": 4, "validation/accuracy": 0.5}],
        baseline=lambda: 0.4,
        result_files=lambda best: {"predictions.jsonl": json_lines(best.predictions)},
    )


def test_scores_and_predictions(tmp_path: Path) -> None:
    written = write_results(tmp_path, module_with([ROW, {**ROW, "id": "é"}]), TASK)
    saved = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert saved == written
    expected = {
        "metric": "validation/accuracy",
        "best_step": 4,
        "majority_baseline": 0.4,
        "num_examples": 2,
    }
    assert saved.items() >= (expected | TASK).items()
    assert "paper" in saved["selection"]
    lines = (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["7", "é"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predictions.jsonl", "scores.json"]


def test_collapse_is_written_down(tmp_path: Path) -> None:
    assert write_results(tmp_path, module_with([ROW], is_collapsed=True), TASK)["collapsed"] is True


def test_a_collapsed_run_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_results(tmp_path, module_with([ROW], is_collapsed=True), TASK)
    assert "collapsed run" in caplog.text
