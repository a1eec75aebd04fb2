"""What every LightningModule here shares: optimizer, schedule, clipping, guards, metrics, resume.

Unusual: nothing is saved by `save_hyperparameters`, and Lightning's loop counters are not restored;
a checkpoint holds weights, optimizer, schedule, the step and this module's own counters (see
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
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from clozelab.models.trained import freeze, log_trained
from clozelab.optim.groups import frozen_by_groups, refuse_frozen_groups
from clozelab.training.background import BackgroundLogger
from clozelab.training.callbacks import averaging
from clozelab.training.checkpoints import Checkpoint, hash_combine, seed_forward, set_position
from clozelab.training.guards import BEFORE_ANY_UPDATE, diverge
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, Throughput
from clozelab.training.tracking import MetricsCsv

log = logging.getLogger(__name__)
# `build_adamw` with its settings bound; called with named_parameters().
OptimizerFactory = Callable[..., Optimizer]
# `LinearWarmupDecay` with its settings bound; called as (optimizer, total_steps=...).
ScheduleFactory = Callable[..., LRScheduler]
M = TypeVar("M", bound="TrainingModule")


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
        log_interval_steps: optimizer steps between two published averages.
    """

    # What it was built with, for load_from_checkpoint(PATH, **arguments).
    arguments: Mapping[str, object] = {}

    def __init__(
        self,
        *,
        optimizer_factory: OptimizerFactory,
        schedule_factory: ScheduleFactory,
        total_steps: int,
        gradient_clip_norm: float,
        seed: int,
        log_interval_steps: int,
    ) -> None:
        super().__init__()
        self.optimizer_factory = optimizer_factory
        self.schedule_factory = schedule_factory
        self.total_steps = total_steps
        self.gradient_clip_norm = gradient_clip_norm
        self.seed = seed
        self.log_interval_steps = log_interval_steps
        self.throughput = Throughput()
        self._are_loggers_aligned = False
        self._last_learning_rate: float | None = None  # of the last optimizer step
        self.batches_seen = 0  # digest of all batches so far
        # What this rank was asked, and what all ranks have agreed on: exit statuses, 0 for none.
        self.stop_requested: Callable[[], int] = lambda: 0
        self.stop_agreed = 0
        # What the progress display shows.
        self.latest_metrics: dict[str, float] = {}
        self.latest_metrics_step = -1
        self.latest_validation: dict[str, float] = {}

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.optimizer_factory(self.named_parameters())
        schedule = self.schedule_factory(optimizer, total_steps=self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @property
    def learning_rate(self) -> float:
        """Rate of the coming optimizer step.

        Set it before a training for another peak, as Lightning's Tuner does.
        """
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, peak: float) -> None:
        """Rate of the coming optimizer step."""
        self.optimizer_factory = partial(self.optimizer_factory, learning_rate=peak)

    @property
    def last_learning_rate(self) -> float:
        """Rate of the last optimizer step; before the first, of that."""
        if self._last_learning_rate is None:
            return self.learning_rate
        return self._last_learning_rate

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self._last_learning_rate = self.learning_rate
        # Some optimizers draw in their step: the same on all ranks, or their weights would part.
        seed_forward(self.seed, self.trainer.global_step, -1, 0)

    def clip_gradient_norm(self) -> Tensor:
        """Scales the gradient, sharded or not, down to `gradient_clip_norm`.

        Returns the norm before, a scalar on the device.
        """
        parameters = [p for p in self.parameters() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(parameters, self.gradient_clip_norm or math.inf)
        if hasattr(norm, "full_tensor"):
            return norm.full_tensor()  # the parameters are sharded, and so is their norm
        return norm

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Lightning's hook under automatic optimisation; the limit is this module's own."""
        self.clip_gradient_norm()

    def require_finite(self, step: int, deciding: Tensor, **reported: Tensor) -> None:
        """Stops the run where `deciding`, the same on all ranks, is not a number.

        `reported`: the numbers that the message tells.
        """
        if bool(torch.isfinite(deciding)):
            return
        numbers = []
        for name, value in reported.items():
            numbers.append(f"the {name.replace('_', ' ')} is {float(value)}")
        # What went wrong is the work of steps before; the coming one may be the schedule's end.
        rate = self.last_learning_rate
        cure = (
            "a smaller learning rate, a longer warm-up (schedule.warmup_fraction) or"
            " trainer.precision=32-true are the usual cures"
        )
        if step == 1:
            cure = BEFORE_ANY_UPDATE
        diverge(
            self.trainer,
            f"step {step}: {' and '.join(numbers)} at learning rate {rate:.3g}; {cure}",
        )

    def update_batch_digest(self, contents: int) -> None:
        """Folds a step's global batch into the digest of all so far.

        `contents`: a number that the data module makes of what the batch holds.
        """
        self.batches_seen = hash_combine(self.batches_seen, contents)

    def publish(self, metrics: Mapping[str, float], tokens_since_log: int = 0) -> None:
        """Sends numbers of the current step to every logger and to the progress display.

        `tokens_since_log`: what all ranks trained on since the last log point, where this step is
        not one.
        """
        step = self.trainer.global_step
        if any(key.startswith("train/") for key in metrics):
            self.latest_metrics = dict(metrics)
            self.latest_metrics_step = step
        in_training = self.trainer.state.fn == "fit"
        # Also with one rank, of which Lightning wants the same words.
        is_shared = isinstance(self.trainer.strategy, ParallelStrategy)
        # On one device the numbers stay on the host, so that nobody waits for a copy.
        device = self.device if is_shared else "cpu"
        exact = {}
        for key, value in metrics.items():
            exact[key] = torch.tensor(value, dtype=torch.float64, device=device)
        # What trainer.validate returns are the numbers that Lightning sends to the loggers.
        self.log_dict(exact, logger=not in_training, sync_dist=is_shared, batch_size=1)
        if not in_training:
            return
        self.send(metrics, tokens_since_log)

    def send(self, metrics: Mapping[str, float], tokens_since_log: int) -> None:
        """Gives numbers of the current step to every logger, with the tokens and seconds so far."""
        tokens = self.throughput.total_tokens + tokens_since_log
        work = self.throughput.state()
        seconds = work["total_seconds"] + work["seconds"]
        clock = {TOKENS_KEY: float(tokens), SECONDS_KEY: seconds}
        for logger in self.loggers:
            logger.log_metrics({**metrics, **clock}, self.trainer.global_step)

    def on_train_start(self) -> None:
        self._compare_plans()
        self._align_loggers()
        self.throughput.start()
        # Killed right behind the evaluation that ended it, a training has nothing left to do.
        for callback in self.trainer.early_stopping_callbacks:
            if callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
                self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        # Where no step was left to train, neither on_train_start nor on_train_end was called.
        if not self._are_loggers_aligned:
            self._align_loggers()
            for callback in averaging(self.trainer):
                callback._copy_average_to_current(self)

    def _align_loggers(self) -> None:
        """Has every logger hold what was logged until this step, and nothing of later steps."""
        self._are_loggers_aligned = True
        step = self.trainer.global_step
        for logger in self.loggers:
            if isinstance(logger, MetricsCsv):
                logger.truncate_after(step)
        # Trackers are compared with metrics.csv.
        for logger in self.loggers:
            if isinstance(logger, BackgroundLogger):
                logger.go_on_after(step)

    def _compare_plans(self) -> None:
        """Refuses a Trainer that would change what a step is.

        Warns of one that stops before the schedule's end.
        """
        trainer: Any = self.trainer
        if trainer.accumulate_grad_batches != 1 or trainer.gradient_clip_val:
            raise ValueError(
                "a batch is a whole optimizer step, whose gradient the module clips: give the"
                " Trainer neither accumulate_grad_batches nor gradient_clip_val, and say"
                " global_batch_size= and gradient_clip_norm="
            )
        stop = self._planned_stop(trainer)
        if stop < self.total_steps and not (trainer.fast_dev_run or trainer.overfit_batches):
            log.warning(
                "the Trainer stops after %d of the plan's %d steps, before the learning rate's"
                " schedule ends; max_epochs=-1 alone trains the whole plan",
                stop,
                self.total_steps,
            )

    def _planned_stop(self, trainer: Any) -> int:
        """The step after which the Trainer's own limits end the training."""
        epochs_left = self.total_steps
        if trainer.max_epochs not in (None, -1):
            epochs_left = trainer.max_epochs - trainer.current_epoch
        # Walk from one end of an epoch to the next; a limit on batches makes epochs shorter.
        step = trainer.global_step
        limit = trainer.limit_train_batches
        while step < self.total_steps and epochs_left > 0:
            end = next((end for end in self._epoch_ends() if end > step), step)
            if isinstance(limit, int):
                end = min(end, step + limit)
            step = end
            epochs_left -= 1
        if trainer.max_steps == -1:
            return step
        return min(step, trainer.max_steps)

    def _epoch_ends(self) -> list[int]:
        """The steps that Lightning's epochs end with, as far as somebody knows."""
        datamodule = getattr(self.trainer, "datamodule", None)
        return getattr(datamodule, "epoch_ends", [self.total_steps])

    def on_train_batch_end(self, outputs: object, batch: object, batch_idx: int) -> None:
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

    def on_save_checkpoint(self, checkpoint: Checkpoint) -> None:
        # Lightning's loop counters mean something else in another hook.
        checkpoint.pop("loops", None)
        checkpoint["throughput"] = self.throughput.state()
        checkpoint["batches_seen"] = f"{self.batches_seen:016x}"
        checkpoint["latest_validation"] = dict(self.latest_validation)
        states = checkpoint["optimizer_states"]
        for state, optimizer in zip(states, self.trainer.optimizers, strict=True):
            name_parameters(state, optimizer, self)

    def on_load_checkpoint(self, checkpoint: Checkpoint) -> None:
        if self._trainer is not None:
            step = int(checkpoint["global_step"])
            set_position(self.trainer, step, bisect_right(self._epoch_ends(), step))
        self.throughput.load(checkpoint["throughput"])
        self.batches_seen = int(checkpoint["batches_seen"], 16)
        self.latest_validation = dict(checkpoint["latest_validation"])


def build_with_hparams(
    factory: Callable[..., M], adapt: Callable[[], str] | None = None, **arguments: object
) -> M:
    """Builds a module, by its class or a `partial` of it, that keeps its arguments.

    It is adapted once, before a strategy wraps it: by `adapt`, which comes behind all draws of
    fresh weights, and by what the optimizer's groups call frozen. ValueError where a group names
    what `adapt` has frozen, and where nothing is left to train.
    """
    module = factory(**arguments)
    untrained = [weight for weight in module.parameters() if not weight.requires_grad]
    if adapt is not None:
        adapted = adapt()
        if adapted:
            log.info("%s", adapted)
    groups = getattr(module.optimizer_factory, "keywords", {}).get("groups")
    refuse_frozen_groups(module, groups, set(untrained))
    freeze(frozen_by_groups(module, groups))
    log_trained(module)
    module.arguments = {**getattr(factory, "keywords", {}), **arguments}
    return module


def name_parameters(state: Checkpoint, optimizer: Optimizer, module: nn.Module) -> None:
    """Gives an optimizer's state names for numbers, as a sharded one has: any strategy goes on.

    FSDP would count parameters in the module's order, and an optimizer counts them in that of its
    groups.
    """
    first_key = next(iter(state.get("state", ())), None)
    if not isinstance(first_key, int):
        return  # it has names
    # The names in the order of the optimizer's groups: number -> name.
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    order = []
    for group in optimizer.param_groups:
        order += [names[id(parameter)] for parameter in group["params"]]
    state["state"] = {order[number]: value for number, value in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [order[number] for number in group["params"]]
