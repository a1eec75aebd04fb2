"""Learning-rate schedules as closed forms of the step.

So a resumed run needs nothing but the step number.
"""

from __future__ import annotations

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear_warmup_decay(step: int, *, total_steps: int, warmup_steps: int) -> float:
    """Factor on the peak learning rate for optimizer step `step` (0 is the first), as released.

    Warm-up is step / warmup_steps; the decay is 1 - step / total_steps, counted from step 0 and
    overridden by the warm-up (google-research/bert, optimization.py). So the very first step has
    rate 0, and the factor just after warm-up is 1 - warmup_steps / total_steps, not 1: 0.99 for the
    paper's 10,000 of 1,000,000 steps.
    """
    if step < warmup_steps:
        return step / warmup_steps
    return max(0.0, 1.0 - step / total_steps)


class LinearWarmupDecay(LambdaLR):
    """Linear warm-up to the peak, then linear decay to zero at `total_steps`.

    It is stepped once per optimizer step.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, warmup_fraction: float) -> None:
        if total_steps < 1:
            raise ValueError(
                f"schedule: total_steps is {total_steps}: there must be at least one optimizer step"
            )
        if not 0.0 <= warmup_fraction < 1.0:
            raise ValueError(f"schedule.warmup_fraction is {warmup_fraction}: it must be in [0, 1)")
        self.warmup_steps = round(total_steps * warmup_fraction)
        self.total_steps = total_steps
        super().__init__(optimizer, self._factor)

    def _factor(self, step: int) -> float:
        return linear_warmup_decay(
            step, total_steps=self.total_steps, warmup_steps=self.warmup_steps
        )


class CosineDecay(LinearWarmupDecay):
    """Linear warm-up to the peak, then half a cosine down to `final_fraction` of it.

    It ends at `total_steps`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        warmup_fraction: float,
        final_fraction: float = 0.0,
    ) -> None:
        _require_fraction("final_fraction", final_fraction)
        self.final_fraction = final_fraction
        super().__init__(optimizer, total_steps, warmup_fraction)

    def _factor(self, step: int) -> float:
        if step < self.warmup_steps:
            return step / self.warmup_steps
        # Of few steps all may be warm-up.
        num_falling = max(1, self.total_steps - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / num_falling)
        cosine = 1 + math.cos(math.pi * progress)
        return self.final_fraction + (1 - self.final_fraction) * cosine / 2


class WarmupStableDecay(LinearWarmupDecay):
    """Linear warm-up to the peak, which holds until a last linear decay to zero.

    That takes the last `decay_fraction` of the steps; 0: constant after the warm-up.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_fraction: float, decay_fraction: float
    ) -> None:
        _require_fraction("decay_fraction", decay_fraction)
        self.decay_steps = round(total_steps * decay_fraction)
        super().__init__(optimizer, total_steps, warmup_fraction)

    def _factor(self, step: int) -> float:
        rising = 1.0
        if step < self.warmup_steps:
            rising = step / self.warmup_steps
        falling = 1.0
        if self.decay_steps:
            falling = max(0, self.total_steps - step) / self.decay_steps
        return min(rising, falling)


class SlantedTriangular(LinearWarmupDecay):
    """A short linear rise to the peak and a long linear fall, both from and to 1 / `ratio` of it.

    Howard and Ruder 2018, section 3.2; `warmup_fraction` is their cut_frac. They round the rise
    down to whole steps, which lets the fall end early: the rate then stays at its lowest, where
    their formula goes on below, even below zero.
    """

    def __init__(
        self, optimizer: Optimizer, total_steps: int, warmup_fraction: float, ratio: float = 32.0
    ) -> None:
        if not 1.0 <= ratio < math.inf:
            raise ValueError(f"schedule.ratio is {ratio}: it must be >= 1 and finite")
        if warmup_fraction == 0.0:
            raise ValueError("schedule.warmup_fraction is 0: a slanted triangle rises first")
        self.ratio = ratio
        self.cut = max(1, math.floor(total_steps * warmup_fraction))
        self.fall_steps = self.cut * (1.0 / warmup_fraction - 1.0)
        super().__init__(optimizer, total_steps, warmup_fraction)

    def _factor(self, step: int) -> float:
        height = step / self.cut
        if step >= self.cut:
            height = max(0.0, 1.0 - (step - self.cut) / self.fall_steps)
        return (1.0 + height * (self.ratio - 1.0)) / self.ratio


def _require_fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"schedule.{name} is {value}: it must be in [0, 1]")
