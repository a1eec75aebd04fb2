"""Scripts of benchmarks/ as modules, for tests that use what they simulate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def benchmark(name: str) -> ModuleType:
    """The script of this name; it does not run its `main`."""
    path = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
