"""A forked job that says what processor time it took.

It imports next to nothing: all would count as the job's.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path


def main(words: Sequence[str]) -> int:
    """Run a command line of `clozelab`.

    The first word is the file for its processor seconds, and its server's until then.
    """
    clock, *command_line = words
    of_server = processor_seconds(os.getppid())
    status = int(importlib.import_module("clozelab.cli").main(command_line))
    Path(clock).write_text(f"{time.process_time()} {of_server}", encoding="utf-8")
    return status


def processor_seconds(pid: int) -> float:
    """What a process has used so far; 0 where the system does not say."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
