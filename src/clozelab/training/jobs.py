"""A job as trackers know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrackedJob:
    """What a tracker is told about a job."""

    folder: Path  # the run folder; trackers write below it
    run_id: str  # of this run wherever it goes on, and of no other
    experiment: str
    arm: str
    stage: str
    name: str  # inside the experiment
    tags: tuple[str, ...] = ()
    # Plain values to show beside the run; no secrets.
    config: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()  # the command line to show, without secrets
