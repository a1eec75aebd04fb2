"""`make bench` in tiny shapes: every comparison runs and its table is whole."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests import forked

ROOT = Path(__file__).resolve().parents[2]


def bench(output: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "benchmarks/bench.py", "--smoke", "--threads", "1", "--output", str(output), *words]
    done = forked.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return output.read_text()


@pytest.mark.slow
def test_memory_and_loop(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text = bench(tmp_path / "report.md", "--parts", "memory", "overhead")
    assert "commit" in text and "torch" in text
    assert text.count("| transformers fp32 |") == 1 and "Lightning, callbacks, logging" in text
    assert "## Pre-training" not in text


@pytest.mark.slow
def test_all_parts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    text = bench(tmp_path / "report.md")
    for words in (
        "roberta L1 H128",
        "albert L1 H128",
        "electra L1 H128",
        "transformers trainer-fp32",
        "transformers trainer-bf16",
        "nested tensors, fp32",
        "share of",
    ):
        assert words in text
