"""`hydra/launcher=slurm`: the jobs of a sweep as jobs of Slurm, handed over by submitit.

What Slurm was handed is noted beside the logs, so a launcher that was killed finds its waiting jobs
again. `cluster: local` (`hydra/launcher=slurm_local`) goes the same way without Slurm.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from filelock import FileLock
from omegaconf import OmegaConf
from rich.console import Console

from claims.text.phrases import count_noun
from clozelab.config import Composed, to_plain
from clozelab.launch.clusters import NO_RESULT, RemoteJob, refuse_secrets
from clozelab.launch.launcher import SweepLauncher, require_positive
from clozelab.launch.processes import Job, RemoteProcess
from clozelab.launch.slurm_queue import (
    IN_LINE,
    SlurmQueue,
    SlurmState,
    SlurmUnreachableError,
    query_slurm,
)
from clozelab.runs.find import HANDED_OVER_FILE
from clozelab.runs.record import write_json
from clozelab.terminal import say
from clozelab.text.packages import require_package
from clozelab.text.plain import Json, JsonObject, PlainDict, PlainMapping, ReadOnlyJson, read_json
from clozelab.training.stopping import TERMINATED

if TYPE_CHECKING:
    from submitit import Job as SubmititJob
    from submitit.core.core import PicklingExecutor

# that a file system shared by the nodes may need to show the result of a job that has ended
RESULT_SECONDS = 15.0
LOCK_SECONDS = 60.0
SILENT_HOURS = 6.0  # without an answer of Slurm, after which nobody waits for it any more


class Note(TypedDict):
    """What a folder of notes keeps of a job that was handed over."""

    job_id: str
    tasks: int
    words: list[str]  # the job's argv; the file's key has this name
    time: float


class SlurmLauncher(SweepLauncher):
    """Hands jobs to Slurm and waits.

    Args: conf/hydra/launcher/slurm.yaml; `parameters` are submitit's executor's.
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
        **parameters: Json,
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
        delay = parameters["signal_delay_s"]
        if grace_seconds >= delay:
            raise ValueError(
                f"hydra.launcher.grace_seconds is {grace_seconds}, and Slurm kills signal_delay_s ="
                f" {delay} after its warning: leave a job less time to save than that"
            )
        require_positive("timeout_min", parameters["timeout_min"], instead=" of minutes")
        if delay >= 60 * parameters["timeout_min"]:
            raise ValueError(
                f"hydra.launcher.timeout_min is {parameters['timeout_min']}, and Slurm warns"
                f" signal_delay_s = {delay} before that ends: leave a job time to work"
            )
        requested_memory(parameters.get("mem_gb"))
        self.cluster = cluster
        self.jobs_at_once = jobs_at_once
        self.poll_seconds = float(poll_seconds)
        self.grace_seconds = float(grace_seconds)
        self.parameters: JsonObject = to_plain(OmegaConf.create(parameters))
        self.queue: SlurmQueue | None = None  # of the real Slurm

    def run_jobs(self, jobs: Sequence[Job], composed: Sequence[Composed], console: Console) -> None:
        refuse_secrets(jobs, self.parameters)
        # on a file system that the nodes share
        self.folder = self.sweep_dir.resolve() / self.cluster
        threads = self.parameters.get("cpus_per_task")
        for job, config in zip(jobs, composed, strict=True):
            resources = job_resources(self.parameters, config, self.cluster)
            remote = RemoteJob(job, threads, self.grace_seconds, is_alone=self.cluster != "slurm")
            job.start = partial(self._hand_over, job, remote, resources)
        number = count_noun(len(jobs), "job")
        console.print(
            f"{self.verb}: {number} for {self.cluster}, notes and scripts in {self.folder}"
        )
        asking: AbstractContextManager[object] = nullcontext()
        if self.cluster == "slurm":
            self.queue = SlurmQueue(self.poll_seconds, report=partial(say, console=console))
            asking = self.queue
        with asking:
            self.run_pool(jobs, console, self.jobs_at_once)

    def _hand_over(self, job: Job, remote: RemoteJob, resources: PlainMapping) -> RemoteProcess:
        """Hand a job over and note it, or find the one for the same folder.

        ValueError where that one has other arguments.
        """
        key = job.folder or " ".join(remote.words)
        notes_file = self.folder / HANDED_OVER_FILE
        self.folder.mkdir(parents=True, exist_ok=True)
        # Whoever else launches into this folder waits, but not for a launcher that hangs. A file
        # called .lock would make a run folder of it, and a damaged one.
        with FileLock(notes_file.with_suffix(".lock"), timeout=LOCK_SECONDS):
            notes: dict[str, Note] = {}
            if notes_file.exists():
                notes = read_json(notes_file)
            earlier = self._earlier_job(notes.get(key))
            if earlier is None:
                submitted = self._submit(remote, resources)
                note: Note = {
                    "job_id": submitted.job_id,
                    "tasks": submitted.num_tasks,
                    "words": remote.words,
                    "time": time.time(),
                }
                write_json(notes_file, notes | {key: note})
                return SubmittedJob(submitted, self.queue)
            if notes[key]["words"] != remote.words:
                raise ValueError(
                    f"Slurm job {earlier.job_id} is in line for the same folder with other"
                    f" settings; wait for it, or: scancel {earlier.job_id}"
                )
            # It may have worked for long, or have ended a moment ago.
            job.is_resumed = True
            return SubmittedJob(earlier, self.queue)

    def _submit(self, remote: RemoteJob, resources: PlainMapping) -> SubmititJob[int]:
        """Let submitit hand a job over; returns its job."""
        from submitit.local.local import LocalExecutor
        from submitit.slurm.slurm import SlurmExecutor

        folder = self.folder / "%j"
        max_num_timeout = int(self.parameters["max_num_timeout"])
        executor: PicklingExecutor = LocalExecutor(folder, max_num_timeout=max_num_timeout)
        if self.cluster == "slurm":
            executor = SlurmExecutor(folder, max_num_timeout=max_num_timeout)
        executor.update_parameters(**resources)
        remote.log.unlink(missing_ok=True)
        submitted = executor.submit(remote)
        # A cluster that was set up anew counts from 1 again: results of an older job of this number
        # are not ours.
        for result in result_paths(submitted):
            result.unlink(missing_ok=True)
        return submitted

    def _earlier_job(self, note: Note | None) -> SubmititJob[int] | None:
        """Return submitit's job for a note, if Slurm still has it; None otherwise.

        ValueError where Slurm does not answer.
        """
        from submitit.slurm.slurm import SlurmJob

        if note is None or self.cluster == "local":
            return None
        job_id = note["job_id"]
        job = SlurmJob[int](self.folder / "%j", job_id, tasks=list(range(note["tasks"])))
        status, _ = read_results(job)
        if status not in (None, TERMINATED):
            return None
        try:
            state = query_slurm([job_id])[job_id]
        except SlurmUnreachableError as error:
            raise ValueError(
                f"Slurm does not answer ({error}), and job {job_id} for this folder may still run"
                " there; try again later"
            ) from error
        if state.has_ended:
            return None
        return job


def job_resources(parameters: ReadOnlyJson, config: Composed, cluster: str) -> PlainDict:
    """Return what one job asks for, in the words of submitit's executor of that cluster.

    Values of None are left out.
    """
    trainer = config.get("trainer") or {}
    nodes = int(trainer.get("num_nodes", 1))
    devices = int(trainer.get("devices", 1))
    requested = {key: value for key, value in parameters.items() if key != "max_num_timeout"}
    if isinstance(requested["setup"], str):
        requested["setup"] = [requested["setup"]]
    gpus = requested.pop("gpus_per_node")
    if gpus == "auto":
        gpus = 0
        if trainer.get("accelerator", "cpu") in ("gpu", "auto"):
            gpus = devices
    if cluster == "local":
        resources = _local_resources(requested, gpus, nodes)
    else:
        resources = _slurm_resources(requested, gpus, nodes, devices)
    return {key: value for key, value in resources.items() if value is not None}


def _local_resources(requested_resources: PlainMapping, gpus: int | None, nodes: int) -> PlainDict:
    """In the words of submitit's LocalExecutor."""
    if nodes > 1:
        raise ValueError(
            f"trainer.num_nodes is {nodes}: hydra/launcher=slurm_local has this machine only"
        )
    return {
        "timeout_min": requested_resources["timeout_min"],
        "tasks_per_node": 1,  # Lightning itself starts the other ranks
        "gpus_per_node": gpus,
        "setup": requested_resources["setup"],
        "signal_delay_s": requested_resources["signal_delay_s"],
    }


def _slurm_resources(
    requested_resources: PlainDict, gpus: int | None, nodes: int, devices: int
) -> PlainDict:
    """In the words of submitit's SlurmExecutor; what it calls as we do is passed on."""
    resources: PlainDict = {
        "time": requested_resources.pop("timeout_min"),
        "nodes": nodes,
        # Under srun Lightning takes its ranks from Slurm's tasks: one for each device.
        "ntasks_per_node": devices,
        "gpus_per_node": gpus or None,
    }
    resources["mem"] = requested_memory(requested_resources.pop("mem_gb"))
    resources |= requested_resources
    # Since Slurm 22.05 srun's tasks have one core each unless srun is told it too.
    resources["srun_args"] = None
    if requested_resources["cpus_per_task"]:
        resources["srun_args"] = [f"--cpus-per-task={requested_resources['cpus_per_task']}"]
    return resources


def requested_memory(gigabytes: Json) -> str | None:
    """In the words of sbatch's --mem; None where nothing is asked for.

    ValueError for what is no number, and for less than a megabyte.
    """
    if gigabytes is None:
        return None
    # Slurm takes no fractions, and 0 for all the memory of a machine.
    if not isinstance(gigabytes, int | float) or not 1 <= 1024 * gigabytes < math.inf:
        raise ValueError(
            f"hydra.launcher.mem_gb is {gigabytes!r}: give a number of gigabytes,"
            " or null to ask for none"
        )
    return f"{round(1024 * gigabytes)}MB"


def read_results(job: SubmititJob[int]) -> tuple[int | None, str]:
    """Return the first exit status of a job's ranks that is not 0, and why it failed or "".

    None while a rank has left none; NO_RESULT where submitit's own code failed in one.
    """
    from submitit.core.utils import FailedJobError

    if not all(path.exists() for path in result_paths(job)):
        return None, ""
    try:
        statuses = job.results()
    except FailedJobError as error:
        lines = str(error).splitlines()
        lines = [line for line in lines if line.strip() and not line.startswith("---")]
        last_line = "".join(lines[-1:]).strip()
        return NO_RESULT, f"job {job.job_id} ended without a result: {last_line}"
    return next((status for status in statuses if status), 0), ""


def result_paths(job: SubmititJob[int]) -> list[Path]:
    """Return the files into which the tasks of a job of submitit's write their results."""
    return [job.task(number).paths.result_pickle for number in range(job.num_tasks)]


class SubmittedJob(RemoteProcess):
    """A job that submitit has handed over.

    `queue` is of the real Slurm, None for processes of this machine.
    """

    def __init__(self, job: SubmititJob[int], queue: SlurmQueue | None) -> None:
        self.job = job
        self.queue = queue
        self.survives = queue is not None
        self._ended_at: float | None = None  # when it was first seen to have ended without a result
        if queue is not None:
            queue.watch(job.job_id)

    @property
    def is_queued(self) -> bool:
        if self.queue is None:
            return False
        state = self.queue.state(self.job.job_id)
        return state is not None and state.name in IN_LINE

    def query_status(self) -> int | None:
        # A network file system looks at a folder again when its mode is changed, to what it is.
        folder = self.job.paths.folder
        with suppress(OSError):
            folder.chmod(folder.stat().st_mode)
        status, self.reason = read_results(self.job)
        # Slurm says SIGTERM before it takes a job away and before it puts one in line again.
        may_come_back = self.queue is not None and status == TERMINATED
        if status is not None and not may_come_back:
            return status
        if self.queue is not None and self.queue.unreachable_seconds > 3600 * SILENT_HOURS:
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
        self.reason = self._fate(state, status)
        return NO_RESULT

    def _fate(self, state: SlurmState, status: int | None) -> str:
        """Say how a job ended that did not come to its own end."""
        fate = f"is lost: {state}"
        if self.queue is None:
            fate = "is lost: its process was killed"
        elif status is not None:
            fate = f"was stopped: {state}"
        elif state.name == "CANCELLED":  # its reason is why it had to wait
            fate = "was cancelled"
            if not self.job.paths.stdout.exists():
                fate = "was cancelled before it began"
        return f"job {self.job.job_id} {fate}; the same command takes it up"

    def _state(self) -> SlurmState | None:
        if self.queue is not None:
            return self.queue.state(self.job.job_id)
        if self.job.done():
            return SlurmState("FAILED")
        return SlurmState("RUNNING")

    def send_signal(self, number: int) -> None:  # noqa: ARG002  (submitit has one way to end a job)
        self.job.cancel(check=False)
