"""What runs on another machine for one job of a sweep: the job's own command line, as a child process.

Slurm (through submitit) and Ray pickle it by name, so their workers need clozelab installed and the same file system.
Unusual: the child ignores SIGUSR1 and SIGUSR2, which Slurm sends to every process of a step; only this process answers
them, by asking the child to save and stop.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.ledger.launching.forking import die_with_parent
from clozelab.ledger.run import process_rank

POLL_SECONDS = 0.2


def require_package(package: str, extra: str, what: str) -> None:
    """ValueError with the command that installs an extra, where its package is missing; `what` needs it."""
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # not even the package that it lies in
        found = None
    if found is None:
        raise ValueError(
            f"{what} needs the package {package!r}, which is not installed: pip install 'clozelab[{extra}]'"
            f" (in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
        )


class RemoteJob:
    """Runs `clozelab WORDS` in `folder` and returns its exit status; several ranks of one job call it at once.

    Args:
        words: command line after `clozelab`.
        folder: working directory of the launcher, on a file system that the workers share.
        log: rank 0's output is appended to it, rank N's to NAME.rank-N.log beside it.
        environment: added to the worker's own.
        grace_seconds: what the child gets to save.
        is_alone: no rank of a Slurm step, whatever the variables of a step around the worker say.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        grace_seconds: float,
        is_alone: bool,
    ) -> None:
        self.words, self.folder, self.log = list(words), folder, log
        self.environment, self.grace_seconds, self.is_alone = dict(environment), grace_seconds, is_alone
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        rank = 0 if self.is_alone else process_rank()
        inherited = {
            key: value for key, value in os.environ.items() if not (self.is_alone and key.startswith("SLURM_"))
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
            # Not `wait`: it would hold a lock that `stop`, called by a signal handler in this very thread, needs.
            while (status := self._child.poll()) is None:
                time.sleep(POLL_SECONDS)
            return status
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask the child to save and stop, then make it."""
        if self._child is None:
            return
        for number, seconds in ((signal.SIGTERM, self.grace_seconds), (signal.SIGKILL, 10.0)):
            if _has_ended(self._child.pid):
                return
            self._child.send_signal(number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and not _has_ended(self._child.pid):
                time.sleep(POLL_SECONDS)

    def checkpoint(self) -> Any:
        """submitit asks before a time limit or a preemption: stop cleanly, and put this same job in line again."""
        import submitit  # an extra: only a worker that submitit has started comes here

        self.stop()
        return submitit.helpers.DelayedSubmission(self)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_child": None}


def _be_a_child() -> None:
    die_with_parent()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
