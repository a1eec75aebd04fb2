"""How a job of Slurm's stands: which command is asked, whose word counts, and what is said when
nobody answers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.screens import refuses, shows

from clozelab.cli import main
from clozelab.launch import slurm_launcher, slurm_queue
from clozelab.launch.clusters import NO_RESULT
from clozelab.launch.handed_over import unfinished_jobs
from clozelab.launch.slurm_launcher import SlurmLauncher, SubmittedJob
from clozelab.launch.slurm_queue import (
    LOST,
    SlurmQueue,
    SlurmState,
    SlurmUnreachableError,
    query_slurm,
)
from clozelab.training.stopping import TERMINATED

UNKNOWN = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"
NO_ACCOUNTS = "echo Slurm accounting storage is disabled >&2; exit 1"
CANCELLED = SlurmState("CANCELLED")
STANDS = "JobId=7 JobState"
ALL = ["squeue", "sacct", "scontrol"]
AWAY = "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1"

Commands = Callable[..., Path]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Makes stand-ins of Slurm's commands, one line of shell each; every call is noted in the file
    returned.
    """
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(squeue: str, sacct: str = NO_ACCOUNTS, scontrol: str = UNKNOWN) -> Path:
        calls.write_text("")
        for name, line in {"squeue": squeue, "sacct": sacct, "scontrol": scontrol}.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n{line}\n')
            script.chmod(0o755)
        return calls

    return make


@pytest.mark.parametrize(
    ("answers", "state", "asked"),
    [
        (("echo '7|RUNNING|None'",), SlurmState("RUNNING"), ["squeue"]),
        (("echo '7|PENDING|Resources'",), SlurmState("PENDING", "Resources"), ["squeue"]),
        (("echo '7|FAILED|NonZeroExitCode'",), SlurmState("FAILED", "NonZeroExitCode"), ["squeue"]),
        ((UNKNOWN, "echo '7|CANCELLED by 0'; echo '7.batch|CANCELLED'"), CANCELLED, ALL[:2]),
        ((UNKNOWN, NO_ACCOUNTS), SlurmState(LOST), ALL),
        (("true", "true"), SlurmState(LOST), ALL),
        (("true", "true", f"echo '{STANDS}=RUNNING Reason=None'"), SlurmState("RUNNING"), ALL),
        # a runaway job: the accounts have missed its end
        (("true", "echo '7|RUNNING'"), SlurmState(LOST), ALL),
        (
            ("true", "echo '7|RUNNING'", f"echo '{STANDS}=COMPLETED Reason=None'"),
            SlurmState("COMPLETED"),
            ALL,
        ),
    ],
)
def test_the_first_that_knows_a_job_says_how_it_stands(
    commands: Commands, answers: tuple[str, ...], state: SlurmState, asked: list[str]
) -> None:
    calls = commands(*answers)
    assert query_slurm(["7"]) == {"7": state}
    assert [line.split()[0] for line in calls.read_text().splitlines()] == asked


NEVER = [("SPECIAL_EXIT", ""), ("REQUEUE_HOLD", ""), ("PENDING", "JobHoldMaxRequeue")]
NEVER.append(("PENDING", "InvalidQOS"))
WAITED_FOR = [*NEVER, ("PENDING", "Priority"), ("RUNNING", "")]
ENDED = [(name, "") for name in ("REVOKED", "LAUNCH_FAILED", "FAILED", LOST)]


@pytest.mark.parametrize(("name", "reason"), [*ENDED, *WAITED_FOR])
def test_what_is_waited_for_and_what_never_starts_by_itself(name: str, reason: str) -> None:
    state = SlurmState(name, reason)
    assert state.has_ended is ((name, reason) in ENDED)
    assert state.has_ended or state.never_starts is ((name, reason) in NEVER)


def test_one_question_for_many_jobs_and_only_the_unknown_are_asked_for_again(
    commands: Commands,
) -> None:
    calls = commands("echo '7|RUNNING|None'; echo '8|PENDING|Priority'", sacct="echo '9|TIMEOUT'")
    states = query_slurm(["7", "8", "9"])
    names = {job_id: state.name for job_id, state in states.items()}
    assert names == {"7": "RUNNING", "8": "PENDING", "9": "TIMEOUT"}
    squeue, sacct = calls.read_text().splitlines()
    assert "--jobs=7,8,9" in squeue and "--jobs=9" in sacct


HANGS = ("exec sleep 30",)


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        ((AWAY,), "Unable to contact slurm controller"),
        ((UNKNOWN, NO_ACCOUNTS, AWAY), "Unable to contact slurm controller"),
        (HANGS, "squeue: no answer"),
        ((), "there is no squeue on this machine"),
    ],
)
def test_no_answer_is_no_word_about_a_job(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answers: tuple[str, ...],
    sentence: str,
) -> None:
    if answers:
        commands(*answers)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    if answers == HANGS:
        monkeypatch.setattr(slurm_queue, "COMMAND_SECONDS", 0.2)
    with pytest.raises(SlurmUnreachableError, match=sentence):
        query_slurm(["7"])


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_silence_a_held_job_and_one_in_line_again_are_said_once(commands: Commands) -> None:
    said: list[str] = []
    calls = commands(AWAY)
    with SlurmQueue(0.02, said.append) as queue:
        queue.watch("7")
        wait_until(lambda: calls.read_text().count("squeue") > 2)
        assert queue.state("7") is None and queue.unreachable_seconds > 0
        calls = commands("echo '7|PENDING|JobHeldUser'")
        wait_until(lambda: queue.state("7") is not None)
        wait_until(lambda: calls.read_text().count("squeue") > 2)
        assert queue.unreachable_seconds == 0
        commands("echo '7|RUNNING|None'")
        wait_until(lambda: queue.state("7") == SlurmState("RUNNING"))
        commands("echo '7|PENDING|BeginTime'")
        wait_until(lambda: len(said) == 4)
    silent, again, held, requeued = said
    assert requeued == "job 7 is in line again: Slurm says PENDING (BeginTime)"
    shows(silent, "Slurm does not answer (squeue: slurm_load_jobs error: Unable to contact")
    shows(again, "Slurm answers again, after ")
    shows(held, "Slurm job 7 will not start by itself (JobHeldUser): scontrol release 7")


class Queue:
    """A SlurmQueue whose answers are set by hand."""

    def __init__(self) -> None:
        self.now: SlurmState | None = None
        self.unreachable_seconds = 0.0

    def watch(self, job_id: str) -> None: ...

    def state(self, job_id: str) -> SlurmState | None:
        return self.now


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A queue whose jobs are not waited for once they have ended."""
    monkeypatch.setattr(slurm_launcher, "RESULT_SECONDS", 0.0)
    return Queue()


def submitted(folder: Path) -> Any:
    """A job of submitit's, with one task."""
    files = {"result_pickle": folder / "7_0_result.pkl", "stdout": folder / "7_0_log.out"}
    paths = SimpleNamespace(folder=folder, **files)
    job = SimpleNamespace(job_id="7", num_tasks=1, paths=paths, results=lambda: [0])
    job.task = lambda _: job
    return job


def test_a_job_without_a_result_is_lost_after_a_while(
    queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_launcher, "RESULT_SECONDS", 0.1)
    job = SubmittedJob(submitted(tmp_path), queue)
    assert job.query_status() is None
    for name in ("RUNNING", "FAILED", "PENDING", LOST):
        queue.now = SlurmState(name)
        assert job.query_status() is None
    time.sleep(0.15)
    queue.now = SlurmState("RUNNING")  # put in line again, and started
    assert job.query_status() is None
    queue.now = SlurmState(LOST)
    assert job.query_status() is None, "the clock begins anew"
    time.sleep(0.15)
    assert job.query_status() == NO_RESULT
    lost = "job 7 is lost: Slurm does not know it any more; the same command takes it up"
    assert job.reason == lost


@pytest.mark.parametrize(
    ("has_begun", "fate"), [(False, "was cancelled before it began"), (True, "was cancelled")]
)
def test_a_cancelled_job_is_not_called_lost(
    queue: Any, tmp_path: Path, has_begun: bool, fate: str
) -> None:
    if has_begun:
        (tmp_path / "7_0_log.out").touch()
    queue.now = SlurmState("CANCELLED", "Resources")
    job = SubmittedJob(submitted(tmp_path), queue)
    assert job.query_status() == NO_RESULT
    assert job.reason == f"job 7 {fate}; the same command takes it up"


def test_a_job_that_slurm_stops_ends_when_slurm_says_so(queue: Any, tmp_path: Path) -> None:
    """A node is marked DOWN: the job saves and ends with 143, and Slurm puts it in line again."""
    statuses = [TERMINATED]
    handed_over = submitted(tmp_path)
    handed_over.results = lambda: statuses
    job = SubmittedJob(handed_over, queue)
    (tmp_path / "7_0_result.pkl").touch()
    for name in ("RUNNING", "PENDING", "RUNNING"):
        queue.now = SlurmState(name)
        assert job.query_status() is None, name
    statuses[0] = 0
    assert job.query_status() == 0
    statuses[0] = TERMINATED
    queue.now = SlurmState("NODE_FAIL", "NodeDown")
    stopped = SubmittedJob(handed_over, queue)
    assert stopped.query_status() == NO_RESULT
    shows(stopped.reason, "job 7 was stopped: Slurm says NODE_FAIL (NodeDown); the same command")
    # The control: a job of no Slurm has ended with its result, whatever that is.
    assert SubmittedJob(handed_over, None).query_status() == TERMINATED


def test_a_result_counts_whatever_slurm_says(queue: Any, tmp_path: Path) -> None:
    queue.now, queue.unreachable_seconds = SlurmState(LOST), 1e9
    job = SubmittedJob(submitted(tmp_path), queue)
    (tmp_path / "7_0_result.pkl").touch()
    assert job.query_status() == 0


def test_nobody_waits_for_a_silent_slurm_without_end(queue: Any, tmp_path: Path) -> None:
    queue.unreachable_seconds = 3600 * slurm_launcher.SILENT_HOURS - 60
    job = SubmittedJob(submitted(tmp_path), queue)
    assert job.query_status() is None
    queue.unreachable_seconds += 120
    assert job.query_status() == NO_RESULT
    shows(job.reason, "Slurm has not answered for 6 hours; job 7 may still run there, and the")


def test_an_earlier_job_is_waited_for_only_where_slurm_has_it(
    tmp_path: Path, commands: Commands
) -> None:
    pytest.importorskip("submitit")
    launcher: Any = SlurmLauncher.__new__(SlurmLauncher)
    launcher.cluster, launcher.folder = "slurm", tmp_path
    note = {"job_id": "7", "tasks": 1}
    commands("echo '7|RUNNING|None'")
    assert launcher._earlier_job(note).job_id == "7"
    commands(UNKNOWN)
    assert launcher._earlier_job(note) is None
    commands(AWAY)
    with refuses("Slurm does not answer (squeue: slurm_load_jobs error: Unable to"):
        launcher._earlier_job(note)


RUNS = {
    "a/seed-1": None,
    "b/seed-1": "running",
    "c/seed-1": "interrupted",
    "d/seed-1": "failed",
    "e/seed-1": "complete",
    "f/seed-1": None,
    "g/seed-1": None,
    "h/seed-1": None,
    "i/seed-1": "running",
}


def test_status_says_how_the_jobs_stand_that_slurm_was_handed(
    tmp_path: Path, commands: Commands, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "adhoc/demo"
    notes = {}
    for number, (name, state) in enumerate(RUNS.items(), 11):
        arm, _, _ = name.partition("/")
        if state is not None:
            writers.pretrain(root, arm, 1, status=state)
        notes[f"elsewhere/runs/adhoc/demo/pretrain/{name}"] = {"job_id": str(number), "tasks": 1}
    # by run_dir=
    elsewhere = tmp_path / "mine" / "one"
    shutil.copytree(root / "pretrain/e/seed-1", elsewhere)
    notes[str(elsewhere)] = {"job_id": "20", "tasks": 1}
    notes_file = root / "launcher/slurm/handed_over.json"
    notes_file.parent.mkdir(parents=True)
    notes_file.write_text(json.dumps(notes))
    # As older sweeps left it.
    (notes_file.parent / ".lock").touch()
    states = ["11|PENDING|Priority", "12|RUNNING|None", "13|CANCELLED|None", "14|FAILED|None"]
    states += [
        "16|CANCELLED|None",
        "17|OUT_OF_MEMORY|OutOfMemory",
        "18|COMPLETED|None",
        "19|COMPLETED|None",
    ]
    calls = commands("\n".join(f"echo '{line}'" for line in states))
    assert unfinished_jobs(notes_file) == [
        ("11", "waiting", "pretrain/a/seed-1", "Priority"),
        ("12", "running", "pretrain/b/seed-1", ""),
        ("13", "stopped", "pretrain/c/seed-1", ""),
        ("14", "failed", "pretrain/d/seed-1", ""),
        ("16", "cancelled", "pretrain/f/seed-1", ""),
        ("17", "lost", "pretrain/g/seed-1", "OutOfMemory"),
        ("18", "failed", "pretrain/h/seed-1", ""),
        ("19", "lost", "pretrain/i/seed-1", ""),
    ]
    asked = calls.read_text()
    assert "15" not in asked and "20" not in asked, "a complete run's job is not asked for"
    assert main(["status", f"runs_dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"(?m)^ *11 +waiting +pretrain/a/seed-1 +Priority *$", shown), shown
    assert "damaged" not in shown
    commands(AWAY)
    assert main(["status", f"runs_dir={tmp_path}"]) == 0
    shows(capsys.readouterr().out, "Slurm does not answer (squeue: slurm_load_jobs error: Unable")
