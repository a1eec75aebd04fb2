"""The processes that jobs run in: forked from a server that has torch loaded, or the child of a worker elsewhere.

Forking costs milliseconds instead of seconds. Only for jobs that are one CPU process: a fork must not inherit a GPU
context, and ranks are started from a command line. The server runs no tensor operation, so no thread pool exists when
it forks. It is the standard library's; it ends with us, and its children with it.

On another machine a job is its own command line, as a child process. Slurm (through submitit) and Ray pickle it by
name, so their workers need clozelab installed and the same file system.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from clozelab.training.host import process_rank

PR_SET_PDEATHSIG = 1
TERMINATED = 128 + signal.SIGTERM
"""Exit status of what SIGTERM ends, as a shell says it."""
FIRST_RANK = "CLOZELAB_FIRST_RANK"
"""Environment variable: process id of a job's first rank on this machine, for those that it starts."""


class Started(Protocol):
    """A process that runs: what Popen and ForkedProcess have in common."""

    pid: int

    def poll(self) -> int | None:
        """Exit status (negative: the signal that killed it); None while it runs."""

    def wait(self) -> int:
        """Exit status, once it has ended."""


class ForkedProcess:
    """A forked job with the interface of a Popen."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self) -> int:
        self.process.join()
        return self.process.exitcode or 0


class ForkServer:
    """Starts `module.main(words)` in forked processes.

    Args:
        module: has `main(words) -> exit status`.
        preload: modules that the server imports once.
        environment: set before the server starts (thread counts are read when torch is imported).
    """

    def __init__(self, module: str, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        self.module = module
        self.context: ForkServerContext = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(list(preload))
        os.environ.update(environment)
        forkserver.ensure_running()  # its imports take seconds; the launcher still has things to check meanwhile

    def start(self, words: Sequence[str], log: Path) -> Started:
        """Run one job; its output goes to `log`."""
        process = self.context.Process(target=_run, args=(self.module, list(words), str(log)))
        process.start()
        return ForkedProcess(process)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask Linux for a signal when the process that started this one ends. One that has ended already sends none."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def die_with_first_rank() -> None:
    """In a rank that Lightning (or torchrun) has started: end with whoever started it.

    A rank that lost the first one would wait for it, for half an hour or for good. Killed, not asked: only the first
    one has anything to save.
    """
    if os.environ.get("LOCAL_RANK", "0") in ("", "0"):
        os.environ[FIRST_RANK] = str(os.getpid())
        return
    die_with_parent(signal.SIGKILL)
    first = os.environ.get(FIRST_RANK)
    if first is not None and sys.platform.startswith("linux") and os.getppid() != int(first):
        sys.exit(1)  # it ended before we could ask


def die_with_launcher(launcher: int) -> None:
    """`die_with_parent` for a job that the process `launcher` has started itself; ends at once where that is gone."""
    die_with_parent()
    if os.getppid() != launcher:
        os._exit(TERMINATED)


def _let_server_end() -> None:
    """Give back this job's handle on the server, which otherwise outlives a killed launcher as long as its jobs do."""
    server = getattr(forkserver, "_forkserver", None)
    handle = getattr(server, "_forkserver_alive_fd", None)
    if server is not None and handle is not None:
        os.close(handle)
        server._forkserver_alive_fd = server._forkserver_address = None


def _run(module: str, words: list[str], log: str) -> None:
    """In the forked process: a session of its own, output to the log, then the job."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_server_end()
    die_with_parent()
    launcher = multiprocessing.parent_process()
    if launcher is not None and not launcher.is_alive():
        sys.exit(TERMINATED)  # killed between our fork and the line above: nobody would ever stop us
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = ["clozelab", *words]
    sys.exit(importlib.import_module(module).main(words))


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


@dataclass
class RemoteJob:
    """Runs `clozelab WORDS` in `folder` and returns its exit status; several ranks of one job call it at once.

    Unusual: the child ignores SIGUSR1 and SIGUSR2, which Slurm sends to every process of a step; only this process
    answers them, by asking the child to save and stop.

    Attributes:
        words: command line after `clozelab`.
        folder: working directory of the launcher, on a file system that the workers share.
        log: rank 0's output is appended to it, rank N's to NAME.rank-N.log beside it.
        environment: added to the worker's own.
        grace_seconds: what the child gets to save.
        is_alone: no rank of a Slurm step, whatever the variables of a step around the worker say.
    """

    words: list[str]
    folder: Path
    log: Path
    environment: dict[str, str]
    grace_seconds: float
    is_alone: bool
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

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
