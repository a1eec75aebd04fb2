"""What is done is not planned again, and finished runs speak where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from clozelab.launch.plan import make_steps
from clozelab.planning.costing import Costing, cost, finetuning_seconds, pretraining_seconds
from clozelab.planning.wording import sums
from clozelab.runs.find import collect
from clozelab.runs.fingerprint import RESULTS_VERSIONS, canonical
from clozelab.training.host import host_facts
from clozelab.verdicts.experiment import find_experiment

FOLDER = find_experiment("table5_pretraining_tasks")
WORDS = ["scale=demo", "finetune.task=mrpc", "finetune.row=mlm,ltr", "finetune.seed=1"]


def plan(root: Path) -> Costing:
    steps = make_steps(FOLDER, [*WORDS, f"runs_dir={root}", f"data_dir={root}", f"cache_dir={root}/cache"])
    return cost(steps, root / "cache", measure=False, collected=collect(root / FOLDER.name / "demo"))


def finished(root: Path, stage: str, config: dict[str, Any], seconds: float, **changes: Any) -> None:
    """A complete run of a composed configuration, as its stage records it."""
    names = [config.get("arm") or config["row"], config.get("pretrain_seed"), config["seed"]]
    folder = root / FOLDER.name / "demo" / stage / "-".join(map(str, names))
    folder.mkdir(parents=True)
    state = {"status": "complete", "stage": stage, "seconds": seconds, "host": host_facts()["host"], "inputs": {},
             "scale": "demo", "watched": {}, "started": "",
             "fingerprint": "f" * 64, "facts": {}, "results_version": RESULTS_VERSIONS[stage],
             "config": canonical(OmegaConf.create(config | changes))}  # fmt: skip
    state |= {"metric": "m", "scores": {"m": {"unit": "percent", "better": "higher", "value": 70.0}}}
    (folder / "run.json").write_text(json.dumps(state))


def test_done_jobs_and_their_times(tmp_path: Path) -> None:
    before = plan(tmp_path)
    assert "left" not in " ".join(sums(before)) and before.wall("pretrain") is None
    by_name = {arm.name: dict(arm.config) for arm in before.arms}
    finished(tmp_path, "pretrain", by_name["mlm"], 100.0)
    finished(tmp_path, "pretrain", by_name["mlm"] | {"seed": 2}, 200.0)
    finished(tmp_path, "pretrain", by_name["ltr"], 50.0, phases=[{"steps": 1}])  # another training
    (task,) = before.tasks
    for seed in (1, 2):
        for row in ("mlm", "ltr"):
            finished(
                tmp_path, "finetune", dict(task.config) | {"row": row, "encoder_arm": row, "pretrain_seed": seed}, 10.0
            )
    after = plan(tmp_path)
    arms = {arm.name: arm for arm in after.arms}
    assert (arms["mlm"].history.done, pretraining_seconds(arms["mlm"])) == (2, pytest.approx(150.0))
    assert (arms["ltr"].history.done, pretraining_seconds(arms["ltr"])) == (0, None)
    assert (after.left("pretrain"), after.left("finetune")) == (4, 0)
    assert finetuning_seconds(after.tasks[0]) == pytest.approx(10.0)
    assert after.wall("finetune") is not None and after.wall("finetune", only_left=True) == 0.0
    text = " ".join(sums(after))
    assert "left: 4 jobs, time unknown" in text and "left: nothing, all are complete or shared" in text


def test_a_run_of_other_settings_is_not_done_and_may_say_how_long_it_takes(tmp_path: Path) -> None:
    (task,) = plan(tmp_path).tasks
    changed = dict(task.config) | {"gradient_clip_norm": 9.0}
    for seed in (1, 2):
        finished(tmp_path, "finetune", changed | {"row": "mlm", "pretrain_seed": seed}, 10.0)
    after = plan(tmp_path)
    assert after.left("finetune") == 4 and finetuning_seconds(after.tasks[0]) == pytest.approx(10.0)


def test_times_of_another_machine_are_not_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished(tmp_path, "pretrain", dict(plan(tmp_path).arms[0].config), 100.0)
    elsewhere = host_facts() | {"host": host_facts()["host"] | {"cpu": "Another"}}
    monkeypatch.setattr("clozelab.planning.sweeps.host_facts", lambda: elsewhere)
    found = plan(tmp_path).arms[0]
    assert found.history == (1, None) and pretraining_seconds(found) is None
