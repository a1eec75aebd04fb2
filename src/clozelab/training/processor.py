"""What the processor says of itself. Imports nothing heavy: the ledger asks too."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, as /proc/cpuinfo or the platform gives it."""
    return _first("model name") or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of the processor from /proc/cpuinfo; empty where there is none."""
    return frozenset(_first("flags", "Features").split())


def _first(*names: str) -> str:
    """What stands behind the first of the lines that begin so; "" where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(names)), "")
