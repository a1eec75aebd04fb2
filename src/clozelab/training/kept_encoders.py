"""Encoders kept on the way through pre-training.

Unusual: they are written before the checkpoint of the same step, so a run that is killed and resumed from a checkpoint
behind such a step has its encoder; one killed in between writes the same encoder again.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class KeepEncoders(Callback):
    """Calls `save(step)` on rank zero after each of `steps` optimizer steps; stands before LastCheckpoint.

    The module offers `gather_weights` and `release_weights`, called on every rank around it.
    """

    def __init__(self, steps: Collection[int], save: Callable[[int], None]) -> None:
        self.steps, self.save = frozenset(steps), save
        self._saved_step = -1

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step not in self.steps or step == self._saved_step:
            return
        module: Any = pl_module
        module.gather_weights()
        if trainer.is_global_zero:
            self.save(step)
        module.release_weights()
        self._saved_step = step
