"""Matrices, activations, dropout and fresh weights, as BERT has them.

Fresh weights are a truncated normal, zero biases, identity LayerNorms. Unusual: `Linear` and
`Embedding` leave their memory unset when built (torch would fill it once more, from the global
random state); the module that owns them calls `initialise_`, so that fresh weights are a function
of one generator or the global seed.

Dropout on the CPU is our own. Torch draws one random number an element from a slow serial generator
(4.5 ms for a million elements, a third of a small model's step). Here one 64-bit draw of a fast one
serves four elements, and what is dropped is blanked by a bitwise "and" with 16 or 32 ones or zeros,
because torch converts and multiplies booleans one by one. The probability is then a multiple of
2^-16 (0.1 becomes 0.100006), the rescaling uses that very value, so the expectation is exact. The
fast generator is seeded by a draw from torch's, so torch's state decides everything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_LEVELS = 1 << 16
# Bytes of a number -> integers of the same size.
_INTEGERS = {2: torch.int16, 4: torch.int32}


class Linear(nn.Linear):
    """nn.Linear whose owner initialises it, `init_scale` times as large as other matrices.

    Without gradients, in bf16 on a CPU, oneDNN adds the bias while it multiplies.
    """

    init_scale: float = 1.0

    def forward(self, input: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        if torch.is_grad_enabled() or self.bias is None or not _is_autocast_to_bf16():
            return super().forward(input)
        x = input.to(torch.bfloat16)
        if not fuses_bias(x):
            return super().forward(x)
        return linear_by_onednn(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""


def _is_autocast_to_bf16() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def fuses_bias(x: Tensor) -> bool:
    """Whether `linear_by_onednn` takes `x`."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or x.numel() == 0:
        return False
    if torch.compiler.is_compiling():
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight.T + bias by oneDNN, which adds the bias while it multiplies; no gradients.

    Torch's own copies the bias to every row first: the same bits in 1.3 to 1.9 times the time.
    """
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class Embedding(nn.Embedding):
    """nn.Embedding whose owner initialises it.

    It has no padding_idx: the release trains that row as any other.
    """

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""

    def table(self) -> Tensor:
        """[entries, size]: what is looked up."""
        return self.weight


class DeltaEmbedding(Embedding):
    """Another one's entries, which get no gradient from here, plus a difference of its own.

    He et al. 2023, gradient-disentangled embedding sharing. The difference begins at zero.
    """

    def __init__(self, source: Embedding) -> None:
        super().__init__(source.num_embeddings, source.embedding_dim)
        nn.init.zeros_(self.weight)
        # In a tuple, which torch does not look into: whose weights they are, they are saved with.
        self._source = (source,)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [T] -> [T, E]."""
        return F.embedding(ids, self._source[0].weight.detach()) + super().forward(ids)

    def table(self) -> Tensor:
        return self._source[0].weight.detach() + self.weight

    @torch.no_grad()
    def set_table(self, table: Tensor) -> None:
        """Makes `table` [entries, size] what is looked up."""
        self.weight.copy_(table - self._source[0].weight)


class ReadSlots(NamedTuple):
    """Some slots of a stream, where a layer's states are wanted."""

    slots: Tensor  # int64 [R]
    num_slots: int  # T, of the whole stream


def draw_dropout_bits(
    x: Tensor, num_dropped_levels: int, read: ReadSlots | None = None
) -> Tensor | None:
    """Integers as wide as those of `x`: all bits set where an element stays, none where it goes.

    Of 2^16 equally likely levels, `num_dropped_levels` are dropped; None where none is. Where `x`
    [R, ...] has some slots of a stream, all slots are drawn: what these get does not depend on
    which others are wanted.
    """
    if not num_dropped_levels:
        return None
    num_rows = len(x) if read is None else read.num_slots
    shape = (num_rows, *x.shape[1:])
    count = math.prod(shape)
    generator = np.random.SFC64(int(torch.randint(1 << 62, ())))
    words = generator.random_raw((count + 3) // 4)  # of 64 bits: four levels each
    levels = torch.from_numpy(words.view(np.int16)[:count]).view(shape)
    if read is not None:
        levels = levels.index_select(0, read.slots)
    # True is 1, and its negative has all bits set.
    mask = levels.ge_(num_dropped_levels - _LEVELS // 2).neg_()
    return mask.to(_INTEGERS[x.dtype.itemsize])


def without_dropped(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` where all bits of `mask` are set, zero where none is; `x` without a mask."""
    if mask is None:
        return x
    return (x.view(mask.dtype) & mask).view(x.dtype)


def dropout_scale(num_dropped_levels: int) -> float:
    """What kept elements are multiplied by, so that the expectation stays the same."""
    return _LEVELS / (_LEVELS - num_dropped_levels)


def quantise_drop_prob(prob: float) -> int:
    """How many of 2^16 levels are dropped, for a probability."""
    return round(prob * _LEVELS)


class _CpuDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, num_dropped_levels: int, read: ReadSlots | None = None
    ) -> Tensor:
        mask = draw_dropout_bits(x, num_dropped_levels, read)
        ctx.levels = num_dropped_levels
        ctx.save_for_backward(mask)
        return without_dropped(x, mask).mul_(dropout_scale(num_dropped_levels))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return without_dropped(grads[0], mask).mul_(dropout_scale(ctx.levels)), None, None


def has_fast_dropout(x: Tensor, num_dropped_levels: int) -> bool:
    """Whether `dropout` is this file's own for `x`.

    Compiled, torch's is part of the loop around it.
    """
    return (
        x.device.type == "cpu"
        and 0 < num_dropped_levels < _LEVELS
        and x.dtype.itemsize in _INTEGERS
        and not torch.compiler.is_compiling()
    )


def dropout(x: Tensor, prob: float, training: bool, read: ReadSlots | None = None) -> Tensor:
    """Zeroes elements of `x` (any shape) with probability `prob` and rescales the others.

    Identity if not training. `read`: see `draw_dropout_bits`.
    """
    if not training or prob == 0.0:
        return x
    num_dropped_levels = quantise_drop_prob(prob)
    if not has_fast_dropout(x, num_dropped_levels):
        return F.dropout(x, prob, True)
    return _CpuDropout.apply(x, num_dropped_levels, read)


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, x: Tensor, read: ReadSlots | None = None) -> Tensor:
        return dropout(x, self.prob, self.training, read)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind a `hidden_act`; BERT's "gelu" is the exact one."""
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "tanh": torch.tanh,
        "silu": F.silu,
    }
    # The others are names of the tanh approximation, such as gelu_new.
    return functions.get(name, partial(F.gelu, approximate="tanh"))


def initialise_(
    module: nn.Module, initializer_range: float, generator: torch.Generator | None = None
) -> None:
    """Fills every Linear, Embedding and norm below `module`, in registration order.

    Source: google-research/bert modeling.py, `create_initializer`: a normal of standard deviation
    `initializer_range` truncated at two of them. `generator`: None means torch's global random
    state.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear | nn.Embedding):
            deviation = initializer_range * getattr(child, "init_scale", 1.0)
            bound = 2.0 * deviation
            nn.init.trunc_normal_(child.weight, 0.0, deviation, -bound, bound, generator=generator)
        if isinstance(child, nn.Linear):
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        elif isinstance(child, nn.LayerNorm | nn.RMSNorm):
            child.reset_parameters()
