"""`make faults` in its shortest form: trials are made, and a comparison that should notice does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests import forked

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="forks and /proc")
def test_controls_and_damages() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "benchmarks/faults.py", "--only", "controls"]
    done = forked.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        line.strip("| ").split(" | ")
        for line in done.stdout.splitlines()
        if line.startswith("| control")
    ]
    assert [line[2:] for line in lines] == [["1", "1"]] * 4
