"""Where a run's numbers go: metrics.csv, and guests: Weights & Biases, MLflow, TensorBoard.

W&B is offline without a key. Each guest is spoken to from a thread of its own (BackgroundLogger),
so that none ends or slows a training. Its run stays open after the Trainer is done, for the final
scores: `tracked` closes it.
"""

from __future__ import annotations

import csv
import logging
import netrc
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from clozelab.files.atomic import atomic_write_lines
from clozelab.text.packages import require_package
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping
from clozelab.training.background import BackgroundLogger
from clozelab.training.catching_up import MetricCall
from clozelab.training.jobs import TrackedJob
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, MetricRow, parse_row
from clozelab.training.mlflow_tracker import MlflowTracker

if TYPE_CHECKING:
    from wandb import Run

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline", "disabled")
MAX_TAG_CHARACTERS = 64
WANDB_SETTINGS = {
    "silent": True,  # we say where it is, once
    "console": "off",  # the run folder has the output, and jobs may be forked
    "disable_code": True,
    "init_timeout": 30.0,
    # A network that has gone must not hold a finished job; `wandb sync` sends what is left.
    "finish_timeout": 30.0,
}


class MetricsCsv(Logger):
    """Appends to `folder/metrics.csv` on rank zero, in long form.

    Columns: step, tokens, seconds, key, value. The keys train/tokens and train/seconds fill the
    columns of the lines that follow and get no line themselves.
    """

    name = "metrics"
    version = ""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = Path(folder) / "metrics.csv"
        self._tokens = 0
        self._seconds = 0.0

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._tokens = int(metrics.get(TOKENS_KEY, self._tokens))
        self._seconds = float(metrics.get(SECONDS_KEY, self._seconds))
        rows = []
        for key, value in metrics.items():
            if key not in (TOKENS_KEY, SECONDS_KEY, "epoch"):
                rows.append((step, self._tokens, f"{self._seconds:.3f}", key, repr(float(value))))
        # For example 100,51200,12.500,train/loss,6.9314
        is_new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            if is_new:
                writer.writerow(MetricRow._fields)
            writer.writerows(rows)

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """The configuration is in config.yaml and run.json, not here."""

    @rank_zero_only
    def truncate_after(self, step: int) -> None:
        """Drops what a resumed run will write again: lines of later steps, and a cut last one."""
        if not self.path.exists():
            return
        *lines, _ = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
        kept = [",".join(MetricRow._fields)]
        for line in lines:
            row = parse_row(line)
            if row is not None and row.step <= step:
                kept.append(line)
                self._tokens = row.tokens
                self._seconds = row.seconds
        atomic_write_lines(self.path, kept)


def build_wandb_logger(*, project: str, entity: str | None, mode: str, job: TrackedJob) -> Logger:
    """W&B for one job: in the group EXPERIMENT/ARM, its stage as the job type.

    `mode` is auto (online with an API key in the environment or netrc, else offline: `wandb sync`
    uploads later), online, offline or disabled; WANDB_MODE has the last word.
    """
    if mode not in MODES:
        raise ValueError(f"logger.wandb.mode is {mode!r}: choose one of {', '.join(MODES)}")
    if mode == "auto":
        has_key = bool(os.environ.get("WANDB_API_KEY"))
        with suppress(OSError, netrc.NetrcParseError):
            has_key = has_key or netrc.netrc().authenticators("api.wandb.ai") is not None
        mode = "online" if has_key else "offline"
    settings: PlainDict = {
        "project": project,
        "entity": entity,
        "mode": os.environ.get("WANDB_MODE") or mode,
        "resume": "allow",
        "settings": WANDB_SETTINGS,
    }
    settings |= {
        "dir": str(job.folder),
        "group": job.group,
        "job_type": job.stage,
        "name": job.name,
        "id": job.run_id,
        "config": dict(job.config),
    }
    settings["tags"] = [tag[:MAX_TAG_CHARACTERS] for tag in job.tags]
    return WandbTracker(settings, job.command)


class WandbTracker(Logger):
    """A Lightning logger that starts its W&B run at the first number; `close` ends it."""

    name = "wandb"
    version = ""
    close_seconds = 40.0  # W&B's own patience, and some more

    def __init__(self, settings: JsonObject, command: Sequence[str]) -> None:
        super().__init__()
        self.settings = settings
        self.command = command
        self.run: Run | None = None
        self._init_error: Exception | None = None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {key: float(value) for key, value in metrics.items()}
        self._log_action(lambda _, run: run.log({**values, "step": step}))

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        """The configuration goes along when the run starts."""

    def begin_anew(self) -> None:
        """Remove what earlier starts have written offline; what was uploaded stays."""
        if self.run is None:
            folder = Path(self.settings["dir"], "wandb")
            for start in folder.glob(f"offline-run-*-{self.settings['id']}"):
                # W&B's own process outlives a kill for a moment, and may still write there.
                shutil.rmtree(start, ignore_errors=True)

    @rank_zero_only
    def summarise(self, scores: PlainMapping) -> None:
        self._log_action(lambda _, run: run.summary.update(dict(scores)))

    def log_table(
        self, name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        data = [list(row) for row in rows]
        self._log_action(
            lambda wandb, run: run.log({name: wandb.Table(columns=list(columns), data=data)})
        )

    def log_report(self, name: str, paths: Sequence[Path]) -> None:
        """A report's files, as one version of an artifact.

        The page is shown as a panel, and its pictures as images.
        """

        def act(wandb: ModuleType, run: Run) -> None:
            artifact = wandb.Artifact(name, type="report")
            panels = {}
            for path in paths:
                artifact.add_file(str(path), name=path.name)
                if path.suffix == ".png":
                    panels[path.stem] = wandb.Image(str(path))
                if path.suffix == ".html":
                    panels[path.stem] = wandb.Html(path.read_text(encoding="utf-8"))
            run.log_artifact(artifact)
            run.log(panels)

        self._log_action(act)

    def log_lines(self, name: str, lines: Mapping[str, Mapping[int, float]]) -> None:
        """A panel of several lines: label -> step -> value."""
        steps = [list(line) for line in lines.values()]
        values = [list(line.values()) for line in lines.values()]

        def act(wandb: ModuleType, run: Run) -> None:
            panel = wandb.plot.line_series(steps, values, list(lines), title=name, xname="step")
            run.log({name: panel})

        self._log_action(act)

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        """End the W&B run, and say how an offline one gets there."""
        if self.run is None:
            return
        try:
            self._log_action(lambda _, run: run.finish(exit_code=exit_code))
        finally:
            # Its service writes on behind our back, and a forked job ends without the clean-up that
            # would wait for it.
            self._log_action(lambda wandb, _: wandb.teardown())
        if self.settings["mode"] == "offline":
            folder = Path(str(getattr(self.run, "dir", ""))).parent
            log.info("W&B offline; to upload: wandb sync %s", folder)
        self.run = None

    def load_package(self) -> None:
        """Import it: a second of start-up that only tracked runs pay."""
        # Its own error reports ask its server also where a run is offline.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb  # noqa: F401

    def is_outage(self, error: Exception) -> bool:  # noqa: ARG002
        """Never: W&B keeps its numbers on disk and sends them by itself.

        What it raises, it raises again.
        """
        return False

    def _log_action(self, action: Callable[[ModuleType, Run], object]) -> None:
        """Does something with the package and its run, which the first such call starts."""
        self.load_package()
        import wandb

        # Its service keeps the id, and says of a second start that it is in use.
        if self._init_error is not None:
            raise self._init_error
        if self.run is None:
            # W&B copies sys.argv when it starts, and has no setting for it.
            original = sys.argv
            sys.argv = [*sys.argv[:1], *self.command]
            try:
                self.run = wandb.init(**self.settings)
            except Exception as error:
                self._init_error = error
                raise
            finally:
                sys.argv = original
            # A resumed run repeats steps that W&B has seen; its own counter must not refuse them.
            self.run.define_metric("*", step_metric="step")
        action(wandb, self.run)


def build_mlflow_logger(
    *, experiment_name: str, run_name: str | None, tracking_uri: str, lock: str, job: TrackedJob
) -> Logger:
    """MLflow for one job; ValueError where the extra is not installed."""
    require_package("mlflow", "mlflow", "logger=mlflow")
    if run_name is None:
        run_name = job.name
    return MlflowTracker(
        experiment_name=experiment_name,
        run_name=run_name,
        tracking_uri=tracking_uri,
        job=job,
        lock=Path(lock),
    )


def build_tensorboard_logger(*, flush_seconds: int, job: TrackedJob) -> Logger:
    """TensorBoard's event files in RUN_DIR/tensorboard.

    ValueError where the extra is not installed.
    """
    require_package("tensorboard", "tensorboard", "logger=tensorboard")
    return TensorBoardTracker(job.folder, name="tensorboard", version="", flush_secs=flush_seconds)


class TensorBoardTracker(TensorBoardLogger):
    """Lightning's, with the final scores as points.

    It is without its file of hyper-parameters (config.yaml is there).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # key -> step and value of its last point
        self._last_points: dict[str, tuple[int | None, float]] = {}

    def save(self) -> None:
        """Nothing but the event files."""

    def load_package(self) -> None:
        """Import what `drop_from` needs."""
        import tensorboard.compat.proto.event_pb2  # noqa: F401

    @rank_zero_only
    def log_many(self, calls: Sequence[MetricCall]) -> None:
        for call in calls:
            for key, value in call.metrics.items():
                # Training and validation of one step both bring its tokens and seconds.
                point = (call.step, value)
                if self._last_points.get(key) != point:
                    self.experiment.add_scalar(key, value, call.step, walltime=call.time)
                self._last_points[key] = point
        self.experiment.flush()

    def begin_anew(self) -> None:
        """Have TensorBoard show nothing of what was written before."""
        self.drop_from(0)

    def drop_from(self, step: int) -> None:
        """Have TensorBoard show nothing of what was written of this step and later ones."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._last_points = {}
        restart = Event(session_log=SessionLog(status=SessionLog.START))
        self.experiment.file_writer.add_event(restart, step)


def summarise(loggers: Sequence[Logger], scores: PlainMapping) -> None:
    """Gives the final numbers to every tracker."""
    for logger in loggers:
        if isinstance(logger, BackgroundLogger):
            logger.summarise(scores)


@contextmanager
def tracked(loggers: Sequence[Logger]) -> Iterator[Sequence[Logger]]:
    """Closes the trackers at the end, whatever it is.

    Two W&B runs of one process must never become one.
    """
    # Anything that leaves the block is a failure of the run.
    exit_code = 1
    try:
        yield loggers
        exit_code = 0
    finally:
        for logger in loggers:
            if isinstance(logger, BackgroundLogger):
                logger.close(exit_code)
