"""Facts about the machine and the code of a run, gathered without importing anything heavy."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from clozelab.training.processor import cpu_model

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
