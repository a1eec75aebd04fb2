"""Which parameters decay: weight matrices and embeddings do, biases and LayerNorm do not (as the released BERT code).

The rule is the number of dimensions: every bias and every LayerNorm gain is a vector, everything that decays is a
matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def decays(parameter: nn.Parameter) -> bool:
    """Whether weight decay applies; true for matrices, false for vectors."""
    return parameter.ndim >= 2


def decay_groups(named_parameters: Iterable[tuple[str, nn.Parameter]], weight_decay: float) -> list[dict[str, Any]]:
    """Two optimiser groups, decaying first; frozen parameters are left out, an empty group is dropped.

    Raises ValueError when nothing is trainable.
    """
    trainable = [parameter for _, parameter in named_parameters if parameter.requires_grad]
    if not trainable:
        raise ValueError("no trainable parameter: every parameter has requires_grad=False")
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in trainable if not decays(p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
