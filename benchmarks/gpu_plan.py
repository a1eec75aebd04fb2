"""What benchmarks/gpu.py runs and where: the device, its clock and memory, and the report as it
grows.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch

from clozelab.models import attention
from interleaved import say

T = TypeVar("T")


@dataclass
class Plan:
    """What is run; `smoke` shrinks it to seconds of one CPU core."""

    device: torch.device
    smoke: bool
    deadline: float
    lines: list[str] = field(default_factory=list)
    ceiling: float = 0.0
    sizes: tuple[str, ...] = ("smoke",)  # whose speed is measured
    output: Path | None = None  # a report that is written as it grows
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def speed_cases(self) -> list[tuple[str, int, int]]:
        """(size, S, rows of a micro-batch)."""
        if self.smoke:
            return [("smoke", 16, 2)]
        return [("base", 128, 256), ("base", 512, 64), ("large", 128, 256), ("large", 512, 64)]

    def say(self, *lines: str) -> None:
        """Prints, keeps, and writes: what is known stays where a part is ended."""
        self.lines += say(*lines)
        if self.output is not None:
            self.output.write_text("\n".join(self.lines) + "\n", encoding="utf-8")

    def record(self, name: str, **figures: float) -> None:
        """Figures for a program, beside the report."""
        self.figures[name] = figures
        if self.output is not None:
            text = json.dumps(self.figures, indent=1)
            self.output.with_suffix(".json").write_text(text, encoding="utf-8")

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def compile_options(self) -> dict[str, Any]:
        """Of torch.compile: a smoke test compiles no kernels."""
        return {"backend": "eager"} if self.smoke else {}

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def kernels(self) -> AbstractContextManager[Any]:
        """In a smoke test the attention that a GPU takes, as far as a CPU has it."""
        if not self.smoke:
            return nullcontext()
        always_sdpa = mock.Mock(return_value="sdpa")
        return mock.patch.object(attention, "_default_kernel", always_sdpa)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def allocated_gib(self) -> float:
        """What lies in the device's memory now."""
        if self.device.type != "cuda":
            return 0.0
        return torch.cuda.memory_allocated() / 2**30

    def peak_gib(self, beyond: float = 0.0, digits: int = 1) -> str:
        """The most since the last call, less what lay there before."""
        if self.device.type != "cuda":
            return "-"
        peak = torch.cuda.max_memory_allocated() / 2**30 - beyond
        torch.cuda.reset_peak_memory_stats()
        return f"{peak:.{digits}f}"

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


@dataclass
class Line:
    """A line of a table, about one thing; a check that fails hides no other."""

    name: str
    wrong: list[str] = field(default_factory=list)
    start: float = field(default_factory=time.perf_counter)

    def attempt(self, title: str, part: Callable[[], T]) -> T | None:
        """What the part gives; None where it fails, which the verdict says."""
        try:
            return part()
        except Exception as error:
            first = str(error).strip().split("\n")[0]
            message = first[:160].replace("|", "/")
            self.wrong.append(f"{title}: {type(error).__name__}: {message}")
            return None

    def check(self, title: str, width: int, part: Callable[[], list[str]]) -> list[str]:
        """The cells of a check, so many."""
        cells = self.attempt(title, part)
        return ["WRONG"] * width if cells is None else cells

    def write(self, plan: Plan, cells: Sequence[str], width: int) -> None:
        """The cells, filled up to so many, the seconds and the verdict."""
        verdict = "; ".join(self.wrong) if self.wrong else "ok"
        seconds = f"{time.perf_counter() - self.start:.1f}"
        filled = [*cells, *[""] * (width - len(cells))]
        plan.say("| " + " | ".join([self.name, *filled, seconds, verdict]) + " |")


def table(plan: Plan, *titles: str) -> None:
    """The head of one."""
    plan.say("| " + " | ".join(titles) + " |", "|" + "---|" * len(titles))


def require(is_right: bool, text: str) -> None:
    if not is_right:
        raise AssertionError(text)


def require_all(lines: Sequence[Line]) -> None:
    wrong = [line.name for line in lines if line.wrong]
    require(not wrong, f"{len(wrong)} of {len(lines)} lines are wrong: {'; '.join(wrong)}")
