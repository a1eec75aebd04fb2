"""`hydra/launcher=processes`: the jobs of a sweep as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from claims.text.phrases import count_noun
from clozelab.addresses import allowed
from clozelab.config import Composed
from clozelab.launch.launcher import THREAD_VARIABLES, SweepLauncher, require_positive
from clozelab.launch.processes import ForkServer, Job
from clozelab.training.host import usable_cores

PRELOADED_PLACES = {
    "finetune": ("task.unit", "task.target"),
    "evaluate": ("measure.data", "measure.module", "measure.task.unit", "measure.task.target"),
}
"""Places of conf/targets.yaml whose modules a verb's jobs import by address."""
NO_THREADS_AT_IMPORT = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""pandas brings pyarrow, whose allocator starts a thread; a server that forks must have none."""


class ProcessLauncher(SweepLauncher):
    """Starts `python -m clozelab VERB ...` for each job that is not complete.

    Args: see conf/hydra/launcher/processes.yaml.
    """

    runs_here = True

    def __init__(self, jobs_at_once: int | str, grace_seconds: float, fork: bool) -> None:
        if jobs_at_once != "auto":
            require_positive("jobs_at_once", jobs_at_once, instead=" or auto")
        self.jobs_at_once = jobs_at_once
        self.grace_seconds = float(grace_seconds)
        self.fork = fork
        self.server: ForkServer | None = None

    def get_ready(self, config: Composed, num_jobs: int) -> None:
        """Start the fork server, whose imports take seconds."""
        if self.fork and num_jobs > 1 and is_one_cpu_process(config):
            environment = self._environment(num_jobs) | NO_THREADS_AT_IMPORT
            self.server = ForkServer("clozelab.cli", modules_of(self.verb), environment)

    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[Composed], console: Console) -> None:
        # The server was given its thread counts when it started; new processes get them here.
        at_once, _ = share_cores(self.jobs_at_once, self.master, len(jobs))
        environment = self._environment(len(jobs))
        for job, config in zip(jobs, composed, strict=True):
            job.environment = environment
            if not is_one_cpu_process(config):
                job.argv = None  # not to be forked
        threads = count_noun(int(environment["OMP_NUM_THREADS"]), "thread")
        console.print(
            f"{self.verb}: {count_noun(len(jobs), 'job')}, {at_once} at a time with {threads} each"
        )
        self.run_pool(jobs, console, at_once, self.server)

    def _environment(self, num_jobs: int) -> dict[str, str]:
        """Return how many threads a job's process may have, as environment variables."""
        _, share = share_cores(self.jobs_at_once, self.master, num_jobs)
        return {name: str(allowed_threads(share, name)) for name in THREAD_VARIABLES}


def allowed_threads(share: int, name: str = "OMP_NUM_THREADS") -> int:
    """Return the threads of a job's process.

    That is its share of the cores, or what the user's variable `name` allows if that is fewer.
    """
    # A number meant for a whole machine must not reach every job.
    limit = os.environ.get(name, "")
    if limit.isdigit() and int(limit) > 0:
        return min(share, int(limit))
    return share


def modules_of(verb: str) -> list[str]:
    """Return what the jobs of a sweep import, for a server to import once.

    Task and measure modules are imported by address, after a job has begun. They bring scipy and
    pandas, which took a sixth of a second of every fine-tuning before its first step.
    """
    modules = ["clozelab.launch.preloaded", f"clozelab.stages.{verb}"]
    for place in PRELOADED_PLACES.get(verb, ()):
        for address in allowed()[place]:
            module = address.rpartition(".")[0]
            if module not in modules:
                modules.append(module)
    return modules


def is_one_cpu_process(config: Composed) -> bool:
    """Say whether a job may be forked.

    A fork must not inherit a GPU context, and ranks start from a command line.
    """
    trainer = config.get("trainer")
    if not trainer:
        return False
    return bool(trainer["accelerator"] == "cpu" and trainer["devices"] * trainer["num_nodes"] == 1)


def share_cores(jobs_at_once: int | str, config: Composed, num_jobs: int) -> tuple[int, int]:
    """Return how many jobs run at a time, and the threads of each job's processes.

    They share the cores that this process may use.
    """
    # Jobs on GPUs run one at a time, and their ranks have all cores.
    cores = usable_cores()
    trainer = config.get("trainer") or {}
    is_cpu = trainer.get("accelerator", "cpu") == "cpu"
    devices = 1
    if is_cpu:
        devices = int(trainer.get("devices", 1))
    if jobs_at_once == "auto":
        jobs_at_once = 1
        if is_cpu:
            threads = int(trainer.get("threads") or 1)
            jobs_at_once = cores // (threads * devices)
    # 16 cores, 3 jobs of 2 ranks each: 3 at a time, with 16 // (3 * 2) = 2 threads a rank.
    at_once = max(1, min(int(jobs_at_once), num_jobs))
    return at_once, max(1, cores // (at_once * devices))
