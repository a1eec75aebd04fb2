"""What every LightningModule here shares: optimiser and schedule, clipping, guards, publishing of
metrics, resume.

Unusual: nothing is saved by `save_hyperparameters`, and Lightning's loop counters are not restored;
a checkpoint holds weights, optimiser, schedule, the step and this module's own counters (see
training/checkpoints.py).

The plan (`total_steps`, which the schedule is drawn for) ends a training under any Trainer; one
that stops sooner is warned of.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clozelab.training.checkpoints import mix, set_position
from clozelab.training.guards import diverge
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, Throughput
from clozelab.training.tracking import MetricsCsv

log = logging.getLogger(__name__)
OptimizerFactory = Callable[..., Optimizer]
"""`build_adamw` with its settings bound; called with named_parameters()."""
ScheduleFactory = Callable[..., LRScheduler]
"""`LinearWarmupDecay` with its settings bound; called as (optimizer, total_steps=...)."""


class TrainingModule(LightningModule):
    """Thin base of the stages' modules.

    Args:
        optimizer_factory: named parameters -> optimizer.
        schedule_factory: (optimizer, total_steps=...) -> schedule, stepped once per optimizer step.
        total_steps: optimizer steps of the whole run; computed from the configuration, never
        estimated by Lightning.
        gradient_clip_norm: largest norm of the whole gradient; 0 leaves it as it is (the norm is
        still measured).
        seed: of this run; dropout is a function of it.
    """

    # that it was made of, for load_from_checkpoint(PATH, **arguments)
    arguments: Mapping[str, Any] = {}

    def __init__(
        self,
        *,
        optimizer_factory: OptimizerFactory,
        schedule_factory: ScheduleFactory,
        total_steps: int,
        gradient_clip_norm: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.optimizer_factory, self.schedule_factory = optimizer_factory, schedule_factory
        self.total_steps, self.gradient_clip_norm, self.seed = total_steps, gradient_clip_norm, seed
        self.throughput, self.batches_seen = Throughput(), 0
        self.stop_requested: Callable[[], int] = lambda: 0
        self.stop_agreed = 0
        self.latest_metrics: dict[str, float] = {}
        self.latest_metrics_step = -1
        self.latest_validation: dict[str, float] = {}

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer_factory(self.named_parameters())
        schedule = self.schedule_factory(optimizer, total_steps=self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def learning_rate(self) -> float:
        """Rate of the coming optimizer step; set it before a training for another peak (Lightning's
        Tuner does).
        """
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, peak: float) -> None:
        self.optimizer_factory = partial(self.optimizer_factory, learning_rate=peak)

    def clip_gradient_norm(self) -> Tensor:
        """Scale the gradient, sharded or not, down to `gradient_clip_norm`; its norm before, a
        scalar on the device.
        """
        gradients = [p for p in self.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(gradients, self.gradient_clip_norm or math.inf)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's hook under automatic optimisation; the limit is this module's, not the
        Trainer's.
        """
        self.clip_gradient_norm()

    def require_finite(self, step: int, deciding: Tensor, **said: Tensor) -> None:
        """Stop the run where `deciding`, the same on all ranks, is not a number. `said`: what the
        message tells.
        """
        if bool(torch.isfinite(deciding)):
            return
        numbers = " and ".join(
            f"the {name.replace('_', ' ')} is {float(value)}" for name, value in said.items()
        )
        diverge(
            self.trainer,
            f"step {step}: {numbers} at learning rate {self.learning_rate:.3g}. A smaller learning"
            " rate, a longer warm-up (schedule.warmup_fraction) or trainer.precision=32-true are"
            " the usual cures",
        )

    def note_batch(self, contents: int) -> None:
        """Fold what a step's global batch holds (a number that the data module makes) into the
        digest of all so far.
        """
        self.batches_seen = mix(self.batches_seen, contents)

    def publish(self, metrics: Mapping[str, float], tokens_since_log: int = 0) -> None:
        """Send numbers of the current step to every logger and to the progress display.

        `tokens_since_log`: what all ranks trained on since the last log point, where this step is
        not one.
        """
        step = self.trainer.global_step
        if any(key.startswith("train/") for key in metrics):
            self.latest_metrics, self.latest_metrics_step = dict(metrics), step
        in_training, is_shared = self.trainer.state.fn == "fit", self.trainer.world_size > 1
        place = self.device if is_shared else "cpu"  # nobody waits for a copy to a device
        exact = {
            key: torch.tensor(value, dtype=torch.float64, device=place)
            for key, value in metrics.items()
        }
        # What trainer.validate returns are the numbers that Lightning sends to the loggers.
        self.log_dict(exact, logger=not in_training, sync_dist=is_shared, batch_size=1)
        tokens = self.throughput.total_tokens + tokens_since_log
        clock = {TOKENS_KEY: float(tokens), SECONDS_KEY: self.throughput.total_seconds}
        for logger in self.loggers if in_training else ():
            logger.log_metrics({**metrics, **clock}, step)

    def on_train_start(self) -> None:
        self._compare_plans()
        for logger in self.loggers:
            if isinstance(logger, MetricsCsv):
                logger.truncate_after(self.trainer.global_step)
        self.throughput.start()

    def _compare_plans(self) -> None:
        """Refuse a Trainer that would change what a step is; warn of one that stops before the
        schedule's end.
        """
        trainer: Any = self.trainer
        step = trainer.global_step
        if trainer.accumulate_grad_batches != 1 or trainer.gradient_clip_val:
            raise ValueError(
                "a batch is a whole optimizer step, whose gradient the module clips: give the"
                " Trainer neither accumulate_grad_batches nor gradient_clip_val, and say"
                " global_batch_size= and gradient_clip_norm="
            )
        epochs, limit = trainer.max_epochs, trainer.limit_train_batches
        epochs = self.total_steps if epochs in (None, -1) else epochs - trainer.current_epoch
        while step < self.total_steps and epochs > 0:
            end = next((end for end in self._epoch_ends() if end > step), step)
            step, epochs = min(end, step + limit) if isinstance(limit, int) else end, epochs - 1
        stop = step if trainer.max_steps == -1 else min(step, trainer.max_steps)
        if stop < self.total_steps and not (trainer.fast_dev_run or trainer.overfit_batches):
            log.warning(
                "the Trainer stops after %d of the plan's %d steps, before the learning rate's"
                " schedule ends; max_epochs=-1 alone trains the whole plan",
                *(stop, self.total_steps),
            )

    def _epoch_ends(self) -> list[int]:
        """The steps that Lightning's epochs end with, as far as somebody knows."""
        return getattr(getattr(self.trainer, "datamodule", None), "epoch_ends", [self.total_steps])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.trainer.global_step >= self.total_steps and not self.trainer.should_stop:
            self.trainer.should_stop = True  # after a validation
            rank_zero_info(
                f"`Trainer.fit` stopped: all {self.total_steps} steps of the plan are done."
            )

    def on_validation_start(self) -> None:
        self.throughput.stop()

    def on_validation_end(self) -> None:
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.throughput.start()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint.pop("loops", None)
        checkpoint["throughput"], checkpoint["batches_seen"] = (
            self.throughput.state(),
            f"{self.batches_seen:016x}",
        )
        checkpoint["latest_validation"] = dict(self.latest_validation)
        for saved, optimizer in zip(
            checkpoint["optimizer_states"], self.trainer.optimizers, strict=True
        ):
            name_parameters(saved, optimizer, self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._trainer is not None:
            step = int(checkpoint["global_step"])
            set_position(self.trainer, step, bisect_right(self._epoch_ends(), step))
        self.throughput.load(checkpoint["throughput"])
        self.batches_seen = int(checkpoint["batches_seen"], 16)
        self.latest_validation = dict(checkpoint["latest_validation"])


def made_of(kind: Callable[..., Any], **arguments: Any) -> Any:
    """A module of a class, or of one with settings bound, that remembers what it was made of."""
    made = kind(**arguments)
    made.arguments = {**getattr(kind, "keywords", {}), **arguments}
    return made


def name_parameters(saved: dict[str, Any], optimizer: Optimizer, module: nn.Module) -> None:
    """Give an optimizer's state names for numbers, as a sharded one has: with these any strategy
    goes on.

    FSDP would count parameters in the module's order, and an optimizer counts them in that of its
    groups.
    """
    if isinstance(next(iter(saved.get("state", ())), None), int):
        names = {id(one): name for name, one in module.named_parameters()}
        order = [names[id(one)] for group in optimizer.param_groups for one in group["params"]]
        saved["state"] = {order[key]: value for key, value in saved["state"].items()}
        for group in saved["param_groups"]:
            group["params"] = [order[key] for key in group["params"]]
