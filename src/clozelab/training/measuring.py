"""Tokens, floating-point operations and seconds of training, and the rows of metrics.csv.

No Lightning here and no torch: commands that only look at runs must start at once.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TOKENS_KEY = "train/tokens"
SECONDS_KEY = "train/seconds"
TOTALS = ("total_tokens", "total_flops", "total_seconds")


@dataclass
class Throughput:
    """What was done since the last reading (this rank), and since the run began (all ranks).

    Validation is outside.
    """

    total_tokens: int = 0
    total_flops: float = 0.0
    total_seconds: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    _started: float | None = None

    def start(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None

    def add(self, tokens: int, flops: float = 0.0) -> None:
        """Count one micro-batch: real tokens and useful floating-point operations."""
        self.tokens += tokens
        self.flops += flops

    def settle(self, tokens: int, flops: float = 0.0) -> float:
        """Moves the interval into the totals; returns its seconds.

        `tokens` and `flops` are summed over ranks.
        """
        seconds = self.state()["seconds"]
        # A running clock goes on from now: what it has shown so far goes into the totals.
        if self._started is not None:
            self._started = time.perf_counter()
        self.total_tokens += tokens
        self.total_flops += flops
        self.total_seconds += seconds
        self.tokens = 0
        self.flops = 0.0
        self.seconds = 0.0
        return seconds

    def facts(self, world_size: int, matmul_ceiling: float) -> dict[str, float | None]:
        """Totals for run.json.

        `mfu` is the share of `matmul_ceiling` (FLOP/s of one device), None where that is 0.
        """
        mfu = None
        if matmul_ceiling:
            mfu = self.total_flops / self.total_seconds / (matmul_ceiling * world_size)
        return {
            "tokens": self.total_tokens,
            "flops": self.total_flops,
            "training_seconds": self.total_seconds,
            "tokens_per_second": self.total_tokens / self.total_seconds,
            "mfu": mfu,
        }

    def state(self) -> dict[str, float]:
        """Totals and the clock, for a checkpoint."""
        state = {name: getattr(self, name) for name in TOTALS}
        state["seconds"] = self.seconds
        if self._started is not None:
            state["seconds"] += time.perf_counter() - self._started
        return state

    def load(self, state: dict[str, float]) -> None:
        for name in (*TOTALS, "seconds"):
            setattr(self, name, state[name])


class MetricRow(NamedTuple):
    """One logged number.

    `step` optimizer steps, `tokens` read and `seconds` trained when it was logged.
    """

    step: int
    tokens: int
    seconds: float
    key: str
    value: float


def parse_row(line: str) -> MetricRow | None:
    """A whole line of metrics.csv; None of the header, and of a line of other columns."""
    cells = next(csv.reader([line]), [])  # a source's name, and so a key, may hold a comma
    if len(cells) != len(MetricRow._fields) or not cells[0].isdigit():
        return None
    step, tokens, seconds, key, value = cells
    return MetricRow(int(step), int(tokens), float(seconds), key, float(value))


def read_rows(path: Path, last_bytes: int | None = None) -> Iterator[MetricRow]:
    """The whole rows of a metrics.csv, or those in its last bytes; none where there is no file.

    A last line without an end is being written, or its writer was killed: half of its number would
    be another number.
    """
    try:
        with path.open("rb") as file:
            if last_bytes is not None and path.stat().st_size > last_bytes:
                file.seek(-last_bytes, 2)
                file.readline()  # where the cut fell
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return
    for line in text.split("\n")[:-1]:
        row = parse_row(line)
        if row is not None:
            yield row
