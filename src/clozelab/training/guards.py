"""What must be neither trained on nor saved: numbers that are no numbers, and huge gradients.

A spike is a norm of the whole global batch's gradient, before it is cut, that is ten times the
usual one and six standard deviations above it, by the logarithms of the last hundred: these lie
near a bell curve. Another phase has another usual norm: longer rows may begin with gradients of 20
times the size, so its first norms are not judged. All ranks see the same norm, and a checkpoint
holds what was seen, so all ranks decide alike, and a resumed run as an undisturbed one.

stop ends the run. skip leaves the update of a spike out, and ends the run where spikes do not
cease. The host looks at each norm before its update, and a GPU waits for that; or it knows all
norms but the last, tells the device a limit, and the device decides (modules/graphs.py).
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, SupportsFloat, TypedDict

import torch
from lightning.pytorch import Trainer
from torch import Tensor

log = logging.getLogger(__name__)

WINDOW = 100  # norms that are remembered
MIN_NORMS = 20  # norms that have to be known before one is judged
# A spike is so many standard deviations, and so many times, above the usual norm.
SIGMAS = 6.0
FACTOR = 10.0
MAX_SKIPPED = 10  # updates of so many steps that may be left out
# What to look at where a loss was no number from the first step on.
BEFORE_ANY_UPDATE = (
    "no update was made before, so the learning rate is not to blame: look at the weights that were"
    " given, and for a state that an objective of your own reads and its read_slots does not list"
)


class DivergedError(ValueError):
    """The loss, the gradient or a weight is no number any more, or the gradient is huge."""


def exit_unless_first_rank(trainer: Trainer) -> None:
    """Ends every process but rank zero with status 0, before an error that all ranks raise.

    Lightning kills rank zero as soon as another rank fails, and then nobody writes what happened.
    """
    if not trainer.is_global_zero:
        sys.exit(0)


@contextmanager
def raised_by_all_ranks(trainer: Trainer | None) -> Iterator[None]:
    """Let the first rank alone raise a ValueError that all ranks meet; the others exit with 0.

    Only for what all ranks decide alike: where another one met it alone, the first would wait.
    """
    try:
        yield
    except ValueError:
        if trainer is not None:
            exit_unless_first_rank(trainer)
        raise


def diverge(trainer: Trainer, message: str) -> NoReturn:
    exit_unless_first_rank(trainer)
    raise DivergedError(message)


def require_finite_state(trainer: Trainer) -> None:
    """DivergedError where a weight or a moment of an optimizer, on any rank, is no number.

    One pass over all of them, and one wait for the device.
    """
    device = trainer.strategy.root_device
    values = list(trainer.lightning_module.parameters())
    for optimizer in trainer.optimizers:
        for state in optimizer.state.values():
            values += state.values()
    local = []
    for value in values:
        value = getattr(value, "_local_tensor", value)  # of a sharded one, this rank's part
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        # A count of steps may lie on another device.
        if value.numel() and value.device == device:
            local.append(value.detach())
    norms = torch._foreach_norm(local, math.inf)
    is_sound = bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
    if not trainer.strategy.reduce_boolean_decision(is_sound, all=True):
        diverge(
            trainer,
            f"step {trainer.global_step}: weights or optimizer state are no numbers any more and"
            " are not saved; earlier checkpoints stay, and a smaller learning rate and a longer"
            " warm-up are the usual cures",
        )


class SpikeState(TypedDict):
    """What a checkpoint has of a SpikeWatch."""

    logs: list[float]
    phase: int
    left_out: list[int]


class SpikeWatch:
    """Judges gradient norms; `action` is off, stop or skip. Steps are counted from 1."""

    def __init__(self, action: str = "off") -> None:
        self.action = action
        # Whether a norm that is no number is a spike as well, rather than the run's end.
        self.tolerates_non_finite = action == "skip"
        self.left_out: list[int] = []  # steps without an update
        self._logs: list[float] = []  # logarithms of the last norms, all of one phase
        self._phase = 0
        # steps, phases, norms that may still be on the device
        self._unread: list[tuple[int, int, SupportsFloat]] = []

    def should_skip(
        self, trainer: Trainer, step: int, norm: SupportsFloat, *, phase: int = 0, reads_norm: bool
    ) -> bool:
        """Notes the norm of a step before its update; returns whether to leave that out.

        `phase`: the one that the step belongs to. `reads_norm`: wait for the device.
        """
        if self.action == "off":
            return False
        self._unread.append((step, phase, norm))
        if reads_norm:
            self.check(trainer)
        return step in self.left_out

    def limit(self, trainer: Trainer, phase: int = 0) -> float:
        """The norm above which the next step's update, of a phase, is to be left out.

        It follows from all norms so far, which this reads; infinity where too few are known.
        """
        self.check(trainer)
        if phase != self._phase:
            return math.inf
        return self._limit()

    def check(self, trainer: Trainer) -> None:
        """Judges what was noted; a spike ends the run, or its update is left out."""
        unread = self._unread
        self._unread = []
        for step, phase, norm in unread:
            if phase != self._phase:
                self._phase = phase
                self._logs = []
            self._judge(trainer, step, float(norm))

    def _judge(self, trainer: Trainer, step: int, norm: float) -> None:
        """Remembers a norm, and acts where it is a spike."""
        logs = self._logs
        mean = sum(logs) / max(1, len(logs))
        is_spike = self.tolerates_non_finite
        if math.isfinite(norm):
            value = math.log(max(norm, 1e-30))
            is_spike = norm > self._limit()
            # A spike counts as a small one: whole it would hide the next. A level that stays
            # becomes usual.
            if is_spike:
                value = min(value, mean + math.log(FACTOR))
            self._logs = [*logs[1 - WINDOW :], value]
        if is_spike:
            text = f"step {step}: gradient norm {norm:.4g}, where {math.exp(mean):.4g} is usual"
            self._act(trainer, step, text)

    def _act(self, trainer: Trainer, step: int, text: str) -> None:
        """Leaves a spike's update out; ends the run under `stop`, or where many were before."""
        if self.action == "stop":
            diverge(
                trainer,
                f"{text}; earlier checkpoints stay, and spike=skip leaves such updates out",
            )
        recent = [left_out for left_out in self.left_out if left_out > step - WINDOW]
        if len(recent) >= MAX_SKIPPED:
            cure = "a smaller learning rate and a longer warm-up are the usual cures"
            if len(self.left_out) == step - 1:
                cure = BEFORE_ANY_UPDATE
            diverge(
                trainer,
                f"{text}; the updates of {MAX_SKIPPED} of the last {WINDOW} steps were left out"
                f" already: {cure}",
            )
        self.left_out.append(step)
        log.warning("%s: its update is left out", text)

    def _limit(self) -> float:
        """The largest norm that is no spike; infinity where too few are known."""
        logs = self._logs
        if len(logs) < MIN_NORMS:
            return math.inf
        mean = sum(logs) / len(logs)
        deviation = math.sqrt(sum((other - mean) ** 2 for other in logs) / len(logs))
        return math.exp(mean + max(SIGMAS * deviation, math.log(FACTOR)))

    def state(self) -> SpikeState:
        """For a checkpoint, after a look."""
        return {"logs": list(self._logs), "phase": self._phase, "left_out": list(self.left_out)}

    def load(self, state: SpikeState) -> None:
        self._logs = list(state["logs"])
        self._phase = state["phase"]
        self.left_out = list(state["left_out"])
        self._unread = []


def watch_of(module: object) -> SpikeWatch:
    """The module's own, or one that sees nothing."""
    return getattr(module, "spikes", SpikeWatch())
