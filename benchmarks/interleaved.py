"""What every benchmark here shares: sides as living processes that take turns, and tables of median, range and ratio.

Each side is a process of its own (their allocator settings differ), all stay alive, and they take turns: A B A B, so a
machine that slows down slows all of them. A worker prints one JSON line when it is ready, then answers every line
`SECONDS` with one JSON number: its rate.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"


class Side:
    """One side's living process.

    Args:
        command: what follows the interpreter: the script and its options.
        threads: of this process.
        environment: further variables.
    """

    def __init__(self, command: Sequence[str], threads: int, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ | {"OMP_NUM_THREADS": str(threads)} | dict(environment or {})
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )
        self.hello = self._answer()
        self.rates: list[float] = []

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a benchmark process ended early; its error is above")
        return json.loads(line)

    def run(self, seconds: float) -> None:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        self.rates.append(self._answer())

    def close(self) -> None:
        self.process.communicate("")


def serve(step: Callable[[], float], units: float, hello: Mapping[str, Any] | None = None, warm_up: int = 2) -> None:
    """The worker's loop: `step()` again and again for as long as each line asks, answering units a second."""
    losses = [step() for _ in range(warm_up)]
    print(json.dumps({"loss": losses[0], **dict(hello or {})}), flush=True)
    for line in sys.stdin:
        seconds, steps, start = float(line), 0, time.perf_counter()
        while steps == 0 or time.perf_counter() - start < seconds:
            step()
            steps += 1
        print(json.dumps(steps * units / (time.perf_counter() - start)), flush=True)


def take_turns(sides: Mapping[str, Side], rounds: int, seconds: float) -> None:
    """A B A B: every side `rounds` times for `seconds`, then all are closed."""
    for _ in range(rounds):
        for side in sides.values():
            side.run(seconds)
    for side in sides.values():
        side.close()


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (min-max)`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of neighbouring turns, `**median** (min-max)`."""
    found = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"**{statistics.median(found):.2f}** ({min(found):.2f}-{max(found):.2f})"


def commit() -> str:
    """Short name of the checkout's commit, with + where tracked files differ from it; "unknown" outside one."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    if not done:
        return "unknown"
    dirty = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
    ).stdout.strip()
    return f"{done}+" if dirty else done


def machine() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def about(threads: int, packages: Sequence[str] = ("torch", "transformers", "lightning")) -> str:
    """One line: date, commit, machine, threads, versions."""
    found = []
    for name in packages:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} is not installed")
    plural = "s" if threads > 1 else ""
    return f"{date.today()} · commit {commit()} · {machine()}, {threads} thread{plural} · {', '.join(found)}"


def default_report(stem: str = "bench") -> Path:
    return RESULTS / f"{stem}-{date.today()}-{commit().rstrip('+')}.md"
