"""What happens to jobs of a real Slurm: its node goes DOWN, or somebody cancels them."""

from __future__ import annotations

import csv
import re
import socket
from contextlib import suppress
from pathlib import Path

from tests.cluster.engines import (
    RUN,
    Engine,
    Place,
    command,
    jobs_of,
    outcome,
    pretraining,
    wait_until,
)

NODE = f"nodename={socket.gethostname().partition('.')[0]}"


def state(slurm: Engine, job: str) -> str:
    return command(slurm, "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")


def has_steps(job: str) -> bool:
    """Whether the node has processes of Slurm's own for a job."""
    name = f"slurmstepd: [{job}.".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(name):
                return True
    return False


def job_of(slurm: Engine) -> str:
    """The number of the one job that Slurm has, once it has one."""
    wait_until(lambda: jobs_of(slurm), "a job of Slurm")
    return jobs_of(slurm)[0]


def test_a_job_of_a_node_that_goes_down_comes_back_and_its_result_is_seen(
    slurm: Engine, data: Path, local: Place, tmp_path: Path
) -> None:
    """Slurm stops the job, marks the node DOWN and puts the job in line again; nothing fails."""
    place = Place(data, tmp_path / "runs", slurm)
    launcher = place.start_to_checkpoint(*pretraining("seed=1"))
    job = job_of(slurm)
    command(slurm, "scontrol", "update", NODE, "state=down", "reason=test")
    wait_until(lambda: "PENDING" in state(slurm, job), f"job {job} in line again")
    # Slurm lets two minutes pass before such a job may begin again: on a node where its first start
    # has not ended it would be refused, and held.
    wait_until(lambda: not has_steps(job), f"the end of job {job}'s first start")
    command(slurm, "scontrol", "update", f"job={job}", "starttime=now+10")
    text = outcome(launcher, 0)
    assert f"job {job} is in line again: Slurm says PENDING" in text, text
    assert re.search(r"(?m)^1 complete$", text) and "failed" not in text, text
    assert place.weights() == local.weights()


def test_a_job_that_is_cancelled_before_it_began_is_called_so(
    slurm: Engine, data: Path, local: Place, tmp_path: Path
) -> None:
    place = Place(data, tmp_path / "runs", slurm)
    command(slurm, "scontrol", "update", NODE, "state=drain", "reason=test")
    try:
        launcher = place.start(*pretraining("seed=1"))
        job = job_of(slurm)
        status = place.status()
        assert re.search(rf"(?m)^ *{job} +waiting +pretrain/mlm_nsp/seed-1 ", status), status
        command(slurm, "scancel", job)
        text = outcome(launcher, 1)
        reason = f"job {job} was cancelled before it began; the same command takes it up"
        assert reason in text, text
        assert " waiting  pretrain/mlm_nsp/seed-1" in text and " running  " not in text, text
        assert "log: " not in text, "it names a file that no job has written"
        status = place.status()
        assert re.search(rf"(?m)^ *{job} +cancelled +pretrain/mlm_nsp/seed-1 ", status), status
    finally:
        command(slurm, "scontrol", "update", NODE, "state=resume")
    again = place.run(*pretraining("seed=1"))
    assert re.search(r"(?m)^1 complete$", again), again
    assert place.weights() == local.weights()


def test_a_running_job_that_is_cancelled_saves_and_goes_on(
    slurm: Engine, data: Path, tmp_path: Path
) -> None:
    place = Place(data, tmp_path / "runs", slurm)
    launcher = place.start_to_checkpoint(*pretraining("seed=1", steps=1000))
    job = job_of(slurm)
    status = place.status()
    assert re.search(rf"(?m)^ *{job} +running +pretrain/mlm_nsp/seed-1 ", status), status
    command(slurm, "scancel", job)
    text = outcome(launcher, 1)
    assert f"job {job} was stopped: Slurm says CANCELLED" in text, text
    status = place.status()
    assert re.search(rf"(?m)^ *{job} +stopped +pretrain/mlm_nsp/seed-1 ", status), status
    assert re.search(r"(?m)^1 complete$", place.run(*pretraining("seed=1", steps=1000)))
    with (place.runs / RUN / "metrics.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["key"] == "train/loss"]
    assert [int(row["step"]) for row in rows] == list(range(1, 1001)), "each step once"


def test_status_calls_a_job_failed_whose_log_has_the_reason(
    slurm: Engine, data: Path, tmp_path: Path
) -> None:
    """One fails in its run, and one before it has a run. Slurm itself calls both COMPLETED."""
    place = Place(data, tmp_path / "runs", slurm)
    in_its_run = place.run(*pretraining("seed=1", "optimizer.learning_rate=1e38"), status=1)
    before_it = place.run(*pretraining("seed=2", "schedule.warmup_fraction=7"), status=1)
    assert "gradient norm nan" in in_its_run and "1 failed" in in_its_run, in_its_run
    assert "schedule.warmup_fraction is 7" in before_it, before_it
    status = place.status()
    for seed in (1, 2):
        assert re.search(rf"(?m)^ *\d+ +failed +pretrain/mlm_nsp/seed-{seed}( |$)", status), status
