"""What the launcher believes of its jobs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests import composing

from clozelab.launch import process_launcher
from clozelab.launch.launcher import THREAD_VARIABLES, read_records, wait_for_inputs
from clozelab.launch.process_launcher import ProcessLauncher, modules_of
from clozelab.launch.processes import Job, JobState


def test_an_exit_status_of_zero_is_not_enough(tmp_path: Path) -> None:
    names = ("complete", "running", "absent", "no folder")
    jobs = [
        Job(name, [], tmp_path / "log", folder=str(tmp_path / name), state=JobState.COMPLETE)
        for name in names
    ]
    jobs[-1].folder = ""
    for name in names[:2]:
        (tmp_path / name).mkdir()
        state = {
            "status": name,
            "stage": "pretrain",
            "scale": "",
            "fingerprint": "",
            "started": "",
            "config": {},
        }
        state |= {"inputs": {}, "watched": {}, "results_version": 0}
        (tmp_path / name / "run.json").write_text(json.dumps(state))
    assert [*read_records(jobs)] == ["complete"]
    assert [job.state for job in jobs] == ["complete", "failed", "failed", "complete"]
    end = "ended with exit status 0, but its run folder says"
    assert [job.message for job in jobs[1:3]] == [f"{end} running", f"{end} nothing"]


def test_a_job_that_reads_another_ones_folder_waits_for_it() -> None:
    """By any text of its configuration; its own folder, and names alike, are none."""
    settings: list[dict[str, object]] = [
        {"run_dir": "runs/teacher/seed-1"},
        {"run_dir": "runs/teacher/seed-10", "encoder": "runs/elsewhere/encoder"},
        {"run_dir": "runs/a", "objective": {"token": {"teacher": "runs/teacher/seed-1/encoder"}}},
        {"run_dir": "runs/b", "encoder": "runs/teacher/seed-10/encoders/step-5"},
    ]
    jobs = [
        Job(str(one["run_dir"]), [], Path("log"), folder=str(one["run_dir"])) for one in settings
    ]
    wait_for_inputs(jobs, [composing.given("pretrain", one) for one in settings])
    teacher, tenth, first, second = jobs
    assert teacher.waits_for == tenth.waits_for == []
    assert first.waits_for == [teacher] and second.waits_for == [tenth]


@pytest.mark.parametrize(
    ("given", "expected"), [("16", "4"), ("2", "2"), ("", "4"), ("0", "4"), ("4,2", "4")]
)
def test_a_machines_threads_do_not_reach_every_job(
    monkeypatch: pytest.MonkeyPatch, given: str, expected: str
) -> None:
    """Many shells of clusters set it to all cores; four jobs at a time would take them four times
    over.
    """
    monkeypatch.setattr(process_launcher, "usable_cores", lambda: 16)
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, given)
    pool = ProcessLauncher(jobs_at_once=4, grace_seconds=1.0, fork=False)
    pool.master = composing.given("pretrain", {"trainer": {"accelerator": "cpu"}})
    assert pool._environment(8) == dict.fromkeys(THREAD_VARIABLES, expected)


@pytest.mark.parametrize("verb", ["prepare", "pretrain", "finetune", "evaluate"])
def test_a_server_imports_what_a_verbs_jobs_import_by_address(verb: str) -> None:
    """Each place is one of conf/targets.yaml, and each module is there."""
    modules = modules_of(verb)
    assert f"clozelab.stages.{verb}" in modules
    assert all(find_spec(module) is not None for module in modules)
    for part in ("texts", "tags", "classes"):
        assert (f"clozelab.tasks.{part}" in modules) is (verb in ("finetune", "evaluate"))
