"""What every benchmark here shares: sides as living processes that take turns, and reports of
median, range and ratio.

Each side is a process of its own (their allocator settings differ), all stay alive, and they take
turns: A B A B, so a machine that slows down slows all of them. A worker prints one JSON line when
it is ready, then answers every line
`SECONDS` with one JSON number: its rate. Nothing here imports torch before a worker has set its
allocator.
"""

from __future__ import annotations

import argparse
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

    def __init__(
        self, command: Sequence[str], threads: int, environment: Mapping[str, str] | None = None
    ) -> None:
        variables = os.environ | {"OMP_NUM_THREADS": str(threads)} | dict(environment or {})
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
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


def take_turns(sides: Mapping[str, Side], rounds: int, seconds: float) -> None:
    """A B A B: every side `rounds` times for `seconds`, then all are closed."""
    for _ in range(rounds):
        for side in sides.values():
            side.run(seconds)
    for side in sides.values():
        side.close()


def race(
    script: str,
    names: Mapping[str, str],
    options: Sequence[object],
    threads: int,
    rounds: int,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Side]:
    """The sides of a script once all have taken their turns, by the names that a table gives them.

    `names` says which worker each is.
    """
    command = [script, "--threads", str(threads), *map(str, options), "--worker"]
    sides = {}
    for name, worker in names.items():
        sides[name] = Side([*command, worker], threads, environment)
    take_turns(sides, rounds, seconds)
    return sides


# A side's own process


def start_worker(is_clozelab: bool, threads: int) -> None:
    """Called before anything imports torch: clozelab's side has clozelab's allocator."""
    if is_clozelab:
        from clozelab.training.host import tune_allocator

        tune_allocator()
    import torch

    torch.set_num_threads(threads)


def serve(measure: Callable[[float], float], hello: Any = None) -> None:
    """The worker's loop: each line `SECONDS` is answered with `measure(SECONDS)`."""
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(float(line))), flush=True)


def repeated(
    step: Callable[[], object], units: float | None = None, warm_up: int = 2
) -> Callable[[float], float]:
    """`measure` of a step, warmed up: again and again for the time asked, units a second.

    `units` are those of every step; None: the step returns its own.
    """
    for _ in range(warm_up):
        step()

    def measure(seconds: float) -> float:
        done, start = 0.0, time.perf_counter()
        while not done or time.perf_counter() - start < seconds:
            own: Any = step()
            done += own if units is None else units
        return done / (time.perf_counter() - start)

    return measure


class Answers:
    """The same between the steps of a loop that is not ours, such as a Trainer's."""

    def __init__(self, units: float, warm_up: int = 2) -> None:
        self.units, self.steps, self.start, self.seconds = units, -warm_up, 0.0, 0.0

    def after_step(self) -> bool:
        """Answers where a turn is over and waits for the next one; False: there is none."""
        self.steps += 1
        taken = time.perf_counter() - self.start
        if self.steps < 0 or (self.steps > 0 and taken < self.seconds):
            return True
        print(json.dumps(self.steps * self.units / taken if self.steps else None), flush=True)
        line = sys.stdin.readline()
        if not line:
            return False
        self.steps, self.seconds, self.start = 0, float(line), time.perf_counter()
        return True


# The command line


def parser(
    description: str | None, rounds: int = 5, seconds: float | None = 4.0
) -> argparse.ArgumentParser:
    """What every benchmark here takes: threads, turns and a report; `--worker` starts a side."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--seconds", type=float, default=seconds, help="of one turn")
    made.add_argument("--output", type=Path)
    made.add_argument("--worker", help=argparse.SUPPRESS)
    return made


# Tables


def spread(values: Sequence[float], digits: int = 0) -> str:
    """`median (min-max)`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of neighbouring turns, `**median** (min-max)`."""
    found = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"**{statistics.median(found):.2f}** ({min(found):.2f}-{max(found):.2f})"


def say(*lines: str) -> list[str]:
    """Printed, and returned for the report."""
    print("\n".join(lines), flush=True)
    return list(lines)


def rate_table(unit: str, rounds: int, seconds: float) -> list[str]:
    """How it was measured, and the head of the table whose rows `rate_rows` makes."""
    turns = f"{rounds} x {seconds:g} s a side" if seconds else f"{rounds} x all of them a side"
    return say(
        f"{turns}, in turns; ratios are those of neighbouring turns.",
        "",
        f"| size | side | {unit}, median (min-max) | clozelab is faster by, median (min-max) |",
        "|---|---|---|---|",
    )


def rate_rows(size: str, sides: Mapping[str, Side]) -> list[str]:
    """One a side, once all have taken their turns; clozelab is the first of them."""
    ours = next(iter(sides.values()))
    lines = []
    for name, side in sides.items():
        faster = "1" if side is ours else ratios(ours.rates, side.rates)
        lines += say(f"| {size} | {name} | {spread(side.rates)} | {faster} |")
    return lines


def fastest(sides: Mapping[str, Side]) -> str:
    """The side with the highest median rate."""
    return max(sides, key=lambda name: statistics.median(sides[name].rates))


# Reports


def commit() -> str:
    """Short name of the commit, with + where tracked files differ; "unknown" outside a checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


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
    return (
        f"{date.today()} · commit {commit()} · {machine()}, {threads} thread{plural} ·"
        f" {', '.join(found)}"
    )


def default_report(stem: str = "bench") -> Path:
    return RESULTS / f"{stem}-{date.today()}-{commit().rstrip('+')}.md"


def write_report(path: Path | None, lines: Sequence[str]) -> None:
    """None: it was printed, and that is all."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)


def report(
    title: str, threads: int, parts: Mapping[str, Callable[[], list[str]]], output: Path | None
) -> None:
    """Run the parts, each a section that prints and returns its lines, and write what they said."""
    lines = say(f"# {title}", "", about(threads), "")
    for heading, part in parts.items():
        start = time.perf_counter()
        lines += say(f"## {heading}", "")
        lines += part()
        lines += say("", f"({time.perf_counter() - start:.0f} s)", "")
    write_report(output, lines)
