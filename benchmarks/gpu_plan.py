"""What benchmarks/gpu.py runs and where: the device, its clock and memory, and the report as it
grows.
"""

from __future__ import annotations

import gc
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from interleaved import say


@dataclass
class Plan:
    """What is run; `smoke` shrinks it to seconds of one CPU core."""

    device: torch.device
    smoke: bool
    deadline: float
    lines: list[str] = field(default_factory=list)
    ceiling: float = 0.0
    sizes: tuple[str, ...] = ("smoke",)  # whose speed is measured

    @property
    def speed_cases(self) -> list[tuple[str, int, int]]:
        """(size, S, rows of a micro-batch)."""
        if self.smoke:
            return [("smoke", 16, 2)]
        return [("base", 128, 256), ("base", 512, 64), ("large", 128, 256), ("large", 512, 64)]

    def say(self, *lines: str) -> None:
        self.lines += say(*lines)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def allocated_gib(self) -> float:
        """What lies in the device's memory now."""
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.memory_allocated() / 2**30

    def peak_gib(self, beyond: float = 0.0) -> str:
        """The most since the last call, less what lay there before."""
        if self.device.type != "cuda":
            return "-"
        peak = torch.cuda.max_memory_allocated() / 2**30 - beyond
        torch.cuda.reset_peak_memory_stats()
        return f"{peak:.1f}"

    def free(self) -> None:
        gc.collect()
        torch._dynamo.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def moved(
    batch: dict[str, Any], device: torch.device, *, non_blocking: bool = False
) -> dict[str, Any]:
    return {
        key: value.to(device, non_blocking=non_blocking) if hasattr(value, "to") else value
        for key, value in batch.items()
    }
