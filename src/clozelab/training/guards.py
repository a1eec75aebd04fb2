"""What must be neither trained on nor saved: numbers that are no numbers, and gradients that are
suddenly huge.

A spike is a norm of the whole global batch's gradient, before it is cut, that is ten times the
usual one and six standard deviations above it, by the logarithms of the last hundred: these lie
near a bell curve. All ranks see the same norm, and a checkpoint holds what was seen, so all ranks
decide alike, and a resumed run as an undisturbed one.

stop ends the run. skip looks at each norm before its update and leaves the update out; a GPU waits
for that. roll_back looks at log points and saves alone: behind a spike it goes back to the last
checkpoint, takes the same steps again and leaves that one's update out. Both end in the same
weights, and both end the run where spikes do not cease.
"""

from __future__ import annotations

import logging
import math
import sys
from typing import Any, NoReturn

import torch
from lightning.pytorch import Trainer
from torch import Tensor

log = logging.getLogger(__name__)

WINDOW, LEAST = 100, 20  # norms that are remembered, and that have to be known before one is judged
SIGMAS, FACTOR = 6.0, 10.0
MOST = 10  # updates of so many steps that may be left out


class DivergedError(ValueError):
    """The loss, the gradient or a weight is no number any more, or the gradient is far from what it
    was.
    """


def leave_quietly_unless_first(trainer: Trainer) -> None:
    """End every process but rank zero with status 0 before an error that all ranks raise together.

    Lightning kills rank zero as soon as another rank fails, and then nobody writes what happened.
    """
    if not trainer.is_global_zero:
        sys.exit(0)


def diverge(trainer: Trainer, message: str) -> NoReturn:
    leave_quietly_unless_first(trainer)
    raise DivergedError(message)


def require_finite_state(trainer: Trainer) -> None:
    """DivergedError where a weight or a moment of an optimizer, on any rank, is no number: one
    pass, one wait.
    """
    device = trainer.strategy.root_device
    moments = [
        value
        for one in trainer.optimizers
        for state in one.state.values()
        for value in state.values()
    ]
    values = [
        getattr(one, "_local_tensor", one)
        for one in (*trainer.lightning_module.parameters(), *moments)
    ]
    values = [
        one.detach()
        for one in values
        if isinstance(one, Tensor) and one.numel() and one.is_floating_point()
    ]
    own = [one for one in values if one.device == device]  # a count of steps may lie elsewhere
    is_sound = bool(
        torch.stack([one.float() for one in torch._foreach_norm(own, math.inf)]).isfinite().all()
    )
    if not trainer.strategy.reduce_boolean_decision(is_sound, all=True):
        what = (
            f"step {trainer.global_step}: weights or optimizer state are no numbers any more and"
            " are not saved"
        )
        cures = "a smaller learning rate and a longer warm-up are the usual cures"
        diverge(trainer, f"{what}; earlier checkpoints stay, and {cures}")


class SpikeWatch:
    """Judges gradient norms; `action` is off, stop, skip or roll_back. Steps are counted from 1."""

    def __init__(self, action: str = "off") -> None:
        self.action = action
        self.takes_over = action in ("skip", "roll_back")  # what is no number is a spike as well
        # step and description of one that nothing was done about yet
        self.spike: tuple[int, str] | None = None
        self.left_out: list[int] = []  # steps without an update
        self._logs: list[float] = []
        self._unread: list[tuple[int, Tensor]] = []

    def leaves_out(self, trainer: Trainer, step: int, norm: Tensor, *, looks: bool) -> bool:
        """Note the norm of a step before its update, and whether to leave that out; `looks`: wait
        for the device.
        """
        if self.action == "off":
            return False
        self._unread.append((step, norm.detach()))
        if self.action == "skip" or looks:
            self.look(trainer)
        if self.action == "skip" and self.spike:
            self.leave_out("its update is left out")
        return step in self.left_out

    def look(self, trainer: Trainer) -> None:
        """Judge what was noted; the first spike ends the run, or waits in `spike`."""
        unread, self._unread = self._unread, []
        for step, norm in ((step, float(norm)) for step, norm in unread):
            logs, count, is_spike = self._logs, max(1, len(self._logs)), self.takes_over
            usual = sum(logs) / count
            if math.isfinite(norm):
                here, deviation = (
                    math.log(max(norm, 1e-30)),
                    math.sqrt(sum((one - usual) ** 2 for one in logs) / count),
                )
                is_spike = len(logs) >= LEAST and here > usual + max(
                    SIGMAS * deviation, math.log(FACTOR)
                )
                # A spike counts there as a small one: whole it would hide the next. A level that
                # stays becomes usual.
                self._logs = [
                    *logs[1 - WINDOW :],
                    min(here, usual + math.log(FACTOR)) if is_spike else here,
                ]
            if is_spike and self.spike is None and step not in self.left_out:
                self.spike = (
                    step,
                    f"step {step}: gradient norm {norm:.4g}, where {math.exp(usual):.4g} is usual",
                )
        if self.spike:
            step, text = self.spike
            if self.action == "stop":
                diverge(
                    trainer,
                    f"{text}; earlier checkpoints stay, and spike=skip leaves such updates out",
                )
            if sum(one > step - WINDOW for one in self.left_out) >= MOST:
                diverge(
                    trainer,
                    f"{text}; the updates of {MOST} of the last {WINDOW} steps were left out"
                    " already",
                )

    def leave_out(self, said: str) -> None:
        """From now on the update of the step in `spike` is left out."""
        (step, text), self.spike = self.spike or (0, ""), None
        self.left_out.append(step)
        log.warning("%s: %s", text, said)

    def state(self) -> dict[str, list[Any]]:
        """For a checkpoint, after a look."""
        return {"logs": list(self._logs), "left_out": list(self.left_out)}

    def load(self, state: dict[str, list[Any]]) -> None:
        self._logs, self.left_out, self._unread = list(state["logs"]), list(state["left_out"]), []


def watch_of(module: Any) -> SpikeWatch:
    """The module's own, or one that sees nothing."""
    return getattr(module, "spikes", SpikeWatch())
