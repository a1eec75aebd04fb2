"""Whether this machine is busy with something else, so that a speed measured now is not its own.

Linux says it twice: how many threads want a core (before a measurement), and how long each of our
threads has waited for one (during it). Elsewhere the processor's clock beside the wall's says it of
a process with one thread.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# at the run queue: a single look may meet a thread that is gone at once
LOOKS = 5
LOOK_SECONDS = 0.1
BUSY_SHARE = 0.1  # of its wall time that a measurement may have waited for a core


def others_running() -> float:
    """Threads of others that run or want to, as their median over half a second.

    It is 0 where the system does not say.
    """
    counts = []
    for _ in range(LOOKS):
        try:
            # "0.52 0.58 0.59 3/1247 80123": 3 of 1247 threads are runnable
            load = Path("/proc/loadavg").read_text(encoding="ascii")
            runnable, _, _ = load.split()[3].partition("/")
        except (OSError, IndexError):
            return 0.0
        counts.append(max(0, int(runnable) - 1))  # one of them reads this file
        time.sleep(LOOK_SECONDS)
    return float(sorted(counts)[LOOKS // 2])


def is_busy_for(num_threads: int) -> bool:
    """Whether so many threads would have to share the machine's cores with others now."""
    return others_running() + num_threads > (os.cpu_count() or 1)


class Stopwatch:
    """Wall time, processor time and waiting time of this process's threads, since it was made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._processor = time.process_time()
        self._waited = waited_seconds()

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def processor(self) -> float:
        return time.process_time() - self._processor

    def waited_share(self, num_threads: int) -> float:
        """Of the wall time of so many busy threads, the part in which they waited for a core.

        It is 0 where nothing says.
        """
        wall = self.wall
        after = waited_seconds()
        if wall <= 0.0:
            return 0.0
        if self._waited is not None and after is not None:
            return (after - self._waited) / (wall * num_threads)
        if num_threads == 1:
            return max(0.0, 1.0 - self.processor / wall)
        return 0.0


def waited_seconds() -> float | None:
    """What all threads of this process have waited for a core so far.

    It is None where the system does not say.
    """
    total = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return total / 1e9
