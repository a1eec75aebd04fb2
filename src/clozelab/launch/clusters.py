"""Sweeps on other machines: `hydra/launcher=slurm`, through submitit, and `hydra/launcher=ray`.

A job there is its own command line, as a child process of a worker (RemoteJob). It is pickled by
name, so the workers need clozelab installed and the same file system. Hydra's own plugins for both
start complete runs too, and end at the first failure. What Slurm was handed is noted beside the
logs, so a launcher that was killed finds its waiting jobs again. Ray only shares out the machines:
it retries nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from clozelab.launch.launcher import THREAD_VARIABLES, SweepLauncher, require_positive
from clozelab.launch.processes import Job, ProcessPool, RemoteProcess
from clozelab.launch.slurm_queue import JobState, SlurmQueue, SlurmSilentError, ask_slurm
from clozelab.runs.record import write_json
from clozelab.runs.redaction import redacted_words
from clozelab.training.host import process_rank, require_package, usable_cores
from clozelab.training.stopping import die_with_parent

POLL_SECONDS = 0.2
# that a file system shared by the nodes may need to show the result of a job that has ended
RESULT_SECONDS = 15.0
LOCK_SECONDS = 60.0
SILENT_HOURS = 6.0  # without an answer of Slurm, after which nobody waits for it any more
# exit status of a job that left no result (EX_TEMPFAIL: it may go well the next time)
NO_RESULT = 75


class RemoteJob:
    """Runs a job's `clozelab WORDS` where the launcher stood; several ranks of one job call it at
    once.

    Unusual: the child ignores SIGUSR1 and SIGUSR2, which Slurm sends to every process of a step;
    only this process answers them, by asking the child to save and stop. Rank N's output is
    appended to NAME.rank-N.log beside the job's log. `is_alone`: no rank of a Slurm step, whatever
    the variables of a step around the worker say.
    """

    _child: subprocess.Popen[bytes] | None = None

    def __init__(
        self, job: Job, threads: int | None, grace_seconds: float, *, is_alone: bool
    ) -> None:
        self.words, self.folder, self.log = list(job.words or ()), Path.cwd(), job.log.resolve()
        self.environment = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
        self.grace_seconds, self.is_alone = grace_seconds, is_alone

    def __call__(self) -> int:
        """Exit status."""
        rank = 0 if self.is_alone else process_rank()
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not (self.is_alone and key[:6] == "SLURM_")
        }
        log = self.log.with_suffix(f".rank-{rank}.log") if rank else self.log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "clozelab", *self.words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=inherited | self.environment,
                preexec_fn=_be_a_child,
            )
        try:
            # Not `wait`: it would hold a lock that `stop`, called by a signal handler in this very
            # thread, needs.
            while (status := self._child.poll()) is None:
                time.sleep(POLL_SECONDS)
            return status
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask the child to save and stop, then make it."""
        for number, seconds in ((signal.SIGTERM, self.grace_seconds), (signal.SIGKILL, 10.0)):
            if self._child is None or _has_ended(self._child.pid):
                return
            self._child.send_signal(number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not _has_ended(self._child.pid):
                time.sleep(POLL_SECONDS)

    def checkpoint(self) -> Any:
        """submitit asks before a time limit or a preemption: stop cleanly, and put this same job in
        line again.
        """
        import submitit  # an extra: only a worker that submitit has started comes here

        self.stop()
        return submitit.helpers.DelayedSubmission(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_child": None}


def _be_a_child() -> None:
    die_with_parent()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class SlurmLauncher(SweepLauncher):
    """Hands jobs to Slurm and waits. Args: conf/hydra/launcher/slurm.yaml; `parameters` are
    submitit's executor's.
    """

    stopped_words = (
        "stopped waiting; jobs that Slurm has go on (scancel ends them); the same command finds"
        " them again"
    )

    def __init__(
        self,
        cluster: str,
        jobs_at_once: int,
        poll_seconds: float,
        grace_seconds: float,
        **parameters: Any,
    ) -> None:
        require_package("submitit", "slurm", "hydra/launcher=slurm")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise ValueError(
                "hydra/launcher=slurm: there is no sbatch here; start the sweep on a cluster's"
                " login node"
            )
        require_positive("jobs_at_once", jobs_at_once)
        if cluster not in ("slurm", "local"):
            raise ValueError(f"hydra.launcher.cluster is {cluster!r}: choose slurm or local")
        if grace_seconds >= parameters["signal_delay_s"]:
            kills = f"Slurm kills signal_delay_s = {parameters['signal_delay_s']} after its warning"
            less = "leave a job less time to save than that"
            raise ValueError(
                f"hydra.launcher.grace_seconds is {grace_seconds}, and {kills}: {less}"
            )
        self.cluster, self.jobs_at_once = cluster, jobs_at_once
        self.poll_seconds, self.grace_seconds = float(poll_seconds), float(grace_seconds)
        plain: Any = OmegaConf.to_container(OmegaConf.create(parameters), resolve=True)
        self.parameters: dict[str, Any] = plain
        self.queue: SlurmQueue | None = None  # of the real Slurm

    def run_jobs(
        self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console
    ) -> None:
        given = [word for job in jobs for word in job.words or ()] + [
            f"{k}={v}" for k, v in self.parameters.items()
        ]
        for word, shown in zip(given, redacted_words(given), strict=True):
            if word != shown:
                told = (
                    "looks like a secret, which files for the cluster would hold; export it, say"
                    " '${oc.env:NAME}'"
                )
                raise ValueError(f"{shown} {told}")
        # on a file system that the nodes share
        self.folder = self.sweep_dir.resolve() / self.cluster
        threads = self.parameters.get("cpus_per_task")
        for job, config in zip(jobs, composed, strict=True):
            resources = job_resources(self.parameters, config, self.cluster)
            remote = RemoteJob(job, threads, self.grace_seconds, is_alone=self.cluster != "slurm")
            job.start = partial(self._hand_over, job, remote, resources)
        console.print(
            f"{self.verb}: {len(jobs)} jobs for {self.cluster}, notes and scripts in {self.folder}"
        )
        if self.cluster == "slurm":
            say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
            self.queue = SlurmQueue(self.poll_seconds, report=say)
        with nullcontext() if self.queue is None else self.queue:
            pool = ProcessPool(
                jobs,
                at_once=self.jobs_at_once,
                grace_seconds=self.grace_seconds,
                console=console,
                place=self.place,
            )
            pool.run()

    def _hand_over(
        self, job: Job, remote: RemoteJob, resources: Mapping[str, Any]
    ) -> RemoteProcess:
        """Hand a job over and note it, or find the one for the same folder; ValueError where that
        has other words.
        """
        from submitit.local.local import LocalExecutor
        from submitit.slurm.slurm import SlurmExecutor

        key, path = job.folder or " ".join(remote.words), self.folder / "handed_over.json"
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whoever else launches into this folder waits, but not for a launcher that hangs.
        with FileLock(self.folder / ".lock", timeout=LOCK_SECONDS):
            notes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            earlier = self._still_there(notes.get(key))
            if earlier is not None:
                if notes[key]["words"] != remote.words:
                    said = (
                        f"Slurm job {earlier.job_id} is in line for the same folder with other"
                        " settings"
                    )
                    raise ValueError(f"{said}; wait for it, or: scancel {earlier.job_id}")
                return SubmittedJob(earlier, self.queue)
            kind = SlurmExecutor if self.cluster == "slurm" else LocalExecutor
            executor: Any = kind(
                self.folder / "%j", max_num_timeout=int(self.parameters["max_num_timeout"])
            )
            executor.update_parameters(**resources)
            remote.log.unlink(missing_ok=True)
            handed = executor.submit(remote)
            # A cluster that was set up anew counts from 1 again: results of an older job of this
            # number are not ours.
            for result in result_paths(handed):
                result.unlink(missing_ok=True)
            note = {
                "job_id": handed.job_id,
                "tasks": handed.num_tasks,
                "words": remote.words,
                "time": time.time(),
            }
            write_json(path, notes | {key: note})
            return SubmittedJob(handed, self.queue)

    def _still_there(self, note: Mapping[str, Any] | None) -> Any:
        """submitit's job for a note, if Slurm still has it; None otherwise. ValueError where Slurm
        does not answer."""
        from submitit.slurm.slurm import SlurmJob

        if note is None or self.cluster == "local":
            return None
        job_id = note["job_id"]
        job = SlurmJob[int](self.folder / "%j", job_id, tasks=list(range(note["tasks"])))
        if all(path.exists() for path in result_paths(job)):
            return None
        try:
            state = ask_slurm([job_id])[job_id]
        except SlurmSilentError as error:
            said = (
                f"Slurm does not answer ({error}), and job {job_id} for this folder may still run"
                " there"
            )
            raise ValueError(f"{said}; try again later") from error
        if state.has_ended:
            return None
        return job


def job_resources(
    parameters: Mapping[str, Any], config: DictConfig, cluster: str
) -> dict[str, Any]:
    """What one job asks for, in the words of submitit's executor of that cluster; values of None
    are left out.
    """
    trainer = config.get("trainer") or {}
    devices, nodes = int(trainer.get("devices", 1)), int(trainer.get("num_nodes", 1))
    asked = {key: value for key, value in parameters.items() if key != "max_num_timeout"}
    gpus, minutes, memory = (asked.pop(key) for key in ("gpus_per_node", "timeout_min", "mem_gb"))
    if gpus == "auto":
        gpus = devices if trainer.get("accelerator", "cpu") in ("gpu", "auto") else 0
    if cluster == "local":
        if nodes > 1:
            raise ValueError(
                f"trainer.num_nodes is {nodes}: hydra/launcher=slurm_local has this machine only"
            )
        # One task: Lightning itself starts the other ranks.
        resources = {
            "timeout_min": minutes,
            "tasks_per_node": 1,
            "gpus_per_node": gpus,
            "setup": asked["setup"],
        }
        resources["signal_delay_s"] = asked["signal_delay_s"]
    else:
        # Under srun Lightning takes its ranks from Slurm's tasks: one for each device.
        resources = {
            "time": minutes,
            "nodes": nodes,
            "ntasks_per_node": devices,
            "gpus_per_node": gpus or None,
        }
        resources |= {"mem": f"{memory}GB" if memory else None, **asked}
        # Since Slurm 22.05 srun's tasks have one core each unless srun is told it too.
        resources["srun_args"] = (
            [f"--cpus-per-task={asked['cpus_per_task']}"] if asked["cpus_per_task"] else None
        )
    return {key: value for key, value in resources.items() if value is not None}


def result_paths(job: Any) -> list[Path]:
    """The files into which the tasks of a job of submitit's write their results."""
    return [job.task(number).paths.result_pickle for number in range(job.num_tasks)]


class SubmittedJob(RemoteProcess):
    """A job that submitit has handed over; `queue` is of the real Slurm, None for processes of this
    machine."""

    def __init__(self, job: Any, queue: SlurmQueue | None) -> None:
        self.job, self.queue = job, queue
        self.survives = queue is not None
        self._ended_at: float | None = None  # when it was first seen to have ended without a result
        if queue is not None:
            queue.watch(job.job_id)

    def ask(self) -> int | None:
        _refresh(self.job.paths.folder)
        if all(path.exists() for path in result_paths(self.job)):
            return self._status_of_results()
        if self.queue is not None and self.queue.silent_seconds > 3600 * SILENT_HOURS:
            self.reason = (
                f"Slurm has not answered for {SILENT_HOURS:.0f} hours; job {self.job.job_id} may"
                " still run there, and the same command finds it again"
            )
            return NO_RESULT

        # Results may show late, and a job that has failed may be put in line again: both get a
        # little time.
        state = self._state()
        if state is None or not state.has_ended:
            self._ended_at = None
            return None
        if self._ended_at is None:
            self._ended_at = time.monotonic()
        if time.monotonic() - self._ended_at < RESULT_SECONDS:
            return None
        end = str(state)
        if self.queue is None:
            end = "its process was killed"
        self.reason = (
            f"job {self.job.job_id} is lost: {end}, and it left no result; the same command takes"
            " it up"
        )
        return NO_RESULT

    def _state(self) -> JobState | None:
        if self.queue is not None:
            return self.queue.state(self.job.job_id)
        if self.job.done():
            return JobState("FAILED")
        return JobState("RUNNING")

    def _status_of_results(self) -> int:
        """The first exit status of its ranks that is not 0; NO_RESULT where submitit's own code
        failed in one."""
        from submitit.core.utils import FailedJobError

        try:
            statuses = self.job.results()
        except FailedJobError as error:
            lines = [
                line
                for line in str(error).splitlines()
                if line.strip() and not line.startswith("---")
            ]
            self.reason = (
                f"job {self.job.job_id} ended without a result: {''.join(lines[-1:]).strip()}"
            )
            return NO_RESULT
        return next((status for status in statuses if status), 0)

    def send_signal(self, number: int) -> None:  # noqa: ARG002  (submitit has one way to end a job)
        self.job.cancel(check=False)


def _refresh(folder: Path) -> None:
    """Make a network file system look at a folder again; changing a folder's mode, to what it is,
    does that."""
    with suppress(OSError):
        folder.chmod(folder.stat().st_mode)


class RayLauncher(SweepLauncher):
    """Hands jobs to Ray and waits for them. Args: as conf/hydra/launcher/ray.yaml says of each."""

    def __init__(
        self, address: str | None, num_cpus: int, num_gpus: float | str, grace_seconds: float
    ) -> None:
        require_package("ray", "ray", "hydra/launcher=ray")
        require_positive("num_cpus", num_cpus)
        self.address, self.num_cpus, self.num_gpus, self.grace_seconds = (
            address,
            num_cpus,
            num_gpus,
            grace_seconds,
        )

    def run_jobs(
        self, jobs: Sequence[Job], composed: Sequence[DictConfig], console: Console
    ) -> None:
        needs = [gpus_of(config, self.num_gpus) for config in composed]
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray  # an extra, and seconds of start-up

        own = (
            {"num_cpus": usable_cores(), "include_dashboard": False} if self.address is None else {}
        )
        ray.init(address=self.address, log_to_driver=False, configure_logging=False, **own)
        try:
            task = ray.remote(max_retries=0)(run_remote_job)
            for job, gpus in zip(jobs, needs, strict=True):
                remote = RemoteJob(job, self.num_cpus, self.grace_seconds, is_alone=True)
                job.start = partial(
                    RayTask, ray, task.options(num_cpus=self.num_cpus, num_gpus=gpus), remote
                )
            console.print(f"{self.verb}: {len(jobs)} jobs for Ray")
            how: Any = {
                "at_once": len(jobs),
                "grace_seconds": self.grace_seconds,
                "place": self.place,
            }
            ProcessPool(jobs, console=console, **how).run()
        finally:
            ray.shutdown()


def gpus_of(config: DictConfig, num_gpus: float | str) -> float:
    """GPUs that one job asks Ray for. Raises ValueError for a job that needs several nodes: a Ray
    task has one.
    """
    trainer = config.get("trainer") or {}
    if int(trainer.get("num_nodes", 1)) > 1:
        instead = (
            "hydra/launcher=ray runs each job on one node; hydra/launcher=slurm runs one over"
            " several"
        )
        raise ValueError(f"trainer.num_nodes is {trainer['num_nodes']}: {instead}")
    if num_gpus != "auto":
        return float(num_gpus)
    return (
        float(trainer.get("devices", 1))
        if trainer.get("accelerator", "cpu") in ("gpu", "auto")
        else 0.0
    )


def run_remote_job(job: RemoteJob) -> int:
    return job()


class RayTask(RemoteProcess):
    """A job that Ray has."""

    ask_seconds = 0.2

    def __init__(self, ray: Any, task: Any, remote: RemoteJob) -> None:
        remote.log.unlink(missing_ok=True)
        self.ray, self.reference = ray, task.remote(remote)

    def ask(self) -> int | None:
        if not self.ray.wait([self.reference], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.reference))
        except Exception as error:  # the worker died, the node is gone, the task was cancelled
            self.reason = f"Ray lost it: {str(error).strip().splitlines()[0]}"
            return NO_RESULT

    def send_signal(self, number: int) -> None:
        self.ray.cancel(self.reference, force=number == signal.SIGKILL)
