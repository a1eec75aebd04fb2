"""Dropout that does not cost more than the layer it follows.

Unusual: on the CPU torch draws one random number an element from a serial generator (4.5 ms for a million elements, a
third of a small model's step); here one 64-bit draw serves four elements. The probability is then a multiple of 2^-16
(0.1 becomes 0.100006), the rescaling uses that very value, so the expectation is exact. Elsewhere than on the CPU:
torch's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, num_dropped_levels: int) -> Tensor:
        num_words = (x.numel() + 3) // 4
        bits = torch.empty(num_words, dtype=torch.int64).random_(-(2**63), None)
        bits = bits.view(torch.int16)[: x.numel()].view(x.shape)
        scale = (bits >= num_dropped_levels - _LEVELS // 2).to(x.dtype).mul_(_LEVELS / (_LEVELS - num_dropped_levels))
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return grads[0] * scale, None


def dropout(x: Tensor, prob: float, training: bool) -> Tensor:
    """Zeroes elements of `x` (any shape) with probability `prob` and rescales the others; identity if not training."""
    num_dropped_levels = round(prob * _LEVELS)
    if not training or prob == 0.0:
        return x
    if x.device.type != "cpu" or not 0 < num_dropped_levels < _LEVELS or torch.compiler.is_compiling():
        return F.dropout(x, prob, True)  # compiled, it is part of the loop around it
    return _CpuDropout.apply(x, num_dropped_levels)


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.prob, self.training)

    def extra_repr(self) -> str:
        return f"prob={self.prob}"
