"""A job on another machine: what the launchers for Slurm and Ray share.

It is its own command line, as a child process of a worker (RemoteJob), which is pickled by name. So
the workers need clozelab installed and the same file system.

Hydra's own plugins for both start complete runs too, and end at the first failure.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from clozelab.launch.launcher import THREAD_VARIABLES
from clozelab.launch.processes import Job
from clozelab.text.plain import PlainMapping
from clozelab.text.redaction import redact_argv
from clozelab.training.host import process_rank
from clozelab.training.stopping import die_with_parent

POLL_SECONDS = 0.2
KILL_SECONDS = 10.0  # that a killed child may need to end
# exit status of a job that left no result (EX_TEMPFAIL: it may go well the next time)
NO_RESULT = 75


def refuse_secrets(jobs: Sequence[Job], parameters: PlainMapping) -> None:
    """ValueError for an argument that looks like a secret: a launcher's scripts would hold it."""
    texts: list[str] = []
    for job in jobs:
        texts += job.argv or ()
    texts += [f"{key}={value}" for key, value in parameters.items()]
    for text, redacted in zip(texts, redact_argv(texts), strict=True):
        if text != redacted:
            raise ValueError(
                f"{redacted} looks like a secret, which files for the cluster would hold;"
                " export it, say '${oc.env:NAME}'"
            )


class RemoteJob:
    """Runs a job's `clozelab ARGV` where the launcher stood.

    Several ranks of one job call it at once. Unusual: the child ignores SIGUSR1 and SIGUSR2, which
    Slurm sends to every process of a step; only this process answers them, by asking the child to
    save and stop. Rank N's output is appended to NAME.rank-N.log beside the job's log.

    Args:
        threads: of the child; None leaves that to the environment.
        grace_seconds: for the child to save after SIGTERM.
        is_alone: no rank of a Slurm step, whatever the variables of a step around the worker say.
    """

    _child: subprocess.Popen[bytes] | None = None

    def __init__(
        self, job: Job, threads: int | None, grace_seconds: float, *, is_alone: bool
    ) -> None:
        self.words = list(job.argv or ())  # the name in pickles of waiting jobs
        self.folder = Path.cwd()
        self.log = job.log.resolve()
        self.environment: dict[str, str] = {}
        if threads:
            self.environment = dict.fromkeys(THREAD_VARIABLES, str(threads))
        self.grace_seconds = grace_seconds
        self.is_alone = is_alone

    def __call__(self) -> int:
        """Run it in the worker; returns the exit status."""
        self._child = self._start()
        try:
            # Not `wait`: it would hold a lock that `stop`, called by a signal handler in this very
            # thread, needs.
            while (status := self._child.poll()) is None:
                time.sleep(POLL_SECONDS)
            return status
        except BaseException:
            self.stop()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        rank = 0
        environment = dict(os.environ)
        if self.is_alone:
            # Lightning would take its ranks from the Slurm job that this machine happens to be in.
            environment = {
                name: value for name, value in environment.items() if not name.startswith("SLURM_")
            }
        else:
            rank = process_rank()
        log = self.log
        if rank:
            log = log.with_suffix(f".rank-{rank}.log")
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "clozelab", *self.words],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | self.environment,
                preexec_fn=_prepare_child,
            )

    def stop(self) -> None:
        """Ask the child to save and stop, then make it."""
        steps = ((signal.SIGTERM, self.grace_seconds), (signal.SIGKILL, KILL_SECONDS))
        for number, seconds in steps:
            if self._child is None or _has_ended(self._child.pid):
                return
            self._child.send_signal(number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not _has_ended(self._child.pid):
                time.sleep(POLL_SECONDS)

    def checkpoint(self) -> object:
        """Stop cleanly, and tell submitit to put this same job in line again.

        submitit asks for it before a time limit or a preemption.
        """
        import submitit  # an extra: only a worker that submitit has started comes here

        self.stop()
        return submitit.helpers.DelayedSubmission(self)

    def __getstate__(self) -> dict[str, object]:
        # Pickled for the cluster, and no process can be.
        return self.__dict__ | {"_child": None}


def _prepare_child() -> None:
    die_with_parent()
    # A cluster's warning is for the worker, which then asks this child to stop.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended, without reaping it: its status is still to be asked for."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
