"""Minutes left by the size of jobs, the place of a sweep in a reproduction, and the lines that a
pipe gets.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.conftest import write_run

from clozelab.launch import progress
from clozelab.launch.processes import Job, JobState, RemoteProcess
from clozelab.launch.progress import (
    NO_ESTIMATE,
    Heartbeat,
    PlanPart,
    SweepEstimate,
    plan_file,
    progress_line,
    seconds_left,
    write_plan,
)
from clozelab.runs.progress import NO_PROGRESS, Progress

_numbers = itertools.count()


def job(state: str, seconds: float = 0.0, planned: float | None = None, **more: Any) -> Job:
    name = more.pop("name", f"job-{next(_numbers)}")
    return Job(name, [], Path(), state=JobState(state), seconds=seconds, planned=planned, **more)


def ended(planned: float, took: float) -> Job:
    return job("complete", took, planned)


def waits(planned: float | None) -> Job:
    return job("waiting", 0.0, planned)


def stepping(step: int, seconds: float, seconds_left: float | None, **more: Any) -> Job:
    """A job that runs, of a thousand steps, whose run says how long the rest takes."""
    progress = Progress(step=step, total_steps=1000, seconds_left=seconds_left)
    return job("running", seconds, progress=progress, **more)


def left(jobs: list[Job], at_once: int = 1, **estimate: Any) -> float | None:
    return seconds_left(jobs, at_once, SweepEstimate(**estimate))


def test_jobs_count_by_their_planned_size_and_not_by_their_number() -> None:
    small = [ended(10.0, 10.0) for _ in range(30)]
    large = [waits(300.0), waits(300.0)]
    assert left([*small, *large]) == pytest.approx(600.0)
    assert left([*small, *large], 2) == pytest.approx(300.0)
    alike = [job("complete", 10.0) for _ in range(30)] + [waits(None), waits(None)]
    assert left(alike) == pytest.approx(20.0), "without a plan they are taken to be alike"


def test_what_ended_corrects_the_plan_also_of_what_comes_after() -> None:
    slow = [ended(10.0, 20.0), waits(10.0)]
    assert left(slow) == pytest.approx(20.0)
    assert left(slow, seconds_after=100.0) == pytest.approx(220.0)


def test_a_job_that_says_its_step_is_left_by_that() -> None:
    half = stepping(500, 50.0, 50.0, planned=10.0)
    assert left([half]) == pytest.approx(50.0)
    begun = stepping(10, 8.0, None, planned=40.0)
    assert left([begun]) == pytest.approx(32.0), "it has not said its speed yet"


def test_a_resumed_job_is_left_by_what_is_left_of_its_run() -> None:
    """Of 1,000 steps 900 took 9,000 s before; this launch has worked for 30 s."""
    later = stepping(911, 150.0, 890.0, planned=10_000.0, is_resumed=True)
    assert left([later]) == pytest.approx(890.0)
    assert left([stepping(911, 150.0, 890.0, is_resumed=True)]) == pytest.approx(890.0)
    assert left([stepping(901, 30.0, None, is_resumed=True)]) is None, "nor has it a plan"


def test_a_resumed_job_says_nothing_of_whole_ones() -> None:
    resumed = job("complete", 60.0, 10_000.0, is_resumed=True)
    fresh = [waits(10_000.0) for _ in range(9)]
    assert left([resumed, *fresh]) == pytest.approx(90_000.0)
    assert left([job("complete", 60.0, is_resumed=True), waits(None)]) is None


class Remote(RemoteProcess):
    """A job that a batch system has."""

    in_line = True

    @property
    def is_queued(self) -> bool:
        return self.in_line

    def query_status(self) -> int | None:
        return None

    def send_signal(self, number: int) -> None:
        pass


@pytest.fixture
def remote_job(tmp_path: Path) -> Job:
    log = tmp_path / "log"
    log.write_text("")
    state = JobState.RUNNING
    folder = run_folder(tmp_path / "run", 1000)
    return Job("remote", [], log, process=Remote(), state=state, folder=folder, is_queued=True)


def run_folder(folder: Path, total_steps: int) -> str:
    """The folder of a run of so many steps, none of which it has taken yet."""
    write_run(folder, "finetune", {"seed": 1}, "running", total_steps=total_steps)
    return str(folder)


def at_step(job: Job, step: int) -> None:
    """Let the run of a job say that it has taken so many steps."""
    rows = f"step,tokens,seconds,key,value\n{step},{step},1.0,train/tokens_per_second,2.0\n"
    Path(job.folder, "metrics.csv").write_text(rows)


def look(job: Job, seconds: float, step: int = 0, *, in_line: bool = False) -> Job:
    """The job so many seconds after it was handed over, where its run has logged a step."""
    job.seconds = seconds
    job.process.in_line = in_line  # type: ignore[union-attr]  # a Remote
    if step:
        at_step(job, step)
    job.look_at_folder(seconds)
    return job


def test_time_in_line_is_no_time_of_steps(remote_job: Job) -> None:
    began = 5 * 3600.0
    assert look(remote_job, began, in_line=True).work_seconds == 0.0
    look(remote_job, began + 12.0, 10)
    assert look(remote_job, began + 120.0, 110).work_seconds == pytest.approx(120.0)
    assert left([remote_job]) == pytest.approx(890 / 2.0)
    assert look(remote_job, began + 900.0, in_line=True).is_resumed, "it was put in line again"
    assert remote_job.progress is NO_PROGRESS
    assert look(remote_job, 2 * began, 100).progress.step == 100


def test_a_job_in_line_is_shown_as_waiting(remote_job: Job) -> None:
    assert look(remote_job, 10.0, in_line=True).shown_state == "waiting"
    assert look(remote_job, 20.0).shown_state == "running"
    remote_job.state = JobState.FAILED
    assert look(remote_job, 30.0, in_line=True).shown_state == "failed"


def test_time_in_line_is_no_time_of_a_job(remote_job: Job) -> None:
    look(remote_job, 5 * 3600.0, in_line=True)
    look(remote_job, 5 * 3600.0 + 1200.0)
    remote_job.planned = 1200.0
    remote_job.state = JobState.COMPLETE
    jobs = [remote_job, *[waits(1200.0) for _ in range(5)]]
    assert left(jobs) == pytest.approx(100 * 60.0)


def test_a_job_that_is_late_makes_those_behind_it_late() -> None:
    late = job("running", 30.0, 10.0)
    assert left([late, waits(10.0)]) == pytest.approx(30.0)
    assert left([late]) is None, "nothing is promised of the last one"
    assert left([job("complete", 2.0), job("running", 3.0), waits(None)]) is None


def test_nothing_is_said_of_time_before_anything_is_known() -> None:
    assert left([job("running", 3.0), waits(None)]) is None
    assert left([ended(1.0, 1.0)], seconds_after=7.0) == 7.0


def test_a_late_job_leaves_what_comes_after_it() -> None:
    late = job("running", 30.0, 10.0)
    assert left([ended(10.0, 10.0), late], seconds_after=100.0) == pytest.approx(300.0)


def test_a_line_counts_the_whole_reproduction(tmp_path: Path) -> None:
    parts = [
        PlanPart("prepare", 5.0),
        PlanPart("pretrain", 120.0, {"arm=a": 60.0, "arm=b": 60.0}),
        PlanPart("finetune", 40.0, {"row=a": 40.0}),
        PlanPart("report", 20.0),
    ]
    write_plan(tmp_path, parts)
    place = SweepEstimate.read(tmp_path, "pretrain", is_part=True)
    assert place == SweepEstimate(
        {"arm=a": 60.0, "arm=b": 60.0}, jobs_before=0, jobs_after=1, seconds_after=60.0
    )
    assert SweepEstimate.read(tmp_path, "finetune", is_part=True).jobs_before == 2
    assert SweepEstimate.read(tmp_path, "pretrain", is_part=False) == SweepEstimate(), (
        "a sweep on its own has a plan of its own"
    )
    jobs = [
        job("running", 30.0, 60.0, name="pretrain/a"),
        job("waiting", 0.0, 60.0, name="pretrain/b"),
    ]
    assert (
        progress_line(jobs, 1, place)
        == "0 of 3 done, 1 run (pretrain/a for 30 s), about 2.5 min left"
    )
    (tmp_path / plan_file(None)).write_text(json.dumps({"parts": [{"wrong": 1}]}))
    assert SweepEstimate.read(tmp_path, "pretrain", is_part=True) == SweepEstimate()


def test_many_that_run_are_not_all_named() -> None:
    jobs = [job("running", 1.0, name=f"job-{number}") for number in range(5)]
    line = progress_line(jobs, 5, NO_ESTIMATE)
    assert line == "0 of 5 done, 5 run (job-0 for 1 s, job-1 for 1 s, ...)"


def test_the_last_logged_step_counts_whatever_the_log_says(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("step 9/10 of something else")
    running = Job("job", [], log, folder=run_folder(tmp_path / "run", 10))
    running.look_at_folder(4.0)
    assert running.progress is NO_PROGRESS
    at_step(running, 2)
    running.look_at_folder(5.0)
    assert (running.progress.step, running.progress.total_steps) == (2, 10)
    Job("job", [], log, folder=str(tmp_path / "nothing")).look_at_folder(5.0)


def test_what_an_earlier_launch_has_logged_is_no_step_of_this_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", 10)
    resumed = Job("job", [], tmp_path / "log", folder=folder)
    at_step(resumed, 7)
    minutes_ago = time.time() - 300.0
    os.utime(Path(folder, "metrics.csv"), (minutes_ago, minutes_ago))
    resumed.look_at_folder(60.0)
    assert resumed.progress is NO_PROGRESS
    at_step(resumed, 8)
    resumed.look_at_folder(61.0)
    assert resumed.progress.step == 8


def test_a_heartbeat_is_for_pipes_and_waits_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_SECONDS", 0.05)
    pipe, terminal = io.StringIO(), io.StringIO()
    heartbeat = Heartbeat(Console(file=pipe), lambda: "still here")
    heartbeat.beat()
    assert not pipe.getvalue(), "not yet due"
    with heartbeat.in_background():
        time.sleep(0.2)
    assert pipe.getvalue().splitlines()[0] == "still here"
    shown = Heartbeat(Console(file=terminal, force_terminal=True), lambda: "still here")
    time.sleep(0.06)
    shown.beat()
    assert not terminal.getvalue()
