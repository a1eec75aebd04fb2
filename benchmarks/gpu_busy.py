"""What a device does in a profile: how long it is busy, and with which kind of kernel."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

GROUPS = (
    ("copies", r"^memcpy|^memset|copy_kernel|direct_copy"),
    ("attention", r"flash|fmha|sdpa|cudnn.*attn|cudnn_generated|attention|softmax_warp"),
    ("matrix products", r"gemm|nvjet|cutlass|xmma|cublas|splitk|gemv|mm_kernel"),
    ("optimizer", r"multi_tensor|adam|foreach"),
    ("loss", r"softmax|nll|scatter|gather|reduce.*max|cross_entropy"),
    ("embedding", r"embedding|index_select|indexselect"),
    ("fused by the compiler", r"^triton"),
    ("other elementwise and sums", r"elementwise|reduce|vectorized"),
)
"""The first pattern that fits a kernel's name says what it is."""


def group_of(name: str) -> str:
    for group, pattern in GROUPS:
        if re.search(pattern, name.lower()):
            return group
    return "others"


def kernels_of(profile: Any) -> list[tuple[str, float, float]]:
    """(name, begin, end) in microseconds of all that a device did."""
    kernels = []
    for event in profile.events():
        if str(event.device_type).endswith("CUDA"):
            kernels.append((event.name, event.time_range.start, event.time_range.end))
    return sorted(kernels, key=lambda kernel: kernel[1])


def busy_milliseconds(profile: Any) -> tuple[float, int]:
    """How long at least one kernel ran, and how many there were."""
    busy = 0.0
    last_end = float("-inf")
    kernels = [kernel for kernel in kernels_of(profile) if not is_range(kernel[0])]
    for _, begin, end in kernels:
        busy += max(0.0, end - max(begin, last_end))
        last_end = max(last_end, end)
    return busy / 1000, len(kernels)


def is_range(name: str) -> bool:
    """Whether it is a mark that the program has set, rather than a kernel."""
    return name.startswith(("ProfilerStep", "part:", "Optimizer."))


def milliseconds_by(profile: Any) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Group -> [milliseconds, kernels]; and kernel -> the same."""
    groups: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    names: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    for name, begin, end in kernels_of(profile):
        if is_range(name):
            continue
        for table, key in ((groups, group_of(name)), (names, name)):
            table[key][0] += (end - begin) / 1000
            table[key][1] += 1
    return dict(groups), dict(names)
