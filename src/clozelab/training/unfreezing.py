"""Gradual unfreezing: the head is trained at first, then one more layer below it after another.

Howard and Ruder 2018, section 3.3. A group of parameters is a layer, or the embeddings, or the head
with the pooler. A group that waits has no gradient: the gradient's norm is of the others, and no
optimizer moves it, decays it, or has a state of it. Which groups wait is a function of the step, so
a resumed training goes on with the same bits.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ParallelStrategy
from torch import nn
from torch.optim import Optimizer

from clozelab.optim.layers import levels_of

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

log = logging.getLogger(__name__)


class GradualUnfreezing(Callback):
    """One more group each `interval_epochs`, or each `interval_steps` optimizer steps.

    ValueError unless just one of them is given.
    """

    def __init__(
        self, interval_epochs: float | None = None, interval_steps: int | None = None
    ) -> None:
        interval = interval_epochs if interval_steps is None else interval_steps
        if interval is None or None not in (interval_epochs, interval_steps) or interval <= 0:
            raise ValueError(
                "callbacks.gradual_unfreezing: give interval_epochs or interval_steps, above 0,"
                " and null for the other"
            )
        self.interval_epochs = interval_epochs
        self.interval_steps = interval_steps
        # (the step from which it is trained, parameter)
        self._begins: list[tuple[int, nn.Parameter]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the groups of what is trained; warn of those that the training ends before."""
        data: Any = getattr(trainer, "datamodule", None)
        module: Any = pl_module
        if not hasattr(data, "steps_per_epoch"):
            raise ValueError("callbacks=gradual_unfreezing is for fine-tuning")
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        levels = levels_of(trained)
        groups = sorted({level.group for level in levels.values()}, reverse=True)
        if len(groups) < 2:
            raise ValueError(
                "callbacks=gradual_unfreezing: what is trained has less than two layers to unfreeze"
                " one after the other; leave it out"
            )
        interval = float(self.interval_steps or 0)
        if self.interval_epochs is not None:
            interval = self.interval_epochs * data.steps_per_epoch
        begin_of = {group: round(number * interval) for number, group in enumerate(groups)}
        for name, level in levels.items():
            self._begins.append((begin_of[level.group], trained[name]))
        reached = sum(begin < module.total_steps for begin in begin_of.values())
        if reached < len(groups):
            log.warning(
                "callbacks.gradual_unfreezing: %d steps train the upper %d of %d groups of layers"
                " alone; interval_steps=%d would train all in the end",
                module.total_steps,
                reached,
                len(groups),
                max(1, module.total_steps // (2 * len(groups))),
            )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        # DDP has asked for every gradient when it was built; alone, backward ends where all waits.
        if isinstance(trainer.strategy, ParallelStrategy):
            return
        for begin, parameter in self._begins:
            parameter.requires_grad_(begin <= trainer.global_step)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Drop the gradients of what waits, before the others' norm is taken."""
        for begin, parameter in self._begins:
            if begin > trainer.global_step:
                parameter.grad = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for _, parameter in self._begins:
            parameter.requires_grad_(True)
        self._begins.clear()
