"""Jobs forked from a server process that has torch loaded: a start costs milliseconds instead of seconds.

Only for jobs that are one CPU process: a fork must not inherit a GPU context, and ranks are started from a command
line. The server runs no tensor operation, so no thread pool exists when it forks. It is the standard library's; it ends
with us, and its children with it.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Protocol

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
