"""Tokens per second of a shape on this machine: measured once, kept in the cache, asked for again.

As many processes are timed side by side as jobs will run, because cores share their memory and caches. Where a process
has one thread, its speed is taken by processor time: whatever else the machine does now, it will not do then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clozelab.ledger.fingerprint import digest
from clozelab.ledger.host import host_facts
from clozelab.ledger.run import write_json

TIMING_VERSION = 1
"""Raised when what is timed changes."""
SECONDS = 1.5
"""Of each measurement."""
BUSY_SHARE = 0.8
"""Processor time over wall time below which the machine was busy with something else."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one of the jobs that run side by side.

    `share` of a core that it got while measured; `forward`: tokens a second of an evaluation pass (fine-tuning).
    """

    tokens_per_second: float
    share: float
    forward: float | None = None


def machine_key(at_once: int, threads: int) -> dict[str, Any]:
    """What a speed belongs to, besides the shape."""
    facts = host_facts()
    return {
        "version": TIMING_VERSION,
        "cpu": facts["host"]["cpu"],
        "cores": facts["host"]["cores"],
        "gpus": facts["host"]["gpus"],
        "torch": facts["versions"].get("torch"),
        "at_once": at_once,
        "threads": threads,
    }


def measured_speeds(
    requests: Sequence[Mapping[str, Any]], cache_dir: Path, *, at_once: int, threads: int, measure: bool
) -> list[Speed | None]:
    """The speed of each request (of timing_worker); None where it is not in the cache and must not be measured.

    Raises:
        ValueError: a measurement failed; its own words.
    """
    machine = machine_key(at_once, threads)
    paths = [
        cache_dir / "speeds" / f"{digest({'machine': machine, 'request': dict(one)})[:16]}.json" for one in requests
    ]
    missing = {path: one for path, one in zip(paths, requests, strict=True) if _read(path) is None}
    if missing and measure:
        for path, speed in zip(missing, _measure(list(missing.values()), at_once, threads), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {**vars(speed), "machine": machine, "request": missing[path]})
    return [_read(path) for path in paths]


def _read(path: Path) -> Speed | None:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return Speed(**{key: saved[key] for key in ("tokens_per_second", "share", "forward")})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _measure(requests: Sequence[Mapping[str, Any]], at_once: int, threads: int) -> list[Speed]:
    """Time all requests in `at_once` processes side by side; the mean of what they find."""
    text = json.dumps([{"seconds": SECONDS, **one} for one in requests])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "clozelab.ledger.planning.timing_worker"]
    workers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(at_once)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(text)
        worker.stdin.close()
        worker.stdin = None
    found = []
    for worker in workers:
        output, errors = worker.communicate()
        if worker.returncode:
            last = errors.strip().splitlines()[-1:] or [f"exit status {worker.returncode}"]
            raise ValueError(f"timing failed: {last[0]} (--no-measure plans without)")
        found.append([json.loads(line) for line in output.splitlines() if line.startswith('{"wall"')])
    return [_speed([answers[index] for answers in found], threads) for index in range(len(requests))]


def _speed(answers: Sequence[Mapping[str, float]], threads: int) -> Speed:
    means = {key: sum(one[key] for one in answers) / len(answers) for key in answers[0]}
    wall, processor = means["wall"], means["processor"]
    by_processor = threads == 1
    forward = max(means["forward_wall"], means["forward_processor"] * by_processor) if "forward_wall" in means else None
    return Speed(max(wall, processor * by_processor), min(1.0, wall / processor) if by_processor else 1.0, forward)
