"""Matrices, activations and fresh weights: BERT's truncated normal, zero biases, identity LayerNorms.

Unusual: `Linear` and `Embedding` leave their memory unset when built (torch would fill it once more, from the global
random state); the module that owns them calls `initialise_`, so that fresh weights are a function of one generator or
the global seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Linear):
    """nn.Linear whose owner initialises it."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""


class Embedding(nn.Embedding):
    """nn.Embedding whose owner initialises it; no padding_idx: the release trains that row as any other."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind a `hidden_act`; BERT's "gelu" is the exact one."""
    if name == "relu":
        return F.relu
    if name == "gelu":
        return F.gelu
    return partial(F.gelu, approximate="tanh")


def initialise_(module: nn.Module, initializer_range: float, generator: torch.Generator | None = None) -> None:
    """Fills every Linear, Embedding and LayerNorm below `module`, in registration order.

    Source: google-research/bert modeling.py, `create_initializer`: a normal of standard deviation `initializer_range`
    truncated at two of them. `generator`: None means torch's global random state.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear):
            truncated_normal_(child.weight, initializer_range, generator)
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        elif isinstance(child, nn.Embedding):
            truncated_normal_(child.weight, initializer_range, generator)
        elif isinstance(child, nn.LayerNorm):
            nn.init.ones_(child.weight)
            nn.init.zeros_(child.bias)


def truncated_normal_(weight: Tensor, std: float, generator: torch.Generator | None) -> None:
    nn.init.trunc_normal_(weight, mean=0.0, std=std, a=-2.0 * std, b=2.0 * std, generator=generator)


def sinusoids(num_positions: int, size: int) -> Tensor:
    """fp64 [positions, size]: sines in even columns, cosines in odd ones (Vaswani et al. 2017, section 3.5).

    As a start of learned positions it is one of the things that take small models off the plateau of the masked-LM
    loss.
    """
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10_000.0) / size))
    table = torch.empty(num_positions, size, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: size // 2])
    return table
