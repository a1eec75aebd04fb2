"""The machine, the code and this process; two ways to be faster that act before anything heavy is
imported.
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

from clozelab.processor import cpu_flags, cpuinfo

PACKAGES = (
    "clozelab",
    "torch",
    "lightning",
    "hydra-core",
    "omegaconf",
    "numpy",
    "tokenizers",
    "safetensors",
)
# what torch chooses its code by
KERNELS = {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"}
# parameter numbers of mallopt(3), from malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
OPTIONAL_OF_TORCHMETRICS = ("_MATPLOTLIB_", "_SCIENCEPLOT_", "_TRANSFORMERS_")


@cache
def host_facts() -> dict[str, Any]:
    """Versions, git {"commit", "dirty"} or None, host {"cpu", "cores", "platform", "gpus"};
    environment: what of these decides the last digits of a result."""
    # as import does
    found = {name: next(iter(metadata.distributions(name=name)), None) for name in PACKAGES}
    installed = {name: one.version for name, one in found.items() if one is not None}
    gpus = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    git, here = ("git", "-C", str(Path(__file__).resolve().parent)), Path(__file__).name
    commit = _output(*git, "rev-parse", "HEAD")
    # Installed into an environment inside somebody's repository, the code is not part of that
    # repository.
    is_ours = commit is not None and _output(*git, "ls-files", "--error-unmatch", here) is not None
    dirty = bool(is_ours and _output(*git, "status", "--porcelain", "--untracked-files=no"))
    numeric = {
        name: installed[name] for name in ("torch", "numpy", "tokenizers") if name in installed
    }
    gpu_names = (gpus or "").splitlines()
    kernels = " ".join(
        [platform.machine(), *sorted(KERNELS & cpu_flags()), *sorted(set(gpu_names))],
    )
    python = platform.python_version()
    host = {
        "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "platform": platform.platform(terse=True),
        "gpus": gpu_names,
    }
    return {
        "environment": {"python": python.rpartition(".")[0], "kernels": kernels, **numeric},
        "versions": {"python": python, **installed},
        "git": {"commit": commit, "dirty": dirty} if is_ours else None,
        "host": host,
    }


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def require_package(package: str, extra: str, what: str) -> None:
    """ValueError with the command that installs an extra, where its package is missing; `what`
    needs it.
    """
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # not even the package that it lies in
        found = None
    if found is None:
        raise ValueError(
            f"{what} needs the package {package!r}, which is not installed: pip install"
            f" 'clozelab[{extra}]' (in a checkout: pip install -c constraints.txt -e '.[{extra}]')"
        )


def usable_cores() -> int:
    """Cores that this process may run on, within the container's quota."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))


def process_rank() -> int:
    """0 for the first process of a job (and outside one), by the launcher's environment; above 0
    for all others.

    SLURM_PROCID counts only in a step of several tasks (srun): children of a batch script's one
    process inherit its 0. Where only LOCAL_RANK and NODE_RANK are known (Lightning's own launcher),
    their sum stands in for the rank.
    """
    is_step = os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    for name in ("RANK", "SLURM_PROCID") if is_step else ("RANK",):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    texts = (os.environ.get(name, "") for name in ("LOCAL_RANK", "NODE_RANK"))
    return sum(int(text) for text in texts if text.isdigit())


PROC_LOCKS = Path("/proc/locks")  # where Linux says who holds a lock; other systems do not say it
Held = dict[tuple[int, int, int], int]
"""(device major, device minor, inode) -> process id, of every locked file of this machine."""


def holders() -> Held:
    """Every file that a process of this machine holds a flock on; none where the machine does not
    say.
    """
    found: Held = {}
    try:
        lines = PROC_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for parts in map(str.split, lines):
        if len(parts) >= 8 and parts[1] == "FLOCK":  # "->" in its place marks one that waits
            major, minor, inode = parts[5].split(":")
            found[int(major, 16), int(minor, 16), int(inode)] = int(parts[4])
    return found


def holder(lock: Path, held: Held | None = None) -> int | None:
    """Process id of who holds a lock file (0: of another container); None where nobody does, or it
    cannot be told.

    `held` is an answer of `holders`, for asking about many files at once.
    """
    held = holders() if held is None else held
    try:
        status = lock.stat()
    except OSError:
        return None
    place = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    if place in held:
        return held[place]
    # Some file systems show programs another device number than the kernel's own list has.
    for pid in (pid for (*_, inode), pid in held.items() if inode == status.st_ino):
        try:
            if lock.resolve() in {link.resolve() for link in Path(f"/proc/{pid}/fd").iterdir()}:
                return pid
        except OSError:  # another user's, or gone
            continue
    return None


def tune_allocator() -> bool:
    """Tell glibc never to use mmap for blocks, never to trim, and to grow by 64 MiB; False where
    there is no glibc.

    1.1 to 1.8 times faster training steps on a CPU: a step frees and asks for the same large blocks
    again and again, and by default each new one costs page faults. Must run before torch allocates;
    peak memory stays taken.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl, or another system
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20}
    return [mallopt(parameter, value) for parameter, value in settings.items()] == [1, 1, 1]


def import_torchmetrics_quickly() -> bool:
    """Import torchmetrics, which Lightning needs, without its optional parts; False where it is
    imported, or absent.

    It imports scipy.signal only to patch an old name into it (0.5 s), matplotlib and transformers
    for metrics that draw or embed (up to 1 s). Meanwhile the first is an empty stand-in; the
    others, it is told, are not installed.
    """
    package = None if "torchmetrics" in sys.modules else importlib.util.find_spec("torchmetrics")
    if package is None or not package.submodule_search_locations:
        return False
    name, path = (
        "torchmetrics.utilities.imports",
        f"{package.submodule_search_locations[0]}/utilities/imports.py",
    )
    found = importlib.util.spec_from_file_location(name, path)
    try:
        assert found is not None and found.loader is not None
        flags = importlib.util.module_from_spec(found)
        found.loader.exec_module(flags)
        vars(flags).update(
            {flag: False for flag in vars(flags) if flag.startswith(OPTIONAL_OF_TORCHMETRICS)}
        )
        sys.modules[name] = flags
    except (
        ImportError,
        OSError,
    ):  # another version keeps it elsewhere: then it starts as it always does
        pass
    stand_in = types.ModuleType("scipy.signal")
    stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
    is_real = sys.modules.setdefault("scipy.signal", stand_in) is not stand_in
    try:
        import torchmetrics  # noqa: F401
    finally:
        if not is_real:
            del sys.modules["scipy.signal"]
            vars(sys.modules.get("scipy", stand_in)).pop("signal", None)
    return True
