"""Processes of `python -m MODULE`, `python -c CODE` or `python FILE` for a tenth of the price:
forked, imports done.

A test that needs a process of its own, but does not prove how one starts, calls `run` or `Popen` of
this module instead of subprocess's. One server a test session imports what jobs import when it is
first asked, runs no job itself, and forks. What it forks gets a session, command line, folder,
environment, path and files of its own.

pytest-xdist's workers are forked, too (`fork_workers`): from a process of that server that has
imported the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing.util
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "CLOZELAB_TEST_FORKS"
"""Environment variable: the socket of this session's server."""
SRC = str(Path(__file__).parents[1] / "src")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start_server() -> Callable[[], None]:
    """Start it for this process and all that it starts; what it returns ends it."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    os.environ[ADDRESS] = f"{folder.name}/socket"
    environment = os.environ | {"PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"}
    # pyarrow's allocator starts a thread when it is imported, unless it is told not to.
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    command = [sys.executable, __file__, os.environ[ADDRESS]]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, env=environment, start_new_session=True
    )

    def end() -> None:
        del os.environ[ADDRESS]
        server.communicate()
        folder.cleanup()

    return end


def fork_workers(tests: Sequence[str]) -> Callable[[], None]:
    """Let all processes that this one starts be forks of one that has collected these tests."""
    address = f"{os.environ[ADDRESS]}-of-workers"
    environment = {key: value for key, value in os.environ.items() if key != ADDRESS}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    server = Popen(
        [sys.executable, __file__, address, *tests],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    Popen.address = address
    subprocess.Popen = Popen  # type: ignore[misc]
    return server.communicate


class Popen(subprocess.Popen[Any]):
    """subprocess.Popen of a Python command; the process is the server's child, so only the server
    can wait for it.

    Any other command is started as ever. A second rank must be the first one's child: that has a
    spare one for it. So must a launcher's own fork server (`own_fork_server`).
    """

    spare: tuple[int, socket.socket] | None = None
    address: str | None = None
    """Of another server than this session's."""

    _server: socket.socket | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _, preexec_fn, _, pass_fds, cwd, env, _, _, _, *pipes = rest[:15]
        environment = dict(os.environ if env is None else env)
        is_ours = not isinstance(args, str) and args[0] == sys.executable and preexec_fn is None
        is_rank = environment.get("LOCAL_RANK", "0") != "0"
        if not is_ours or (is_rank and not self.spare):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        stdin, _, _, stdout, _, stderr = pipes
        given = [
            own if number == -1 else number for own, number in enumerate((stdin, stdout, stderr))
        ]
        words, place = [*map(str, args[1:])], str(cwd or Path.cwd())
        if is_rank and self.spare:
            (self.pid, server), Popen.spare = self.spare, None
        else:
            self._server = server = connected(self.address or os.environ[ADDRESS])
        files = dict(enumerate(given)) | {number: number for number in pass_fds}
        ask(server, words, place, environment, files)
        if self._server is not None:
            self._answers = server.makefile("r")
            self.pid = int(self._answers.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._server is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        has_said = select.select([self._server], [], [], 0 if wait_flags & os.WNOHANG else None)[0]
        return (self.pid, int(self._answers.readline())) if has_said else (0, 0)

    def _internal_poll(self, *rest: Any, **more: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*rest, **more)  # type: ignore[misc,no-any-return]
        if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(ended[1])  # type: ignore[attr-defined]
            self._server.close()
        return self.returncode


def ask(
    server: socket.socket,
    words: list[str],
    cwd: str,
    environment: dict[str, str],
    files: dict[int, int],
) -> None:
    """For a process of these words; `files`: its descriptors, each with the one here to be it."""
    text = json.dumps(
        {"words": words, "cwd": cwd, "environment": environment, "numbers": [*files]}
    ).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [*files.values()])
    server.sendall(text)


def connected(address: str) -> socket.socket:
    """To the server, once it is up."""
    server = socket.socket(socket.AF_UNIX)
    while True:
        try:
            server.connect(address)
            return server
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.02)


def run(
    args: Sequence[str],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run of a Python command."""
    typed = options.pop("input", None)
    options |= {"stdin": subprocess.DEVNULL if typed is None else subprocess.PIPE}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if capture_output else {}
    with Popen(args, **options) as process:
        try:
            stdout, stderr = process.communicate(typed, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


def serve(address: str, *tests: str) -> NoReturn:
    """Answer with process ids, and with a status each when they end, until standard input ends.

    Where there are tests to collect, what is forked are workers.
    """
    if tests:
        collect(tests)
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    callers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, ear, 0], [], [])
        if 0 in ready:
            for pid in callers:
                os.kill(pid, signal.SIGKILL)
            sys.exit()
        if listener in ready:
            preload()
            caller, _ = listener.accept()
            request = received(caller)
            if (pid := os.fork()) == 0:
                become(**request)
            for number in request["files"]:
                os.close(number)
            callers[pid] = caller
            caller.sendall(f"{pid}\n".encode())
        if ear in ready:
            os.read(ear, 4096)
            with contextlib.suppress(ChildProcessError):
                while pid := (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    # who has asked may be gone
                    with callers.pop(pid) as caller, contextlib.suppress(OSError):
                        caller.sendall(f"{ended[1]}\n".encode())


def received(caller: socket.socket) -> dict[str, Any]:
    text, files, _, _ = socket.recv_fds(caller, 8, 16)
    size, text = int.from_bytes(text, "big"), b""
    while len(text) < size:
        text += caller.recv(size - len(text))
    return json.loads(text) | {"files": files} if size else {}


def preload() -> None:
    """What jobs import, once; a fork takes along no thread, so there must be none."""
    if "clozelab" in sys.modules:
        return
    from clozelab.training.host import import_torchmetrics_quickly

    import_torchmetrics_quickly()
    import clozelab

    for module in pkgutil.walk_packages(clozelab.__path__, "clozelab."):
        if not module.name.endswith(("__main__", ".preloaded")):  # a fork server's own start
            with contextlib.suppress(ImportError):  # a part that needs an extra
                importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")  # which an optimizer imports
    from hydra.core.plugins import Plugins

    from clozelab.launch.sweep import compose
    from clozelab.runs.code import hash_and_imports, sources_of_results
    from clozelab.training import runtime

    Plugins.instance()
    for stage in ("prepare", "pretrain", "finetune", "evaluate"):
        compose(stage)  # so that its files are parsed
    for source in sources_of_results().values():
        hash_and_imports(source)  # 0.7 s for all
    measure_in_no_time(runtime)
    wait_for_no_disk()
    assert threads() == ["python"], threads()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def collect(tests: Sequence[str]) -> None:
    """Import tests and what they import, as pytest does: its workers find all in sys.modules."""
    import pytest

    os.environ[ADDRESS] = ""  # no server of its own
    pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *tests])
    assert threads() == ["python"], threads()


def measure_in_no_time(runtime: types.ModuleType) -> None:
    """Let trainings take the speed of their machine as given: no test reads it."""
    if runtime.CEILING_SECONDS == 0.0:
        return
    measured = runtime.shortest_seconds

    def least_seconds(act: Callable[[], object], device: object, seconds: float) -> float:
        return measured(act, device, seconds) if seconds else 0.05

    runtime.CEILING_SECONDS = 0.0  # type: ignore[attr-defined]
    runtime.shortest_seconds = least_seconds  # type: ignore[attr-defined]


def wait_for_no_disk() -> None:
    """Let whoever has a file written to the disk itself not wait: no test cuts the power."""
    os.fsync = lambda _: None  # type: ignore[assignment]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids: Sequence[int], seconds: float) -> bool:
    """Whether none of these processes is left, once the time is over at the latest."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, pids))


def threads() -> list[str]:
    """Names of this process's threads, those of libraries among them."""
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():  # not Linux: Python's own
        return ["python"] * threading.active_count()
    names = [(task / "comm").read_text().strip() for task in tasks.iterdir()]
    # The main thread is called as the program is: python, python3, python3.12.
    return ["python" if name.startswith("python") else name for name in sorted(names)]


def become(
    words: list[str], cwd: str, environment: dict[str, str], numbers: list[int], files: list[int]
) -> NoReturn:
    """Be the process of `python WORDS`, to its end."""
    signal.set_wakeup_fd(-1)
    os.setsid()
    for number in (*IGNORED, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = [fcntl.fcntl(given, fcntl.F_DUPFD, 1000) for given in files]
    os.closerange(3, 1000)
    for own, given in zip(numbers, high, strict=True):
        os.dup2(given, own)
    for given in high:
        os.close(given)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    if environment.get(ADDRESS) == sys.argv[1]:  # what a job starts is forked as well
        subprocess.Popen = Popen  # type: ignore[misc]
    if {"trainer=ddp", "trainer=fsdp"} & {*words} and environment.get("LOCAL_RANK", "0") == "0":
        Popen.spare = spare_child()
    if {"-m", "--multirun", "reproduce"} & {*words[1:]}:
        own_fork_server(spare_child())
    if words[0] == "-u":  # nothing that it writes waits anyway
        words = words[1:]
    kind, *rest = words
    first = [{"-c": "", "-m": cwd}.get(kind, str(Path(kind).parent))]
    if environment.get("PYTHONSAFEPATH"):
        first = []
    said = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    inherited = [place for place in sys.path if place != str(Path(__file__).parent)]
    sys.path[:] = [*first, *said, *inherited]
    status = 0
    try:
        if kind == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *rest[1:]]
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(main))
        else:
            sys.argv = words
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(BaseException):
        # waits for threads, as an interpreter does at its end
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more
        status = status or 120
    os._exit(status & 0xFF)


def spare_child() -> tuple[int, socket.socket]:
    """A child that waits to be asked what to be, and ends with this process where it never is."""
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        ours.close()
        request = received(theirs)
        become(**request) if request else os._exit(0)
    theirs.close()
    return pid, ours


def own_fork_server(spare: tuple[int, socket.socket]) -> None:
    """Let a launcher's fork server be this child: a new interpreter imports for seven seconds."""
    start = multiprocessing.util.spawnv_passfds

    def spawnv_passfds(path: bytes, args: list[str], passfds: Sequence[int]) -> int:
        if "multiprocessing.forkserver" not in args[-1]:
            return start(path, args, passfds)
        multiprocessing.util.spawnv_passfds = start  # there is one child
        files = {number: number for number in (0, 1, 2, *passfds)}
        ask(spare[1], ["-c", args[-1]], str(Path.cwd()), {**os.environ}, files)
        return spare[0]

    multiprocessing.util.spawnv_passfds = spawnv_passfds


if __name__ == "__main__":
    serve(*sys.argv[1:])
