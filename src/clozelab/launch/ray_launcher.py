"""`hydra/launcher=ray`: the jobs of a sweep on the machines of a Ray cluster.

Ray only shares out the machines: it retries nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.config import Composed
from clozelab.launch.clusters import NO_RESULT, RemoteJob
from clozelab.launch.launcher import SweepLauncher, require_positive
from clozelab.launch.processes import Job, RemoteProcess
from clozelab.text.packages import require_package
from clozelab.text.plain import PlainDict
from clozelab.training.host import usable_cores

if TYPE_CHECKING:
    from ray.remote_function import RemoteFunction


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
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray  # an extra, and seconds of start-up

        # Without an address Ray begins on this machine, and sees cores that we may not use.
        options: PlainDict = {}
        if self.address is None:
            options = {"num_cpus": usable_cores(), "include_dashboard": False}
        ray.init(address=self.address, log_to_driver=False, configure_logging=False, **options)
        try:
            # Not retried: the job's own exit status says whether the same command may go on.
            task = ray.remote(max_retries=0)(run_remote_job)
            for job, gpus in zip(jobs, gpus_of_jobs, strict=True):
                remote = RemoteJob(job, self.num_cpus, self.grace_seconds, is_alone=True)
                sized_task = task.options(num_cpus=self.num_cpus, num_gpus=gpus)
                job.start = partial(RayTask, ray, sized_task, remote)
            console.print(f"{self.verb}: {len(jobs)} jobs for Ray")
            self.run_pool(jobs, console, len(jobs))
        finally:
            ray.shutdown()


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


class RayTask(RemoteProcess):
    """A job that Ray has."""

    ask_seconds = 0.2

    def __init__(self, ray: ModuleType, task: RemoteFunction, remote: RemoteJob) -> None:
        remote.log.unlink(missing_ok=True)
        self.ray = ray
        self.reference = task.remote(remote)

    def query_status(self) -> int | None:
        finished, _ = self.ray.wait([self.reference], timeout=0)
        if not finished:
            return None
        try:
            return int(self.ray.get(self.reference))
        except Exception as error:  # the worker died, the node is gone, the task was cancelled
            self.reason = f"Ray lost it: {str(error).strip().splitlines()[0]}"
            return NO_RESULT

    def send_signal(self, number: int) -> None:
        self.ray.cancel(self.reference, force=number == signal.SIGKILL)
