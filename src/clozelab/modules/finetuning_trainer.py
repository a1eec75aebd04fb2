"""The Trainer of fine-tuning: evaluations where the data module's epochs end, no checkpoint files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger

from clozelab.modules.finetuning import FineTuning
from clozelab.training.trainer import Hardware, build_trainer, stage_callbacks


def build_finetuning_trainer(
    hardware: Hardware,
    module: FineTuning,
    loggers: Sequence[Logger],
    folder: Path,
    fingerprint: str,
    progress_bar: bool,
) -> Trainer:
    """A Trainer that evaluates at each end of a (short) epoch and asks the data module for the next stretch.

    There is no checkpoint to resume from: a fine-tuning is short enough to start again.
    """
    callbacks = stage_callbacks(
        checkpoint=None, checkpoint_interval_steps=1, fingerprint=fingerprint, progress_bar=progress_bar
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
