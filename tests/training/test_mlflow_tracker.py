"""MLflow's logger against its own store: what is sent twice is kept once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clozelab.training.catching_up import MetricCall
from clozelab.training.jobs import TrackedJob
from clozelab.training.mlflow_tracker import accepted_name
from clozelab.training.tracking import build_mlflow_logger


def build(folder: Path, run_name: str | None = "runs/mlm", tags: tuple[str, ...] = ()) -> Any:
    job = TrackedJob(folder, "id-1", "e", "mlm", "pretrain", "mlm/seed-1", tags, {"seed": 1})
    uri = f"sqlite:///{folder}/mlflow.db"
    names = {"experiment_name": "e", "run_name": run_name, "tracking_uri": uri}
    return build_mlflow_logger(**names, lock=str(folder / ".lock"), job=job)


def test_a_folder_is_one_run_and_nothing_is_kept_twice(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    calls = [MetricCall({"train/loss": 1.0 / step}, step, float(step)) for step in range(1, 1501)]
    first = build(tmp_path)
    first.log_hyperparams({"seed": 1, "long": "x" * 9000})
    first.log_many(calls)
    first.close(1)
    second = build(tmp_path)
    second.log_hyperparams({"seed": 2, "new": 3})
    second.log_many(calls[-10:])
    assert second.run_id == first.run_id
    history = second.client().get_metric_history(second.run_id, "train/loss")
    assert sorted((one.step, one.timestamp, one.value) for one in history) == [
        (call.step, 1000 * call.step, call.metrics["train/loss"]) for call in calls
    ]
    run = second.client().get_run(second.run_id)
    assert (run.data.params["seed"], run.data.params["new"]) == ("1", "3")
    assert run.info.status == "RUNNING"
    second.close(0)
    assert second.client().get_run(second.run_id).info.status == "FINISHED"


def test_names_that_mlflow_refuses_stay_apart(tmp_path: Path) -> None:
    """Also without MLflow here: each refused character is its number."""
    names = ["loss/a,b", "loss/a(b", "loss/a_b", "train/a-b. c:d"]
    assert list(map(accepted_name, names)) == ["loss/a_2c_b", "loss/a_28_b", *names[2:]]
    pytest.importorskip("mlflow")
    tracker = build(tmp_path)
    tracker.log_many([MetricCall(dict.fromkeys(names, 1.0), 1, 1.0)])
    metrics = tracker.client().get_run(tracker.run_id).data.metrics
    assert sorted(metrics) == sorted(map(accepted_name, names))


def test_seeds_are_told_apart_by_tags_and_runs_have_our_names(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    tracker = build(tmp_path, run_name=None, tags=("scale:demo", "task:mrpc", "seed:1"))
    run = tracker.client().get_run(tracker.run_id)
    assert run.info.run_name == "mlm/seed-1"
    known = {"group": "e/mlm", "stage": "pretrain", "scale": "demo", "task": "mrpc", "seed": "1"}
    assert known.items() <= run.data.tags.items()


def test_what_the_server_refuses_is_no_outage(tmp_path: Path) -> None:
    exceptions = pytest.importorskip("mlflow.exceptions")
    tracker = build(tmp_path)
    away = exceptions.MlflowException("API request failed")
    of_store = exceptions.MlflowException.invalid_parameter_value("no")
    refused = exceptions.RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"})
    trouble = exceptions.RestException({"error_code": "INTERNAL_ERROR", "message": "busy"})
    answers = [
        tracker.is_outage(error)
        for error in (away, of_store, refused, trouble, TimeoutError(), TypeError())
    ]
    assert answers == [True, False, False, True, True, False]


def test_mlflow_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"logger=mlflow needs.*pip install 'clozelab\[mlflow\]'"):
        build(tmp_path)
