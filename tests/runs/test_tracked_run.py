"""A real tiny run with W&B offline, stopped once: what its files say, and that a broken tracker
ends nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clozelab.training.callbacks import LastCheckpoint, TrainingInterruptedError


def sibling(name: str) -> ModuleType:
    """Another test file, for its helpers: a tiny pre-training here, the reader of W&B's files
    there.
    """
    path = Path(__file__).parents[1] / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny, wandb_files = sibling("runs/test_pretrain_run.py"), sibling("report/test_tracked.py")
tiny_finetuning = sibling("runs/test_finetune_run.py")
workplace, offline = tiny.workplace, wandb_files.offline
world, finetune = tiny_finetuning.world, tiny_finetuning.finetune


def stop_at_step_five(self: Any, trainer: Any, *rest: Any) -> None:
    if trainer.global_step + 1 == 5:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_and_resumed_run_is_one_wandb_run(
    workplace: Path, tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_PLACE", "s3cret")
    changes = {
        "logger": "wandb",
        "logger.wandb.mode": "offline",
        "experiment": "${oc.env:SECRET_PLACE}",
    }
    run_dir = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, "on_train_batch_start", stop_at_step_five)
        with pytest.raises(TrainingInterruptedError):
            tiny.run_here(workplace, run_dir, **changes)
    tiny.run_here(workplace, run_dir, **changes)
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    records = wandb_files.records(run_dir)
    runs = [one.run for one in records if one.HasField("run")]
    assert {run.run_id for run in runs} == {tiny.state(run_dir)["facts"]["tracker_id"]}
    assert runs[0].job_type == "pretrain" and runs[0].run_group.endswith("/test")
    assert {"scale:demo", "corpus:text", "seed:1"} <= set(runs[0].tags)
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["model.hidden_size"] == 16 and "s3cret" not in str(config), "resolved"
    assert "s3cret" not in (run_dir / "encoder" / "config.json").read_text(), (
        "encoders are given away"
    )
    points = []
    for one in records:
        points.append(
            {(item.key or item.nested_key[0]): item.value_json for item in one.history.item}
        )
    steps = [int(point["step"]) for point in points if "train/loss" in point]
    assert steps == list(range(1, 11))
    summary = {}
    for one in records:
        for item in one.summary.update:
            summary[item.key] = item.value_json
    assert float(summary["validation/loss"]) == tiny.state(run_dir)["facts"]["validation/loss"]
    exits = [one.exit.exit_code for one in records if one.HasField("exit")]
    assert exits == [1, 0]


def test_a_finetuning_leaves_its_scores(finetune: Any, offline: None) -> None:
    run_dir = finetune("logger=wandb", "logger.wandb.mode=offline", "row=mine")
    records = wandb_files.records(run_dir)
    run = next(one.run for one in records if one.HasField("run"))
    assert (run.run_group, run.job_type) == ("adhoc/mine", "finetune") and "task:sst2" in run.tags
    summary = {}
    for one in records:
        for item in one.summary.update:
            summary[item.key] = item.value_json
    scores = json.loads((run_dir / "scores.json").read_text())["scores"]
    assert scores and {key: float(summary[key]) for key in scores} == scores


def test_a_broken_tracker_ends_nothing(
    workplace: Path,
    tmp_path: Path,
    offline: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import wandb

    def fail(**settings: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(wandb, "init", fail)
    tiny.run_here(workplace, tmp_path / "run", logger="wandb", **{"logger.wandb.mode": "offline"})
    assert tiny.state(tmp_path / "run")["status"] == "complete"
    assert caplog.text.count("wandb did not take something: OSError: no space left on device") == 1
    assert f"clozelab track {tmp_path / 'run'} logger=wandb" in caplog.text
