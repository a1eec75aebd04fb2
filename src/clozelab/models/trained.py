"""Which parameters of a model are trained; every place that freezes some calls this file.

A parameter is frozen for one of two reasons. Nothing reads it, which is known once the heads stand:
DDP would wait for its gradient. Or somebody wants it so: `optimizer.groups`, features of a frozen
encoder, a teacher.

A parametrization (torch.nn.utils.parametrize) computes a weight of others, as an adapter does. Here
it stands under the name of that weight.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

log = logging.getLogger(__name__)
PARAMETRIZED = re.compile(r"\bparametrizations\.(\w+)\..*")


def freeze(parameters: Iterable[Tensor]) -> None:
    """Leave these parameters as they are in training."""
    for parameter in parameters:
        parameter.requires_grad_(False)


def train_what_is_read(encoder: Any, *, reads_pooler: bool) -> None:
    """Train an Encoder's pooler, and its matrices of global tokens, only where they are read."""
    encoder.pooler.requires_grad_(reads_pooler)
    # A matrix that global tokens share with the others has the others' name alone.
    for name, parameter in encoder.named_parameters():
        if ".qkv_global." in name:
            parameter.requires_grad_(encoder.choose_global is not None)


def log_trained(model: nn.Module) -> None:
    """Log how many of a model's parameters are trained; ValueError for none."""
    trained = trained_count(model)
    if not trained:
        raise ValueError("no parameter of the model is trained: freeze less of it")
    total = sum(parameter.numel() for parameter in model.parameters())
    log.info("%s of %s parameters are trained", f"{trained:,}", f"{total:,}")


def trained_count(model: nn.Module) -> int:
    """How many parameters of a model are trained; one that is shared counts once."""
    return sum(value.numel() for value in model.parameters() if value.requires_grad)


def frozen_weights(model: nn.Module) -> frozenset[str]:
    """The names of the weights that get no gradient, neither they nor what they are computed of."""
    names = set()
    trained = set()
    for name, parameter in model.named_parameters():
        weight = PARAMETRIZED.sub(r"\1", name)
        names.add(weight)
        if parameter.requires_grad:
            trained.add(weight)
    return frozenset(names - trained)


def effective_state(model: nn.Module) -> dict[str, Tensor]:
    """A model's state where a parametrized weight is what it computes, under its own name.

    Without parametrizations it is `state_dict()`.
    """
    state = {}
    for name, value in model.state_dict().items():
        if not PARAMETRIZED.search(name):
            state[name] = value
    # A module that stands at two places has its weights under both names.
    for path, module in model.named_modules(remove_duplicate=False):
        if not is_parametrized(module):
            continue
        for name in module.parametrizations:
            state[f"{path}.{name}".removeprefix(".")] = getattr(module, name)
    return state
