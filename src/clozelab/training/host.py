"""What the processor says of itself. Imports nothing heavy: the ledger asks too.

glibc keeps the memory it has: 1.1-1.8 x faster training steps on a CPU, for nothing. Imports no torch.

A training step frees and asks for the same large blocks again and again. By default glibc hands blocks above a
threshold back to the kernel each time, and every new one costs page faults. Must run before torch allocates; peak
memory stays taken.

Start-up: keep out what lightning's dependency torchmetrics imports and no training here uses. Imports nothing heavy.

Unusual: torchmetrics imports scipy.signal only to patch an old name into it (0.5 s), matplotlib and transformers for
metrics that draw or embed (up to 1 s where they are installed). While it is imported, the first is an empty stand-in,
gone afterwards; of the others it is told that they are not installed. In a process that has torchmetrics already,
nothing happens. Whoever wants its BERTScore or plots imports torchmetrics before clozelab's stages.

Facts about the machine and the code of a run, gathered without importing anything heavy.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
import types
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any


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


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameter numbers of mallopt(3), from malloc.h."""


def tune_allocator() -> bool:
    """Tell glibc never to use mmap for blocks, never to trim, and to grow by 64 MiB; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl or another libc
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20}
    answers = [mallopt(parameter, value) for parameter, value in settings.items()]
    return answers == [1, 1, 1]


FLAGS = (
    "_MATPLOTLIB_AVAILABLE",
    "_SCIENCEPLOT_AVAILABLE",
    "_TRANSFORMERS_AVAILABLE",
    "_TRANSFORMERS_GREATER_EQUAL_4_4",
    "_TRANSFORMERS_GREATER_EQUAL_4_10",
)
_IMPORTS = "torchmetrics.utilities.imports"
_SIGNAL = "scipy.signal"


def import_torchmetrics_quickly() -> bool:
    """Import torchmetrics without its optional parts; False where it is imported already, or absent."""
    if "torchmetrics" in sys.modules or importlib.util.find_spec("torchmetrics") is None:
        return False
    _preload_flags()
    stand_in = None
    if _SIGNAL not in sys.modules:
        stand_in = types.ModuleType(_SIGNAL)
        stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
        sys.modules[_SIGNAL] = stand_in
    try:
        import torchmetrics  # noqa: F401
    finally:
        if stand_in is not None:
            del sys.modules[_SIGNAL]
            scipy = sys.modules.get("scipy")
            if scipy is not None and vars(scipy).get("signal") is stand_in:
                del scipy.signal
    return True


def _preload_flags() -> None:
    """torchmetrics' list of what is installed, with FLAGS off, in place before the package itself."""
    spec = importlib.util.find_spec("torchmetrics")
    assert spec is not None and spec.submodule_search_locations is not None
    path = f"{spec.submodule_search_locations[0]}/utilities/imports.py"
    found = importlib.util.spec_from_file_location(_IMPORTS, path)
    if found is None or found.loader is None:
        return
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (ImportError, OSError):  # another version keeps it elsewhere: then it starts as it always does
        return
    for name in FLAGS:
        if hasattr(module, name):
            setattr(module, name, False)
    sys.modules[_IMPORTS] = module


PACKAGES = ("clozelab", "torch", "lightning", "hydra-core", "omegaconf", "numpy", "tokenizers", "safetensors")


@cache
def host_facts() -> dict[str, Any]:
    """{"versions": ..., "git": {"commit", "dirty"} or None, "host": {"cpu", "cores", "platform", "gpus"}}."""
    return {
        "versions": {"python": platform.python_version(), **_versions()},
        "git": git_facts(Path(__file__).resolve().parent),
        "host": {
            "cpu": cpu_model(),
            "cores": usable_cores(),
            "platform": platform.platform(terse=True),
            "gpus": _gpus(),
        },
    }


def usable_cores() -> int:
    """Cores that this process may run on, and no more than the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def git_facts(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds the code, and whether tracked files differ from it; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    # Installed into an environment inside somebody's repository, the code is not part of that repository.
    if commit is None or _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> list[str]:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
