"""What a job logs before it claims its run folder, kept for the folder's log.txt."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler

MAX_RECORDS = 1000


class EarlyLog(MemoryHandler):
    """Keeps the first records in memory; without a target it never empties itself."""


@contextmanager
def early_log_kept() -> Iterator[None]:
    """Keep what one job logs meanwhile, until `hand_over` or the job's end."""
    early = EarlyLog(MAX_RECORDS)
    early.addFilter(lambda _: len(early.buffer) < MAX_RECORDS)
    root = logging.getLogger()
    root.addHandler(early)
    try:
        yield
    finally:
        root.removeHandler(early)


def hand_over(log: logging.Handler) -> None:
    """Write what the job has logged so far into a log, which gets everything from now on."""
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, EarlyLog):
            root.removeHandler(handler)
            handler.setTarget(log)
            handler.flush()
    root.addHandler(log)
