"""Where a resumed run stands in Lightning's loops: a fresh epoch whose counters begin at the saved step.

Lightning restores a tree of loop counters whose meaning depends on the hook that saved them, and skips or repeats a
validation at the seam. Our data, masks and dropout are functions of the step, so the step is all there is to restore.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Trainer


def forget_loops(checkpoint: dict[str, Any]) -> None:
    """Leave Lightning's loop counters out of a checkpoint."""
    checkpoint.pop("loops", None)


def set_position(trainer: Trainer, step: int) -> None:
    """Make `trainer` count from optimizer step `step`; for use while a checkpoint is being restored."""
    loop = trainer.fit_loop.epoch_loop
    for tracker in (
        loop.manual_optimization.optim_step_progress.total,
        loop.automatic_optimization.optim_progress.optimizer.step.total,
    ):
        tracker.ready = tracker.completed = step
    total: Any = loop.batch_progress.total
    total.ready = total.started = total.processed = total.completed = step
    loop._batches_that_stepped = step


def validation_is_due(trainer: Trainer, step: int) -> bool:
    """Whether Lightning will validate after optimizer step `step`: at each interval (or end of an epoch, where there is
    none) and after the last step."""
    interval = trainer.val_check_interval
    if not trainer.enable_validation:
        return False
    at_interval = step % interval == 0 if isinstance(interval, int) else trainer.is_last_batch
    return at_interval or step == trainer.max_steps
