"""Weights & Biases as a guest: one run per job, offline without a key, always finished, and never the end of a
training.

Unusual: whatever the tracker raises is logged once and switches it off; metrics.csv has every number anyway.
"""

from __future__ import annotations

import hashlib
import logging
import netrc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")


def build_wandb_logger(
    *, project: str, mode: str, folder: Path, experiment: str, arm: str, name: str, config: Mapping[str, Any]
) -> Logger:
    """The tracker of one job.

    Args:
        project: W&B project.
        mode: auto (online with an API key, else offline) | online | offline | disabled. WANDB_MODE has the last word.
        folder: the run folder; W&B writes below it, and the same folder is the same W&B run after a resume.
        experiment: groups the runs; `arm` is the job type, `name` the run's name inside the experiment.
        config: plain values to show beside the run.
    """
    if mode not in MODES:
        raise ValueError(f"logger.mode is {mode!r}: choose one of {', '.join(MODES)}")
    resolved = os.environ.get("WANDB_MODE") or (choose_mode() if mode == "auto" else mode)
    identity = hashlib.sha256(str(Path(folder).resolve()).encode()).hexdigest()[:16]
    settings = {
        "project": project,
        "mode": resolved,
        "dir": str(folder),
        "group": experiment,
        "job_type": arm,
        "name": name,
        "id": identity,
        "resume": "allow",
        "config": dict(config),
    }
    return WandbTracker(settings)


def choose_mode() -> str:
    """online where a key for W&B is at hand (environment or netrc), else offline; `wandb sync` uploads later."""
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    try:
        known = netrc.netrc().authenticators("api.wandb.ai")
    except (OSError, netrc.NetrcParseError):
        known = None
    return "online" if known else "offline"


class WandbTracker(Logger):
    """A Lightning logger that starts its W&B run at the first number and ends it when the Trainer does."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.run: Any = None
        self.is_broken = False

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return str(self.settings["id"])

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        values = {key: float(value) for key, value in metrics.items()}
        self._guarded(lambda: self._started_run().log({**values, "step": step}))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration goes along when the run starts."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if self.run is not None:
            run, self.run = self.run, None
            self._guarded(lambda: run.finish(exit_code=0 if status == "success" else 1))

    def _started_run(self) -> Any:
        if self.run is None:
            import wandb  # a second of start-up that only tracked runs pay

            self.run = wandb.init(**self.settings)
            # A resumed run repeats steps that W&B has seen; its own counter must not refuse them.
            self.run.define_metric("*", step_metric="step")
        return self.run

    def _guarded(self, action: Callable[[], Any]) -> None:
        if self.is_broken:
            return
        try:
            action()
        except Exception as error:
            self.is_broken = True
            log.warning("the tracker failed and is off for the rest of this run: %s: %s", type(error).__name__, error)
