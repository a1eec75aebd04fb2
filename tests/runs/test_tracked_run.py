"""A tiny run with W&B offline, stopped once; and a broken tracker, which ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.test_tracked import offline, records
from tests.runs.test_finetune_run import finetune, world
from tests.runs.test_killed_trackers import assert_holds, figures, in_wandb
from tests.runs.test_pretrain_run import run_here, state, stop_and_go_on

from clozelab.stages import track
from clozelab.training.callbacks import TrainingInterruptedError
from clozelab.training.catching_up import unsent

__all__ = ["finetune", "offline", "world"]


def summary_of(told: list[Any]) -> dict[str, str]:
    summary: dict[str, str] = {}
    for one in told:
        summary |= {item.key: item.value_json for item in one.summary.update}
    # W&B's own: how long it has run, and the like.
    return {key: value for key, value in summary.items() if key and not key.startswith("_")}


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
    stop_and_go_on(workplace, run_dir, 5, **changes)
    assert len(list(run_dir.glob("wandb/offline-run-*"))) == 2
    told = records(run_dir)
    runs = [one.run for one in told if one.HasField("run")]
    assert {run.run_id for run in runs} == {state(run_dir)["facts"]["tracker_id"]}
    assert runs[0].job_type == "pretrain" and runs[0].run_group.endswith("/test")
    assert {"scale:demo", "corpus:text", "seed:1"} <= set(runs[0].tags)
    config = {item.key: json.loads(item.value_json) for item in runs[0].config.update}
    assert config["model.hidden_size"] == 16 and "s3cret" not in str(config), "resolved"
    assert "s3cret" not in (run_dir / "encoder" / "config.json").read_text(), (
        "encoders are given away"
    )
    logged = in_wandb(run_dir)
    assert [len(logged["train/loss", step]) for step in range(12)] == [0, *[1] * 10, 0]
    summary = summary_of(told)
    assert float(summary["validation/loss"]) == state(run_dir)["facts"]["validation/loss"]
    exits = [one.exit.exit_code for one in told if one.HasField("exit")]
    assert exits == [1, 0]


def test_a_tracker_that_comes_later_gets_what_was_before(
    workplace: Path, tmp_path: Path, offline: None
) -> None:
    """Also one that a start between its own did not have."""
    run_dir = tmp_path / "run"
    with_wandb = {"logger": "wandb", "logger.wandb.mode": "offline"}
    for last_step, changes in ((2, {}), (4, with_wandb), (6, {})):
        with pytest.raises(TrainingInterruptedError):
            run_here(workplace, run_dir, stop_after_step=last_step, **changes)
        if changes:
            assert_holds(in_wandb(run_dir), figures(run_dir))
    run_here(workplace, run_dir, **with_wandb)
    expected = figures(run_dir)
    assert {step for _, step in expected} == set(range(1, 11))
    assert_holds(in_wandb(run_dir), expected)
    assert unsent(run_dir) == {}


def test_a_finetuning_leaves_its_scores(finetune: Any, world: Path, offline: None) -> None:
    run_dir = finetune("logger=wandb", "logger.wandb.mode=offline", "row=mine")
    told = records(run_dir)
    run = next(one.run for one in told if one.HasField("run"))
    assert (run.run_group, run.job_type) == ("adhoc/mine", "finetune") and "task:sst2" in run.tags
    summary = summary_of(told)
    scores = json.loads((run_dir / "scores.json").read_text())["scores"]
    assert scores and {key: float(summary[key]) for key in scores} == scores
    # `clozelab track` sends the same under the same name.
    assert track.main([str(run_dir), "logger=wandb"]) == 0
    told_again = records(run_dir)
    run_again = next(one.run for one in told_again if one.HasField("run"))
    assert (
        run_again.display_name
        == run.display_name
        == "demo/finetune/mine/sst2/pretrain-seed-1/seed-1"
    )
    assert run_again.run_id == run.run_id and summary_of(told_again) == summary
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["encoder_arm"] == str(world / "encoder")


def test_a_broken_tracker_ends_nothing(
    workplace: Path, tmp_path: Path, offline: None, monkeypatch: Any, caplog: Any
) -> None:
    """Its service takes a second start under the same id for a conflict, so there is none."""
    import wandb

    starts: list[Any] = []

    def fail(**settings: Any) -> None:
        starts.append(settings)
        raise OSError("no space left on device")

    monkeypatch.setattr(wandb, "init", fail)
    run_here(workplace, tmp_path / "run", logger="wandb", **{"logger.wandb.mode": "offline"})
    assert state(tmp_path / "run")["status"] == "complete" and len(starts) == 1
    assert caplog.text.count("wandb did not take something: OSError: no space left on device") == 1
    assert "wandb failed 3 times in a row and is off for the rest of this run" in caplog.text
    assert f"clozelab track {tmp_path / 'run'} logger=wandb" in caplog.text
