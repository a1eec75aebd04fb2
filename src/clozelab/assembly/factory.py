"""Checks and parts of a configuration that several stages share: machine, optimizer, trackers.

A wrong value is a ValueError that names its key. It is raised before the first slow step, and
before a run folder is claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import asdict, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import Logger
from torch import nn

from claims.text.did_you_mean import hint
from clozelab.addresses import build, check_targets, permission_for
from clozelab.config import Composed, kept_step, total_steps
from clozelab.files.digests import digest, file_sha256
from clozelab.files.origin import scale_of_encoder
from clozelab.launch.sweep import compose
from clozelab.models import folders
from clozelab.models.adaptation import adapt
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.models.encoder import Encoder
from clozelab.models.locate import ADAPTER
from clozelab.models.peft_folders import FILES, read_about, require_files
from clozelab.runs.inputs import require_encoder
from clozelab.runs.record import STEP_FILE, TRACKERS_FACT, Record
from clozelab.runs.store import Run
from clozelab.runs.tracked import tracked_job
from clozelab.schema import EncoderStageConfig, StageConfig, TrainerConfig, TrainingConfig
from clozelab.text.plain import PlainDict, PlainMapping, read_json
from clozelab.training.background import BackgroundLogger
from clozelab.training.callbacks import GracefulStop
from clozelab.training.catching_up import note_unsent
from clozelab.training.checkpoints import LAST
from clozelab.training.jobs import TrackedJob
from clozelab.training.tracking import MetricsCsv, TensorBoardTracker, WandbTracker
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware, stage_callbacks

log = logging.getLogger(__name__)
# What `trainer.lightning` may say of Lightning's Trainer. All else is the plan's, the run's, or
# another key's.
LIGHTNING_ARGUMENTS = (
    "profiler",
    "detect_anomaly",
    "benchmark",
    "overfit_batches",
    "limit_train_batches",
    "limit_val_batches",
)


def hardware_of(trainer: TrainerConfig) -> Hardware:
    """The hardware that `cfg.trainer` asks for; ValueError where this machine lacks it."""
    # Every field of Hardware is a key of `trainer`.
    keys = [field.name for field in fields(Hardware)]
    # These two are settings of the process rather than of a Trainer.
    keys += ["threads", "tf32"]
    return choose_hardware(**{key: getattr(trainer, key) for key in keys})


def hardware_of_run(run: Run, hardware: Hardware) -> Hardware:
    """A run that goes on keeps the precision that `auto` meant when it began."""
    return replace(hardware, precision=run.facts.get("precision", hardware.precision))


def record_begin(run: Run, hardware: Hardware, **facts: Any) -> None:
    """Record the precision and the threads that a run begins with, and further facts."""
    run.record(precision=hardware.precision, threads=torch.get_num_threads(), **facts)


@contextmanager
def recompose_config(record: Record, overrides: Sequence[str] = ()) -> Iterator[Composed]:
    """Compose a run's configuration from its command line and further `overrides`.

    The block runs in the folder that the run was started in, for paths may be relative to it.
    """
    if not record.config_name:
        raise ValueError(f"{record.folder} was not made by a command line")
    with chdir(record.started_in or "."):
        # An experiment's own folder, where its command line named one.
        folder = None
        if record.config_dir:
            folder = Path(record.config_dir)
        composed = compose(record.config_name, [*record.overrides, *overrides], folder=folder)
        check_targets(composed.values)
        yield composed


def require_machine_and_encoder(cfg: EncoderStageConfig) -> tuple[Hardware, Path]:
    """Check what a stage on an encoder needs beside its data: trackers, this machine, the encoder.

    Returns the hardware and the encoder's folder.
    """
    check_trackers(cfg)
    hardware = hardware_of(cfg.trainer)
    folder = require_encoder(cfg.encoder)
    check_fraction(folder, cfg.encoder_fraction)
    return hardware, folder


def check_optimizer(cfg: TrainingConfig, steps: int) -> None:
    """Build the optimizer and the schedule once, since their constructors refuse wrong settings.

    `optimizer.groups` are left out: they are checked against the names of the model's parameters,
    once there is a model.
    """
    # Two parameters of no use; some optimizers treat a layer's weights otherwise, by their name.
    parameters = []
    for name in ("weight", "encoder.layer.0.weight"):
        parameters.append((name, nn.Parameter(torch.zeros(1, 1))))
    settings = dict(cfg.optimizer)
    if "groups" in settings:
        settings["groups"] = None
    optimizer = build("optimizer", settings)(parameters)
    build("schedule", cfg.schedule)(optimizer, total_steps=steps)


def check_trackers(cfg: StageConfig) -> None:
    """Refuse trackers and callbacks whose package is missing or whose settings are wrong."""
    # Of no run: the constructors refuse wrong settings, and nothing is sent.
    nobody = TrackedJob(folder=Path(), run_id="", experiment="", arm="", stage="", name="")
    build_trackers(cfg, nobody)
    # An evaluation has no callbacks to choose.
    if isinstance(cfg, TrainingConfig):
        configured_callbacks(cfg)
    for key in cfg.trainer.lightning:
        if key not in LIGHTNING_ARGUMENTS:
            raise ValueError(
                f"trainer.lightning.{key}: no such argument is open here;"
                f" {hint(str(key), LIGHTNING_ARGUMENTS)}"
            )


def check_fraction(folder: Path, fraction: float) -> None:
    """Refuse an encoder that was not kept after this fraction of its own run.

    Its folder says after which step it was kept, and how many there were.
    """
    if fraction == 1.0:
        return
    provenance = folders.read_provenance(folder)
    step = provenance.get("step")
    phases = provenance.get("phases")
    if step is None or not phases:
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} is no encoder that a run has kept on its way"
            " (its config.json names no step); take one that keep_encoders has written, or"
            " encoder_fraction=1"
        )
    steps = total_steps(phases)
    if step != kept_step(fraction, steps):
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} was kept after step {step} of {steps}, which"
            f" is {step / steps:.3g} of its run; {fraction:g} would be step"
            f" {kept_step(fraction, steps)}, which keep_encoders has to name"
        )


def encoder_facts(folder: Path, config: EncoderConfig) -> PlainDict:
    """What a record keeps about the encoder that a run begins with: its scale, and its size."""
    return {
        "scale": scale_of_encoder(folder),
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "parameters": parameter_count(config),
    }


def build_loggers(cfg: StageConfig, run: Run, *, arm: str) -> list[Logger]:
    """Build metrics.csv's logger and the chosen trackers."""
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if not cfg.logger:
        note_trackers(run, [])
        return loggers
    job = tracked_job(cfg, run, arm=arm)
    trackers = build_trackers(cfg, job)
    note_trackers(run, list(trackers))
    # Times of a run that goes on count from its first start.
    began = datetime.fromisoformat(run.content.started).timestamp()
    for label, tracker in trackers.items():
        logger = BackgroundLogger(tracker, label, run.dir, began)
        # W&B has the configuration from the job, and TensorBoard never gets it.
        if not isinstance(tracker, WandbTracker | TensorBoardTracker):
            logger.log_hyperparams(dict(job.config))
        # What is no training begins anew, also after a kill.
        if not isinstance(cfg, TrainingConfig):
            logger.go_on_after(-1)
        loggers.append(logger)
    return loggers


def note_trackers(run: Run, labels: Sequence[str]) -> None:
    """Note which trackers a start of a run has.

    One that the start before did not have is missing what that start has logged.
    """
    labels_before = run.facts.get(TRACKERS_FACT, [])
    if labels == labels_before:
        return
    if run.is_leader and (run.dir / "metrics.csv").exists():
        for label in labels:
            if label not in labels_before:
                note_unsent(run.dir, label, None)
    run.record(**{TRACKERS_FACT: labels})


def build_trackers(cfg: StageConfig, job: TrackedJob) -> dict[str, Logger]:
    """Build the chosen trackers, by their names in `logger`."""
    trackers = {}
    for label, tracker in build("logger", cfg.logger or {}).items():
        if not tracker:
            continue
        # Trackers of this package are built in two steps, and get the job now.
        if not isinstance(tracker, Logger):
            tracker = tracker(job=job)
        trackers[str(label)] = tracker
    return trackers


def build_callbacks(
    cfg: TrainingConfig,
    run: Run,
    interval_steps: int,
    min_seconds: float = 0.0,
    before_checkpoint: Sequence[Callback] = (),
) -> list[Callback]:
    """Build the callbacks of a training, in the order in which they depend on each other.

    Checkpoints lie at least `interval_steps` and `min_seconds` apart. Those of `before_checkpoint`
    run when the averages of a step have been made, and before its checkpoint is written.
    """
    stop = GracefulStop(run.watch, cfg.stop_after_step, cfg.reuse)
    of_stage = stage_callbacks(
        run.dir / "checkpoints" / LAST,
        interval_steps,
        min_seconds,
        fingerprint=run.fingerprint,
        progress_bar=cfg.trainer.progress_bar,
        note=run.dir / STEP_FILE,
        stop=stop,
    )
    return [*configured_callbacks(cfg), *before_checkpoint, *of_stage]


def configured_callbacks(cfg: TrainingConfig) -> list[Callback]:
    """Build the callbacks that the group `callbacks` chooses; a null switches one off."""
    callbacks = [one for one in build("callbacks", cfg.callbacks or {}).values() if one]
    for callback in callbacks:
        # Where an epoch ends, the checkpoint behind its evaluation has been written.
        if isinstance(callback, EarlyStopping) and callback._check_on_train_epoch_end is None:
            callback._check_on_train_epoch_end = False
    return callbacks


def make_trainer(
    cfg: TrainingConfig,
    hardware: Hardware,
    total_steps: int,
    validation_interval_steps: int | None,
    *,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    folder: Path,
) -> Trainer:
    """A Trainer for `total_steps` optimizer steps, with the options of `trainer.lightning`.

    It validates every `validation_interval_steps`, or (None) at the end of each epoch, as the data
    module cuts them.
    """
    # A new epoch asks the data module for the batches up to the next evaluation.
    options: PlainDict = {"reload_dataloaders_every_n_epochs": 1}
    if not validation_interval_steps:
        options["limit_val_batches"] = 1.0
    # Code of the user's is tried on all of the validation data before the first step.
    if permission_for(asdict(cfg)) and not (folder / "checkpoints").is_dir():
        options["num_sanity_val_steps"] = -1
    options |= build("trainer.lightning", cfg.trainer.lightning)
    return build_trainer(
        hardware,
        max_steps=total_steps,
        validation_interval_steps=validation_interval_steps,
        callbacks=callbacks,
        loggers=loggers,
        folder=folder,
        log_interval_steps=cfg.trainer.log_interval_steps,
        **options,
    )


def standalone_trainer(
    cfg: TrainingConfig,
    hardware: Hardware,
    total_steps: int,
    validation_interval_steps: int | None,
) -> Trainer:
    """A Trainer for a training from Python: it has no run, no trackers and no checkpoints."""
    return make_trainer(
        cfg,
        hardware,
        total_steps,
        validation_interval_steps,
        callbacks=configured_callbacks(cfg),
        loggers=[],
        folder=Path(cfg.run_dir),
    )


def adaptation(settings: PlainMapping, encoder: Encoder) -> Callable[[], str]:
    """What adapts an encoder, once its heads stand on it.

    As `adaptation` and `freeze` of a stage's settings say; it returns a line for the log.
    """
    method = None
    if settings.get("adaptation") is not None:
        method = build("adaptation", settings["adaptation"])
    has_fresh_pooler = not encoder.has_trained_pooler
    return partial(
        adapt, encoder, method, settings.get("freeze"), has_fresh_pooler=has_fresh_pooler
    )


def adapter_inputs(settings: PlainMapping | None, encoder: str) -> dict[str, str]:
    """The content of the folder that `adaptation.adapter` names, among what a run reads.

    A run that begins without one has no such input. ValueError for an adapter of another encoder
    than the given one, which `encoder` is the fingerprint of.
    """
    if settings is None or settings.get("adapter") is None:
        return {}
    folder = Path(str(settings["adapter"]))
    require_files(folder)
    base = read_about(folder).get("base_fingerprint")
    if base is None:
        log.warning(
            "%s does not say which weights it was trained on: on others than these it is noise",
            folder,
        )
    elif base != encoder:
        name = read_json(folder / ADAPTER)["base_model_name_or_path"]
        raise ValueError(
            f"adaptation.adapter={folder} was trained on {name}, and encoder= has other files: give"
            f" that encoder, or merge them (clozelab export {folder} base=FOLDER to=MERGED) and"
            " begin with encoder=MERGED"
        )
    return {"adapter": digest({name: file_sha256(folder / name) for name in FILES})}


def optimization(cfg: TrainingConfig, total_steps: int, seed: int) -> PlainDict:
    """The arguments that a stage passes to every TrainingModule."""
    return {
        "optimizer_factory": build("optimizer", cfg.optimizer),
        "schedule_factory": build("schedule", cfg.schedule),
        "total_steps": total_steps,
        "gradient_clip_norm": cfg.gradient_clip_norm,
        "seed": seed,
        "log_interval_steps": cfg.trainer.log_interval_steps,
    }
