"""A stand-in for the processes that time shapes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from clozelab.planning import timing
from clozelab.planning.arms import synthetic_corpus
from clozelab.planning.shapes import Request, Speed
from clozelab.planning.sweeps import Corpora

OF_THIS_MACHINE = {
    r"together\s+about\s+[\d.]+\s+\w+(,\s+with\s(.|\n)*?report\s+[\d.]+\s+\w+)?": (
        "together about TIME"
    ),
    r"free: [\d.]+ [kMGT]B": "free: SPACE",
}
"""What a plan says of the disk and of its own time."""


class Worker:
    """Stands in for the timing processes, and counts what it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_busy: bool = False) -> None:
        self.asked: list[Request] = []
        self.speed = Speed(50_000.0, is_busy=is_busy)
        monkeypatch.setattr(timing, "measure", self)
        monkeypatch.setattr(
            Corpora, "_sample_world", lambda self, cfg, generator, world: synthetic_corpus(2048)
        )

    def __call__(
        self, requests: Sequence[Request], at_once: int, threads: int, *, compiles: bool
    ) -> list[Speed]:
        self.asked += requests
        return [self.speed for _ in requests]
