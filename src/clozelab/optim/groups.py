"""Groups of parameters: which decay, which learn at a rate of their own, which are frozen.

Weight matrices and embeddings decay, biases and norms do not, as in the released code. The rule is
the number of dimensions: every bias and every gain is a vector, everything that decays is a matrix.
`optimizer.groups` says what parameters have of their own whose names fit a pattern.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from clozelab.text.plain import ReadOnlyJson

log = logging.getLogger(__name__)
NamedParameters = Iterable[tuple[str, nn.Parameter]]
GroupNodes = Sequence[ReadOnlyJson] | None


@dataclass(frozen=True)
class ParameterGroup:
    """What the parameters whose names fit a pattern have of their own."""

    pattern: str = "*"  # as in a shell: "*.embeddings.*", "*.layer.0.*"
    learning_rate_factor: float = 1.0
    weight_decay: float | None = None  # None: the optimizer's for matrices, none for vectors
    frozen: bool = False

    def __post_init__(self) -> None:
        numbers = {"learning_rate_factor": self.learning_rate_factor}
        if self.weight_decay is not None:
            numbers["weight_decay"] = self.weight_decay
        for key, value in numbers.items():
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(
                    f"optimizer.groups: {key} of {self.pattern!r} is {value}: it must be a number,"
                    " at least 0"
                )
        if not isinstance(self.frozen, bool):
            raise ValueError(
                f"optimizer.groups: frozen of {self.pattern!r} is {self.frozen!r}: true or false"
            )

    @property
    def settings(self) -> str:
        """As it stands in a log."""
        if self.frozen:
            return "frozen"
        settings = f"learning rate x {self.learning_rate_factor:g}"
        if self.weight_decay is not None:
            settings += f", weight decay {self.weight_decay:g}"
        return settings


USUAL = ParameterGroup()


def match_groups(names: Iterable[str], nodes: GroupNodes) -> dict[str, ParameterGroup]:
    """Name of a parameter -> the first of some groups that it fits; the usual one's are left out.

    ValueError for a node that is no group, for a pattern that no name fits, or only names that an
    earlier pattern fits, and where nothing is left to train.
    """
    matches: dict[str, ParameterGroup] = {}
    names = list(names)
    for group in _read_groups(nodes):
        for name in _names_of_group(group.pattern, names, matches):
            matches[name] = group
    if names and sum(group.frozen for group in matches.values()) == len(names):
        raise ValueError("optimizer.groups freezes every parameter; leave one to train")
    return matches


def _read_groups(nodes: GroupNodes) -> list[ParameterGroup]:
    try:
        return [ParameterGroup(**node) for node in nodes or ()]
    except TypeError as error:
        raise ValueError(f"optimizer.groups: {error}") from None


def _nearest_names(pattern: str, names: Sequence[str]) -> list[str]:
    """One name of each kind: four layers of one would say less than four names."""
    name_of_kind = {re.sub(r"\d+", "N", name): name for name in reversed(names)}
    kinds = get_close_matches(pattern.replace("*", ""), list(name_of_kind), n=4, cutoff=0.0)
    return list(map(name_of_kind.__getitem__, kinds))


def _names_of_group(pattern: str, names: Sequence[str], taken: Container[str]) -> list[str]:
    """The names that fit a pattern and that no earlier one has taken; ValueError for none."""
    fitting = [name for name in names if fnmatchcase(name, pattern)]
    if not fitting:
        nearest = ", ".join(_nearest_names(pattern, names))
        raise ValueError(
            f"optimizer.groups: no parameter's name fits {pattern!r}; of the model's {len(names)}"
            f" names the nearest are {nearest}"
        )
    remaining = [name for name in fitting if name not in taken]
    if not remaining:
        raise ValueError(
            f"optimizer.groups: {pattern!r} fits only parameters that an earlier pattern fits, and"
            " the first one counts: put the narrower pattern first"
        )
    return remaining


def frozen_by_groups(model: nn.Module, nodes: GroupNodes) -> list[nn.Parameter]:
    """The parameters of a model whose groups are frozen; logs what each group has."""
    named = dict(model.named_parameters())
    frozen = []
    members: dict[ParameterGroup, list[nn.Parameter]] = {}
    for name, group in match_groups(named, nodes).items():
        members.setdefault(group, []).append(named[name])
        if group.frozen:
            frozen.append(named[name])
    for group, parameters in members.items():
        count = sum(parameter.numel() for parameter in parameters)
        log.info(
            "optimizer.groups: %s: %d of %d tensors, %s weights, %s",
            group.pattern,
            len(parameters),
            len(named),
            f"{count:,}",
            group.settings,
        )
    return frozen


def refuse_frozen_groups(
    model: nn.Module, nodes: GroupNodes, untrained: Container[nn.Parameter]
) -> None:
    """ValueError for a group that would train only what freeze= or adaptation= has frozen.

    `untrained`: what was frozen before these, for nothing reads it.
    """
    trained: dict[ParameterGroup, bool] = {}
    named = dict(model.named_parameters())
    for name, group in match_groups(named, nodes).items():
        weight = named[name]
        is_open = group.frozen or weight.requires_grad or weight in untrained
        trained[group] = trained.get(group, False) or is_open
    for group, is_trained in trained.items():
        if not is_trained:
            raise ValueError(
                f"optimizer.groups: {group.pattern!r} fits only weights that freeze= or adaptation="
                " leaves as they are; leave the group out"
            )


def frozen_names(names: Iterable[str], nodes: GroupNodes) -> list[str]:
    """Which of some names are frozen; a pattern that fits none of them is of other parameters."""
    frozen = []
    groups = _read_groups(nodes)
    for name in names:
        fitting = [group for group in groups if fnmatchcase(name, group.pattern)]
        if fitting and fitting[0].frozen:
            frozen.append(name)
    return frozen


# What torch.optim calls a group: its parameters and their settings.
OptimizerGroup = dict[str, Any]


def decay_groups(
    named_parameters: NamedParameters,
    weight_decay: float,
    learning_rate: float,
    matches: Mapping[str, ParameterGroup] | None,
) -> list[OptimizerGroup]:
    """An optimizer's groups: matrices, which decay, then vectors; then those of `matches`.

    Frozen parameters are left out.
    """
    members: dict[tuple[ParameterGroup, bool], list[nn.Parameter]] = {}
    for name, parameter in named_parameters:
        group = (matches or {}).get(name, USUAL)
        if parameter.requires_grad:
            members.setdefault((group, parameter.ndim < 2), []).append(parameter)
    # The usual ones stand first: theirs is the rate that is logged.
    order = sorted(members, key=lambda member: (member[0] != USUAL, member[1]))
    param_groups = []
    for group, are_vectors in order:
        decay = 0.0 if are_vectors else weight_decay
        settings = own_settings(group, learning_rate)
        param_groups.append(
            {"params": members[group, are_vectors], "weight_decay": decay, **settings}
        )
    return param_groups


def own_settings(group: ParameterGroup, learning_rate: float) -> dict[str, float]:
    """What a group's parameters have that the optimizer's others have not."""
    settings = {}
    if group.weight_decay is not None:
        settings["weight_decay"] = group.weight_decay
    if group.learning_rate_factor != 1.0:
        settings["lr"] = learning_rate * group.learning_rate_factor
    return settings
