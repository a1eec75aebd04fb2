"""Copies of run folders, damaged records, lost curves: named, and nothing in silence."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.composing import Given
from tests.runs.claimed import claim, configuration
from tests.runs.records import edit, read_json
from tests.screens import refuses, shows

from clozelab.files.origin import RUN_FILE
from clozelab.launch.jobs import PlannedJob, job_status, with_own_folders
from clozelab.launch.launcher import read_records
from clozelab.launch.processes import Job, JobState
from clozelab.report.problems import problems
from clozelab.results.experiment import load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.runs.record import Score

ROOT = Path(__file__).resolve().parents[2]


SCORED = {
    "scores": {"validation/loss": Score(unit="nats", higher_is_better=False)},
    "metric": "validation/loss",
}


def train(config: Given, loss: float = 4.0) -> Path:
    with claim(config, **SCORED) as run:
        curve = f"step,tokens,seconds,key,value\n8,80,1.0,validation/loss,{loss}\n"
        (run.dir / "metrics.csv").write_text(curve)
        run.complete({"scores": {"validation/loss": loss}})
    return Path(config.run_dir)


# Copies


@pytest.mark.parametrize(
    "name", ["seed-0", "a copy of seed-1", "seed-1 (copy)", "seed-9/seed-1", "../a/mlm/seed-1"]
)
def test_a_stray_copy_does_not_take_the_place_of_the_run(tmp_path: Path, name: str) -> None:
    """Whichever sorts first; its score was altered, so that one can see which of them counts."""
    folder = train(configuration(tmp_path))
    copy = Path(os.path.normpath(folder.parent / name))
    shutil.copytree(folder, copy)
    scores = read_json(copy, RUN_FILE)["scores"]
    scores["validation/loss"]["value"] = 1.0
    edit(copy / RUN_FILE, scores=scores)
    runs = find(tmp_path / "first" / "tiny")
    (counted,) = runs.pretrain
    assert counted.folder == folder and counted.score == 4.0
    (said,) = runs.damaged
    assert said == f"{copy}: another run of the cell of {folder}; not counted"
    (copy / RUN_FILE).write_bytes((folder / RUN_FILE).read_bytes())
    assert find(tmp_path / "first" / "tiny").damaged == [
        f"{copy}: the same run as {folder}, a copy by its place; not counted"
    ]


def test_a_copy_alone_counts(tmp_path: Path) -> None:
    """Whoever moves or renames his folders has not lost them."""
    folder = train(configuration(tmp_path))
    folder.rename(folder.with_name("elsewhere"))
    runs = find(tmp_path)
    assert [one.folder.name for one in runs.pretrain] == ["elsewhere"] and not runs.damaged
    shutil.move(tmp_path / "first", tmp_path / "deep" / "er")
    assert [one.score for one in find(tmp_path).pretrain] == [4.0]


# Damaged records


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
    "no record": lambda _: b"[]",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_record_fails_its_own_job_alone(tmp_path: Path, how: str) -> None:
    """A sweep is planned, and the job of that folder says what to remove."""
    configs = [configuration(tmp_path, seed=seed) for seed in (1, 2, 3)]
    for config in configs[:2]:
        train(config)
    record = Path(configs[0].run_dir) / RUN_FILE
    record.write_bytes(DAMAGES[how](record.read_bytes()))
    states = [job_status(config, config.run_dir)[0] for config in configs]
    assert states == ["damaged", "complete", "new"]
    planned = [
        PlannedJob((), config.run_dir, state) for config, state in zip(configs, states, strict=True)
    ]
    assert [*with_own_folders(planned)] == planned
    with refuses("cannot be read as the record of a run of this version (it"):
        claim(configs[0])
    folders = [config.run_dir for config in configs[:2]]
    jobs = [
        Job(folder, [], tmp_path / "log", folder=folder, state=JobState.COMPLETE)
        for folder in folders
    ]
    assert [*read_records(jobs)] == [jobs[1].name]
    assert [job.state for job in jobs] == ["failed", "complete"]
    shows(jobs[0].message, "ended with exit status 0, but its run folder says")


# Lost curves


def test_a_lost_curve_is_named_on_the_page(make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "mrpc"): 80.0, ("ltr", "mrpc"): 70.0})
    experiment = load_experiment(ROOT / "experiments" / "table5_pretraining_tasks")
    assert "Unreadable" not in problems(build_table(experiment, find(root)))
    (root / "pretrain/mlm/seed-2/metrics.csv").unlink()
    (line,) = problems(build_table(experiment, find(root)))["Unreadable"]
    assert line.startswith("pretrain/mlm/seed-2: its metrics.csv is gone")


def test_a_lost_curve_is_named_before_a_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tmp_path)
    with pytest.raises(KeyboardInterrupt), claim(config) as run:
        (run.dir / "checkpoints").mkdir()
        (run.dir / "metrics.csv").touch()
        raise KeyboardInterrupt
    with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt), claim(config):
        raise KeyboardInterrupt
    assert not caplog.messages  # the control
    (run.dir / "metrics.csv").unlink()
    with claim(config) as run:
        run.complete()
    assert f"{run.dir} has no metrics.csv" in caplog.text
