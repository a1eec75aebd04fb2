"""W&B: named and grouped, offline without a key, finished, and never the end of a training."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clozelab.training.tracking import build_wandb_logger, choose_mode


class FakeRun:
    def __init__(self, fails: bool = False) -> None:
        self.logged: list[dict[str, Any]] = []
        self.finished: list[int] = []
        self.fails = fails

    def define_metric(self, *args: Any, **kwargs: Any) -> None: ...

    def log(self, values: dict[str, Any]) -> None:
        if self.fails:
            raise ConnectionError("no network")
        self.logged.append(values)

    def finish(self, exit_code: int) -> None:
        self.finished.append(exit_code)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], FakeRun]]:
    started: list[tuple[dict[str, Any], FakeRun]] = []

    def init(**settings: Any) -> FakeRun:
        run = FakeRun()
        started.append((settings, run))
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    return started


def build(folder: Path, mode: str = "offline") -> Any:
    return build_wandb_logger(
        project="p", mode=mode, folder=folder, experiment="e", arm="mlm", name="mlm/seed-1", config={"seed": 1}
    )


def test_one_run_per_job_grouped_and_finished(tmp_path: Path, runs: list[tuple[dict[str, Any], FakeRun]]) -> None:
    for seed in (1, 2):
        logger = build(tmp_path / str(seed))
        logger.log_metrics({"train/loss": 1.0}, 5)
        logger.log_metrics({"train/loss": 0.5}, 6)
        logger.finalize("success")
        logger.finalize("success")
    assert len(runs) == 2 and runs[0][0]["id"] != runs[1][0]["id"]
    settings, run = runs[0]
    assert (settings["group"], settings["job_type"], settings["name"]) == ("e", "mlm", "mlm/seed-1")
    assert run.logged[1] == {"train/loss": 0.5, "step": 6} and run.finished == [0]
    failed = build(tmp_path / "3")
    failed.log_metrics({"train/loss": 1.0}, 1)
    failed.finalize("failed")
    assert runs[2][1].finished == [1]


def test_mode_needs_a_key_to_be_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert choose_mode() == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert choose_mode() == "online"
    assert build(tmp_path, "auto").settings["mode"] == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert build(tmp_path, "auto").settings["mode"] == "offline"
    with pytest.raises(ValueError, match=r"logger\.mode is 'on'"):
        build(tmp_path, "on")


def test_broken_tracker_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **kwargs: FakeRun(fails=True)))
    logger = build(tmp_path)
    for step in range(3):
        logger.log_metrics({"train/loss": 1.0}, step)
    logger.finalize("success")
    assert caplog.text.count("the tracker failed") == 1


@pytest.mark.parametrize("mode", ["offline"])
def test_real_wandb_offline(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = build(tmp_path, mode)
    logger.log_metrics({"train/loss": 1.0}, 1)
    assert not logger.is_broken
    logger.finalize("success")
    assert list((tmp_path / "wandb").glob("offline-run-*"))
