"""A restart on a busy machine does not time again what it has timed a moment ago."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.planning.workers import Worker

from clozelab.planning.shapes import Request, Speed
from clozelab.planning.speeds import BUSY_SECONDS, measured_speeds

SHAPES = [Request({"head": name}, name, step_tokens=600.0, step_flops=1e12) for name in "ab"]


def test_speeds_of_a_busy_machine_are_kept_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(monkeypatch, is_busy=True)
    lines: list[str] = []
    options: dict[str, Any] = {"at_once": 2, "threads": 1, "measure": True, "say": lines.append}
    busy = Speed(50_000.0, is_busy=True)
    assert measured_speeds(SHAPES, tmp_path, **options) == [busy, busy]
    assert lines.pop(0).startswith("timing 1 of 2") and len(worker.asked) == 2
    lines.clear()
    assert measured_speeds(SHAPES, tmp_path, **options) == [busy, busy], "with its mark"
    assert lines == ["not timed again: 2 speeds, measured within an hour on this busy machine"]
    assert len(worker.asked) == 2
    # one of them is too old, and the machine is idle now
    worker.speed = Speed(60_000.0)
    old = next((tmp_path / "speeds").glob("*.json"))
    long_ago = time.time() - BUSY_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    speeds = measured_speeds(SHAPES, tmp_path, **options)
    assert sorted(speeds, key=str) == [busy, worker.speed] and len(worker.asked) == 3
    options["measures_again"] = True
    assert measured_speeds(SHAPES, tmp_path, **options) == [worker.speed] * 2
