"""Scripts of benchmarks/, as modules for tests that use what they simulate, and as processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from tests import forked

ROOT = Path(__file__).parents[1]


def benchmark(name: str) -> ModuleType:
    """The script of this name; it does not run its `main`."""
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_benchmark(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, with one thread."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return forked.run(
        [sys.executable, f"benchmarks/{name}.py", *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
