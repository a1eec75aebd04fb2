"""The passes of a preparation as pipelines of datatrove: on this machine, Slurm, or Ray.

A pass is a pipeline of one step. What it works at lies as files in the preparation's folder, which
every machine has to see; rank r of n takes the r-th file, and every n-th one behind it.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time as clock
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from clozelab.corpus.preparation.passes import Work
from clozelab.corpus.preparation.pool import ENVIRONMENT, EndedProcessError, Result, ShardPool, Task
from clozelab.corpus.prepare import MakePool
from clozelab.files.atomic import atomic_open
from clozelab.text.packages import require_package

POLL_SECONDS = 5.0  # between two looks at Slurm
FOLDER = "pipeline-"
PipelineExecutor: TypeAlias = Any  # datatrove's, which has no types
PLAIN = re.compile(r"[\w.:-]+")  # what may stand in a line for sbatch


@dataclass
class PassStep:
    """The step of a pipeline: a function of the work and a task, over the tasks in a folder."""

    folder: Path
    work: Work
    function: Callable[[Work, Any], object]

    def __call__(self, data: object, rank: int, world_size: int) -> None:  # noqa: ARG002
        os.environ.update(ENVIRONMENT)
        for path in sorted(self.folder.glob("*.task"))[rank::world_size]:
            result = self.function(self.work, pickle.loads(path.read_bytes()))
            with atomic_open(path.with_suffix(".result")) as file:
                pickle.dump(result, file)


class PipelinePool(ShardPool):
    """Runs the functions of a ShardPool as pipelines.

    `make_executor` is a class of datatrove with all its arguments but `pipeline` and `logging_dir`.
    """

    def __init__(self, work: Work, make_executor: Callable[..., PipelineExecutor]) -> None:
        super().__init__(work, workers=1)
        self._work = work
        self._make_executor = make_executor

    def map(
        self, function: Callable[[Any, Task], Result], tasks: Iterable[Task]
    ) -> Iterator[Result]:
        """Results in the order of the tasks, once all are there.

        EndedProcessError where Slurm or Ray ended some.
        """
        # Ranks that outlived a killed preparation end here: their next task is gone.
        for old in self._work.folder.glob(f"{FOLDER}*"):
            shutil.rmtree(old)
        folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=self._work.folder))
        num_tasks = 0
        for task in tasks:
            (folder / f"{num_tasks:06d}.task").write_bytes(pickle.dumps(task))
            num_tasks += 1
        if not num_tasks:
            return
        step = PassStep(folder, self._work, function)
        executor = self._make_executor(pipeline=[step], logging_dir=str(folder / "log"))
        executor.run()
        _wait(executor)
        for path in sorted(folder.glob("*.result")):
            yield pickle.loads(path.read_bytes())


def _wait(executor: PipelineExecutor) -> None:
    """Wait for jobs that were handed to Slurm; EndedProcessError where a rank is lost."""
    job = getattr(executor, "job_id", None)
    while True:
        # In this order: what has left the line before has noted all that it has done.
        is_in_line = job is not None and _is_in_line(job)
        missing = executor.get_incomplete_ranks(skip_completed=True)
        if not missing:
            return
        if not is_in_line:
            raise EndedProcessError(
                f"ranks {missing} of a pipeline ended before they were done, see"
                f" {executor.logging_dir.path}: the same command goes on where it was"
            )
        clock.sleep(POLL_SECONDS)


def _is_in_line(job: str) -> bool:
    """Whether Slurm has the job still; where it does not answer, it may."""
    answer = subprocess.run(
        ["squeue", "--noheader", f"--jobs={job}"], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        return "Invalid job id" not in answer.stderr
    return bool(answer.stdout.strip())


def local(tasks: int) -> MakePool:
    """On this machine, so many ranks at a time."""
    return _make_pool("LocalPipelineExecutor", tasks=tasks)


def slurm(
    tasks: int,
    partition: str,
    time: str,
    qos: str | None = None,
    cpus_per_task: int = 1,
    mem_per_cpu_gb: int = 4,
) -> MakePool:
    """On Slurm: an array of jobs for each pass.

    ValueError for names that sbatch would take for something else.
    """
    for value in filter(None, (partition, time, qos)):
        if not PLAIN.fullmatch(value):
            raise ValueError(f"corpus.executor.slurm: {value!r} is no plain name, nor a time")
    return _make_pool(
        "SlurmPipelineExecutor",
        tasks=tasks,
        partition=partition,
        time=time,
        qos=qos,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=mem_per_cpu_gb,
        job_name="clozelab-prepare",
        # Datatrove's job that sums up the ranks' figures would wait for a lost one for ever.
        sbatch_args={"kill-on-invalid-dep": "yes"},
        # where this Python's programs are, datatrove's among them
        env_command=f"export PATH='{Path(sys.executable).parent}':$PATH",
    )


def ray(tasks: int, cpus_per_task: int = 1, mem_per_cpu_gb: int = 4) -> MakePool:
    """On the Ray cluster that this machine is of, or on Ray here."""
    require_package("ray", "ray", "corpus.executor.ray")
    return _make_pool(
        "RayPipelineExecutor",
        tasks=tasks,
        cpus_per_task=cpus_per_task,
        mem_per_cpu_gb=mem_per_cpu_gb,
    )


def _make_pool(executor: str, **settings: object) -> MakePool:
    require_package("datatrove", "corpus", "corpus.executor")
    executors = import_module("datatrove.executor")
    make_executor = partial(getattr(executors, executor), **settings)
    return partial(PipelinePool, make_executor=make_executor)
