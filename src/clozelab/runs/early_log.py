"""What a job logs before it claims its run folder, kept for the folder's log.txt."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MAX_RECORDS = 1000


class EarlyLog(logging.Handler):
    """Keeps the last records in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.records: deque[logging.LogRecord] = deque(maxlen=MAX_RECORDS)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def early_log_kept() -> Iterator[None]:
    """Keep what one job logs meanwhile, until `hand_over` or the job's end."""
    early = EarlyLog()
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
            for record in handler.records:
                log.handle(record)
    root.addHandler(log)
