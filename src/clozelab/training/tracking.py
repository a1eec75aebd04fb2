"""Trackers as guests: Weights & Biases (one run per job, offline without a key) and TensorBoard.

Unusual: whatever a tracker raises is logged once and switches it off; it is never the end of a training, and
metrics.csv has every number anyway. A W&B run stays open after the Trainer is done, for the final scores: `tracked`
closes it.
"""

from __future__ import annotations

import logging
import netrc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
MAX_TAG_CHARACTERS = 64
WANDB_SETTINGS = {
    "silent": True,  # we say where it is, once
    "console": "off",  # the run folder has the output, and jobs may be forked
    "disable_code": True,
    "finish_timeout": 300.0,  # a network that has gone must not hold a finished job
}


@dataclass(frozen=True)
class TrackedJob:
    """What a tracker is told about a job."""

    folder: Path
    """The run folder; trackers write below it."""
    run_id: str
    """Of this run wherever it goes on, and of no other."""
    experiment: str
    arm: str
    stage: str
    name: str
    """Inside the experiment."""
    tags: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    """Plain values to show beside the run; no secrets."""
    command: tuple[str, ...] = ()
    """The command line to show, without secrets."""


def build_wandb_logger(*, project: str, entity: str | None, mode: str, job: TrackedJob) -> Logger:
    """W&B for one job: in the group EXPERIMENT/ARM, its stage as the job type.

    Args:
        project, entity: of W&B.
        mode: auto (online with an API key, else offline) | online | offline | disabled. WANDB_MODE has the last word.
    """
    if mode not in MODES:
        raise ValueError(f"logger.mode is {mode!r}: choose one of {', '.join(MODES)}")
    resolved = os.environ.get("WANDB_MODE") or (choose_mode() if mode == "auto" else mode)
    settings = {
        "project": project,
        "entity": entity,
        "mode": resolved,
        "dir": str(job.folder),
        "group": f"{job.experiment}/{job.arm}",
        "job_type": job.stage,
        "name": job.name,
        "tags": [tag[:MAX_TAG_CHARACTERS] for tag in job.tags],
        "id": job.run_id,
        "resume": "allow",
        "config": dict(job.config),
        "settings": WANDB_SETTINGS,
    }
    return WandbTracker(settings, job.command)


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
    """A Lightning logger that starts its W&B run at the first number; `close` ends it."""

    def __init__(self, settings: dict[str, Any], command: Sequence[str] = ()) -> None:
        super().__init__()
        self.settings, self.command = settings, command
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
    def summarise(self, scores: Mapping[str, Any]) -> None:
        """Final numbers, in the run's summary."""
        self._guarded(lambda: self._started_run().summary.update(dict(scores)))

    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table that W&B can sort, filter and plot."""

        def act() -> None:
            import wandb

            self._started_run().log({name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

        self._guarded(act)

    def log_files(self, name: str, kind: str, paths: Sequence[Path]) -> None:
        """Files as one version of an artifact."""

        def act() -> None:
            import wandb

            artifact = wandb.Artifact(name, type=kind)
            for path in paths:
                artifact.add_file(str(path), name=path.name)
            self._started_run().log_artifact(artifact)

        self._guarded(act)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """The Trainer is done: a failed run is closed at once, for the others scores may follow."""
        if status != "success":
            self.close(exit_code=1)

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        """End the W&B run, and say how an offline one gets there."""
        if self.run is None:
            return
        run, self.run = self.run, None

        def act() -> None:
            import wandb

            run.finish(exit_code=exit_code)
            # Its service writes on behind our back, and a forked job ends without the clean-up that would wait for it.
            wandb.teardown()

        self._guarded(act)
        if self.settings["mode"] == "offline":
            log.info("W&B offline; to upload: wandb sync %s", Path(str(getattr(run, "dir", ""))).parent)

    def _started_run(self) -> Any:
        if self.run is None:
            import wandb  # a second of start-up that only tracked runs pay

            with _command_line(self.command):
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


def build_tensorboard_logger(*, flush_seconds: int, job: TrackedJob) -> Logger:
    """TensorBoard's event files in RUN_DIR/tensorboard.

    Raises:
        ValueError: the extra is not installed.
    """
    try:
        return TensorBoardTracker(job.folder, name="tensorboard", version="", flush_secs=flush_seconds)
    except ModuleNotFoundError as error:
        raise ValueError(
            "logger=tensorboard needs the package 'tensorboard', which is not installed: pip install"
            " 'clozelab[tensorboard]' (in a checkout: pip install -c constraints.txt -e '.[tensorboard]')"
        ) from error


class TensorBoardTracker(TensorBoardLogger):
    """Lightning's, without its file of hyper-parameters (config.yaml is there), and with the final scores as points."""

    def summarise(self, scores: Mapping[str, Any]) -> None:
        """Final numbers, as final/NAME."""
        numbers = {f"final/{key}": float(value) for key, value in scores.items() if isinstance(value, int | float)}
        self.log_metrics(numbers, 0)
        self.experiment.close()

    def save(self) -> None:
        """Nothing but the event files."""


def summarise(loggers: Sequence[Logger], scores: Mapping[str, Any]) -> None:
    """Give the final numbers to every tracker."""
    for logger in loggers:
        if isinstance(logger, WandbTracker | TensorBoardTracker):
            logger.summarise(scores)


@contextmanager
def _command_line(words: Sequence[str]) -> Iterator[None]:
    """W&B copies sys.argv when it starts, and has no setting for it."""
    original = sys.argv
    sys.argv = [*original[:1], *words]
    try:
        yield
    finally:
        sys.argv = original


@contextmanager
def tracked(loggers: Sequence[Logger]) -> Iterator[Sequence[Logger]]:
    """Close the trackers at the end, whatever it is: two W&B runs of one process must never become one."""
    exit_code = 1
    try:
        yield loggers
        exit_code = 0
    finally:
        for logger in loggers:
            if isinstance(logger, WandbTracker):
                logger.close(exit_code)
