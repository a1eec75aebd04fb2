"""`hydra/launcher=ray`: each job of a sweep is a Ray task that runs the job's command line in a process of its own.

Ray only shares out the machines: its tasks are neither retried nor given anything but the command. Why not the plugin
hydra-ray-launcher: it runs jobs inside Ray's workers, complete ones too, and ends at the first failure.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from clozelab.launch.forking import RemoteJob, require_package
from clozelab.launch.launcher import SweepLauncher
from clozelab.launch.processes import Job, ProcessPool, RemoteProcess
from clozelab.training.host import usable_cores

LOST = 75
"""Exit status of a task that Ray lost (EX_TEMPFAIL: it may go well the next time)."""


class RayLauncher(SweepLauncher):
    """Hands jobs to Ray and waits for them.

    Args:
        address: of a Ray cluster (auto: the one of this machine); None starts Ray on this machine for the sweep.
        num_cpus: cores of one job, and its threads.
        num_gpus: GPUs of one job; auto: one for each device where jobs train on GPUs.
        grace_seconds: what a stopped job gets to save.
    """

    def __init__(self, address: str | None, num_cpus: int, num_gpus: float | str, grace_seconds: float) -> None:
        super().__init__()
        require_package("ray", "ray", "hydra/launcher=ray")
        if not isinstance(num_cpus, int) or num_cpus < 1:
            raise ValueError(f"hydra.launcher.num_cpus is {num_cpus!r}: give a positive number")
        self.address, self.num_cpus, self.num_gpus, self.grace_seconds = address, num_cpus, num_gpus, grace_seconds

    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console) -> None:
        needs = [gpus_of(config, self.num_gpus) for config in composed]
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray  # an extra, and seconds of start-up

        own = {"num_cpus": usable_cores(), "include_dashboard": False} if self.address is None else {}
        ray.init(address=self.address, log_to_driver=False, configure_logging=False, **own)
        try:
            task = ray.remote(max_retries=0)(run_remote_job)
            for job, gpus in zip(jobs, needs, strict=True):
                remote = self.remote_job(job, threads=self.num_cpus, is_alone=True)
                job.start = partial(_start, ray, task.options(num_cpus=self.num_cpus, num_gpus=gpus), remote)
            console.print(f"{self.verb}: {len(jobs)} jobs for Ray")
            ProcessPool(jobs, at_once=len(jobs), grace_seconds=self.grace_seconds, console=console).run()
        finally:
            ray.shutdown()


def gpus_of(config: DictConfig, num_gpus: float | str) -> float:
    """GPUs that one job asks Ray for. Raises ValueError for a job that needs several nodes: a Ray task has one."""
    trainer = config.get("trainer") or {}
    if int(trainer.get("num_nodes", 1)) > 1:
        raise ValueError(
            f"trainer.num_nodes is {trainer['num_nodes']}: hydra/launcher=ray runs each job on one node;"
            " hydra/launcher=slurm runs one over several"
        )
    if num_gpus != "auto":
        return float(num_gpus)
    return float(trainer.get("devices", 1)) if trainer.get("accelerator", "cpu") in ("gpu", "auto") else 0.0


def run_remote_job(job: RemoteJob) -> int:
    """In Ray's worker."""
    return job()


def _start(ray: Any, task: Any, remote: RemoteJob) -> RemoteProcess:
    remote.log.unlink(missing_ok=True)
    return RayTask(ray, task.remote(remote))


class RayTask(RemoteProcess):
    """A job that Ray has."""

    ask_seconds = 0.2

    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def ask(self) -> int | None:
        if not self.ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.reference))
        except Exception as error:  # the worker died, the node is gone, the task was cancelled
            self.reason = f"Ray lost it: {str(error).strip().splitlines()[0]}"
            return LOST

    def send_signal(self, number: int) -> None:
        self.ray.cancel(self.reference, force=number == signal.SIGKILL)
