"""What a device does in a profile: how long it is busy."""

from __future__ import annotations

from typing import Any


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
