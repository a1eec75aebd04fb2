"""Matrices, activations and fresh weights: BERT's truncated normal, zero biases, identity LayerNorms.

Unusual: `Linear` and `Embedding` leave their memory unset when built (torch would fill it once more, from the global
random state); the module that owns them calls `initialise_`, so that fresh weights are a function of one generator or
the global seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.cpu import dropout


class Linear(nn.Linear):
    """nn.Linear whose owner initialises it."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""


class Embedding(nn.Embedding):
    """nn.Embedding whose owner initialises it; no padding_idx: the release trains that row as any other."""

    def reset_parameters(self) -> None:
        """Nothing: `initialise_` does it."""


class Dropout(nn.Module):
    """`dropout` as a module."""

    def __init__(self, prob: float) -> None:
        super().__init__()
        self.prob = prob

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.prob, self.training)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind a `hidden_act`; BERT's "gelu" is the exact one."""
    known: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}
    return known.get(name, partial(F.gelu, approximate="tanh"))


def initialise_(module: nn.Module, initializer_range: float, generator: torch.Generator | None = None) -> None:
    """Fills every Linear, Embedding and LayerNorm below `module`, in registration order.

    Source: google-research/bert modeling.py, `create_initializer`: a normal of standard deviation `initializer_range`
    truncated at two of them. `generator`: None means torch's global random state.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear | nn.Embedding):
            bound = 2.0 * initializer_range
            nn.init.trunc_normal_(child.weight, 0.0, initializer_range, -bound, bound, generator=generator)
        if isinstance(child, nn.Linear):
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        elif isinstance(child, nn.LayerNorm):
            nn.init.ones_(child.weight)
            nn.init.zeros_(child.bias)


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
