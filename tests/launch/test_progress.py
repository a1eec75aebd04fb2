"""Minutes left by the size of jobs, the place of a sweep in a reproduction, and the lines that a
pipe gets.
"""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from clozelab.launch.processes import Job, RemoteProcess
from clozelab.launch.progress import (
    JobProgress,
    Outlook,
    Part,
    Pulse,
    plan_file,
    progress_line,
    seconds_left,
    steps_in,
    write_plan,
)


def ended(planned: float, took: float) -> JobProgress:
    return JobProgress("ended", "done", took, planned)


def waits(planned: float | None) -> JobProgress:
    return JobProgress("waits", "waiting", 0.0, planned)


def test_jobs_count_by_their_planned_size_and_not_by_their_number() -> None:
    small = [ended(10.0, 10.0)] * 30
    large = [waits(300.0)] * 2
    assert seconds_left([*small, *large], 1) == pytest.approx(600.0)
    assert seconds_left([*small, *large], 2) == pytest.approx(300.0)
    alike = [JobProgress("ended", "done", 10.0)] * 30 + [waits(None)] * 2
    assert seconds_left(alike, 1) == pytest.approx(20.0), (
        "without a plan they are taken to be alike"
    )


def test_what_ended_corrects_the_plan_also_of_what_comes_after() -> None:
    slow = [ended(10.0, 20.0), waits(10.0)]
    assert seconds_left(slow, 1) == pytest.approx(20.0)
    assert seconds_left(slow, 1, seconds_after=100.0) == pytest.approx(220.0)


def test_a_job_that_says_its_step_is_left_by_that() -> None:
    half = JobProgress("half", "running", 50.0, 10.0, steps=(500, 1000))
    assert seconds_left([half], 1) == pytest.approx(50.0)
    begun = JobProgress("begun", "running", 8.0, 40.0, steps=(10, 1000))
    assert seconds_left([begun], 1) == pytest.approx(32.0), "its first steps say nothing yet"


def test_a_resumed_job_is_left_by_the_steps_of_this_launch() -> None:
    """Of 1,000 steps 900 took 9,000 s before; this launch has worked for 30 s."""
    begun = JobProgress("resumed", "running", 30.0, 10_000.0, (901, 1000), 901, is_resumed=True)
    assert seconds_left([begun], 1) == pytest.approx(990.0)
    later = JobProgress("resumed", "running", 150.0, 10_000.0, (911, 1000), 901, 110.0, True)
    assert seconds_left([later], 1) == pytest.approx(979.0)
    unplanned = JobProgress("resumed", "running", 30.0, None, (901, 1000), 901, is_resumed=True)
    assert seconds_left([unplanned], 1) is None


def test_a_resumed_job_says_nothing_of_whole_ones() -> None:
    resumed = JobProgress("resumed", "done", 60.0, 10_000.0, is_resumed=True)
    fresh = [waits(10_000.0)] * 9
    assert seconds_left([resumed, *fresh], 1) == pytest.approx(90_000.0)
    assert (
        seconds_left([JobProgress("resumed", "done", 60.0, is_resumed=True), waits(None)], 1)
        is None
    )


class Remote(RemoteProcess):
    """A job that a batch system has."""

    in_line = True

    @property
    def is_in_line(self) -> bool:
        return self.in_line

    def ask(self) -> int | None:
        return None

    def send_signal(self, number: int) -> None:
        pass


@pytest.fixture
def remote_job(tmp_path: Path) -> Job:
    log = tmp_path / "log"
    log.write_text("")
    return Job("remote", [], log, process=Remote(), state="running", is_in_line=True)


def look(job: Job, seconds: float, line: str = "", *, in_line: bool = False) -> JobProgress:
    """What is known of a job so many seconds after it was handed over, by this line of its log."""
    job.seconds = seconds
    job.process.in_line = in_line  # type: ignore[union-attr]  # a Remote
    job.log.write_text(line)
    job.look_at_log(seconds)
    return job.progress("running")


def test_time_in_line_is_no_time_of_steps(remote_job: Job) -> None:
    began = 5 * 3600.0
    assert look(remote_job, began, in_line=True).seconds == 0.0
    look(remote_job, began + 12.0, "step 10/1000")
    progress = look(remote_job, began + 120.0, "step 100/1000")
    assert progress.seconds == pytest.approx(120.0)
    assert seconds_left([progress], 1) == pytest.approx(18 * 60.0)
    assert look(remote_job, began + 900.0, in_line=True).is_resumed, "it was put in line again"
    progress = look(remote_job, 2 * began, "step 100/1000")
    assert progress.first_step == 100 and progress.stepping_seconds == 0.0


def test_time_in_line_is_no_time_of_a_job(remote_job: Job) -> None:
    look(remote_job, 5 * 3600.0, in_line=True)
    look(remote_job, 5 * 3600.0 + 1200.0, "over")
    remote_job.planned = 1200.0
    done = remote_job.progress("done")
    jobs = [done, done, *[waits(1200.0)] * 5]
    assert seconds_left(jobs, 1) == pytest.approx(100 * 60.0)


def test_a_job_that_is_late_makes_those_behind_it_late() -> None:
    late = JobProgress("late", "running", 30.0, 10.0)
    assert seconds_left([late, waits(10.0)], 1) == pytest.approx(30.0)
    assert seconds_left([late], 1) is None, "nothing is promised of the last one"
    unplanned = [
        JobProgress("ended", "done", 2.0),
        JobProgress("late", "running", 3.0),
        waits(None),
    ]
    assert seconds_left(unplanned, 1) is None


def test_nothing_is_said_of_time_before_anything_is_known() -> None:
    assert seconds_left([JobProgress("first", "running", 3.0), waits(None)], 1) is None
    assert seconds_left([ended(1.0, 1.0)], 1, seconds_after=7.0) == 7.0


def test_a_line_counts_the_whole_reproduction(tmp_path: Path) -> None:
    parts = [
        Part("prepare", 5.0),
        Part("pretrain", 120.0, {"arm=a": 60.0, "arm=b": 60.0}),
        Part("finetune", 40.0, {"row=a": 40.0}),
        Part("report", 20.0),
    ]
    write_plan(tmp_path, parts)
    place = Outlook.read(tmp_path, "pretrain", is_part=True)
    assert place == Outlook(
        {"arm=a": 60.0, "arm=b": 60.0}, jobs_before=0, jobs_after=1, seconds_after=60.0
    )
    assert Outlook.read(tmp_path, "finetune", is_part=True).jobs_before == 2
    assert Outlook.read(tmp_path, "pretrain", is_part=False) == Outlook(), (
        "a sweep on its own has a plan of its own"
    )
    jobs = [
        JobProgress("pretrain/a", "running", 30.0, 60.0),
        JobProgress("pretrain/b", "waiting", 0.0, 60.0),
    ]
    assert (
        progress_line(jobs, 1, place)
        == "0 of 3 done, 1 run (pretrain/a for 30 s), about 2.5 min left"
    )
    (tmp_path / plan_file(None)).write_text(json.dumps({"parts": [{"wrong": 1}]}))
    assert Outlook.read(tmp_path, "pretrain", is_part=True) == Outlook()


def test_many_that_run_are_not_all_named() -> None:
    line = progress_line(
        [JobProgress(f"job-{number}", "running", 1.0) for number in range(5)], 5, Outlook()
    )
    assert line == "0 of 5 done, 5 run (job-0 for 1 s, job-1 for 1 s, ...)"


def test_the_last_step_of_a_log_counts() -> None:
    assert steps_in(["x step 1/10 y", "step 2/10 loss", "step 2 validation"]) == (2, 10)
    assert steps_in(["nothing"]) is None


def test_a_pulse_is_for_pipes_and_waits_for_its_time() -> None:
    pipe, terminal = io.StringIO(), io.StringIO()
    pulse = Pulse(Console(file=pipe), lambda: "still here", seconds=0.05)
    pulse.beat()
    assert not pipe.getvalue(), "not yet due"
    with pulse.in_background():
        time.sleep(0.2)
    assert pipe.getvalue().splitlines()[0] == "still here"
    shown = Pulse(Console(file=terminal, force_terminal=True), lambda: "still here", seconds=0.0)
    shown.beat()
    assert not terminal.getvalue()
