"""The search over learning rate and batch: it composes, repeats itself, lives with failed runs, and
names its extra.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import OmegaConf
from rich.console import Console
from tests.composing import whole
from tests.screens import refuses, shows

from clozelab.config import Composed
from clozelab.launch import sweep
from clozelab.launch.launcher import SweepLauncher, check_direction
from clozelab.launch.processes import Job
from clozelab.launch.sweepers import OptunaSweeper
from clozelab.text.packages import require_package

try:
    has_optuna = importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is not None
except ModuleNotFoundError:
    has_optuna = False
SETTINGS: dict[str, Any] = {
    "sampler": {"name": "TPESampler", "seed": 1},
    "direction": "maximize",
    "num_trials": 12,
    "trials_at_once": 3,
    "params": OmegaConf.create(
        {"rate": "tag(log, interval(1e-5, 1e-1))", "batch": "choice(16, 32)", "fixed": 7}
    ),
}


class Launcher:
    """Best at rate 1e-3; high rates fail."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, str]]] = []

    def launch(self, overrides: Any, initial_job_idx: int) -> list[JobReturn]:
        jobs = []
        for job in overrides:
            jobs.append(dict(word.split("=") for word in job))
        self.batches.append(jobs)
        return [self.result(job) for job in jobs]

    def result(self, job: dict[str, str]) -> JobReturn:
        result = JobReturn(status=JobStatus.COMPLETED)
        result.return_value = -abs(float(job["rate"]) - 1e-3)
        if float(job["rate"]) > 0.01:
            result.status, result.return_value = JobStatus.FAILED, RuntimeError("diverged")
        return result


def searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> list[list[dict[str, str]]]:
    launcher = Launcher()
    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda self, **kwargs: launcher)
    folder.mkdir(exist_ok=True)
    sweeper = OptunaSweeper(**SETTINGS | changes)
    context: Any = object()
    config: Any = OmegaConf.create(
        {"hydra": {"sweep": {"dir": str(folder)}, "job": {"name": "finetune"}}}
    )
    sweeper.setup(hydra_context=context, task_function=context, config=config)
    sweeper.sweep([])
    return launcher.batches


@pytest.mark.skipif(not has_optuna, reason="the extra optuna is missing")
def test_a_search_repeats_itself(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = searched(tmp_path, monkeypatch)
    assert [len(batch) for batch in first] == [3, 3, 3, 3]
    jobs = [*chain.from_iterable(first)]
    assert all(job["fixed"] == "7" and job["batch"] in ("16", "32") for job in jobs)
    assert any(float(job["rate"]) > 0.01 for job in jobs), "no run has failed: no test of that"
    *_, best = capsys.readouterr().err.splitlines()
    shows(best, "batch=16")
    assert searched(tmp_path, monkeypatch) == first
    assert searched(tmp_path, monkeypatch, sampler={"name": "TPESampler", "seed": 2}) != first


class Diverging(SweepLauncher):
    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[Composed], console: Console) -> None:
        jobs[0].state, jobs[0].message = "failed", "the loss is NaN"


def test_a_failed_trial_does_not_end_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "hydra/sweeper=search",
        "hydra.sweeper.params={seed: 'range(1,9)'}",
        "scale=demo",
        f"runs_dir={tmp_path}",
    ]
    loader, config = sweep.make_loader(), whole("pretrain", words, sweep=True)
    task: Any = lambda _: None  # noqa: E731
    launcher = Diverging()
    launcher.setup(hydra_context=HydraContext(loader, None), task_function=task, config=config)
    (returned,) = launcher.launch([["seed=1"]], 3)
    assert returned.status is JobStatus.FAILED and launcher.failed == 1
    shows(capsys.readouterr().err, "1 failed")


@pytest.mark.skipif(not has_optuna, reason="the extra optuna is missing")
def test_wrong_settings(tmp_path: Path) -> None:
    for changes, reason in (
        ({"direction": "up"}, "hydra.sweeper: sampler.name=TPESampler must be a class of"),
        (
            {"sampler": {"name": "NoSampler"}},
            "hydra.sweeper: sampler.name=NoSampler must be a class of",
        ),
        ({"num_trials": 0}, "hydra.sweeper: sampler.name=TPESampler must be a class of"),
    ):
        with refuses(reason):
            OptunaSweeper(**SETTINGS | changes)


@pytest.mark.skipif(not has_optuna, reason="the extra optuna is missing")
def test_a_search_does_not_maximise_a_loss() -> None:
    task = SimpleNamespace()
    config: Any = OmegaConf.create({"hydra": {"job": {"name": "pretrain"}}})
    with refuses("a pre-training's value is its loss: say"):
        OptunaSweeper(**SETTINGS).setup(hydra_context=None, task_function=task, config=config)


def test_a_search_goes_the_way_of_the_metric(tmp_path: Path) -> None:
    """The error of a regression is minimised: the highest is no best trial."""
    words = ["task=stsb", "task.metric=validation/mae", "task.module.metrics=[mae,spearman]"]
    for metric, direction in (("mae", "minimize"), ("spearman", "maximize")):
        config = sweep.compose("finetune", [*words, f"task.metric=validation/{metric}"])
        check_direction(direction, config)
        other = {"minimize": "maximize", "maximize": "minimize"}[direction]
        with pytest.raises(ValueError, match=f"say hydra.sweeper.direction={direction}"):
            check_direction(other, config)


def test_a_missing_extra_is_said() -> None:
    with pytest.raises(
        ValueError, match=r"x needs the package 'no_such.package'.*pip install 'clozelab\[extra\]'"
    ):
        require_package("no_such.package", "extra", "x")


def test_the_example_composes() -> None:
    composed = sweep.compose(
        "search_finetune", ["encoder=e", "task=mrpc", "runs_dir=r"], sweep=True
    )
    params = composed.hydra_value("sweeper.params")
    assert set(params) == {"learning_rate", "global_batch_size"}
    words = ["learning_rate=0.001", "global_batch_size=32"]
    job = Composed.from_node(sweep.make_loader().load_sweep_config(composed.node, words)).config
    assert job.run_dir.endswith("mrpc/lr-0.001/batch-32/seed-1")
    assert job.optimizer["learning_rate"] == 0.001
