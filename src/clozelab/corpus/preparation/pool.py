"""The processes that work at shards; small work is done in this one.

Unusual: a worker imports what its function needs and nothing of the program that started it, so
that a script needs no `if __name__ == "__main__"`, and no worker imports torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.connection import wait
from types import ModuleType, TracebackType
from typing import Any, TypeVar

Context = TypeVar("Context")
Task = TypeVar("Task")
Result = TypeVar("Result")

WAITING_TASKS = 2  # sent ahead of what is worked at, so that no worker waits for the reader
# One thread a process: the processes share the cores.
ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
# what `tune_allocator` tells glibc in the first process: each shard asks for the same large blocks
ENVIRONMENT |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}

_context: Any = None  # of a worker, set when it begins


class EndedProcessError(ValueError):
    """A process was ended from outside; what is finished is of use to the next try."""


class ShardPool:
    """Runs functions of a context and a task, in up to `workers` processes.

    The context is sent to each process once. Fewer than two tasks, or one worker, need no process.
    """

    def __init__(self, context: object, workers: int) -> None:
        self.context = context
        self.workers = workers
        if current_process().daemon:
            self.workers = 1  # such a process may start no others
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> ShardPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Any, Task], Result], tasks: Iterable[Task]
    ) -> Iterator[Result]:
        """Results in the order of the tasks, which are taken as workers get free.

        EndedProcessError where a process dies, as for want of memory.
        """
        remaining = iter(tasks)
        first = list(islice(remaining, 2))
        if self.workers == 1 or len(first) < 2:
            for task in chain(first, remaining):
                yield function(self.context, task)
            return
        running: deque[Future[Result]] = deque()
        try:
            for task in chain(first, remaining):
                running.append(self._submit(function, task))
                if len(running) >= self.workers + WAITING_TASKS:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise EndedProcessError(
                "a process that prepares text was ended from outside, perhaps for want of memory:"
                " the same command goes on where it was; corpus.workers=1 needs least"
            ) from error

    def _submit(self, function: Callable[[Any, Task], Result], task: Task) -> Future[Result]:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.workers,
                mp_context=get_context("spawn"),
                initializer=_begin_worker,
                initargs=(self.context,),
            )
        # A process is started with a task, as long as there are fewer than workers.
        with _without_main_module():
            return self._executor.submit(_call, function, task)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Hide the program from the processes that are started: they would import it again."""
    program = sys.modules["__main__"]
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        sys.modules["__main__"] = program
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _begin_worker(context: object) -> None:
    global _context
    _context = context
    # Ctrl-C reaches all processes of a terminal; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End a worker whose parent was killed: it would wait for tasks for ever."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _call(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_context, task)
