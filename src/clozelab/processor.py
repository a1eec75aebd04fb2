"""What a processor multiplies well: whatever chooses a number format asks here.

A CPU without bf16 instructions emulates bf16 products, at a twentieth of the speed of fp32. So
autocast, Muon, `predict` and the measured ceilings all ask this module. An explicit
`trainer.precision=bf16-mixed` still does what it says.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BF16_PRODUCTS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of /proc/cpuinfo: any of them multiplies bf16 (x86 AVX-512 and AMX, Arm)."""

ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
ONEDNN_WITH_BF16 = ("BF16", "FP16", "AMX", "AVX10", "ALL", "DEFAULT")
"""Parts of the names of oneDNN's instruction sets that hold bf16 products."""

ATEN_LIMIT = "ATEN_CPU_CAPABILITY"
ATEN_WITH_BF16 = frozenset({"", "avx512"})


def cpu_flags() -> frozenset[str]:
    """Instruction sets that the libraries may use here; empty where there is no /proc/cpuinfo.

    Those of the processor, without bf16 products where the environment keeps torch or oneDNN below
    them: `ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2` makes a machine behave like one that
    has none.
    """
    flags = frozenset(cpuinfo("flags", "Features").split())
    if _is_kept_below_bf16():
        flags -= BF16_PRODUCTS
    return flags


def cpuinfo(*names: str) -> str:
    """What stands behind the first line of /proc/cpuinfo that begins with one of `names`.

    "" where there is no such line, or no such file.
    """
    for line in _cpuinfo_lines():
        if line.startswith(names):
            return line.partition(":")[2].strip()
    return ""


@cache
def _cpuinfo_lines() -> list[str]:
    """Read once: an optimizer asks at every step, and the file is long on a large machine."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()


def _is_kept_below_bf16() -> bool:
    if os.environ.get(ATEN_LIMIT, "").lower() not in ATEN_WITH_BF16:
        return True
    for variable in ONEDNN_LIMITS:
        limit = os.environ.get(variable, "").upper()
        if limit and not any(part in limit for part in ONEDNN_WITH_BF16):
            return True
    return False


def multiplies_bf16(device_type: str) -> bool:
    """Whether a device ("cpu", "cuda", "mps", "xla") has instructions for bf16 products.

    Apple's GPUs count as without: only fp32 has been tried there.
    """
    if device_type == "cpu":
        return bool(cpu_flags() & BF16_PRODUCTS)
    if device_type == "cuda":
        import torch

        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "xla"


def product_dtype(device: torch.device) -> torch.dtype:
    """The format for products that need eight bits: bf16 where the device has it, else fp32."""
    import torch

    if multiplies_bf16(device.type):
        return torch.bfloat16
    return torch.float32
