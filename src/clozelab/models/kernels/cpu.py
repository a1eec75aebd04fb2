"""Dropout and attention on the CPU that do not cost more than what they stand beside.

Dropout. On the CPU torch draws one random number an element from a slow serial generator (4.5 ms for a million
elements, a third of a small model's step). Here one 64-bit draw of a fast one serves four elements, and what is dropped
is blanked by a bitwise "and" with 16 or 32 ones or zeros, because torch converts and multiplies booleans one by one.
The probability is then a multiple of 2^-16 (0.1 becomes 0.100006), the rescaling uses that very value, so the
expectation is exact. The fast generator is seeded by a draw from torch's, so torch's state decides everything.
Elsewhere than on the CPU: torch's own.

Attention of equal rows, forward and backward by hand around torch's batched matmul and softmax. It saves memory
traffic: query, key and value are brought into matmul's order by one copy, and so are their gradients; the scale costs
nothing; dropout's mask is drawn in place. Together a tenth of a small model's step.

Letters: B rows, S slots a row, N heads, D head dimension, T = B * S.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_LEVELS = 1 << 16
_INTEGERS = {2: torch.int16, 4: torch.int32}
"""By the bytes of a number, integers of the same size."""


def drawn_mask(shape: torch.Size | tuple[int, ...], dtype: torch.dtype, num_dropped_levels: int) -> Tensor:
    """Integers as wide as `dtype` of the given shape: all bits set where an element stays, none where it is dropped."""
    count = int(np.prod(shape))
    seed = int(torch.randint(1 << 62, ()))
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    levels = torch.from_numpy(words.view(np.int16)[:count]).view(shape)
    mask = levels.ge_(num_dropped_levels - _LEVELS // 2).neg_()
    return mask.to(_INTEGERS[dtype.itemsize])


def masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """`x * scale` where all bits of `mask` are set, zero where none is."""
    return (x.view(mask.dtype) & mask).view(x.dtype).mul_(scale)


def keep_scale(num_dropped_levels: int) -> float:
    return _LEVELS / (_LEVELS - num_dropped_levels)


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, num_dropped_levels: int) -> Tensor:
        mask, ctx.scale = drawn_mask(x.shape, x.dtype, num_dropped_levels), keep_scale(num_dropped_levels)
        ctx.save_for_backward(mask)
        return masked(x, mask, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return masked(grads[0], mask, ctx.scale), None


def has_fast_dropout(x: Tensor, prob: float) -> bool:
    """Whether `dropout` is this file's own for `x`; compiled, torch's is part of the loop around it."""
    return (
        x.device.type == "cpu"
        and 0 < round(prob * _LEVELS) < _LEVELS
        and x.dtype.itemsize in _INTEGERS
        and not torch.compiler.is_compiling()
    )


def dropout(x: Tensor, prob: float, training: bool) -> Tensor:
    """Zeroes elements of `x` (any shape) with probability `prob` and rescales the others; identity if not training."""
    if not training or prob == 0.0:
        return x
    if not has_fast_dropout(x, prob):
        return F.dropout(x, prob, True)
    return _CpuDropout.apply(x, round(prob * _LEVELS))


class _CpuAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, batch_size: int, width: int, bias: Tensor | None, levels: int) -> Tensor:
        _, _, num_heads, head_dim = qkv.shape
        ctx.shape, ctx.alpha = (batch_size, width, num_heads, head_dim), head_dim**-0.5
        by_slot = qkv.view(batch_size, width, 3, num_heads, head_dim)
        q, k, v = by_slot.permute(2, 0, 3, 1, 4).reshape(3, batch_size * num_heads, width, head_dim)
        # Without a bias beta is 0, and the content of what is added is not read.
        added = q.new_empty(()) if bias is None else bias
        added = added.expand(len(q), width, width)
        scores = torch.baddbmm(added, q, k.transpose(1, 2), beta=float(bias is not None), alpha=ctx.alpha)
        probs = torch.softmax(scores, dim=-1)
        mask = drawn_mask(probs.shape, probs.dtype, levels) if levels else None
        ctx.scale = keep_scale(levels)
        ctx.save_for_backward(q, k, v, probs, mask)
        dropped = masked(probs, mask, ctx.scale) if mask is not None else probs
        out = torch.bmm(dropped, v).view(batch_size, num_heads, width, head_dim)
        return out.transpose(1, 2).reshape(batch_size * width, num_heads, head_dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probs, mask = ctx.saved_tensors
        batch_size, width, num_heads, head_dim = ctx.shape
        grad_out = grads[0].view(ctx.shape).transpose(1, 2).reshape(q.shape)
        gradient = torch.empty((3, *q.shape), dtype=q.dtype)
        dropped = masked(probs, mask, ctx.scale) if mask is not None else probs
        torch.bmm(dropped.transpose(1, 2), grad_out, out=gradient[2])
        grad_probs = torch.bmm(grad_out, v.transpose(1, 2))
        if mask is not None:
            grad_probs = masked(grad_probs, mask, ctx.scale)
        grad_scores = torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype).mul_(ctx.alpha)
        torch.bmm(grad_scores, k, out=gradient[0])
        torch.bmm(grad_scores.transpose(1, 2), q, out=gradient[1])
        by_slot = gradient.view(3, batch_size, num_heads, width, head_dim).permute(1, 3, 0, 2, 4)
        return by_slot.reshape(batch_size * width, 3, num_heads, head_dim), None, None, None, None


def cpu_attention(qkv: Tensor, batch_size: int, width: int, bias: Tensor | None, prob: float) -> Tensor:
    """qkv [T, 3, N, D] -> [T, N, D]; `bias` [1, S, S] or [B*N, 1, S] is added to the scores, `prob` is dropout's."""
    return _CpuAttention.apply(qkv, batch_size, width, bias, round(prob * _LEVELS))


def has_fast_path(qkv: Tensor, prob: float) -> bool:
    """Whether `cpu_attention` can take it; a compiler does better with the plain operations."""
    if qkv.device.type != "cpu" or qkv.dtype.itemsize not in (2, 4) or torch.compiler.is_compiling():
        return False
    return prob == 0.0 or has_fast_dropout(qkv, prob)
