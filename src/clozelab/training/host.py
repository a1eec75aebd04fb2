"""The machine, the code and this process; two ways to be faster that act before heavy imports."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import subprocess
import sys
import types
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from clozelab.processor import cpu_flags, cpuinfo
from clozelab.text.plain import PlainDict

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
# What torch chooses its code by.
KERNELS = {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"}
# Parameter numbers of mallopt(3), from malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_MAX = -4
NEVER = -1  # of the trim threshold
OPTIONAL_OF_TORCHMETRICS = ("_MATPLOTLIB_", "_SCIENCEPLOT_", "_TRANSFORMERS_")


class HostFacts(TypedDict):
    """What a record keeps of the machine and the code."""

    environment: dict[str, str]  # what decides the last digits of a result
    versions: dict[str, str]
    git: PlainDict | None  # commit, dirty
    host: PlainDict  # cpu, cores, platform, gpus


@cache
def host_facts() -> HostFacts:
    """Look at this machine, and at the code that runs."""
    python = platform.python_version()
    gpus = (_output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or "").splitlines()
    versions = {"python": python}
    environment = {"python": python.rpartition(".")[0]}
    kernels = [platform.machine(), *sorted(KERNELS & cpu_flags()), *sorted(set(gpus))]
    environment["kernels"] = " ".join(kernels)
    for name in PACKAGES:
        # the first one on the path, as import does
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    for name in ("torch", "numpy", "tokenizers"):
        if name in versions:
            environment[name] = versions[name]
    host = {
        "cpu": cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "platform": platform.platform(terse=True),
        "gpus": gpus,
    }
    return {"environment": environment, "versions": versions, "git": _git_facts(), "host": host}


def _git_facts() -> PlainDict | None:
    """The commit of this code, and whether it was changed since; None outside a repository."""
    file = Path(__file__).resolve()
    git = ("git", "-C", str(file.parent))
    commit = _output(*git, "rev-parse", "HEAD")
    # Installed into an environment inside somebody's repository, the code is not part of that
    # repository.
    if commit is None or _output(*git, "ls-files", "--error-unmatch", file.name) is None:
        return None
    changes = _output(*git, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changes)}


def _output(*command: str) -> str | None:
    """What a command prints; None where it fails, or does not exist."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if process.returncode != 0:
        return None
    return process.stdout.strip()


def usable_cores() -> int:
    """Cores that this process may run on, within the container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    try:
        # for example "150000 100000": microseconds of work in each period; or "max 100000"
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, round(int(quota) / int(period))))


def process_rank() -> int:
    """0 for the first process of a job (and outside one), above 0 for all others.

    It is told by the launcher's environment. SLURM_PROCID counts only in a step of several tasks
    (srun): children of a batch script's one process inherit its 0. Where only LOCAL_RANK and
    NODE_RANK are known (Lightning's own launcher), their sum stands in for the rank.
    """
    # RANK is torchrun's, SLURM_PROCID srun's.
    names = ["RANK"]
    if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        names.append("SLURM_PROCID")
    for name in names:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return sum(int(os.environ.get(name) or 0) for name in ("LOCAL_RANK", "NODE_RANK"))


PROC_LOCKS = Path("/proc/locks")  # where Linux says who holds a lock; other systems do not say it
# (device major, device minor, inode) -> process id, of every locked file of this machine.
Held = dict[tuple[int, int, int], int]


def holders() -> Held:
    """Every file that a process of this machine holds a flock on.

    Empty where the machine does not say.
    """
    held: Held = {}
    try:
        lines = PROC_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return held
    for line in lines:
        # 1: FLOCK ADVISORY WRITE 4711 fe:01:135 0 EOF; "->" in place of FLOCK marks one that waits
        columns = line.split()
        if len(columns) >= 8 and columns[1] == "FLOCK":
            major, minor, inode = columns[5].split(":")
            held[int(major, 16), int(minor, 16), int(inode)] = int(columns[4])
    return held


def holder(lock: Path, held: Held | None = None) -> int | None:
    """Process id of who holds a lock file (0: of another container).

    None where nobody does, or it cannot be told. `held` is an answer of `holders`, for asking about
    many files at once.
    """
    if held is None:
        held = holders()
    try:
        status = lock.stat()
    except OSError:
        return None
    key = (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    if key in held:
        return held[key]
    # Some file systems show programs another device number than the kernel's own list has.
    for (_, _, inode), pid in held.items():
        if inode != status.st_ino:
            continue
        try:
            open_files = {link.resolve() for link in Path(f"/proc/{pid}/fd").iterdir()}
            if lock.resolve() in open_files:
                return pid
        except OSError:  # another user's, or gone
            continue
    return None


def tune_allocator() -> None:
    """Tells glibc never to use mmap for blocks, never to trim, and to grow by 64 MiB.

    Another C library is left alone. 1.1 to 1.8 times faster training steps on a CPU: a step frees
    and asks for the same large blocks again and again, and by default each new one costs page
    faults. Must run before torch allocates; peak memory stays taken.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl, or another system
        return
    # A threshold of 2 GiB, the largest number, would give the memory of larger steps back.
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, NEVER)
    mallopt(M_TOP_PAD, 64 * 2**20)


def import_torchmetrics_quickly() -> None:
    """Imports torchmetrics, which Lightning needs, without its optional parts.

    Nothing happens where it is imported already, or absent. It imports scipy.signal only to patch
    an old name into it (0.5 s), matplotlib and transformers for metrics that draw or embed (up to
    1 s). Meanwhile the first is an empty stand-in; the others, it is told, are not installed.
    """
    if "torchmetrics" in sys.modules:
        return
    package = importlib.util.find_spec("torchmetrics")
    if package is None or not package.submodule_search_locations:
        return
    _import_without_options(package.submodule_search_locations[0])
    stand_in = types.ModuleType("scipy.signal")
    stand_in.hamming = None  # type: ignore[attr-defined]  # the name it looks for
    is_real = sys.modules.setdefault("scipy.signal", stand_in) is not stand_in
    try:
        import torchmetrics  # noqa: F401
    finally:
        if not is_real:
            del sys.modules["scipy.signal"]
            vars(sys.modules.get("scipy", stand_in)).pop("signal", None)


def _import_without_options(folder: str) -> None:
    """Imports the module by which torchmetrics knows its options, and says that they are absent."""
    name = "torchmetrics.utilities.imports"
    spec = importlib.util.spec_from_file_location(name, f"{folder}/utilities/imports.py")
    try:
        assert spec is not None and spec.loader is not None
        flags = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(flags)
    except (ImportError, OSError):
        return  # another version keeps it elsewhere: then it starts as it always does
    for flag in list(vars(flags)):
        if flag.startswith(OPTIONAL_OF_TORCHMETRICS):
            setattr(flags, flag, False)
    sys.modules[name] = flags
