"""`make faults` in its shortest form: trials are made, and a comparison that should notice does."""

from __future__ import annotations

import sys

import pytest
from tests.simulation import run_benchmark


@pytest.mark.skipif(sys.platform != "linux", reason="forks and /proc")
def test_controls_and_damages() -> None:
    done = run_benchmark("faults", "--only", "controls")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith("| control")
    ]
    assert [line[2:] for line in lines] == [["1", "1"]] * 4
