"""When each optimizer step ended, by the wall and by the processor: for measuring a speed without a run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.loggers import Logger

from clozelab.training.metrics_csv import TOKENS_KEY


@dataclass(frozen=True)
class Tick:
    """The end of a step: tokens so far, and both clocks in seconds."""

    tokens: int
    wall: float
    processor: float


class StepClock(Logger):
    """Keeps a Tick of every log line; with a log interval of 1, of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[Tick] = []

    @property
    def name(self) -> str:
        return "clock"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:  # noqa: ARG002
        if TOKENS_KEY in metrics:
            self.ticks.append(Tick(int(metrics[TOKENS_KEY]), time.perf_counter(), time.process_time()))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to keep."""
