"""What the launcher believes of its jobs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.launching import launcher as launching
from clozelab.ledger.launching.launcher import BY_REPRODUCE, ProcessLauncher, _doubt, advice
from clozelab.ledger.launching.processes import Job
from clozelab.ledger.plan import Step
from clozelab.ledger.sweep import PlannedJob, compose
from clozelab.stages.reproduce import run_step


def test_an_exit_status_of_zero_is_not_enough(tmp_path: Path) -> None:
    names = ("complete", "running", "absent", "no folder")
    jobs = [Job(name, [], tmp_path / "log", state="complete") for name in names]
    planned = [PlannedJob((), str(tmp_path / name) if name != "no folder" else "", "new") for name in names]
    for name in names[:2]:
        (tmp_path / name).mkdir()
        state = {"status": name, "fingerprint": "", "stage": "pretrain", "config_resolved": {}}
        (tmp_path / name / "run.json").write_text(json.dumps(state))
    _doubt(jobs, planned)
    assert [job.state for job in jobs] == ["complete", "failed", "failed", "complete"]
    assert "its run folder says running" in jobs[1].message and "says nothing" in jobs[2].message


def test_a_sweep_without_a_pre_flight_is_told_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EXPERIMENTS_DIR / "table5_pretraining_tasks"
    words = ["scale=laptop", "seed=1,2", "objective.token.weight=0.5"]
    config = compose("sweep_pretrain", words, folder=folder, sweep=True)
    monkeypatch.delenv(BY_REPRODUCE, raising=False)
    line = f"clozelab doctor {folder} scale=laptop pretrain.seed=1,2 pretrain.objective.token.weight=0.5"
    assert advice("pretrain", config).endswith(line)
    assert advice("pretrain", compose("pretrain", words[:1], sweep=True)) == "", "of no experiment"
    monkeypatch.setenv(BY_REPRODUCE, "1")
    assert advice("pretrain", config) == ""


@pytest.mark.parametrize(("given", "expected"), [("16", "4"), ("2", "2"), ("", "4"), ("0", "4"), ("4,2", "4")])
def test_a_machines_threads_do_not_reach_every_job(monkeypatch: pytest.MonkeyPatch, given: str, expected: str) -> None:
    """Many shells of clusters set it to all cores; four jobs at a time would take them four times over."""
    monkeypatch.setattr(launching, "usable_cores", lambda: 16)
    for name in launching.THREAD_VARIABLES:
        monkeypatch.setenv(name, given)
    pool = ProcessLauncher(jobs_at_once=4, grace_seconds=1.0, fork=False)
    pool.config = OmegaConf.create({"trainer": {"accelerator": "cpu"}})
    assert pool._environment(8) == dict.fromkeys(launching.THREAD_VARIABLES, expected)


def test_reproduce_says_that_it_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    class Process:
        def __init__(self, _command: list[str], **options: Any) -> None:
            environments.append(options["env"])

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    assert run_step(Step("prepare", "prepare", None, ())) == 0
    assert environments[0][BY_REPRODUCE]
