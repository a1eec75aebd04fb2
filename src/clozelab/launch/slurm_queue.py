"""What Slurm knows of our jobs: that job 17 is RUNNING, or that nobody knows it any more.

Three commands are asked, each only where the one before it knows nothing:

1. `squeue`: jobs of now, and for some minutes those that have ended.
2. `sacct`: that older ones have ended, on a cluster that keeps accounts. Many small ones do not.
3. `scontrol show job`: the controller's last word, before a job is called lost.

submitit asks `sacct` alone: without accounts its jobs stay "unknown" for ever, and each question
leaves a warning.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

COMMAND_SECONDS = 60.0  # for one command; Slurm's own give up after 20
LOST = "LOST"  # our word for a job that nobody knows
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",  # without being put in line again: then it would be PENDING
        "REVOKED",  # another cluster of a federation has it
        "TIMEOUT",
        LOST,
    }
)
# A job that waits for its nodes, for the first time or again.
IN_LINE = frozenset(
    {
        "CONFIGURING",
        "PENDING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
    }
)
# Parts of Slurm's reasons for which a waiting job never starts by itself.
NEVER_STARTS = (
    "held",
    "Held",
    "BadConstraints",
    "DependencyNeverSatisfied",
    "InvalidQOS",
    "JobHoldMaxRequeue",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
)
# States of a job that is held until somebody releases it.
HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT"})
# in what squeue and scontrol say of a job that the controller does not know
NO_SUCH_JOB = "Invalid job id"


class SlurmState(NamedTuple):
    """Slurm's word for how a job stands (or LOST), and its reason, which may be empty."""

    name: str
    reason: str = ""

    @property
    def has_ended(self) -> bool:
        return self.name in ENDED

    @property
    def never_starts(self) -> bool:
        if self.name in HELD:
            return True
        if self.name != "PENDING":
            return False
        return any(reason in self.reason for reason in NEVER_STARTS)

    def __str__(self) -> str:
        if self.name == LOST:
            return "Slurm does not know it any more"
        if self.reason:
            return f"Slurm says {self.name} ({self.reason})"
        return f"Slurm says {self.name}"


class SlurmUnreachableError(Exception):
    """Slurm gave no answer. The jobs go on without its controller."""


def query_slurm(job_ids: Collection[str]) -> dict[str, SlurmState]:
    """Return the state of each of these jobs.

    Raises SlurmUnreachableError where the controller does not answer.
    """
    states = _from_squeue(job_ids)
    unknown = [job_id for job_id in job_ids if job_id not in states]
    if unknown:
        # Accounts may say for ever that a job runs whose end they have missed.
        accounts = _from_sacct(unknown)
        states |= {job_id: state for job_id, state in accounts.items() if state.has_ended}
    for job_id in unknown:
        if job_id not in states:
            states[job_id] = _from_scontrol(job_id)
    return states


def _from_squeue(job_ids: Collection[str]) -> dict[str, SlurmState]:
    """Ask for the jobs of now, and for some minutes those that have ended."""
    # job number | state | reason
    command = ["squeue", "--noheader", "--states=all", "--format=%A|%T|%r"]
    done = _run([*command, f"--jobs={','.join(job_ids)}"])
    if done.returncode and NO_SUCH_JOB not in done.stderr:
        raise SlurmUnreachableError(f"squeue: {_last_line(done.stderr)}")
    return _parse_states(done.stdout, job_ids)


def _from_sacct(job_ids: Sequence[str]) -> dict[str, SlurmState]:
    """Ask for what the cluster's accounts say of these jobs.

    Empty without accounts, and where their database is down: then the controller's word counts.
    """
    command = ["sacct", "--noheader", "--parsable2", "--format=JobID,State"]
    try:
        done = _run([*command, f"--jobs={','.join(job_ids)}"])
    except SlurmUnreachableError:
        return {}
    if done.returncode:
        return {}
    return _parse_states(done.stdout, job_ids)


def _from_scontrol(job_id: str) -> SlurmState:
    """Ask the controller for its last word: LOST where it does not know the job."""
    done = _run(["scontrol", "--oneliner", "show", "job", job_id])
    # One line of NAME=VALUE, such as "JobId=17 JobName=mlm JobState=PENDING Reason=Priority".
    name = re.search(r"\bJobState=(\S+)", done.stdout)
    reason = re.search(r"\bReason=(\S+)", done.stdout)
    if done.returncode == 0 and name is not None:
        if reason is None:
            return _slurm_state(name[1])
        return _slurm_state(name[1], reason[1])
    if NO_SUCH_JOB in done.stderr + done.stdout:
        return SlurmState(LOST)
    raise SlurmUnreachableError(f"scontrol: {_last_line(done.stderr)}")


def _parse_states(output: str, job_ids: Collection[str]) -> dict[str, SlurmState]:
    """Read lines of JOB|STATE or JOB|STATE|REASON.

    Those of a job's steps (17.batch) and of other jobs are left out.
    """
    states = {}
    for line in output.splitlines():
        job_id, *columns = line.split("|")
        if job_id in job_ids and columns:
            states[job_id] = _slurm_state(*columns[:2])
    return states


def _slurm_state(name: str, reason: str = "") -> SlurmState:
    # sacct says "CANCELLED by 1000".
    first_word = "".join(name.split()[:1])
    if reason == "None":
        return SlurmState(first_word)
    return SlurmState(first_word, reason)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's; SlurmUnreachableError where it is missing, or takes too long."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise SlurmUnreachableError(f"there is no {command[0]} on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise SlurmUnreachableError(
            f"{command[0]}: no answer in {COMMAND_SECONDS:.0f} s"
        ) from error


def _last_line(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if line.strip():
            lines.append(line.strip())
    if lines:
        return lines[-1]
    return "it failed without a word"


class SlurmQueue:
    """The states of our jobs, asked for all at once every `poll_seconds` by a thread of its own.

    So a controller that answers late (its commands wait 20 s for it) holds up nobody. `report`
    takes a sentence for the terminal: that Slurm does not answer, that it answers again, that a job
    is in line again or will never start. Each is said once.
    """

    def __init__(self, poll_seconds: float, report: Callable[[str], None]) -> None:
        self.poll_seconds = poll_seconds
        self.report = report
        self._states: dict[str, SlurmState | None] = {}  # None: not asked yet
        self._silent_since: float | None = None
        self._stuck: set[str] = set()  # jobs of which it was said that they never start
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._poll, name="slurm queue", daemon=True)

    def __enter__(self) -> SlurmQueue:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        # Not joined: it may stand in a command for a while, and ends with this process.
        self._is_over = True
        self._wake.set()

    def watch(self, job_id: str) -> None:
        """Ask for this job as well, and soon."""
        self._states.setdefault(job_id, None)
        self._wake.set()

    def state(self, job_id: str) -> SlurmState | None:
        """As of the last answer; None before the first one."""
        return self._states.get(job_id)

    @property
    def unreachable_seconds(self) -> float:
        """For how long Slurm has given no answer."""
        since = self._silent_since  # the thread that asks may set it to None at any moment
        if since is None:
            return 0.0
        return time.monotonic() - since

    def _poll(self) -> None:
        while not self._is_over:
            self._wake.clear()
            self._query()
            self._wake.wait(self.poll_seconds)
            # Jobs are handed over one after the other: one question for those of a moment.
            time.sleep(min(1.0, self.poll_seconds))

    def _query(self) -> None:
        """Ask for all jobs that are not lost, and report what is new."""
        states = list(self._states.items())
        job_ids = [job_id for job_id, state in states if state is None or state.name != LOST]
        if not job_ids:
            return
        queried_at = time.monotonic()
        try:
            answer = query_slurm(job_ids)
        except SlurmUnreachableError as error:
            if self._silent_since is None:
                self._silent_since = queried_at
                self.report(
                    f"Slurm does not answer ({error}); its jobs go on, and it is asked again"
                    " and again"
                )
            return
        for job_id, state in answer.items():
            before = self._states[job_id]
            if before is not None and before.name not in IN_LINE and state.name in IN_LINE:
                self.report(f"job {job_id} is in line again: {state}")
        self._states.update(answer)
        if self._silent_since is not None:
            self.report(f"Slurm answers again, after {self.unreachable_seconds:.0f} s")
            self._silent_since = None
        for job_id, state in answer.items():
            if state.never_starts:
                self._report_stuck(job_id, state)

    def _report_stuck(self, job_id: str, state: SlurmState) -> None:
        if job_id in self._stuck:
            return
        self._stuck.add(job_id)
        choices = f"scontrol release {job_id} where it is held, or scancel {job_id}"
        reason = state.reason
        if not reason:
            reason = state.name
        self.report(f"Slurm job {job_id} will not start by itself ({reason}): {choices}")
