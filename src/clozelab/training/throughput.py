"""Tokens, floating-point operations and seconds of training, kept so that a log line costs no device sync.

Validation is outside the clock. Totals count all ranks and survive a resume; what was counted since the last reading is
this rank's share, until it is read and reduced.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass
class Throughput:
    """What was done since the last reading (this rank), and since the run began (all ranks)."""

    total_tokens: int = 0
    total_flops: float = 0.0
    total_seconds: float = 0.0
    tokens: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    _started: float | None = None

    def start(self) -> None:
        """Let the clock run; no effect when it runs already."""
        if self._started is None:
            self._started = time.perf_counter()

    def stop(self) -> None:
        """Hold the clock."""
        if self._started is not None:
            self.seconds += time.perf_counter() - self._started
            self._started = None

    def add(self, tokens: int, flops: float) -> None:
        """Count one micro-batch: real tokens and useful floating-point operations."""
        self.tokens += tokens
        self.flops += flops

    def settle(self, tokens: int, flops: float) -> float:
        """Move the interval into the totals, with `tokens` and `flops` summed over ranks; returns its seconds."""
        was_running = self._started is not None
        self.stop()
        seconds, self.seconds = self.seconds, 0.0
        self.total_tokens += tokens
        self.total_flops += flops
        self.total_seconds += seconds
        self.tokens, self.flops = 0, 0.0
        if was_running:
            self.start()
        return seconds

    def facts(self, world_size: int, matmul_ceiling: float) -> dict[str, float | None]:
        """Totals for run.json; `mfu` is the share of `matmul_ceiling` (FLOP/s of one device), None where that is 0."""
        speed, ceiling = self.total_flops / self.total_seconds, matmul_ceiling * world_size
        return {
            "tokens": self.total_tokens,
            "flops": self.total_flops,
            "training_seconds": self.total_seconds,
            "tokens_per_second": self.total_tokens / self.total_seconds,
            "mfu": speed / ceiling if ceiling else None,
        }

    def state(self) -> dict[str, float]:
        """Totals and the clock, for a checkpoint; the unread share belongs to whoever can reduce it."""
        running = time.perf_counter() - self._started if self._started is not None else 0.0
        return {
            "total_tokens": self.total_tokens,
            "total_flops": self.total_flops,
            "total_seconds": self.total_seconds,
            "seconds": self.seconds + running,
        }

    def load(self, state: dict[str, float]) -> None:
        """Go on from `state`."""
        self.total_tokens, self.total_flops = int(state["total_tokens"]), float(state["total_flops"])
        self.total_seconds, self.seconds = float(state["total_seconds"]), float(state["seconds"])
