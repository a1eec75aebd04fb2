"""Trackers: runs are named, grouped and finished, and what is sent twice is kept once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clozelab.training.background import BackgroundLogger
from clozelab.training.catching_up import MetricCall
from clozelab.training.jobs import TrackedJob
from clozelab.training.mlflow_tracker import accepted_name
from clozelab.training.tracking import (
    build_mlflow_logger,
    build_tensorboard_logger,
    build_wandb_logger,
    summarise,
    tracked,
)


class FakeRun:
    def __init__(self) -> None:
        self.logged, self.finished, self.command = [], [], []
        self.summary = {}

    def define_metric(self, *args: Any, **kwargs: Any) -> None: ...

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        self.finished.append(exit_code)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], FakeRun]]:
    started: list[tuple[dict[str, Any], FakeRun]] = []

    def init(**settings: Any) -> FakeRun:
        run = FakeRun()
        run.command = sys.argv[1:]
        started.append((settings, run))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, teardown=lambda: None))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    return started


def job(folder: Path) -> TrackedJob:
    tags, names = ("scale:demo", "x" * 80), ("e", "mlm", "pretrain", "mlm/seed-1")
    return TrackedJob(folder, f"id-{folder.name}", *names, tags, {"seed": 1})


def test_it_is_told_the_command_line_it_may_see(
    tmp_path: Path, runs: list[tuple[dict[str, Any], FakeRun]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B itself reads sys.argv."""
    given = ["clozelab", "pretrain", "logger.api_key=hunter2"]
    monkeypatch.setattr(sys, "argv", given)
    shown = ("pretrain", "logger.api_key=***")
    logger = build_wandb_logger(
        project="p", entity=None, mode="offline", job=replace(job(tmp_path), command=shown)
    )
    logger.log_metrics({"train/loss": 1.0}, 1)
    assert runs[0][1].command == list(shown) and sys.argv is given


def build(folder: Path, mode: str = "offline") -> Any:
    return build_wandb_logger(project="p", entity=None, mode=mode, job=job(folder))


def test_one_run_per_job_grouped_and_finished(
    tmp_path: Path, runs: list[tuple[dict[str, Any], FakeRun]]
) -> None:
    for seed in (1, 2):
        logger = BackgroundLogger(build(tmp_path / str(seed)), "wandb")
        with tracked([logger]):
            logger.log_metrics({"train/loss": 1.0}, 5)
            logger.log_metrics({"train/loss": 0.5}, 6)
            logger.finalize("success")
            assert not any(run.finished for _, run in runs[seed - 1 :]), "scores follow"
            summarise([logger], {"validation/accuracy": 0.9})
        logger.finalize("success")
    assert len(runs) == 2 and runs[0][0]["id"] != runs[1][0]["id"]
    settings, run = runs[0]
    assert (settings["group"], settings["job_type"]) == ("e/mlm", "pretrain")
    assert settings["name"] == "mlm/seed-1"
    assert settings["tags"] == ["scale:demo", "x" * 64]
    assert run.logged[1] == {"train/loss": 0.5, "step": 6} and run.finished == [0]
    assert run.summary == {"validation/accuracy": 0.9}


def test_a_failed_run_is_finished_as_one(
    tmp_path: Path, runs: list[tuple[dict[str, Any], FakeRun]]
) -> None:
    logger = BackgroundLogger(build(tmp_path), "wandb")
    with pytest.raises(RuntimeError), tracked([logger]):
        logger.log_metrics({"train/loss": 1.0}, 1)
        logger.finalize("success")
        raise RuntimeError("the scores could not be written")
    assert runs[0][1].finished == [1]


def test_mode_needs_a_key_to_be_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert build(tmp_path, "auto").settings["mode"] == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert build(tmp_path, "auto").settings["mode"] == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert build(tmp_path, "auto").settings["mode"] == "offline"
    with pytest.raises(ValueError, match=r"logger\.wandb\.mode is 'on'"):
        build(tmp_path, "on")


def test_tensorboard_gets_curves_and_final_scores(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    target = build_tensorboard_logger(flush_seconds=1, job=job(tmp_path))
    logger = BackgroundLogger(target, "tensorboard", tmp_path)
    assert logger.experiment is target.experiment, "it is on this machine"
    with tracked([logger]):
        for step in (1, 2):
            clock = {"train/tokens": 64.0 * step, "train/seconds": 0.5}
            logger.log_metrics({"train/loss": 1.0 / step, **clock}, step)
            logger.log_metrics({"validation/loss": 1.0, **clock}, step)
        # Training goes back to step 1: step 2 is dropped, and written again with the same values.
        logger.go_on_after(1)
        logger.log_metrics({"train/loss": 0.5, **clock}, 2)
        logger.finalize("success")
        summarise([logger], {"validation/accuracy": 0.75, "note": "no number"})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = {}
    for key in ("train/loss", "train/tokens", "train/seconds"):
        points[key] = [(one.step, one.value) for one in events.Scalars(key)]
    assert points == {
        "train/loss": [(1, 1.0), (2, 0.5)],
        "train/tokens": [(1, 64.0), (2, 128.0)],
        "train/seconds": [(1, 0.5), (2, 0.5)],
    }
    assert [one.value for one in events.Scalars("final/validation/accuracy")] == [0.75]
    assert {path.name.split(".")[0] for path in (tmp_path / "tensorboard").iterdir()} == {"events"}


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_that_is_an_extra_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    build_it = {
        "tensorboard": lambda: build_tensorboard_logger(flush_seconds=1, job=job(tmp_path)),
        "mlflow": lambda: mlflow(tmp_path),
    }
    with pytest.raises(ValueError, match=rf"logger={name} needs.*pip install 'clozelab\[{name}\]'"):
        build_it[name]()


# MLflow's logger against its own store


def mlflow(folder: Path, run_name: str | None = "runs/mlm", tags: tuple[str, ...] = ()) -> Any:
    job = TrackedJob(folder, "id-1", "e", "mlm", "pretrain", "mlm/seed-1", tags, {"seed": 1})
    uri = f"sqlite:///{folder}/mlflow.db"
    names = {"experiment_name": "e", "run_name": run_name, "tracking_uri": uri}
    return build_mlflow_logger(**names, lock=str(folder / ".lock"), job=job)


def test_a_folder_is_one_run_and_nothing_is_kept_twice(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    calls = [MetricCall({"train/loss": 1.0 / step}, step, float(step)) for step in range(1, 1501)]
    first = mlflow(tmp_path)
    first.log_hyperparams({"seed": 1, "long": "x" * 9000})
    first.log_many(calls)
    first.close(1)
    second = mlflow(tmp_path)
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
    tracker = mlflow(tmp_path)
    tracker.log_many([MetricCall(dict.fromkeys(names, 1.0), 1, 1.0)])
    metrics = tracker.client().get_run(tracker.run_id).data.metrics
    assert sorted(metrics) == sorted(map(accepted_name, names))


def test_seeds_are_told_apart_by_tags_and_runs_have_our_names(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    tracker = mlflow(tmp_path, run_name=None, tags=("scale:demo", "task:mrpc", "seed:1"))
    run = tracker.client().get_run(tracker.run_id)
    assert run.info.run_name == "mlm/seed-1"
    known = {"group": "e/mlm", "stage": "pretrain", "scale": "demo", "task": "mrpc", "seed": "1"}
    assert known.items() <= run.data.tags.items()


def test_what_the_server_refuses_is_no_outage(tmp_path: Path) -> None:
    exceptions = pytest.importorskip("mlflow.exceptions")
    tracker = mlflow(tmp_path)
    away = exceptions.MlflowException("API request failed")
    of_store = exceptions.MlflowException.invalid_parameter_value("no")
    refused = exceptions.RestException({"error_code": "INVALID_PARAMETER_VALUE", "message": "no"})
    trouble = exceptions.RestException({"error_code": "INTERNAL_ERROR", "message": "busy"})
    answers = [
        tracker.is_outage(error)
        for error in (away, of_store, refused, trouble, TimeoutError(), TypeError())
    ]
    assert answers == [True, False, False, True, True, False]
