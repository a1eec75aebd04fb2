"""The Trainer of fine-tuning: evaluations where the data module's epochs end, checkpoints only where it takes long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger

from clozelab.modules.finetuning import FineTuning
from clozelab.training.trainer import Hardware, build_trainer, stage_callbacks

CHECKPOINT_INTERVAL_STEPS = 50
CHECKPOINT_SECONDS = 300.0
"""At least between two checkpoints: a fine-tuning that is done sooner is begun again rather than written down."""


def build_finetuning_trainer(
    hardware: Hardware,
    module: FineTuning,
    loggers: Sequence[Logger],
    folder: Path,
    checkpoint: Path,
    fingerprint: str,
    progress_bar: bool,
) -> Trainer:
    """A Trainer that evaluates at each end of a (short) epoch and asks the data module for the next stretch."""
    callbacks = stage_callbacks(
        checkpoint=checkpoint,
        checkpoint_interval_steps=CHECKPOINT_INTERVAL_STEPS,
        checkpoint_least_seconds=CHECKPOINT_SECONDS,
        fingerprint=fingerprint,
        progress_bar=progress_bar,
    )
    return build_trainer(
        hardware,
        max_steps=module.total_steps,
        validation_interval_steps=None,
        callbacks=callbacks,
        loggers=loggers,
        folder=folder,
        log_interval_steps=module.log_interval_steps,
        limit_val_batches=1.0,
        reload_dataloaders_every_n_epochs=1,
    )
