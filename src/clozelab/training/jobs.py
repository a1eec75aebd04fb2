"""A job as trackers know it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from clozelab.text.plain import PlainMapping


@dataclass(frozen=True)
class TrackedJob:
    """The facts of a job that a tracker gets."""

    folder: Path  # the run folder; trackers write below it
    run_id: str  # of this run wherever it goes on, and of no other
    experiment: str
    arm: str
    stage: str
    name: str  # inside the experiment
    tags: tuple[str, ...] = ()
    # Plain values to show beside the run; no secrets.
    config: PlainMapping = field(default_factory=dict)
    command: tuple[str, ...] = ()  # the command line to show, without secrets

    @property
    def group(self) -> str:
        """What all seeds of an arm have in common."""
        return f"{self.experiment}/{self.arm}"
