"""`hydra/launcher=slurm`: each job of a sweep is a Slurm job, handed over by submitit.

Each job asks for what its own configuration trains on: a task for each device of a node, and its nodes. The hand-over
is noted beside the logs, so a launcher that was stopped or killed finds its waiting jobs again instead of handing them
over twice. Why not the plugin hydra-submitit-launcher: it hands over complete runs too, and ends at the first failure.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from clozelab.launch.forking import RemoteJob, require_package
from clozelab.launch.launcher import SweepLauncher
from clozelab.launch.processes import Job, ProcessPool, RemoteProcess
from clozelab.runs.record import write_json

CLUSTERS = ("slurm", "local")
UNKNOWN_SECONDS = 300.0
"""After so long a job that Slurm does not know is taken for gone."""
ENDED_WITHOUT_RESULT = 75
"""Exit status of a job that left no result (EX_TEMPFAIL: it may go well the next time)."""


class SlurmLauncher(SweepLauncher):
    """Hands jobs to Slurm and waits for them.

    Args:
        cluster: slurm, or local (the same path without Slurm, on this machine: for trying it out).
        jobs_at_once: so many jobs in the queue or running, at most.
        poll_seconds: between two questions to Slurm; results are noticed at once.
        grace_seconds: what a job gets to save when its time ends; less than signal_delay_s.
        gpus_per_node: a number, or auto: one for each device where jobs train on GPUs.
        Others: as submitit calls them; None is left to Slurm.
    """

    stopped_words = (
        "stopped waiting; jobs that Slurm has go on (scancel ends them), and the same command finds them again"
    )

    def __init__(
        self, cluster: str, jobs_at_once: int, poll_seconds: float, grace_seconds: float, **parameters: Any
    ) -> None:
        super().__init__()
        if cluster not in CLUSTERS:
            raise ValueError(f"hydra.launcher.cluster is {cluster!r}: choose one of {', '.join(CLUSTERS)}")
        require_package("submitit", "slurm", "hydra/launcher=slurm")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "hydra/launcher=slurm: there is no sbatch here; start the sweep on a login node of the cluster"
            )
        if not isinstance(jobs_at_once, int) or jobs_at_once < 1:
            raise ValueError(f"hydra.launcher.jobs_at_once is {jobs_at_once!r}: give a positive number")
        if grace_seconds >= parameters["signal_delay_s"]:
            raise ValueError(
                f"hydra.launcher.grace_seconds is {grace_seconds}, and Slurm kills signal_delay_s ="
                f" {parameters['signal_delay_s']} after its warning: leave a job less time to save than that"
            )
        self.cluster, self.jobs_at_once = cluster, jobs_at_once
        self.poll_seconds, self.grace_seconds = float(poll_seconds), float(grace_seconds)
        plain = OmegaConf.to_container(OmegaConf.create(parameters), resolve=True)
        assert isinstance(plain, dict)
        self.parameters: dict[str, Any] = {str(key): value for key, value in plain.items()}

    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console) -> None:
        assert self.config is not None
        folder = Path(str(self.config.hydra.sweep.dir)).resolve() / self.cluster
        parameters = dict(self.parameters)
        queue = SlurmQueue(folder, self.cluster, int(parameters.pop("max_num_timeout")), self.poll_seconds)
        for job, config in zip(jobs, composed, strict=True):
            resources = job_resources(parameters, config, self.cluster)
            remote = self.remote_job(
                job, threads=self.parameters.get("cpus_per_task"), is_alone=self.cluster != "slurm"
            )
            job.start = partial(queue.start, job, remote, resources)
        console.print(f"{self.verb}: {len(jobs)} jobs for {self.cluster}, notes and scripts in {folder}")
        ProcessPool(jobs, at_once=self.jobs_at_once, grace_seconds=self.grace_seconds, console=console).run()


def job_resources(parameters: Mapping[str, Any], config: DictConfig, cluster: str) -> dict[str, Any]:
    """What one job asks for, in the words of submitit's executor of that cluster; values of None are left out."""
    trainer = config.get("trainer") or {}
    devices, nodes = int(trainer.get("devices", 1)), int(trainer.get("num_nodes", 1))
    asked = dict(parameters)
    gpus, minutes, memory = (asked.pop(key) for key in ("gpus_per_node", "timeout_min", "mem_gb"))
    if gpus == "auto":
        gpus = devices if trainer.get("accelerator", "cpu") in ("gpu", "auto") else 0
    if cluster == "local":
        if nodes > 1:
            raise ValueError(f"trainer.num_nodes is {nodes}: hydra/launcher=slurm_local has this machine only")
        # One task: Lightning itself starts the other ranks.
        resources = {"timeout_min": minutes, "tasks_per_node": 1, "gpus_per_node": gpus, "setup": asked["setup"]}
        resources["signal_delay_s"] = asked["signal_delay_s"]
    else:
        # Under srun Lightning takes its ranks from Slurm's tasks: one for each device.
        resources = {"time": minutes, "nodes": nodes, "ntasks_per_node": devices, "gpus_per_node": gpus or None}
        resources |= {"mem": f"{memory}GB" if memory else None, **asked}
    return {key: value for key, value in resources.items() if value is not None}


class SlurmQueue:
    """Hands jobs over and remembers which: folder/handed_over.json, under a lock that two launchers share.

    Args:
        folder: on a file system that the nodes share; submitit's scripts and pickles lie there too.
        max_num_timeout: how often a job that ran out of time is put in line again.
    """

    def __init__(self, folder: Path, cluster: str, max_num_timeout: int, poll_seconds: float) -> None:
        from submitit.local.local import LocalExecutor  # an extra
        from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher, SlurmJob

        self.folder, self.cluster, self.max_num_timeout = folder, cluster, max_num_timeout
        self.executors = {"slurm": SlurmExecutor, "local": LocalExecutor}
        self.known = SlurmJob
        # One question to Slurm for all jobs; submitit's own pace is up to ten minutes.
        SlurmJob.watcher = SlurmInfoWatcher(delay_s=int(poll_seconds))

    def start(self, job: Job, remote: RemoteJob, resources: Mapping[str, Any]) -> RemoteProcess:
        """Hand a job over, or find the one that waits or runs for the same folder.

        Raises:
            ValueError: that one was started with other words.
        """
        key = job.folder or " ".join(remote.words)
        with self._notes() as notes:
            there = self._still_there(notes.get(key))
            if there is not None:
                if notes[key]["words"] != remote.words:
                    raise ValueError(
                        f"Slurm job {there.job_id} is in line for the same folder with other settings;"
                        f" wait for it, or: scancel {there.job_id}"
                    )
                return SubmittedJob(there, self.cluster)
            executor = self.executors[self.cluster](self.folder / "%j", max_num_timeout=self.max_num_timeout)
            executor.update_parameters(**resources)
            remote.log.unlink(missing_ok=True)
            handed = executor.submit(remote)
            notes[key] = {
                "job_id": handed.job_id, "tasks": handed.num_tasks, "words": remote.words, "time": time.time()
            }  # fmt: skip
            return SubmittedJob(handed, self.cluster)

    def _still_there(self, note: Mapping[str, Any] | None) -> Any:
        """submitit's job for a note, if Slurm still has it; None otherwise."""
        if note is None or self.cluster == "local":
            return None
        job: Any = self.known(self.folder / "%j", note["job_id"], tasks=list(range(note["tasks"])))
        if job.done(force_check=True):
            return None
        # A cluster without accounting does not know old jobs, and a job of a moment ago is not in the books yet.
        is_unknown = job.state.upper() == "UNKNOWN" and time.time() - note["time"] > UNKNOWN_SECONDS
        return None if is_unknown else job

    @contextmanager
    def _notes(self) -> Iterator[dict[str, Any]]:
        """What has been handed over, to be changed in place; whoever else launches into this folder waits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "handed_over.json"
        with FileLock(self.folder / ".lock"):
            notes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            before = json.dumps(notes)
            yield notes
            if json.dumps(notes) != before:
                write_json(path, notes)


class SubmittedJob(RemoteProcess):
    """A job that submitit has handed over."""

    def __init__(self, job: Any, cluster: str) -> None:
        self.job, self.survives = job, cluster == "slurm"

    def ask(self) -> int | None:
        return self._outcome() if self.job.done() else None

    def _outcome(self) -> int:
        """The first status that is not 0, over all ranks."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            return next((status for status in self.job.results() if status), 0)
        except (FailedJobError, UncompletedJobError) as error:
            said = [line for line in str(error).splitlines() if line.strip() and not line.startswith("---")]
            words = said[-1].strip() if isinstance(error, FailedJobError) and said else ""
            self.reason = f"job {self.job.job_id} ended as {self.job.state} without a result {words}".strip()
            return ENDED_WITHOUT_RESULT

    def send_signal(self, number: int) -> None:  # noqa: ARG002  (submitit has one way to end a job)
        self.job.cancel(check=False)
