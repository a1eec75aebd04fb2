"""Tokens per second of a shape on this machine: measured once, kept in the cache, asked for again.

As many processes are timed side by side as jobs will run, because cores share their memory and caches. Where a process
has one thread, its speed is taken by processor time: whatever else the machine does now, it will not do then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.runs.fingerprint import digest
from clozelab.runs.record import write_json
from clozelab.training.host import host_facts

TIMING_VERSION = 1
"""Raised when what is timed changes."""
SECONDS = 1.5
"""Of each measurement."""
BUSY_SHARE = 0.8
"""Processor time over wall time below which the machine was busy with something else."""
USUAL_SHARE = 0.4
"""Of the speed of a matrix product: what training a large model reaches."""
KEPT = ("tokens_per_second", "share", "forward")
"""Of a speed, in the cache."""
WORKER = "clozelab.planning.timing_worker"
ANSWER = "answer: "
"""Before each line of the worker that is one; anything else is a library's talk."""
MAX_STEP_SECONDS = 30.0
"""Shapes whose steps take longer, by their FLOPs, are not timed."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one of the jobs that run side by side; 0 where `problem` says why there is none.

    `share` of a core that it got while measured; `forward`: tokens a second of an evaluation pass (fine-tuning);
    `is_estimated`: reckoned from FLOPs and the speed of a matrix product, nothing was timed.
    """

    tokens_per_second: float
    share: float
    forward: float | None = None
    is_estimated: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Request:
    """A shape to time: `question` is what timing_worker is asked, and what a speed is kept by.

    `step_tokens` (words, for a BiLSTM on features) and `step_flops` are of one optimizer step.
    """

    question: Mapping[str, Any]
    title: str
    step_tokens: float
    step_flops: float


def machine_key(at_once: int, threads: int) -> dict[str, Any]:
    """What a speed belongs to, besides the shape."""
    facts = host_facts()
    host = {key: facts["host"][key] for key in ("cpu", "cores", "gpus")}
    pool = {"at_once": at_once, "threads": threads}
    return {"version": TIMING_VERSION, **host, "torch": facts["versions"].get("torch"), **pool}


def measured_speeds(
    requests: Sequence[Request],
    cache_dir: Path,
    *,
    at_once: int,
    threads: int,
    measure: bool,
    say: Callable[[str], None] = lambda _: None,
) -> list[Speed | None]:
    """The speed of each request; None where it is not in the cache and must not be measured.

    Each is kept as soon as it is there. `say` gets a line before each measurement.
    """
    machine = machine_key(at_once, threads)
    keys = [digest({"machine": machine, "request": dict(one.question)})[:16] for one in requests]
    paths = [cache_dir / "speeds" / f"{key}.json" for key in keys]
    found = {path: _read(path) for path in paths}
    missing = {path: one for path, one in zip(paths, requests, strict=True) if found[path] is None}
    if missing and measure:
        answers = iter(_measure(list(missing.values()), at_once, threads))
        for number, (path, one) in enumerate(missing.items(), 1):
            say(f"timing {number} of {len(missing)}: {one.title}")
            speed = found[path] = next(answers)
            if not speed.problem and not speed.is_estimated:
                kept = {key: getattr(speed, key) for key in KEPT}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {**kept, "machine": machine, "request": dict(one.question)})
    return [found[path] for path in paths]


def _read(path: Path) -> Speed | None:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Speed(**{key: saved[key] for key in KEPT})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    """Time all requests in `at_once` processes side by side; the mean of what they find, one speed a request.

    A shape that ends its process (out of memory) is a problem of its own; the others are timed by new processes.
    """
    left = list(requests)
    while left:
        number = 0
        for speed in _until_one_dies(left, at_once, threads):
            yield speed
            number += 1
        left = left[number:]


def _until_one_dies(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    asked = [
        {"seconds": SECONDS, "step_flops": one.step_flops, "max_step_seconds": MAX_STEP_SECONDS, **one.question}
        for one in requests
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    with ExitStack() as files:
        # One a worker: what two say at once would run together.
        errors = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(at_once)]
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                env=environment,
            )
            for file in errors
        ]  # fmt: skip
        try:
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(json.dumps(asked))
                worker.stdin.close()
            for one in requests:
                answers = [_answer(worker) for worker in workers]
                if None in answers:
                    said = errors[answers.index(None)]
                    said.seek(0)
                    lines = said.read().strip().splitlines() or ["its process was killed"]
                    yield Speed(0.0, 1.0, problem=lines[-1])
                    return
                yield _speed([answer for answer in answers if answer], one, threads)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def _answer(worker: subprocess.Popen[str]) -> dict[str, Any] | None:
    """The next answer of a worker; None where it has ended."""
    assert worker.stdout is not None
    for line in worker.stdout:
        if line.startswith(ANSWER):
            return dict(json.loads(line.removeprefix(ANSWER)))
    return None


def _speed(answers: Sequence[Mapping[str, Any]], request: Request, threads: int) -> Speed:
    if problems := [str(one["problem"]) for one in answers if "problem" in one]:
        return Speed(0.0, 1.0, problem=problems[0])
    if estimates := [float(one["step_seconds"]) for one in answers if "step_seconds" in one]:
        return Speed(request.step_tokens / max(estimates), 1.0, is_estimated=True)
    means = {key: sum(one[key] for one in answers) / len(answers) for key in answers[0]}
    wall, processor = means["wall"], means["processor"]
    by_processor = threads == 1
    forward = max(means["forward_wall"], means["forward_processor"] * by_processor) if "forward_wall" in means else None
    return Speed(max(wall, processor * by_processor), min(1.0, wall / processor) if by_processor else 1.0, forward)
