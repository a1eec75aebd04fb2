"""`hydra/launcher=ray`: the jobs of a sweep on the machines of a Ray cluster.

Ray only shares out the machines: it retries nothing. It writes to the terminal as it likes, so it
lives in a process of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from claims.text.phrases import count_noun
from clozelab.config import Composed
from clozelab.launch.clusters import NO_RESULT, RemoteJob
from clozelab.launch.launcher import SweepLauncher, require_positive
from clozelab.launch.processes import Job, RemoteProcess
from clozelab.text.packages import require_package
from clozelab.text.plain import PlainDict
from clozelab.training.host import usable_cores
from clozelab.training.stopping import die_with_parent

if TYPE_CHECKING:
    from ray import ObjectRef

DRIVER_GONE = (EOFError, OSError)  # what a call into a process raises that has ended


class RayLauncher(SweepLauncher):
    """Hands jobs to Ray and waits for them. Args: as conf/hydra/launcher/ray.yaml says of each."""

    def __init__(
        self, address: str | None, num_cpus: int, num_gpus: float | str, grace_seconds: float
    ) -> None:
        require_package("ray", "ray", "hydra/launcher=ray")
        require_positive("num_cpus", num_cpus)
        self.address = address
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.grace_seconds = grace_seconds

    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[Composed], console: Console) -> None:
        gpus_of_jobs = [gpus_of(config, self.num_gpus) for config in composed]
        driver_log = self.sweep_dir / "ray.log"
        with ray_driver(self.address, driver_log) as driver:
            for job, gpus in zip(jobs, gpus_of_jobs, strict=True):
                remote = RemoteJob(job, self.num_cpus, self.grace_seconds, is_alone=True)
                job.start = partial(RayTask, driver, driver_log, remote, self.num_cpus, gpus)
            number = count_noun(len(jobs), "job")
            console.print(f"{self.verb}: {number} for Ray, its messages in {driver_log}")
            self.run_pool(jobs, console, len(jobs))


def gpus_of(config: Composed, num_gpus: float | str) -> float:
    """Return how many GPUs one job asks Ray for.

    ValueError for a job that needs several nodes: a Ray task has one.
    """
    trainer = config.get("trainer") or {}
    if int(trainer.get("num_nodes", 1)) > 1:
        raise ValueError(
            f"trainer.num_nodes is {trainer['num_nodes']}: hydra/launcher=ray runs each job on one"
            " node; hydra/launcher=slurm runs one over several"
        )
    if num_gpus != "auto":
        return float(num_gpus)
    if trainer.get("accelerator", "cpu") in ("gpu", "auto"):
        return float(trainer.get("devices", 1))
    return 0.0


def run_remote_job(job: RemoteJob) -> int:
    """Ray's task: a function that its workers import by name."""
    return job()


class RayDriver:
    """Ray's own part of a sweep. Ray ends the process that it lives in when the head is lost."""

    def connect(self, address: str | None) -> None:
        """Join a cluster, or start Ray on this machine."""
        import ray  # an extra, and seconds of start-up

        # Without an address Ray begins on this machine, and sees cores that we may not use.
        options: PlainDict = {}
        if address is None:
            options = {"num_cpus": usable_cores(), "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
        self.ray = ray
        self.tasks: list[ObjectRef] = []

    def submit(self, remote: RemoteJob, num_cpus: int, num_gpus: float) -> int:
        """Hand a job to Ray; returns its number here."""
        # Not retried: the job's own exit status says whether the same command may go on.
        options = {"max_retries": 0, "num_cpus": num_cpus, "num_gpus": num_gpus}
        self.tasks.append(self.ray.remote(**options)(run_remote_job).remote(remote))
        return len(self.tasks) - 1

    def query(self, number: int) -> tuple[int | None, str]:
        """Return the exit status of a job, None while it runs, and why Ray has lost it or ""."""
        finished, _ = self.ray.wait([self.tasks[number]], timeout=0)
        if not finished:
            return None, ""
        try:
            return int(self.ray.get(self.tasks[number])), ""
        except Exception as error:  # the worker died, the node is gone, the task was cancelled
            reason = str(error).strip().splitlines()[0]
            return NO_RESULT, f"Ray lost it: {reason}; the same command takes it up"

    def cancel(self, number: int, *, force: bool) -> None:
        self.ray.cancel(self.tasks[number], force=force)

    def close(self) -> None:
        self.ray.shutdown()


class RayTask(RemoteProcess):
    """A job that Ray has."""

    ask_seconds = 0.2

    def __init__(
        self, driver: RayDriver, driver_log: Path, remote: RemoteJob, cpus: int, gpus: float
    ) -> None:
        remote.log.unlink(missing_ok=True)
        self.driver = driver
        self.driver_log = driver_log
        self.number = driver.submit(remote, cpus, gpus)

    def query_status(self) -> int | None:
        try:
            status, self.reason = self.driver.query(self.number)
        except DRIVER_GONE:
            self.reason = (
                f"Ray is lost, its head or this machine's part (see {self.driver_log});"
                " the same command takes it up"
            )
            return NO_RESULT
        return status

    def send_signal(self, number: int) -> None:
        with suppress(*DRIVER_GONE):
            self.driver.cancel(self.number, force=number == signal.SIGKILL)


@contextmanager
def ray_driver(address: str | None, log: Path) -> Iterator[RayDriver]:
    """Yield a driver that is joined to a cluster, in a process whose output goes to a log.

    ValueError where no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    log.parent.mkdir(parents=True, exist_ok=True)
    manager: Any = DriverManager(ctx=get_context("spawn"))
    manager.start(_begin_driver, (str(log),))
    try:
        driver = manager.RayDriver()
        try:
            driver.connect(address)
        except Exception as error:
            raise ValueError(
                f"hydra/launcher=ray: Ray does not answer ({error}); its messages are in {log}. A"
                " cluster that asks for a token: export RAY_AUTH_MODE=token (docs/clusters.md)"
            ) from error
        yield driver
        with suppress(*DRIVER_GONE):
            driver.close()
    finally:
        manager.shutdown()


class DriverManager(BaseManager):
    """The process of a RayDriver."""


DriverManager.register("RayDriver", RayDriver)


def _begin_driver(log: str) -> None:
    """In the driver's process: it ends with the launcher, whose signals are not its own."""
    os.setsid()
    die_with_parent()
    with Path(log).open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
